"""Handwritten digits: the small ones of scikit-learn, MNIST, and MNIST as pairs of digits.

MNIST comes from a user's folder, the cache, or a download, and is verified by checksums. Its pairs are those of the
experiments of Lowy & Razaviyayn 2023: even against odd digits, one pair of digits per machine.
"""

import struct
from functools import lru_cache
from importlib.util import find_spec
from itertools import product
from math import ceil, sqrt
from pathlib import Path

import numpy as np

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_at_least, require_choice
from fedprivjax.datasets.data_file import DataFile
from fedprivjax.datasets.dataset import DataNotFound, Dataset, of_images, with_constant

TEST_SHARE = 0.2
DIGITS = "digits.csv.gz"  # pixels and label of an image in each row
DIGITS_SPLIT = Path(__file__).with_name("digits_split.npy")  # indices of training examples, then of test examples
DIGITS_TRAINED = 1437
MIRRORS = (
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
)
# SHA-256 of the uncompressed files, since the gzip wrappers differ between mirrors
SUMS = {
    "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}
DIGITS_SUM = "6ebb3d2fee246a4e99363262ddf8a00a3c41bee6014c373ed9d9216ba7f651b8"
PAIRS = tuple(product(range(0, 10, 2), range(1, 10, 2)))  # each machine's even and odd digit
SHARES = 5  # number of machines that use a digit
PIXELS = 784
DRAWS = ("bootstrap", "disjoint")
LIPSCHITZ = ("public", "as run")
SPLIT_SEED = 1  # of the split of the pairs
BLOCK = 5000  # images converted to float64 at once


def load_digits() -> Dataset:
    """Return handwritten digits of 8×8 pixels: 1437 training and 360 test examples, in a fixed stratified split.

    Features are pixels/16, in 0 … 1, and a constant 1, so their norm is at most √65 for every image. The images are
    read from a file of the installed scikit-learn, without importing scikit-learn. scikit-learn's `train_test_split`
    gives the same split with `test_size=0.2`, `random_state=0` and `stratify=labels`.

    Raises:
        DataNotFound: if scikit-learn or its file is not found.
        DataError: if the file cannot be read, is truncated, or its content has another SHA-256 digest than expected.

    >>> load_digits()
    Dataset('digits': 1437 training and 360 test examples, 65 features, 10 classes)
    """
    rows = np.loadtxt(_digits().decode().splitlines(), np.uint8, delimiter=",")
    features, labels = with_constant(rows[:, :-1], 16.0), rows[:, -1].astype(np.int32)
    train, test = np.split(np.load(DIGITS_SPLIT), [DIGITS_TRAINED])
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


def load_mnist() -> Dataset:
    """Load handwritten digits of 28×28 pixels: 60,000 training and 10,000 test examples.

    Features are pixels/255 and a constant 1, so their norm is at most √785 for every image. The IDX files, gzipped or
    not, are read from `$FEDPRIVJAX_DATA/mnist` or from the download folder (`data_file.cache()`). If they are in
    neither, they are downloaded.

    Raises:
        DataError: if a file is truncated, or its content has another SHA-256 digest than expected.
        DataNotFound: if there is no file and no mirror responds.
    """
    arrays = [read_idx(file.read()) for file in files()]
    source = "LeCun, Cortes and Burges, The MNIST database of handwritten digits, CC BY-SA 3.0"
    return of_images("mnist", arrays, (28, 28, 1), source)


def available() -> bool:
    """Return True if all four files are found without the network."""
    return all(file.path() is not None for file in files())


def read_idx(payload: bytes) -> np.ndarray:
    """Return an array of unsigned bytes from the IDX format, of an uncompressed file that is known to be valid.

    The format is two zero bytes, the type, the number of axes, their sizes, and the values.

    >>> read_idx(bytes([0, 0, 8, 1, 0, 0, 0, 2, 7, 9])).tolist()
    [7, 9]
    """
    axes = payload[3]
    return np.frombuffer(payload, np.uint8, offset=4 + 4 * axes).reshape(struct.unpack_from(f">{axes}I", payload, 4))


def files() -> list[DataFile]:
    """Return the four files of MNIST: training images, training labels, test images, test labels."""
    return [DataFile("mnist", f"{name}.gz", digest, MIRRORS, of_payload=True) for name, digest in SUMS.items()]


def _digits() -> bytes:
    """Return the payload of scikit-learn's file of digits."""
    spec = find_spec("sklearn")
    folders = spec.submodule_search_locations if spec else None
    found = [path for folder in folders or () if (path := Path(folder, "datasets", "data", DIGITS)).is_file()]
    if not found:
        raise DataNotFound(f"cannot find {DIGITS} of scikit-learn. Install scikit-learn again")
    return DataFile("", DIGITS, DIGITS_SUM, of_payload=True).read_at(found[0])


def mnist_pairs(
    similarity: float = 0.0,
    *,
    components: int = 50,
    per_digit: int = 774,
    draw: str = "bootstrap",
    trial: int = 0,
    lipschitz: str = "public",
) -> Dataset:
    """Load MNIST as even against odd digits, on 25 machines: one machine per pair of an even and an odd digit.

    Even digits have label 1, and odd digits have label 0.

    Features are the first principal components of pixels/255, centred on the mean of all 60,000 training images. There
    is no constant feature. A machine has `2·per_digit` records. For p = `similarity`, `round((1 − p)·2·per_digit)` of
    these records show one of the two digits of the machine's pair. The other records are sampled from all ten digits. A
    fixed fifth of a machine's records, rounded up, is its test set.

    The argument `draw` chooses the way of sampling records:

    * `bootstrap`, as in the code of Lowy & Razaviyayn (2023): only the first `per_digit` images of each digit are used.
      All samples are drawn with replacement. Images therefore recur within and across machines. At p = 0, about 55% of
      a machine's test records are also among its training records.
    * `disjoint`, as in the text of the paper: each trial samples `5·per_digit` images of each digit from the training
      set. No image is used twice. `per_digit` is at most 1084.

    The components and the mean are computed from the training images. No guarantee covers them.

    Args:
        similarity: fraction p of a machine's records that are sampled from all ten digits, in [0, 1].
        components: number of features, at most 784.
        per_digit: half of the number of records of a machine.
        draw: way of sampling, "bootstrap" or "disjoint".
        trial: seed of the sampling.
        lipschitz: Lipschitz constant with which noise is calibrated. "public" derives it from `feature_bound`. "as run"
            is the constant in the authors' code: twice the largest norm of a training feature vector of the second
            machine. This constant is not private.

    Returns:
        A `Dataset` with features [training records, components], machine by machine. Its `feature_bound` is 28.

    Raises:
        ValueError: if an option is out of range.
        DataError: if a file of MNIST is damaged or cannot be found.

    Source: Lowy & Razaviyayn 2023, experiments on MNIST, and the authors' code.
    """
    if not isinstance(similarity, int | float | np.number) or not 0 <= similarity <= 1:
        raise Refusal(f"similarity must be from 0 to 1, got {similarity}")
    require_at_least("components", components, 1)
    if components > PIXELS:
        raise Refusal(f"components must be at most {PIXELS}, got {components}")
    require_at_least("trial", trial, 0)
    require_choice("draw", draw, DRAWS)
    require_choice("lipschitz", lipschitz, LIPSCHITZ)
    require_at_least("per_digit", per_digit, 1)
    projected, digits = _projected(components)
    by_digit = [np.flatnonzero(digits == digit) for digit in range(10)]
    most = min(map(len, by_digit)) // (SHARES if draw == "disjoint" else 1)
    if per_digit > most:
        raise Refusal(f"per_digit must be at most {most} for draw '{draw}', got {per_digit}")
    private = round((1 - similarity) * 2 * per_digit)
    deal = _disjoint if draw == "disjoint" else _bootstrap
    train, test = _split(deal(by_digit, per_digit, private, np.random.default_rng(trial)))
    largest = 2 * float(np.linalg.norm(projected[train[1]].astype(np.float64), axis=1).max())
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
        test_machine_of=np.repeat(np.arange(len(PAIRS), dtype=np.int32), test.shape[1]),
        noise_lipschitz=largest if lipschitz == "as run" else None,
    )


def principal_axes(images: np.ndarray, components: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean of flat images and their principal directions, each with a positive largest entry.

    Args:
        images: images, shape [examples, pixels].

    Returns:
        The mean, [pixels], and orthonormal directions, [pixels, components], by decreasing variance; float64.

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


@lru_cache(maxsize=2)  # takes seconds, and a process loads many trials
def _projected(components: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the first components of all training images, float32 [60000, components], and their digits."""
    mnist = load_mnist()
    images = mnist.features[:, :-1]
    mean, axes = principal_axes(images, components)
    projected = np.empty((len(images), components), np.float32)
    for start in range(0, len(images), BLOCK):
        projected[start : start + BLOCK] = (images[start : start + BLOCK] - mean) @ axes
    return projected, mnist.labels


def _bootstrap(by_digit: list[np.ndarray], per_digit: int, private: int, rng: np.random.Generator) -> np.ndarray:
    """Sample each machine's image indices, shape [machines, 2·per_digit], those of its pair first."""
    pools = np.stack([images[:per_digit] for images in by_digit])
    rest = 2 * per_digit - private
    draws = [(rng.choice(pools[list(pair)].ravel(), private), rng.choice(pools.ravel(), rest)) for pair in PAIRS]
    return np.stack([np.concatenate(draw) for draw in draws])


def _disjoint(by_digit: list[np.ndarray], per_digit: int, private: int, rng: np.random.Generator) -> np.ndarray:
    """Sample as in `_bootstrap`, but no image twice."""
    shares = [rng.permutation(images)[: SHARES * per_digit].reshape(SHARES, per_digit) for images in by_digit]
    # machine (e, o) takes the share of digit e with o's number, and the share of digit o with e's number
    pairs = [np.concatenate([shares[even][odd // 2], shares[odd][even // 2]]) for even, odd in PAIRS]
    records = rng.permuted(np.stack(pairs), axis=1)
    records[:, private:] = rng.permutation(records[:, private:].ravel()).reshape(len(PAIRS), -1)
    return records


def _split(records: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return four fifths and one fifth of each machine's records, at the same positions for all machines and trials."""
    places = np.random.RandomState(SPLIT_SEED).permutation(records.shape[1])  # as scikit-learn's `train_test_split`
    tested = ceil(TEST_SHARE * len(places))
    return records[:, places[tested:]], records[:, places[:tested]]


def _even(digits: np.ndarray) -> np.ndarray:
    return (digits % 2 == 0).astype(np.int32)
