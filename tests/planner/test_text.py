"""A plan's tables: sorted within a kind, never across; what says nothing is marked, what is missing is shown."""

from io import StringIO

import numpy as np
import pytest
from rich.console import Console

from fedprivjax import planner
from fedprivjax.layout.text_table import Sheet
from fedprivjax.layout.wording import count_text
from fedprivjax.planner.pilot import places
from fedprivjax.planner.text import (
    details,
    plan_ranking,
    plan_report,
    ranked,
    sections,
)


@pytest.fixture(scope="module")
def found():
    return planner.plan(machines=6, per_round=6, samples=16, dimension=40, epsilon=1.0)


def shown(renderable, width=200):
    console = Console(width=width, record=True, file=StringIO())
    console.print(renderable)
    return console.export_text()


@pytest.mark.slow
def test_sections_hold_one_kind_each_and_are_sorted(found):
    at = found.isel(epsilon=0)
    seen = []
    for _, labels in sections(at):
        part = at.sel(protocol=labels)
        assert len(set(part["bound_kind"].values.tolist())) == 1
        assert len(set(part["bound_of"].values.tolist())) == 1
        if part["bound_kind"].values[0] != "missing":
            assert (np.diff(part["bound"].values) >= 0).all()
        seen += labels
    assert set(seen) == set(at["protocol"].values[at["refusal"].values == ""].tolist())


def test_a_vacuous_bound_is_marked(found):
    for label in found["protocol"].values.tolist():
        row = found.sel(protocol=label)
        tables = [part for part in details(row) if isinstance(part, Sheet)]
        if row["refusal"].item():
            assert not tables
            continue
        cells = dict(tables[0].rows)
        most = 1.0  # G·D, and G
        assert ("vacuous" in cells.get("bound", "")) == (float(row["bound"].item()) >= most)
        assert ("bound" in cells) == (row["bound_kind"].item() != "missing")
    text = shown(plan_report(found, set()))
    assert "vacuous" in text
    assert "bound_kind: missing" in text


def test_details_have_every_number_and_text(found):
    row = found.sel(protocol="noisy_minibatch_sgd, full batches")
    text = shown(plan_report(found.sel(protocol=["noisy_minibatch_sgd, full batches"]), set()), 300)
    for name in ("noise_std", "realised_epsilon", "step_size", "rounds", "batch", "gradients", "messages", "bytes"):
        value = float(row[name].item())
        assert f"{value:.3g}" in text or count_text(value) in text, name
    for name in ("theorem", "settings", "bound_kind", "bound_of"):
        assert f"{name}: {row[name].item()}" in text
    assert "bound: noise" in text
    assert "guarantee: one record of one machine, replace-one, trust: none; Lowy & Razaviyayn 2023" in text
    assert f"refusal: {found['refusal'].sel(protocol='dsgd').item()}" in shown(plan_report(found, set()), 300)


def test_the_report_names_the_smallest_bound_or_states_that_all_are_trivial(found):
    assert "no bound on the population's loss is below G·D = 1" in shown(plan_ranking(found, set()))
    easy = planner.plan(machines=500, per_round=500, samples=50, dimension=2, epsilon=8.0, protocols=["noisy_sgd"])
    text = shown(plan_ranking(easy, {"lipschitz"}))
    assert f"the smallest proved bound is {float(easy['bound'].item()):.3g}, of noisy_sgd" in text
    assert "G = 1, L = 1 (default)" in text


@pytest.fixture(scope="module")
def piloted(found):
    """Return the plan with results of a pilot, in which one method diverged and one did not run."""
    labels = found["protocol"].values.tolist()
    accuracy, said = np.full((len(labels), 1), np.nan), np.full((len(labels), 1), "", object)
    accuracy[[labels.index("dp_mu2"), labels.index("noisy_sgd")]] = [[0.3], [0.6]]
    ran = np.isin(labels, ["dp_mu2", "noisy_sgd", "local_sgd"])[:, None]
    said[labels.index("tree_momentum")] = "too long for a pilot: 7 rounds"
    axes, others = ("protocol", "epsilon"), ("pilot_interval", "pilot_seconds", "pilot_epsilon", "pilot_rounds")
    values = {name: (axes, np.where(ran, 0.01, np.nan)) for name in (*others, "pilot_clip", "pilot_step")}
    values["pilot_interval"] = (axes, np.where(ran & (np.array(labels) != "dp_mu2")[:, None], 0.01, 0.3))
    values |= {"pilot_accuracy": (axes, accuracy), "pilot_note": (axes, said)}
    values["pilot_place"] = (axes, places(accuracy, values["pilot_interval"][1]))
    return found.assign(values).assign_attrs(planner.Pilot(classes=2).attributes(40))


def test_a_pilot_is_ranked_by_accuracy_and_marked_as_synthetic(piloted):
    at = piloted.isel(epsilon=0)
    assert ranked(at) == ["noisy_sgd", "dp_mu2", "local_sgd"]
    rows = [line.split("│")[1:-1] for line in shown(plan_ranking(piloted, set())).splitlines() if "│" in line][:3]
    assert [[cell.strip() for cell in row] for row in rows] == [
        ["noisy_sgd", "1", "60.0 ± 1.0"],
        ["dp_mu2", "1", "30.0 ± 30.0"],
        ["local_sgd", "–", "diverged"],
    ]
    text = " ".join(shown(plan_ranking(piloted, set())).split())
    assert "clip (of gradients or updates) and step of the pilot runs" in text
    assert "│ noisy_sgd │ 0.01, 0.01 │" in text
    assert "pilot on synthetic data: reads no private data, costs no privacy. Results on real data may differ" in text
    assert "pilot: 2 classes in 40 dimensions, norms at most 1, best linear rule 94 %; clip 0.2, ball of" in text
    assert "pilot_note: too long for a pilot: 7 rounds" in shown(plan_report(piloted, set()))


def test_a_tie_is_shown_as_a_tie(piloted):
    text = " ".join(shown(plan_ranking(piloted, set())).split())
    assert "realised ε = 1: a tie of 2 for the first place: noisy_sgd; dp_mu2, on synthetic data" in text
    assert "a place is 1 plus the methods whose 95% interval (Student's t, 3 seeds) lies wholly above" in text
    clear = piloted.assign(pilot_place=piloted["pilot_place"].where(piloted["protocol"] != "dp_mu2", 2.0))
    assert "the first place is noisy_sgd, on synthetic data" in shown(plan_ranking(clear, set()))


def test_a_ranking_has_every_method_and_fits_a_screen():
    found = planner.plan(machines=6, per_round=6, samples=16, dimension=40, epsilon=[1.0, 2.0, 4.0])
    text = shown(plan_ranking(found, set()), width=80)
    assert len(text.splitlines()) <= 50
    joined = " ".join(text.split())
    for label in found["protocol"].values.tolist():
        assert label in joined or label.partition(",")[0] in joined
    row = next(line for line in text.splitlines() if "│ noisy_sgd " in line)
    bounds = found["bound"].sel(protocol="noisy_sgd").values
    assert [cell.strip(" *") for cell in row.split("│")[2:-1]] == [count_text(float(bound)) for bound in bounds]
    assert [("*" in cell) for cell in row.split("│")[2:-1]] == [bound >= 1 for bound in bounds]


def test_without_a_pilot_the_report_does_not_mention_one(found):
    assert "pilot" not in shown(plan_ranking(found, set())) + shown(plan_report(found, set()))
