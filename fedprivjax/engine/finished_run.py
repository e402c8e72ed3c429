"""Finished runs: everything that may be released, and with it the calibrated protocol and the plan."""

import json
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten
from typing import Any

import jax
import numpy as np

from fedprivjax.atomic_write import write_together
from fedprivjax.engine.hosts import is_first
from fedprivjax.engine.iterates import OUTPUT
from fedprivjax.engine.saved_run import PARAMS, RUN, npz_of, packed, plain, version_of
from fedprivjax.method.interface import Protocol
from fedprivjax.plan.plan import Plan
from fedprivjax.privacy.guarantee import PrivacyGuarantee


@dataclass(frozen=True, kw_only=True, repr=False)
class SavedRun:
    """One finished run without its protocol and plan, as `Run.save` writes it.

    Attributes:
        rounds: number of completed rounds at each evaluation; int, shape [evaluations].
        iterates: recorded metrics of each iterate and of the rounds, by name; float32 [evaluations]. "output" is the
            reported point; others are the protocol's, such as "last".
        params: reported point.
        guarantee: privacy guarantee of the run.
        costs: costs of one machine per round and of the whole run, see `ReadyRun.costs`, and `seconds`, the wall time
            with compilation, which differs between runs.
        method: protocol and its settings, as text.
        non_private_metrics: names of metrics computed on private data, which the guarantee does not cover.
        non_private_data: parts of the data computed from private records before the run, which the guarantee does not
            cover.
    """

    rounds: np.ndarray
    iterates: dict[str, dict[str, np.ndarray]]
    params: Any
    guarantee: PrivacyGuarantee
    costs: dict[str, float]
    method: str
    non_private_metrics: tuple[str, ...] = ()
    non_private_data: tuple[str, ...] = ()

    @property
    def metrics(self) -> dict[str, np.ndarray]:
        """Recorded metrics of the reported point and of the rounds, by name; float32 [evaluations]."""
        return self.iterates[OUTPUT]

    @property
    def diverged(self) -> bool:
        """True if any parameter or metric is not finite."""
        leaves = jax.tree.leaves((self.params, self.iterates))
        return not all(np.isfinite(leaf).all() for leaf in leaves)

    def save(self, path: str | Path) -> None:
        """Write the run into a folder: parameters as `params.npz`, the rest as `run.json`. `load_run` reads it.

        Both files are written together. They hold neither the plan, whose samples may be secret, nor training records.

        Args:
            path: folder, which is created. A run that it holds is replaced.

        Raises:
            Refusal: if the parameters are not an array, or nested dicts, lists and tuples of arrays.
            OSError: if a file cannot be written.

        >>> import tempfile
        >>> from fedprivjax import Ball, DPMu2, Full, Logistic, linear_problem, load_run, simulate
        >>> problem = linear_problem(np.eye(4), np.ones(4), Logistic(), constraint=Ball(1.0))
        >>> run = simulate(DPMu2(mu=1.0, clip=1.0), problem, Full(2), rounds=2)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     run.save(folder)
        ...     np.array_equal(load_run(folder).params, run.params)
        True
        """
        structure, leaves = packed(self.params)
        fields = {
            "version": version_of(),
            "params": structure,
            "rounds": plain(self.rounds),
            "iterates": plain(self.iterates),
            "guarantee": json.loads(self.guarantee.to_json()),
            "costs": plain(self.costs),
            "method": self.method,
            "non_private_metrics": list(self.non_private_metrics),
            "non_private_data": list(self.non_private_data),
        }
        if is_first():
            text = json.dumps(fields, indent=1, ensure_ascii=False)
            write_together({Path(path, PARAMS): npz_of(leaves), Path(path, RUN): text})

    def __str__(self) -> str:
        size = sum(int(np.size(leaf)) for leaf in jax.tree.leaves(self.params))
        last = ", ".join(f"{name} {values[-1]:.4g}" for name, values in self.metrics.items())
        private = f"ε = {self.guarantee.epsilon:.4g} at δ = {self.guarantee.delta:g} for {self.guarantee.unit}"
        lines = [
            f"Run: {self.rounds[-1]} rounds of {shorten(self.method, 100)}",
            f"parameters: {size}{', diverged' if self.diverged else ''}",
            f"last metrics: {shorten(last, 120) or 'none'}",
            f"privacy: {private if self.guarantee.private else 'non-private'}",
            f"wall time: {self.costs['seconds']:.3g} s",
        ]
        return "\n  ".join(lines)

    __repr__ = __str__


@dataclass(frozen=True, kw_only=True, repr=False)
class Run(SavedRun):
    """One finished run: a `SavedRun` with its protocol and plan.

    Attributes:
        protocol: calibrated protocol.
        plan: schedule and samples of the run. Only its public part, `plan.public`, may be released; text of a run
            contains no more.
    """

    protocol: Protocol
    plan: Plan

    @property
    def data_used(self) -> str:
        """Number and percentage of stored examples used by messages, as text; empty if the pool size is unknown."""
        return self.plan.data_used
