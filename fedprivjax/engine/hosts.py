"""Several processes of one job that compute together, on one host or on several: `jax.distributed`.

All processes run the same commands in the same order, and every device of theirs computes a part. The first process
alone reads and writes files, and sends the others what it has read, so that all take the same decisions. An error of
one process is raised by all, because the others would wait for it.
"""

import pickle
import platform
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np
from jax.experimental.multihost_utils import broadcast_one_to_all, process_allgather
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from fedprivjax.checks.refusal import Refusal

Value = TypeVar("Value")


class Failure(NamedTuple):
    """An exception, and the computer whose process has raised it."""

    error: Exception
    host: str


def together(mesh: Mesh | None) -> bool:
    """Return True if the devices of a mesh belong to several processes.

    >>> together(jax.make_mesh((1,), ("runs",))), together(None)
    (False, False)
    """
    return mesh is not None and len({device.process_index for device in mesh.devices.flat}) > 1


def require_all_hosts(mesh: Mesh | None) -> None:
    """Raise Refusal unless a mesh has devices of every process, or of this process alone."""
    processes = set() if mesh is None else {device.process_index for device in mesh.devices.flat}
    if mesh is not None and processes != {jax.process_index()} and len(processes) < jax.process_count():
        remedy = f"Use all {jax.device_count()} devices, or jax.local_devices()"
        raise Refusal(
            f"mesh must have devices of all {jax.process_count()} processes, got {len(processes)} of them. {remedy}"
        )


def local_of(devices: Sequence[Any]) -> list[Any]:
    """Return the devices of this process, or one of its devices if none is."""
    found = [device for device in devices if device.process_index == jax.process_index()]
    return found or jax.local_devices()[:1]


def is_first() -> bool:
    """Return True in the first process of the job, which alone reads and writes files, and reports."""
    return jax.process_index() == 0


def from_first(make: Callable[[], Value]) -> Value:
    """Return in all processes what a function returns in the first. It is not called in the others.

    >>> from_first(lambda: 3)
    3

    Raises:
        Exception: the exception of the first process, in all processes.
    """
    if jax.process_count() == 1:
        return make()
    sent = pickle.dumps(_attempted(make)) if is_first() else b""
    size = int(broadcast_one_to_all(np.uint32(len(sent))))
    padded = np.frombuffer(sent.ljust(size, b"\0"), np.uint8)
    return _value(pickle.loads(np.asarray(broadcast_one_to_all(padded)).tobytes()))


def on_all(make: Callable[[], Value]) -> Value:
    """Return what a function returns in this process, after it has returned in all.

    >>> on_all(lambda: 3)
    3

    Raises:
        Exception: the exception of the first process that has failed, in all processes.
    """
    if jax.process_count() == 1:
        return make()
    own = _attempted(make)
    failures = [failure for failure in exchanged(own if isinstance(own, Failure) else None) if failure is not None]
    if not failures:
        return _value(own)
    if len(failures) == jax.process_count():
        return _value(failures[0])
    error = Refusal(f"{failures[0].error} (on host {failures[0].host} only)")
    return _value(Failure(error, failures[0].host))


def require_equal(values: Mapping[str, str]) -> None:
    """Raise Refusal in all processes if a value differs between them.

    Args:
        values: texts by name. The message states the first that differs.
    """
    if jax.process_count() == 1:
        return
    first, *others = exchanged((platform.node(), dict(values)))
    for number, (host, theirs) in enumerate(others, 1):
        for name, value in first[1].items():
            if theirs[name] != value:
                got = f"{value} in process 0 on {first[0]}, {theirs[name]} in process {number} on {host}"
                remedy = f"Start all with the same {name}"
                raise at_all_hosts(Refusal(f"{name} must be equal in all processes, got {got}. {remedy}"))


def exchanged(value: Any) -> list[Any]:
    """Return the values of all processes, in their order."""
    sent = pickle.dumps(value)
    sizes = np.asarray(process_allgather(np.uint32(len(sent)))).reshape(-1)
    padded = np.frombuffer(sent.ljust(int(sizes.max()), b"\0"), np.uint8)
    return [pickle.loads(row.tobytes()) for row in np.asarray(process_allgather(padded))]


def replicated(arguments: Any, mesh: Mesh | None) -> Any:
    """Return a program's arguments with this process's arrays put on all devices of a mesh of several processes."""
    if mesh is None or not together(mesh):
        return arguments
    everywhere = NamedSharding(mesh, PartitionSpec())

    def one(leaf):
        local = isinstance(leaf, jax.Array) and leaf.is_fully_addressable
        return jax.make_array_from_process_local_data(everywhere, leaf) if local else leaf

    return jax.tree.map(one, arguments)


def local(results: Any) -> Any:
    """Return a program's results as arrays that this process can read.

    The results of a run that several processes compute together are replicated: every device holds a full copy. Each
    array is replaced by the copy on a device of this process.

    Args:
        results: a pytree of arrays.
    """
    return jax.tree.map(lambda leaf: leaf if leaf.is_fully_addressable else leaf.addressable_data(0), results)


def at_all_hosts(error: Exception) -> Exception:
    """Mark an error as raised in all processes, so that the first alone reports it."""
    error.at_all_hosts = True  # type: ignore[attr-defined]
    return error


def is_at_all_hosts(error: BaseException | None) -> bool:
    """Return True if an error or its cause was raised in all processes."""
    while error is not None:
        if getattr(error, "at_all_hosts", False):
            return True
        error = error.__cause__
    return False


def _attempted(make: Callable[[], Value]) -> Value | Failure:
    try:
        return make()
    except Exception as error:
        return Failure(_sendable(error), platform.node())


def _sendable(error: Exception) -> Exception:
    """Return an error that can be sent to other processes."""
    try:
        pickle.loads(pickle.dumps(error))
        return error
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")


def _value(found: Value | Failure) -> Value:
    if isinstance(found, Failure):
        raise at_all_hosts(found.error)
    return found
