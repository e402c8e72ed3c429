"""What a data set refuses, and in which words."""

import re

import numpy as np
import pytest

from fedprivjax import Logistic, Refusal, datasets, from_dataset
from fedprivjax.datasets import Dataset, DatasetInfo, from_arrays

FEATURES = np.full((20, 3), 0.5, np.float32)
LABELS = np.arange(20, dtype=np.int32) % 10


def make(**changes):
    kept = {"feature_bound": 1.0, "classes": 10, "test_features": None, "test_labels": None}
    return Dataset(**{"features": FEATURES, "labels": LABELS, "name": "toy", "source": "here", **kept, **changes})


def put(array, index, value):
    changed = array.copy()
    changed[index] = value
    return changed


REFUSED = {
    "nan": (
        {"features": put(FEATURES, (slice(17, 20), 1), np.nan)},
        "features must be finite, got 3 non-finite values (first at row 17)",
    ),
    "infinite": (
        {"features": put(FEATURES, (4, 2), np.inf)},
        "features must be finite, got 1 non-finite values (first at row 4)",
    ),
    "label above": ({"labels": put(LABELS, 3, 12)}, "labels must lie in 0..9, got 12"),
    "label below": ({"labels": put(LABELS, 3, -1)}, "labels must lie in 0..9, got -1"),
    "lengths": ({"labels": LABELS[:19]}, "labels must have shape (20,) to match features, got (19,)"),
    "norm": (
        {"features": put(FEATURES, (7, 0), 3.0)},
        "features must have norm at most feature_bound (1), got 3.08221 (row 7)",
    ),
    "bound": ({"feature_bound": -1.0}, "feature_bound must be positive, got -1.0"),
    "classes": ({"classes": 1}, "classes must be at least 2, got 1"),
    "feature type": (
        {"features": FEATURES.astype(np.float64)},
        "features must be float32 [examples, features] and not empty, got float64 of shape (20, 3)",
    ),
    "no examples": (
        {"features": FEATURES[:0], "labels": LABELS[:0]},
        "features must be float32 [examples, features] and not empty, got float32 of shape (0, 3)",
    ),
    "label type": ({"labels": LABELS.astype(np.float32)}, "labels must be int32, got float32"),
    "picture": ({"picture": (2, 2, 1)}, "picture must have at most 3 numbers, got (2, 2, 1)"),
    "half a test set": (
        {"test_features": FEATURES},
        "test_features and test_labels must be given together, got one of them",
    ),
    "test label": (
        {"test_features": FEATURES, "test_labels": put(LABELS, 0, 10)},
        "test labels must lie in 0..9, got 10",
    ),
    "test norm": (
        {"test_features": 9 * FEATURES, "test_labels": LABELS},
        "test features must have norm at most feature_bound (1), got 7.79423 (row 0)",
    ),
    "test width": (
        {"test_features": FEATURES[:, :2].copy(), "test_labels": LABELS},
        "test features must have 3 columns, got 2",
    ),
    "regression label": (
        {"classes": None, "labels": put(LABELS.astype(np.float32), 5, np.nan)},
        "labels must be finite, got 1 non-finite values (first at row 5)",
    ),
    "label bound": (
        {"classes": None, "labels": LABELS.astype(np.float32), "label_bound": 8.5},
        "labels must lie in -8.5..8.5, got 9.0",
    ),
    "machines": (
        {"machine_of": np.zeros(19, np.int32)},
        "machine_of must be int32 of shape (20,), got int32 of shape (19,)",
    ),
    "negative machine": ({"machine_of": np.full(20, -2, np.int32)}, "machine_of must not be negative, got -2"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_is_refused_with_one_line(case):
    changes, message = REFUSED[case]
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        make(**changes)


def test_unchanged_is_accepted():
    data = make(test_features=FEATURES, test_labels=LABELS, machine_of=np.zeros(20, np.int32))
    assert repr(data) == "Dataset('toy': 20 training and 20 test examples, 3 features, 10 classes)"


def test_norm_slack_is_for_rounding_only():
    row = np.zeros((1, 4), np.float32)
    label = np.zeros(1, np.int32)
    make(features=put(row, (0, 0), 1 + 5e-6), labels=label)
    with pytest.raises(ValueError, match="norm at most"):
        make(features=put(row, (0, 0), 1 + 2e-5), labels=label)


def test_norm_of_many_features_is_not_lost_to_rounding():
    many = 2_000_000
    make(features=np.full((1, many), 0.1, np.float32), labels=np.zeros(1, np.int32), feature_bound=0.1 * many**0.5)


def test_arrays_are_converted_and_given_a_constant():
    data = from_arrays(np.eye(3), [0.0, 1.0, 1.0], np.eye(3)[:1], [1], feature_bound=2.0, classes=2, bias=True)
    assert data.features.dtype == np.float32
    assert data.labels.dtype == np.int32
    np.testing.assert_array_equal(data.features, np.c_[np.eye(3), np.ones(3)])
    np.testing.assert_array_equal(data.test_features, [[1, 0, 0, 1]])
    assert data.feature_bound == pytest.approx(5**0.5, rel=1e-12)


def test_arrays_without_classes_are_a_regression():
    data = from_arrays(np.zeros((2, 2, 2)), [0.5, 2], feature_bound=1.0, machine_of=[0, 1], name="mine")
    assert (data.name, data.classes, data.labels.dtype, data.features.shape) == ("mine", None, np.float32, (2, 4))
    assert data.test_labels is None
    assert data.machine_of.dtype == np.int32


@pytest.mark.parametrize("bias", [True, False])
def test_features_too_large_for_float32_are_refused(bias):
    with pytest.raises(ValueError, match=r"^features must be finite, got 1 non-finite values \(first at row 1\)$"):
        from_arrays([[0.0], [1e300]], [0, 1], feature_bound=1.0, classes=2, bias=bias)


@pytest.mark.parametrize("label", [0.5, np.nan, 2.0**31])
def test_class_labels_must_be_whole(label):
    with pytest.raises(ValueError, match=rf"^labels must be whole numbers below 2\^31, got {re.escape(str(label))}$"):
        from_arrays(np.eye(2), [0, label], feature_bound=1.0, classes=2)


def test_flat_features_are_refused():
    with pytest.raises(ValueError, match=r"^features must be \[examples, features\], got shape \(3,\)$"):
        from_arrays(np.ones(3), np.ones(3), feature_bound=1.0)


@pytest.mark.parametrize(
    "labels",
    [[0, 1, 2], [1, 2, 3], [-1, 1, 1], np.array([5, 5, 7], np.uint8), np.array([0, 1, 1], object)],
)
def test_integers_that_look_like_classes_are_not_taken_for_numbers(labels):
    found = ", ".join(map(str, np.unique(labels)))
    with pytest.raises(Refusal) as caught:
        from_arrays(np.eye(3), labels, feature_bound=1.0)
    assert str(caught.value) == (
        f"labels must be 0 … k − 1 with classes = k, or floats for regression, "
        f"got the {len(np.unique(labels))} integers {found}"
    )
    assert from_arrays(np.eye(3), np.asarray(labels, float), feature_bound=1.0).classes is None


@pytest.mark.parametrize(
    ("labels", "got"), [(["a", "b", "b"], "'a'"), ([1.0, None, 2.0], "None"), ([{}, [], 3], "a dict")]
)
@pytest.mark.parametrize("classes", [None, 2])
def test_labels_that_are_no_numbers_are_refused(labels, got, classes):
    with pytest.raises(Refusal, match=rf"^labels must be numbers, got {got}\. Number the classes"):
        from_arrays(np.eye(3), np.array(labels, None if got == "'a'" else object), feature_bound=1.0, classes=classes)


@pytest.mark.parametrize("labels", [[4, 4, 4], np.arange(30) + 1])
def test_other_integers_are_numbers(labels):
    assert from_arrays(np.eye(len(labels)), labels, feature_bound=1.0).labels.dtype == np.float32


def test_registry_helps_and_loads():
    assert all(isinstance(info, DatasetInfo) and "\n" not in info.help for info in datasets.DATASETS.values())
    data = datasets.load("least_squares", examples=30, features=4, machines=3)
    assert (data.name, data.features.shape) == ("least_squares", (30, 4))


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        (
            "mnsit",
            {},
            "unknown dataset 'mnsit', did you mean 'mnist'? (nearest: mnist, emnist)",
        ),
        (
            "/nowhere.csv",
            {"target": "y"},
            "dataset '/nowhere.csv' is the name of a table file that does not exist. Check the name",
        ),
        ("mnist", {"bais": True}, "dataset 'mnist' takes no options, got 'bais'"),
        (
            "logistic",
            {"exmples": 3},
            "unknown logistic option 'exmples', did you mean 'examples'? "
            "(known: examples, features, test_examples, optimum_norm, seed)",
        ),
        ("logistic", {"examples": 3}, "dataset 'logistic' needs the option features"),
        ("logistic", {}, "dataset 'logistic' needs the options examples, features"),
    ],
)
def test_unknown_names_and_options(name, options, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        datasets.load(name, **options)


def test_a_table_that_exists_is_no_dataset_of_the_package(tmp_path):
    file = tmp_path / "people.csv"
    file.write_text("x,y\n1,2\n")
    with pytest.raises(
        ValueError, match=r"^dataset must be one of the package, .*people\.csv'\. Use datasets\.read_table"
    ):
        datasets.load(str(file))


def test_an_optimum_is_valid_for_its_loss_only():
    data = datasets.load("logistic", examples=40, features=3)
    assert from_dataset(data).optimum is not None
    assert from_dataset(data, Logistic(score_bound=0.5)).optimum is None
    assert from_dataset(data, Logistic(score_bound=0.5)).excess is None


def test_images_keep_their_shape_and_are_seen_without_the_constant():
    pictures = np.arange(24.0).reshape(2, 3, 2, 2)
    for given, picture in ((pictures, (3, 2, 2)), (pictures[..., 0], (3, 2, 1)), (pictures[:, 0, 0], None)):
        data = from_arrays(given, [0, 1], feature_bound=100.0, classes=2, bias=True)
        assert data.picture == picture
        seen = given.reshape(2, *picture) if picture else data.features
        np.testing.assert_array_equal(data.inputs(data.features), seen)
