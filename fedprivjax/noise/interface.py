"""What a noise mechanism is: the part of a run's noise that is drawn once per seed, whatever a sweep's members are."""

from collections.abc import Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from fedprivjax.checks.decorated import PYTREE, Decorated
from fedprivjax.checks.refusal import Undefined


class Mechanism(Decorated):
    """A pytree (`flax.struct.dataclass`) that draws random numbers a block of rounds together; subclass it for a law.

    It holds per-round `inputs`, leaves [rounds, ...], that follow from the public schedule, and no setting. What
    a member's own leaves make of a draw (a scale, a discount) is its protocol's `noise`. So one draw serves every
    privacy level, clip and step of a sweep.
    """

    kind, decorator = "mechanism", PYTREE
    inputs: Any
    inside: ClassVar[bool] = False  # whether noise is part of what machines compute, rather than added to messages
    taped: ClassVar[bool] = True  # whether a round's noise may rest on the protocol's host-made tape
    method: ClassVar[str] = "auto"  # the noise method that makes this kind

    @property
    def name(self) -> str:
        """What results call the mechanism."""
        return type(self).__name__.lower()

    def init(self, dimension: int, key: jax.Array) -> Any:
        """State before the first round; `key` is the seed's, to draw by machine or by node rather than by round."""
        return ()

    def draw(self, state: Any, inputs: Any, keys: jax.Array, dimension: int) -> tuple[Any, Any]:
        """The draws of a block of rounds: (state, leaves [block, ...]), or None in their place for no noise.

        Args:
            inputs: the block's part of `inputs`.
            keys: of its rounds, [block].
        """
        raise Undefined(f"{self.name} must define draw(state, inputs, keys, dimension)")

    def aggregate(self, noise: Any) -> jax.Array | None:
        """The noise in the server's aggregate, [d], from what the protocol made of a draw; None where there is none."""
        return noise

    def message_memory(self, dimension: int, key: jax.Array) -> Any:
        """What machines remember of their noise before the first round, where messages are written out; `key` is the
        seed's."""
        return ()

    def message_noise(self, memory: Any, inputs: Any, key: jax.Array, dimension: int) -> tuple[Any, Any]:
        """What each participant adds to its message in one round: (memory, leaves [per_round, ...]), or None for
        nothing."""
        return memory, None

    def align(self, others: Sequence[Any]) -> list[Any]:
        """Mechanisms of this kind made of equal shapes, so that they can be stacked for a `vmap` over their seeds."""
        return list(others)

    def floats(self, dimension: int) -> int:
        """Numbers that a seed holds while a round is drawn, beyond `inputs` and the block of draws."""
        state = jax.eval_shape(lambda: self.init(dimension, jax.random.key(0)))
        return 2 * sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(state) if leaf.dtype == jnp.float32)
