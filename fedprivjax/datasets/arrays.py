"""User-supplied arrays as a dataset."""

from math import hypot, inf

import numpy as np

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import called, require_positive
from fedprivjax.datasets.dataset import Dataset
from fedprivjax.problem.raw_rows import RawRows

MOST_CLASSES = 20  # largest number of distinct integers that are taken for classes by default


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
    name: str = "arrays",
) -> Dataset:
    """Return a dataset of user-supplied arrays, converted to float32 and int32.

    Args:
        features: features, shape [examples, features], or images, shape [examples, height, width] or [examples, height,
            width, channels]. Images are flattened, and networks see them in their shape.
        labels: labels, shape [examples].
        test_features, test_labels: held-out examples, or None.
        feature_bound: public bound B on the L2 norm of a feature vector, without the appended constant.
        classes: number of classes, with labels 0 … classes − 1, or None for regression.
        bias: whether to append a constant feature 1. The bound becomes √(B² + 1).
        label_bound: public bound on `|label|` for regression.
        machine_of: each example's machine if the data are already partitioned, int, shape [examples].

    Raises:
        ValueError: as in `Dataset`, if class labels are not integers, and if without `classes` the labels are a few
            different integers. Pass these as floats for regression.

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


def picture_of(shape: tuple[int, ...]) -> tuple[int, int, int] | None:
    """Return the height, width and channels of an example of this shape, or None if it is not an image."""
    return (shape[0], shape[1], shape[2] if len(shape) == 3 else 1) if len(shape) in (2, 3) else None


def _features(features, bias: bool) -> np.ndarray:
    array = np.asarray(features)
    if array.ndim < 2:
        raise Refusal(f"features must be [examples, features], got shape {array.shape}")
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
