"""User-supplied tables: their preparation (columns, public bounds, clients and held-out rows), and readers of files.

Files are CSV, Parquet and NumPy archives, read as columns.
"""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import lru_cache
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import lazy_loader

from fedprivjax.bounded_read import Unreadable, arrays_from
from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_at_least, require_choice, require_flag, require_number, require_positive
from fedprivjax.datasets.dataset import DataError, DataNotFound

TASKS = ("classification", "regression")
STATISTICS = "statistics"
EMPTY = ("error", "drop")
pd: Any = lazy_loader.load("pandas")
Frame: TypeAlias = Any  # pandas DataFrame and Series, whose annotations are too weak for a type checker
Series: TypeAlias = Any
SUFFIXES = (".csv", ".parquet", ".npz")


@dataclass(frozen=True)
class Preparation:
    """Options of the conversion of a table to a dataset: columns, clients, scaling, held-out rows.

    `read_table` and `from_frame` take these fields as keyword arguments. Below, "not private" means that a value is
    computed from the data. No privacy guarantee covers such a value, and results state this.

    Attributes:
        target: column that is predicted.
        features: columns from which the target is predicted, or arrays of an `.npz` archive. None is all columns except
            `target` and `client`.
        client: column with the client of each row, or None if the table has no clients. Every client becomes a machine.
            Machines are in the sorted order of the clients' names.
        clients: public list of the clients, in the order of the machines. Rows of other clients are rejected.
        task: "classification" or "regression". None is classification if the target has texts, truth values, or whole
            numbers with at most 20 different values, otherwise regression.
        classes: public values of the target in the order of the classes. None uses the sorted values in the data, which
            is not private.
        bounds: public limits [low, high] of columns by name. Values beyond a limit are moved to it, and the interval is
            scaled to −1 … 1. In regression, the target may have bounds, too. Truth values without bounds have the
            limits 0 and 1.
        standardise: "statistics" scales columns without bounds to mean 0 and variance 1 over the training rows, which
            is not private.
        categories: public values of categorical columns by name. Each value becomes a feature that is 0 or 1. For text
            columns without categories, the values in the data are used, which is not private.
        fill: public values that replace missing values, by column.
        test_fraction: fraction of each client's rows that is held out for testing.
        seed: seed of the choice of held-out rows.
        feature_bound: public bound on the L2 norm of a row's features, without the constant. Rows with a larger norm
            are scaled down to it. None is √p for p columns.
        bias: True to append a constant feature 1.
        empty: treatment of `clients` without rows: "error" raises Refusal, "drop" leaves them out.

    Raises:
        Refusal: if an option is out of range or of the wrong type.

    >>> Preparation("y", bounds={"age": [90, 18]})
    Traceback (most recent call last):
    fedprivjax.Refusal: bounds of 'age' must be two numbers [low, high] with low < high, got [90, 18]
    """

    target: str
    features: Sequence[str] | None = None
    client: str | None = None
    clients: Sequence[Any] | None = None
    task: str | None = None
    classes: Sequence[Any] | None = None
    bounds: Mapping[str, Sequence[float]] = field(default_factory=dict)
    standardise: str | None = None
    categories: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    fill: Mapping[str, Any] = field(default_factory=dict)
    test_fraction: float = 0.2
    seed: int = 0
    feature_bound: float | None = None
    bias: bool = True
    empty: str = "error"

    def __post_init__(self):
        for name, value in (("target", self.target), ("client", "" if self.client is None else self.client)):
            if not isinstance(value, str):
                raise Refusal(f"{name} must be a column's name, got {value!r}")
        if isinstance(self.clients, str):
            raise Refusal(f"clients must be a list of their names, got {self.clients!r}: client is the column's key")
        for name in ("features", "clients", "classes"):
            _require_list(name, getattr(self, name))
        for name in self.features or ():
            if not isinstance(name, str):
                raise Refusal(f"features must be names of columns, got {name!r}")
        for name in ("bounds", "categories", "fill"):
            if not isinstance(getattr(self, name), Mapping):
                raise Refusal(f"{name} must be a table by column, got {getattr(self, name)!r}")
        for column, values in self.categories.items():
            _require_list(f"categories of {column!r}", values)
        for column, limits in self.bounds.items():
            _require_limits(column, limits)
        if self.task is not None:
            require_choice("task", self.task, TASKS)
        if self.standardise is not None:
            require_choice("standardise", self.standardise, (STATISTICS,))
        require_choice("empty", self.empty, EMPTY)
        require_number("test_fraction", self.test_fraction)
        if not 0 <= self.test_fraction < 1:
            raise Refusal(f"test_fraction must be at least 0 and below 1, got {self.test_fraction}")
        require_at_least("seed", self.seed, 0)
        require_positive("feature_bound", self.feature_bound, optional=True)
        require_flag("bias", self.bias)
        if self.clients is not None and self.client is None:
            raise Refusal(f"clients must go with client, the column that names them, got {list(self.clients)!r} alone")


def prepared_by(target: str | None, options: Mapping[str, Any], *beside: str) -> Preparation:
    """Return the preparation with these options.

    Args:
        beside: names of further options, for error messages.

    >>> prepared_by("y", {"test_frac": 0.5})
    Traceback (most recent call last):
    fedprivjax.Refusal: unknown option of a table 'test_frac', did you mean 'test_fraction'? (known: target, ...)
    """
    names = dict.fromkeys([*beside, *(each.name for each in fields(Preparation))])
    for name in options:
        require_choice("option of a table", name, names, listed=len(names))
    if target is None:
        raise Refusal("target must be given: the column that is predicted")
    return Preparation(target, **options)


def _require_list(name: str, values: Any) -> None:
    if values is None:
        return
    if isinstance(values, str | Mapping) or not isinstance(values, Sequence) or not values:
        raise Refusal(f"{name} must be a list and not empty, got {values!r}")
    if len({str(value) for value in values}) < len(values):
        raise Refusal(f"{name} must be different from each other, got {list(values)!r}")


def _require_limits(column: str, limits: Any) -> None:
    numbers = isinstance(limits, Sequence) and all(
        isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value) for value in limits
    )
    if not numbers or len(limits) != 2 or not limits[0] < limits[1]:
        raise Refusal(f"bounds of {column!r} must be two numbers [low, high] with low < high, got {limits!r}")


class Columns(NamedTuple):
    """A table read from a file.

    Attributes:
        frame: data frame of the columns, with rows indexed from 0.
        arrays: columns and shape of an example, for each array of an archive with several numbers per example.
        name: name in results.
    """

    frame: Frame
    arrays: dict[str, tuple[list[str], tuple[int, ...]]]
    name: str


def is_table(name: str) -> bool:
    """Return True if a dataset's name is that of a table file.

    >>> is_table("people.csv"), is_table("digits"), is_table("my_module:load")
    (True, False, False)
    """
    return Path(name).suffix.lower() in SUFFIXES


def read_columns(path: str | Path, missing: Sequence[str] = ()) -> Columns:
    """Return the columns of a file.

    Args:
        path: a `.csv` file in UTF-8 with one line of names (a byte-order mark is skipped), a `.parquet` file, or an
            `.npz` archive. Arrays [examples, …] of an archive become columns, one for each number of an example.
        missing: texts for a missing value in a CSV file, besides the empty cell, "NA", "n/a", "null", ….

    Raises:
        DataNotFound: if there is no such file.
        DataError: if the file is empty or unreadable, two columns have the same name, or lengths of arrays differ.
    """
    path = Path(path)
    require_choice("kind of table file", path.suffix.lower(), SUFFIXES)
    if not path.is_file():
        raise DataNotFound(f"no data file {path.name!r} in {path.parent.resolve()}{_remedy(path)}")
    if isinstance(missing, str) or not all(isinstance(text, str) for text in missing):
        raise Refusal(f"missing must be a list of texts, got {missing!r}")
    return _read(path, path.stat().st_mtime_ns, tuple(missing))


def _remedy(path: Path) -> str:
    """Return what to do about a missing file, with the nearest name of a table in its folder, if there is one."""
    there = [each.name for each in path.parent.glob("*") if is_table(each.name)]
    near = difflib.get_close_matches(path.name, there, n=1)
    return f", did you mean {near[0]!r}?" if near else ". Check the name, or give the file's full path"


@lru_cache(maxsize=2)  # a run reads its data several times
def _read(path: Path, changed: int, missing: tuple[str, ...]) -> Columns:
    if not path.stat().st_size:
        raise DataError(f"{path.name} must have a line of column names and rows, got an empty file")
    arrays: dict[str, tuple[list[str], tuple[int, ...]]] = {}
    match path.suffix.lower():
        case ".csv":
            frame = _csv(path, missing)
        case ".parquet":
            frame = _parquet(path)
        case _:
            frame, arrays = _archive(path)
    return checked(Columns(frame, arrays, path.name))


def checked(columns: Columns) -> Columns:
    """Return the columns with names as text. Raise DataError if two have the same name or there are no rows."""
    frame = columns.frame.rename(columns=lambda name: str(name).strip()).reset_index(drop=True)
    twice = frame.columns[frame.columns.duplicated()]
    if len(twice):
        raise DataError(f"{columns.name} must have columns of different names, got {twice[0]!r} twice")
    if frame.empty:
        raise DataError(f"{columns.name} must have at least one row, got none")
    return columns._replace(frame=frame)


def _csv(path: Path, missing: tuple[str, ...]) -> Frame:
    options = {"encoding": "utf-8-sig", "skipinitialspace": True}
    try:
        names = pd.read_csv(path, header=None, nrows=1, dtype=str, keep_default_na=False, **options)
        _require_commas(path, names.iloc[0].tolist())
        frame = pd.read_csv(path, low_memory=False, na_values=list(missing), index_col=False, **options)
    except (pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError) as error:
        raise DataError(f"{path.name} must be a CSV file in UTF-8: {' '.join(str(error).split())}") from None
    frame.columns = names.iloc[0].tolist()  # pandas would rename duplicates
    return frame


def _require_commas(path: Path, names: Sequence[str]) -> None:
    """Raise DataError if a table has another separator."""
    for mark, called in ((";", "semicolons"), ("\t", "tabs")):
        if len(names) == 1 and mark in names[0]:
            raise DataError(f"{path.name} must separate columns by commas, got {called}. Save it with commas")


def _parquet(path: Path) -> Frame:
    try:
        import pyarrow
    except ImportError:
        raise DataError(f"{path.name} needs pyarrow: pip install 'fedprivjax[parquet]'") from None
    try:
        return pd.read_parquet(path, engine="pyarrow").reset_index(drop=True)
    except pyarrow.ArrowException as error:
        raise DataError(f"{path.name} must be a Parquet file: {' '.join(str(error).split())}") from None


def _archive(path: Path) -> tuple[Frame, dict[str, tuple[list[str], tuple[int, ...]]]]:
    try:
        arrays = arrays_from(path)
    except Unreadable as error:
        raise DataError(f"{path.name} must be an archive of plain arrays, as np.savez writes it: {error}") from None
    lengths = {name: array.shape[0] if array.ndim else 0 for name, array in arrays.items()}
    if len(set(lengths.values())) != 1:
        words = ", ".join(f"{name} {length}" for name, length in lengths.items()) or "none"
        raise DataError(f"{path.name} must have arrays of one length, got {words}")
    wide = {name: [f"{name}[{i}]" for i in range(array[0].size)] for name, array in arrays.items() if array.ndim > 1}
    parts = [
        pd.DataFrame(array.reshape(len(array), -1), columns=wide.get(name, [name])) for name, array in arrays.items()
    ]
    return pd.concat(parts, axis=1), {name: (columns, arrays[name].shape[1:]) for name, columns in wide.items()}
