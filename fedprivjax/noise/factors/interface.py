r"""Factors: Gaussian noise that is correlated over rounds or messages (matrix factorization mechanism).

A method needs A·x: sums, or a momentum, of the data-dependent vectors x_1, x_2, … (entries), for a lower triangular
matrix A. A factor F, lower triangular, releases F·x + σξ with independent normals ξ. From this release the method
computes A·x with the noise

    σ·B·ξ,        A = B·F

The norm by which a record or machine can change F·x is its exposure. The release is therefore a Gaussian mechanism
whose sensitivity is the exposure. If entry t_j changes by a vector of norm at most w_j, the exposure is

    √(Σ_{j,l} w_j·w_l·abs((FᵀF)_{t_j,t_l}))

at most, and exactly this if all entries of FᵀF are at least 0. Later entries x may depend on earlier releases, since F
is lower triangular (Denisov, McMahan, Rush, Smith & Thakurta 2022; several entries of a unit: Choquette-Choo, McMahan,
Rush & Thakurta 2023). jax_privacy calls F the strategy matrix C; its noising matrix is the inverse.

The entries are one of

* increments in a machine's messages, of which A·x are the running sums: a record changes one entry (`SumFactor`);
* sums of clipped updates in a trusted server's rounds, of which A·x are the running sums: a machine changes the entries
  of its rounds, each by the clip at most (`RoundFactor`);
* α times the gradients of rounds, with A(t, s) = (1 − α)^{t−s}, a momentum: a record changes the entries of the rounds
  that use it, by its weights (`Factor`, as a stream).

A stream computes B·ξ round by round in little memory. With α = 0 it is a factor over a trusted server's rounds, too.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from fedprivjax.checks.refusal import Refusal, Undefined
from fedprivjax.checks.restated import Stated, of_package
from fedprivjax.noise.chooser import MAX_BYTES
from fedprivjax.noise.factors.exposures import participations, rounds_of
from fedprivjax.noise.factors.separated import public_rounds
from fedprivjax.noise.interface import Mechanism, normals
from fedprivjax.plan.schedule import Schedule
from fedprivjax.plan.uses import Uses

INDEPENDENT = "independent"


class Path(NamedTuple):
    """State from which the noise of the next round is computed.

    Attributes:
        round: number of finished rounds.
        last: noise of the last round, [d].
        memory: everything else that the factor stores.
    """

    round: Any
    last: Any
    memory: Any


class Correlated(NamedTuple):
    """Noise that a momentum contains in this round (`now`) and in the round before (`before`), [d] each."""

    now: Any
    before: Any

    def fresh(self, alpha: Any) -> Any:
        """Return the noise to add to this round's gradient times `alpha`, so that the momentum has the noise `now`.

        It is `now − (1 − alpha)·before`, because the momentum keeps the fraction 1 − `alpha` of its old noise.
        """
        return self.now - (1 - alpha) * self.before


class Factor:
    """Base class of factors: matrices that correlate noise over rounds or messages (matrix mechanisms).

    With a factor F, a run releases F·x + σξ. Here x_t is the data-dependent vector of round or message t (an entry), ξ
    are independent normals, and σ is `noise_std`. Sums and momenta of x are computed from this release. A factor is a
    frozen dataclass of static settings.

    A custom factor of a momentum has a `name` and defines `step`, `squares` and `variances`. It also defines `memory`
    if it stores more than the noise of the last round. For a custom factor that is given by its matrix, subclass
    `SumFactor` or `RoundFactor` instead.

    Attributes:
        name: name in error messages.
        theorem: theorem named in guarantees.
        most: largest number of rounds for which F is computed as a matrix, so that it fits in memory.
        instead: noise schedule that error messages suggest for more rounds.
        of_rounds: True if a trusted server may use the factor, over its rounds.
    """

    stated: ClassVar[Stated] = Stated(by=("squares", "contributions", "exposures"), free=("variances", "theorem"))
    name: ClassVar[str]
    theorem: ClassVar[str] = "Gaussian mechanisms, each chosen after the releases before; their composition"
    most: ClassVar[int] = int((MAX_BYTES / 8) ** 0.5)
    instead: ClassVar[str] = "tree"
    of_rounds: ClassVar[bool] = True

    def matrix(self, over: Any, workload: Any = None, /) -> np.ndarray:
        """Return F, float64 [entries, entries], lower triangular without a 0 on its diagonal.

        Args:
            over: the public participation schedule for a factor over rounds, or the number of a machine's messages for
                a factor over messages.
            workload: function for factors that are fitted, see `SumFactor.matrix`.
        """
        raise Undefined(f"{type(self).__name__} must define matrix(over, workload)")

    # ---- a stream, traced

    def memory(self, dimension: int, rounds: int) -> Any:
        """Return what the factor stores before the first round, in addition to the noise of the last round."""
        return ()

    def init(self, dimension: int, rounds: int) -> Path:
        """Return the state from which noise is computed round by round, before the first round."""
        return Path(jnp.zeros((), jnp.int32), jnp.zeros(dimension), self.memory(dimension, rounds))

    def step(self, path: Path, normal: jax.Array, alpha: Any, epoch: Any = None) -> Path:
        """Return the state one round later. Its `last` is the noise in that round's momentum or sum.

        The noise is for `noise_std` = 1.

        Args:
            path: state of the round before.
            normal: standard normals of the round, [d].
            alpha: α, weight of a gradient in the momentum, in (0, 1]; 0 for sums over rounds.
            epoch: number of rounds per epoch, if the factor's noise depends on it.
        """
        raise Undefined(f"{type(self).__name__} must define step(path, normal, alpha, epoch)")

    # ---- a stream, on the host

    def squares(self, uses: Uses, rounds: int, alpha: float, epoch: float | None = None) -> np.ndarray:
        """Return the squared exposure of every record, float64 [records].

        The exposure is the largest norm by which the record changes F·x. A record of weight 1 changes x by 1 in each
        round that uses it.
        """
        raise Undefined(f"{type(self).__name__} must define squares(uses, rounds, alpha, epoch)")

    def contributions(
        self, used: np.ndarray, weight: np.ndarray, rounds: int, alpha: float, epoch: float | None = None
    ) -> np.ndarray:
        """Return one record's change of each release, divided by the noise of the release; [releases].

        The noise is for `noise_std` = 1. Releases that the record does not change are left out. The squares of the
        result sum to the record's entry of `squares`. A factor may compute it by another algorithm, as a check of
        `squares`.

        Args:
            used: rounds that use the record, from 1; shape [uses].
            weight: weight of the record in these rounds, shape [uses].
        """
        return np.sqrt(self.squares(Uses(used, np.zeros(used.size, int), weight, 1), rounds, alpha, epoch))

    def variances(self, rounds: int, alpha: float, epoch: float | None = None) -> np.ndarray:
        """Return the noise variance of one coordinate of each round's momentum or sum; float64 [rounds].

        It is for `noise_std` = 1.
        """
        raise Undefined(f"{type(self).__name__} must define variances(rounds, alpha, epoch)")

    # ---- over a trusted server's rounds: x_t is a sum of updates of norm at most 1

    def known(self, schedule: Schedule) -> np.ndarray:
        """Return the matrix F for a schedule, from a cache. F depends only on the public part of the schedule.

        Raises:
            Refusal: if the schedule has more than `most` rounds, or its participation is secret and not
                `CyclicPoisson`.
        """
        self.require_room(schedule)
        over = public_rounds(schedule)
        return over.once(("factor over rounds", self), lambda: self.matrix(over))

    def require_room(self, schedule: Schedule) -> None:
        """Raise Refusal if the schedule has more than `most` rounds."""
        if schedule.size.rounds > self.most:
            most = f"{self.most} for {type(self).__name__}"
            raise Refusal(f"rounds must be at most {most}, got {schedule.size.rounds}. Use {self.instead!r}")

    def exposures(self, schedule: Schedule) -> np.ndarray:
        """Return the largest norm by which each machine changes F·x, float64 [machines].

        Machines that drop out count as if they had sent.
        """
        machine, when = participations(schedule, schedule.scheduled)
        uses = Uses(when + 1, machine, np.ones(when.size), schedule.machines)
        return np.sqrt(self.squares(uses, schedule.size.rounds, 0.0))

    def releases(self, schedule: Schedule, machine: int) -> np.ndarray:
        """Return the noise of each release that a machine changes, divided by this change; [releases].

        The noise is for `noise_std` = 1.
        """
        when = rounds_of(schedule, machine) + 1
        return 1 / self.contributions(when, np.ones(when.size), schedule.size.rounds, 0.0)

    def mechanism(self, schedule: Schedule) -> Mechanism:
        """Return the sampler of each round's noise.

        A round's noise is the noise in the sum over all rounds so far, minus the noise in the sum up to the round
        before.
        """
        return StreamOfRounds(self, schedule.size.rounds)

    def first_std(self, schedule: Schedule) -> float:
        """Return the standard deviation of the first round's noise, for `noise_std` = 1."""
        return float(np.sqrt(self.variances(1, 0.0)[0]))

    def statement(self, schedule: Schedule) -> tuple[str, dict[str, int]]:
        """Return the rule by which the exposures were bounded for all schedules within some limits: (rule, limits).

        The default is `("", {})`: the exposures are computed for the given schedule.
        """
        return "", {}

    def check(self, schedule: Schedule, dimension: int) -> None:
        """Raise Refusal if the factor cannot be used with a schedule, or its noise does not fit in memory."""
        if public_rounds(schedule) is not schedule:
            column_norm(self, schedule)


@dataclass(frozen=True)
class Independent(Factor):
    """Independent noise on every round's gradient, which the momentum accumulates.

    As a factor, F is the identity matrix.

    >>> uses = Uses(np.array([1, 3]), np.array([0, 0]), np.ones(2), 1)
    >>> Independent().squares(uses, rounds=4, alpha=0.5).tolist()
    [2.0]
    """

    name: ClassVar[str] = INDEPENDENT
    theorem: ClassVar[str] = "the Gaussian mechanism on every gradient, adaptive composition over a record's uses"

    def step(self, path: Path, normal, alpha, epoch=None) -> Path:
        return Path(path.round + 1, (1 - alpha) * path.last + normal, path.memory)

    def squares(self, uses: Uses, rounds: int, alpha: float, epoch: float | None = None) -> np.ndarray:
        return np.bincount(uses.record, uses.weight**2.0, minlength=uses.records)

    def contributions(self, used, weight, rounds, alpha, epoch=None) -> np.ndarray:
        return np.asarray(weight, float)

    def variances(self, rounds: int, alpha: float, epoch: float | None = None) -> np.ndarray:
        count, kept = np.arange(1.0, rounds + 1), (1 - alpha) ** 2
        return count if alpha == 0 else (1 - kept**count) / (1 - kept)


@struct.dataclass
class StreamOfRounds(Mechanism):
    """Differences of a stream's noise from round to round, at α = 0.

    Attributes:
        factor: the stream.
        rounds: number of rounds.
    """

    correlated: ClassVar[bool] = True
    factor: Factor = struct.field(pytree_node=False)
    rounds: int = struct.field(pytree_node=False)
    inputs: Any = ()

    @property
    def name(self) -> str:
        return f"{self.factor.name} over rounds"

    def init(self, dimension: int, key):
        """Return the state from which noise is computed round by round, before the first round."""
        return self.factor.init(dimension, self.rounds)

    def draw(self, state, inputs, keys, dimension: int):
        def one(path, key):
            after = self.factor.step(path, normals(key, (dimension,)), jnp.float32(0))
            return after, after.last - path.last

        return jax.lax.scan(one, state, keys)


def column_norm(factor: Factor, schedule: Schedule) -> float:
    """Return the largest column norm of F under secret participation of groups in turn.

    Raises:
        Refusal: if F has more bands than there are groups: a machine then moves the releases of several of its rounds.
    """
    matrix = factor.known(schedule)
    require_by_matrix(factor)
    below, left = np.nonzero(matrix)
    bands, scheme = int((below - left).max()) + 1, schedule.secret
    if bands > scheme.groups:  # type: ignore[union-attr]
        raise Refusal(
            f"noise_schedule must have at most as many bands as participation has groups, got {bands} bands and "
            f"{scheme}. Use Banded({scheme.groups})"  # type: ignore[union-attr]
        )
    return float(np.linalg.norm(matrix, axis=0).max())


def require_by_matrix(factor: Factor) -> None:
    """Raise Refusal if a custom factor samples its noise by functions of its own, of which `matrix` says nothing."""
    stream = type(factor).step is not Factor.step
    for name in ("known", "mechanism", "init", "memory", "step", *("matrix",) * stream):
        owner = next(cls for cls in type(factor).__mro__ if name in vars(cls))
        if not of_package(owner):
            raise Refusal(
                f"{name} must be that of RoundFactor, whose noise follows from matrix, if exposures are for more than "
                f"the sampled schedule, got that of {owner.__name__}"
            )


def discount(alpha: Any, steps: Any, numbers: Any = np) -> Any:
    """Return `(1 − α)^steps`, accurate for small α and many steps. It is 1 for 0 steps, also at α = 1.

    >>> round(float(discount(jnp.float32(1 / 60_000), 60_000.0, jnp)), 6)
    0.367876
    >>> discount(1.0, np.arange(3)).tolist()
    [1.0, 0.0, 0.0]
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        return numbers.where(steps == 0, 1.0, numbers.exp(steps * numbers.log1p(-alpha)))
