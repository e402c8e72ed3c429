"""Optional members of an object with their defaults, and those of a protocol's privacy."""

from collections.abc import Iterator
from dataclasses import replace
from inspect import getattr_static
from typing import Any

import numpy as np

from fedprivjax.checks.numbers import leaves_of
from fedprivjax.checks.refusal import Refusal
from fedprivjax.plan.plan import Plan
from fedprivjax.privacy.target import LEVELS, Target
from fedprivjax.problem.problem import Problem

MISSING = object()


class Optionals:
    """Members of a protocol: its own if it has them, else those of its rounds, else those of this class.

    >>> class Costs(Optionals):
    ...     bits = 32
    >>> class Signs:
    ...     bits = 1
    >>> Costs(Signs()).bits, Costs(object()).bits
    (1, 32)
    """

    def __init__(self, protocol: Any):
        self._protocol = protocol

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("_"):
            for one in self._holders():
                if getattr_static(one, name, MISSING) is not MISSING:
                    return getattr(one, name)
        return object.__getattribute__(self, name)

    def _holders(self) -> Iterator[Any]:
        """Yield the objects whose members come before those of this class."""
        yield self._protocol
        rounds = getattr(self._protocol, "rounds", None)
        if rounds is not None:
            yield rounds


class OfPrivacy(Optionals):
    """Facts of a protocol's privacy: its own, else those of its rounds, else those of its privacy object, else these.

    Attributes:
        trust: trust model, a key of `fedprivjax.privacy.terms.TRUST`.
        clip: bound that is enforced on every record's message, or None.
        noise_rule: rule that computes the noise from a target.
        noise_follows: targets on which the mechanism depends. Configurations that differ in one of them have separate
            mechanisms, with the same random keys.
        target_is_claim: True if a target is a published rule's claim, which is not enforced.
        several_epochs: True if the event accounts for public reuse of samples in several rounds.
        weighs_machines: True if messages and event include the factors `Problem.message_factors`.
        protects_machines: True if the guarantee protects all records of a machine at once, False if one record.
        shows_clipping: True if a message shows whether it was clipped. An example is the bit of an adaptive clip.
        for_machines: the only number of machines for which the privacy is defined, as on a graph, or None for any.
    """

    trust: str = "none"
    clip: Any = None
    noise_rule: Any = "accountant"
    noise_follows: tuple[str, ...] = ()
    target_is_claim: bool = False
    several_epochs: bool = False
    weighs_machines: bool = False
    protects_machines: bool = False
    shows_clipping: bool = False
    for_machines: int | None = None

    def _holders(self) -> Iterator[Any]:
        yield from super()._holders()
        if getattr_static(self._protocol, "privacy", None) is not None:
            yield self._protocol.privacy

    @property
    def calibrated(self) -> bool:
        """True if the noise and all other fields that the event needs are set."""
        return self._protocol.noise_std is not None

    @property
    def gradient_clip(self) -> Any:
        """Norm above which a longer gradient of a record changes no message, by default `clip`."""
        return self.clip

    def machine_target(self, target: Target) -> Target:
        """Return the target of the machines, with one ε each if they differ. Default: the target."""
        return target

    def target_delta(self, problem: Problem, target: Target) -> Any:
        """Return δ of the target ε: one number, one for each machine, or None for the target's δ."""
        return None

    def check_method(self, method: str) -> None:
        """Raise Refusal if the noise method is not possible with the calibrated protocol's numbers."""

    def server_noise(self, plan: Plan) -> float:
        """Standard deviation of a trusted server's noise in the first aggregate, divided by `noise_std`. Default: 1."""
        return 1.0

    def host_noise(self, plan: Plan, dimension: int, seed: int) -> Any:
        """Return noise pre-sampled on the host for one seed and configuration, or None.

        It has leaves [rounds, ...]; integers stay integers. Mechanisms with `uses_host_noise` receive it in `noise`.
        """
        return None


def privacy_of(protocol: Any) -> OfPrivacy:
    """Return what is read of a protocol's privacy."""
    return OfPrivacy(protocol)


def with_noise_std(protocol, noise_std: float):
    """Return a copy of a protocol with this noise, a cleared target, and no other change."""
    names = [name for name in LEVELS if name in leaves_of(protocol)]
    spent = {name: None for name in names if not np.ndim(getattr(protocol, name))}
    return replace(protocol, noise_std=float(noise_std), **spent)


def with_relation(protocol: Any, relation: str) -> Any:
    """Return a copy of a protocol with the same noise whose guarantee is for another neighbouring relation.

    Args:
        relation: a key of `fedprivjax.privacy.relations.RELATIONS`.

    Raises:
        Refusal: the method has no setting `relation`, or does not support this one; or each machine's ε sets its noise.
    """
    stated = getattr(getattr(protocol, "privacy", protocol), "relation", None)
    if stated is None:
        raise Refusal(f"relation must be left out for {protocol.name}, which has no such setting, got {relation!r}")
    if np.ndim(protocol.epsilon) and relation != stated:
        raise Refusal(f"relation must stay {stated!r} with an ε of each machine, got {relation!r}")
    if hasattr(protocol, "with_settings"):
        return protocol.with_settings({"relation": relation})
    return replace(protocol, relation=relation)
