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
        """Return the noise to add to the momentum in this round: `now − (1 − alpha)·before`.

        The momentum of the round before contains the noise `before`. The new momentum is 1 − `alpha` times this
        momentum, plus the returned noise, plus `alpha` times the gradient. The new momentum therefore contains the
        noise `now`.

        Args:
            alpha: weight of the gradient in the momentum, in (0, 1].
        """
        return self.now - (1 - alpha) * self.before


class Factor:
    """Base class of factors: matrices that correlate Gaussian noise over rounds or messages.

    In a matrix mechanism, a method computes A·x for a fixed matrix A, for example running sums. Here x_t depends on the
    data: it is the vector of round t, or a machine's t-th message, without noise. A factor is a lower triangular matrix
    F. With independent standard normals ξ and σ = `noise_std`, the method gets A·x with the noise σ·A·F⁻¹ξ. The noisy
    result equals A·F⁻¹·(F·x + σξ), so the run is as private as one release of F·x + σξ.

    To define a factor over the messages of a machine by its matrix F, subclass `SumFactor`. To define a factor over
    rounds of a trusted server by its matrix F, subclass `RoundFactor`. To define a factor for a momentum, subclass
    `Factor`, set `name`, and define

    * `step`, which computes the noise of the momentum round by round,
    * `variances`, which returns the variance of this noise in every round,
    * `squares`, which returns the squared norm by which each record can change F·x,
    * `memory`, only if `step` needs more than the noise of the round before.

    A factor is a frozen dataclass. Its fields are static settings.

    Attributes:
        name: name in error messages.
        theorem: privacy theorem that printed guarantees cite.
        most: largest number of rounds for which F is computed as a matrix.
        instead: value of `noise_schedule` that the error message suggests if a run has more than `most` rounds.
        of_rounds: True if a trusted server may use the factor to correlate the noise of its rounds.
    """

    stated: ClassVar[Stated] = Stated(by=("squares", "contributions", "exposures"), free=("variances", "theorem"))
    name: ClassVar[str]
    theorem: ClassVar[str] = "Gaussian mechanisms, each chosen after the releases before; their composition"
    most: ClassVar[int] = int((MAX_BYTES / 8) ** 0.5)
    instead: ClassVar[str] = "tree"
    of_rounds: ClassVar[bool] = True

    def matrix(self, over: Any, workload: Any = None, /) -> np.ndarray:
        """Return the factor's matrix F: lower triangular, without zeros on its diagonal; float64.

        A run is as private as a release of F·x + σξ, with independent standard normals ξ and σ = `noise_std`. Here x_t
        is a vector without noise: the mean of the messages of round t for a trusted server, or a machine's message t. F
        has one row and one column for each t.

        Args:
            over: public participation schedule if the factor is over rounds, or number of messages if the factor is
                over the messages of a machine.
            workload: None for a factor over rounds. For a factor over messages, a function that returns a matrix V,
                float64 [n, n], for n messages of a machine. For example, if the method's iterates are the linear
                combinations W·x, then V = WᵀW. The noise of the iterates has variance `σ²·tr(V·(FᵀF)⁻¹)`, summed over
                rounds. A fitted F minimises this variance.
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
        """Return the state after one more round. Its field `last` holds the noise of this round's momentum.

        The momentum of round t is Σ_{s≤t} (1 − α)^{t−s}·x_s, plus noise. Let A be the matrix for which A·x are the
        momenta of all rounds. For `noise_std` = 1, the noise of the momenta is A·F⁻¹ξ, with the standard normals ξ_1,
        ξ_2, … of the rounds and the factor's matrix F for this α. The function `matrix` returns F for α = 0.

        Args:
            path: state after the round before.
            normal: standard normals of the round, shape [d] for d parameters.
            alpha: α, from 0 to 1.
            epoch: number of rounds per epoch. None if the factor's noise does not depend on epochs.
        """
        raise Undefined(f"{type(self).__name__} must define step(path, normal, alpha, epoch)")

    # ---- a stream, on the host

    def squares(self, uses: Uses, rounds: int, alpha: float, epoch: float | None = None) -> np.ndarray:
        """Return the squared exposure of every record, float64 [records].

        The exposure of a record is the largest L2 norm by which the record can change F·x. Here F is the factor's
        matrix for this α. In every round that uses the record with weight w, the record can change x_t by any vector of
        norm at most w.

        Args:
            uses: which rounds use which record, with which weight.
            rounds: number of rounds of the run.
            alpha: α of the momentum Σ_{s≤t} (1 − α)^{t−s}·x_s, from 0 to 1. With α = 0, it is the running sum of x.
            epoch: number of rounds per epoch. None if the factor's noise does not depend on epochs.
        """
        raise Undefined(f"{type(self).__name__} must define squares(uses, rounds, alpha, epoch)")

    def contributions(
        self, used: np.ndarray, weight: np.ndarray, rounds: int, alpha: float, epoch: float | None = None
    ) -> np.ndarray:
        """Return the sensitivity of each release to one record, for unit noise; float64 [releases].

        F is the factor's matrix for this α. The record can change x_t by any vector of norm at most the record's weight
        in round t.

        Each entry of F·x + ξ is one release, with independent standard normals ξ. The sensitivity of a release is the
        largest L2 norm by which the record can change the release. The squares of all sensitivities must sum to the
        record's entry in the result of `squares`.

        The default returns only one number, shape [1]. It is the largest L2 norm by which the record can change all of
        F·x.

        Args:
            used: rounds that use the record, from 1; shape [uses].
            weight: weight of the record in these rounds, shape [uses].
            rounds: number of rounds of the run.
            alpha: α of the momentum Σ_{s≤t} (1 − α)^{t−s}·x_s, from 0 to 1. With α = 0, it is the running sum of x.
            epoch: number of rounds per epoch. None if the factor's noise does not depend on epochs.
        """
        return np.sqrt(self.squares(Uses(used, np.zeros(used.size, int), weight, 1), rounds, alpha, epoch))

    def variances(self, rounds: int, alpha: float, epoch: float | None = None) -> np.ndarray:
        """Return the variance of one coordinate of the momentum's noise in every round; float64 [rounds].

        The momentum of round t is Σ_{s≤t} (1 − α)^{t−s}·x_s, plus this noise. The vector x_s depends on the data of
        round s. The variance is for `noise_std` = 1.

        Args:
            rounds: number of rounds of the run.
            alpha: α, from 0 to 1. With α = 0, the momentum is the running sum of x.
            epoch: number of rounds per epoch. None if the factor's noise does not depend on epochs.
        """
        raise Undefined(f"{type(self).__name__} must define variances(rounds, alpha, epoch)")

    # ---- over a trusted server's rounds: x_t is a sum of updates of norm at most 1

    def known(self, schedule: Schedule) -> np.ndarray:
        """Return the factor's matrix F for a participation schedule; float64, shape [rounds, rounds].

        F is lower triangular and correlates the noise over rounds. The result is cached.

        F is public, so it must not depend on secret participation. The only secret scheme that is allowed is
        `CyclicPoisson`: its machines are in public groups that take turns, and F follows from these turns.

        Raises:
            Refusal: if participation is secret in another way, or if the schedule has more than `most` rounds.
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
        and x_t is the sum of the messages of round t. Each message has norm at most 1. A machine counts in every round
        in which it is scheduled, even if it drops out.
        """
        machine, when = participations(schedule, schedule.scheduled)
        uses = Uses(when + 1, machine, np.ones(when.size), schedule.machines)
        return np.sqrt(self.squares(uses, schedule.size.rounds, 0.0))

    def releases(self, schedule: Schedule, machine: int) -> np.ndarray:
        """Return the relative noise of each release that one machine changes; shape [releases].

        `contributions` defines the releases: the entries of F·x + ξ, or all of F·x + ξ as a single release. Here x_t is
        the sum of the messages of round t. Let Δ be the largest L2 norm by which the machine can change a release with
        messages of norm at most 1. The relative noise of the release is 1/Δ times the standard deviation of its noise,
        for `noise_std` = 1.

        Args:
            schedule: participation schedule: which machines take part in each round.
            machine: index of the machine.
        """
        when = rounds_of(schedule, machine) + 1
        return 1 / self.contributions(when, np.ones(when.size), schedule.size.rounds, 0.0)

    def mechanism(self, schedule: Schedule) -> Mechanism:
        """Return the sampler of the noise of each round's sum of messages.

        The server adds up the sums of all rounds. The total after round t must contain the noise that the factor
        prescribes. The noise of round t is therefore the noise of the total of t rounds minus the noise of the total of
        t − 1 rounds.
        """
        return StreamOfRounds(self, schedule.size.rounds)

    def first_std(self, schedule: Schedule) -> float:
        """Return the standard deviation of the noise in the first round's sum, for `noise_std` = 1."""
        return float(np.sqrt(self.variances(1, 0.0)[0]))

    def statement(self, schedule: Schedule) -> tuple[str, dict[str, int]]:
        """Return a text on machines' exposures, and the limits on participation under which the exposures hold.

        A machine's exposure is the largest L2 norm by which its messages, of norm at most 1, can change F·x. F is the
        factor's matrix, and x_t is the sum of the messages of round t. Guarantees print both results.

        Returns:
            A text that says how the exposures were computed, and the limits as numbers by name. The default is ("",
            {}): the exposures were computed for the given schedule and hold for no other. The factor `AnySchedule`
            returns limits such as {"separation": 5, "uses": 3}.
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
    """Factor of uncorrelated noise: every round's gradient has independent noise.

    Its matrix F is the identity. The momentum contains the discounted sum of the noise of all rounds so far.

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
