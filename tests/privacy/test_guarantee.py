import pickle

import numpy as np
import pytest

from fedprivjax import (
    Ball,
    DPMu2,
    Full,
    Logistic,
    NoisySGD,
    ReducedTreeMomentum,
    TreeMomentum,
    guarantee,
    linear_problem,
    ready,
)
from fedprivjax.checks.refusal import Refusal
from fedprivjax.privacy import PrivacyGuarantee, gdp
from fedprivjax.privacy.per_machine import Grouped
from fedprivjax.privacy.rounding import up
from fedprivjax.privacy.terms import Assumption, Terms

DELTA = 1e-5
ASSUMPTIONS = (Assumption("used once"), Assumption("clipped increments", {"bound": 0.5}))
TERMS = Terms("none", "Reshef & Levy 2025, section 4", ASSUMPTIONS)
RECORDS = Terms("shuffler", "Lowy & Razaviyayn 2023", (Assumption("secret samples"),), "one record of one machine")


def make(*mus, **changes):
    values = {"delta": DELTA, "terms": TERMS, "mus": Grouped.of(mus or [1.0, 2.0, 4.0])}
    return PrivacyGuarantee(**{**values, **changes})


def test_derived_numbers_are_those_of_the_worst_machine():
    guarantee = make()
    assert guarantee.mu == 4.0
    assert guarantee.epsilon == gdp.epsilon(4.0, 1e-5)
    assert guarantee.paper_epsilon == gdp.paper_epsilon(4.0, 1e-5)
    assert guarantee.zcdp == 8.0
    assert guarantee.rdp(3.0) == 24.0
    assert guarantee.delta_at(guarantee.epsilon) == pytest.approx(1e-5, rel=1e-8)


@pytest.mark.parametrize(("mu", "private", "large"), [(1.0, True, False), (2.1, True, True), (np.inf, False, True)])
def test_marks(mu, private, large):
    guarantee = make(0.5, mu)
    assert (guarantee.private, guarantee.large) == (private, large)


def test_text_states_unit_relation_trust_and_assumptions():
    text = str(make())
    for part in (
        "4-GDP",
        "one record of one machine",
        "replace-one",
        "every message a machine sends",
        "Reshef & Levy 2025, section 4",
        f"({up(float(gdp.epsilon(4.0, 1e-5)), 4)}, 1e-05)",
        "ε > 10",
        up(8 + 4 * np.sqrt(2 * np.log(1e5)), 4),
        "min 1, median 2, max 4",
        "each record is used once",
        "increments to norm 0.5",
    ):
        assert part in text
    assert "non-private" not in text
    assert "query points" in str(make(terms=Terms("server", "a theorem")))


def test_a_run_without_privacy_states_no_theorem():
    assert str(make(np.inf, np.inf)) == "non-private: μ = inf for one record of one machine (replace-one)"


def test_machines_without_privacy_are_stated_among_others():
    first, *others = str(make(1.0, np.inf)).splitlines()
    assert first.startswith("non-private: μ = inf")
    assert "  per machine (2): μ min 1, median inf, max inf" in others
    assert not any("zCDP" in line for line in others)


def test_the_symbol_says_what_the_numbers_of_machines_are():
    assert make(1.0).symbol == "μ"
    assert make(mus=None, epsilons=Grouped.of([0.5])).symbol == "ε"


@pytest.mark.parametrize("other", [1.0, 4.0])
def test_is_frozen_and_copies_its_values(other):
    mine = np.array([1.0, other])
    guarantee = make(mus=Grouped.of(mine))
    mine[0] = 9.0
    assert guarantee.per_machine.tolist() == [1.0, other]
    with pytest.raises(ValueError, match="read-only"):
        guarantee.per_machine[0] = 2.0
    for field in ("mu", "delta", "mus"):
        with pytest.raises(AttributeError):
            setattr(guarantee, field, 0.5)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: make(-1.0, 4.0), r"privacy parameters must be at least 0, one for each machine, got \[-1.  4.\]"),
        (lambda: make(np.nan, 4.0), r"privacy parameters must be at least 0, one for each machine, got \[ 4. nan\]"),
        (lambda: make(mus=Grouped.of([])), r"privacy parameters must be at least 0, one for each machine, got \[\]"),
        (lambda: make(mus=None), "mus or epsilons must be given"),
        (lambda: make(mus=None, epsilons=Grouped.of([-0.5])), "privacy parameters must be at least 0, .*"),
        (lambda: make(delta=0.0), "delta must be between 0 and 1, got 0.0"),
        (lambda: make(terms=Terms("sever", "")), "unknown trust 'sever', did you mean 'server'.*"),
        (lambda: Assumption("use once"), "unknown assumption 'use once', did you mean 'used once'.*"),
        (lambda: make(mus=None, epsilons=Grouped.of([1.0])).rdp(2.0), "mu must be stated for this conversion, .*"),
    ],
)
def test_refusals(make, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        make()


KINDS = {
    "gdp": make(),
    "one machine": make(3.0),
    "nothing sent": make(0.0, 0.0),
    "non-private": make(0.0, np.inf),
    "trusted": make(terms=Terms("server", "a theorem")),
    "records": make(mus=None, epsilons=Grouped.of([0.25, 1 / 3, 0.25]), terms=RECORDS, delta=1 / 3e5),
    "records, non-private": make(mus=None, epsilons=Grouped.of([np.inf, 0.0]), terms=RECORDS),
    "words of one's own": make(terms=Terms("none", "…", (Assumption("stated", {"text": 'a "quoted" {ε}'}),))),
}


@pytest.mark.parametrize("kind", KINDS)
def test_json_round_trip(kind):
    guarantee = KINDS[kind]
    loaded = PrivacyGuarantee.from_json(guarantee.to_json())
    assert str(loaded) == str(guarantee)
    assert loaded.terms == guarantee.terms
    assert (loaded.delta, loaded.mu, loaded.epsilon) == (guarantee.delta, guarantee.mu, guarantee.epsilon)
    assert (loaded.private, loaded.large) == (guarantee.private, guarantee.large)
    np.testing.assert_array_equal(np.sort(loaded.per_machine), np.sort(guarantee.per_machine))
    assert loaded.to_json() == guarantee.to_json()


def test_a_million_machines_are_groups_in_the_text():
    guarantee = make(mus=Grouped.of(np.repeat([1.0, 2.0], 500_000)))
    assert len(guarantee.to_json()) < 1000
    loaded = PrivacyGuarantee.from_json(guarantee.to_json())
    assert loaded.stated.counts.tolist() == [500_000, 500_000]
    assert (loaded.mu, loaded.stated.median) == (2.0, 1.5)
    with pytest.raises(Refusal, match="machines must be at most 4096 for each machine's number to be read from a file"):
        _ = loaded.per_machine


@pytest.mark.parametrize(
    "method",
    [
        DPMu2(mu=1.0, clip=1.0),
        TreeMomentum(epsilon=1.0, clip=1.0, noise_rule="paper"),
        ReducedTreeMomentum(mu=1.0, clip=1.0),
    ],
    ids=["mu2", "tree", "reduced"],
)
def test_a_runs_guarantee_can_be_pickled_and_holds_no_data(method):
    owned = np.arange(900).reshape(3, 300)[:, :4] if type(method) is not DPMu2 else None
    options = {"feature_bound": 2.0, "constraint": Ball(1.0), "partition_table": owned}
    problem = linear_problem(np.ones((900, 2)), np.arange(900) % 2, Logistic(), **options)
    found = ready(method, problem, Full(3), rounds=8, metrics=[]).guarantee
    written = pickle.dumps(found)
    again = pickle.loads(written)
    assert str(again) == str(found)
    np.testing.assert_array_equal(again.event.multipliers, found.event.multipliers)
    assert again.event.claim is None or again.event.claim.epsilon(DELTA) == found.event.claim.epsilon(DELTA)
    assert len(written) < 4000


def test_a_protocol_of_a_run_has_the_guarantee_of_its_next_problem():
    """The bound of the first problem's gradients is not that of features that are ten times as long."""
    first, longer = (linear_problem(b * np.eye(6), np.arange(6) % 2, Logistic(), feature_bound=b) for b in (1.0, 10.0))
    calibrated = ready(NoisySGD(noise_std=9.0, step_size=0.1), first, Full(2)).protocol
    run = ready(calibrated, longer, Full(2))
    assert guarantee(calibrated, longer, run.plan).mu == run.guarantee.mu
