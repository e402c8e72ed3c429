"""A plan's tables: sorted within a kind, never across; what says nothing is marked, what is missing is shown."""

from io import StringIO

import numpy as np
import pytest
from rich.console import Console

from fedprivjax import planner
from fedprivjax.report.planned import bound_against_epsilon, bound_tables, pilot_tables, plan_report, ranked, sections


@pytest.fixture(scope="module")
def found():
    return planner.plan(machines=6, per_round=6, samples=16, dimension=40, epsilon=1.0)


def shown(renderable):
    console = Console(width=200, record=True, file=StringIO())
    console.print(renderable)
    return console.export_text()


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
    at = found.isel(epsilon=0)
    text = "".join(shown(table) for table in bound_tables(at))
    for label in at["protocol"].values.tolist():
        row = at.sel(protocol=label)
        lines = [line for line in text.splitlines() if f" {label} " in line]
        if row["refusal"].item():
            assert not lines
            continue
        most = 1.0  # G·D, and G
        assert ("vacuous" in lines[0]) == (float(row["bound"]) >= most)
        assert ("missing" in lines[0]) == bool(np.isnan(row["bound"]))
    assert "vacuous" in text
    assert "missing" in text


def test_the_report_names_the_smallest_bound_or_states_that_all_are_trivial(found):
    assert "no bound on the population's loss is below G·D = 1" in shown(plan_report(found, set()))
    easy = planner.plan(machines=500, per_round=500, samples=50, dimension=2, epsilon=8.0, protocols=["noisy_sgd"])
    text = shown(plan_report(easy, {"lipschitz"}))
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
    values = {name: (axes, np.where(ran, 0.01, np.nan)) for name in (*others, "pilot_step")}
    values |= {"pilot_accuracy": (axes, accuracy), "pilot_note": (axes, said)}
    return found.assign(values).assign_attrs(planner.Pilot(classes=2).attributes(40))


def test_a_pilot_is_ranked_by_accuracy_and_marked_as_synthetic(piloted):
    at = piloted.isel(epsilon=0)
    assert ranked(at) == ["noisy_sgd", "dp_mu2", "local_sgd"]
    (table,) = pilot_tables(at)
    assert [row[:2] for row in table.rows] == [
        ["noisy_sgd", "60.0 ± 1.0"],
        ["dp_mu2", "30.0 ± 1.0"],
        ["local_sgd", "diverged"],
    ]
    text = shown(plan_report(piloted, set()))
    assert "pilot on synthetic data: reads no private data, costs no privacy. Results on real data may differ" in text
    assert "pilot: 2 classes in 40 dimensions, norms at most 1, best linear rule 94 %; clip 0.2, ball of" in text
    assert "  tree_momentum: too long for a pilot: 7 rounds" in text


def test_without_a_pilot_the_report_does_not_mention_one(found):
    assert not list(pilot_tables(found.isel(epsilon=0)))
    assert "pilot" not in shown(plan_report(found, set()))


def test_a_pilot_has_a_separate_panel(found, piloted):
    plain = bound_against_epsilon(found).axes
    with_pilot = bound_against_epsilon(found, piloted).axes
    assert len(with_pilot) == len(plain) + 1
    labels = with_pilot[-1].get_legend_handles_labels()[1]
    assert sorted(labels) == ["dp_mu2", "noisy_sgd"]
