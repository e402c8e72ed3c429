"""Medical insurance charges as in the experiments of Lowy & Razaviyayn 2023: linear regression on few machines."""

import csv
import os
from math import hypot, sqrt
from pathlib import Path

import numpy as np

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_at_least
from fedprivjax.datasets.data_file import cache
from fedprivjax.datasets.dataset import DataError, DataNotFound, Dataset

FILE = "insurance.csv"
ROWS = 1338
CODES = {
    "sex": ("female", "male"),
    "smoker": ("no", "yes"),
    "region": ("northeast", "northwest", "southeast", "southwest"),
}
# public limits; files with a number outside are rejected
LIMITS = {"age": 150.0, "bmi": 300.0, "children": 20.0, "charges": 1e5}
COLUMNS = ("age", "sex", "bmi", "children", "smoker", "region", "charges")
STANDARDISED = (1, 3)  # age and bmi, after the constant
FEWEST = 3  # smallest number of records of a machine: two for training, for a standard deviation, and one for testing


def insurance(machines: int = 3, *, trial: int = 0, path: str | None = None) -> Dataset:
    """Load insurance charges with age, sex, body mass index, children, smoking and region: 1338 records, 7 features.

    Records are sorted by charges and cut into groups of ⌈1338/machines⌉ records, one group per machine. Each machine
    holds out a random fifth of its records, rounded up, as its test set. Features are a constant 1, then age, sex, bmi,
    children, smoker and region in this order. Words are replaced by their alphabetical rank, from 0. Age and bmi are
    standardised with the mean and the unbiased standard deviation of the machine's training records. Labels are raw
    charges.

    Neither the partition nor the standardisation is private, and no guarantee covers them.

    The result's `feature_bound` bounds the norm of every possible row of features. Standardised test values are clipped
    to ±(n − 1)/√n, for n training records of the machine.

    Args:
        machines: number of machines.
        trial: seed of the choice of held-out records.
        path: CSV file with the same columns and any number of rows. None searches for insurance.csv in
            `$FEDPRIVJAX_DATA` and in the download folder (`data_file.cache()`).

    Returns:
        A `Dataset` with features [training records, 7], machine by machine, and `label_bound` 1e5.

    Raises:
        ValueError: if a machine has fewer than 3 records, or the same age or bmi in all training records.
        DataError: if the file is malformed.
        DataNotFound: if there is no file.

    Source: Lowy & Razaviyayn 2023, experiments on linear regression, and the authors' code.
    """
    require_at_least("machines", machines, 1)
    require_at_least("trial", trial, 0)
    table = read_insurance(_find(path), rows=ROWS if path is None else None)
    groups = _cut(table[np.argsort(table[:, -1], kind="stable")], machines)
    rng = np.random.default_rng(trial)
    parts = [_standardised(*_split(group, rng), machine) for machine, group in enumerate(groups)]
    train, test = (np.concatenate(part).astype(np.float32) for part in zip(*parts, strict=True))
    sizes = [len(part[0]) for part in parts]
    return Dataset(
        features=train[:, :-1],
        labels=train[:, -1],
        test_features=test[:, :-1],
        test_labels=test[:, -1],
        feature_bound=_feature_bound(max(sizes)),
        classes=None,
        name="insurance",
        source="Choi, Medical cost personal datasets, Open Database License",
        label_bound=LIMITS["charges"],
        machine_of=np.repeat(np.arange(machines, dtype=np.int32), sizes),
        test_machine_of=np.repeat(np.arange(machines, dtype=np.int32), [len(part[1]) for part in parts]),
    )


def available() -> bool:
    """Return True if the file is found without an explicit path."""
    return any(place.is_file() for place in _places())


def read_insurance(path: Path, rows: int | None = None) -> np.ndarray:
    """Return the file as numbers: a constant 1, age, sex, bmi, children, smoker, region, charges; shape [records, 8].

    Args:
        rows: required number of records. None is any positive number.

    Raises:
        DataError: if a column is missing, a value is invalid, or the number of rows differs.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            missing = [column for column in COLUMNS if column not in (reader.fieldnames or ())]
            if missing:
                raise DataError(f"{path} must have the columns {', '.join(COLUMNS)}; missing: {', '.join(missing)}")
            table = [_record(row, f"{path} line {reader.line_num}") for row in reader]
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path} must be a text file of comma-separated values: {error}") from error
    if not table or rows not in (None, len(table)):
        raise DataError(f"{path} must hold {rows or 'at least 1'} records, got {len(table)}")
    return np.array(table)


def _record(row: dict, where: str) -> list[float]:
    if None in row:  # the reader's key for values beyond the header's columns
        raise DataError(f"{where} must have as many values as the header, got more")
    return [1.0] + [_value(column, (row[column] or "").strip(), where) for column in COLUMNS]


def _value(column: str, text: str, where: str) -> float:
    if column in CODES:
        if text not in CODES[column]:
            raise DataError(f"{where}: {column} must be one of {', '.join(CODES[column])}, got {text!r}")
        return float(CODES[column].index(text))
    try:
        value = float(text)
    except ValueError:
        raise DataError(f"{where}: {column} must be a number, got {text!r}") from None
    if not 0 <= value <= LIMITS[column]:
        raise DataError(f"{where}: {column} must be from 0 to {LIMITS[column]:.0f}, got {text}")
    return value


def _places() -> list[Path]:
    folder = os.environ.get("FEDPRIVJAX_DATA")
    return ([Path(folder) / FILE] if folder else []) + [cache() / FILE]


def _find(path: str | None) -> Path:
    places = _places() if path is None else [Path(path)]
    file = next((place for place in places if place.is_file()), None)
    if file is None:
        raise DataNotFound(
            f"cannot find {FILE}: not at {', nor at '.join(map(str, places))}; get {FILE} from Kaggle (Medical cost "
            f"personal datasets) or from github.com/stedy/Machine-Learning-with-R-datasets, and set FEDPRIVJAX_DATA "
            f"to the folder that holds it, or give its path"
        )
    return file


def _cut(table: np.ndarray, machines: int) -> list[np.ndarray]:
    each = -(-len(table) // machines)
    groups = [table[start : start + each] for start in range(0, len(table), each)]
    if len(groups) < machines or len(groups[-1]) < FEWEST:
        raise Refusal(
            f"machines must be so few that each has at least {FEWEST} of {len(table)} records in groups of "
            f"⌈{len(table)}/machines⌉, got {machines}"
        )
    return groups


def _split(group: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    held_out = -(-len(group) // 5)
    shuffled = rng.permutation(group)
    return shuffled[held_out:], shuffled[:held_out]


def _standardised(train: np.ndarray, test: np.ndarray, machine: int) -> tuple[np.ndarray, np.ndarray]:
    """Return both parts standardised by the training part, the test part clipped to the largest training deviation."""
    train, test, most = train.copy(), test.copy(), _largest_deviation(len(train))
    for column in STANDARDISED:
        if np.ptp(train[:, column]) == 0:
            raise Refusal(
                f"machines must be fewer: {COLUMNS[column - 1]} is the same in all {len(train)} training records of "
                f"machine {machine}"
            )
        mean, deviation = train[:, column].mean(), train[:, column].std(ddof=1)
        train[:, column] = (train[:, column] - mean) / deviation
        test[:, column] = np.clip((test[:, column] - mean) / deviation, -most, most)
    return train, test


def _largest_deviation(examples: int) -> float:
    """Return (n − 1)/√n, which one number attains if all others are equal."""
    return (examples - 1) / sqrt(examples)


def _feature_bound(examples: int) -> float:
    deviation = _largest_deviation(examples)
    codes = [len(words) - 1 for words in CODES.values()]
    return hypot(1.0, deviation, deviation, LIMITS["children"], *codes)
