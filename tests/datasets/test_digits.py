"""The embedded digits: all of them, once, scaled and split as promised."""

import numpy as np
import pytest
import sklearn.datasets

from fedprivjax.datasets import load_digits


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


def test_every_image_is_used_once_with_its_label(digits):
    images, labels = sklearn.datasets.load_digits(return_X_y=True)
    expected = np.c_[images, labels].astype(int)
    features = np.concatenate([digits.features, digits.test_features])[:, :-1] * 16
    found = np.c_[features, np.concatenate([digits.labels, digits.test_labels])].astype(int)
    np.testing.assert_array_equal(found[np.lexsort(found.T)], expected[np.lexsort(expected.T)])


def test_split_is_stratified_and_fixed(digits):
    train, test = np.bincount(digits.labels), np.bincount(digits.test_labels)
    np.testing.assert_allclose(test, (train + test) * 360 / 1797, atol=1)
    np.testing.assert_array_equal(load_digits().features, digits.features)
    assert digits.test_labels[:10].tolist() == [7, 6, 3, 7, 7, 3, 2, 8, 9, 3]
