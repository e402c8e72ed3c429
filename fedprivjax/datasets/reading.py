"""Readers of table files: CSV, Parquet and NumPy archives as columns."""

import difflib
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import lazy_loader

from fedprivjax.bounded_read import Unreadable, arrays_from
from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_choice
from fedprivjax.datasets.dataset import DataError, DataNotFound

pd: Any = lazy_loader.load("pandas")

Frame: TypeAlias = Any  # pandas DataFrame and Series, whose annotations are too weak for a type checker
Series: TypeAlias = Any
SUFFIXES = (".csv", ".parquet", ".npz")


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
