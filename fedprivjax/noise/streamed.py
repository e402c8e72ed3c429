"""Normals that a protocol's factor turns into noise correlated over rounds."""

from typing import Any

from flax import struct

from fedprivjax.noise.factors import Correlated
from fedprivjax.noise.fresh import Fresh, PerMachine
from fedprivjax.noise.interface import Mechanism


@struct.dataclass
class Streamed(Mechanism):
    """Samples of another mechanism, from which the protocol computes a `Correlated` in each round.

    Attributes:
        inputs: inputs of the source mechanism.
        source: class of the source mechanism: one sample per round for all machines (`Fresh`), or one per machine.
    """

    inputs: Any
    source: type[Fresh] | type[PerMachine] = struct.field(pytree_node=False, default=Fresh)

    @property
    def name(self) -> str:
        return f"streamed {self._source.name}"

    @property
    def _source(self) -> Mechanism:
        return self.source(self.inputs)

    def draw(self, state, inputs, keys, dimension: int):
        return self._source.draw(state, inputs, keys, dimension)

    def aggregate(self, noise: Correlated):
        return noise.now

    def message_noise(self, memory, inputs, key, dimension: int):
        return self._source.message_noise(memory, inputs, key, dimension)

    def floats(self, dimension: int) -> int:
        return self._source.floats(dimension)
