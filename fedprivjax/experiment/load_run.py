"""Reading of saved runs. No code of theirs is run."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedprivjax.bounded_read import arrays_from, json_from
from fedprivjax.checks.refusal import Refusal
from fedprivjax.datasets.table_rows import TableRows
from fedprivjax.engine.finished_run import FORMAT, PARAMS, RUN, SavedRun, unpacked
from fedprivjax.privacy.guarantee import PrivacyGuarantee
from fedprivjax.problem.checks import require_alike
from fedprivjax.problem.predictor import Predictor, predictor_of
from fedprivjax.problem.problem import Problem
from fedprivjax.problem.raw_rows import RawRows

ROWS = {"array": RawRows, "table": TableRows}


def load_run(path: str | Path, problem: Problem | None = None) -> SavedRun:
    """Return a run that `Run.save` has written, without its protocol and plan.

    Args:
        path: folder of the run.
        problem: problem of the run, for predictions of a network or under a custom loss. None is the saved linear
            predictor.

    Raises:
        Refusal: if a file is missing, damaged, or of another format, or parameters are not those of the problem.
    """
    for name in (PARAMS, RUN):
        if not Path(path, name).is_file():
            raise Refusal(f"folder of a saved run must hold {name}, got {path} without it")
    try:
        fields = json_from(Path(path, RUN), follow=False)
        _require_format(path, fields["version"])
        leaves = arrays_from(Path(path, PARAMS), follow=False)
        run = _run_of(fields, [leaves[name] for name in sorted(leaves)])
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
