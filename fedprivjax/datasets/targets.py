"""Target and clients of a table: classes or numbers, and the machine of each row."""

from typing import Any, NamedTuple

import lazy_loader
import numpy as np

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.user_warnings import warn
from fedprivjax.datasets.arrays import MOST_CLASSES
from fedprivjax.datasets.columns import Feature, as_numbers, numeric, one_of, text_of, textual, values_in
from fedprivjax.datasets.preparation import TASKS, Preparation
from fedprivjax.datasets.reading import Frame, Series

pd: Any = lazy_loader.load("pandas")

LARGE = 100  # largest magnitude of a target without bounds that gives no warning


class Target(NamedTuple):
    """Conversion of the target: a class index, or a number that is clipped to limits and scaled."""

    column: str
    classes: tuple[str, ...] | None
    number: Feature
    not_covered: str = ""

    def of(self, frame: Frame) -> np.ndarray:
        """Return the labels, shape [rows]."""
        if self.classes is not None:
            return one_of(self.column, frame[self.column], self.classes)
        return self.number.of(frame)[:, 0]


class Clients(NamedTuple):
    """Machine of each row, int, shape [rows], and clients' names by machine."""

    of: np.ndarray
    names: tuple[str, ...]


def target_of(values: Series, wanted: Preparation) -> Target:
    """Return the conversion of the target's column."""
    name, bare = wanted.target, Feature(wanted.target)
    task = wanted.task or ("classification" if wanted.classes is not None or _countable(values) else "regression")
    if task == TASKS[0]:
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


def clients_of(values: Series, wanted: Preparation) -> Clients:
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
    return Clients((np.cumsum(sizes > 0) - 1)[owner], tuple(name for name in known if name not in bare))


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
