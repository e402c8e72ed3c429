"""Base class of participation schemes: the complete interface, with defaults, and cohort-size distributions."""

from dataclasses import replace
from math import ceil, sqrt
from typing import Any, Self

import numpy as np
import scipy

from fedprivjax.checks.decorated import FROZEN, Decorated
from fedprivjax.checks.refusal import Refusal, Undefined
from fedprivjax.checks.values import require_at_least
from fedprivjax.plan.schedule import Schedule
from fedprivjax.problem.devices import require_counted

SIZES = ("machines", "per_round", "at_most_once", "depends_on_sizes")
UNCHANGED = (*SIZES, "examples", "most_rounds", "rounds_of_shares")  # members of a scheme and of one around it


class Participation(Decorated):
    """Base class of participation schemes, which decide the machines of each round (the cohort).

    To define a custom scheme, subclass this class as a frozen dataclass. The subclass must define `machines`,
    `per_round` and `draw`. If the number of machines varies between rounds, also set `varies = True` and define
    `cohort_size_pmf`. A scheme must not depend on the data. No machine may occur twice in a round, except in an
    asynchronous schedule (`Schedule.late`).

    Attributes:
        machines: total number of machines.
        per_round: largest number of machines in a round.
        varies: True if the number of machines varies between rounds.
        at_most_once: True if no machine takes part twice.
        exchangeable: True if the machines of a round, given their number, are a uniformly random subset of all
            machines.
        depends_on_sizes: True if the schedule depends on machines' numbers of records, which are then public.
        secret: True if only a trusted server knows who takes part. Rounds may then be empty, and sums are divided by
            `mean_size`.

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Pairs(Participation):
    ...     machines: int
    ...     per_round = 2
    ...     def draw(self, rounds, rng):
    ...         first = 2 * rng.integers(self.machines // 2, size=rounds)
    ...         return Schedule(self.machines, np.stack([first, first + 1], axis=1))
    >>> Pairs(4).draw(2, np.random.default_rng(0)).participants.tolist()
    [[2, 3], [2, 3]]
    """

    kind, decorator = "participation", FROZEN
    elsewhere = {"dropouts": "Dropouts(scheme, rate) adds dropouts to a scheme"}  # noqa: RUF012
    machines: Any
    per_round: Any
    varies: Any = False
    at_most_once: Any = False
    exchangeable: Any = False
    depends_on_sizes: Any = False
    secret: Any = False

    def __post_init__(self):
        check_sizes(self.machines, self.per_round)
        as_integers(self, "machines", "per_round")

    def draw(self, rounds: int, rng: np.random.Generator) -> Schedule:
        """Sample a participation schedule: the machines of each round.

        The schedule has a row of `per_round` slots for each round. A slot holds one machine. If a round has fewer
        machines, the slots at the end of its row are empty. Empty slots contain indices of other machines, which are
        ignored.

        Args:
            rounds: number of rounds.
            rng: random generator, which must be the only source of randomness.
        """
        raise Undefined(f"{type(self).__name__} must define draw(rounds, rng)")

    @property
    def cohort_size_pmf(self) -> np.ndarray:
        """Probabilities that 1, 2, … machines take part in a round; float64 [per_round].

        By default, every round has `per_round` machines.
        """
        if self.varies:
            raise Undefined(f"{type(self).__name__} must define cohort_size_pmf, because its number of machines varies")
        return np.eye(self.per_round)[-1]

    @property
    def mean_size(self) -> float:
        """Mean number of machines in a round.

        >>> from fedprivjax import Varying
        >>> Varying.between(10, 2, 4).mean_size
        3.0
        """
        return moment(self.cohort_size_pmf, 1)

    def inverse_moment(self, power: float = 1) -> float:
        """Return the exact mean over rounds of M^(−power), where M is the number of machines in a round.

        >>> from fedprivjax import Varying
        >>> Varying.between(10, 1, 2).inverse_moment(), Varying.between(10, 1, 2).inverse_moment(2)
        (0.75, 0.625)
        """
        return moment(self.cohort_size_pmf, -power)

    @property
    def rounds_given(self) -> int | None:
        """Number of rounds of a schedule if the scheme fixes this number, otherwise None."""
        return None

    def examples(self, rounds: int) -> int:
        """Return the number of examples that a run of `rounds` rounds takes from a dataset that all machines share.

        A round has `per_round` slots for machines. By default, every slot takes one example, also if it is empty.
        """
        return rounds * self.per_round

    def most_rounds(self, examples: int) -> int:
        """Return the largest number of rounds for which one common dataset of all machines has enough examples.

        In every round, each slot takes an example that was not used before. By default, an empty slot also takes an
        example.

        Args:
            examples: number of examples in the dataset.
        """
        return examples // self.per_round

    def rounds_of_shares(self, shares: np.ndarray) -> int:
        """Return the largest number of rounds in which no machine can run out of unused examples.

        This holds for every schedule that may be sampled. The default is the smallest entry of `shares`, because a
        machine may be sampled in every round.

        Args:
            shares: number of messages that each machine can send before its examples run out, int [machines].
        """
        return int(shares.min())

    def fitted(self, shares: np.ndarray | None) -> Self:
        """Return the scheme, adapted to the number of messages that each machine can send.

        A run calls this method before it samples the participation schedule. The default returns `self`. A custom
        scheme may return a copy that uses these numbers, for example to sample machines in proportion to them. The
        schedule of such a copy may reveal machines' numbers of records. If the result is not `self`, the run's
        guarantee therefore assumes that the numbers of records are public.

        Args:
            shares: number of messages that each machine can send before its examples run out, int [machines]. None if
                there is no limit.
        """
        return self

    def sized(self, sizes: np.ndarray | None) -> Self:
        """Return the scheme, adapted to the machines' numbers of records.

        A run calls this method before it samples the participation schedule. The default returns `self`. A custom
        scheme may return a copy that uses these numbers, for example for delays in proportion to them. The schedule of
        such a copy may reveal the numbers. If the result is not `self`, the run's guarantee therefore assumes that the
        numbers are public.

        Args:
            sizes: number of records of each machine, int [machines], or None if all machines share a dataset.
        """
        return self

    def resized(self, **sizes: int) -> Self:
        """Return a copy of the scheme with other numbers of machines, for a sweep over numbers of machines.

        Args:
            sizes: new values of `machines` or `per_round`, by name.

        Raises:
            Refusal: if the scheme has no setting of this name.
        """
        scheme: Any = self  # every scheme is a dataclass
        for name in sizes.keys() - getattr(scheme, "__dataclass_fields__", {}).keys():
            raise Refusal(f"{name} must be a setting of the participation to be swept, got {self}")
        return replace(scheme, **sizes)


class Around(Participation):
    """Base class of schemes around another one, `scheme`, which schedules the machines."""

    scheme: Any

    def take(self, *further: str) -> None:
        """Take what does not change from the inner scheme, and `further` members of it."""
        for name in (*UNCHANGED, *further):
            object.__setattr__(self, name, getattr(self.scheme, name, None))

    @property
    def rounds_given(self) -> int | None:
        return self.scheme.rounds_given

    def fitted(self, shares: np.ndarray | None) -> Self:
        return self._with(self.scheme.fitted(shares))

    def sized(self, sizes: np.ndarray | None) -> Self:
        return self._with(self.scheme.sized(sizes))

    def resized(self, **sizes: int) -> Self:
        return self._with(self.scheme.resized(**sizes))

    def _with(self, scheme: Participation) -> Self:
        """Return this scheme around another one."""
        around: Any = self  # every scheme is a dataclass
        return self if scheme is self.scheme else replace(around, scheme=scheme)


def check_sizes(machines: int, per_round: int) -> None:
    """Raise Refusal unless 1 ≤ per_round ≤ machines."""
    require_at_least("machines", machines, 1)
    require_at_least("per_round", per_round, 1)
    require_counted(machines=machines, per_round=per_round)
    if per_round > machines:
        raise Refusal(f"per_round must be at most machines ({machines}), got {per_round}")


def as_integers(scheme: Participation, *names: str) -> None:
    """Set fields of a scheme to Python integers, because sums and products of short NumPy integers overflow."""
    for name in names:
        if name in vars(scheme):  # not a property or an attribute of the class
            object.__setattr__(scheme, name, int(getattr(scheme, name)))


def floats(name: str, values: Any, wanted: str = "numbers, of one length each") -> np.ndarray:
    """Return the values of a setting as float64. Raise Refusal with what is wanted if they are no such numbers.

    >>> floats("weights", "many")
    Traceback (most recent call last):
    fedprivjax.Refusal: weights must be numbers, of one length each, got many
    """
    try:
        return np.asarray(values, float)
    except (TypeError, ValueError):
        raise Refusal(f"{name} must be {wanted}, got {str(values)[:80]}") from None


def moment(pmf: np.ndarray, power: float) -> float:
    """Return the moment E[M^power].

    >>> moment(np.array([0.5, 0.5]), -1)
    0.75
    """
    return float(np.sum(pmf * np.arange(1.0, pmf.size + 1) ** power))


def binomial_pmf(machines: int, rate: float, tail: float) -> np.ndarray:
    """Return Binomial(machines, rate), conditioned on being from 1 to its mean plus `tail` standard deviations.

    >>> binomial_pmf(100, 0.5, 4.0).size
    70
    """
    most = machines * rate + tail * sqrt(machines * rate * (1 - rate))
    pmf = scipy.stats.binom.pmf(np.arange(1, max(1, min(machines, ceil(most))) + 1), machines, rate)
    return pmf / pmf.sum()


def binomial_quantile(level: Any, trials: Any, chance: Any) -> np.ndarray:
    """Return the smallest number that Binomial(trials, chance) exceeds with probability at most `level`; int64.

    Arguments are broadcast. `scipy.stats.binom.isf` takes a second to import.

    >>> int(binomial_quantile(1e-12, 1000, 0.1))
    173
    """
    level, trials, chance = np.broadcast_arrays(level, np.asarray(trials, np.int64), chance)
    least, most = np.zeros(trials.shape, np.int64), trials
    while (least < most).any():
        middle = (least + most) // 2
        enough = scipy.special.bdtrc(middle, trials, chance) <= level
        least, most = np.where(enough, least, np.minimum(middle + 1, most)), np.where(enough, middle, most)
    return least


def thinned(pmf: np.ndarray, rate: float) -> np.ndarray:
    """Return the cohort-size distribution after dropouts with probability `rate`, where at least one machine stays.

    >>> thinned(np.array([0.0, 1.0]), 0.5).round(9).tolist()
    [0.75, 0.25]
    """
    left, kept = np.arange(pmf.size + 1), np.zeros(pmf.size + 1)
    for size in np.flatnonzero(pmf) + 1:
        kept += pmf[size - 1] * scipy.stats.binom.pmf(left, size, 1 - rate)
    return at_least_one(kept)


def thinned_subsets(pmf: np.ndarray, rates: np.ndarray) -> np.ndarray:
    """Return the distribution of `thinned` for per-machine rates, if cohorts are uniformly random subsets.

    With f_i[j, k] the probability that k machines are left of a random subset of j of the first i machines,

        f_i[j] = (1 − j/i)·f_{i−1}[j] + (j/i)·(r_i·f_{i−1}[j−1, k] + (1 − r_i)·f_{i−1}[j−1, k−1])

    The cost is machines · per_round² steps.

    >>> thinned_subsets(np.array([1.0]), np.array([0.0, 1.0])).tolist()
    [1.0]
    """
    most = pmf.size
    left = np.zeros((most + 1, most + 1))
    left[0, 0] = 1.0
    share = np.arange(most + 1)[:, None]
    for i, rate in enumerate(rates, start=1):
        one_more = np.zeros_like(left)
        one_more[1:] = rate * left[:-1]
        one_more[1:, 1:] += (1 - rate) * left[:-1, :-1]
        part = np.minimum(share / i, 1.0)
        left = (1 - part) * left + part * one_more
    return at_least_one(pmf @ left[1:])


def thinned_cohorts(rates: np.ndarray) -> np.ndarray:
    """Return the distribution after dropouts of the size of a uniformly random one of these cohorts.

    Args:
        rates: dropout rate of each slot's machine, [rounds, per_round]; 1 in slots without a scheduled machine.
    """
    rounds, per_round = rates.shape
    left = np.zeros((rounds, per_round + 1))
    left[:, 0] = 1.0
    for rate in rates.T[:, :, None]:
        left[:, 1:] = rate * left[:, 1:] + (1 - rate) * left[:, :-1]
        left[:, :1] *= rate
    return at_least_one(left.mean(axis=0))


def at_least_one(pmf: np.ndarray) -> np.ndarray:
    """Convert a distribution on 0, 1, … to one on 1, 2, …, with size 0 counted as 1."""
    return np.append(pmf[0] + pmf[1], pmf[2:])
