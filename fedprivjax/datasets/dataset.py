"""A data set: arrays, the public bounds on them, and what is known exactly about where they came from."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf, prod
from typing import Any

import numpy as np

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_at_least, require_positive
from fedprivjax.problem.losses import LinearLoss

NORM_SLACK = 1e-5  # relative: float32 features of norm equal to the bound must pass


class DataError(Refusal):
    """Data files that cannot be used; one line that says which file and why."""


class DataNotFound(DataError, OSError):
    """Data files found nowhere; one line that says what was looked for, and where."""


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """Labelled examples of a linear predictor; validated at construction, compared by identity.

    Attributes:
        features: float32 [examples, features].
        labels: [examples], int32 in 0 … classes − 1, or float32 for regression.
        test_features, test_labels: held-out examples of the same kind, or None.
        feature_bound: PUBLIC bound on the Euclidean norm of a feature vector, never a statistic of private data.
        classes: number of classes, or None for regression.
        name: what results call it.
        source: where it comes from, and under which licence.
        label_bound: public bound on `|label|` for regression; infinite where there is none.
        optimum: exact minimiser of the population risk where known, [features].
        population: exact excess risk `params -> scalar` in jax.numpy where known.
        machine_of: int32 [examples], each example's machine where the data comes already split, or None.
        noise_lipschitz: where set, the Lipschitz constant that the authors of an experiment calibrate its noise with
            for the usual loss. A statistic of private data, so what it calibrates is not private.
        loss: the usual loss, of which the optimum is one; None is what `from_dataset` takes for such labels.
        picture: height, width and channels of the picture that a feature vector begins with, row by row, where it is
            one; what follows it is a constant. Networks see the picture.
        class_names, machine_names: what classes and machines stand for, in their order; empty where that is not known.
        not_covered: what of it was computed from private data, in words; no guarantee covers it, and results repeat it.
        columns: the columns of the table that it was made of, by name, [examples] each, or None.
        target: name of the predicted column, or empty.

    Raises:
        ValueError: non-finite features, labels out of range, lengths that differ, a norm above the bound.

    >>> Dataset(np.eye(2, dtype=np.float32), np.array([0, 1], np.int32), None, None, 1.0, 2, "toy", "made up")
    Dataset('toy': 2 training and 0 test examples, 2 features, 2 classes)
    """

    features: np.ndarray
    labels: np.ndarray
    test_features: np.ndarray | None
    test_labels: np.ndarray | None
    feature_bound: float
    classes: int | None
    name: str
    source: str
    label_bound: float = inf
    optimum: np.ndarray | None = None
    population: Callable[[Any], Any] | None = None
    machine_of: np.ndarray | None = None
    noise_lipschitz: float | None = None
    loss: LinearLoss | None = None
    picture: tuple[int, int, int] | None = None
    class_names: tuple[str, ...] = ()
    machine_names: tuple[str, ...] = ()
    not_covered: tuple[str, ...] = ()
    columns: Mapping[str, np.ndarray] | None = None
    target: str = ""

    def __post_init__(self):
        require_positive("feature_bound", self.feature_bound)
        require_positive("label_bound", self.label_bound, infinite=True)
        require_positive("noise_lipschitz", self.noise_lipschitz, optional=True)
        if self.classes is not None:
            require_at_least("classes", self.classes, 2)
        if (self.test_features is None) != (self.test_labels is None):
            raise Refusal("test_features and test_labels must be given together, got one of them")
        self._check("", self.features, self.labels)
        if self.test_features is not None and self.test_labels is not None:
            self._check("test ", self.test_features, self.test_labels)
            _check_width(self.test_features, self.features.shape[1])
        if self.machine_of is not None:
            _check_machines(self.machine_of, self.features.shape[0])
        if self.picture is not None and not 0 < prod(self.picture) <= self.features.shape[1]:
            raise Refusal(f"picture must have {self.features.shape[1]} numbers at most, got {self.picture}")

    def __repr__(self):
        tested = 0 if self.test_labels is None else len(self.test_labels)
        kind = "regression" if self.classes is None else f"{self.classes} classes"
        examples, features = self.features.shape
        return f"Dataset('{self.name}': {examples} training and {tested} test examples, {features} features, {kind})"

    def inputs(self, features: np.ndarray) -> np.ndarray:
        """Features [..., features] as a network sees them: [..., height, width, channels] where they are pictures."""
        if self.picture is None:
            return features
        return features[..., : prod(self.picture)].reshape(*features.shape[:-1], *self.picture)

    def _check(self, prefix: str, features: np.ndarray, labels: np.ndarray) -> None:
        _check_arrays(prefix, features, labels, np.float32 if self.classes is None else np.int32)
        _check_norms(f"{prefix}features", features, self.feature_bound)
        low, high = (-self.label_bound, self.label_bound) if self.classes is None else (0, self.classes - 1)
        if self.classes is None:
            _check_finite(f"{prefix}labels", labels)
        wrong = labels[~((labels >= low) & (labels <= high))]
        if wrong.size:
            raise Refusal(f"{prefix}labels must lie in {low}..{high}, got {wrong[0]}")


def _check_arrays(prefix: str, features: np.ndarray, labels: np.ndarray, label_type) -> None:
    if features.ndim != 2 or features.dtype != np.float32 or not features.size:
        raise Refusal(
            f"{prefix}features must be float32 [examples, features] and not empty, "
            f"got {features.dtype} of shape {features.shape}"
        )
    if labels.shape != features.shape[:1]:
        raise Refusal(f"{prefix}labels must have shape {features.shape[:1]} to match features, got {labels.shape}")
    if labels.dtype != label_type:
        raise Refusal(f"{prefix}labels must be {np.dtype(label_type)}, got {labels.dtype}")


def _check_finite(name: str, array: np.ndarray) -> None:
    bad = ~np.isfinite(array)
    if bad.any():
        row = np.argmax(bad.reshape(len(array), -1).any(axis=1))
        raise Refusal(f"{name} must be finite, got {bad.sum()} non-finite values (first at row {row})")


def _check_norms(name: str, features: np.ndarray, bound: float) -> None:
    # float64: over many features a float32 sum would err by more than the slack
    squares = np.einsum("ij,ij->i", features, features, dtype=np.float64, casting="safe")
    if not np.isfinite(squares).all():
        _check_finite(name, features)
    norms = np.sqrt(squares)
    if norms.max() > bound * (1 + NORM_SLACK):
        row = int(np.argmax(norms))
        raise Refusal(f"{name} must have norm at most feature_bound ({bound:g}), got {norms[row]:g} (row {row})")


def _check_width(test_features: np.ndarray, features: int) -> None:
    if test_features.shape[1] != features:
        raise Refusal(f"test features must have {features} columns, got {test_features.shape[1]}")


def _check_machines(machine_of: np.ndarray, examples: int) -> None:
    if machine_of.shape != (examples,) or machine_of.dtype != np.int32:
        raise Refusal(
            f"machine_of must be int32 of shape ({examples},), got {machine_of.dtype} of shape {machine_of.shape}"
        )
    if machine_of.min() < 0:
        raise Refusal(f"machine_of must not be negative, got {machine_of.min()}")
