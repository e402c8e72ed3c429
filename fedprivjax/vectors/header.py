"""Header of reference vectors: settings, guarantee and arrays of every case as JSON values."""

import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from hashlib import sha256
from importlib.metadata import version
from inspect import isfunction
from typing import Any

import numpy as np

from fedprivjax.engine.finished_run import plain
from fedprivjax.engine.prepare import ReadyRun
from fedprivjax.method.composed import Known
from fedprivjax.method.known_work import KnownWork
from fedprivjax.vectors.settings import MACHINES, Case

FORMAT = 1  # increased if files change so that earlier checkers cannot read them
DESCRIPTIONS = {
    "features": "features of every record, [records, features]",
    "labels": "label of every record, [records]",
    "partition": "records of every machine, [machines, most], -1 where there is none",
    "start": "parameters before the first round, [d], a matrix [classes, features] in row order",
    "participants": "machine of every slot that sends, [rounds, slots], -1 in empty slots",
    "scheduled": "machine of every slot, machines that drop out included, [rounds, slots], -1 in empty slots",
    "records": "record indices of every message, [rounds, slots] or [rounds, slots, records], -1 where there is none",
    "weights": "weight of every record in its message, [rounds, slots, records], 0 where there is none",
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
    """Return all fields of a calibrated protocol by name, except what is read of its algorithm, and a bound's slack."""
    own = {each.name: getattr(protocol, each.name) for each in fields(protocol) if each.name != "slack"}
    return {name: described(value) for name, value in own.items() if not isinstance(value, Known | KnownWork)}


def guarantee(start: ReadyRun) -> dict[str, Any] | None:
    """Return ε, μ, δ, unit, relation and trust of the run's guarantee, or None without noise."""
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
