"""Load a user-supplied table, a file or a pandas DataFrame, as a dataset."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import sqrt
from pathlib import Path
from typing import Any, NamedTuple

import lazy_loader
import numpy as np

from fedprivjax.checks.refusal import Refusal, warn
from fedprivjax.datasets.columns import (
    Feature,
    as_numbers,
    by_column,
    column_names,
    complete,
    features_of,
    numeric,
    one_of,
    require_column,
    text_of,
    textual,
    values_in,
    words_in,
)
from fedprivjax.datasets.dataset import MOST_CLASSES, Dataset, from_arrays, picture_of
from fedprivjax.datasets.preparation import (
    TASKS,
    Columns,
    Frame,
    Preparation,
    Series,
    checked,
    prepared_by,
    read_columns,
)
from fedprivjax.datasets.table_rows import TableRows, feature_names, matrix_of, shortened, warn_of_clipped

pd: Any = lazy_loader.load("pandas")

NAMED = 20  # largest number of classes and machines that a line names
LARGE = 100  # largest magnitude of a target without bounds that gives no warning


class Target(NamedTuple):
    """Conversion of a table's target column to labels: class indices, or clipped and scaled numbers.

    Attributes:
        column: name of the column.
        classes: values of the target in the order of the class indices, or None for regression.
        number: clipping and scaling of a number, for regression.
        not_covered: text that names the quantities which were computed from the data for this conversion, such as the
            list of classes. No privacy guarantee covers them. The text is empty if there are none.
    """

    column: str
    classes: tuple[str, ...] | None
    number: Feature
    not_covered: str = ""

    def of(self, frame: Frame) -> np.ndarray:
        """Return the labels of a table's rows, shape [rows]: class indices, or numbers for regression."""
        if self.classes is not None:
            return one_of(self.column, frame[self.column], self.classes)
        return self.number.of(frame)[:, 0]


class Clients(NamedTuple):
    """Machine of each row, int, shape [rows], clients' names by machine, and whether they are found in the data."""

    of: np.ndarray
    names: tuple[str, ...]
    found: bool


def read_table(
    path: str | Path,
    target: str | None = None,
    *,
    test: str | Path | None = None,
    missing: Sequence[str] = (),
    **options,
) -> Dataset:
    """Load a CSV or Parquet file, or an archive of NumPy arrays, as a dataset.

    The option `bounds` gives public limits of columns by name, such as `{"age": [18, 90]}`. Numbers outside the limits
    are clipped. A constant feature 1 is appended, unless the option `bias` is False.

    A warning states the fraction of clipped numbers. No privacy guarantee covers this fraction. The dataset's
    `not_covered` lists everything else that is computed from the data and therefore not private.

    Args:
        path: `.csv`, `.parquet` or `.npz` file.
        target: name of the column to predict, which is required.
        test: second file with the held-out examples, which is prepared like the first. None holds out a random fraction
            `test_fraction` of each client's rows.
        missing: texts that stand for a missing value, in addition to an empty cell and usual texts such as "NA".
        options: fields of `fedprivjax.datasets.Preparation`: `features`, `client`, `bounds`, `categories`, ….

    Returns:
        A `Dataset` with training rows in the order of the file.

    Raises:
        DataError: if a file cannot be read.
        Refusal: if a column is missing, or has values that are missing, infinite or not numbers.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "people.csv").write_text("age,likes,who\\n30,yes,a\\n50,no,b\\n40,yes,a\\n")
    ...     limits, path = {"age": [20, 60]}, Path(folder, "people.csv")
    ...     data = read_table(path, "likes", client="who", bounds=limits, test_fraction=0)
    >>> data.features.tolist(), data.class_names, data.machine_names
    ([[-0.5, 1.0], [0.5, 1.0], [0.0, 1.0]], ('no', 'yes'), ('a', 'b'))
    """
    if isinstance(path, pd.DataFrame):
        raise Refusal("path must be a file, got a DataFrame. Use from_frame(frame, target)")
    wanted = prepared_by(target, options, "test", "missing")
    held = None if test is None else read_columns(test, missing)
    return _dataset(read_columns(path, missing), held, wanted, str(path))


def from_frame(frame: Frame, target: str, *, test: Frame | None = None, **options: Any) -> Dataset:
    """Return a pandas DataFrame as a dataset. Columns are converted to numbers as in `read_table`.

    Args:
        frame: data frame with a row for each example. The index is ignored.
        target: name of the column to predict.
        test: held-out examples in a frame with the same columns. None holds out a random fraction `test_fraction` of
            each client's rows.
        options: fields of `fedprivjax.datasets.Preparation`, such as `bounds`.

    >>> import pandas as pd
    >>> frame = pd.DataFrame({"x": [0.0, 5.0, 10.0], "y": [1.5, 2.5, 3.5]})
    >>> from_frame(frame, "y", bounds={"x": [0, 10]}, test_fraction=0, bias=False).features.tolist()
    [[-1.0], [0.0], [1.0]]
    """
    if not isinstance(frame, pd.DataFrame):
        raise Refusal(f"frame must be a pandas DataFrame, got {type(frame).__name__}")
    wanted = prepared_by(target, options, "test")
    held = None if test is None else checked(Columns(test, {}, "the test frame"))
    return _dataset(checked(Columns(frame, {}, "frame")), held, wanted, "a frame given by the user")


class Rows(Mapping):
    """Columns of a table at the training rows, each extracted on access, with missing values filled."""

    def __init__(self, columns: Columns, rows: np.ndarray, wanted: Preparation):
        self._columns, self._frame, self._rows, self._wanted = columns, columns.frame, rows, wanted

    def __getitem__(self, name: str) -> np.ndarray:
        values = self._frame[require_column(name, list(self._frame))]
        if values.isna().any():
            values = complete(self._columns, [name], self._wanted)[name]
        return values.to_numpy()[self._rows]

    def __iter__(self) -> Iterator[str]:
        return iter(self._frame)

    def __len__(self) -> int:
        return self._frame.shape[1]


def _dataset(columns: Columns, held: Columns | None, wanted: Preparation, source: str) -> Dataset:
    names = column_names(columns, wanted)
    frame = complete(columns, [*names, wanted.target, *filter(None, [wanted.client])], wanted)
    target = _target_of(frame[wanted.target], wanted)
    clients = None if wanted.client is None else _clients_of(frame[wanted.client], wanted)
    owner = None if clients is None else clients.of
    rows, rest = split_rows(len(frame), owner, 0.0 if held is not None else wanted.test_fraction, wanted.seed)
    features = features_of(frame, names, rows, wanted, columns.arrays)
    warn_of_clipped([*features, target.number], frame)
    bound = wanted.feature_bound or sqrt(len(features))
    train, test = frame.iloc[rows], frame.iloc[rest] if held is None else _held(held, names, wanted)
    made = from_arrays(
        shortened(matrix_of(features, train), bound),
        target.of(train),
        *((shortened(matrix_of(features, test), bound), target.of(test)) if len(test) else ()),
        feature_bound=bound,
        classes=None if target.classes is None else len(target.classes),
        bias=wanted.bias,
        label_bound=target.number.length,
        machine_of=None if clients is None else clients.of[rows],
        test_machine_of=_test_clients(clients, rest, held, wanted) if len(test) else None,
        name=columns.name,
    )
    found = clients is not None and clients.found
    return replace(
        made,
        source=source,
        class_names=target.classes or (),
        machine_names=() if clients is None else clients.names,
        not_covered=tuple(
            text for text in (*(feature.not_covered for feature in features), target.not_covered) if text
        ),
        machines_from=f"the machines, which are the values of {wanted.client!r} in the data" * found,
        columns=Rows(columns, rows, wanted),
        target=wanted.target,
        picture=_picture(columns, names),
        raw_rows=_raw_rows(made, columns, features, target, wanted),
    )


def _raw_rows(
    made: Dataset, columns: Columns, features: Sequence[Feature], target: Target, wanted: Preparation
) -> TableRows:
    """Return the preparation of further rows of the table."""
    names = [feature.column for feature in features]
    fill = {name: by_column(wanted.fill, name, columns.arrays) for name in names}
    return TableRows(
        width=made.features.shape[1],
        bias=wanted.bias,
        classes=target.classes or (),
        names=feature_names(features),
        columns=tuple(features),
        fill={name: value for name, value in fill.items() if value is not None},
        listed=tuple(name for name in names if name in wanted.categories),
        bound=wanted.feature_bound or sqrt(len(features)),
        middle=target.number.middle,
        scale=target.number.scale,
    )


def _held(held: Columns, names: Sequence[str], wanted: Preparation) -> Frame:
    """Return the columns of the second file."""
    there = [*held.frame.columns]
    for name in (*names, wanted.target):
        require_column(name, there, f"column of {held.name}")
    return complete(held, [*names, wanted.target], wanted)


def _test_clients(clients: Clients | None, rest: np.ndarray, held: Columns | None, wanted: Preparation) -> Any:
    """Return the client of each test row, or None if the second file has no column of clients, or another client."""
    if clients is None or held is None:
        return None if clients is None else clients.of[rest]
    if wanted.client not in held.frame.columns:
        return None
    column = held.frame[wanted.client]
    known = not column.isna().any() and set(values_in(column)) <= set(clients.names)
    return one_of(column.name, column, clients.names) if known else None


def split_rows(count: int, owner: np.ndarray | None, share: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return training and held-out rows, each in the order of the table, given the client of each row.

    The number of a client's held-out rows differs by less than one from its fraction.
    """
    order = np.random.default_rng(seed).permutation(count)
    first = np.arange(count) == 0
    if owner is not None:
        order = order[np.argsort(owner[order], kind="stable")]
        first = np.append(True, owner[order][1:] != owner[order][:-1])
    due = np.floor(np.arange(count + 1) * share + 1e-9)
    held = (due[1:] > due[:-1]) & ~first
    return np.sort(order[~held]), np.sort(order[held])


def _picture(columns: Columns, names: Sequence[str]) -> tuple[int, int, int] | None:
    """Return the height, width and channels if the features are exactly one array of images, else None."""
    return next((picture_of(shape) for made, shape in columns.arrays.values() if made == list(names)), None)


def _target_of(values: Series, wanted: Preparation) -> Target:
    """Return the conversion of the target's column."""
    name, bare = wanted.target, Feature(wanted.target)
    task = wanted.task or ("classification" if wanted.classes is not None or _countable(values) else "regression")
    if task == TASKS[0]:
        if wanted.task is None and wanted.classes is None and textual(values):
            words_in(name, values, "classes")  # raises Refusal
        if name in wanted.bounds:
            raise Refusal(f"bounds of {name!r} must go with task = 'regression', got a target with classes")
        return _classes(values, wanted, bare)
    if wanted.classes is not None:
        raise Refusal(f"classes must be left out for task 'regression', got {list(wanted.classes)!r}")
    numbers = numeric(name, values)
    if name not in wanted.bounds:
        if np.abs(numbers).max(initial=0) > LARGE:
            warn(
                f"target {name!r} is used in its own units, some above {LARGE}, which short training seldom reaches. "
                f'Set bounds = {{ "{name}" = [low, high] }} to scale it to −1 … 1'
            )
        return Target(name, None, bare)
    low, high = map(float, wanted.bounds[name])
    return Target(name, None, Feature(name, None, low, high, (low + high) / 2, (high - low) / 2, 1.0))


def _clients_of(values: Series, wanted: Preparation) -> Clients:
    """Return the clients as machines, in the given order or sorted."""
    known = tuple(values_in(values)) if wanted.clients is None else tuple(map(text_of, wanted.clients))
    owner = one_of(values.name, values, known)
    sizes = np.bincount(owner, minlength=len(known))
    bare = [name for name, size in zip(known, sizes, strict=True) if not size]
    if bare and wanted.empty == "error":
        raise Refusal(
            f"clients must have a row each, got none of {', '.join(map(repr, bare[:5]))}: "
            f'empty = "drop" leaves them out'
        )
    names = tuple(name for name in known if name not in bare)
    return Clients((np.cumsum(sizes > 0) - 1)[owner], names, wanted.clients is None or len(names) < len(known))


def _countable(values: Series) -> bool:
    """Return True if a column looks like classes: texts, truth values, or few distinct whole numbers."""
    if pd.api.types.is_bool_dtype(values) or textual(values):
        return True
    numbers = as_numbers(values)
    return bool((numbers == np.floor(numbers)).all()) and np.unique(numbers).size <= MOST_CLASSES


def _classes(values: Series, wanted: Preparation, bare: Feature) -> Target:
    name = wanted.target
    if wanted.classes is not None:
        return Target(name, tuple(map(text_of, wanted.classes)), bare)
    if pd.api.types.is_float_dtype(values):
        numbers = numeric(name, values)
        wrong = np.flatnonzero(numbers != np.floor(numbers))
        if wrong.size:
            raise Refusal(
                f"column {name!r} must hold classes, whole numbers or texts, "
                f"got {numbers[wrong[0]]:g} (row {wrong[0] + 1} of the data): or task = 'regression'"
            )
    found = tuple(values_in(values))
    if len(found) < 2:
        one = ", ".join(map(repr, found))
        raise Refusal(f"target {name!r} must have at least two classes, got {one} in every row. Choose another target")
    return Target(name, found, bare, f"classes of {name!r} are those in the data")


def description(data: Dataset) -> str:
    """Return a line on the rows, machines and classes of a dataset made from a table, or "" for other data.

    >>> import pandas as pd
    >>> frame = pd.DataFrame({"x": [1, 0, 1], "y": ["no", "yes", "no"]})
    >>> description(from_frame(frame, "y", bounds={"x": [0, 1]}, test_fraction=0))
    "frame: 3 training and 0 test rows; classes: 0 = 'no', 1 = 'yes'"
    """
    if data.columns is None:
        return ""
    tested = 0 if data.test_labels is None else len(data.test_labels)
    line = f"{data.name}: {len(data.labels)} training and {tested} test rows"
    if data.machine_names:
        line += f"; {len(data.machine_names)} machines: {_listed(data.machine_names)}"
    if data.class_names:
        line += f"; classes: {_listed(data.class_names)}"
    return line


def _listed(names: Sequence[str]) -> str:
    words = [f"{place} = {name!r}" for place, name in enumerate(names)]
    return ", ".join(words if len(words) <= NAMED else [*words[:3], "…", words[-1]])
