"""A dataset: arrays, public bounds on them, and known facts about their population."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf, prod
from typing import Any

import numpy as np

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_at_least, require_positive, require_printable
from fedprivjax.problem.losses import LinearLoss
from fedprivjax.problem.raw_rows import RawRows

NORM_SLACK = 1e-5  # relative: float32 features of norm equal to the bound must pass


class DataError(Refusal):
    """Raised if data files cannot be used, with the file and the reason in one line."""


class DataNotFound(DataError, OSError):
    """Raised if data files are not found, with the file and the searched places in one line."""


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """Labelled examples with public bounds. Validated at construction and compared by identity.

    Attributes:
        features: features, float32, shape [examples, features].
        labels: labels, shape [examples], int32 in 0 … classes − 1, or float32 for regression.
        test_features, test_labels: held-out examples of the same kind, or None.
        feature_bound: PUBLIC bound on the L2 norm of a feature vector, never a statistic of private data.
        classes: number of classes, or None for regression.
        name: name in results.
        source: origin and licence.
        label_bound: public bound on `|label|` for regression, or infinity.
        optimum: exact minimiser of the population risk, shape [features], or None if unknown.
        population: exact excess risk `params -> scalar` in jax.numpy, or None if unknown.
        machine_of: each example's machine, int32, shape [examples], or None if the data are not partitioned.
        noise_lipschitz: Lipschitz constant of the default loss with which the authors of an experiment calibrate its
            noise, or None. It is a statistic of private data, so noise calibrated with it is not private.
        loss: default loss, which `optimum` minimises. None is the default of `from_dataset` for such labels.
        picture: height, width and channels of the image at the start of a feature vector, row by row, or None. A
            constant follows it. Networks see the image.
        class_names, machine_names: names of classes and machines, in their order, or empty if unknown.
        not_covered: texts on parts that were computed from private data. No guarantee covers them, and results repeat
            the texts.
        machines_from: text on machines that are values found in the data, or empty if they are public. Guarantees cover
            it only if neighbouring datasets have the same machines.
        columns: columns of the table from which the dataset was made, by name, shape [examples] each, or None.
        target: name of the predicted column, or empty.
        raw_rows: preparation of further raw rows, for predictions, or None if they are given as `features`.

    Raises:
        ValueError: if features are not finite, labels are out of range, lengths differ, or a norm exceeds the bound.

    >>> Dataset(np.eye(2, dtype=np.float32), np.array([0, 1], np.int32), None, None, 1.0, 2, "toy", "synthetic")
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
    raw_rows: RawRows | None = None
    machines_from: str = ""

    def __post_init__(self):
        require_printable("name", self.name, breaks=False)
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
            if self.test_features.shape[1] != self.features.shape[1]:
                wanted = f"test features must have {self.features.shape[1]} columns"
                raise Refusal(f"{wanted}, got {self.test_features.shape[1]}")
        if self.machine_of is not None:
            _check_machines(self.machine_of, self.features.shape[0])
        if self.picture is not None and not 0 < prod(self.picture) <= self.features.shape[1]:
            raise Refusal(f"picture must have at most {self.features.shape[1]} numbers, got {self.picture}")

    def __repr__(self):
        tested = 0 if self.test_labels is None else len(self.test_labels)
        kind = "regression" if self.classes is None else f"{self.classes} classes"
        examples, features = self.features.shape
        return f"Dataset('{self.name}': {examples} training and {tested} test examples, {features} features, {kind})"

    def inputs(self, features: np.ndarray) -> np.ndarray:
        """Return features [..., features] as a network sees them: [..., height, width, channels] if they are images."""
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
    # float64, since a float32 sum over many features has an error above the slack
    squares = np.einsum("ij,ij->i", features, features, dtype=np.float64, casting="safe")
    if not np.isfinite(squares).all():
        _check_finite(name, features)
    norms = np.sqrt(squares)
    if norms.max() > bound * (1 + NORM_SLACK):
        row = int(np.argmax(norms))
        raise Refusal(f"{name} must have norm at most feature_bound ({bound:g}), got {norms[row]:g} (row {row})")


def _check_machines(machine_of: np.ndarray, examples: int) -> None:
    if machine_of.shape != (examples,) or machine_of.dtype != np.int32:
        raise Refusal(
            f"machine_of must be int32 of shape ({examples},), got {machine_of.dtype} of shape {machine_of.shape}"
        )
    if machine_of.min() < 0:
        raise Refusal(f"machine_of must not be negative, got {machine_of.min()}")
