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
from fedprivjax.privacy.rounding import up
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
    """Finished run as `Run.save` writes it and `load_run` reads it: parameters, metrics and guarantee.

    A saved run has no protocol object and no run plan.

    Attributes:
        rounds: number of completed rounds at each evaluation; int, shape [evaluations].
        iterates: recorded metrics by iterate and name; float32, shape [evaluations]. A metric that is a vector has a
            further axis. For example, `iterates["output"]["test_loss"]` is the test loss of the reported parameters.
            The other keys are further iterates of the protocol, such as "last".
        params: reported parameters.
        guarantee: privacy guarantee of the run.
        costs: costs by name, as in `ReadyRun.costs`, and `seconds`, the wall time of the run with its compilation.
        expected: names of costs that are expected values.
        method: name and settings of the protocol, as text.
        predictor: everything that predictions need in addition to parameters: loss, network and conversion of rows to
            features. None if the model is a custom function.
        kept: final values of the states that machines keep from round to round, such as personal models. None if
            machines keep no states. No privacy guarantee covers the states.
        non_private_metrics: names of metrics that are computed from private data. The guarantee does not cover these
            metrics.
        non_private_data: descriptions of values that were computed from private records before the run, such as a mean
            for scaling. The guarantee does not cover these values.
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
        """Recorded metrics of the reported parameters and of rounds, by name; float32, shape [evaluations].

        Metrics of rounds describe, for example, the noise. A metric that is a vector has a further axis, for example of
        clients.
        """
        return self.iterates[OUTPUT]

    @property
    def diverged(self) -> bool:
        """True if any of the parameters or recorded metrics is infinite or NaN."""
        leaves = jax.tree.leaves((self.params, self.iterates))
        return not all(np.isfinite(leaf).all() for leaf in leaves)

    @property
    def own(self) -> Any:
        """Final values of the states that machines keep between rounds, such as personal models.

        The result is a pytree with leaves [machines, ...], or None if machines keep no states. No privacy guarantee
        covers the states.
        """
        return None if self.kept is None else self.kept.own

    def model_of(self, client: str | int) -> Any:
        """Return the parameters of one client's model. No privacy guarantee covers them.

        Args:
            client: name or index of the client.

        Raises:
            Refusal: if the run has no states of machines, or has no such client.
        """
        if self.kept is None:
            remedy = "Use a method whose machines keep a state, with keep_own = True"
            raise Refusal(f"client must go with a run whose machines keep a state, got one without. {remedy}")
        return self.kept.of(self.params, client)

    def predict(self, rows: Any, client: str | int | None = None) -> np.ndarray:
        """Return the prediction for each row of features; shape [rows].

        A prediction is the name or index of a class. For regression, it is a value in the units of the target.

        Rows may be raw, in the form of the data from which the dataset was made. Rows may also be in the form of
        `Dataset.features`.

        **Privacy.** Predictions with the reported parameters are post-processing: the guarantee for the training data
        covers any number of them. The guarantee does not protect the rows themselves. No guarantee covers predictions
        with the model of one client (`client`): show them to this client alone.

        Args:
            rows: array [rows, features], or images [rows, height, width] or [rows, height, width, channels]. If the
                data came from a table, rows are a pandas DataFrame with the same columns. The target column may be
                missing. Values outside of a column's public bounds are moved to the nearest bound, with a warning. If
                the data went through feature maps (`features.mapped`), rows must be in the form of `Dataset.features`,
                after the same maps.
            client: name or index of the client whose model predicts, or None for the reported parameters.

        Raises:
            Refusal: if rows are not finite numbers, have the wrong number of features or lack a column. Also if a
                category is neither in the training data nor in its column's public list, or if the model is a custom
                function.

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
        """Parameters of a linear predictor, with labelled axes: [feature], or [class, feature] for several classes.

        They are the coefficients of the features on which the model was trained, after scaling or encoding.

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
        """Write the run into a folder, from which `load_run` reads it.

        Training records are not written. The run plan is not written either. The conversion of raw rows to features is
        written. It may contain values that were computed from the data without privacy, which `non_private_data` names.
        A network is not written. If machines keep states between rounds, a file `own.npz` has these states. No
        guarantee covers this file: do not publish it.

        Args:
            path: folder, which is created. A run that is already in this folder is replaced.

        Raises:
            Refusal: unless the parameters are one array, or arrays in nested dicts, lists and tuples.
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
        private = f"ε = {up(self.guarantee.epsilon, 4)} at δ = {self.guarantee.delta:g} for {self.guarantee.unit}"
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
    """Result of `simulate`: one finished run, with its protocol and its run plan.

    Attributes:
        protocol: protocol with its calibrated noise and its step size.
        plan: run plan: which machines took part in each round, and which records each message used. Only `plan.public`
            may be published.
        data_used: number and percentage of stored examples that messages use, as text. Both are expected values if
            participants or samples of records are secret.
        worse_than_constant: metrics whose last value is worse than the metric's value for the best constant prediction.
            The name of each such metric is mapped to both values, as text. The constant prediction is computed from the
            training labels, without privacy.
        client_names: names of the clients, in the order of the machines. Empty if clients have no names.
        rounds: number of completed rounds at each evaluation; int, shape [evaluations].
        iterates: recorded metrics by iterate and name; float32, shape [evaluations]. A metric that is a vector has a
            further axis. For example, `iterates["output"]["test_loss"]` is the test loss of the reported parameters.
            The other keys are further iterates of the protocol, such as "last".
        params: reported parameters.
        guarantee: privacy guarantee of the run.
        costs: costs by name, as in `ReadyRun.costs`, and `seconds`, the wall time of the run with its compilation.
        expected: names of costs that are expected values.
        method: name and settings of the protocol, as text.
        predictor: everything that predictions need in addition to parameters: loss, network and conversion of rows to
            features. None if the model is a custom function.
        kept: final values of the states that machines keep from round to round, such as personal models. None if
            machines keep no states. No privacy guarantee covers the states.
        non_private_metrics: names of metrics that are computed from private data. The guarantee does not cover these
            metrics.
        non_private_data: descriptions of values that were computed from private records before the run, such as a mean
            for scaling. The guarantee does not cover these values.
    """

    protocol: Protocol
    plan: Plan
    data_used: str = ""
    worse_than_constant: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    client_names: tuple[str, ...] = ()

    @property
    def hours(self) -> np.ndarray | None:
        """Simulated hours from the start of the run to each evaluation; float64, shape [evaluations].

        None if the participation scheme has no delays.
        """
        hours = self.plan.schedule.hours
        return None if hours is None else hours[self.rounds - 1]

    def _warnings(self) -> list[str]:
        return [
            f"{name} {last} is worse than the constant predictor ({constant}, not private). See 'Why is a result worse "
            f"than the constant predictor?' in the FAQ (notebooks/faq.md)"
            for name, (last, constant) in self.worse_than_constant.items()
        ]
