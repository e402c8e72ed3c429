"""Preparation of a user-supplied table: its columns, public bounds, clients and held-out rows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from math import isfinite
from typing import Any

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_at_least, require_choice, require_flag, require_number, require_positive

TASKS = ("classification", "regression")
STATISTICS = "statistics"
EMPTY = ("error", "drop")


@dataclass(frozen=True)
class Preparation:
    """Options that turn a table into a dataset. Validated at construction.

    Its fields are the keys of `[problem.options]` in an experiment file, and the options of `read_table` and
    `from_frame`.

    Attributes:
        target: column that is predicted.
        features: columns, or arrays of an archive, that the target is predicted from; None is all but `target` and
            `client`.
        client: column with the client of each row; every client is a machine, in sorted order.
        clients: public list of the clients, in the order of the machines; rows of others are rejected.
        task: "classification" or "regression"; None is regression for numbers, but classification for texts, truth
            values, and whole numbers with at most 20 different values.
        classes: public values of the target in the order of the classes; None is those in the data, sorted, which
            is marked as not private.
        bounds: public limits [low, high] of columns by name, scaled to −1 … 1. Values beyond a limit are moved to it;
            the target likewise, in regression. Truth values are within 0 … 1 without bounds.
        standardise: "statistics" brings columns without bounds to mean 0 and variance 1 of the training rows, and is
            marked as not private.
        categories: public values of categorical columns by name, each of which becomes a 0 or 1. Text columns without
            them take the values in the data, which is marked as not private.
        fill: public values for missing ones, by column.
        test_fraction: fraction of each client's rows that is held out for testing; every client keeps at least one row.
        seed: seed of the held-out rows.
        feature_bound: public bound on the norm of a row's features, before the constant; longer rows are shortened to
            it. None is √(number of columns), no restriction if all of them have public bounds or categories.
        bias: whether a constant feature 1 is appended.
        empty: "error" rejects clients in `clients` without a row, "drop" leaves them out.

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
        for name in ("target", "client"):
            _require_text(name, getattr(self, name), optional=name == "client")
        if isinstance(self.clients, str):
            raise Refusal(f"clients must be a list of their names, got {self.clients!r}: client is the column's key")
        for name in ("features", "clients", "classes"):
            _require_list(name, getattr(self, name))
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


def _require_text(name: str, value: Any, *, optional: bool) -> None:
    if not (isinstance(value, str) or (optional and value is None)):
        raise Refusal(f"{name} must be a column's name, got {value!r}")


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
