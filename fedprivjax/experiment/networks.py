"""`[problem]`'s models other than a linear predictor: each kind of network with its own keys."""

import inspect
from abc import abstractmethod
from typing import Annotated, Literal

from flax import linen as nn
from pydantic import Field

from fedprivjax.experiment.section import Settings, kinds
from fedprivjax.problem import networks

Width = Annotated[int, Field(ge=1)]


class Network(Settings):
    """A network with an activation, and the seed of its first parameters."""

    activation: Literal["tanh", "gelu", "silu", "softplus", "relu"] = "tanh"
    start_seed: int = Field(default=0, ge=0)

    @abstractmethod
    def make(self) -> nn.Module:
        """The module."""


class Mlp(Network):
    """Multilayer perceptron with layers of `hidden` widths."""

    kind: Literal["mlp"] = "mlp"
    hidden: list[Width] = [64]

    def make(self):
        return networks.MLP(tuple(self.hidden), activation=self.activation)


class Cnn(Network):
    """Convolutional network on pictures: 3×3 convolutions of `channels`, each halving it, then `hidden` ones."""

    kind: Literal["cnn"] = "cnn"
    channels: list[Width] = [8, 16]
    hidden: list[Width] = []

    def make(self):
        return networks.CNN(tuple(self.channels), tuple(self.hidden), activation=self.activation)


ModelSettings = Annotated[Mlp | Cnn, Field(discriminator="kind")]
MODELS = {kind: inspect.getdoc(model) or "" for kind, model in kinds(ModelSettings).items()}
