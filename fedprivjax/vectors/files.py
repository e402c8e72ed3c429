"""Files of reference vectors: one archive for each method, with the arrays of its cases and a JSON header."""

import json
from collections.abc import Iterator, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from fedprivjax.atomic_write import write_atomically
from fedprivjax.bounded_read import arrays_from, json_value
from fedprivjax.checks.refusal import Refusal
from fedprivjax.protocols.registry import METHODS
from fedprivjax.vectors.cases import CASES
from fedprivjax.vectors.header import FORMAT, case_header, header_text
from fedprivjax.vectors.recording import recorded
from fedprivjax.vectors.settings import Case, partition, records

HEADER = "header"
TOLERANCE = 1e-6  # of an array's norm


def write_vectors(folder: Path) -> Iterator[Path]:
    """Write the reference vectors of every method to a folder, and yield their paths."""
    for method in CASES:
        path = folder / f"{method}.npz"
        arrays = file_arrays(method)
        write_atomically(path, npz_bytes(arrays))
        yield path


def check_vectors(folder: Path) -> Iterator[tuple[Path, list[str]]]:
    """Compare files with the arrays of today's code, and yield each file with its differences, one line each.

    Raises:
        Refusal: if a file is missing, damaged, or of another format.
    """
    for method in CASES:
        path = folder / f"{method}.npz"
        stored = read_arrays(path)
        yield path, differences(stored, file_arrays(method))


def file_arrays(method: str) -> dict[str, np.ndarray]:
    """Return the arrays of a method's file by name, its header included."""
    arrays: dict[str, np.ndarray] = {}
    headers = {}
    for name, case in CASES[method]().items():
        of_case, headers[name] = case_arrays(method, case)
        arrays |= {f"{name}/{array}": value for array, value in of_case.items()}
    return {HEADER: np.array(header_text(headers)), **arrays}


def case_arrays(method: str, case: Case) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Return the arrays of one case by name, and its header."""
    start = case.ready(METHODS[method])
    features, labels = records()
    owned = partition(case.data)
    data = {"features": features, "labels": labels}
    data |= {} if owned is None else {"partition": owned.astype(np.int32)}
    arrays = {name: np.asarray(array) for name, array in (data | recorded(start)).items()}
    arrays["final"] = arrays["params"][-1]
    return arrays, case_header(method, case, start, arrays)


def npz_bytes(arrays: Mapping[str, np.ndarray]) -> bytes:
    """Return arrays as a compressed `.npz` archive. The same arrays give the same bytes."""
    file = BytesIO()
    values: dict[str, Any] = dict(arrays)
    np.savez_compressed(file, **values)
    return file.getvalue()


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """Return the arrays of a file by name.

    Raises:
        Refusal: if the file is missing, damaged, or of another format.
    """
    try:
        arrays = arrays_from(path)
        header = json_value(str(arrays[HEADER]))
        version, _ = header["format"], header["cases"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Refusal(
            f"{path} must hold reference vectors, got {type(error).__name__}. Run `fedprivjax vectors`"
        ) from None
    if version != FORMAT:
        raise Refusal(f"{path} must have format {FORMAT}, got format {version}. Run `fedprivjax vectors`")
    return arrays


def differences(stored: Mapping[str, np.ndarray], new: Mapping[str, np.ndarray]) -> list[str]:
    """Return a line for every difference of two files' arrays and headers.

    Arrays and stated numbers differ if they are apart by more than `TOLERANCE` of their norm.
    """
    lines = [f"{name}: only in the file" for name in stored if name not in new]
    for name, value in new.items():
        if name == HEADER:
            lines += _header_differences(*(json.loads(str(each[HEADER]))["cases"] for each in (stored, new)))
            continue
        if name not in stored or stored[name].shape != value.shape or stored[name].dtype != value.dtype:
            lines.append(f"{name}: missing in the file, or of another shape or type")
            continue
        apart = np.linalg.norm(np.asarray(stored[name], float) - np.asarray(value, float))
        norm = np.linalg.norm(np.asarray(stored[name], float))
        if not apart <= TOLERANCE * norm:
            lines.append(f"{name}: differs by {apart / norm if norm else np.inf:.2g} of its norm")
    return lines


def _header_differences(stored: Any, new: Any, at: str = HEADER) -> list[str]:
    """Return a line for every value of a header that differs. Checksums follow from the arrays."""
    if isinstance(stored, dict) and isinstance(new, dict):
        names = sorted({*stored, *new} - {"sha256"})
        return [line for name in names for line in _header_differences(stored.get(name), new.get(name), f"{at}/{name}")]
    if isinstance(stored, float) and isinstance(new, float):
        equal = abs(stored - new) <= TOLERANCE * abs(stored)
    else:
        equal = stored == new
    return [] if equal else [f"{at}: {stored!r} in the file, now {new!r}"]
