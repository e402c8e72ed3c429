"""Fingerprints of a run's inputs, and their comparison between the processes that compute a run together."""

import re
from dataclasses import Field, fields, is_dataclass
from importlib.metadata import version
from typing import Any
from weakref import finalize

import jax
import numpy as np

from fedprivjax.disk_cache import SHORT, code_version, digest
from fedprivjax.engine.hosts import require_all_hosts, require_equal, together
from fedprivjax.engine.prepare import ReadyRun
from fedprivjax.method.interface import as_leaves
from fedprivjax.method.parts import NamedByAlgorithm
from fedprivjax.problem.problem import Problem

HOST_CALL = re.compile(r'(custom_call @"?|call_target_name = ")[\w.]*callback|is_host_transfer = true')
HOISTED = "jax_use_simplified_jaxpr_constants"
_of_data: dict[int, str] = {}  # digests of data by `id` of live problems


def fingerprint(*parts) -> str:
    """Return a digest of pytrees of arrays, numbers and text."""
    leaves = jax.tree_util.tree_leaves_with_path(parts, is_leaf=lambda leaf: leaf is None)
    return digest(*[part for path, leaf in leaves for part in (jax.tree_util.keystr(path), _part(leaf))])[:SHORT]


def versions() -> dict[str, str]:
    """Return the versions that all processes of a run must share, by name."""
    code = f"{version('fedprivjax')} (code {code_version()})"
    return {"version of fedprivjax": code, "version of jax": jax.__version__}


def data_fingerprint(problem: Problem) -> str:
    """Return a digest of the training and test examples, computed once for a problem."""
    if id(problem) not in _of_data:
        _of_data[id(problem)] = fingerprint(problem.pool if problem.stored else None, problem.test)
        finalize(problem, _of_data.pop, id(problem), None)
    return _of_data[id(problem)]


def program_text(program: Any, *arguments: Any) -> str:
    """Return the text of a compiled program, which includes the code of user functions.

    Arrays that a function closes over stay constants of the program, regardless of the user's jax setting: as arguments
    they would be missing from its text.
    """
    hoisted = jax.config.values.get(HOISTED)
    if hoisted:
        jax.config.update(HOISTED, False)
    try:
        return program.lower(*arguments).as_text()
    finally:
        if hoisted:
            jax.config.update(HOISTED, hoisted)


def calls_host(text: str) -> bool:
    """Return True if a program's text has a host callback. Functions may have "callback" in their names.

    >>> calls_host("call @callback_loss(%0)"), calls_host("stablehlo.custom_call @xla_ffi_python_cpu_callback(%0)")
    (False, True)
    """
    return HOST_CALL.search(text) is not None


def require_equal_runs(start: ReadyRun) -> None:
    """Raise Refusal if the processes of a mesh have prepared different runs, or have other versions of the code."""
    require_all_hosts(start.static.mesh)
    if not together(start.static.mesh):
        return
    protocol, problem = as_leaves(start.protocol.traced), start.problem.traced
    static = start.static._replace(mesh=None, metrics=())
    names = [metric.name for metric in start.static.metrics]
    drawn = start.mechanism, start.inputs, start.host_noise, start.seeds
    settings = identity(protocol), protocol, problem, drawn, static, names
    require_equal({**versions(), "data": data_fingerprint(start.problem), "settings": fingerprint(settings)})


def identity(value: Any) -> str:
    """Return the module, qualified name and static fields of an object, and of the objects in its fields, as text.

    Numbers in leaves are left out, and so are addresses, which differ between processes.

    >>> from fedprivjax.problem.constraints import Ball
    >>> identity(Ball(1.0))
    'fedprivjax.problem.constraints.Ball(radius=*)'
    """
    if is_dataclass(value) and not isinstance(value, type):
        held = (f"{one.name}={_of_field(value, one)}" for one in fields(value))
        return f"{_path(type(value))}({', '.join(held)})"
    if isinstance(value, np.ndarray):
        return fingerprint(value)
    if isinstance(value, list | tuple):
        return f"({', '.join(map(identity, value))})"
    if callable(value):
        return _path(value)
    return repr(value) if value is None or isinstance(value, str | int | float) else _path(type(value))


def identity_of_parts(protocol: Any) -> str:
    """Return the identities of a pair's algorithm and privacy object, or "" for a named method.

    >>> from fedprivjax import FedExP, LocalEpochs, LocalPrivacy, Protocol
    >>> pair = Protocol(FedExP(), privacy=LocalPrivacy(work=LocalEpochs(1)), step_size=0.1)
    >>> identity_of_parts(pair).partition("; ")[0]
    'algorithm: fedprivjax.protocols.fedexp.FedExP(offset=*)'
    """
    if not isinstance(protocol, NamedByAlgorithm):
        return ""
    return "; ".join(f"{name}: {identity(getattr(protocol, name))}" for name in ("algorithm", "privacy"))


def _of_field(owner: Any, field: Field) -> str:
    """Return the identity of a field's value, or "*" for a leaf of a pytree."""
    part = getattr(owner, field.name)
    leaf = hasattr(owner, "_flax_dataclass") and field.metadata.get("pytree_node", True)
    return "*" if leaf and part is not None and not is_dataclass(part) else identity(part)


def _path(value: Any) -> str:
    named = value if hasattr(value, "__qualname__") else type(value)
    return f"{named.__module__}.{named.__qualname__}"


def _part(leaf: Any) -> Any:
    """Return the leaf in a form for `digest`: text, None or an array."""
    if isinstance(leaf, str) or leaf is None:
        return leaf
    array = np.asarray(leaf)
    if array.dtype == object:
        raise TypeError(f"fingerprint must be of arrays, numbers and text, got {leaf!r}")
    return array
