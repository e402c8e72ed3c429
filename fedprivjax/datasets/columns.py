"""Columns of a table into numbers: scaled by public bounds or by statistics, or a 0 or 1 for each category."""

import difflib
import json
import warnings
from collections.abc import Sequence
from math import inf
from typing import Any, NamedTuple

import lazy_loader
import numpy as np

from fedprivjax.checks.refusal import Refusal
from fedprivjax.datasets.preparation import STATISTICS, Preparation
from fedprivjax.datasets.reading import Columns, Frame, Series

pd: Any = lazy_loader.load("pandas")

OWN_LOADER = 'Load the table with a custom function, dataset = "module:load"'
DATES = "Leave it out of features, or convert it to numbers, such as days since a public date"
DATE = r"\d+\D+\d+\D+\d+|\d\W*[A-Za-z]{3,}\W*\d|[A-Za-z]{3,}\W*\d+\W+\d|\d:\d"  # three parts, or a time of day
LOOKED_AT = 1000  # different texts
MOST_CATEGORIES = 100  # of a column of texts, beyond which it is taken for free text
NEAREST = 3


class Feature(NamedTuple):
    """What is made of one column.

    Attributes:
        column: its name.
        categories: values, a 0 or 1 for each, or None for a number.
        low, high: limits that a number is moved to.
        middle, scale: a number becomes (number − middle)/scale.
        length: public bound on the norm of what it becomes; infinite where there is none.
        not_covered: what of it was computed from the data, in words.
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
        """Float64 [rows, numbers]."""
        values = frame[self.column]
        if self.categories is None:
            moved = np.clip(numeric(self.column, values), self.low, self.high)
            return ((moved - self.middle) / self.scale)[:, None]
        return one_of(self.column, values, self.categories)[:, None] == np.arange(len(self.categories))


def column_names(columns: Columns, wanted: Preparation) -> list[str]:
    """The columns that features are made of."""
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
        raise Refusal(f"{columns.name} must have a column beside the target and the client, got {names}")
    known = [*names, *columns.arrays]
    for option in ("bounds", "categories", "fill"):
        for name in getattr(wanted, option):
            require_column(name, known, f"column in {option}")
    return chosen


def require_column(name: str, names: Sequence[str], what: str = "column") -> str:
    """The name, refused with the nearest ones where there is none such.

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
    """What an option has for a column, or for the array that it is of; None for nothing."""
    if column in option:
        return option[column]
    return next((option[name] for name, (columns, _) in arrays.items() if name in option and column in columns), None)


def complete(columns: Columns, names: Sequence[str], wanted: Preparation) -> Frame:
    """These columns, with public values in the place of missing ones; those that are left are refused."""
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
    """A column in float64, NaN for what is no number."""
    converted: Any = pd.to_numeric(values, errors="coerce")
    return np.asarray(converted.to_numpy(float, na_value=np.nan))


def numeric(column: str, values: Series) -> np.ndarray:
    """A column as finite numbers, float64; rows are counted from 1 behind the names."""
    if pd.api.types.is_datetime64_any_dtype(values):
        raise Refusal(f"column {column!r} must hold numbers, got dates, such as {values.iloc[0]}. {DATES}")
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
    """Whether no value of a column is a number."""
    if pd.api.types.is_numeric_dtype(values) or pd.api.types.is_datetime64_any_dtype(values):
        return False
    return bool(np.isnan(as_numbers(values.astype(str))).all())


def _require_words(column: str, values: Series) -> None:
    """Refuse texts that are numbers or times, written as no table's reader takes them, where nobody named them."""
    kind = _kind_of(values.drop_duplicates().astype(str).head(LOOKED_AT))
    if kind:
        remedy = DATES if kind == "dates" else OWN_LOADER
        raise Refusal(
            f"column {column!r} must hold numbers or words, got {kind} as text, such as {str(values.iloc[0])!r}. "
            f"{remedy}, or give its categories"
        )


def _kind_of(texts: Series) -> str:
    """What most of these texts are: "numbers" with separators, "dates", or nothing of either."""
    numbers = as_numbers(texts.str.replace(",", ""))
    if 2 * np.count_nonzero(~np.isnan(numbers)) > len(texts):
        return "numbers"
    with warnings.catch_warnings(action="ignore"):  # of days that may be months
        times = pd.to_datetime(texts.where(texts.str.contains(DATE)), errors="coerce", format="mixed", utc=True)
    return "dates" if 2 * int(times.notna().sum()) > len(texts) else ""


def text_of(value: Any) -> str:
    """A value as it is named: whole numbers without a point.

    >>> text_of(3.0), text_of("x"), text_of(True)
    ('3', 'x', 'True')
    """
    whole = isinstance(value, float | np.floating) and float(value).is_integer()
    return str(int(value)) if whole else str(value).strip()


def values_in(values: Series) -> list[str]:
    """The different values of a column, numbers by size and texts by the alphabet."""
    found = values.drop_duplicates()
    found = found if pd.api.types.is_numeric_dtype(values) else found.map(text_of).drop_duplicates()
    return [text_of(value) for value in found.sort_values()]


def one_of(column: str, values: Series, known: Sequence[str]) -> np.ndarray:
    """Which of the known values each row has, int [rows]."""
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
        Refusal: columns that need bounds, all of them in one line.
    """
    found = {name: _feature(name, frame[name], rows, wanted, arrays) for name in names}
    bare = [name for name, feature in found.items() if feature is None]
    if bare:
        each = ", ".join(f"{json.dumps(name, ensure_ascii=False)} = [0, 100]" for name in bare)
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
        _require_words(name, values)
        found = values_in(values)
        if len(found) > MOST_CATEGORIES:
            raise Refusal(
                f"column {name!r} must hold numbers or at most {MOST_CATEGORIES} different texts, got {len(found)}: "
                f"leave it out of features, or give its categories"
            )
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
