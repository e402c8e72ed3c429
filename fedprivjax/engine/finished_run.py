"""Finished runs: everything that may be released, with the calibrated protocol and the plan, and their files.

A saved run is an archive of arrays, its parameters, and JSON, everything else.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from math import isfinite
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from fedprivjax.atomic_write import write_together
from fedprivjax.checks.printable import printable
from fedprivjax.checks.refusal import Refusal
from fedprivjax.engine.hosts import is_first
from fedprivjax.engine.kept_state import OWN, Kept
from fedprivjax.engine.metric import OUTPUT
from fedprivjax.engine.packing import npz_of, packed
from fedprivjax.method.protocol import Protocol
from fedprivjax.plan.plan import Plan
from fedprivjax.privacy.guarantee import PrivacyGuarantee
from fedprivjax.problem.predictor import Predictor

if TYPE_CHECKING:
    import xarray as xr

ARCHIVE, RUN = "params.npz", "run.json"
FORMAT = 1  # increased if files change so that earlier versions cannot read them


def version_of() -> dict[str, Any]:
    """Return the format of the files and the package's version."""
    return {"format": FORMAT, "fedprivjax": version("fedprivjax")}


def plain(value: Any) -> Any:
    """Return arrays and numbers, nested in mappings, as JSON values. Numbers that are not finite become text.

    >>> plain({"loss": np.array([1.0, np.nan])})
    {'loss': [1.0, 'nan']}
    """
    if isinstance(value, Mapping):
        return {name: plain(each) for name, each in value.items()}
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return str(value) if isinstance(value, float) and not isfinite(value) else value


@dataclass(frozen=True, kw_only=True, repr=False)
class SavedRun:
    """One finished run without its protocol and plan, as `Run.save` writes it.

    Attributes:
        rounds: number of completed rounds at each evaluation; int, shape [evaluations].
        iterates: recorded metrics by name, for each iterate by name; float32 [evaluations], and a further axis for
            vectors. The iterate "output" is the reported point, and also has the metrics of the rounds. Other iterates
            are those of the protocol, such as "last".
        params: reported parameters.
        guarantee: privacy guarantee of the run.
        costs: costs of one machine per round and of the whole run, see `ReadyRun.costs`, and `seconds`, the wall time
            with compilation. This time differs between runs.
        expected: names of costs that are expected values, because samples or participation are secret.
        method: protocol and its settings, as text.
        predictor: loss, network and preparation of raw rows, or None if the model is a custom function.
        kept: states of machines after the run, with the models of clients, or None. No guarantee covers them.
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
    predictor: Predictor | None = None
    kept: Kept | None = None
    non_private_metrics: tuple[str, ...] = ()
    non_private_data: tuple[str, ...] = ()
    expected: tuple[str, ...] = ()

    @property
    def metrics(self) -> dict[str, np.ndarray]:
        """Recorded metrics of the reported point and of the rounds, by name; float32 [evaluations]."""
        return self.iterates[OUTPUT]

    @property
    def diverged(self) -> bool:
        """True if any parameter or metric is not finite."""
        leaves = jax.tree.leaves((self.params, self.iterates))
        return not all(np.isfinite(leaf).all() for leaf in leaves)

    @property
    def own(self) -> Any:
        """States of machines after the run, a pytree with leaves [machines, ...], or None. No guarantee covers them."""
        return None if self.kept is None else self.kept.own

    def model_of(self, client: str | int) -> Any:
        """Return the parameters of a client's model, by name or index. No guarantee covers them."""
        if self.kept is None:
            remedy = "Use a method whose machines keep a state, with keep_own = True"
            raise Refusal(f"client must go with a run whose machines keep a state, got one without. {remedy}")
        return self.kept.of(self.params, client)

    def predict(self, rows: Any, client: str | int | None = None) -> np.ndarray:
        """Return the prediction of each row: a class by name or number, or a value in the target's units; shape [rows].

        Rows are prepared as the training data. An array has raw rows, without the constant, or prepared rows, like
        `Dataset.features`. Its values may exceed the bounds, which matter for training only.

        **Privacy.** Predictions are post-processing of the parameters: the guarantee for the training data covers them,
        for any rows and number of rows. The guarantee does not protect the rows themselves. Predictions with the model
        of a client are for this client alone, because no guarantee covers them.

        Args:
            rows: array [rows, features], or images [rows, height, width] or [rows, height, width, channels]. For data
                of a table: a pandas DataFrame with its columns, for which the target is not needed, or prepared rows.
                Values outside of public bounds are moved to them, with a warning. If the data went through feature maps
                (`features.mapped`), rows must be prepared and mapped, too.
            client: name or index of the client whose model predicts, or None for the reported parameters.

        Raises:
            Refusal: if rows are not finite numbers, have another width or lack a column. Also if a category is neither
                in the training data nor in the public list, or if the model is a custom function.

        >>> from fedprivjax import Ball, DPMu2, Full, datasets, from_dataset, simulate
        >>> data = datasets.load("digits")
        >>> run = simulate(DPMu2(mu=8.0, clip=1.6), from_dataset(data, constraint=Ball(8.0)), Full(20), seed=1)
        >>> bool((run.predict(data.test_features) == data.test_labels).mean() > 0.7)
        True
        """
        params = self.params if client is None else self.model_of(client)
        return self._require_predictor().predict(params, rows)

    @property
    def coefficients(self) -> "xr.DataArray":
        """Parameters of a linear predictor, [feature] or [class, feature] with names; they apply to prepared features.

        Raises:
            Refusal: if the model is not a linear predictor.
        """
        import xarray as xr

        predictor = self._require_predictor()
        if predictor.network is not None:
            raise Refusal("coefficients must be those of a linear predictor, got a network. Use run.params")
        params, names = np.asarray(self.params), {"feature": predictor.rows.feature_names()}
        if params.ndim == 2:
            names = {"class": list(predictor.rows.classes) or np.arange(len(params)), **names}
        return xr.DataArray(params, names, list(names), "coefficients")

    def _require_predictor(self) -> Predictor:
        if self.predictor is None:
            raise Refusal(
                "predictor must be a linear predictor or a network that is known, got none. "
                "Use run.params, or for a saved run load_run(path, problem)"
            )
        return self.predictor

    def save(self, path: str | Path) -> None:
        """Write the run into a folder: parameters as `params.npz`, the rest as `run.json`. `load_run` reads it.

        The files are written together. They hold neither the plan, whose samples may be secret, nor training records.
        They hold the preparation of raw rows, with its parts in `non_private_data`, but no network. States of
        machines are in a third file, `own.npz`, which no guarantee covers: do not publish it.

        Args:
            path: folder, which is created. A run in this folder is replaced.

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
            "expected": list(self.expected),
            "method": self.method,
            "predictor": plain(None if self.predictor is None else self.predictor.as_mapping()),
            "non_private_metrics": list(self.non_private_metrics),
            "non_private_data": list(self.non_private_data),
        }
        if is_first():
            text = json.dumps(fields, indent=1, ensure_ascii=False)
            files: dict[Path, Any] = {Path(path, ARCHIVE): npz_of(leaves), Path(path, RUN): text}
            if self.kept is not None:
                files[Path(path, OWN)] = self.kept.writer(self.params)
            Path(path, OWN).unlink(missing_ok=True)  # file of an earlier run
            write_together(files)

    def __str__(self) -> str:
        size = sum(int(np.size(leaf)) for leaf in jax.tree.leaves(self.params))
        last = ", ".join(f"{name} {values[-1]:.4g}" for name, values in self.metrics.items() if values.ndim < 2)
        private = f"ε = {self.guarantee.epsilon:.4g} at δ = {self.guarantee.delta:g} for {self.guarantee.unit}"
        lines = [
            f"Run: {self.rounds[-1]} rounds of {shorten(self.method, 140, placeholder=' …')}",
            f"parameters: {size}{', diverged' if self.diverged else ''}",
            f"last metrics: {shorten(last, 120, placeholder=' …') or 'none'}",
            f"privacy: {private if self.guarantee.private else 'non-private'}",
            f"wall time: {self.costs['seconds']:.3g} s",
            *["own: states of machines, each for its machine alone, not covered"] * (self.kept is not None),
            *self._warnings(),
        ]
        return printable("\n  ".join(lines))

    __repr__ = __str__

    def _warnings(self) -> list[str]:
        """Return lines at the end of the text of a run."""
        return []


@dataclass(frozen=True, kw_only=True, repr=False)
class Run(SavedRun):
    """One finished run: a `SavedRun` with its protocol and plan.

    Attributes:
        protocol: calibrated protocol.
        plan: schedule and samples of the run. Only its public part, `plan.public`, may be released; text of a run
            contains no more.
        data_used: number and percentage of stored examples that messages use, as text. For secret samples or cohorts,
            it is an expected value. If examples are computed on demand, or if the guarantee hides numbers of records,
            the text says this instead.
        worse_than_constant: texts on metrics whose last value is worse than the value of the best constant prediction,
            with both values. The constant is computed from the training labels, without privacy. `save` does not write
            them.
    """

    protocol: Protocol
    plan: Plan
    data_used: str = ""
    worse_than_constant: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    @property
    def hours(self) -> np.ndarray | None:
        """Simulated hours at each evaluation, float64 [evaluations], or None if the participation has no delays."""
        hours = self.plan.schedule.hours
        return None if hours is None else hours[self.rounds - 1]

    def _warnings(self) -> list[str]:
        return [
            f"{name} {last} is worse than the constant predictor ({constant}, not private). See 'Why is a result worse "
            f"than the constant predictor?' in the FAQ (notebooks/faq.md)"
            for name, (last, constant) in self.worse_than_constant.items()
        ]
