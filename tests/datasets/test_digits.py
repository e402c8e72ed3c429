"""The embedded digits: all of them, once, scaled and split as promised."""

import importlib
from importlib.machinery import ModuleSpec

import numpy as np
import pytest
import sklearn.datasets
from sklearn.model_selection import train_test_split

from fedprivjax.datasets import DataError, DataNotFound, load_digits

module = importlib.import_module("fedprivjax.datasets.mnist")


@pytest.fixture(scope="module")
def digits():
    return load_digits()


def test_shapes_and_scale(digits):
    assert digits.features.shape == (1437, 65)
    assert digits.test_features.shape == (360, 65)
    assert digits.classes == 10
    assert digits.feature_bound == pytest.approx(65**0.5, rel=1e-12)
    for features in (digits.features, digits.test_features):
        assert (features[:, -1] == 1).all()
        assert (features.min(), features.max()) == (0, 1)


def test_examples_and_their_order_are_those_of_scikit_learns_split(digits):
    images, labels = sklearn.datasets.load_digits(return_X_y=True)
    train, test = train_test_split(np.arange(len(labels)), test_size=0.2, random_state=0, stratify=labels)
    for rows, features, found in (
        (train, digits.features, digits.labels),
        (test, digits.test_features, digits.test_labels),
    ):
        np.testing.assert_array_equal(features[:, :-1], (images[rows] / 16).astype(np.float32))
        np.testing.assert_array_equal(found, labels[rows])


def test_file_of_scikit_learn_must_exist_and_be_complete(monkeypatch, tmp_path):
    spec = ModuleSpec("sklearn", None)
    spec.submodule_search_locations = [str(tmp_path)]
    for found in (None, spec):
        monkeypatch.setattr(module, "find_spec", lambda name, found=found: found)
        with pytest.raises(DataNotFound, match=r"cannot find digits.csv.gz of scikit-learn. Install"):
            load_digits()
    path = tmp_path / "datasets" / "data" / "digits.csv.gz"
    path.parent.mkdir(parents=True)
    path.write_text("0,0,5\n")
    with pytest.raises(DataError, match=r"digits.csv.gz is damaged and must be replaced: its payload"):
        load_digits()


def test_split_is_stratified_and_fixed(digits):
    train, test = np.bincount(digits.labels), np.bincount(digits.test_labels)
    np.testing.assert_allclose(test, (train + test) * 360 / 1797, atol=1)
    np.testing.assert_array_equal(load_digits().features, digits.features)
    assert digits.test_labels[:10].tolist() == [7, 6, 3, 7, 7, 3, 2, 8, 9, 3]
