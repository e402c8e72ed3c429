r"""ProxSkip, also known as Scaffnew: many local steps between averages, with a correction of each machine's drift.

Mishchenko et al., ICML 2022. A machine holds h_i, 0 at the start, and takes steps v ← v − η·(g − h_i). With probability
p a step is followed by the average w of all v_i, and then h_i ← h_i + (p/η)·(w − v_i). Here the average follows a fixed
number of steps, at most K, and p = 1/K by default. With all machines in every round, h_i = c − c_i for

    v ← Π_W(v − η·(g_k − c + c_i))          w_{r+1} = Π_W(w_r + mean of v_i − w_r)
    c_i ← c_i + (p/η)·(v_i − w_r)           c ← c + (p/(η·M))·Σ_{i∈S_r} (v_i − w_r)

A machine that is absent keeps c_i. This implementation adds this case: c stays the mean of all c_i, as in SCAFFOLD, so
that the corrections of all machines sum to 0. A message is the update alone, d numbers instead of SCAFFOLD's 2d. With
all machines in every round and p = 1/K, the iterates are those of SCAFFOLD.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
from flax import struct

from fedprivjax.checks.values import require_positive
from fedprivjax.method.algorithm import Public
from fedprivjax.method.local_algorithm import AtServer, LocalAlgorithm, Work, add, mul, sub, walked, zeros


class SkipState(NamedTuple):
    """Iterate w_r, the server's c, and 1/M."""

    w: Any
    control: Any
    share: Any


@struct.dataclass
class ProxSkip(LocalAlgorithm):
    """ProxSkip, also known as Scaffnew (Mishchenko et al. 2022): local steps corrected for machines whose data differ.

    Machine (client) i keeps a vector c_i, and the server keeps c, the mean of all c_i. A machine starts at the
    server's point w and takes local steps of size η along −(g − c + c_i), where g is a minibatch gradient. With v its
    last point, the machine sends v − w, and sets c_i ← c_i + (p/η)·(v − w), where p is `probability`. All machines
    have equal weights.

    Attributes:
        probability: p. The server averages after a fixed number of steps for any p. None is 1/K, where K is the largest
            number of local steps of a machine in a round.

    >>> import numpy as np
    >>> from fedprivjax import LocalEpochs, LocalPrivacy, Protocol, Uniform, datasets, from_dataset, simulate
    >>> problem = from_dataset(datasets.load("digits"), partition_table=np.arange(1420).reshape(20, 71))
    >>> method = Protocol(ProxSkip(), privacy=LocalPrivacy(work=LocalEpochs(1, 10)), step_size=0.02)
    >>> run = simulate(method, problem, Uniform(20, 5), rounds=20, seed=1)
    >>> bool(run.metrics["test_accuracy"][-1] > 0.8)
    True
    """

    probability: Any = None

    equal_weights = True

    def __post_init__(self):
        super().__post_init__()
        require_positive("probability", self.probability, optional=True)

    def init(self, public: Public, step: Any) -> SkipState:
        return SkipState(public.start, zeros(public.start), jnp.float32(1 / public.machines))

    def sends(self, server: SkipState) -> Any:
        """Return what the server sends to machines: its point w_r, and its vector c.

        Machine i keeps a vector c_i that corrects its local steps. c is the mean of these vectors over all machines.

        Args:
            server: state of the server.
        """
        return server.w, server.control

    def own(self, public: Public) -> Any:
        """Return 0, the initial value of the vector c_i by which machine i corrects its local steps.

        Args:
            public: public facts of the run.
        """
        return zeros(public.start)

    def enter(self, received: Any, own: Any) -> Any:
        return received[0]

    def move(self, carry: Any, g: Any, received: Any, own: Any, work: Work) -> Any:
        return walked(None, carry, add(g, sub(own, received[1])), work)

    def leave(self, carry: Any, received: Any, own: Any, work: Work) -> Any:
        return sub(carry, received[0])

    def keep(self, own: Any, message: Any, work: Work) -> Any:
        return add(own, mul(self._rate(work), message))

    def serve(self, server: SkipState, mean: Any, at: AtServer) -> SkipState:
        control = add(server.control, mul(self._rate(at) * at.cohort * server.share, mean))
        return SkipState(at.project(add(server.w, mean)), control, server.share)

    def point(self, server: SkipState) -> Any:
        return server.w

    def _rate(self, known: Work | AtServer) -> Any:
        """Return p/η."""
        return (1 / known.planned if self.probability is None else self.probability) / known.step
