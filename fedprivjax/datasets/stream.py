"""Classes on the unit sphere with examples computed on demand, for federations of any size without memory."""

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedprivjax.checks.values import require_at_least, require_fraction, require_positive
from fedprivjax.plan.size_limits import require_data_room
from fedprivjax.problem.random_keys import random_key


@dataclass(frozen=True, eq=False)
class Stream:
    """A dataset whose training examples are generated instead of stored.

    Attributes:
        generate: pure function `(key, machine) -> (features [features], label [])`.
        test_features, test_labels: held-out examples of the same population.
        feature_bound: public bound on the L2 norm of a feature vector, which holds by construction.
        classes: number of classes.
        seed: seed of the examples.
        name, source, label_bound, loss, class_names, machine_names, not_covered, target, raw_rows: as in `Dataset`.
        machine_of: None, since every machine generates unlimited examples.
    """

    generate: Callable[[Any, Any], Any]
    test_features: np.ndarray
    test_labels: np.ndarray
    feature_bound: float
    classes: int
    seed: int
    name: str = "stream"
    source: str = "synthetic, drawn from a fixed seed"
    label_bound: float = inf
    machine_of: None = None
    loss: None = None
    class_names = machine_names = not_covered = ()
    target = ""
    raw_rows = None

    def inputs(self, features: np.ndarray) -> np.ndarray:
        """Return features as a network sees them: unchanged."""
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
    """Return a stream of `x = (c_y + spread·u)/‖c_y + spread·u‖` with unit centres c and independent uniform u.

    Args:
        features: number of features.
        classes: number of classes.
        spread: root mean square norm of u.
        heterogeneity: probability that an example is of its machine's main class, machine mod classes.
        test_examples: number of test examples, of uniform class.
        seed: seed of the data.

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
