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
    """State from which a factor computes the noise of the next round.

    Attributes:
        round: number of finished rounds.
        last: noise in the momentum or running sum of the last round, shape [d] for d parameters.
        memory: everything else that the factor stores, such as the noise of earlier rounds.
    """

    round: Any
    last: Any
    memory: Any


class Correlated(NamedTuple):
    """Noise that a momentum contains in this round (`now`) and contained in the round before (`before`).

    Each is one vector of shape [d], for d parameters.
    """

    now: Any
    before: Any

    def fresh(self, alpha: Any) -> Any:
        """Return the noise to add to `alpha` times this round's gradient, so that the momentum then contains `now`.

        It is `now − (1 − alpha)·before`. The new momentum is `alpha` times the gradient plus 1 − `alpha` times the old
        momentum, which contains the noise `before`.
        """
        return self.now - (1 - alpha) * self.before


class Factor:
    """Base class of factors: matrices that correlate noise over rounds or messages (matrix mechanism).

    With a factor F, a run is as private as a release of F·x + σξ. Here x_t is the vector that depends on the data in
    round t, or in a machine's t-th message, without noise. ξ are independent standard normals, and σ is `noise_std`.
    The method computes sums or a momentum of x from this release. A factor is a frozen dataclass of static settings.

    To define a custom factor for a momentum, set `name` and define `step`, `squares` and `variances`. Define `memory`,
    too, if the factor stores more than the noise of the last round. To define a custom factor by its matrix, subclass
    `SumFactor` (over the messages of a machine) or `RoundFactor` (over rounds of a trusted server) instead.

    Attributes:
        name: name in error messages.
        theorem: theorem that guarantees name as their source.
        most: largest number of rounds for which F is computed as a matrix. More would not fit in memory.
        instead: noise schedule that the error message suggests if there are more rounds.
        of_rounds: True if a trusted server may use the factor to correlate the noise of its rounds.
    """

    stated: ClassVar[Stated] = Stated(by=("squares", "contributions", "exposures"), free=("variances", "theorem"))
    name: ClassVar[str]
    theorem: ClassVar[str] = "Gaussian mechanisms, each chosen after the releases before; their composition"
    most: ClassVar[int] = int((MAX_BYTES / 8) ** 0.5)
    instead: ClassVar[str] = "tree"
    of_rounds: ClassVar[bool] = True

    def matrix(self, over: Any, workload: Any = None, /) -> np.ndarray:
        """Return the matrix F: lower triangular, with no 0 on its diagonal; float64 [entries, entries].

        The entries are the rounds of a trusted server, or the messages of a machine.

        Args:
            over: the participation schedule, without anything secret, for a factor over rounds. The number of a
                machine's messages for a factor over messages.
            workload: only for fitted factors over messages: a function from the number of messages to a matrix V. The
                fit minimises the noise `tr(V·(FᵀF)⁻¹)`.
        """
        raise Undefined(f"{type(self).__name__} must define matrix(over, workload)")

    # ---- a stream, traced

    def memory(self, dimension: int, rounds: int) -> Any:
        """Return the initial values of the arrays that `step` stores in addition to the last round's noise.

        The default is (), for a factor that stores only the last round's noise.

        Args:
            dimension: number of model parameters.
            rounds: number of rounds of the run.
        """
        return ()

    def init(self, dimension: int, rounds: int) -> Path:
        """Return the state before the first round, from which `step` computes the noise round by round.

        Args:
            dimension: number of model parameters.
            rounds: number of rounds of the run.
        """
        return Path(jnp.zeros((), jnp.int32), jnp.zeros(dimension), self.memory(dimension, rounds))

    def step(self, path: Path, normal: jax.Array, alpha: Any, epoch: Any = None) -> Path:
        """Return the state one round later. Its `last` is the noise in that round's momentum or running sum.

        The noise is for `noise_std` = 1.

        Args:
            path: state after the round before.
            normal: standard normals of the round, shape [d] for d parameters.
            alpha: weight of a gradient in the momentum, in (0, 1]; 0 for sums over rounds.
            epoch: number of rounds per epoch. None if the factor's noise does not depend on it.
        """
        raise Undefined(f"{type(self).__name__} must define step(path, normal, alpha, epoch)")

    # ---- a stream, on the host

    def squares(self, uses: Uses, rounds: int, alpha: float, epoch: float | None = None) -> np.ndarray:
        """Return the squared exposure of every record, float64 [records].

        A record's exposure is the largest L2 norm by which it changes F·x, if it changes x_t by its weight in every
        round t that uses it. F is the factor's matrix, and x_t the entry of round t.

        Args:
            uses: which rounds use which record, with which weight.
            rounds: number of rounds of the run.
            alpha: weight of a gradient in the momentum, in (0, 1]; 0 for sums over rounds.
            epoch: number of rounds per epoch. None if the factor's noise does not depend on it.
        """
        raise Undefined(f"{type(self).__name__} must define squares(uses, rounds, alpha, epoch)")

    def contributions(
        self, used: np.ndarray, weight: np.ndarray, rounds: int, alpha: float, epoch: float | None = None
    ) -> np.ndarray:
        """Return one record's change of each release, divided by the release's noise; shape [releases].

        The noise is for `noise_std` = 1. The result has one number per release that the record changes. Its squares sum
        to the record's entry of `squares`. A subclass may compute it by another algorithm than `squares`, so that one
        checks the other.

        Args:
            used: rounds that use the record, from 1; shape [uses].
            weight: weight of the record in these rounds, shape [uses].
            rounds: number of rounds of the run.
            alpha: weight of a gradient in the momentum, in (0, 1]; 0 for sums over rounds.
            epoch: number of rounds per epoch. None if the factor's noise does not depend on it.
        """
        return np.sqrt(self.squares(Uses(used, np.zeros(used.size, int), weight, 1), rounds, alpha, epoch))

    def variances(self, rounds: int, alpha: float, epoch: float | None = None) -> np.ndarray:
        """Return the noise variance of a coordinate of each round's momentum or running sum; float64 [rounds].

        It is for `noise_std` = 1.

        Args:
            rounds: number of rounds of the run.
            alpha: weight of a gradient in the momentum, in (0, 1]; 0 for sums over rounds.
            epoch: number of rounds per epoch. None if the factor's noise does not depend on it.
        """
        raise Undefined(f"{type(self).__name__} must define variances(rounds, alpha, epoch)")

    # ---- over a trusted server's rounds: x_t is a sum of updates of norm at most 1

    def known(self, schedule: Schedule) -> np.ndarray:
        """Return the matrix F for this schedule, float64 [rounds, rounds]. It is cached.

        F must not reveal who takes part in secret. It is therefore computed from the public part of the schedule only.

        Raises:
            Refusal: if the schedule has more than `most` rounds, or if its participation is secret and not
                `CyclicPoisson`, of which the turns of groups are public.
        """
        self.require_room(schedule)
        over = public_rounds(schedule)
        return over.once(("factor over rounds", self), lambda: self.matrix(over))

    def require_room(self, schedule: Schedule) -> None:
        """Raise Refusal if the schedule has more than `most` rounds: the matrix F would not fit in memory."""
        if schedule.size.rounds > self.most:
            most = f"{self.most} for {type(self).__name__}"
            raise Refusal(f"rounds must be at most {most}, got {schedule.size.rounds}. Use {self.instead!r}")

    def exposures(self, schedule: Schedule) -> np.ndarray:
        """Return the exposure of each machine; float64 [machines].

        The exposure is the largest L2 norm by which the machine's messages can change F·x. F is the factor's matrix,
        and x_t the sum of the messages of round t. Each message has norm at most 1. A machine counts in every round in
        which it is scheduled, even if it drops out.
        """
        machine, when = participations(schedule, schedule.scheduled)
        uses = Uses(when + 1, machine, np.ones(when.size), schedule.machines)
        return np.sqrt(self.squares(uses, schedule.size.rounds, 0.0))

    def releases(self, schedule: Schedule, machine: int) -> np.ndarray:
        """Return the relative noise of each release that one machine changes; shape [releases].

        It is the standard deviation of the release's noise, for `noise_std` = 1, divided by the machine's largest
        change of the release. The machine's messages have norm at most 1.

        Args:
            schedule: participation schedule: which machines take part in each round.
            machine: index of the machine.
        """
        when = rounds_of(schedule, machine) + 1
        return 1 / self.contributions(when, np.ones(when.size), schedule.size.rounds, 0.0)

    def mechanism(self, schedule: Schedule) -> Mechanism:
        """Return the sampler of the noise of each round's sum of messages.

        The server adds up the sums of all rounds. The total after round t must contain the noise that the factor
        prescribes. The noise of round t is therefore the noise of this total minus the noise of the total one round
        before.
        """
        return StreamOfRounds(self, schedule.size.rounds)

    def first_std(self, schedule: Schedule) -> float:
        """Return the standard deviation of the noise in the first round's sum, for `noise_std` = 1."""
        return float(np.sqrt(self.variances(1, 0.0)[0]))

    def statement(self, schedule: Schedule) -> tuple[str, dict[str, int]]:
        """Return the rule by which the exposures were bounded, and the limits on participation for which they hold.

        The exposure of a machine is the largest L2 norm by which it can change the released sums. The exposures of some
        factors hold for every schedule in which a machine takes part in few rounds, far apart. Their rule is a text,
        and their limits are numbers by name, such as {"separation": 5, "uses": 3}. The default is `("", {})`, for
        exposures that were computed for the given schedule only.
        """
        return "", {}

    def check(self, schedule: Schedule, dimension: int) -> None:
        """Raise Refusal if the factor cannot be used with this schedule, or its noise does not fit in memory.

        Args:
            schedule: participation schedule: which machines take part in each round.
            dimension: number of model parameters.
        """
        if public_rounds(schedule) is not schedule:
            column_norm(self, schedule)


@dataclass(frozen=True)
class Independent(Factor):
    """Factor of uncorrelated noise: every round's gradient has independent noise, which momentum sums up.

    Its matrix F is the identity.

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
