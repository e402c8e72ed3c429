"""Gossip: every machine holds the state of an algorithm's server, and mixes it with its neighbours' in every round."""

from typing import Any, NamedTuple, final

from flax import struct

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import called
from fedprivjax.method.algorithm import Algorithm, At, Public
from fedprivjax.method.linear import Linear, gradient
from fedprivjax.method.server_step import initial, optimizer_field, stepped
from fedprivjax.noise.mixing import as_mixing


class StepState(NamedTuple):
    """Iterate, and state of its optimiser."""

    w: Any
    optimizer: Any


@struct.dataclass(kw_only=True)
class GradientSteps(Algorithm):
    """Projected gradient descent on the parameters, which reports the last iterate.

    Attributes:
        server: optax transformation or schedule that replaces the plain step, as in `NoisySGD`. None is the plain step.
    """

    server: Any = optimizer_field()

    def init(self, public: Public, step: Any) -> StepState:
        return StepState(public.start, initial(self.server, public.start, step))

    def message(self, server: StepState, t: Any) -> Linear:
        return gradient(server.w)

    def serve(self, server: StepState, read: Any, at: At) -> StepState:
        w, optimizer = stepped(self.server, server.optimizer, server.w, read, at.step)
        return StepState(at.project(w), optimizer)

    def point(self, server: StepState) -> Any:
        return server.w


@final
@struct.dataclass
class Gossip(Algorithm):
    """Algorithm without a server: every machine takes a step, and then averages its state with its neighbours' states.

    In each round, machine i takes a step from its own noisy message alone, which leads to the state s_i. It continues
    with Σ_j W_ij·s_j, for weights W given by `mixing`. All machines take part in every round, and the mean of their
    points is reported.

    Attributes:
        steps: algorithm of the steps, which must read means. Every machine holds its own copy of the algorithm's server
            state. All floating-point numbers of the state are averaged with the neighbours' numbers.
        mixing: rule for the weights W, see `Mixing`. Named graphs are "ring", "complete", `Torus(rows, columns)` and
            `RandomRings(rings, seed)`. A networkx graph or a matrix is allowed, too. Of a list, each round uses the
            next entry, and `Matchings(rounds, seed)` is a list of random matchings.
        weights: W of each round until the rounds repeat, [period, machines, machines]; set by calibration.

    >>> from fedprivjax import Full, NoisyMessages, Protocol, datasets, from_dataset, simulate
    >>> method = Protocol(Gossip(mixing="ring"), privacy=NoisyMessages(clip=1.0), epsilon=8.0, step_size=0.1)
    >>> run = simulate(method, from_dataset(datasets.load("digits")), Full(8), rounds=100)
    >>> round(run.guarantee.epsilon, 2), run.costs["sent_messages"]
    (8.0, 2.0)
    """

    steps: Any = struct.field(default=GradientSteps(), metadata={"part": Algorithm})
    mixing: Any = struct.field(pytree_node=False, default="ring")
    weights: Any = struct.field(default=None, kw_only=True, metadata={"derived": True})

    def __post_init__(self):
        super().__post_init__()
        if isinstance(self.steps, Gossip):
            raise Refusal(f"steps must be those of one machine, got {called(self.steps)}. Give the algorithm inside it")
        if self.mixing is not None:  # None in programs
            object.__setattr__(self, "mixing", as_mixing(self.mixing))
