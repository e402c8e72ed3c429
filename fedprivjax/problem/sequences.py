"""Sequences of tokens: the loss of the scores of every token, and an LSTM.

A record is a whole sequence, padded to one length. Its loss is the mean over its tokens that have a label, so that a
clip treats short and long sequences equally. The test loss and accuracy are means over all such tokens of the test set.
"""

from dataclasses import dataclass
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_at_least
from fedprivjax.problem.checks import require_layers
from fedprivjax.problem.linear_loss import LinearLoss


@dataclass(frozen=True)
class TokenLoss(LinearLoss):
    """Mean loss over the tokens of a sequence that have a label, for labels [length] and scores [length, outputs].

    Attributes:
        of: loss of one token's scores. A negative label marks a token without one, such as padding.

    >>> from fedprivjax import Logistic
    >>> loss, labels = TokenLoss(Logistic()), jnp.array([1, 0, -1])
    >>> round(float(loss.value(jnp.array([2.0, 0.0, 9.0]), labels)), 3), float(loss.weight(labels))
    (0.41, 2.0)
    """

    of: LinearLoss

    @property
    def outputs(self) -> int:  # type: ignore[override]
        return self.of.outputs

    @property
    def classifies(self) -> bool:
        return self.of.classifies

    @property
    def least(self) -> float:  # type: ignore[override]
        return self.of.least

    def value(self, score, label):
        return self._mean(self.of.value, score, label)

    def correct(self, score, label):
        return self._mean(self.of.correct, score, label) if self.classifies else None

    def weight(self, label):
        """Return the number of tokens that have a label."""
        return jnp.sum(label >= 0).astype(jnp.float32)

    def label_range(self):
        return (-1, self.of.label_range()[1])

    def _mean(self, function: Any, score: Any, label: Any) -> Any:
        values = jax.vmap(function)(score, jnp.maximum(label, 0))
        return jnp.sum(jnp.where(label >= 0, values, 0.0)) / jnp.maximum(self.weight(label), 1.0)


class LSTM(nn.Module):
    """Recurrent network for sequences of tokens: an embedding, LSTM layers, and a dense layer.

    Attributes:
        hidden: widths of the LSTM layers.
        embedding: number of features into which a token is embedded.
        scores: number of scores, or None for the number that the loss needs.
        tokens: number of different tokens, including the padding token, which is the last token. None takes the
            dataset's number of tokens.
        each: True for scores of each token, False for scores of the whole sequence. `from_dataset` sets it to True if
            each token of the dataset has a label, otherwise to False.

    >>> from fedprivjax import datasets, from_dataset
    >>> data = datasets.from_sequences([[0, 1, 2], [2, 1]], tokens=3, length=3)
    >>> from_dataset(data, network=LSTM((4,), embedding=2)).dimension
    135
    """

    hidden: tuple[int, ...] = (64,)
    embedding: int = 8
    scores: int | None = None
    tokens: int | None = None
    each: bool | None = None

    def __post_init__(self):
        require_at_least("embedding", self.embedding, 1)
        require_layers("hidden", self.hidden)
        super().__post_init__()

    @nn.compact
    def __call__(self, inputs):
        values: Any = nn.Embed(self.tokens or 0, self.embedding)(inputs)
        for width in self.hidden:
            values = nn.RNN(nn.LSTMCell(width))(values)
        if not self.each:
            last = jnp.sum(inputs != (self.tokens or 0) - 1, axis=-1) - 1
            values = jnp.einsum("bl,blh->bh", jax.nn.one_hot(last, inputs.shape[-1]), values)
        return nn.Dense(self.scores or 1)(values)

    def reading(self, padding: int | None, *, each: bool) -> Self:
        """Return a copy of the network that is adapted to a dataset of sequences.

        Args:
            padding: index of the padding token, or None if the data are not sequences of tokens.
            each: True for scores of each token, False for scores of the whole sequence.
        """
        if padding is None:
            raise Refusal("an LSTM must have sequences of tokens, got features. datasets.from_sequences makes them")
        own = {"tokens": padding + 1 if self.tokens is None else self.tokens, "each": each}
        return self.clone(**own)


def counted_labels(prefix: str, tokens: np.ndarray, labels: np.ndarray, padding: int) -> np.ndarray:
    """Return the labels that count, of sequences. Raise Refusal for other tokens, and for sequences without a label."""
    if tokens.ndim != 2 or tokens.dtype != np.int32 or not tokens.size or labels.dtype != np.int32:
        raise Refusal(
            f"{prefix}sequences and labels must be int32 and not empty, got {tokens.dtype} and {labels.dtype}"
        )
    if labels.shape not in (tokens.shape, tokens.shape[:1]):
        wanted = f"{prefix}labels must have shape {tokens.shape[:1]}, or {tokens.shape} for a label per token"
        raise Refusal(f"{wanted}, got {labels.shape}")
    wrong = tokens[(tokens < 0) | (tokens > padding)]
    if wrong.size:
        raise Refusal(f"{prefix}tokens must lie in 0..{padding - 1}, got {wrong[0]}")
    bare = np.flatnonzero((labels.reshape(len(labels), -1) < 0).all(axis=1))
    if bare.size:
        raise Refusal(f"{prefix}sequences must have a token with a label each, got none in row {bare[0]}. Leave it out")
    return labels[labels >= 0]
