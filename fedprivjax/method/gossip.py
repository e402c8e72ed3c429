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
    """Projected gradient descent that reports the last iterate.

    Attributes:
        server: optax optimiser, such as `optax.adam`, or an optax schedule of factors on the step size. With None (the
            default), steps are plain gradient steps.
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
    """Decentralised algorithm: every machine takes a step, and then averages its state with its neighbours' states.

    There is no server. In each round, machine i takes a step with its own noisy message. The machine then replaces its
    state s_i by Σ_j W_ij·s_j. All machines take part in every round. The reported result is the mean of the machines'
    parameters.

    Attributes:
        steps: algorithm of each machine's steps, such as `GradientSteps()`. Every machine holds a server state of this
            algorithm. All floating-point numbers of the state are averaged with the neighbours' numbers. The
            algorithm's `reads` must be `Mean()`.
        mixing: the matrix W of the weights, or a graph that determines W. A graph is "ring", "complete", `Torus(rows,
            columns)`, `RandomRings(rings, seed)`, or a networkx graph. `Mixing` defines the weights of a graph. If
            `mixing` is a list of graphs and matrices, the rounds use its elements in turn. `Matchings(rounds, seed)`
            stands for random pairs of machines in each round.
        weights: the matrices W of the rounds, [period, machines, machines]; round t uses matrix (t − 1) mod period. Set
            by calibration.

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
