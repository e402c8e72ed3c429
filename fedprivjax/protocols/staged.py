r"""Runs in stages: an algorithm that restarts in every stage, with another step, regulariser and number of rounds.

Stage k has T_k rounds of a given algorithm, from the point x_{k−1} that the stage before reported, with step η·c_k:

    read ← read + λ_k·Σ_j a_j·(x_j − centre)       for a message Σ_j a_j·∇f(x_j): the gradient of (λ_k/2)·‖x − centre‖²
    state ← serve(state, read)                      as of a run that starts at x_{k−1}
    after T_k rounds: x_k = point(state), state ← init(x_k)

Phased localisation (Feldman, Koren & Talwar, STOC 2020) halves T_k and divides the step by 4. The multi-stage AC-SA of
Lowy & Razaviyayn (ICLR 2023) is another case. In the paper by Feldman et al. noise is added to the output of a phase.
Here the privacy object adds it to every round's messages, so that a stage is post-processing of what is released.

The privacy object bounds and accounts for all rounds of the run, whatever the algorithm does with what it reads. Its
guarantee is that of a run with as many rounds. A record that is used in one stage only counts in the rounds of that
stage. The server adds the regulariser, which has no part in a message's bound.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import called, require_at_least, require_choice, require_positive
from fedprivjax.method.algorithm import Algorithm, At, Mean, Part, Public, has_sums
from fedprivjax.method.gossip import Gossip
from fedprivjax.method.linear import Linear, displacement, require_gradients
from fedprivjax.method.noisy_messages import NoisyMessages
from fedprivjax.method.noisy_records import NoisyRecords
from fedprivjax.method.private_mean import GaussianMean
from fedprivjax.method.shuffled_bits import BitMean
from fedprivjax.method.theory import Theory, TheoryChoices
from fedprivjax.problem.problem import Problem
from fedprivjax.protocols.noisy_sgd import SGD

CENTRES = ("stage", "run")


class StagedState(NamedTuple):
    """State of the stage's algorithm, the point at which the stage starts, and the number of finished rounds."""

    steps: Any
    start: Any
    rounds: Any


class Stage(NamedTuple):
    """Algorithm and settings of one round of a run in stages.

    Attributes:
        steps: algorithm of the stage to which the round belongs. Settings that depend on a number of rounds are those
            for the length of the stage.
        t: number of the round within its stage, from 1.
        scale: factor by which the run's step size is multiplied in the stage.
        strength: λ, strength of the regulariser in the stage. None means no regulariser.
    """

    steps: Any
    t: Any
    scale: Any
    strength: Any


@struct.dataclass
class Staged(Algorithm):
    """Algorithm in stages, each of which restarts an algorithm at the point that the previous stage reported.

    Attributes:
        steps: algorithm of every stage, such as `SGD(average=True)`. The server of the algorithm must read the mean of
            each round's messages: its attribute `reads` must be `Mean()`.
        rounds: number of rounds of each stage, such as (60, 30, 10). The sum must be the number of rounds of the run. A
            single integer is the number of stages: the first stage has half of the run's rounds, each later stage has
            half as many rounds as the one before, and the last stage has all rounds that are left.
        scales: factor of the step size: one number for each stage, or one for all stages.
        regularisation: λ of the regulariser (λ/2)·‖x − c‖², which the server adds to the loss of parameters x: one
            number for each stage, or one for all stages. None adds no regulariser.
        centre: c in the regulariser: "stage" for the point at which the stage starts, "run" for the initial parameters
            of the run.
        begins: number of rounds before each stage; set by calibration.
        each: algorithms of all stages, stacked along a leading axis; set by calibration.

    >>> import numpy as np
    >>> from fedprivjax import Full, NoisyRecords, Protocol, datasets, from_dataset, simulate
    >>> phases = Staged(SGD(average=True), rounds=(50, 25, 25), scales=(1.0, 0.25, 0.0625))
    >>> method = Protocol(phases, privacy=NoisyRecords(clip=1.0, sampler="full"), epsilon=8.0, step_size=0.5)
    >>> machines = np.arange(1424).reshape(8, 178)
    >>> problem = from_dataset(datasets.load("digits"), partition_table=machines)
    >>> run = simulate(method, problem, Full(8), rounds=100)
    >>> round(run.guarantee.epsilon, 2)
    8.0
    """

    steps: Any = struct.field(default=SGD(), metadata={"part": Algorithm})
    rounds: Any = struct.field(pytree_node=False, default=2)
    scales: Any = struct.field(default=1.0, metadata={"several": True})
    regularisation: Any = struct.field(default=None, metadata={"several": True})
    centre: str = struct.field(pytree_node=False, default="stage")
    begins: Any = struct.field(default=None, kw_only=True, metadata={"derived": True})
    each: Any = struct.field(default=None, kw_only=True, metadata={"derived": True})

    def __post_init__(self):
        super().__post_init__()
        if self.rounds is None:  # in programs
            return
        require_choice("centre", self.centre, CENTRES)
        for name in ("rounds", "scales", "regularisation"):
            given = getattr(self, name)
            object.__setattr__(self, name, tuple(given) if isinstance(given, list | np.ndarray) else given)
        for number in self.rounds if isinstance(self.rounds, tuple) else (self.rounds,):
            require_at_least("rounds", number, 1)
        stages = len(self.rounds) if isinstance(self.rounds, tuple) else self.rounds
        if not stages:
            raise Refusal("rounds must be those of at least one stage, got none. Give one number for each stage")
        for name, zero in (("scales", False), ("regularisation", True)):
            values = getattr(self, name)
            if isinstance(values, tuple) and len(values) != stages:
                raise Refusal(f"{name} must be one number, or one for each of the {stages} stages, got {len(values)}")
            for value in values if isinstance(values, tuple) else (values,):
                if not (zero and (value is None or value == 0)):
                    require_positive(name, value)
        self._check_steps()

    def _check_steps(self) -> None:
        """Raise Refusal unless the stages' algorithm reads means of one server. Placeholders pass."""
        steps = self.steps
        if isinstance(steps, Gossip | Staged):
            raise Refusal(f"steps must be the steps of one stage, got {called(steps)}. Give the algorithm inside it")
        other = isinstance(steps, type | Part) and not isinstance(steps, Algorithm)
        if other or (isinstance(steps, Algorithm) and (has_sums(type(steps)) or type(steps.reads) is not Mean)):
            raise Refusal(
                f"steps must be an algorithm whose server reads means, such as SGD, got {called(steps)}. Use one call "
                f"for each stage, with from_dataset(…, start=run.params) and first.guarantee.then(second.guarantee)"
            )

    # ---- on the host

    def check(self, public: Public) -> None:
        self.steps.check(public)

    def check_rounds(self, rounds: int) -> None:
        lengths = stage_rounds(self.rounds, rounds)
        if sum(lengths) != rounds:
            given = " + ".join(map(str, lengths))
            raise Refusal(f"rounds of the stages must add up to the {rounds} of the run, got {given} = {sum(lengths)}")
        if not min(lengths):
            raise Refusal(f"rounds must be at least {2 ** (len(lengths) - 1)} for {len(lengths)} stages, got {rounds}")

    def planned(self, rounds: int, step: float) -> Any:
        """Return a copy whose fields `begins` and `each` are set for a run with this number of rounds.

        `begins` has the number of rounds before each stage. `each` has the algorithm of each stage: a copy of `steps`
        that is prepared, by its method `planned`, for the number of rounds and the step size of the stage.

        Args:
            rounds: number of rounds of the run.
            step: step size of the run. The step size of a stage is `step` times the stage's factor in `scales`.
        """
        lengths = stage_rounds(self.rounds, rounds)
        scales = self.scales if isinstance(self.scales, tuple) else (self.scales,) * len(lengths)
        each = [self.steps.planned(max(1, n), step * float(scale)) for n, scale in zip(lengths, scales, strict=True)]
        begins = np.cumsum([0, *lengths[:-1]]).astype(np.int32)
        return replace(self, rounds=None, begins=begins, each=_stacked(each))

    # ---- traced

    def init(self, public: Public, step: Any) -> StagedState:
        if self.begins is None:  # before it is planned, when the form of the state is read
            return StagedState(self.steps.init(public, step), public.start, jnp.int32(0))
        return self._begun(public, step, jnp.int32(0))

    def message(self, server: StagedState, t: Any) -> Linear:
        stage = self._stage(server)
        return stage.steps.message(server.steps, stage.t)

    def smoothing(self, server: StagedState) -> Any:
        return self._stage(server).steps.smoothing(server.steps)

    def serve(self, server: StagedState, read: Any, at: At) -> StagedState:
        stage, done = self._stage(server), server.rounds + 1
        if stage.strength is not None:
            centre = server.start if self.centre == "stage" else at.start
            pull = displacement(self._gradients(self.message(server, at.t)), centre)
            read = jax.tree.map(lambda g, x: g + stage.strength * x, read, pull)
        inside = at._replace(t=stage.t, step=at.step * stage.scale, start=server.start)
        now = StagedState(stage.steps.serve(server.steps, read, inside), server.start, done)
        public = at.public._replace(start=stage.steps.point(now.steps), key=jax.random.fold_in(at.key, 1))
        ends = jnp.any(self.begins == done)
        return jax.tree.map(lambda new, old: jnp.where(ends, new, old), self._begun(public, at.step, done), now)

    def point(self, server: StagedState) -> Any:
        return self._stage(server).steps.point(server.steps)

    def iterates(self, server: StagedState) -> dict[str, Any]:
        """Return further iterates of the current stage's algorithm by name, which metrics evaluate.

        After the last round of a stage, the next stage has already begun, so they are its initial iterates.
        """
        return self._stage(server).steps.iterates(server.steps)

    def _begun(self, public: Public, step: Any, rounds: Any) -> StagedState:
        """Return the state at the start of a stage."""
        stage = self._stage_after(rounds)
        return StagedState(stage.steps.init(public, step * stage.scale), public.start, rounds)

    def _stage(self, server: StagedState) -> Stage:
        return self._stage_after(server.rounds)

    def _stage_after(self, rounds: Any) -> Stage:
        """Return the facts of the round after this number of rounds."""
        k = jnp.sum(self.begins <= rounds) - 1

        def of(values):
            return jnp.stack(values)[k] if isinstance(values, tuple) else values

        steps, t = jax.tree.map(lambda leaf: leaf[k], self.each), rounds + 1 - jnp.asarray(self.begins)[k]
        return Stage(steps, t.astype(jnp.float32), of(self.scales), of(self.regularisation))

    def _gradients(self, message: Linear) -> Linear:
        return require_gradients(message, type(self.steps).__name__, "with regularisation")


def _choices(protocol: Any, problem: Problem) -> TheoryChoices:
    """Return the smallest number of rounds of a run: that of all stages, or enough to halve them."""
    rounds = protocol.algorithm.rounds
    return TheoryChoices(min_rounds=lambda: 2 ** (rounds - 1) if isinstance(rounds, int) else sum(rounds))


Theory(choices=_choices).of(Staged, NoisyMessages, NoisyRecords, GaussianMean, BitMean)


def stage_rounds(rounds: int | Sequence[int], total: int) -> list[int]:
    """Return the number of rounds of each stage, from the setting `rounds` of `Staged` and those of the run.

    >>> stage_rounds(3, 100), stage_rounds((60, 40), 100)
    ([50, 25, 25], [60, 40])
    """
    if not isinstance(rounds, int):
        return list(rounds)
    halves = [total >> k for k in range(1, rounds)]
    return [*halves, total - sum(halves)]


def _stacked(algorithms: Sequence[Any]) -> Any:
    """Return an algorithm with the numbers of several on a leading axis.

    What has fewer rows in one of them than in another, such as a row for each round of a stage, is filled with its last
    row, which is not read.
    """

    def one(*leaves):
        rows = max(np.shape(leaf)[0] for leaf in leaves) if np.ndim(leaves[0]) else 0

        def filled(leaf):
            leaf = np.asarray(leaf)
            return np.pad(leaf, [(0, rows - len(leaf)), *[(0, 0)] * (leaf.ndim - 1)], mode="edge") if rows else leaf

        return np.stack([filled(leaf) for leaf in leaves])

    return jax.tree.map(one, *algorithms)
