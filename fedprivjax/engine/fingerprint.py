"""Fingerprints of a run's inputs, their comparison between processes, and everything that a run's numbers depend on."""

import hashlib
import re
from collections.abc import Callable
from dataclasses import Field, fields, is_dataclass, replace
from functools import cached_property
from importlib.metadata import version
from typing import Any
from weakref import finalize

import jax
import numpy as np

from fedprivjax.checks.refusal import Refusal
from fedprivjax.disk_cache import SHORT, code_version, digest
from fedprivjax.engine.hosts import require_all_hosts, require_equal, together
from fedprivjax.engine.prepare import ReadyRun
from fedprivjax.engine.segments import advance, begin_program, finish_program, per_round
from fedprivjax.method.protocol import Pair, as_leaves
from fedprivjax.problem.problem import Problem

HOST_CALL = re.compile(r'(custom_call @"?|call_target_name = ")[\w.]*callback|is_host_transfer = true')
HOISTED = "jax_use_simplified_jaxpr_constants"
OF_ROUNDS = ("plan", "noise over rounds", "noise from the host")  # parts of `per_round`
OF_DATA = "problem.pool", "problem.test"
DIGEST = "digest"  # marks texts that are not values
UNSALTED = "{}: unsalted checksums of private data, not covered by a guarantee"
COMPUTED = "computed from a seed, not stored"
_known: dict[tuple[Callable[[Any], str], int], str] = {}  # digests of live objects, by function and `id`


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
    return _once(_of_examples, problem)


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
    'algorithm: fedprivjax.protocols.fedexp.FedExP(offset=*, local=None, server=None, server_step=None)'
    """
    if not isinstance(protocol, Pair):
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


def fixed_parts(start: ReadyRun) -> dict[str, str]:
    """Return everything but arrays of rounds that a run depends on, as text by name."""
    static, terms = start.static, start.guarantee.terms
    secret = [one.name for one in terms.assumptions if one.name.startswith("secret")]
    mesh = None if static.mesh is None else dict(static.mesh.shape)
    return {
        **versions(),
        "device": jax.local_devices()[0].device_kind,
        "mesh": str(mesh),
        "precision": static.precision,
        "clipping": str(getattr(start.problem.model, "clipping", None)),
        "protocol": identity_of_parts(start.protocol) or type(start.protocol).__name__,
        "trust": terms.against,  # completed rounds are not more secret afterwards
        "secrecy": ", ".join(secret) or "nothing secret",
        "eval_every": str(static.eval_every),
        "metrics": ", ".join(metric.name for metric in static.metrics),
        "noise seed": str(start.seeds.noise),
        "data": f"{DIGEST} {data_fingerprint(start.problem)}",
        **_named(start.problem.traced, "problem."),
        **_named(as_leaves(start.protocol.traced)),
        "noise mechanism": f"{start.mechanism.name}, {DIGEST} {fingerprint(replace(start.mechanism, inputs=()))}",  # type: ignore[type-var]
    }


class Prefix:
    """Digests of a run's arrays of rounds, of their first rounds, by name. They are extended, never shortened."""

    def __init__(self, start: ReadyRun):
        self._start, self._rounds, self._found = start, 0, {}

    @cached_property
    def _leaves(self) -> dict[str, np.ndarray]:
        parts = zip(OF_ROUNDS, (self._start.inputs, self._start.mechanism.inputs, self._start.host_noise), strict=True)
        return {
            f"{part}{jax.tree_util.keystr(path)}": np.asarray(leaf)
            for part, tree in parts
            for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
        }

    def to(self, rounds: int) -> dict[str, str]:
        """Return the digests of the first rounds, at least as many as before."""
        for name, leaf in self._leaves.items():
            found = self._found.setdefault(name, hashlib.sha256(repr((leaf.shape[1:], leaf.dtype.str)).encode()))
            found.update(np.ascontiguousarray(leaf[self._rounds : rounds]).data)
        self._rounds = rounds
        return {name: f"{DIGEST} {found.hexdigest()[:SHORT]}" for name, found in self._found.items()}


def program_digest(start: ReadyRun) -> str:
    """Return a digest of the text of a run's programs.

    They are lowered for the rounds of one evaluation, so that the text does not contain the number of rounds.

    Raises:
        Refusal: if a program calls the host, because its text does not contain the called function.
    """
    arguments, static = start.arguments, start.static
    inputs, drawn, host_noise = jax.tree.map(lambda leaf: leaf[: static.eval_every], per_round(arguments))
    mechanism = replace(arguments.mechanism, inputs=drawn)  # type: ignore[type-var]
    cut = arguments._replace(inputs=inputs, mechanism=mechanism, host_noise=host_noise)
    carry, values = jax.eval_shape(lambda arguments: begin_program(arguments, static, 1), cut)
    at = np.int32(0), np.int32(1)
    texts = [
        program_text(begin_program, cut, static, 1),
        program_text(advance, cut, carry, values, *at, static, static.eval_every),
        program_text(finish_program, cut, carry, static),
    ]
    if any(map(calls_host, texts)):
        remedy = "Remove the callback, or run without folder"
        raise Refusal(f"protocol and metrics must not call the host in a run with folder, got a callback. {remedy}")
    return f"{DIGEST} {fingerprint(*texts)}"


def _named(tree: Any, before: str = "") -> dict[str, str]:
    """Return the leaves of a pytree but data as text, by name: numbers, and digests of arrays."""
    found = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        name = before + jax.tree_util.keystr(path).lstrip(".")
        if not name.startswith(OF_DATA):
            array = np.asarray(leaf)
            found[name] = str(array[()]) if array.ndim == 0 else f"{DIGEST} {fingerprint(array)}"
    return found


def data_checksums(problem: Problem) -> dict[str, str]:
    """Return the SHA-256 of the bytes (in C order, as in memory) of every array of examples, by name.

    No guarantee covers the checksums, because they are computed from private data. The checksum of a small dataset
    confirms a correct guess of the whole dataset.

    >>> from fedprivjax import Squared, linear_problem
    >>> found = data_checksums(linear_problem(np.eye(2), np.zeros(2), Squared()))
    >>> list(found), found["training.label"] == hashlib.sha256(bytes(8)).hexdigest()
    (['training.features', 'training.label', 'training.feature_norm'], True)
    """
    parts = {"training": problem.pool if problem.stored else None, "test": problem.test}
    found = {
        f"{part}{jax.tree_util.keystr(path)}": _once(_checksum, leaf)
        for part, examples in parts.items()
        for path, leaf in jax.tree_util.tree_leaves_with_path(examples)
    }
    return found if problem.stored else {"training": COMPUTED, **found}


def _once(digest_of: Callable[[Any], str], live: Any) -> str:
    """Return the digest of an object, computed once while the object lives."""
    key = digest_of, id(live)
    if key not in _known:
        _known[key] = digest_of(live)
        finalize(live, _known.pop, key, None)
    return _known[key]


def _of_examples(problem: Problem) -> str:
    clients = () if problem.test_clients is None else (problem.test_clients,)
    return fingerprint(problem.pool if problem.stored else None, problem.test, *clients)


def _checksum(leaf: Any) -> str:
    return hashlib.sha256(np.ascontiguousarray(leaf).data).hexdigest()
