"""Single runs: reading of saved runs, and runs of a dataset whose parameters were kept. No code of theirs is run."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from fedprivjax.bounded_read import Unreadable, arrays_from, json_from, json_value
from fedprivjax.checks.refusal import Refusal
from fedprivjax.datasets.table_rows import TableRows
from fedprivjax.engine.finished_run import ARCHIVE, FORMAT, RUN, SavedRun
from fedprivjax.engine.kept_state import OWN, Kept
from fedprivjax.engine.metric import OUTPUT
from fedprivjax.engine.packing import unpacked
from fedprivjax.privacy.guarantee import PrivacyGuarantee
from fedprivjax.privacy.terms import Assumption
from fedprivjax.problem.checks import require_alike
from fedprivjax.problem.predictor import Predictor, predictor_of
from fedprivjax.problem.problem import Problem
from fedprivjax.problem.raw_rows import RawRows
from fedprivjax.sweeps.results import guarantee_of
from fedprivjax.sweeps.schema import COSTS, METHOD, PARAMETER, PARAMS, PREDICTOR, RUN_COSTS, STRUCTURE, unflattened
from fedprivjax.sweeps.selection import UNACCOUNTED

ROWS = {"array": RawRows, "table": TableRows}
NOT_COVERED = Assumption("not covered")
OPTIONAL_COSTS = ("idle_steps", "client_state_bytes")


def load_run(path: str | Path, problem: Problem | None = None) -> SavedRun:
    """Return a run from the folder into which `Run.save` has written it.

    The result has parameters, metrics and the guarantee, but neither the protocol object nor the run plan.

    Args:
        path: folder of the run.
        problem: problem of the run. Only predictions with a network or a custom loss need it. None uses the linear
            predictor that is saved with the run.

    Raises:
        Refusal: if a file is missing, is damaged or has another format. Also if parameters do not fit the problem.
    """
    for name in (ARCHIVE, RUN):
        if not Path(path, name).is_file():
            raise Refusal(f"folder of a saved run must hold {name}, got {path} without it")
    try:
        fields = json_from(Path(path, RUN), follow=False)
        _require_format(path, fields["version"])
        leaves = arrays_from(Path(path, ARCHIVE), follow=False)
        run = _run_of(fields, [leaves[name] for name in sorted(leaves)])
        if Path(path, OWN).exists():
            run = replace(run, kept=Kept.read(arrays_from(Path(path, OWN), follow=False)))
        repr(run)  # raises without the metrics and costs that it states
    except Refusal:
        raise
    except Exception as error:  # a file from elsewhere may hold anything
        why = " ".join(str(error).split()) or type(error).__name__
        raise Refusal(f"{path} must be a run as it was saved, and cannot be read: {why}") from error
    return run if problem is None else with_problem(run, problem)


def with_problem(run: SavedRun, problem: Problem) -> SavedRun:
    """Return the run with its problem's predictor.

    Raises:
        Refusal: if the parameters are not those of the problem.
    """
    require_alike("params", run.params, problem.start, "the problem's parameters")
    return replace(run, predictor=predictor_of(problem))


def predictor_from(mapping: Mapping[str, Any] | None) -> Predictor | None:
    """Return the predictor of a mapping from `Predictor.as_mapping`, or None without one.

    Raises:
        Refusal: if the mapping is another one.
    """
    if mapping is None:
        return None
    try:
        return Predictor.from_mapping(mapping, ROWS[mapping["rows"]["kind"]].from_mapping(mapping["rows"]))
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
        raise Refusal(f"predictor must be as a run writes it, got {mapping}") from error


def _require_format(path: str | Path, version: Mapping[str, Any]) -> None:
    if version["format"] != FORMAT:
        wanted = f"{path} must be a run in format {FORMAT}, got format {version['format']}"
        raise Refusal(f"{wanted}. Load it with fedprivjax {version['fedprivjax']}, which saved it")


def _run_of(fields: Mapping[str, Any], leaves: list[np.ndarray]) -> SavedRun:
    return SavedRun(
        rounds=np.array(fields["rounds"], int),
        iterates={
            iterate: {name: np.array(values, np.float32) for name, values in metrics.items()}
            for iterate, metrics in fields["iterates"].items()
        },
        params=unpacked(fields["params"], leaves),
        guarantee=PrivacyGuarantee.from_json(json.dumps(fields["guarantee"])),
        costs={name: float(value) for name, value in fields["costs"].items()},
        method=str(fields["method"]),
        predictor=predictor_from(fields["predictor"]),
        non_private_metrics=tuple(fields["non_private_metrics"]),
        non_private_data=tuple(fields["non_private_data"]),
        expected=tuple(fields.get("expected", ())),
    )


def run_of(dataset: xr.Dataset, problem: Problem | None = None) -> SavedRun:
    """Return one run of a sweep or an experiment as an object that can predict.

    The sweep must have kept the parameters (`keep=["params"]`). The result has parameters, metrics and the guarantee,
    but neither the protocol object nor the run plan.

    The guarantee is the one of the run's configuration (`guarantee_of`), which holds for every seed of the sweep. It
    does not cover the choice of a configuration by results. The cost `seconds` is the mean over all runs of the sweep.

    Args:
        dataset: dataset with every swept setting and the seed fixed, such as `grid.sel(mu=2.0).isel(seed=0)`.
        problem: problem of the run. Only predictions with a network or a custom loss need it. None uses the linear
            predictor that is stored in the dataset.

    Raises:
        Refusal: if parameters were not kept, the dataset has several runs, or parameters do not fit the problem.

    >>> from fedprivjax import Ball, DPMu2, Uniform, datasets, from_dataset, select, sweep
    >>> data = datasets.load("digits")
    >>> problem, over = from_dataset(data, constraint=Ball(8.0)), {"clip": [0.8, 1.6]}
    >>> grid = sweep(DPMu2(mu=8.0), problem, Uniform(20, 10), over=over, seeds=2, rounds=20, keep=["params"])
    >>> run = run_of(select(grid, over="clip").isel(seed=0))
    >>> run.params.shape, len(run.predict(data.test_features)) == len(data.test_labels)
    ((10, 65), True)
    """
    values = _params(dataset)
    several = {str(name): size for name, size in values.sizes.items() if name != PARAMETER and size != 1}
    if several:
        names = ", ".join(several)
        raise Refusal(f"dataset must have a single value along {names}, got {several}. Fix it by sel or isel")
    data = dataset.squeeze([name for name in values.dims if name != PARAMETER])
    metrics = {str(name): each for name, each in data.data_vars.items() if "round" in each.dims}
    chosen = _recorded(data, metrics)
    run = SavedRun(
        rounds=data["round"].values[chosen].astype(int),
        iterates=_iterates({name: each.isel(round=chosen) for name, each in metrics.items()}),
        params=unflattened(data[PARAMS].values, values.attrs[STRUCTURE]),
        guarantee=_guarantee(data),
        costs={name: float(data[name]) for name in RUN_COSTS + COSTS + OPTIONAL_COSTS if name in data},
        method=str(data[METHOD].values.item()),
        predictor=_predictor(str(data[PREDICTOR].values.item())) if PREDICTOR in data else None,
        non_private_metrics=tuple(filter(None, dataset.attrs["non_private_metrics"].split(", "))),
        non_private_data=tuple(filter(None, dataset.attrs["non_private_data"].split("; "))),
        expected=tuple(filter(None, dataset.attrs.get("expected", "").split(", "))),
    )
    return run if problem is None else with_problem(run, problem)


def _predictor(text: str) -> Predictor | None:
    """Return the predictor of a dataset's text."""
    try:
        return predictor_from(json_value(text))
    except Unreadable as error:
        raise Refusal(f"{PREDICTOR} must be as a run writes it, got {text!r}") from error


def _guarantee(data: xr.Dataset) -> PrivacyGuarantee:
    """Return the guarantee of one run. It says that hyper-parameters are not covered if results chose them."""
    found = guarantee_of(data)
    if UNACCOUNTED not in data.attrs or NOT_COVERED in found.assumptions:
        return found
    return replace(found, terms=replace(found.terms, assumptions=(*found.assumptions, NOT_COVERED)))


def _params(dataset: xr.Dataset) -> xr.DataArray:
    """Return the kept parameters of a dataset, all of every run."""
    if PARAMS not in dataset or STRUCTURE not in dataset[PARAMS].attrs:
        raise Refusal(f'dataset must have {PARAMS}, got none. Keep them: keep=["{PARAMS}"] of sweep or of [sweep]')
    for name in ("seed", "guarantee"):  # missing after a mean over seeds, whose guarantee is another
        if name not in dataset:
            raise Refusal(f"dataset must have the {name} of a single run, got none. Choose a run by sel or isel")
    every = sum(int(np.prod(shape)) for shape in json_value(dataset[PARAMS].attrs[STRUCTURE])["shapes"])
    kept = dataset[PARAMS].sizes.get(PARAMETER, "one")
    if kept != every:
        wanted = f"dataset must have all {every} parameters, got {kept}"
        raise Refusal(f"{wanted}. Leave out {PARAMETER} in sel or isel")
    for name in ("round", "iterate"):
        if name in dataset.coords and name not in dataset.dims:
            got = dataset[name].item()
            raise Refusal(f"dataset must have every {name}, got {got!r} alone. Leave out {name} in sel or isel")
    return dataset[PARAMS]


def _recorded(data: xr.Dataset, metrics: dict[str, xr.DataArray]) -> np.ndarray:
    """Return True at the evaluations of this run, bool [evaluations]. Runs of other sizes may have other ones."""
    found = np.zeros(data["round"].size, bool)
    for values in metrics.values():
        found |= values.notnull().any([name for name in values.dims if name != "round"]).values
    if not metrics or data["diverged"]:
        found |= data["round"].values <= data["rounds_taken"].item()
    return found


def _iterates(metrics: dict[str, xr.DataArray]) -> dict[str, dict[str, np.ndarray]]:
    """Return metrics by iterate, as in `SavedRun`. Those of the rounds are listed for the output only."""
    found: dict[str, dict[str, np.ndarray]] = {OUTPUT: {}}
    for name, values in metrics.items():
        if "iterate" not in values.dims:
            found[OUTPUT][name] = values.values.astype(np.float32)
            continue
        for iterate in values["iterate"].values:
            found.setdefault(str(iterate), {})[name] = values.sel(iterate=iterate).values.astype(np.float32)
    return found
