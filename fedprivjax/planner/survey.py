"""Method comparison: noise, guarantee, error bound and cost of every protocol at one or several ε, as a dataset."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
import xarray as xr

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_choice
from fedprivjax.engine.progress import OnProgress, progress_callback
from fedprivjax.method.planning.setting import Setting
from fedprivjax.method.planning.uses import KINDS, TERMS, Bound, Draft, PlannedRun, Use
from fedprivjax.method.protocol import Protocol
from fedprivjax.method.seen import costs_of
from fedprivjax.planner.clients import CLIENT_ALGORITHMS, CLIENT_METHODS, client_uses
from fedprivjax.planner.pilot import NOTE, VARIABLES, Pilot, Trial, places, run_pilots
from fedprivjax.privacy.calibration import calibrate_and_check
from fedprivjax.privacy.target import PLAN
from fedprivjax.protocols import PROTOCOLS

NUMBERS = {
    "bound": "upper bound on the excess loss, or on the gradient norm",
    "noise_std": "standard deviation of the noise of one message, per coordinate",
    "realised_epsilon": "realised ε of the worst machine",
    "realised_mu": "realised GDP parameter of the worst machine, if one holds",
    "step_size": "step size",
    "rounds": "number of rounds",
    "batch": "records in a message, of all local steps together",
    "gradients": "gradients that all machines compute",
    "messages": "messages that all machines send",
    "bytes": "bytes that all machines send",
}
AXES = ("protocol", "epsilon")
Row = tuple[str, type[Protocol], Use | None]  # label, method, and one of its uses
TEXTS = ("bound_kind", "bound_of", "theorem", "settings", "note", "guarantee", "refusal")


def plan(
    *,
    epsilon: float | Sequence[float],
    protocols: Sequence[str] | None = None,
    pilot: bool | Pilot = False,
    progress: bool | OnProgress | None = None,
    **setting: Any,
) -> xr.Dataset:
    """Compare methods before a run: noise, guarantee, error bound and cost of every protocol, without any data.

    If a protocol is not defined for the requested trust model, its numbers are computed for trust "none". The guarantee
    for trust "none" also holds in the requested model.

    Args:
        epsilon: target ε at `delta`, one value or several.
        protocols: names of methods, the keys of `fedprivjax.protocols.PROTOCOLS`. With unit = "machine", names of
            algorithms are allowed, too. None compares all.
        pilot: True, or a `Pilot` with its settings, to run every method on synthetic data of the given sizes, too. The
            runs use each method's default settings with clipping. The noise of each run is calibrated to ε on the run's
            own schedule. No private records are read. False runs nothing.
        progress: True displays the progress of the pilot. A callable is called with (finished runs, all runs).
        setting: the other fields of `Setting`:

            * `machines`: number M of machines.
            * `per_round`: number m of machines in a round, sampled uniformly, or all.
            * `samples`: number n of records of each machine.
            * `dimension`: number d of parameters.
            * `delta`: δ of the guarantee.
            * `trust`: trust model: "none", "shuffler", "server" or "pan-private".
            * `unit`: protected unit, "record", or "machine" for methods that clip a machine's whole update.
            * `lipschitz`: bound G on the gradient norm of one record's loss.
            * `smoothness`: smoothness constant L of one record's loss.
            * `diameter`: diameter D of the ball of parameters.
            * `gap`: upper bound on the initial excess loss; None is G·D.
            * `rounds`: number of rounds. None takes the number that each method's theory chooses.
            * `batch`: number of records of a message. None takes the number that each method's theory chooses.
            * `seed`: seed of the schedules, and of the pilot's data.

    Returns:
        A dataset with the dimensions `protocol`, `epsilon` and `term` (of the error bound). If a method can be used in
        several ways, such as in one pass or in epochs, it has several entries. Their names have the way after a comma.

        * `bound`: error bound, the sum of its terms `bound_term`. `bound_of` names the loss that is bounded.
        * `bound_kind`: "explicit" for a bound with all constants, or another key of `planner.survey.KINDS`. Only
          "explicit" bounds can be compared between methods.
        * `noise_std`: noise that is calibrated to the target ε.
        * `realised_epsilon` and `realised_mu`: privacy of a run with this noise, for a schedule of participants and
          records that is sampled from `seed`.
        * `step_size`, the costs of a run, and the `guarantee` as JSON.
        * `refusal`: reason why a method cannot be used. It is empty for other methods.
        * With a pilot, `pilot_accuracy`: test accuracy, averaged over seeds, and `pilot_interval`: half-width of its
          95% interval.
        * `pilot_place`: rank of the method: 1 plus the number of methods whose interval lies wholly above its own.
        * `pilot_seconds`: wall time of the fastest run.
        * `pilot_epsilon`, `pilot_rounds`, `pilot_clip` and `pilot_step`: realised ε, number of rounds, clip and step
          size of the pilot runs.
        * `pilot_note`: settings that were chosen for the pilot, and its number of rounds if the error bound has another
          number. If the pilot was not run, the reason.

        Its attributes include the settings, and `trivial`: the error bound G·D of any parameters in the ball.

    Raises:
        Refusal: if settings are out of range, or if none of the methods can be used.

    >>> found = plan(machines=10, per_round=10, samples=20, dimension=5, epsilon=1.0, protocols=["noisy_sgd"])
    >>> round(found["noise_std"].sel(protocol="noisy_sgd").item(), 2), found["bound_kind"].item()
    (8.45, 'explicit')
    """
    levels = [float(value) for value in np.ravel(epsilon)]
    if not levels:
        raise Refusal("epsilon must have at least one value, got none")
    first = Setting(epsilon=levels[0], **setting)
    known = PROTOCOLS if first.unit == "record" else {**PROTOCOLS, **CLIENT_ALGORITHMS}
    for name in protocols or ():
        require_choice("protocol", name, known)
    pilot = Pilot() if pilot is True else pilot
    if pilot:
        pilot.check(first)
    rows = list(_labels(protocols or known, first.unit))
    table = [[_cell(method, use, replace(first, epsilon=level)) for level in levels] for _, method, use in rows]
    _require_any(rows, table)
    found = _dataset(first, [label for label, _, _ in rows], levels, table)
    if not pilot:
        return found
    return found.assign(_pilot_variables(table, pilot, progress)).assign_attrs(pilot.attributes(first.dimension))


def mapping(found: xr.Dataset) -> dict[str, Any]:
    """Return the result of `plan` as JSON values: its settings, and a list `plans`.

    The list has one entry for each protocol and ε. Unknown numbers in an entry are None.

    Args:
        found: dataset that `plan` returned.

    >>> found = plan(machines=10, per_round=10, samples=20, dimension=5, epsilon=1.0, protocols=["stale_momentum"])
    >>> (entry,) = mapping(found)["plans"]
    >>> entry["bound"], entry["bound_kind"], entry["rounds"]
    (None, 'missing', 20.0)
    """
    entries = []
    for label in found["protocol"].values.tolist():
        for level in found["epsilon"].values.tolist():
            cell = found.sel(protocol=label, epsilon=level)
            entry = {"protocol": label, "epsilon": level}
            entry |= {name: _plain(cell[name].item()) for name in (*NUMBERS, *TEXTS, *VARIABLES, NOTE) if name in cell}
            terms = dict(zip(found["term"].values.tolist(), cell["bound_term"].values.tolist(), strict=True))
            entry["terms"] = {name: value for name, value in terms.items() if not np.isnan(value)}
            entry["guarantee"] = json.loads(entry["guarantee"]) if entry["guarantee"] else None
            entries.append(entry)
    return {"settings": {name: _plain(value) for name, value in found.attrs.items()}, "plans": entries}


def _labels(protocols: Iterable[str], unit: str) -> Iterator[Row]:
    for name in protocols:
        method: type[Protocol] = PROTOCOLS[name][0] if name in PROTOCOLS else Protocol
        uses = method.theory.uses(method) if unit == "record" else client_uses(name)
        for use in uses or [None]:
            yield f"{name}, {use.name}" if use is not None and use.name else name, method, use


def _require_any(rows: list[Row], table: list[list[dict[str, Any]]]) -> None:
    """Raise Refusal if no method can be planned, with the first reason that depends on the settings."""
    if any("bound_kind" in cell for row in table for cell in row):
        return
    refused = [(use, label, cells[0]["refusal"]) for (label, _, use), cells in zip(rows, table, strict=True)]
    _, label, why = next((each for each in refused if each[0] is not None), refused[0])
    raise Refusal(f"protocols must include one that can be planned, got none. {label}: {why}")


def _cell(method: type[Protocol], use: Use | None, setting: Setting) -> dict[str, Any]:
    """Return the variables of one use of a protocol at one ε, or its refusal."""
    if use is None:
        client = method in CLIENT_METHODS.values()
        record = "it is compared with unit = 'machine'" if client else method.theory.not_planned
        return {"refusal": record if setting.unit == "record" else "it bounds no machine's whole update"}
    try:
        with np.errstate(divide="ignore", over="ignore"):  # ε near 0; infinite values raise Refusal
            found = [
                (run, run.protocol.theory.error_bound(run.protocol, run), draft)
                for draft in use.drafts(setting)
                for run in [calibrated(draft, setting)]
            ]
    except Refusal as refusal:
        return {"refusal": str(refusal)}
    if not found:
        return {"refusal": "rounds and batch leave no possible run"}
    return _described(use, *min(found, key=lambda each: np.nan_to_num(each[1].total, nan=np.inf)))


def calibrated(draft: Draft, setting: Setting) -> PlannedRun:
    """Return the draft with the least noise that is known to meet the target ε on its run plan.

    A protocol's own calibration may be for more messages.

    Raises:
        Refusal: if the protocol's settings are invalid, or no noise meets the target.

    >>> from fedprivjax import LocalSGD
    >>> setting = Setting(machines=10, per_round=5, samples=20, dimension=5, epsilon=1.0)
    >>> (draft,) = LocalSGD.theory.uses(LocalSGD)[0].drafts(setting)
    >>> round(calibrated(draft, setting).event.epsilon(setting.delta), 4)
    1.0
    """
    problem, plan = draft.problem, draft.plan
    protocol, event = calibrate_and_check(replace(draft.protocol, calibrate_to=PLAN), problem, plan, setting.target)
    return PlannedRun(setting, protocol, problem, plan, event)


def _described(use: Use, run: PlannedRun, bound: Bound, draft: Draft) -> dict[str, Any]:
    size = run.plan.size
    costs = costs_of(run.protocol).costs(run.problem)
    sent, guarantee = size.rounds * size.per_round, run.event.guarantee(run.setting.delta)
    return {
        "bound": bound.total,
        "bound_term": bound.terms,
        "bound_kind": bound.kind,
        "bound_of": bound.of,
        "theorem": bound.theorem,
        "noise_std": float(run.protocol.noise_std),
        "realised_epsilon": guarantee.epsilon,
        "realised_mu": np.nan if guarantee.mu is None else guarantee.mu,
        "step_size": run.step,
        "rounds": size.rounds,
        "batch": run.batch,
        "gradients": sent * run.batch * costs["gradients_per_use"],
        "messages": sent * costs["sent_messages"],
        "bytes": sent * costs["sent_bits"] / 8,
        "settings": _call(draft, run),
        "note": draft.note,
        "guarantee": guarantee.to_json(),
        "trial": Trial(use, run, draft),
    }


def _call(draft: Draft, run: PlannedRun) -> str:
    """Return the Python call that makes the protocol. Its noise is rounded up, so that ε is at most the stated one."""
    given = {**draft.settings, "noise_std": float(f"{float(run.protocol.noise_std) * (1 + 5e-6):.6g}")}
    return f"{draft.method.__name__}({', '.join(f'{name}={value!r}' for name, value in given.items())})"


def _pilot_variables(
    table: list[list[dict[str, Any]]], pilot: Pilot, progress: bool | OnProgress | None
) -> dict[str, Any]:
    """Run the pilots and return their variables."""
    with progress_callback(progress, "pilot", "runs") as on_progress:
        cells = iter(list(run_pilots([cell for row in table for cell in row], pilot, on_progress)))
    found = _variables([[next(cells) for _ in row] for row in table], VARIABLES, (NOTE,))
    ranked = places(*(np.array(found[name][1]) for name in ("pilot_accuracy", "pilot_interval")))
    return {**found, "pilot_place": (AXES, ranked, {"long_name": VARIABLES["pilot_place"]})}


def _variables(table: list[list[dict[str, Any]]], numbers: Mapping[str, str], texts: Sequence[str]) -> dict[str, Any]:
    """Return the variables of a table of cells, numbers and texts, with the axes protocol and epsilon."""
    found: dict[str, Any] = {
        name: (AXES, [[float(cell.get(name, np.nan)) for cell in row] for row in table], {"long_name": about})
        for name, about in numbers.items()
    }
    return found | {
        name: (AXES, np.array([[cell.get(name, "") for cell in row] for row in table], object)) for name in texts
    }


def _dataset(setting: Setting, labels: list[str], levels: list[float], table: list[list[dict[str, Any]]]) -> xr.Dataset:
    found = _variables(table, NUMBERS, TEXTS)
    terms = [[[cell.get("bound_term", {}).get(term, np.nan) for term in TERMS] for cell in row] for row in table]
    found["bound_term"] = ((*AXES, "term"), np.array(terms, float))
    names = (each.name for each in fields(setting) if each.name not in ("epsilon", "cached"))
    attributes = {name: getattr(setting, name) for name in names if getattr(setting, name) is not None}
    attributes |= {"trivial": setting.trivial, "kinds": json.dumps(KINDS, ensure_ascii=False)}
    return xr.Dataset(found, coords={"protocol": labels, "epsilon": levels, "term": list(TERMS)}, attrs=attributes)


def _plain(value: Any) -> Any:
    """Return a number or text unchanged, and None for NaN."""
    return None if isinstance(value, float) and np.isnan(value) else value
