"""Synthetic classes: on the unit sphere, computed on demand, and stored ones with image-like statistics."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from math import inf, sqrt
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy

from fedprivjax.checks.values import require_at_least, require_between, require_fraction, require_positive
from fedprivjax.datasets.dataset import SOURCE, Dataset, divided
from fedprivjax.problem.devices import require_data_room
from fedprivjax.problem.random_keys import random_key

DECAY, HEAD = 1.5, 6  # parameters of the spectrum (j + HEAD)^−DECAY, similar to MNIST's within classes
CENTRE = 0.4  # fraction of the mean squared norm in the mean of all examples, such as images' brightness
TYPICAL = 0.5  # root mean square norm divided by its bound
SPREAD = 5  # number of directions per class in which classes differ
ROWS = 4096  # examples generated at once


@dataclass(frozen=True, eq=False)
class Stream:
    """A dataset whose training examples are computed on demand instead of stored.

    Attributes:
        generate: pure function `(key, machine) -> (features, label)` that samples one example of a machine, with shapes
            [features] and [].
        test_features, test_labels: stored held-out examples of the same distribution.
        feature_bound: public bound on the L2 norm of a feature vector, which holds by construction.
        classes: number of classes.
        seed: seed of the examples.
        name, source, label_bound, loss, class_names, machine_names, not_covered, target, raw_rows: the same as the
            fields of `Dataset` with these names.
        machine_of: None, since there are no stored examples that machines could own.
    """

    generate: Callable[[Any, Any], Any]
    test_features: np.ndarray
    test_labels: np.ndarray
    feature_bound: float
    classes: int
    seed: int
    name: str = "stream"
    source: str = SOURCE
    label_bound: float = inf
    machine_of: None = None
    loss: None = None
    class_names = machine_names = not_covered = ()
    target = ""
    raw_rows = None

    def inputs(self, features: np.ndarray) -> np.ndarray:
        """Return the features unchanged: the form in which a network receives them."""
        return features


def stream(
    features: int = 100,
    classes: int = 10,
    *,
    spread: float = 1.0,
    heterogeneity: float = 0.0,
    test_examples: int = 1000,
    seed: int = 0,
) -> Stream:
    """Return a `Stream` of points on the unit sphere, in classes around random centres.

    Training examples are computed on demand.

    An example of class y is `x = v/‖v‖` with `v = c_y + spread·u`. The centre c_y is a random unit vector. The entries
    of u are independent and uniform around 0, and the mean of ‖u‖² is 1.

    Args:
        features: number of features.
        classes: number of classes.
        spread: scale of the noise u relative to the centres.
        heterogeneity: probability with which a training example gets the main class of its machine. Otherwise, its
            class is uniformly random. Machine i has the main class i mod `classes`.
        test_examples: number of test examples.
        seed: seed of the centres and of the examples.

    >>> stream(5, 3).test_features.shape
    (1000, 5)
    """
    for name, value, least in (("features", features, 1), ("classes", classes, 2), ("test_examples", test_examples, 1)):
        require_at_least(name, value, least)
    require_at_least("seed", seed, 0)
    require_data_room(classes + test_examples, features)
    require_positive("spread", spread)
    require_fraction("heterogeneity", heterogeneity)
    centres = np.random.default_rng(seed).normal(size=(classes, features))
    centres = (centres / np.linalg.norm(centres, axis=1, keepdims=True)).astype(np.float32)
    generate = Classes(centres, float(spread), float(heterogeneity))
    everyone = Classes(centres, float(spread), 0.0)
    keys = jax.random.split(random_key(np.uint32(seed) ^ np.uint32(1 << 31)), test_examples)
    tested, labels = jax.jit(jax.vmap(lambda key: everyone(key, 0)))(keys)
    return Stream(generate, np.asarray(tested), np.asarray(labels), 1.0 + 1e-5, classes, seed)


@dataclass(frozen=True, eq=False)
class Classes:
    """Generator of the examples of `stream`."""

    centres: np.ndarray
    spread: float
    heterogeneity: float

    def __call__(self, key, machine):
        of_label, of_own, of_point = jax.random.split(key, 3)
        classes, features = self.centres.shape
        label = jax.random.randint(of_label, (), 0, classes)
        label = jnp.where(jax.random.bernoulli(of_own, self.heterogeneity), machine % classes, label)
        scale = self.spread * np.sqrt(3 / features)
        with jax.threefry_partitionable(False):  # half the random bits, as in noise
            u = jax.random.uniform(of_point, (features,), minval=-scale, maxval=scale)
        x = jnp.asarray(self.centres)[label] + u
        return x / jnp.linalg.norm(x), label


def clusters(
    examples: int,
    features: int = 784,
    classes: int = 10,
    *,
    accuracy: float = 0.94,
    label_noise: float = 0.0,
    feature_bound: float = 1.0,
    heterogeneity: float = 0.0,
    machines: int | None = None,
    test_examples: int = 10_000,
    trial: int = 0,
    seed: int = 0,
) -> Dataset:
    """Return synthetic classes with the frequency spectrum of images: one Gaussian component per class.

    An example of class y, out of C classes, is

        x = Q(c·e_0 + Λ^½·(s·u_y + z)),    z ~ N(0, I).

    Q is the orthonormal cosine transform, and Λ is diagonal with entries proportional to (j + 6)^(−1.5) at frequency j.
    The unit vector e_0 is the lowest frequency, and the constant c is the mean brightness. The orthonormal vectors u_1,
    …, u_C are random, within the 5C frequencies after the lowest. The scale s is chosen for the given `accuracy`. The
    best classifier is linear, without a bias.

    With the defaults, classification is about as hard as on the pixels of MNIST.

    Args:
        examples: number of training examples, a multiple of `machines`.
        test_examples: number of test examples, or 0 for no test set.
        features: number of features, more than classes.
        classes: number of classes.
        accuracy: accuracy of the best linear classifier on labels without noise, above 1/classes.
        label_noise: probability that a training label is replaced by a random class. Test labels have no noise.
        feature_bound: public bound on the L2 norm of a feature vector. The examples are scaled such that their root
            mean square norm is half the bound. A few vectors have a norm above the bound, and are scaled down to it.
        heterogeneity: probability with which a training example gets the main class of its machine. Otherwise, its
            class is uniformly random. Machine i has the main class i mod `classes`.
        machines: number of machines among which the examples are divided in order, or None for a dataset without a
            partition.
        trial: index of the sampled dataset.
        seed: seed of the distribution (the directions of the classes) and of its samples.

    Raises:
        Refusal: if a number is out of range.

    >>> clusters(100, 20, classes=3, test_examples=50)
    Dataset('clusters': 100 training and 50 test examples, 20 features, 3 classes)
    """
    require_at_least("classes", classes, 2)
    for name, value, least in (("examples", examples, 1), ("features", features, classes + 1)):
        require_at_least(name, value, least)
    for name, value in (("test_examples", test_examples), ("trial", trial), ("seed", seed)):
        require_at_least(name, value, 0)
    require_data_room(examples + test_examples + classes, features)
    require_between("accuracy", accuracy, 1 / classes, 1)
    for name, value in (("label_noise", label_noise), ("heterogeneity", heterogeneity)):
        require_fraction(name, value)
    machine_of = divided(examples, machines, heterogeneity)
    require_positive("feature_bound", feature_bound)
    means, deviations = _population(features, classes, accuracy, feature_bound, seed)
    rng, test, flips = np.random.default_rng((seed, trial)).spawn(3)
    labels = rng.integers(classes, size=examples, dtype=np.int32)
    if machine_of is not None:
        labels = np.where(rng.random(examples) < heterogeneity, machine_of % classes, labels).astype(np.int32)
    tested = test.integers(classes, size=test_examples, dtype=np.int32)
    noisy = np.where(flips.random(examples) < label_noise, flips.integers(classes, size=examples), labels)
    return Dataset(
        features=_drawn(means, deviations, labels, feature_bound, rng),
        labels=noisy.astype(np.int32),
        test_features=_drawn(means, deviations, tested, feature_bound, test) if test_examples else None,
        test_labels=tested if test_examples else None,
        feature_bound=float(feature_bound),
        classes=classes,
        name="clusters",
        source=SOURCE,
        machine_of=machine_of,
    )


def _population(features: int, classes: int, accuracy: float, bound: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the means of classes, [classes, features], and the standard deviations, [features], both over cosines."""
    deviations = (np.arange(features) + HEAD) ** (-DECAY / 2)
    used = min(SPREAD * classes, features - 1)
    directions = np.linalg.qr(np.random.default_rng(seed).standard_normal((used, classes)))[0].T
    means = np.zeros((classes, features))
    means[:, 1 : used + 1] = separation(classes, accuracy) * directions * deviations[1 : used + 1]
    squares = np.sum(deviations**2) + np.mean(np.sum(means**2, axis=1))
    means[:, 0] = sqrt(CENTRE / (1 - CENTRE) * squares)
    scale = TYPICAL * bound * sqrt((1 - CENTRE) / squares)
    return (scale * means).astype(np.float32), (scale * deviations).astype(np.float32)


def _drawn(means: np.ndarray, deviations: np.ndarray, labels: np.ndarray, bound: float, rng: np.random.Generator):
    """Sample the features of these labels, float32, shape [examples, features]."""
    found = np.empty((labels.size, deviations.size), np.float32)
    for start in range(0, labels.size, ROWS):
        rows = found[start : start + ROWS]
        rng.standard_normal(dtype=np.float32, out=rows)
        rows *= deviations
        rows += means[labels[start : start + ROWS]]
        norms = np.sqrt(np.einsum("ij,ij->i", rows, rows))  # the transform preserves norms
        rows *= np.minimum(1, bound / norms)[:, None]
        rows[:] = scipy.fft.idct(rows, norm="ortho", overwrite_x=True)
    return found


@cache
def separation(classes: int, accuracy: float) -> float:
    """Return the s for which the nearest of C orthonormal means s·u_k in white noise is correct with this probability.

    One coordinate of s·u_y + z is N(s, 1) and the C − 1 others N(0, 1): `accuracy = ∫ φ(t − s)·Φ(t)^(C−1) dt`.

    >>> round(separation(2, 0.94), 3)
    2.199
    """
    nodes = np.linspace(-9, 9, 721)
    density = np.exp(-(nodes**2) / 2) / np.sum(np.exp(-(nodes**2) / 2))

    def missing(s: float) -> float:
        return float(density @ scipy.special.ndtr(nodes + s) ** (classes - 1)) - accuracy

    found: Any = scipy.optimize.bisect(missing, 0.0, 20.0)
    return float(found)
