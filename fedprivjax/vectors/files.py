"""Files of reference vectors: one archive for each method, with the arrays of its cases and a JSON header.

The header has the settings, the guarantee and the arrays of every case as JSON values.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from hashlib import sha256
from importlib.metadata import version
from inspect import isfunction
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from fedprivjax.atomic_write import write_atomically
from fedprivjax.bounded_read import arrays_from, json_value
from fedprivjax.checks.refusal import Refusal
from fedprivjax.engine.finished_run import plain
from fedprivjax.engine.prepare import ReadyRun
from fedprivjax.method.known_work import KnownWork
from fedprivjax.protocols.registry import METHODS
from fedprivjax.vectors.cases import CASES, MACHINES, Case, partition, recorded, records

FORMAT = 1  # increased if files change so that earlier checkers cannot read them
DESCRIPTIONS = {
    "features": "features of every record, [records, features]",
    "labels": "label of every record, [records]",
    "partition": "records of every machine, [machines, most], -1 where there is none",
    "start": "parameters before the first round, [d], a matrix [classes, features] in row order",
    "participants": "machine of every slot that sends, [rounds, slots], -1 in empty slots",
    "scheduled": "machine of every slot, machines that drop out included, [rounds, slots], -1 in empty slots",
    "staleness": "steps of the server since the point from which every answer starts, [rounds, slots]",
    "answer_weights": "factor of every answer in the sum of its round, [rounds, slots]",
    "records": "record indices of every message, [rounds, slots] or [rounds, slots, records], -1 where there is none",
    "weights": "weight of every record in its message, [rounds, slots, records], 0 where there is none",
    "mixing": "weights of gossip in the round, [rounds, machines, machines]",
    "query": "point at which machines compute gradients in the round, [rounds, d]",
    "messages": "message of every slot as it is sent, noise included, [rounds, slots, numbers], 0 in empty slots",
    "local_steps": "difference of parameters in every local step, [rounds, slots, steps, d]",
    "message_noise": "noise of every message as it is added to it, [rounds, slots, numbers]",
    "server_noise": "noise that the server adds to its aggregate, [rounds, numbers]",
    "step_noise": "noise in the gradient of every local step, [rounds, slots, steps, d]",
    "params": "reported parameters after the round, [rounds, d]",
    "final": "reported parameters after the last round, [d]",
    "iterate": "another iterate after the round, [rounds, d]",
    "state": "a part of the method's state after the round, [rounds, ...]",
    "info": "a scalar of the round, [rounds]",
}
HEADER = "header"
TOLERANCE = 1e-6  # of an array's norm
OMITTED = ("slack", "known")  # of a bound, and what is read of an algorithm


def header_text(cases: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the header of a file as JSON."""
    head = {"format": FORMAT, "fedprivjax": version("fedprivjax"), "cases": dict(cases)}
    return json.dumps(head, sort_keys=True, ensure_ascii=False, allow_nan=False)


def case_header(method: str, case: Case, start: ReadyRun, arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Return the header of one case.

    Args:
        method: name of the method.
        case: settings of the run.
        start: the prepared run.
        arrays: all arrays of the case by name.
    """
    problem, schedule, sampler = start.problem, start.plan.schedule, start.protocol.minibatches
    cut = getattr(sampler, "cut", None)
    return {
        "method": method,
        "settings": _settings(start.protocol),
        "participation": described(case.participation),
        "sampler": None if sampler is None else described(sampler),
        "machines": MACHINES,
        "per_round": schedule.size.per_round,
        "rounds": schedule.size.rounds,
        "divisor": float(schedule.divisor),
        "local_steps": None if cut is None else int(cut(start.plan.samples.shape[-1])),
        "loss": described(getattr(problem.model, "loss", None)),
        "constraint": described(problem.constraint),
        "guarantee": guarantee(start),
        "given": list(case.given),
        "arrays": {name: description(name) for name in arrays},
        "sha256": checksum(arrays),
    }


def _settings(protocol: Any) -> dict[str, Any]:
    """Return the fields of a calibrated protocol by name, except `OMITTED`, and the classes of its local steps."""
    own = {each.name: getattr(protocol, each.name) for each in fields(protocol) if each.name not in OMITTED}
    if isinstance(protocol.known, KnownWork):
        own["slot_classes"] = protocol.known.slot_classes
    return {name: described(value) for name, value in own.items()}


def guarantee(start: ReadyRun) -> dict[str, Any] | None:
    """Return the privacy guarantee of a prepared run as JSON values, or None if the run has no noise.

    The keys are `epsilon`, `delta`, `mu`, `unit`, `relation`, `trust` and `theorem`.
    """
    stated = start.guarantee
    if not stated.private:
        return None
    terms = stated.terms
    known = {"unit": terms.unit, "relation": terms.relation, "trust": terms.trust, "theorem": terms.theorem}
    mu = None if stated.mus is None else float(np.max(stated.mus.values))
    return plain({"epsilon": float(stated.epsilon), "delta": stated.delta, "mu": mu, **known})


def described(value: Any) -> Any:
    """Return an object as its class and settings, a function as its name, and other values unchanged."""
    if is_dataclass(value) and not isinstance(value, type):
        own = {each.name: getattr(value, each.name) for each in fields(value)}
        return {"class": type(value).__name__, "settings": {name: described(each) for name, each in own.items()}}
    as_dict = getattr(value, "_asdict", None)
    value = value if as_dict is None else as_dict()
    if isinstance(value, Mapping):
        return {str(name): described(each) for name, each in value.items()}
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, list | tuple):
        return [described(each) for each in value]
    if isfunction(value):
        return value.__name__
    return plain(value) if isinstance(value, int | float) or hasattr(value, "tolist") else str(value)


def description(name: str) -> str:
    """Return the description of an array, with the part of the state or of the noise that it is."""
    kind, _, part = name.partition(".")
    return DESCRIPTIONS[kind] + (f": {part}" if part else "")


def checksum(arrays: Mapping[str, np.ndarray]) -> str:
    """Return the SHA-256 of the arrays' names, types, shapes and bytes, in the order of their names."""
    digest = sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        digest.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


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
    for name, case in CASES[method].items():
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
