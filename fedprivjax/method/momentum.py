"""Normalised steps along a private momentum: algorithm, settings and theory of the methods that take them."""

from collections.abc import Callable, Iterator
from dataclasses import fields
from functools import partial
from math import isfinite, sqrt
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from fedprivjax.checks.refusal import Refusal
from fedprivjax.method.algorithm import Algorithm, At, Momentum, Public, Reads
from fedprivjax.method.default_steps import binds, noise_reach
from fedprivjax.method.linear import Linear, gradient
from fedprivjax.method.momentum_privacy import MomentumFields
from fedprivjax.method.planning.drafts import theory_rounds
from fedprivjax.method.planning.setting import MAX_USES, Setting
from fedprivjax.method.planning.uses import GRADIENT, STATIONARITY, Bound, Draft, PlannedRun, Use, missing
from fedprivjax.method.protocol import Levels, Protocol
from fedprivjax.method.server_step import initial, optimizer_field, stepped
from fedprivjax.method.setting_checks import check_numbers
from fedprivjax.method.small_form import BATCH, EPOCH, of_short_epochs
from fedprivjax.method.theory import Theory, TheoryChoices
from fedprivjax.plan.plan import Plan
from fedprivjax.plan.schedule import Size
from fedprivjax.privacy.target import Target
from fedprivjax.problem.models import Dense
from fedprivjax.problem.problem import Problem
from fedprivjax.theory import tran_cutkosky
from fedprivjax.theory.tran_cutkosky import MomentumSettings, ProblemConstants

MAX_EPOCHS = 64  # the theorem's own number is huge
LAST = "last"  # iterate that a pilot run reports instead of the output, which is a random iterate for the theorem


class MomentumState(NamedTuple):
    """Iterate w_t, one of w_1 … w_{t−1} sampled uniformly (before the first round w_1), and the optimiser's state."""

    w: Any
    sampled: Any
    optimizer: Any = ()


@struct.dataclass(kw_only=True)
class NormalisedSteps(Algorithm):
    """Steps of equal length along the noisy momentum of the mean gradients.

    Attributes:
        alpha: α, weight of a new gradient in the momentum.
        server: as in `TreeMomentum`.
    """

    alpha: Any = struct.field(metadata={"small": of_short_epochs})
    server: Any = optimizer_field()

    def __post_init__(self):
        super().__post_init__()
        if isinstance(self.alpha, int | float) and not 0 < self.alpha <= 1:
            raise Refusal(f"alpha must be above 0 and at most 1, got {self.alpha}")

    @property
    def reads(self) -> Reads:
        """The momentum m̂_t."""
        return Momentum(self.alpha)

    def init(self, public: Public, step: Any) -> MomentumState:
        return MomentumState(public.start, public.start, initial(self.server, public.start, step))

    def message(self, server: MomentumState, t: Any) -> Linear:
        return gradient(server.w)

    def serve(self, server: MomentumState, read: Any, at: At) -> MomentumState:
        w, optimizer = stepped(self.server, server.optimizer, server.w, normalised(read), at.step)
        return MomentumState(at.project(w), one_of(server.sampled, server.w, at.t, at.key), optimizer)

    def point(self, server: MomentumState) -> Any:
        return server.sampled

    def iterates(self, server: MomentumState) -> dict[str, Any]:
        """The last iterate, evaluated in addition to the output."""
        return {"last": server.w}


@struct.dataclass(kw_only=True)
class MomentumProtocol(MomentumFields, Levels, Protocol):
    """Settings of a method that composes `NormalisedSteps` with noise on the momentum.

    A subclass defines `privacy`, `calibrate` and `theory`. `TreeMomentum` documents the fields.
    """

    mu: Any = struct.field(default=None, metadata={"traced": None})
    epsilon: Any = struct.field(default=None, metadata={"traced": None})
    alpha: Any = struct.field(default=None, metadata={"small": of_short_epochs})
    epoch: Any = struct.field(default=None, metadata={"derived": True})

    examples = ({"clip": 1.0, "batch": BATCH, "alpha": 2 / EPOCH},)
    server = None

    def __post_init__(self):
        check_numbers(self, "mu", "epsilon")
        object.__setattr__(self, "relative_privacy", self._privacy_without_step.relative_privacy)
        _ = self.algorithm  # raises Refusal if alpha is invalid

    @property
    def algorithm(self) -> NormalisedSteps:
        """Normalised steps along the momentum."""
        return NormalisedSteps(alpha=self.alpha, server=self.server)

    @property
    def _privacy_without_step(self) -> Any:
        """The privacy object of the settings without the step, which is no number while jax lowers a program."""
        return self.privacy

    @property
    def _shared(self) -> dict[str, Any]:
        """Settings of the privacy object, by name."""
        return {one.name: getattr(self, one.name) for one in fields(MomentumFields)} | {"epoch": self.epoch}

    @property
    def calibrated(self) -> bool:
        return self.noise_std is not None and self.epoch is not None

    def noise_variances(self, size: Size) -> np.ndarray:
        """Variance of one coordinate of the calibrated noise in each round's mean m̂_t; float64, shape [rounds]."""
        scale = float(self.noise_std) * self.privacy.noise_of_mean(size.per_round)
        return scale**2 * self.privacy.node_variances(size.rounds, float(self.alpha))


def momentum_theory(
    sampler: str,
    epochs: int,
    theorem: str,
    rounds: Callable[[Any, Problem, int, Target], int],
    bound: Callable[[Any, ProblemConstants, MomentumSettings, dict[str, float]], tran_cutkosky.GradientBound],
    step: Callable[[Any, Problem, Plan, Target], float],
) -> Theory:
    """Return the theory of a method with a private momentum.

    Args:
        sampler, epochs: sampler and smallest number of epochs of planned runs.
        theorem: theorem of its bound, for printing.
        rounds: function that returns the number of rounds which the method's theorem chooses, in whole epochs.
        bound: function that returns its bound on the mean norm of the gradient over iterates, with all machines in
            every round.
        step: function that returns the default step.
    """

    def choices(protocol: Any, problem: Problem) -> TheoryChoices:
        def chosen(machines: int, target: Target) -> int:
            if target.given_noise is not None:
                rule = f"{theorem.partition(',')[0]} chooses them from an ε or a μ"
                raise Refusal(f"rounds must be given if the target is a noise: {rule}")
            return rounds(protocol, problem, machines, target)

        least = partial(protocol.privacy.checked_rounds_of_epoch, problem, protocol.algorithm.alpha)
        return TheoryChoices(rounds=chosen, min_rounds=least)

    def bound_of(protocol: Any, run: PlannedRun) -> Bound:
        if not run.setting.full:
            return missing("its theorem has all machines in every round")
        return gradient_bound(bound(protocol, *momentum_constants(run)), theorem)

    def uses(method: type) -> tuple[Use, ...]:
        return (Use("", epochs_of_records(method, sampler, epochs), iterate=LAST),)

    return Theory(step=step, bound=bound_of, uses=uses, choices=choices)


def momentum_step(protocol: Any, problem: Problem, plan: Plan, target: Target) -> float:
    """Return the step of Theorems 6 and 9, which ignore distances: 1/√(N·T).

    For clipped gradients it is multiplied by the distance that noise may move a run (`noise_reach`). The momentum's
    noise persists for N rounds, so T steps along it move √(N·T) step lengths.
    """
    step = 1 / sqrt(protocol.privacy.rounds_of_epoch(problem) * plan.size.rounds)
    return noise_reach(problem, problem.travel, times=2) * step if scaled_to_set(protocol, problem) else step


def scaled_to_set(protocol: Any, problem: Problem) -> bool:
    """Return True if the default step scales with the set's size: for clipped gradients in a set of known distance."""
    return binds(problem, protocol.privacy.clip) and isfinite(problem.travel)


def normalised(vector):
    """Return the vector divided by its norm; 0 stays 0."""
    norm = Dense(vector).norm()
    return jax.tree.map(lambda leaf: leaf * jnp.where(norm > 0, 1 / jnp.where(norm > 0, norm, 1.0), 0.0), vector)


def one_of(sampled, newest, round, key):
    """Return the newest iterate with probability 1/t, else `sampled`: reservoir sampling, uniform over t iterates."""
    chosen = jax.random.uniform(key) * round < 1
    return jax.tree.map(lambda old, new: jnp.where(chosen, new, old), sampled, newest)


def epochs_of_records(method: type, sampler: str, least: int) -> Callable[[Setting], Iterator[Draft]]:
    """Return drafts of whole epochs over machines' own records, in the number that theory chooses.

    Args:
        least: smallest number of epochs.
    """

    def drafts(s: Setting) -> Iterator[Draft]:
        trust = "server" if s.trust == "server" else "none"
        if trust == "none" and not s.full:
            raise Refusal(
                f"per_round must be machines ({s.machines}) without a trusted server, because a machine's tree has a "
                f"leaf in every round, got {s.per_round}"
            )
        settings = {"trust": trust, "sampler": sampler, "batch": s.batch or 1}
        protocol: Any = method(**settings)
        epoch = s.samples // settings["batch"]
        rounds, note = s.rounds, ""
        if rounds is None:
            rounds, note = _epochs(protocol, s, epoch, least)
        yield Draft(method, settings, s.owned, s.epochs(protocol.minibatches, rounds), note)

    return drafts


def _epochs(protocol: Any, s: Setting, epoch: int, least: int) -> tuple[int, str]:
    """Return the theory's rounds in whole epochs, capped at the planned number of uses, and a note if they differ."""
    most = min(MAX_EPOCHS, MAX_USES // (s.per_round * s.samples))
    try:
        best = theory_rounds(protocol, s, s.owned) // epoch
    except Refusal:
        best = 0  # the theorem chooses less than one epoch
    epochs = max(least, min(best, most))
    return epochs * epoch, "" if epochs == best else f"{epochs} epochs, the theorem has {best or 'less than one'}"


def momentum_constants(
    run: PlannedRun,
) -> tuple[tran_cutkosky.ProblemConstants, tran_cutkosky.MomentumSettings, dict[str, float]]:
    """Return the constants of the problem, the settings, and the initial gap and noise of a run with momentum."""
    s, protocol, size = run.setting, run.protocol, run.plan.size
    losses = {"lipschitz": s.lipschitz, "smoothness": s.smoothness}
    problem = tran_cutkosky.ProblemConstants(records=int(protocol.epoch), dimension=s.dimension, **losses)
    settings = tran_cutkosky.MomentumSettings(size.rounds, float(protocol.alpha), run.step)
    noise = float(np.mean(np.sqrt(s.dimension * protocol.noise_variances(size))))
    return problem, settings, {"gap": s.first_gap, "noise": noise}


def gradient_bound(bound: tran_cutkosky.GradientBound, theorem: str) -> Bound:
    """Return a theorem's bound on the mean norm of the gradient, term by term."""
    terms = {
        "optimisation": float(bound.optimisation + bound.start),
        "sampling": float(bound.variance),
        "noise": float(bound.noise),
        "bias": float(bound.bias),
    }
    return Bound(GRADIENT, STATIONARITY, f"Tran & Cutkosky 2022, {theorem}", terms)
