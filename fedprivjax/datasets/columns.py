"""Conversion of table columns to numbers, scaled by public bounds or statistics, or one-hot by category."""

import difflib
import json
import warnings
from collections.abc import Sequence
from math import inf
from typing import Any, NamedTuple

import lazy_loader
import numpy as np

from fedprivjax.checks.refusal import Refusal
from fedprivjax.datasets.preparation import STATISTICS, Columns, Frame, Preparation, Series

pd: Any = lazy_loader.load("pandas")

OWN_LOADER = 'Load the table with a custom function, dataset = "module:load"'
DATES = "Leave it out of features, or convert it to numbers, such as days since a public date"
DATE = r"\d+\D+\d+\D+\d+|\d\W*[A-Za-z]{3,}\W*\d|[A-Za-z]{3,}\W*\d+\W+\d|\d:\d"  # three parts, or a time of day
LOOKED_AT = 1000  # largest number of distinct texts that are inspected
MOST_CATEGORIES = 100  # largest number of categories of a text column; more are taken for free text
NEAREST = 3  # largest number of suggested column names


class Feature(NamedTuple):
    """Conversion of one column of a table to features: one number, or a one-hot vector of categories.

    Attributes:
        column: name of the column.
        categories: values for one-hot encoding, or None for a column of numbers.
        low, high: limits to which a number is clipped.
        middle, scale: a clipped number x becomes (x − middle)/scale.
        length: public bound on the L2 norm of the column's features in a row, infinite if there is none.
        not_covered: text that names the quantities which were computed from the data for this conversion, such as a
            mean. No privacy guarantee covers them. The text is empty if there are none.
    """

    column: str
    categories: tuple[str, ...] | None = None
    low: float = -inf
    high: float = inf
    middle: float = 0.0
    scale: float = 1.0
    length: float = inf
    not_covered: str = ""

    def of(self, frame: Frame) -> np.ndarray:
        """Return a table's column as features: float64 [rows, 1], or one-hot bool [rows, categories]."""
        values = frame[self.column]
        if self.categories is None:
            moved = np.clip(numeric(self.column, values), self.low, self.high)
            return ((moved - self.middle) / self.scale)[:, None]
        return one_of(self.column, values, self.categories)[:, None] == np.arange(len(self.categories))


def column_names(columns: Columns, wanted: Preparation) -> list[str]:
    """Return the names of the columns that features are made of."""
    names = list(columns.frame.columns)
    taken = [name for name in (wanted.target, wanted.client) if name is not None]
    for name in taken:
        require_column(name, names)
    chosen = [name for name in names if name not in taken] if wanted.features is None else []
    for name in wanted.features or ():
        chosen += columns.arrays[name][0] if name in columns.arrays else [require_column(name, names)]
    for name in chosen if wanted.features is not None else ():
        if name in taken:
            raise Refusal(f"features must be without the target and the client, got {name!r}")
    if not chosen:
        raise Refusal(f"{columns.name} must have a column besides the target and the client, got {names}")
    known = [*names, *columns.arrays]
    for option in ("bounds", "categories", "fill"):
        for name in getattr(wanted, option):
            require_column(name, known, f"column in {option}")
    return chosen


def require_column(name: str, names: Sequence[str], what: str = "column") -> str:
    """Return the name. Raise Refusal with the nearest names if there is no such column.

    >>> require_column("agee", ["age", "page", "target"])
    Traceback (most recent call last):
    fedprivjax.Refusal: unknown column 'agee', did you mean 'age' or 'page' or 'target'?
    """
    if name in names:
        return name
    near = difflib.get_close_matches(name, names, n=NEAREST)
    hint = f", did you mean {' or '.join(map(repr, near))}?" if near else f" (there are {', '.join(names[:12])})"
    raise Refusal(f"unknown {what} {name!r}{hint}")


def by_column(option: Any, column: str, arrays: dict[str, Any]) -> Any:
    """Return an option's value for a column, or for the array with that column, or None if it has neither."""
    if column in option:
        return option[column]
    return next((option[name] for name, (columns, _) in arrays.items() if name in option and column in columns), None)


def complete(columns: Columns, names: Sequence[str], wanted: Preparation) -> Frame:
    """Return these columns, with missing values replaced by public ones. Raise Refusal if missing values remain."""
    frame = columns.frame[list(dict.fromkeys(names))]
    filled = {name: value for name in frame if (value := by_column(wanted.fill, name, columns.arrays)) is not None}
    for name, value in filled.items():
        textual = not pd.api.types.is_numeric_dtype(frame[name]) and not frame[name].isna().all()
        if isinstance(value, bool | int | float) == textual and name not in wanted.categories:
            raise Refusal(f"fill of {name!r} must be a {'text' if textual else 'number'}, as the column, got {value!r}")
        if name in wanted.categories:
            frame = frame.assign(**{name: frame[name].map(text_of, na_action="ignore").astype(object)})
    frame = frame.fillna(filled)
    for name in frame:
        gaps = np.flatnonzero(frame[name].isna())
        if gaps.size:
            way = f"fill = {{ {json.dumps(name, ensure_ascii=False)} = … }} puts a public value there"
            if name in (wanted.target, wanted.client):
                way = f"leave {'those rows' if gaps.size > 1 else 'that row'} out of the table"
            raise Refusal(
                f"column {name!r} must have a value in every row, got {gaps.size} missing "
                f"(first in row {gaps[0] + 1} of the data): {way}"
            )
    return frame


def as_numbers(values: Series) -> np.ndarray:
    """Return a column as float64, with NaN for values that are not numbers."""
    converted: Any = pd.to_numeric(values, errors="coerce")
    return np.asarray(converted.to_numpy(float, na_value=np.nan))


def numeric(column: str, values: Series) -> np.ndarray:
    """Return a column as float64. Raise Refusal unless all values are finite numbers.

    Messages count rows from 1, without the line of names.
    """
    if pd.api.types.is_datetime64_any_dtype(values):
        raise Refusal(f"column {column!r} must hold numbers, got dates, such as {values.iloc[0]}. {DATES}")
    if pd.api.types.is_complex_dtype(values):
        raise Refusal(f"column {column!r} must hold real numbers, got {values.iloc[0]}. Use its real part")
    numbers = as_numbers(values)
    wrong = np.flatnonzero(np.isnan(numbers))
    if wrong.size:
        text = str(values.iloc[wrong[0]])
        kind = _kind_of(pd.Series([text]))
        how = f". {DATES if kind == 'dates' else OWN_LOADER}" if kind else ""
        raise Refusal(f"column {column!r} must hold numbers, got {text!r} ({_row(values, wrong)}){how}")
    wrong = np.flatnonzero(np.isinf(numbers))
    if wrong.size:
        raise Refusal(f"column {column!r} must be finite, got {numbers[wrong[0]]} ({_row(values, wrong)})")
    return numbers


def _row(values: Series, wrong: np.ndarray) -> str:
    return f"row {values.index[wrong[0]] + 1} of the data"


def textual(values: Series) -> bool:
    """Return True if no value of a column is a number."""
    if pd.api.types.is_numeric_dtype(values) or pd.api.types.is_datetime64_any_dtype(values):
        return False
    return bool(np.isnan(as_numbers(values.astype(str))).all())


def words_in(column: str, values: Series, declared: str) -> list[str]:
    """Return the distinct texts of a column whose values are not declared.

    Args:
        declared: option that declares them, "categories" or "classes", for messages.

    Raises:
        Refusal: if most texts are numbers or dates in a format that table readers do not parse, or too many differ.
    """
    kind = _kind_of(values.drop_duplicates().astype(str).head(LOOKED_AT))
    if kind:
        remedy = DATES if kind == "dates" else OWN_LOADER
        raise Refusal(
            f"column {column!r} must hold numbers or words, got {kind} as text, such as {str(values.iloc[0])!r}. "
            f"{remedy}, or give its {declared}"
        )
    found = values_in(values)
    if len(found) > MOST_CATEGORIES:
        raise Refusal(
            f"column {column!r} must hold numbers or at most {MOST_CATEGORIES} different texts, got {len(found)}: "
            f"leave it out of features, or give its {declared}"
        )
    return found


def _kind_of(texts: Series) -> str:
    """Return the kind of most of these texts: "numbers" with separators, "dates", or an empty string."""
    numbers = as_numbers(texts.str.replace(",", ""))
    if 2 * np.count_nonzero(~np.isnan(numbers)) > len(texts):
        return "numbers"
    with warnings.catch_warnings(action="ignore"):  # warnings on ambiguous days and months
        times = pd.to_datetime(texts.where(texts.str.contains(DATE)), errors="coerce", format="mixed", utc=True)
    return "dates" if 2 * int(times.notna().sum()) > len(texts) else ""


def text_of(value: Any) -> str:
    """Return a value as text, whole numbers without a decimal point.

    >>> text_of(3.0), text_of("x"), text_of(True)
    ('3', 'x', 'True')
    """
    whole = isinstance(value, float | np.floating) and float(value).is_integer()
    return str(int(value)) if whole else str(value).strip()


def values_in(values: Series) -> list[str]:
    """Return the distinct values of a column as text, numbers in ascending and texts in alphabetical order."""
    found = values.drop_duplicates()
    found = found if pd.api.types.is_numeric_dtype(values) else found.map(text_of).drop_duplicates()
    return [text_of(value) for value in found.sort_values()]


def one_of(column: str, values: Series, known: Sequence[str]) -> np.ndarray:
    """Return the index of each row's value among the known ones, int, shape [rows]."""
    place = {text_of(value): index for index, value in enumerate(known)}
    distinct = {value: place.get(text_of(value), -1) for value in values.drop_duplicates()}
    found = values.map(distinct).to_numpy(int)
    wrong = np.flatnonzero(found < 0)
    if wrong.size:
        raise Refusal(
            f"column {column!r} must be one of {', '.join(list(place)[:12])}, "
            f"got {text_of(values.iloc[wrong[0]])!r} ({_row(values, wrong)})"
        )
    return found


def features_of(frame: Frame, names: Sequence[str], rows: np.ndarray, wanted: Preparation, arrays) -> list[Feature]:
    """Return the feature of each of these columns. Statistics are those of the given rows.

    Raises:
        Refusal: if columns need bounds, with all of them in one message.
    """
    found = {name: _feature(name, frame[name], rows, wanted, arrays) for name in names}
    bare = [name for name, feature in found.items() if feature is None]
    if bare:
        each = ", ".join(f"{json.dumps(name, ensure_ascii=False)} = [low, high]" for name in bare)
        raise Refusal(
            f"bounds of {', '.join(map(repr, bare))} must be given. Set public limits, such as bounds = {{ {each} }}, "
            f'or standardise = "{STATISTICS}", which is not private, or feature_bound for the numbers as they are'
        )
    return [feature for feature in found.values() if feature is not None]


def _feature(name: str, values: Series, rows: np.ndarray, wanted: Preparation, arrays) -> Feature | None:
    """Return the feature of a column, or None if it needs bounds."""
    categories = by_column(wanted.categories, name, arrays)
    if categories is not None:
        return Feature(name, tuple(map(text_of, categories)), length=1.0)
    limits = by_column(wanted.bounds, name, arrays)
    if limits is None and textual(values):
        found = words_in(name, values, "categories")
        return Feature(name, tuple(found), length=1.0, not_covered=f"categories of {name!r} are those in the data")
    if limits is None and pd.api.types.is_bool_dtype(values):
        limits = (0.0, 1.0)
    numbers = numeric(name, values)
    if limits is not None:
        low, high = map(float, limits)
        return Feature(name, None, low, high, (low + high) / 2, (high - low) / 2, 1.0)
    if wanted.standardise == STATISTICS:
        spread = float(numbers[rows].std()) or 1.0
        words = f"{name!r} is standardised by its mean and variance"
        return Feature(name, middle=float(numbers[rows].mean()), scale=spread, not_covered=words)
    return None if wanted.feature_bound is None else Feature(name)
