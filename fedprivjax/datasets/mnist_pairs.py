"""MNIST as in the experiments of Lowy & Razaviyayn 2023: even against odd, each machine one pair of digits."""

from functools import lru_cache
from itertools import product

import numpy as np

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_at_least, require_choice
from fedprivjax.datasets.dataset import Dataset
from fedprivjax.datasets.mnist import load_mnist

PAIRS = tuple(product(range(0, 10, 2), range(1, 10, 2)))  # each machine's even and odd digit
SHARES = 5  # machines that use a digit
PIXELS = 784
DRAWS = ("bootstrap", "disjoint")
LIPSCHITZ = ("public", "as run")
SPLIT_SEED = 1
BLOCK = 5000  # images in float64 at a time


def mnist_pairs(
    similarity: float = 0.0,
    *,
    components: int = 50,
    per_digit: int = 774,
    draw: str = "bootstrap",
    trial: int = 0,
    lipschitz: str = "public",
) -> Dataset:
    """Even (label 1) against odd (label 0) digits on 25 machines, one per pair of an even and an odd digit.

    Features are the first principal components of pixels/255, centred on the mean of all 60,000 training images and
    without a constant. A machine draws `2·per_digit` records, of which `round((1 − p)·2·per_digit)` are of its own
    pair, p the similarity; a fixed fifth of them, rounded up, is its test set. With 774 per digit: n = 1238 and 310.

    * `bootstrap`, as the authors' code runs: a digit's pool is its first `per_digit` images; records are drawn with
      replacement from the pools of the own pair, the rest from all ten. So images recur within a machine and across
      machines, and at p = 0 about 55% of a machine's test records are also among its training records.
    * `disjoint`, as the paper's text says: each trial draws `5·per_digit` images of each digit from the whole training
      set and shares them out among the 5 machines that use it; each machine then keeps a random `round((1 − p)·…)` of
      its records, and what all give up is shuffled and shared out. No image is used twice. The sizes are the same,
      and `per_digit` is at most ⌊5421/5⌋ = 1084.

    The components and their mean are computed from the training images, which no guarantee covers.

    Args:
        similarity: fraction p of images from all digits, in [0, 1]; the others are of the machine's own pair.
        components: number of features, at most 784.
        per_digit: images of each digit that a machine draws from.
        draw: "bootstrap" or "disjoint".
        trial: seed of the draw.
        lipschitz: "public" calibrates noise with `feature_bound`; "as run" fills `noise_lipschitz` with twice the
            largest norm among the training records of machine 1, as the authors' code does.

    Returns:
        Features [25·n, components] in the order of `machine_of`, test features [25·tested, components]. Two images in
        [0, 1]^784 are at most 28 apart and a projection lengthens nothing: `feature_bound` is 28.

    Raises:
        ValueError: an option out of range.
        DataError: as `load_mnist`.

    Source: Lowy & Razaviyayn 2023, experiments on MNIST, and the authors' code.
    """
    _check(similarity, components, trial)
    require_choice("draw", draw, DRAWS)
    require_choice("lipschitz", lipschitz, LIPSCHITZ)
    require_at_least("per_digit", per_digit, 1)
    projected, digits = _projected(components)
    by_digit = [np.flatnonzero(digits == digit) for digit in range(10)]
    _check_per_digit(per_digit, min(map(len, by_digit)) // (SHARES if draw == "disjoint" else 1), draw)
    private = round((1 - similarity) * 2 * per_digit)
    deal = _disjoint if draw == "disjoint" else _bootstrap
    train, test = _split(deal(by_digit, per_digit, private, np.random.default_rng(trial)))
    return Dataset(
        features=projected[train.ravel()],
        labels=_even(digits[train.ravel()]),
        test_features=projected[test.ravel()],
        test_labels=_even(digits[test.ravel()]),
        feature_bound=float(np.sqrt(PIXELS)),
        classes=2,
        name="mnist_pairs",
        source="LeCun, Cortes and Burges, The MNIST database of handwritten digits, CC BY-SA 3.0",
        machine_of=np.repeat(np.arange(len(PAIRS), dtype=np.int32), train.shape[1]),
        noise_lipschitz=2 * _largest_norm(projected[train[1]]) if lipschitz == "as run" else None,
    )


def principal_axes(images: np.ndarray, components: int) -> tuple[np.ndarray, np.ndarray]:
    """The mean of flat images and the directions of largest variance about it, each with its largest entry positive.

    Args:
        images: [examples, pixels].

    Returns:
        The mean [pixels] and orthonormal directions [pixels, components], variance falling, in float64.

    >>> mean, axes = principal_axes(np.array([[0.0, 1.0], [4.0, 1.0]]), 1)
    >>> mean.tolist(), np.abs(axes).tolist()
    ([2.0, 1.0], [[1.0], [0.0]])
    """
    mean = images.mean(axis=0, dtype=np.float64)
    scatter = np.zeros((images.shape[1], images.shape[1]))
    for start in range(0, len(images), BLOCK):
        block = images[start : start + BLOCK] - mean
        scatter += block.T @ block
    axes = np.linalg.eigh(scatter)[1][:, ::-1][:, :components]
    largest = np.argmax(np.abs(axes), axis=0)
    return mean, axes * np.sign(axes[largest, np.arange(components)])


@lru_cache(maxsize=2)  # seconds, and a process loads many trials
def _projected(components: int) -> tuple[np.ndarray, np.ndarray]:
    """All training images on the first components, float32 [60000, components], and their digits."""
    mnist = load_mnist()
    images = mnist.features[:, :-1]
    mean, axes = principal_axes(images, components)
    projected = np.empty((len(images), components), np.float32)
    for start in range(0, len(images), BLOCK):
        projected[start : start + BLOCK] = (images[start : start + BLOCK] - mean) @ axes
    return projected, mnist.labels


def _bootstrap(by_digit: list[np.ndarray], per_digit: int, private: int, rng: np.random.Generator) -> np.ndarray:
    """Which images each machine draws: [machines, 2·per_digit], those of its own pair first."""
    pools = np.stack([images[:per_digit] for images in by_digit])
    rest = 2 * per_digit - private
    draws = [(rng.choice(pools[list(pair)].ravel(), private), rng.choice(pools.ravel(), rest)) for pair in PAIRS]
    return np.stack([np.concatenate(draw) for draw in draws])


def _disjoint(by_digit: list[np.ndarray], per_digit: int, private: int, rng: np.random.Generator) -> np.ndarray:
    """As `_bootstrap`, no image twice."""
    shares = [rng.permutation(images)[: SHARES * per_digit].reshape(SHARES, per_digit) for images in by_digit]
    # machine (e, o) takes the share of e that is numbered by o, and the share of o that is numbered by e
    pairs = [np.concatenate([shares[even][odd // 2], shares[odd][even // 2]]) for even, odd in PAIRS]
    records = rng.permuted(np.stack(pairs), axis=1)
    records[:, private:] = rng.permutation(records[:, private:].ravel()).reshape(len(PAIRS), -1)
    return records


def _split(records: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Four fifths and one fifth of every machine's records, at the same places for all machines and trials."""
    # a slow import that nothing else needs
    from sklearn.model_selection import train_test_split

    places = np.arange(records.shape[1])
    train, test = (np.asarray(part) for part in train_test_split(places, test_size=0.2, random_state=SPLIT_SEED))
    return records[:, train], records[:, test]


def _even(digits: np.ndarray) -> np.ndarray:
    return (digits % 2 == 0).astype(np.int32)


def _largest_norm(features: np.ndarray) -> float:
    return float(np.linalg.norm(features.astype(np.float64), axis=1).max())


def _check(similarity: float, components: int, trial: int) -> None:
    if not isinstance(similarity, int | float | np.number) or not 0 <= similarity <= 1:
        raise Refusal(f"similarity must be from 0 to 1, got {similarity}")
    require_at_least("components", components, 1)
    if components > PIXELS:
        raise Refusal(f"components must be at most {PIXELS}, got {components}")
    require_at_least("trial", trial, 0)


def _check_per_digit(per_digit: int, most: int, draw: str) -> None:
    if per_digit > most:
        raise Refusal(f"per_digit must be at most {most} for draw '{draw}', got {per_digit}")
