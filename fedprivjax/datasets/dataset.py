"""A dataset: arrays, public bounds on them, and known facts about their population. User-supplied arrays as one."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import hypot, inf, prod, sqrt
from typing import Any

import numpy as np

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import called, known_keywords, require_at_least, require_positive, require_printable
from fedprivjax.problem.client_tests import checked_owners
from fedprivjax.problem.linear_loss import LinearLoss
from fedprivjax.problem.raw_rows import RawRows
from fedprivjax.problem.sequences import counted_labels

NORM_SLACK = 1e-5  # relative: float32 features of norm equal to the bound must pass
SOURCE = "synthetic, drawn from a fixed seed"
MOST_CLASSES = 20  # largest number of distinct integers that are taken for classes by default


class DataError(Refusal):
    """Exception for data files that cannot be used. Its message is one line with the file and the reason."""


class DataNotFound(DataError, OSError):
    """Exception for missing data files. Its message is one line with the file and the searched places."""


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """Labelled training and test examples, with public bounds on their size.

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
        population: function `params -> scalar` in jax.numpy, the exact excess risk, or None if unknown.
        machine_of: index of the machine that owns each example, int32, shape [examples], or None if the data are not
            partitioned.
        test_machine_of: index of the machine to which each held-out example belongs, int32, shape [tests], or None if
            unknown.
        noise_lipschitz: Lipschitz constant of the default loss in a published experiment, or None. It is a statistic of
            private data, so noise calibrated with it is not private.
        loss: default loss. None stands for the loss that `from_dataset` chooses by the labels. `optimum` and
            `population` belong to the default loss.
        picture: height, width and channels of the image that a feature vector holds row by row, or None. A constant
            feature may follow the image.
        class_names, machine_names: names of classes and machines, or empty if unknown.
        not_covered: texts that name parts of the dataset which were computed from private data, such as a mean. No
            privacy guarantee covers these parts.
        machines_from: text that describes the list of machines if the list was read from the data. The text is empty if
            the list is public. A guarantee covers the list only if all neighbouring datasets have the same machines.
            Otherwise, results list this text with `not_covered`.
        columns: columns, by name, of the table from which the dataset was made. Each column has shape [examples]. None
            if the dataset was not made from a table.
        target: name of the predicted column, or empty.
        raw_rows: conversion of raw rows to features. None if new rows are given as features.
        padding: number that fills the ends of short sequences. None for data that are not sequences. The tokens of
            sequences are 0 … padding − 1. For sequences, features are int32, shape [examples, length]. Labels may have
            the same shape: the class of each token, or −1 for a token without a class.

    Raises:
        ValueError: if features are not finite, labels are out of range, lengths differ, or the norm of a feature vector
            exceeds `feature_bound`.

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
    test_machine_of: np.ndarray | None = None
    padding: int | None = None

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
        if self.test_machine_of is not None:
            if self.machine_of is None or self.test_labels is None:
                lacking = "machine_of" if self.machine_of is None else "a test set"
                raise Refusal(f"test_machine_of must go with machine_of and a test set, got no {lacking}")
            checked_owners(self.test_machine_of, len(self.test_labels))
        if self.picture is not None and not 0 < prod(self.picture) <= self.features.shape[1]:
            raise Refusal(f"picture must have at most {self.features.shape[1]} numbers, got {self.picture}")

    def __repr__(self):
        tested = 0 if self.test_labels is None else len(self.test_labels)
        kind = "regression" if self.classes is None else f"{self.classes} classes"
        examples, features = self.features.shape
        return f"Dataset('{self.name}': {examples} training and {tested} test examples, {features} features, {kind})"

    def inputs(self, features: np.ndarray) -> np.ndarray:
        """Return features in the form that a network receives.

        Images become [..., height, width, channels], without a constant feature that may follow them. Other features
        are unchanged.

        Args:
            features: shape [..., features].
        """
        if self.picture is None:
            return features
        return features[..., : prod(self.picture)].reshape(*features.shape[:-1], *self.picture)

    def _check(self, prefix: str, features: np.ndarray, labels: np.ndarray) -> None:
        if self.padding is None:
            _check_arrays(prefix, features, labels, np.float32 if self.classes is None else np.int32)
            _check_norms(f"{prefix}features", features, self.feature_bound)
        else:
            labels = counted_labels(prefix, features, labels, self.padding)
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


@known_keywords
def from_arrays(
    features,
    labels,
    test_features=None,
    test_labels=None,
    *,
    feature_bound: float,
    classes: int | None = None,
    bias: bool = False,
    label_bound: float = inf,
    machine_of=None,
    test_machine_of=None,
    name: str = "arrays",
) -> Dataset:
    """Return user-supplied arrays as a dataset, converted to float32 and int32.

    Args:
        features: features, shape [examples, features], or images, shape [examples, height, width] or [examples, height,
            width, channels]. Images are flattened, but networks see them in their original shape.
        labels: class indices or numbers, shape [examples].
        test_features, test_labels: held-out examples, or None.
        feature_bound: public bound B on the L2 norm of a feature vector, without the appended constant.
        classes: number of classes, with labels 0 … classes − 1, or None for regression.
        bias: True to append a constant feature 1. The dataset's `feature_bound` is then √(B² + 1).
        label_bound: public bound on `|label|` for regression.
        machine_of: index of the machine that owns each example, int, shape [examples], or None if the data are not
            partitioned.
        test_machine_of: index of the machine to which each held-out example belongs, int, shape [tests]. None if the
            machines are unknown.
        name: name in results.

    Raises:
        ValueError: if numbers are not finite, class labels are not integers or out of range, lengths differ, or a norm
            exceeds its bound. If `classes` is None, integer labels with few different values also raise the error. For
            regression, pass labels as floats.

    >>> from_arrays(np.eye(3), [0, 1, 0], feature_bound=1.0, classes=2, bias=True).features[1].tolist()
    [0.0, 1.0, 0.0, 1.0]
    """
    require_positive("feature_bound", feature_bound)
    prepared = _features(features, bias)
    return Dataset(
        features=prepared,
        labels=_labels("labels", labels, classes),
        test_features=None if test_features is None else _features(test_features, bias),
        test_labels=None if test_labels is None else _labels("test labels", test_labels, classes),
        feature_bound=hypot(feature_bound, 1.0) if bias else float(feature_bound),
        classes=classes,
        name=name,
        source="arrays given by the user",
        label_bound=label_bound,
        machine_of=None if machine_of is None else _integers("machine_of", machine_of),
        test_machine_of=None if test_machine_of is None else _integers("test_machine_of", test_machine_of),
        picture=picture_of(np.shape(features)[1:]),
        raw_rows=RawRows(prepared.shape[1], bias),
    )


def with_constant(features: np.ndarray, scale: float = 1.0) -> np.ndarray:
    """Return `features / scale` with a last column of ones, float32, shape [examples, features + 1].

    >>> with_constant(np.array([[0, 255]], np.uint8), 255.0).tolist()
    [[0.0, 1.0, 1.0]]
    """
    flat = features.reshape(len(features), -1)
    out = np.ones((flat.shape[0], flat.shape[1] + 1), np.float32)
    with np.errstate(over="ignore"):  # values too large for float32 become infinite, which `Dataset` rejects
        np.divide(flat, scale, out=out[:, :-1], dtype=np.float32, casting="same_kind")
    return out


def of_images(
    name: str,
    arrays: Any,
    picture: tuple[int, int, int],
    source: str,
    *,
    classes: int = 10,
    class_names: tuple[str, ...] = (),
) -> Dataset:
    """Return a dataset of images: training images with pixels in 0 … 255, their labels, then those of the test set."""
    images, labels, test_images, test_labels = arrays
    features = with_constant(images, 255.0)
    return Dataset(
        features=features,
        labels=labels.astype(np.int32),
        test_features=with_constant(test_images, 255.0),
        test_labels=test_labels.astype(np.int32),
        feature_bound=sqrt(features.shape[1]),
        classes=len(class_names) or classes,
        name=name,
        picture=picture,
        class_names=class_names,
        source=source,
    )


def picture_of(shape: tuple[int, ...]) -> tuple[int, int, int] | None:
    """Return the height, width and channels of an example of this shape, or None if it is not an image."""
    return (shape[0], shape[1], shape[2] if len(shape) == 3 else 1) if len(shape) in (2, 3) else None


def _features(features, bias: bool) -> np.ndarray:
    try:
        array = np.asarray(features)
    except ValueError:
        raise Refusal("features must be [examples, features], got rows of different lengths") from None
    if array.ndim < 2:
        raise Refusal(f"features must be [examples, features], got shape {array.shape}")
    if not len(array):
        raise Refusal(f"features must have at least one example, got shape {array.shape}")
    if bias:
        return with_constant(array)
    with np.errstate(over="ignore"):
        return array.reshape(len(array), -1).astype(np.float32)


def _labels(name: str, labels, classes: int | None) -> np.ndarray:
    array = np.asarray(labels)
    if array.dtype.kind in "OUS":  # texts, or objects such as those of a column of pandas
        for each in array.ravel().tolist():
            if not isinstance(each, bool | int | float | np.number | np.bool_):
                raise Refusal(f"{name} must be numbers, got {called(each)}. Number the classes 0 … k − 1")
        array = np.array(array.tolist())
    if classes is not None:
        return _integers(name, array)
    if array.dtype.kind in "iub":
        _require_no_classes(name, np.unique(array))
    with np.errstate(over="ignore"):  # too large for float32, which `Dataset` rejects
        return array.astype(np.float32)


def _require_no_classes(name: str, found: np.ndarray) -> None:
    """Raise Refusal if integers or truth values look like classes."""
    if 1 < found.size <= MOST_CLASSES:
        kind = "truth values" if found.dtype.kind == "b" else "integers"
        raise Refusal(
            f"{name} must be 0 … k − 1 with classes = k, or floats for regression, "
            f"got the {found.size} {kind} {', '.join(map(str, found[:5]))}{', …' if found.size > 5 else ''}"
        )


def _integers(name: str, values) -> np.ndarray:
    array = np.asarray(values)
    whole = np.isfinite(array) & (array == np.floor(array)) & (np.abs(array) < 2**31)
    if not whole.all():
        raise Refusal(f"{name} must be whole numbers below 2^31, got {array[~whole].flat[0]}")
    return array.astype(np.int32)


def divided(examples: int, machines: int | None, heterogeneity: float = 0.0) -> np.ndarray | None:
    """Return the machine of each example, int32 [examples], if examples are divided in order, or None without machines.

    Raises:
        Refusal: if machines would have unequal numbers of examples, or are needed for heterogeneity.

    >>> divided(4, 2).tolist()
    [0, 0, 1, 1]
    """
    if machines is None:
        if heterogeneity:
            raise Refusal(f"machines must be given if heterogeneity is positive ({heterogeneity}), got None")
        return None
    require_at_least("machines", machines, 1)
    if examples % machines:
        raise Refusal(f"examples must be a multiple of machines ({machines}), got {examples}")
    return np.repeat(np.arange(machines, dtype=np.int32), examples // machines)
