"""Privacy targets: a GDP parameter, an (ε, δ), or the noise itself."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf
from typing import Any

import numpy as np

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_between, require_number, require_positive
from fedprivjax.privacy import gdp

LEVELS = ("mu", "epsilon")  # targets that state a privacy level
TARGETS = (*LEVELS, "noise_std")
NO_TARGET = "one of epsilon, mu and noise_std must be given"
SET_TARGET = "Set epsilon (with delta), mu (GDP) or noise_std"
UNLIMITED = "epsilon = inf is non-private"
RULE, PLAN = "rule", "plan"
CALIBRATIONS = {
    RULE: "noise of the method's rule, which may assume more messages than any machine sends",
    PLAN: "smallest noise that meets the target on the sampled public schedule, for the worst machine",
}


@dataclass(frozen=True)
class Target:
    """A privacy target: exactly one of `mu`, `epsilon` and `noise_std`.

    Attributes:
        mu: GDP parameter. inf is non-private.
        epsilon: ε at `delta`, one number for all machines or one per machine. inf is non-private.
        noise_std: noise standard deviation, regardless of the resulting privacy. 0 is non-private.
        delta: δ at which ε is targeted and stated, or None if there is no ε.

    Raises:
        Refusal: if not exactly one of the three is given.

    >>> round(Target(mu=1.0, delta=1e-5).worst_epsilon, 2)
    4.38
    """

    mu: float | None = None
    epsilon: Any = None
    noise_std: float | None = None
    delta: float | None = None

    def __post_init__(self):
        given = {name: value for name, value in vars(self).items() if name != "delta" and value is not None}
        if not given:
            raise Refusal(f"{NO_TARGET}, got none. {SET_TARGET}; {UNLIMITED}")
        if len(given) > 1:
            (one, first), (other, second) = list(given.items())[:2]
            raise Refusal(f"give {one} or {other}, not both, got {one} = {first} and {other} = {second}")
        require_positive("mu", self.mu, optional=True, infinite=True)
        for value in np.ravel([] if self.epsilon is None else self.epsilon):
            require_positive("epsilon", float(value), infinite=True)
        if self.noise_std is not None:
            require_number("noise_std", self.noise_std)
            if not 0 <= self.noise_std < inf:
                raise Refusal(f"noise_std must be finite and not negative, got {self.noise_std}")
        if self.delta is not None:
            require_between("delta", self.delta, 0, 1)

    @property
    def non_private(self) -> bool:
        """True if the target requires no noise."""
        return (
            self.mu == inf or self.noise_std == 0 or (self.epsilon is not None and bool(np.isinf(self.epsilon).all()))
        )

    @property
    def cache_key(self) -> tuple[Any, ...]:
        """Values that identify the target, for a digest."""
        return self.mu, np.asarray(self.epsilon, float), self.noise_std, self.delta

    @property
    def given_noise(self) -> float | None:
        """Noise that needs no accountant: the given noise, 0 for a non-private target, or None otherwise.

        >>> Target(noise_std=2.0).given_noise, Target(mu=inf).given_noise, Target(mu=1.0).given_noise
        (2.0, 0.0, None)
        """
        if self.noise_std is not None:
            return float(self.noise_std)
        return 0.0 if self.non_private else None

    @cached_property
    def worst_epsilon(self) -> float:
        """Largest ε at `delta` that the target allows, or inf if the noise is given."""
        if self.mu is not None:
            return float(gdp.epsilon(self.mu, self.stated_delta))
        return inf if self.epsilon is None else float(np.max(self.epsilon))

    @cached_property
    def largest_mu(self) -> float:
        """Largest GDP parameter that the target allows, or inf if the noise is given."""
        if self.mu is not None:
            return float(self.mu)
        if self.epsilon is None or self.non_private:
            return inf
        return float(gdp.mu(np.min(self.epsilon), self.stated_delta))

    def __str__(self) -> str:
        if self.mu is not None:
            return f"μ = {self.mu:g}"
        if self.noise_std is not None:
            return f"noise_std = {self.noise_std:g}"
        least, most = float(np.min(self.epsilon)), self.worst_epsilon
        epsilon = f"ε = {most:g}" if least == most else f"ε from {least:g} to {most:g}"
        return epsilon if self.delta is None else f"{epsilon} at δ = {self.delta:g}"

    def shared(self, ratios: Sequence[float] | None) -> "Target":
        """Return the target with one ε per machine in these ratios, in any unit. The largest ε is unchanged.

        Raises:
            Refusal: if the target is a noise, which fixes no ε.

        >>> Target(epsilon=4.0, delta=1e-5).shared((1.0, 2.0)).epsilon
        (2.0, 4.0)
        """
        if ratios is None or np.ndim(self.epsilon):
            return self
        if self.noise_std is not None:
            raise Refusal(
                f"relative_privacy must be used with epsilon or mu here, because each machine's noise is computed from "
                f"its ε, got noise_std = {self.noise_std:g}"
            )
        largest = float(max(ratios))
        each = tuple(self.worst_epsilon * (float(part) / largest) for part in ratios)
        return replace(self, mu=None, epsilon=each)

    def require_one(self) -> None:
        """Raise Refusal if there is one ε per machine, for methods with one ε and `relative_privacy`."""
        if np.ndim(self.epsilon):
            several = np.array2string(np.asarray(self.epsilon, float), separator=", ", threshold=6)
            raise Refusal(
                f"epsilon must be one number, got {several}: relative_privacy=[...] gives every machine its own privacy"
            )

    @property
    def stated_delta(self) -> float:
        """δ of the target.

        Raises:
            Refusal: if it is not given.
        """
        if self.delta is None:
            raise Refusal("delta must be given with epsilon")
        return self.delta
