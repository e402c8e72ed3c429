"""Predictions of a trained model, without its training data."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import prod
from typing import Any

import jax
import numpy as np

from fedprivjax.checks.refusal import Refusal
from fedprivjax.problem.linear_loss import LinearLoss
from fedprivjax.problem.losses import LOSSES
from fedprivjax.problem.models import LinearModel
from fedprivjax.problem.networks import NetworkLoss, scores
from fedprivjax.problem.problem import Problem
from fedprivjax.problem.program import typed_jit
from fedprivjax.problem.raw_rows import RawRows

BATCH = 1024  # rows of a network's forward pass


@dataclass(frozen=True, eq=False)
class Predictor:
    """Everything besides parameters that a prediction needs. It holds no training records.

    Attributes:
        loss: loss of the scores, which defines the prediction.
        shape: shape of one example's features.
        rows: preparation of raw rows.
        network: network that computes the scores, or None for a linear predictor.
        dtype: type of the features as the model sees them, an integer for tokens.
    """

    loss: LinearLoss
    shape: tuple[int, ...]
    rows: RawRows
    network: NetworkLoss | None = None
    dtype: Any = np.float32

    def predict(self, params: Any, rows: Any) -> np.ndarray:
        """Return the prediction of each row, see `SavedRun.predict`."""
        features = self._features(rows)
        scores = self._scores(params, features)
        if not np.isfinite(scores).all():
            _require_finite_rows(features)
            raise Refusal("params must be finite for predictions, and give finite scores. Check run.diverged")
        return self.rows.outcome(self.loss.prediction(scores))

    def as_mapping(self) -> dict[str, Any] | None:
        """Return a linear predictor as a mapping for JSON, or None for a network or a custom loss."""
        loss = self.loss.unsmoothed
        name = next((name for name, known in LOSSES.items() if known is type(loss)), None)
        if self.network is not None or name is None:
            return None
        return {"loss": name, "settings": asdict(loss), "shape": self.shape, "rows": self.rows.as_mapping()}

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any], rows: RawRows) -> "Predictor":
        """Return the predictor from the mapping of `as_mapping`, with its preparation of rows."""
        settings = {name: float(one) if isinstance(one, str) else one for name, one in mapping["settings"].items()}
        return cls(LOSSES[mapping["loss"]](**settings), tuple(mapping["shape"]), rows)

    def _features(self, rows: Any) -> np.ndarray:
        """Return the prepared features as the model sees them: images without the constant."""
        return self.rows.features(rows)[:, : prod(self.shape)].reshape(-1, *self.shape).astype(self.dtype, copy=False)

    def _scores(self, params: Any, features: np.ndarray) -> np.ndarray:
        if self.network is None:
            with np.errstate(over="ignore", invalid="ignore"):
                return features @ np.asarray(params).T
        return np.asarray(_network_scores(params, features, self.network))


def predictor_of(problem: Problem) -> Predictor | None:
    """Return a problem's predictor, or None if its model is a custom function."""
    of = problem.model if isinstance(problem.model, LinearModel) else problem.model.function
    if not isinstance(of, LinearModel | NetworkLoss):
        return None
    one = jax.eval_shape(problem.take, 0)[0]
    rows = problem.raw_rows or RawRows(prod(one.shape))
    return Predictor(of.loss, one.shape, rows, of if isinstance(of, NetworkLoss) else None, one.dtype)


@typed_jit(static_argnames="network")
def _network_scores(params: Any, features: Any, network: NetworkLoss) -> Any:
    """Scores of all rows, [rows, outputs] or [rows]."""
    return jax.lax.map(lambda row: scores(network.network, network.loss, params, row), features, batch_size=BATCH)


def _require_finite_rows(features: np.ndarray) -> None:
    """Raise Refusal if a feature is not finite. The message counts rows from 1."""
    bad = ~np.isfinite(features).reshape(len(features), -1).all(axis=1)
    if bad.any():
        raise Refusal(f"rows must be finite, got {np.count_nonzero(bad)} others (first: row {np.argmax(bad) + 1})")
