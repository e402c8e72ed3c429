"""A custom algorithm: gradient descent with momentum."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from fedprivjax import Algorithm, gradient


@struct.dataclass
class HeavyBall(Algorithm):
    """Gradient descent with momentum."""

    beta: Any = 0.9
    nesterov: bool = struct.field(pytree_node=False, default=False)

    def init(self, public, step):
        return public.start, jax.tree.map(jnp.zeros_like, public.start)

    def message(self, server, t):
        return gradient(server[0])

    def serve(self, server, read, at):
        velocity = jax.tree.map(lambda v, g: self.beta * v + g, server[1], read)
        along = jax.tree.map(lambda v, g: self.beta * v + g, velocity, read) if self.nesterov else velocity
        return at.project(jax.tree.map(lambda w, v: w - at.step * v, server[0], along)), velocity

    def point(self, server):
        return server[0]
