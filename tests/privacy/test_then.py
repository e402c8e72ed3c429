"""Composition of the guarantees of two runs, against exact computation on small mechanisms."""

from functools import cache
from itertools import combinations_with_replacement, product
from math import exp, hypot, log

import numpy as np
import pytest

from fedprivjax import Refusal
from fedprivjax.plan.samplers import Poisson, Subset
from fedprivjax.privacy import composed_guarantee, gdp
from fedprivjax.privacy.accountants.sampled import SampledReleases, sampled_epsilon
from fedprivjax.privacy.curve import AccountedCurve, GaussianCurve, ListedCurve, ParallelCurve, SequentialCurve
from fedprivjax.privacy.guarantee import PrivacyGuarantee
from fedprivjax.privacy.per_machine import Grouped
from fedprivjax.privacy.relations import ADD_OR_REMOVE
from fedprivjax.privacy.terms import MACHINE, PUBLIC_PARTICIPATION, RECORD, Assumption, Terms

TERMS = Terms("none", "theorem A")
KARY = np.array([0.7, 0.2, 0.1]), np.array([0.1, 0.2, 0.7])
LEAKY = np.array([0.6, 0.399, 0.001, 0.0]), np.array([0.399, 0.6, 0.0, 0.001])
LAPLACE = (
    np.exp(-abs(np.arange(-20, 22)) / 2) / np.exp(-abs(np.arange(-20, 22)) / 2).sum(),
    np.exp(-abs(np.arange(-21, 21)) / 2) / np.exp(-abs(np.arange(-21, 21)) / 2).sum(),
)
MECHANISMS = {"3-ary": KARY, "leaky": LEAKY, "truncated Laplace": LAPLACE}


def gdp_of(*mus, delta=1e-5, terms=TERMS):
    return PrivacyGuarantee(delta, terms, mus=Grouped.of(list(mus)))


def pair_of(epsilon, delta=1e-6, terms=TERMS, machines=1):
    return PrivacyGuarantee(delta, terms, epsilons=Grouped.of([epsilon] * machines))


def hockey_stick(one, other, epsilon):
    """Return δ(ε) in the worse direction by its definition."""
    return max(np.maximum(one - exp(epsilon) * other, 0).sum(), np.maximum(other - exp(epsilon) * one, 0).sum())


def curve_of(pair):
    """Return the exact curve of a pair of distributions, by bisection."""

    def epsilon(delta):
        low, high = 0.0, 40.0
        if hockey_stick(*pair, low) <= delta:
            return 0.0
        if hockey_stick(*pair, high) > delta:
            return np.inf
        for _ in range(36):
            middle = (low + high) / 2
            low, high = (low, middle) if hockey_stick(*pair, middle) <= delta else (middle, high)
        return high

    return AccountedCurve(epsilon)


@cache
def curve_named(name):
    return curve_of(MECHANISMS[name])


SLOW_PAIRS = [("3-ary", "leaky"), ("leaky", "leaky")]
PAIRS = [
    pytest.param(*pair, marks=pytest.mark.slow) if pair in SLOW_PAIRS else pair
    for pair in combinations_with_replacement(MECHANISMS, 2)
]


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_sequential_curve_is_at_least_the_exact_one_and_close(first, second):
    one, other = MECHANISMS[first], MECHANISMS[second]
    curve = SequentialCurve(curve_named(first), curve_named(second))
    together = [np.outer(a, b).ravel() for a, b in zip(one, other, strict=True)]
    for epsilon in (0.0, 0.3, 1.0, 3.0, 6.0):  # the leaky mechanism has infinite losses
        exact, stated = hockey_stick(*together, epsilon), curve.delta(epsilon)
        assert exact * (1 - 1e-9) <= stated <= 1.06 * exact + 2e-5


def test_infinite_losses_stay_infinite_on_a_coarser_grid():
    assert SequentialCurve(curve_named("leaky"), GaussianCurve(3.0)).delta(100.0) >= 0.001


@pytest.mark.parametrize(("one", "other"), [(0.6, 0.8), (0.05, 3.0), (1.0, 1.0), (0.02, 0.01)])
@pytest.mark.parametrize("delta", [1e-10, 1e-6, 1e-3])
def test_sequential_curve_of_gaussians_is_the_root(one, other, delta):
    exact = float(gdp.epsilon(hypot(one, other), delta))
    stated = SequentialCurve(GaussianCurve(one), GaussianCurve(other)).epsilon(delta)
    assert exact * (1 - 1e-9) <= stated <= 1.005 * exact + 1e-4


@pytest.mark.slow
def test_two_samples_of_rounds_are_the_rounds_together():
    def of(rounds):
        return AccountedCurve(
            lambda delta: sampled_epsilon(1.0, SampledReleases(Subset(10), records=200, rounds=rounds, delta=delta))
        )

    exact, stated = of(50).epsilon(1e-5), SequentialCurve(of(20), of(30)).epsilon(1e-5)
    assert exact * (1 - 1e-6) <= stated <= 1.005 * exact


@pytest.mark.parametrize("wrong", [np.maximum, np.minimum, lambda a, b: a + b])
def test_exact_composition_tells_other_rules_from_the_root(monkeypatch, wrong):
    """The views of two runs are one Gaussian vector, whose means are at the root of the sum of squares."""
    shift = np.array([1.5, 2.0])
    exact = float(np.linalg.norm(shift))
    assert gdp_of(1.5).then(gdp_of(2.0)).mu == pytest.approx(exact, rel=1e-12)
    monkeypatch.setattr(composed_guarantee.np, "hypot", wrong)
    assert gdp_of(1.5).then(gdp_of(2.0)).mu != pytest.approx(exact, rel=0.01)


@pytest.mark.parametrize("wrong", [ParallelCurve, lambda a, b: a])
def test_exact_composition_refutes_a_larger_curve_in_place_of_the_composed_one(monkeypatch, wrong):
    together = [np.outer(a, a).ravel() for a in KARY]
    listed = PrivacyGuarantee(
        0.01, TERMS, epsilons=Grouped.of([curve_named("3-ary").epsilon(0.01)]), listed=curve_named("3-ary")
    )
    assert hockey_stick(*together, listed.then(listed).epsilon) <= 0.01
    monkeypatch.setitem(composed_guarantee.CURVES, "same", wrong)
    assert hockey_stick(*together, listed.then(listed).epsilon) > 0.02


def test_disjoint_records_have_the_larger_parameter_by_brute_force():
    """Two records, one in each run: the joint view of both runs, for every dataset and each replaced record."""
    levels = 0.7, 1.1

    def view(records, split):
        outputs = []
        for run in (0, 1):
            of_run = np.ones(1)
            for record in (record for record, owner in zip(records, split, strict=True) if run in owner):
                lie = 1 / (1 + exp(levels[run]))
                of_run = np.outer(of_run, [1 - lie, lie] if record else [lie, 1 - lie]).ravel()
            outputs.append(of_run)
        return np.outer(*outputs).ravel()

    def worst(split):
        found = 0.0
        for records in product((0, 1), repeat=2):
            for which in (0, 1):
                other = [bit ^ (place == which) for place, bit in enumerate(records)]
                found = max(found, float(np.max(np.log(view(records, split) / view(other, split)))))
        return found

    one, other = (PrivacyGuarantee(1e-9, TERMS, epsilons=Grouped.of([level])) for level in levels)
    assert worst([(0,), (1,)]) == pytest.approx(one.then(other, "disjoint").epsilon)
    assert worst([(0, 1), (1,)]) == pytest.approx(one.then(other, "same").epsilon)


def test_disjoint_records_have_the_larger_mu():
    both = gdp_of(1.0, 2.0).then(gdp_of(1.5, 0.5), "disjoint")
    assert both.per_machine.tolist() == [1.5, 2.0]
    assert gdp_of(1.0, 2.0).then(gdp_of(1.5), "disjoint").per_machine.tolist() == [2.0, 2.0]


def test_of_listed_points_epsilons_and_deltas_add_up():
    both = pair_of(1.0, 1e-6).then(pair_of(0.5, 3e-6))
    assert both.delta == 4e-6
    assert both.epsilon == pytest.approx(1.5, rel=1e-6)
    with pytest.raises(Refusal, match="delta must be at least 4e-06 for both runs together, got 1e-06"):
        pair_of(1.0, 1e-6).then(pair_of(0.5, 3e-6), delta=1e-6)
    assert pair_of(1.0, 1e-6).then(pair_of(0.5, 1e-6), "disjoint").epsilon == 1.0
    assert SequentialCurve(ListedCurve(400.0, 1e-6), ListedCurve(0.5, 1e-6)).epsilon(2e-6) == 400.5


def test_composition_of_mu_is_associative_and_non_private_stays_so():
    a, b, c = gdp_of(0.3, 0.4), gdp_of(1.0, 0.1), gdp_of(0.7, 2.0)
    left, right = a.then(b).then(c), a.then(b.then(c))
    np.testing.assert_allclose(left.per_machine, right.per_machine, rtol=1e-9)
    assert left.terms == right.terms
    assert left.theorem == "composition of: theorem A; theorem A; theorem A"
    for none in (gdp_of(np.inf), pair_of(np.inf)):
        for other in (gdp_of(1.0), pair_of(1.0)):
            for records in ("same", "disjoint"):
                assert not none.then(other, records, delta=1e-5).private
                assert not other.then(none, records, delta=1e-5).private


def test_machines_are_composed_one_by_one_or_the_worst_with_the_worst():
    one = gdp_of(1.0, 2.0).then(gdp_of(2.0, 1.0))
    assert one.per_machine == pytest.approx([5**0.5] * 2)
    assert "same machines" in {each.name for each in one.assumptions}
    other = gdp_of(1.0, 2.0).then(gdp_of(2.0, 1.0, 1.0))
    assert other.mu == pytest.approx(8**0.5)
    assert other.stated.machines == 3
    assert "same machines" not in {each.name for each in other.assumptions}


def test_terms_say_what_was_composed_and_survive_a_file():
    secret = Terms("server", "theorem B", (PUBLIC_PARTICIPATION, Assumption("secret samples")))
    first = gdp_of(1.0, terms=Terms("none", "theorem A", (PUBLIC_PARTICIPATION,)))
    claim = PrivacyGuarantee(1e-5, secret, mus=Grouped.of([2.0]), proved=False)
    both = first.then(claim, "disjoint")
    assert not both.proved
    assert first.then(first).proved
    assert both.trust == "server"
    assert "runs 1, 2: participation is public" in str(both)
    assert "runs 1, 2: the first of these runs has no record in common with the rest, and which" in str(both)
    after = "runs 1, 2, 3: the first 2 of these runs have no record in common with the rest, and which"
    assert after in str(first.then(first).then(claim, "disjoint"))
    assert "run 2: which records are used is secret" in str(both)
    assert "parallel composition on disjoint records of 1-GDP and 2-GDP" in both.paragraph()
    assert "no two runs have the same seed" in both.paragraph()
    read = PrivacyGuarantee.from_json(both.to_json())
    assert read.terms == both.terms
    assert str(read) == str(both)
    assert read.then(first).terms == both.then(first).terms


@pytest.mark.parametrize(
    ("terms", "records", "message"),
    [
        (Terms("none", "B", unit=MACHINE), "same", "must protect the same unit"),
        (
            Terms("none", "B", relation=ADD_OR_REMOVE),
            "same",
            r"neighbouring relation.*for_relation\('replace-one'",
        ),
        (TERMS, "new", "unknown records 'new'"),
    ],
)
def test_other_statements_are_refused(terms, records, message):
    with pytest.raises(Refusal, match=message):
        gdp_of(1.0).then(gdp_of(1.0, terms=terms), records)


def test_a_trust_model_that_no_other_covers_is_refused():
    one, other = (gdp_of(1.0, terms=Terms(trust, "A")) for trust in ("shuffler", "pan-private"))
    with pytest.raises(Refusal, match="trust model that 'shuffler' covers"):
        one.then(other)


@pytest.mark.parametrize(
    ("larger", "smaller"),
    [
        ("none", "shuffler"),
        ("none", "pan-private"),
        ("none", "server"),
        ("shuffler", "server"),
        ("pan-private", "server"),
    ],
)
def test_the_smaller_view_is_covered(larger, smaller):
    one, other = (gdp_of(1.0, terms=Terms(trust, "A")) for trust in (larger, smaller))
    assert one.then(other).trust == other.then(one).trust == smaller


def test_machines_are_zeroed_under_public_and_secret_participation():
    public = Terms("server", "A", (PUBLIC_PARTICIPATION,), MACHINE, ADD_OR_REMOVE)
    secret = Terms("server", "A", (Assumption("public machines", {"machines": 9}),), MACHINE, ADD_OR_REMOVE)
    for terms in (public, secret):
        assert terms.stated_relation == "add-or-remove-one (zero-out)"
        assert gdp_of(1.0, terms=terms).for_group(2).terms.stated_relation.endswith("(zero-out)")
    both = gdp_of(1.0, terms=public).then(gdp_of(1.0, terms=secret))
    assert both.mu == pytest.approx(2**0.5)
    assert "run 2: the number of machines, 9, is a public constant" in str(both)
    record = Terms("server", "A", (), RECORD, ADD_OR_REMOVE)
    assert gdp_of(1.0, terms=record).terms.stated_relation == "add-or-remove-one"


@pytest.mark.parametrize("unit", [MACHINE, "any 2 of: one record of one machine"])
def test_disjoint_records_of_a_larger_unit_are_refused(unit):
    one = gdp_of(1.0, terms=Terms("none", "A", unit=unit))
    with pytest.raises(Refusal, match='Set records = "same"'):
        one.then(one, "disjoint")
    assert one.then(one).mu == pytest.approx(2**0.5)


def test_deltas_must_be_equal_or_stated():
    with pytest.raises(Refusal, match="delta must be the same in both guarantees, got 1e-05 and 1e-06"):
        gdp_of(1.0).then(gdp_of(1.0, delta=1e-6))
    assert gdp_of(1.0).then(gdp_of(1.0, delta=1e-6), delta=1e-7).delta == 1e-7
    with pytest.raises(Refusal, match="other must be a guarantee"):
        gdp_of(1.0).then(1.0)


def test_groups_of_a_composed_guarantee():
    both = gdp_of(3.0).then(gdp_of(4.0)).for_user(2)
    assert both.mu == pytest.approx(10.0)
    assert pair_of(log(2), 1e-7).then(pair_of(log(2), 1e-7)).for_group(2).epsilon == pytest.approx(4 * log(2), rel=1e-6)


def test_poisson_samples_then_gaussians_are_at_least_either():
    sampled = AccountedCurve(
        lambda delta: sampled_epsilon(1.0, SampledReleases(Poisson(10), records=100, rounds=5, delta=delta))
    )
    both = SequentialCurve(sampled, GaussianCurve(1.0)).epsilon(1e-5)
    basic = sampled.epsilon(5e-6) + GaussianCurve(1.0).epsilon(5e-6)
    assert max(sampled.epsilon(1e-5), GaussianCurve(1.0).epsilon(1e-5)) < both < basic
