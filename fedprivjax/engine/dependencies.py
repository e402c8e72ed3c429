"""Everything that the numbers of a run depend on, by name: as text, and as digests of its first rounds."""

import hashlib
from dataclasses import replace
from functools import cached_property
from typing import Any

import jax
import numpy as np

from fedprivjax.checks.refusal import Refusal
from fedprivjax.disk_cache import SHORT
from fedprivjax.engine.fingerprint import (
    calls_host,
    data_fingerprint,
    fingerprint,
    identity_of_parts,
    program_text,
    versions,
)
from fedprivjax.engine.prepare import ReadyRun
from fedprivjax.engine.segments import advance, begin_program, finish_program
from fedprivjax.engine.trajectory import per_round
from fedprivjax.method.interface import as_leaves

OF_ROUNDS = ("plan", "noise over rounds", "noise from the host")  # parts of `per_round`
OF_DATA = "problem.pool", "problem.test"
DIGEST = "digest"  # marks texts that are not values


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
        "protocol": identity_of_parts(start.protocol) or type(start.protocol).__name__,
        "trust": terms.trust,  # completed rounds are not more secret afterwards
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
