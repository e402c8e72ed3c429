r"""FedPer: a shared body, and a head of every client.

Arivazhagan, Aggarwal, Singh & Choudhary, 2019, Algorithms 1 and 2. The parameters are (b, h). Machine i keeps h_i, at
first the head of w_0. It takes FedAvg's local steps on both parts, from the received body and its own head,

    (b, h) ← (b, h) − η·∇F_i(b, h), first at (b_r, h_i)          sends b − b_r, keeps h_i ← h

and the server averages bodies as FedAvg does. A machine that is absent, or drops out, keeps h_i. A proximal term is one
of the body.

A head feeds the next messages of its machine, so what it does to them must be bounded. With `unit = "machine"` the
change of a body is clipped as a whole and noised, whatever the head is, and given the releases no message of another
machine depends on it. With `unit = "record"` every step is noised in both parts, and the head is a function of the
noisy steps.
"""

from typing import Any

import jax
from flax import struct

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import called
from fedprivjax.method.algorithm import Public
from fedprivjax.method.local_algorithm import AtServer, Work, begun, point_of, zeros
from fedprivjax.problem.constraints import WholeSpace
from fedprivjax.protocols.fedavg import LocalGradientSteps


@struct.dataclass(kw_only=True)
class FedPer(LocalGradientSteps):
    """FedPer (Arivazhagan et al. 2019): FedAvg on the first layers of a network, and separate last layers of every
    client.

    A client (machine) trains its last layers, called the head, and never sends them. The parameters that a run reports
    have the initial head. Use metrics of the clients' own models, such as "personal_accuracy".

    Attributes:
        head: path of the head's parameters, or a tuple of paths. For example, "Dense_1" is a layer, and "Dense_1/bias"
            is one array of this layer. The problem must have no constraint set.
        prox: ρ of the proximal term (ρ/2)·‖v − w‖², which pulls a machine's point v to the received point w. None is no
            proximal term.
        server_step: learning rate of the optimiser `server`: a number, or a function of the round's number, from 0,
            such as `optax.cosine_decay_schedule(1.0, 100)`. Leave it out if there is no `server`, or if the `server`
            has its own learning rate, such as `optax.adam(0.1)`.
        server: optimiser of the server's step, such as `optax.adam`, "adam" or `optax.adam(0.1)`. `ServerOptimizer`
            lists all forms. The optimiser receives minus the mean update as its gradient. If `server` is None, the
            server adds the mean update to its point.
        local: optimiser of the local steps, in one of the forms of `server`. The learning rate of `optax.adam` is the
            `step_size` of the protocol. If `local` is None, local steps are plain gradient steps.
        window: number of last iterates whose mean is reported.

    >>> import numpy as np
    >>> from fedprivjax import MLP, LocalEpochs, LocalPrivacy, Protocol, Uniform, datasets, from_dataset, simulate
    >>> rows = np.arange(1420).reshape(20, 71)
    >>> problem = from_dataset(datasets.load("digits"), partition_table=rows, network=MLP((8,)))
    >>> method = Protocol(FedPer(head="Dense_1"), privacy=LocalPrivacy(work=LocalEpochs(1, 10)), step_size=0.1)
    >>> run = simulate(method, problem, Uniform(20, 5), rounds=5, seed=1)
    >>> {name: leaf.shape for name, leaf in run.own.items()}
    {'Dense_1/bias': (20, 10), 'Dense_1/kernel': (20, 8, 10)}
    """

    head: Any = struct.field(pytree_node=False, metadata={"path": True})

    def __post_init__(self):
        super().__post_init__()
        paths = (self.head,) if isinstance(self.head, str) else self.head
        if not isinstance(paths, tuple | list) or not paths or not all(isinstance(one, str) for one in paths):
            raise Refusal(f"head must be the path of parameters, or a tuple of paths, got {called(self.head)}")
        object.__setattr__(self, "head", tuple(paths))

    def check(self, public: Public) -> None:
        super().check(public)
        names = [_name(path) for path, _ in jax.tree_util.tree_flatten_with_path(public.start)[0]]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise Refusal(f"parameters must have names of their own for FedPer, got {twice!r} twice. Rename one")
        for path in self.head:
            if not any(_below(name, path) for name in names):
                known = ", ".join(names) if any(names) else "no names, because they are one array. Use a network"
                raise Refusal(f"head must be the path of parameters, got {path!r}. The parameters have: {known}")
        if not self._parts(public.start)[0]:
            raise Refusal(
                f"head must leave parameters to share, got {', '.join(self.head)}, which are all. Leave some out"
            )
        if type(public.constraint) is not WholeSpace:
            kind = type(public.constraint).__name__
            raise Refusal(
                f"constraint must be left out for FedPer, because it would bound body and head together, got {kind}"
            )

    def own(self, public: Public) -> Any:
        return self._parts(public.start)[1]

    def enter(self, received: Any, own: Any) -> Any:
        return begun(self.local, _with(received, own))

    def move(self, carry: Any, g: Any, received: Any, own: Any, work: Work) -> Any:
        here = self._parts(point_of(carry))[1]  # a proximal term is 0 at the head
        return super().move(carry, g, _with(received, here), own, work)

    def leave(self, carry: Any, received: Any, own: Any, work: Work) -> Any:
        return self._parts(super().leave(carry, received, own, work))[0]

    def hold(self, carry: Any, own: Any) -> Any:
        return self._parts(point_of(carry))[1]

    def serve(self, server: Any, mean: Any, at: AtServer) -> Any:
        return super().serve(server, _with(zeros(server.w), mean), at)

    def personal(self, point: Any, own: Any) -> Any:
        return _with(point, own)

    def _parts(self, params: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the leaves of the body and those of the head, by name."""
        body, head = {}, {}
        for name, leaf in _named(params).items():
            part = head if any(_below(name, path) for path in self.head) else body
            part[name] = leaf
        return body, head


def _name(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")


def _named(params: Any) -> dict[str, Any]:
    """Return the leaves of parameters by name, such as "Dense_1/bias"."""
    return {_name(path): leaf for path, leaf in jax.tree_util.tree_flatten_with_path(params)[0]}


def _below(name: str, path: str) -> bool:
    """Return True if a leaf has this path, or is below it."""
    return f"{name}/".startswith(f"{path}/")


def _with(params: Any, leaves: dict[str, Any]) -> Any:
    """Return parameters with other values of the named leaves."""
    return jax.tree_util.tree_map_with_path(lambda path, leaf: leaves.get(_name(path), leaf), params)
