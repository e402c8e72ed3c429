"""Datasets: digits, MNIST, insurance, synthetic classes, populations with a known optimum, custom data, partitions."""

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, get_args

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_choice
from fedprivjax.datasets.dataset import DataError, DataNotFound, Dataset, from_arrays
from fedprivjax.datasets.federations import from_huggingface, from_leaf, from_tff
from fedprivjax.datasets.images import load_cifar10, load_cifar100, load_emnist, load_fashion_mnist
from fedprivjax.datasets.insurance import insurance
from fedprivjax.datasets.mnist import load_digits, load_mnist, mnist_pairs
from fedprivjax.datasets.partition import by_machine, partition, table
from fedprivjax.datasets.preparation import Preparation, is_table
from fedprivjax.datasets.sequences import encode, from_sequences
from fedprivjax.datasets.stream import Stream, clusters, stream
from fedprivjax.datasets.synthetic import least_absolute, least_squares, logistic, robust_regression
from fedprivjax.datasets.user_table import from_frame, read_table

__all__ = [
    "DATASETS",
    "DataError",
    "DataNotFound",
    "Dataset",
    "DatasetInfo",
    "Preparation",
    "Stream",
    "by_machine",
    "check_arguments",
    "check_options",
    "clusters",
    "encode",
    "files_of",
    "from_arrays",
    "from_frame",
    "from_huggingface",
    "from_leaf",
    "from_sequences",
    "from_tff",
    "insurance",
    "least_absolute",
    "least_squares",
    "load",
    "load_cifar10",
    "load_cifar100",
    "load_digits",
    "load_emnist",
    "load_fashion_mnist",
    "load_mnist",
    "logistic",
    "may_share",
    "mnist_pairs",
    "partition",
    "read_table",
    "robust_regression",
    "stream",
    "table",
]


class DatasetInfo(NamedTuple):
    """A dataset that `datasets.load` finds by name: an entry of the dictionary `DATASETS`.

    Attributes:
        loader: function that returns the dataset.
        help: one line of text for lists of datasets.
        records_of: name of the real data from which the records come, "files" for files of the user, or empty for
            synthetic data. Two real datasets with the same `records_of` may share records.
    """

    loader: Callable[..., Dataset | Stream]
    help: str
    records_of: str = ""


FILES = "files"  # source of records of a user's files, which may be any
ENTRIES: dict[str, tuple[Any, ...]] = {
    "clusters": (clusters, "synthetic classes with the spectrum of images, for trying settings without data"),
    "digits": (load_digits, "1797 handwritten digits of 8×8 pixels, shipped with scikit-learn", "digits"),
    "mnist": (load_mnist, "70,000 handwritten digits of 28×28 pixels, from $FEDPRIVJAX_DATA or downloaded", "mnist"),
    "mnist_pairs": (mnist_pairs, "even against odd digits of MNIST, 25 machines with a pair of digits each", "mnist"),
    "fashion-mnist": (load_fashion_mnist, "70,000 grey images of clothes, 28×28 pixels, 10 classes", "fashion-mnist"),
    "emnist": (load_emnist, "handwritten digits and letters, 28×28 pixels, 10 to 62 classes", "mnist"),
    "cifar10": (load_cifar10, "60,000 colour images, 32×32 pixels, 10 classes", "cifar10"),
    "cifar100": (load_cifar100, "60,000 colour images, 32×32 pixels, 100 or 20 classes", "cifar100"),
    "leaf": (from_leaf, "a folder of LEAF (FEMNIST, Shakespeare, Sent140), whose users are machines", FILES),
    "tff": (from_tff, "an HDF5 file of TensorFlow Federated, whose clients are machines", FILES),
    "insurance": (
        insurance,
        "1338 insurance charges, sorted and split over few machines, from $FEDPRIVJAX_DATA",
        "insurance",
    ),
    "least_absolute": (least_absolute, "median regression on the unit sphere, optimum and excess risk known"),
    "least_squares": (least_squares, "linear regression on the unit sphere, optimum and excess risk known"),
    "stream": (stream, "classes on the unit sphere, examples computed on demand, for a million machines"),
    "logistic": (logistic, "logistic regression on the unit sphere, optimum and excess risk known"),
    "robust_regression": (robust_regression, "regression with outliers on the unit sphere, non-convex losses"),
}
DATASETS = {name: DatasetInfo(*entry) for name, entry in ENTRIES.items()}


def load(name: str, **options: Any) -> Any:
    """Load one of the package's datasets by its name.

    Args:
        name: a key of `DATASETS`, such as "digits".
        options: keyword arguments of the dataset's function, such as `trial=1`.

    Returns:
        A `Dataset`, or a `Stream` if examples are computed on demand.

    Raises:
        Refusal: if the name or an option is unknown, or an option is missing.
        DataError: if files are damaged or cannot be found.

    >>> load("digits").features.shape
    (1437, 65)
    >>> load("mnsit")
    Traceback (most recent call last):
    fedprivjax.Refusal: unknown dataset 'mnsit', did you mean 'mnist'? (nearest: mnist, emnist)
    """
    check_options(name, options)
    _require_all(name, DATASETS[name].loader, options)
    return DATASETS[name].loader(**options)


def may_share(
    name: str, other: str, options: Mapping[str, Any] | None = None, other_options: Mapping[str, Any] | None = None
) -> bool:
    """Return True if two datasets, given by their names in experiment files, may share records.

    It returns True in case of doubt. Two real datasets may share records if they come from the same data. A dataset
    from files of the user, such as a table or "leaf", may share records with any real dataset. Two synthetic datasets
    may share records if they have equal `seed` and equal `trial`. A synthetic dataset shares no records with real data.

    Args:
        name: name of the first dataset. If this dataset is from files of the user, or the package does not know it, the
            result is always True.
        other: name of the second dataset. If the package does not know it, it counts as real data.
        options: options of the first dataset. Default: none.
        other_options: options of the second dataset. Default: none.

    >>> may_share("mnist", "mnist_pairs"), may_share("digits", "people.csv"), may_share("clusters", "people.csv")
    (True, True, False)
    >>> may_share("logistic", "logistic", {"examples": 50}, {"examples": 90})
    True
    >>> may_share("logistic", "logistic", {"seed": 1})
    False
    """
    one, another = DATASETS.get(name), DATASETS.get(other)
    one, another = (None if each is None or each.records_of == FILES else each for each in (one, another))
    if one is None:
        return True
    if one.records_of:
        return another is None or one.records_of == another.records_of
    return another is not None and not another.records_of and not _other_draw(options or {}, other_options or {})


def _other_draw(options: Mapping[str, Any], other_options: Mapping[str, Any]) -> bool:
    """Return True if two synthetic datasets have different random streams. Seeds are words of 32 bits, as in NumPy."""
    draws = [(given.get("seed", 0), given.get("trial", 0)) for given in (options, other_options)]
    words = all(isinstance(number, int) and 0 <= number < 1 << 32 for draw in draws for number in draw)
    return words and draws[0] != draws[1]


def check_options(name: str, options: Mapping[str, Any]) -> None:
    """Raise Refusal if the options of a dataset of the package are invalid.

    The exception is raised if the package has no dataset of this name, or if the dataset's function takes no such
    option. It is also raised if the value of an option for a number or a path has another type. The name of a table
    file also raises an exception, because a table file is not a dataset of the package. The message says that the file
    does not exist, or that `read_table` loads the file.

    Args:
        name: a key of `DATASETS`.
        options: values by name.
    """
    if isinstance(name, str) and is_table(name) and name not in DATASETS:
        if not Path(name).is_file():
            raise DataNotFound(f"dataset {name!r} is the name of a table file that does not exist. Check the name")
        raise Refusal(f"dataset must be one of the package, got the table file {name!r}. Use datasets.read_table")
    require_choice("dataset", name, DATASETS)
    _check_known(name, inspect.signature(DATASETS[name].loader).parameters, options)


def files_of(name: str, options: Mapping[str, Any]) -> list[str]:
    """Return the names of a dataset's options whose values are paths of files or folders.

    Args:
        name: a key of `DATASETS`. Any other name gives an empty list.
        options: values of options by name.

    >>> files_of("tff", {"file": "train.h5", "test": "test.h5", "length": 80}), files_of("digits", {})
    (['file', 'test'], [])
    """
    known = inspect.signature(DATASETS[name].loader).parameters if name in DATASETS else {}
    return [option for option in options if option in known and Path in get_args(known[option].annotation)]


def check_arguments(name: str, function: Callable[..., Any], options: Mapping[str, Any]) -> None:
    """Raise Refusal unless `options` are valid keyword arguments of a user-defined function that returns a dataset.

    Every option must be an argument of the function. Every required argument must be among the options. If an argument
    is annotated as a number or a path, its value must have the annotated type. For a function with arbitrary keyword
    arguments (`**`), only missing required arguments raise the exception.

    Args:
        name: dataset's name in the message.
        function: the user-defined function.
        options: values by name.

    >>> check_arguments("mine:load", lambda rows, seed=0: None, {"seed": 1})
    Traceback (most recent call last):
    fedprivjax.Refusal: dataset 'mine:load' needs the option rows
    """
    known = inspect.signature(function).parameters
    if all(each.kind is not each.VAR_KEYWORD for each in known.values()):
        _check_known(name, known, options)
    _require_all(name, function, options)


def _check_known(name: str, known: Mapping[str, inspect.Parameter], options: Mapping[str, Any]) -> None:
    for option in options:
        if not known:
            raise Refusal(f"dataset '{name}' takes no options, got '{option}'")
        require_choice(f"{name} option", option, known)
        _require_kind(f"{name} option {option}", options[option], known[option].annotation)


def _require_all(name: str, function: Callable[..., Any], options: Mapping[str, Any]) -> None:
    several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    known = inspect.signature(function).parameters.values()
    needed = [each.name for each in known if each.default is each.empty and each.kind not in several]
    missing = [key for key in needed if key not in options]
    if missing:
        raise Refusal(f"dataset '{name}' needs the option{'s' * (len(missing) > 1)} {', '.join(missing)}")


def _require_kind(name: str, value: Any, kind: Any) -> None:
    """Raise Refusal if a numeric option has a value that is not a number, or a path is not a text."""
    if Path in get_args(kind) and not isinstance(value, str | Path):
        raise Refusal(f"{name} must be a path, got {value!r}")
    if kind in (int, float) and (isinstance(value, bool) or not isinstance(value, kind | int)):
        raise Refusal(f"{name} must be {'a number' if kind is float else 'an integer'}, got {value!r}")
