"""Synthetic populations with known optimum and mostly known excess risk: features uniform on the unit sphere.

There `E x = 0` and `E xxᵀ = I/p`, and ‖x‖ = 1 is an exact feature bound.
"""

from math import sqrt

import numpy as np

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_at_least, require_fraction, require_positive
from fedprivjax.datasets.dataset import SOURCE, Dataset, divided
from fedprivjax.datasets.populations import LeastAbsolutePopulation, LeastSquaresPopulation, LogisticPopulation
from fedprivjax.problem.devices import require_data_room
from fedprivjax.problem.losses import Absolute, GemanMcClure

Labelled = tuple[np.ndarray, np.ndarray]


def least_squares(
    examples: int,
    features: int,
    *,
    test_examples: int = 1000,
    noise: float = 0.1,
    optimum_norm: float = 1.0,
    heterogeneity: float = 0.0,
    machines: int | None = None,
    seed: int = 0,
) -> Dataset:
    """Return linear regression data with bounded label noise and a known optimum, for the loss `(⟨w, x⟩ − y)²/2`.

    Features x are uniform on the unit sphere. On machine i, the label is `y = ⟨w_i, x⟩ + z` with noise z. The optimum
    of machine i is `w_i = w* + heterogeneity·u_i`. The vectors u_i are sampled uniformly on the sphere and then
    centred. w* is the optimum of the machines' mean population risk F. For p features, F is

        F(w) = ½(‖w − w*‖²/p + mean_i ‖w_i − w*‖²/p + noise²).

    Args:
        examples: number of training examples, a multiple of `machines`.
        test_examples: number of test examples, or 0 for no test set.
        features: number of features p, at least 2.
        noise: standard deviation of z, which is uniform in [−√3·noise, √3·noise].
        optimum_norm: norm ‖w*‖ of the optimum, whose direction is random.
        heterogeneity: scale of the distances ‖w_i − w*‖. If it is not 0, `machines` must be given.
        machines: number of machines among which the examples are divided in order, or None for a dataset without a
            partition.
        seed: seed of the data.

    Returns:
        A `Dataset` whose field `population` is the exact excess risk.

    >>> data = least_squares(100, 5, machines=4, heterogeneity=0.5)
    >>> float(data.population(data.optimum)), np.bincount(data.machine_of).tolist()
    (0.0, [25, 25, 25, 25])
    """
    optimum, rng, train, test = _optimum(examples, features, test_examples, optimum_norm, seed)
    for name, value in (("heterogeneity", heterogeneity), ("noise", noise)):
        if not 0 <= value < np.inf:
            raise Refusal(f"{name} must be finite and not negative, got {value}")
    machine_of = divided(examples, machines, heterogeneity)
    directions = _sphere(machines or 1, features, rng)
    owned = optimum + heterogeneity * (directions - directions.mean(axis=0))
    # a test example has a uniformly random machine, so the population is the same
    tested = test.integers(len(owned), size=test_examples)
    spread = float(np.mean(np.sum((owned - optimum) ** 2, axis=1)))
    return _dataset(
        "least_squares",
        _regression(owned[np.zeros(examples, int) if machine_of is None else machine_of], noise, examples, train),
        _regression(owned[tested], noise, test_examples, test),
        optimum=optimum,
        population=LeastSquaresPopulation(optimum.astype(np.float32), (spread / features + noise**2) / 2),
        label_bound=(float(np.linalg.norm(owned, axis=1).max()) + sqrt(3) * noise) * (1 + 1e-6),
        machine_of=machine_of,
    )


def logistic(
    examples: int, features: int, *, test_examples: int = 1000, optimum_norm: float = 5.0, seed: int = 0
) -> Dataset:
    """Return logistic regression data with labels 0 and 1 and a known optimum w* of the population risk.

    Features x are uniform on the unit sphere. Label 1 has probability `1/(1 + e^(−⟨w*, x⟩))`.

    Args:
        examples: number of training examples.
        test_examples: number of test examples, or 0 for no test set.
        features: number of features p, at least 2.
        optimum_norm: norm ‖w*‖ of the optimum, whose direction is random. A larger norm makes the classes more
            separable.
        seed: seed of the data.

    Returns:
        A `Dataset` whose field `population` is a function that computes the exact excess risk of parameters, for the
        loss `Logistic()`.

    >>> data = logistic(100, 5)
    >>> data.classes, float(data.population(data.optimum))
    (2, 0.0)
    """
    optimum, _, train, test = _optimum(examples, features, test_examples, optimum_norm, seed)
    return _dataset(
        "logistic",
        _labelled(optimum, examples, train),
        _labelled(optimum, test_examples, test),
        optimum=optimum,
        population=LogisticPopulation(optimum),
        classes=2,
    )


def least_absolute(
    examples: int,
    features: int,
    *,
    test_examples: int = 1000,
    noise: float = 0.2,
    optimum_norm: float = 1.0,
    machines: int | None = None,
    seed: int = 0,
) -> Dataset:
    """Return median regression data with a known optimum w*, for the loss `|⟨w, x⟩ − y|`.

    Features x are uniform on the unit sphere. The label is `y = ⟨w*, x⟩ + z` with z uniform in [−noise, noise]. On a
    ball of diameter at most `noise` that contains w*, the population risk is strongly convex with modulus
    `1/(noise·p)`.

    Args:
        examples: number of training examples, a multiple of `machines`.
        test_examples: number of test examples, or 0 for no test set.
        features: number of features p, at least 2.
        noise: largest absolute label noise z, positive.
        optimum_norm: norm ‖w*‖ of the optimum, whose direction is random.
        machines: number of machines among which the examples are divided in order, or None for a dataset without a
            partition.
        seed: seed of the data.

    Returns:
        A `Dataset` with the loss `Absolute()`. Its field `population` is the exact excess risk.

    >>> data = least_absolute(100, 5)
    >>> data.loss, float(data.population(data.optimum))
    (Absolute(), 0.0)
    """
    optimum, _, train, test = _optimum(examples, features, test_examples, optimum_norm, seed)
    machine_of = divided(examples, machines)
    require_positive("noise", noise)
    return _dataset(
        "least_absolute",
        _regression(optimum, noise / sqrt(3), examples, train),
        _regression(optimum, noise / sqrt(3), test_examples, test),
        optimum=optimum,
        population=LeastAbsolutePopulation(optimum, noise),
        label_bound=(optimum_norm + noise) * (1 + 1e-6),
        machine_of=machine_of,
        loss=Absolute(),
    )


def robust_regression(
    examples: int,
    features: int,
    *,
    test_examples: int = 1000,
    noise: float = 0.1,
    outliers: float = 0.2,
    outlier_size: float = 5.0,
    optimum_norm: float = 1.0,
    machines: int | None = None,
    seed: int = 0,
) -> Dataset:
    """Return linear regression data with outliers and a known optimum w*, for the robust loss `GemanMcClure(1.0)`.

    Features x are uniform on the unit sphere. The label is `y = ⟨w*, x⟩ + z`. The noise z is uniform in [−√3·noise,
    √3·noise]. For outliers, z is uniform in [−outlier_size, outlier_size]. The loss is not convex and is flat far from
    w*, so the gradient norm is the metric to use.

    Args:
        examples: number of training examples, a multiple of `machines`.
        test_examples: number of test examples, or 0 for no test set.
        features: number of features p, at least 2.
        noise: standard deviation of z, which is uniform in [−√3·noise, √3·noise].
        outliers: expected fraction of examples whose label is an outlier.
        outlier_size: largest absolute label noise of an outlier.
        optimum_norm: norm ‖w*‖ of the optimum, whose direction is random.
        machines: number of machines among which the examples are divided in order, or None for a dataset without a
            partition.
        seed: seed of the data.

    Returns:
        A `Dataset` whose loss is `GemanMcClure(1.0)`.

    >>> data = robust_regression(100, 5, machines=4)
    >>> data.loss, data.label_bound > 5
    (GemanMcClure(scale=1.0), True)
    """
    optimum, _, train, test = _optimum(examples, features, test_examples, optimum_norm, seed)
    machine_of = divided(examples, machines)
    require_fraction("outliers", outliers)
    require_positive("noise", noise)
    require_positive("outlier_size", outlier_size)

    def drawn(rows: int, rng: np.random.Generator) -> Labelled:
        spread = np.where(rng.random(rows) < outliers, outlier_size / sqrt(3), noise)
        return _regression(optimum, spread, rows, rng)

    return _dataset(
        "robust_regression",
        drawn(examples, train),
        drawn(test_examples, test),
        optimum=optimum,
        label_bound=(optimum_norm + max(outlier_size, sqrt(3) * noise)) * (1 + 1e-6),
        machine_of=machine_of,
        loss=GemanMcClure(1.0),
    )


def _optimum(
    examples: int, features: int, test_examples: int, norm: float, seed: int
) -> tuple[np.ndarray, *tuple[np.random.Generator, ...]]:
    """Return an optimum of this norm in a random direction, and the streams of the population and of both samples.

    Raises:
        Refusal: if a size is too small or too large, or the norm is not positive.
    """
    require_at_least("examples", examples, 1)
    require_at_least("features", features, 2)
    require_at_least("test_examples", test_examples, 0)
    require_data_room(examples + test_examples, features)
    require_positive("optimum_norm", norm)
    rng, train, test = np.random.default_rng(seed).spawn(3)
    return norm * _sphere(1, features, rng)[0], rng, train, test


def _sphere(rows: int, features: int, rng: np.random.Generator) -> np.ndarray:
    normal = rng.standard_normal((rows, features))
    return normal / np.linalg.norm(normal, axis=1, keepdims=True)


def _regression(true: np.ndarray, noise: float | np.ndarray, rows: int, rng: np.random.Generator) -> Labelled:
    """Sample features and labels, for one vector of true parameters or one per row, and likewise one noise scale."""
    x = _sphere(rows, true.shape[-1], rng)
    z = sqrt(3) * noise * rng.uniform(-1, 1, rows)
    return x.astype(np.float32), (np.sum(true * x, axis=1) + z).astype(np.float32)


def _labelled(optimum: np.ndarray, rows: int, rng: np.random.Generator) -> Labelled:
    x = _sphere(rows, optimum.size, rng)
    chance = 1 / (1 + np.exp(-x @ optimum))
    return x.astype(np.float32), (rng.random(rows) < chance).astype(np.int32)


def _dataset(
    name: str, train: Labelled, test: Labelled, *, optimum: np.ndarray, classes: int | None = None, **known
) -> Dataset:
    return Dataset(
        *train,
        *(test if test[1].size else (None, None)),
        feature_bound=1.0,
        classes=classes,
        name=name,
        source=SOURCE,
        optimum=optimum.astype(np.float32),
        **known,
    )
