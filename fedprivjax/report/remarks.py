"""Footnotes of tables: guarantees, baselines, choices by results, swept settings, and limits of the guarantees."""

from collections.abc import Mapping

import numpy as np
import xarray as xr

from fedprivjax.engine.simulate import STEPS
from fedprivjax.experiment.build import non_private_label
from fedprivjax.layout.wording import CHOSEN_NOTE, epsilon_text, grouped, guarantees_in, statement
from fedprivjax.privacy.guarantee import LARGE_EPSILON
from fedprivjax.report.summary import ALONE, TOLERANCE, Cells, Summary, runs_text, tunable
from fedprivjax.report.tables import CONSTANT, COUNTED, WORSE, realised_differs
from fedprivjax.sweeps.intervals import INTERVAL
from fedprivjax.sweeps.selection import NO_EFFECT, POINT, UNACCOUNTED, best_point, cells_at_ends, clip_has_no_effect

NAIVE_NOTE = (
    "intervals of ‡ are naive: the runs that chose a point also measure it, so they cover the mean in less than 95%"
)
NO_INTERVAL = f"95% intervals need at least {INTERVAL} seeds, or trials: no ± is shown"
ABOVE = "realised ε is above its target"
LEARNER = f"{STEPS} full-batch gradient steps on its own records, with a line search, no clip and no noise"


def footnotes(this: Summary) -> list[str]:
    """Return the footnotes of the tables: guarantees, selection, divergence, data used, limits of the guarantees."""
    lines, best = [], this.best
    for label, data in best.items():
        private = not np.isinf(data["realised_mu"]).all()
        covered = sorted({statement(one.terms) for one in guarantees_in(data)}) if private else ["non-private"]
        lines += [f"{label}: {words}" for words in covered]
        if "selected" in data.attrs:
            lines[-1] += f"; {data.attrs['selected']}"
        if data["diverged"].any():
            lines[-1] += f"; {int(data['diverged'].sum())} of {data['diverged'].size} runs diverged (NaN)"
    chosen = [data for data in best.values() if UNACCOUNTED in data.attrs]
    if chosen:  # without `grid_points`, the runs that chose a point also measure it
        lines += [CHOSEN_NOTE, *[NAIVE_NOTE] * any("grid_points" not in data.attrs for data in chosen)]
    runs = grouped((runs_text(data), label) for label, data in best.items())
    lines += [f"{text}: {', '.join(labels)}" for text, labels in runs.items() if len(runs) > 1]
    if 1 < this.fewest < INTERVAL:
        lines.append(NO_INTERVAL)
    if any(this.recorded(name) for name in this.evaluation.rounds_to):
        lines.append("rounds to a value: > x (k of n) means that k of n runs reach it, and that the mean is above x")
    lines += [*(sweep_notes(best, this.tabulated[0]) if this.tabulated else []), *_unequal(best)]
    lines += [*([] if this.hides_sizes else _used(best)), *_expected(best), *_baselines(this)]
    lines += [] if this.hides_sizes else _weights(best)
    names = names_in(best, "non_private_metrics")
    if names:
        lines.append(f"non-private metric{'s' * (len(names) > 1)}: {', '.join(names)}")
    prepared = attributes(best, "non_private_data")
    lines += [f"NON-PRIVATE preparation of the data, which no guarantee covers: {text}" for text in prepared]
    if this.private and not realised_differs(this):
        lines.append(f"realised ε of the worst run: within {TOLERANCE:.0%} of its target")
    if this.above_target:
        worst = [f"{label} (up to {epsilon_text(epsilon)})" for label, epsilon in this.above_target.items()]
        lines.append(f"{ABOVE}: {', '.join(worst)}")
    if this.below_target:
        why = "the noise rule assumes more than the sampled schedules need"
        remedy = 'calibrate_to = "plan" in [[protocol]] gives the smallest noise for them'
        lines.append(f"realised ε is below its target ({', '.join(this.below_target)}): {why}; {remedy}")
    if any(map(is_large, best.values())):
        lines.append(f"! marks ε > {LARGE_EPSILON:g}: little protection by itself")
    lines.append("simulation randomness: not for deployment")
    return [*lines, *([this.notes] if this.notes else [])]


def _baselines(this: Summary) -> list[str]:
    """Return definitions of the baselines that are shown, and comparisons of protocols with them."""
    floored = [cells for cells in this.tabulated if cells.floor is not None]
    lines = []
    if floored:
        lines.append(
            f"{CONSTANT}: always the most frequent class, or the mean label, of the training data; not private"
        )
    if any(cells.worse(mean).any() for cells in floored for mean, _ in cells.intervals.values()):
        lines.append(f"{WORSE.strip()} marks a mean that is worse than the {CONSTANT}'s")
    machines = " / ".join(attributes(this.best, "alone"))
    if machines and any(cells.alone for cells in this.tabulated):
        what = f"mean ± 95% interval over {machines}, each after {LEARNER}; nothing is sent; non-private"
        lines.append(f"{ALONE}: {what}")
    return [*lines, *(line for cells in this.tabulated for line in _above_non_private(this.best, cells))]


def _above_non_private(best: Mapping[str, xr.Dataset], cells: Cells) -> list[str]:
    """Return a remark for each private protocol that is better in some cell than its own baseline without noise.

    The difference of means must exceed the root sum of squares of both half-widths. Protocols that are equal without
    noise share a baseline, under the label of one of them. A protocol without a baseline under its own label is
    therefore compared with all of the same method.
    """
    free = [label for label in cells.runs if np.isinf(best[label]["realised_mu"]).all()]
    method = {label: best[label].attrs.get("protocol") for label in cells.runs}
    lines = []
    for label in (label for label in cells.runs if label not in free):
        own = non_private_label(label)
        for other in [own] if own in free else [one for one in free if method[one] == method[label]]:
            (mean, half), (level, around) = cells.intervals[label], cells.intervals[other]
            gap = (mean - level) * (1 if cells.metric.better == "higher" else -1)
            better = gap > np.hypot(half.fillna(0), around.fillna(0))
            if better.any():
                where = f"{int(better.sum())} of {better.size} cells"
                lines.append(
                    f"{label} is better than {other}, which has no noise, in {where} of {cells.metric.words}: "
                    f"tune the step size, clip and rounds of {other} before reading it as the cost of privacy"
                )
    return lines


def sweep_notes(best: Mapping[str, xr.Dataset], cells: Cells) -> list[str]:
    """Return a line for each protocol whose swept clip has no effect, and for each whose best value is at an edge."""
    without_effect = [label for label, data in best.items() if clip_has_no_effect(data)]
    lines = [f"{label}: {NO_EFFECT}" for label in without_effect]
    for label, values in cells.runs.items():
        for axis in tunable(values, 3):
            if axis == "clip" and label in without_effect:
                continue
            chosen = values[axis].values[best_point(values.rename({axis: POINT}), ["seed"], cells.metric.better)]
            where = cells_at_ends(values[axis].values, chosen)
            if where is not None:
                found = f"the {axis} with the best {cells.metric.words} is the smallest or largest value tried{where}"
                lines.append(f"{label}: {found}; a wider grid may contain a better one")
    return lines


def is_large(data: xr.Dataset) -> bool:
    """Return True if any finite realised ε is above `LARGE_EPSILON`."""
    values = data["realised_epsilon"]
    return bool(((values > LARGE_EPSILON) & np.isfinite(values)).any())


def attributes(best: Mapping[str, xr.Dataset], name: str) -> list[str]:
    """Return the distinct texts of an attribute of the datasets. Empty ones are left out."""
    return [text for text in dict.fromkeys(data.attrs.get(name, "") for data in best.values()) if text]


def names_in(best: Mapping[str, xr.Dataset], name: str) -> list[str]:
    """Return the distinct names in an attribute of the datasets, which are separated by commas."""
    return list(dict.fromkeys(each for text in attributes(best, name) for each in text.split(", ")))


def _unequal(best: Mapping[str, xr.Dataset]) -> list[str]:
    """Return a line with the numbers of points that protocols were tuned over, if these differ."""
    sizes = {label: int(data.attrs["grid_points"]) for label, data in best.items() if "grid_points" in data.attrs}
    text = ", ".join(f"{label} {points}" for label, points in sizes.items())
    return [f"chosen from grids of unequal size: {text}"] if len(set(sizes.values())) > 1 else []


def _weights(best: Mapping[str, xr.Dataset]) -> list[str]:
    """Return the sentences on weights of machines of unequal size, each once and in its longest form."""
    said = attributes(best, "weights")
    return [text for text in said if not any(other != text and other.startswith(text) for other in said)]


def _expected(best: Mapping[str, xr.Dataset]) -> list[str]:
    """Return a line that names costs of secret samples or cohorts, which are expected values."""
    costs = " and ".join(COUNTED[name] for name in names_in(best, "expected"))
    return [f"{costs}: expected values where samples or participation are secret"] if costs else []


def _used(best: Mapping[str, xr.Dataset]) -> list[str]:
    """Return the fraction of the data that a run uses, one line for all protocols with the same, if it is known."""
    alike = grouped((data.attrs.get("data_used", ""), label) for label, data in best.items())
    whose = {text: "" if len(alike) == 1 else f"{'; '.join(labels)}: " for text, labels in alike.items() if text}
    return [f"{who}a run uses {text}" for text, who in whose.items()]
