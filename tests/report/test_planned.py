"""A plan's tables: sorted within a kind, never across; what says nothing is marked, what is missing is shown."""

from io import StringIO

import numpy as np
import pytest
from rich.console import Console

from fedprivjax import planner
from fedprivjax.report.planned import bound_tables, plan_report, sections


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


def test_a_bound_of_what_holds_anyhow_is_marked(found):
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


def test_the_report_names_the_least_bound_or_says_that_there_is_none(found):
    assert "no bound on the population's loss is below G·D = 1" in shown(plan_report(found, set()))
    easy = planner.plan(machines=500, per_round=500, samples=50, dimension=2, epsilon=8.0, protocols=["noisy_sgd"])
    text = shown(plan_report(easy, {"lipschitz"}))
    assert f"the least proved bound is {float(easy['bound'].item()):.3g}, of noisy_sgd" in text
    assert "G = 1, L = 1 (default)" in text
