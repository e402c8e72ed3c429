"""Reader and checker of fedprivjax's reference vectors. It needs NumPy alone; copy this file into your project.

    from check_vectors import check, load

    def step(inputs, state):
        ...
        return {"query": x, "messages": messages, "params": x}, state

    for name, case in load("dp_mu2.npz").items():
        check(case, step)

A step computes one round. Its outputs are compared with the recorded ones, in the order in which a round computes them.
The README next to this file describes the arrays.
"""

import json
import zlib
from hashlib import sha256
from types import SimpleNamespace
from zipfile import BadZipFile

import numpy as np

FORMAT = 1
DATA = ("features", "labels", "partition", "start")  # without a leading axis of rounds
INPUTS = ("participants", "scheduled", "staleness", "answer_weights", "records", "weights", "mixing")
INPUTS += ("message_noise", "server_noise", "step_noise")
ORDER = ("query", "local_steps", "messages", "info", "state", "iterate", "params")
SLOTS = ("local_steps", "messages")  # their first axis is that of the slots: empty slots are not compared


class VectorError(ValueError):
    """Vectors that cannot be read, or outputs that cannot be compared."""


class Difference(AssertionError):
    """The first quantity that differs: `round` from 1, `quantity`, relative `distance`, and `slot` or None."""

    def __init__(self, text, round, quantity, distance, slot):
        super().__init__(text)
        self.round, self.quantity, self.distance, self.slot = round, quantity, distance, slot


def load(path):
    """Return the cases of a file by name. Each has the parts `name`, `header` (a dict) and `arrays` (by name)."""
    try:
        with open(path, "rb") as stream, np.load(stream, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        header = json.loads(str(arrays["header"]))
        version, cases = header["format"], header["cases"]
    except FileNotFoundError:
        raise VectorError(f"{path} must be a file, got none of this name") from None
    except (OSError, ValueError, KeyError, EOFError, TypeError, RuntimeError, BadZipFile, zlib.error) as error:
        raise VectorError(f"{path} must hold reference vectors, got {type(error).__name__}") from None
    if version != FORMAT:
        raise VectorError(f"{path} must have format {FORMAT}, got format {version}. Copy the checker of that format")
    read = {}
    for name, case in cases.items():
        own = {key.partition("/")[2]: value for key, value in arrays.items() if key.startswith(name + "/")}
        if checksum(own) != case["sha256"]:
            raise VectorError(f"{path} must have the arrays of its header, got others in case {name!r}. Copy it again")
        read[name] = SimpleNamespace(name=name, header=case, arrays=own)
    return read


def checksum(arrays):
    """Return the SHA-256 of the arrays' names, types, shapes and bytes, in the order of their names."""
    digest = sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        digest.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def check(vectors, step, tolerance=1e-4):
    """Run `step(inputs, state) -> (outputs, state)` over all rounds, and raise `Difference` at the first difference.

    `state` is None in the first round. `outputs` is a dict with any of the names of `compared(vectors)`.
    Returns the names that were compared. A name must be returned in at least one round.
    """
    state, seen = None, set()
    for t in range(1, vectors.header["rounds"] + 1):
        returned = step(inputs_of(vectors, t), state)
        if not (isinstance(returned, tuple) and len(returned) == 2 and isinstance(returned[0], dict)):
            raise VectorError(f"step must return (outputs, state) with a dict of outputs, got {returned!r:.60}")
        outputs, state = returned
        unknown = sorted(set(outputs) - set(compared(vectors)))
        if unknown:
            raise VectorError(f"outputs must be among {', '.join(compared(vectors))}, got {unknown[0]!r}")
        for name in compared(vectors):
            if name in outputs:
                _compare(vectors, t, name, outputs[name], tolerance)
                seen.add(name)
    if not seen:
        raise VectorError("outputs must have at least one quantity, got none. Return {'params': ...}")
    return sorted(seen)


def compared(vectors):
    """Return the names of the recorded quantities, in the order in which a round computes them."""
    names = [name for name in vectors.arrays if name not in (*DATA, *INPUTS, *vectors.header["given"], "final")]
    return sorted((name for name in names if _kind(name) in ORDER), key=lambda name: ORDER.index(_kind(name)))


def inputs_of(vectors, t):
    """Return what an implementation needs in round t (from 1), a dict.

    `round`, `participants` [slots], `records`, `features` and `labels` of the round's records (zeros and label 0 where
    there is none), `weights`, the round's noise (`message_noise`, `server_noise`, `step_noise`, if there is any),
    `settings`, `machines`, `per_round`, `rounds`, `divisor`, `local_steps`, `start` [d], `header`, the given
    quantities, and `data`, all records of all machines.
    """
    arrays, header = vectors.arrays, vectors.header
    inputs = {"round": t, "settings": header["settings"], "header": header}
    inputs |= {name: header[name] for name in ("machines", "per_round", "rounds", "divisor", "local_steps")}
    inputs["start"] = arrays["start"].copy()
    inputs |= {
        name: value[t - 1].copy() for name, value in arrays.items() if _kind(name) in INPUTS or name in header["given"]
    }
    records = inputs["records"]
    used = records >= 0
    inputs["features"] = np.where(used[..., None], arrays["features"][records], 0)
    inputs["labels"] = np.where(used, arrays["labels"][records], 0)
    inputs["data"] = {name: arrays[name] for name in ("features", "labels", "partition") if name in arrays}
    return inputs


def _compare(vectors, t, name, value, tolerance):
    recorded = np.asarray(vectors.arrays[name], float)
    expected, value = recorded[t - 1], np.asarray(value, float)
    if value.shape != expected.shape:
        if value.size != expected.size:
            raise VectorError(f"round {t}: {name} must have shape {expected.shape}, got {value.shape}")
        value = value.reshape(expected.shape)
    slots = name in SLOTS
    if slots:
        filled = vectors.arrays["participants"][t - 1] >= 0
        value = np.where(filled.reshape(-1, *[1] * (value.ndim - 1)), value, 0)
    if not np.isfinite(value).all():
        raise VectorError(f"round {t}: {name} must be finite, got {value[~np.isfinite(value)].flat[0]}")
    norm = np.linalg.norm(expected) or np.linalg.norm(recorded) / len(recorded) ** 0.5 or 1.0
    distance = np.linalg.norm(value - expected) / norm
    if distance <= tolerance:
        return
    slot, where = None, ""
    if slots:
        slot = int(np.argmax(np.linalg.norm((value - expected).reshape(len(value), -1), axis=1)))
        where = f" (slot {slot})"
    raise Difference(f"round {t}: {name} differs by {distance:.2g} of its norm{where}", t, name, distance, slot)


def _kind(name):
    return name.partition(".")[0]
