r"""DPZero: steps along a random public direction, as long as a private difference of losses says.

Zhang et al., "DPZero: Private Fine-Tuning of Language Models without Backpropagation", 2023. A round's direction u is
uniform on the sphere of radius √d. A record's message is one number, its difference quotient along u, which is clipped:

    q(z) = (f(w + λ·u; z) − f(w − λ·u; z))/(2λ)          w ← Π_W(w − η·(noisy mean of the clipped q)·u)

Tang et al. 2024 (DP-ZO) clip the difference before it is divided by 2λ: a clip C here is a clip 2λ·C there. Their
directions are normal. Noise is added to one number, whatever the dimension. The points w ± λ·u may be outside of W.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct
from jax.flatten_util import ravel_pytree

from fedprivjax.checks.values import require_positive
from fedprivjax.method.algorithm import Algorithm, At, Public
from fedprivjax.method.linear import Linear, per_record
from fedprivjax.method.local_algorithm import add, mul, sub
from fedprivjax.method.per_record import Record
from fedprivjax.method.server_step import initial, optimizer_field, stepped


class ZeroState(NamedTuple):
    """Iterate w, the direction u of the next round, and the state of the server optimiser."""

    w: Any
    direction: Any
    optimizer: Any = ()


@struct.dataclass
class DPZero(Algorithm):
    """DPZero (Zhang et al. 2023): private optimisation without gradients, from differences of losses.

    In each round, the server samples a random public direction u of norm √d, for d parameters. For a record z, a
    machine (client) computes the slope of the loss f at w along u, q = (f(w + λ·u; z) − f(w − λ·u; z))/(2λ), with λ =
    `radius`. The machine clips q and sends it. The server's next point is Π(w − η·q̄·u), where q̄ is the noisy mean of
    all q, η the step size, and Π the projection onto the constraint set.

    Attributes:
        radius: λ, a positive number. If λ is small, rounding errors of the losses matter.
        server: optimiser of the server's steps, which receives q̄·u as its gradient. The learning rate of `optax.adam`
            (or "adam") is `step_size`. `ServerOptimizer` lists all forms. If `server` is None, the server takes the
            step above.

    >>> from fedprivjax import NoisyMessages, Protocol, Uniform, datasets, from_dataset, simulate
    >>> method = Protocol(DPZero(), privacy=NoisyMessages(clip=1.0), epsilon=8.0, step_size=0.01)
    >>> run = simulate(method, from_dataset(datasets.load("digits")), Uniform(100, 10), rounds=100)
    >>> round(run.guarantee.epsilon, 2), run.costs["sent_bits"]
    (8.0, 32.0)
    """

    radius: Any = 1e-3
    server: Any = optimizer_field()

    def __post_init__(self):
        super().__post_init__()
        require_positive("radius", self.radius)

    def init(self, public: Public, step: Any) -> ZeroState:
        w = public.start
        return ZeroState(w, on_sphere(public.key, w), initial(self.server, w, step))

    def message(self, server: ZeroState, t: Any) -> Linear:
        return per_record(slope, server.w, server.direction, self.radius)

    def serve(self, server: ZeroState, read: Any, at: At) -> ZeroState:
        u, step = server.direction, at.step
        u, step = (u, step * read) if self.server is None else (mul(read, u), step)
        w, optimizer = stepped(self.server, server.optimizer, server.w, u, step)
        return ZeroState(at.project(w), on_sphere(at.key, w), optimizer)

    def point(self, server: ZeroState) -> Any:
        return server.w


def slope(record: Record, w: Any, direction: Any, radius: Any) -> Any:
    """Return a record's central difference quotient along a direction."""
    step = mul(radius, direction)
    return (record.loss(add(w, step)) - record.loss(sub(w, step))) / (2 * radius)


def on_sphere(key: Any, like: Any) -> Any:
    """Return a uniform direction of norm √d, shaped like the parameters."""
    flat, unravel = ravel_pytree(like)
    normal = jax.random.normal(key, flat.shape)
    return unravel(normal * (flat.size**0.5 / jnp.linalg.norm(normal)))
