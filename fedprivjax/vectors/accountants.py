"""Reference values of accountants: 200 mechanisms with a lower and an upper bound on ε, as a CSV table."""

from collections.abc import Callable, Iterator
from dataclasses import asdict, fields
from math import ceil, floor, log10
from pathlib import Path

import numpy as np

from fedprivjax.atomic_write import write_atomically
from fedprivjax.bounded_read import TOML_BYTES, text_of
from fedprivjax.checks.refusal import Refusal
from fedprivjax.vectors.accountant_bounds import Mechanism, bounds, mechanisms

NAME = "accountants.csv"
DIGITS = 6  # significant digits of bounds; lower bounds are rounded down, upper bounds up
TOLERANCE = 1e-4  # relative difference of a bound from the file's
COLUMNS = (*(field.name for field in fields(Mechanism)), "epsilon_lower", "epsilon_upper")


def _rounded(value: float, towards: Callable[[float], float]) -> float:
    """Return a number with `DIGITS` significant digits."""
    if value == 0:
        return 0.0
    digits = DIGITS - 1 - floor(log10(value))
    return round(towards(value * 10.0**digits) / 10.0**digits, max(digits, 0))


def rows() -> Iterator[tuple[object, ...]]:
    """Yield the rows of the table, with the columns `COLUMNS`."""
    for one in mechanisms():
        low, high = bounds(one)
        yield *asdict(one).values(), _rounded(low, floor), _rounded(high, ceil)


def write_accountants(folder: Path) -> Path:
    """Write `accountants.csv` to a folder, and return its path."""
    lines = [",".join(COLUMNS), *(",".join(map(str, row)) for row in rows())]
    path = folder / NAME
    write_atomically(path, "\n".join(lines) + "\n")
    return path


def read_accountants(folder: Path) -> list[tuple[Mechanism, float, float]]:
    """Return every mechanism of the table in a folder, with its lower and upper bound on ε.

    Raises:
        Refusal: if the file is missing, or not the table.
    """
    path = folder / NAME
    try:
        header, *lines = text_of(path, TOML_BYTES).splitlines()
        if tuple(header.split(",")) != COLUMNS:
            raise ValueError("other columns")
        kinds = [type(field.default) if field.name != "mechanism" else str for field in fields(Mechanism)]
        found = []
        for line in lines:
            *settings, low, high = line.split(",")
            values = (kind(text) for kind, text in zip(kinds, settings, strict=True))
            found.append((Mechanism(*values), float(low), float(high)))  # type: ignore[arg-type]
    except (OSError, ValueError) as error:
        raise Refusal(f"{path} must hold accountants' values, got {error}. Run `fedprivjax vectors`") from None
    return found


def check_accountants(folder: Path) -> tuple[Path, list[str]]:
    """Compare the table with today's accountants. Return its path and a line for every difference."""
    stored = read_accountants(folder)
    if [one for one, *_ in stored] != list(mechanisms()):
        return folder / NAME, ["other mechanisms"]
    lines = []
    for number, (one, *old) in enumerate(stored, 1):
        new = bounds(one)
        if not np.allclose(old, new, rtol=TOLERANCE, atol=1e-9):
            lines.append(f"row {number} ({one.mechanism}): ε in {old} in the file, {list(new)} today")
    return folder / NAME, lines
