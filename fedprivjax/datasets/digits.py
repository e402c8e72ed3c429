"""The small handwritten digits shipped with scikit-learn: real data without a download."""

from math import sqrt

import numpy as np

from fedprivjax.datasets.arrays import with_constant
from fedprivjax.datasets.dataset import Dataset

TEST_SHARE = 0.2
SPLIT_SEED = 0


def load_digits() -> Dataset:
    """Return handwritten digits of 8×8 pixels in 0 … 16: 1437 training and 360 test examples, fixed stratified split.

    Features are pixels/16 and a constant 1, so their norm is at most √65 for every image.

    >>> load_digits()
    Dataset('digits': 1437 training and 360 test examples, 65 features, 10 classes)
    """
    # a slow import, needed only here
    from sklearn import datasets, model_selection

    images, labels = (np.asarray(array) for array in datasets.load_digits(return_X_y=True))
    features, labels = with_constant(images, 16.0), labels.astype(np.int32)
    split = model_selection.train_test_split(
        np.arange(labels.size), test_size=TEST_SHARE, random_state=SPLIT_SEED, stratify=labels
    )
    train, test = (np.asarray(part) for part in split)
    return Dataset(
        features=features[train],
        labels=labels[train],
        test_features=features[test],
        test_labels=labels[test],
        feature_bound=sqrt(features.shape[1]),
        classes=10,
        name="digits",
        picture=(8, 8, 1),
        source="Alpaydin and Kaynak 1998, Optical Recognition of Handwritten Digits, CC BY 4.0; scikit-learn's copy",
    )
