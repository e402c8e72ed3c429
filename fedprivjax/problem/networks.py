"""Networks as models: a flax module, linen or nnx, computes the scores for a `LinearLoss`.

A module receives a batch of examples, [1, features] or [1, height, width, channels], and returns their scores,
[1, classes] (one score for binary classification and regression). Its gradients are dense. A record's gradient is
clipped as a whole, over all parameters together. G and L of a network are unknown. G can be declared.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.errors import InvalidRngError

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import called, require_at_least, require_choice
from fedprivjax.problem.checks import require_alike, require_layers
from fedprivjax.problem.devices import platform
from fedprivjax.problem.linear_loss import LinearLoss
from fedprivjax.problem.random_keys import random_key, require_jax_settings
from fedprivjax.problem.sequences import LSTM, TokenLoss

QUICKER = {"xla_backend_optimization_level": 1}  # compiles initialisers in a quarter of the time, with equal results
Activation = Literal["tanh", "gelu", "silu", "softplus", "relu"]
ACTIVATIONS: dict[Activation, Callable[[Any], Any]] = {
    "tanh": jnp.tanh,
    "gelu": nn.gelu,
    "silu": nn.silu,
    "softplus": nn.softplus,
    "relu": nn.relu,
}


class MLP(nn.Module):
    """Multilayer perceptron: dense layers with an activation between them. Images are flattened.

    Attributes:
        hidden: widths of the hidden layers.
        scores: number of scores, or None for the number that the loss needs.
        activation: function after each hidden layer. With all activations except "relu", the loss is smooth in the
            parameters.

    >>> from fedprivjax import datasets, from_dataset
    >>> from_dataset(datasets.load("digits"), network=MLP((16,))).dimension
    1210
    """

    hidden: tuple[int, ...] = (64,)
    scores: int | None = None
    activation: Activation = "tanh"

    def __post_init__(self):
        require_layers("hidden", self.hidden)
        require_choice("activation", self.activation, ACTIVATIONS)
        super().__post_init__()

    @nn.compact
    def __call__(self, inputs):
        values = inputs.reshape(inputs.shape[0], -1)
        for width in self.hidden:
            values = ACTIVATIONS[self.activation](nn.Dense(width)(values))
        return nn.Dense(self.scores or 1)(values)


class CNN(nn.Module):
    """Convolutional network for images: 3×3 convolutions with 2×2 average pooling, then dense layers.

    The activation and then the pooling follow each convolution.

    Attributes:
        channels: number of output channels of each convolution. Each pooling halves height and width.
        hidden: widths of the hidden dense layers.
        scores: number of scores, or None for the number that the loss needs.
        activation: function after each convolution and each hidden layer.

    >>> from fedprivjax import datasets, from_dataset
    >>> from_dataset(datasets.load("digits"), network=CNN((4, 8))).dimension
    666
    """

    channels: tuple[int, ...] = (8, 16)
    hidden: tuple[int, ...] = ()
    scores: int | None = None
    activation: Activation = "tanh"

    def __post_init__(self):
        require_layers("channels", self.channels)
        require_layers("hidden", self.hidden)
        require_choice("activation", self.activation, ACTIVATIONS)
        super().__post_init__()

    @nn.compact
    def __call__(self, inputs):
        _require_pictures(inputs.shape[1:], len(self.channels))
        values = inputs
        for width in self.channels:
            values = _halved(ACTIVATIONS[self.activation](nn.Dense(width)(_patches(values))))
        return MLP(self.hidden, self.scores, self.activation)(values)


NETWORKS = {"mlp": MLP, "cnn": CNN, "lstm": LSTM}  # by name in experiment files


@dataclass(frozen=True)
class SplitModule:
    """An nnx module without its parameters, with the interface of a linen module. Equal modules share one program.

    Attributes:
        name: name of the module's class.
        graph: the graph definition from `flax.nnx.split`.
        start: initial parameters of the module, nested dicts of arrays.
    """

    name: str
    graph: Any = field(repr=False)
    start: Any = field(repr=False, compare=False)

    def apply(self, variables, inputs):
        """Return the scores of a batch. Changes that the module makes to its state are discarded."""
        from flax import nnx

        return nnx.merge(self.graph, nnx.State(variables["params"]))(inputs)


@dataclass(frozen=True, repr=False)
class NetworkLoss:
    """Loss of one example (features, label) under a network, for `general_problem`.

    Attributes:
        network: a flax linen module with fixed settings, or an nnx module's graph.
        loss: loss of the network's scores.
    """

    network: nn.Module | SplitModule
    loss: LinearLoss

    @property
    def least(self) -> float:
        """Lower bound on the loss."""
        return self.loss.least

    def __call__(self, params, example):
        return self.loss.value(scores(self.network, self.loss, params, example[0]), example[1])

    @property
    def weight(self) -> Callable[[Any], Any] | None:
        """Weight of an example in means: its number of tokens with a label, or None if a label is of the whole."""
        loss = self.loss
        return (lambda example: loss.weight(example[1])) if isinstance(loss, TokenLoss) else None

    def __repr__(self):
        return f"{self.loss} of {' '.join(repr(self.network).replace('# attributes', '').split())}"


@dataclass(frozen=True, repr=False)
class NetworkCorrect:
    """Correctness of a network's prediction for one example, or None for regression."""

    of: NetworkLoss

    def __call__(self, params, example):
        network, loss = self.of.network, self.of.loss
        return loss.correct(scores(network, loss, params, example[0]), example[1])

    def __repr__(self):
        return "its predictions"


def scores(network: nn.Module | SplitModule, loss: LinearLoss, params, features):
    """Return the scores of one example in the loss's shape, [outputs] or [], after [length] for each token."""
    found: Any = network.apply({"params": params}, features[None])
    places = features.shape[:1] if isinstance(loss, TokenLoss) else ()
    wanted = (1, *places, loss.outputs or 1)
    if found.shape != wanted and not (found.shape == (1, *places) and not loss.outputs):
        raise Refusal(f"network must give scores of shape {list(wanted)} for one example, got {list(found.shape)}")
    return found[0] if loss.outputs else found.reshape(places)


def ready_network(network: Any, loss: LinearLoss) -> nn.Module | SplitModule:
    """Return the network with the number of scores that the loss needs.

    Raises:
        Refusal: if it is not a flax module, has unhashable settings, or the loss is smoothed.

    >>> from fedprivjax.problem.losses import Softmax
    >>> ready_network(MLP((4,)), Softmax(3)).scores
    3
    """
    name = type(network).__name__
    if is_nnx(network):
        network = split_module(network)
    elif not isinstance(network, nn.Module):
        shown = called(network) if isinstance(network, type) else name
        raise Refusal(f"network must be a flax.linen.Module or a flax.nnx.Module, got {shown}")
    try:
        hash(network)
    except TypeError:
        raise Refusal(f"network {name} must have hashable settings. Use tuples instead of lists") from None
    if loss.unsmoothed is not loss:
        raise Refusal(f"loss must not be smoothed for a network, got {loss}")
    if isinstance(network, MLP | CNN | LSTM) and network.scores is None:
        network = network.clone(scores=loss.outputs or 1)
    return network


def is_nnx(network: Any) -> bool:
    """Return True if `network` is an nnx module. flax.nnx is not imported unless the caller has imported it.

    >>> is_nnx("mlp")
    False
    """
    nnx: Any = sys.modules.get("flax.nnx")
    return nnx is not None and isinstance(network, nnx.Module)


def split_module(module: Any) -> SplitModule:
    """Split an nnx module into graph and parameters.

    Raises:
        Refusal: if the module has state besides parameters. Running means would be shared between records, and the
            random state of dropout would be the same in every round.

    >>> from flax import nnx
    >>> split_module(nnx.Linear(4, 2, rngs=nnx.Rngs(0))).start["kernel"].shape
    (4, 2)
    """
    from flax import nnx

    graph, params, rest = nnx.split(module, nnx.Param, ...)
    is_variable = {"is_leaf": lambda leaf: isinstance(leaf, nnx.Variable)}
    others = sorted({type(leaf).__name__ for leaf in jax.tree.leaves(rest, **is_variable)})
    if others:
        raise Refusal(f"network must have parameters only, since records must not share state, got {others}")
    return SplitModule(type(module).__name__, graph, nnx.to_pure_dict(params))


def first_parameters(
    network: nn.Module | SplitModule, shape: tuple[int, ...], seed: int, start: Any = None, dtype: Any = jnp.float32
) -> Any:
    """Return a network's initial parameters: given ones, those of an nnx module, or a sample of linen's initialisers.

    Args:
        shape: shape of one example's features.
        seed: seed of the initialisers.
        start: given parameters, or None.
        dtype: type of the features.

    Raises:
        Refusal: if the network has state besides parameters (such as running means over records), needs random numbers,
            does not fit the given parameters, or is an nnx module with parameters and a seed is given.
    """
    require_at_least("start_seed", seed, 0)
    require_jax_settings()
    if isinstance(network, SplitModule) and seed and start is None:
        raise Refusal(f"start_seed must be left out for an nnx module, which has parameters already, got {seed}")

    def drawn(key):
        if isinstance(network, SplitModule):
            return {"params": network.start}
        return network.init(key, jnp.zeros((1, *shape), dtype))

    variables: Any = jax.eval_shape(drawn, random_key(0))
    if set(variables) - {"params"}:
        raise Refusal(f"network must have parameters only, since records must not share state, got {list(variables)}")
    if "params" not in variables:
        raise Refusal(f"network must have parameters, got none in {type(network).__name__}")
    _require_no_randomness(network, variables, jnp.zeros((1, *shape), dtype))
    if start is not None:
        require_alike("start", start, variables["params"], "the network's parameters")
        return start
    options: Any = QUICKER if platform() == "cpu" else None
    return jax.jit(drawn, compiler_options=options)(random_key(seed))["params"]


def _require_no_randomness(network: nn.Module | SplitModule, variables: Any, inputs: Any) -> None:
    try:
        jax.eval_shape(lambda params: network.apply(params, inputs), variables)
    except InvalidRngError as error:
        reason = str(error).partition("(")[0].strip()
        raise Refusal(f"network must not use random numbers (such as dropout) when it is called: {reason}") from None


def _patches(pictures):
    """Return the 3×3 neighbourhood of each pixel, zero beyond the border: [batch, height, width, 9·channels]."""
    height, width = pictures.shape[1:3]
    padded = jnp.pad(pictures, ((0, 0), (1, 1), (1, 1), (0, 0)))
    shifted = [padded[:, i : i + height, j : j + width] for i in range(3) for j in range(3)]
    return jnp.concatenate(shifted, axis=-1)


def _halved(pictures):
    """Return the means of 2×2 pixels. An odd last row or column is dropped."""
    batch, height, width, channels = pictures.shape
    even = pictures[:, : height // 2 * 2, : width // 2 * 2]
    return even.reshape(batch, height // 2, 2, width // 2, 2, channels).mean((2, 4))


def _require_pictures(shape: tuple[int, ...], halvings: int) -> None:
    if len(shape) != 3:
        raise Refusal(f"a CNN must have images [height, width, channels], got features of shape {list(shape)}")
    if min(shape[:2]) < 2**halvings:
        most = min(shape[:2]).bit_length() - 1
        raise Refusal(
            f"channels must have at most {most} entries for images of {shape[0]}×{shape[1]}, since each halves them, "
            f"got {halvings}"
        )
