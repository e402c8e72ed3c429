"""The committed bounds of accountants: today's code gives them, and wrong accountants fall outside."""

from dataclasses import replace
from pathlib import Path

import pytest

from fedprivjax import Refusal
from fedprivjax.privacy import gdp
from fedprivjax.privacy.relations import ADD_OR_REMOVE, REPLACE_ONE
from fedprivjax.vectors import check_accountants, read_accountants
from fedprivjax.vectors.accountants import NAME, TOLERANCE, Mechanism, bounds, mechanisms

FOLDER = Path(__file__).parents[2] / "experiments/vectors"
BOUNDS = {one: (low, high) for one, low, high in read_accountants(FOLDER)}
QUICK = ("gaussian", "tree", "matrix", "randomised-response", "binomial")


def too_small(mechanism: str, wrong) -> tuple[int, int]:
    """Return how many rows of a mechanism refute the ε of a wrong accountant, and how many it has."""
    pairs = [(wrong(one), low) for one, (low, _) in BOUNDS.items() if one.mechanism == mechanism]
    known = [(epsilon, low) for epsilon, low in pairs if epsilon is not None]
    return sum(epsilon < low for epsilon, low in known), len(known)


def test_there_are_200_rows_with_bounds_in_order():
    assert list(BOUNDS) == list(mechanisms())
    assert len(BOUNDS) == 200
    assert all(0 <= low <= high < float("inf") for low, high in BOUNDS.values())
    assert sum(high <= 1.02 * low for low, high in BOUNDS.values()) >= 130


@pytest.mark.parametrize("mechanism", QUICK)
def test_todays_code_gives_the_bounds_of_quick_mechanisms(mechanism):
    for one, stored in BOUNDS.items():
        if one.mechanism == mechanism:
            assert bounds(one) == pytest.approx(stored, rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mechanism", "every"), [("poisson", 5), ("subset", 5), ("replacement", 5), ("shuffled-gaussian", 1)]
)
def test_todays_code_gives_the_bounds_of_other_mechanisms(mechanism, every):
    """Every fifth row of a sampled mechanism has each of its relations, sizes, noises, releases and δ."""
    rows = [(one, stored) for one, stored in BOUNDS.items() if one.mechanism == mechanism]
    for one, stored in rows[::every]:
        assert bounds(one) == pytest.approx(stored, rel=TOLERANCE, abs=1e-9), one


@pytest.mark.parametrize(("mechanism", "least"), [("gaussian", 12), ("poisson", 36)])
def test_add_or_remove_in_place_of_replace_one_is_refuted(mechanism, least):
    def wrong(one: Mechanism) -> float | None:
        other = replace(one, relation=ADD_OR_REMOVE)
        return BOUNDS[other][1] if one.relation == REPLACE_ONE and other in BOUNDS else None

    refuted, rows = too_small(mechanism, wrong)
    assert least <= refuted <= rows


@pytest.mark.parametrize(("relation", "least"), [(REPLACE_ONE, 36), (ADD_OR_REMOVE, 36)])
def test_poisson_in_place_of_a_subset_is_refuted(relation, least):
    def wrong(one: Mechanism) -> float | None:
        other = replace(one, mechanism="poisson", relation=relation, records=0, batch=0, rate=one.batch / one.records)
        return BOUNDS[other][1]

    refuted, rows = too_small("subset", wrong)
    assert least <= refuted <= rows == 36


def test_a_group_that_is_ignored_is_refuted():
    def wrong(one: Mechanism) -> float | None:
        shift = 2 if one.relation == REPLACE_ONE else 1
        return float(gdp.epsilon(shift * one.releases**0.5 / one.noise, one.delta)) if one.group > 1 else None

    assert too_small("gaussian", wrong) == (7, 7)


def test_a_missing_or_another_table_is_refused(tmp_path):
    with pytest.raises(Refusal, match=r"accountants.csv must hold accountants' values.*Run `fedprivjax vectors`"):
        read_accountants(tmp_path)
    (tmp_path / NAME).write_text("mechanism,epsilon\ngaussian,1.0\n")
    with pytest.raises(Refusal, match="other columns"):
        read_accountants(tmp_path)


def test_a_changed_bound_is_found(tmp_path, monkeypatch):
    lines = (FOLDER / NAME).read_text(encoding="utf-8").splitlines()[:3]
    lines[2] = f"{lines[2].rpartition(',')[0]},9.0"
    (tmp_path / NAME).write_text("\n".join(lines), encoding="utf-8")
    monkeypatch.setattr("fedprivjax.vectors.accountants.mechanisms", lambda: iter(list(BOUNDS)[:2]))
    _, found = check_accountants(tmp_path)
    assert [line.partition(":")[0] for line in found] == ["row 2 (gaussian)"]
