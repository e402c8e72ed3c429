"""Single releases: their composition equals the event's total, and their dp-accounting events."""

import numpy as np
import pytest
from cases import CASES, POOL_CASES, sparing
from dp_accounting import (
    GaussianDpEvent,
    PoissonSampledDpEvent,
    SampledWithoutReplacementDpEvent,
    SampledWithReplacementDpEvent,
    SelfComposedDpEvent,
)
from dp_accounting.pld import PLDAccountant
from dp_accounting.privacy_accountant import NeighboringRelation
from dp_accounting.rdp import RdpAccountant

from fedprivjax.engine.prepare import ready
from fedprivjax.noise.factors import FACTORS
from fedprivjax.noise.factors.reduced import Groups, ReducedTrees
from fedprivjax.plan.samplers import Disjoint, Full, Poisson, Replacement, Subset
from fedprivjax.plan.uses import Uses
from fedprivjax.privacy import PrivacyGuarantee, gdp
from fedprivjax.privacy.accountants.dp_accounting_backend import EXACT, LOWER, UPPER
from fedprivjax.privacy.accountants.records import Sampled, Shuffled
from fedprivjax.privacy.accountants.sampled import SampledReleases, sampled_epsilon
from fedprivjax.privacy.events import GaussianEvent
from fedprivjax.privacy.noise_rules import claimed_epsilon, noise_std
from fedprivjax.privacy.per_machine import Grouped
from fedprivjax.privacy.terms import Terms

DELTA = 1e-5
TERMS = Terms("none", "a theorem")
EPOCH, ROUNDS, ALPHA = 7, 40, 0.2


def uses_of(record):
    """Uses of a record in cyclic order, with different weights."""
    used = np.arange(record + 1, ROUNDS + 1, EPOCH)
    return used, 1 / (1 + np.arange(used.size))


@pytest.mark.parametrize("record", [0, 3, 6])
@pytest.mark.parametrize("name", FACTORS)
def test_a_factors_releases_have_the_squares_that_it_states(name, record):
    used, weight = uses_of(record)
    one = Uses(used, np.zeros(used.size, int), weight, 1)
    each = FACTORS[name].contributions(used, weight, ROUNDS, ALPHA, float(EPOCH))
    assert each.size > 1
    assert (each > 0).all()
    assert np.sum(each**2) == pytest.approx(FACTORS[name].squares(one, ROUNDS, ALPHA, float(EPOCH))[0], rel=1e-9)


@pytest.mark.parametrize("record", [0, 3, 6])
@pytest.mark.parametrize("reset_rate", [0.0, 0.3, 1.0])
def test_reduced_trees_releases_have_the_squares_that_they_state(reset_rate, record):
    used, weight = uses_of(record)
    one, stds = Uses(used, np.zeros(used.size, int), weight, 1), Groups(1.0, 1.3, 0.7, 0.9, 0.5)
    trees = ReducedTrees(EPOCH)
    each = trees.contributions(used, weight, ROUNDS, ALPHA, reset_rate, 0.1, stds)
    stated = trees.squares(one, ROUNDS, ALPHA, reset_rate, 0.1)[0] / np.square(stds)
    assert np.sum(each**2) == pytest.approx(stated.sum(), rel=1e-9)


@pytest.mark.parametrize("name", ["mu2-none-clipped-gap", "stale-clipped-sequence", "mu2-server-clipped-sequence"])
def test_every_machines_releases_come_to_its_exposure(name):
    case = POOL_CASES[name]
    event = ready(case.protocol, case.problem, case.participation, metrics=()).event
    for machine, exposure in enumerate(event.exposure.each):
        relative = np.asarray(event.releases(machine), float)
        assert np.sum(relative**-2.0) ** 0.5 == pytest.approx(exposure, rel=1e-9)
        assert relative.size > 1


def tree_of(name):
    case = CASES[name]
    options = {} if name in POOL_CASES else {"rounds": 12}
    start = ready(case.protocol, case.problem, case.participation, metrics=(), **options)
    return start.guarantee, start.guarantee.dp_event()


@pytest.mark.parametrize("name", ["mu2-none-clipped-gap", "minibatch-poisson", "minibatch-disjoint"])
def test_a_guarantees_tree_has_its_epsilon(name):
    guarantee, tree = tree_of(name)
    sampled = name == "minibatch-poisson"
    relation = NeighboringRelation.REPLACE_ONE if sampled else NeighboringRelation.ADD_OR_REMOVE_ONE
    told = PLDAccountant(relation, 1e-3).compose(tree).get_epsilon(DELTA)
    assert told == pytest.approx(guarantee.epsilon, rel=2e-3)


def test_a_guarantee_that_was_read_is_one_gaussian():
    read = PrivacyGuarantee.from_json(PrivacyGuarantee(DELTA, TERMS, Grouped.of([0.5, 2.0])).to_json())
    assert read.dp_event() == GaussianDpEvent(0.5)


SIZES = 100, 10, 30


def test_trees_of_samplers():
    """A replaced record moves a mean by 2L/K: the ratio is noise divided by 2L/K, Poisson's multiplier noise by L/K."""
    gaussian = GaussianDpEvent(2.0)
    expected = {
        Subset(10): SampledWithoutReplacementDpEvent(100, 10, gaussian),
        Replacement(10): SampledWithReplacementDpEvent(100, 10, gaussian),
        Poisson(10): PoissonSampledDpEvent(0.1, GaussianDpEvent(4.0)),
        Full(): gaussian,
    }
    for sampler, one in expected.items():
        assert Sampled(sampler).dp_event(2.0, *SIZES) == SelfComposedDpEvent(one, 30)
    assert Sampled(Disjoint(10)).dp_event(2.0, *SIZES) == SelfComposedDpEvent(gaussian, 1)


@pytest.mark.parametrize("accountant", [Sampled(Poisson(10), whole_message=True), Shuffled(1000)])
def test_what_dp_accounting_cannot_express_is_refused(accountant):
    with pytest.raises(ValueError, match=r"^(event|sampler) must be .* dp-accounting event, got"):
        accountant.dp_event(2.0, *SIZES)


@pytest.mark.parametrize("ratio", sparing([0.5, 2.0], [2.0]))
@pytest.mark.parametrize(
    "sampler",
    sparing([Subset(10), Poisson(10), Replacement(10), Full()], [Subset(10), Full()]),
    ids=lambda one: one.name,
)
def test_accountants_results_are_on_the_side_that_they_state(sampler, ratio):
    stated = Sampled(sampler).epsilon(ratio, *SIZES, delta=DELTA)
    results = {one.kind: one.epsilon for one in Sampled(sampler).accountant_results(ratio, *SIZES, delta=DELTA)}
    assert results.get(EXACT, stated) == pytest.approx(stated, rel=1e-3)
    assert results.get(LOWER, stated) <= stated * (1 + 1e-6)
    if sampler.name == "subset":  # dp-accounting's Rényi bound is valid but larger
        theirs = RdpAccountant(neighboring_relation=NeighboringRelation.REPLACE_ONE)
        theirs.compose(Sampled(sampler).dp_event(ratio, *SIZES))
        assert results[UPPER] == theirs.get_epsilon(DELTA) > stated


@pytest.mark.parametrize("records", sparing([1, 50], [1]))
def test_a_shufflers_results_enclose_its_bound(records):
    shuffled = Shuffled(1000)
    stated = shuffled.epsilon(2.0, records, 1, 20, delta=1e-6)
    results = shuffled.accountant_results(2.0, records, 1, 20, delta=1e-6)
    assert max(one.epsilon for one in results if one.kind == LOWER) <= stated * (1 + 1e-6)
    assert min(one.epsilon for one in results if one.kind == UPPER) >= stated * (1 - 1e-3)


def test_a_claim_is_the_inverse_of_its_rule_and_none_outside_the_theorem():
    for rule, batch in (("advanced", 400), ("paper_moments", 50)):
        releases = SampledReleases("subset", 1000, 7, DELTA, batch)
        sigma = noise_std(rule, releases, lipschitz=2.0, epsilon=1.5, acknowledged=True)
        assert claimed_epsilon(rule, sigma, releases, 2.0) == pytest.approx(1.5, rel=1e-9)
        assert np.isnan(claimed_epsilon(rule, sigma / 1000, releases, 2.0))


def test_one_composed_loss_serves_every_delta():
    settings = {"sampler": "subset", "batch": 9, "records": 77, "rounds": 13}
    from fedprivjax.privacy.accountants import sampled

    before = sampled._loss.cache_info().misses
    found = [sampled_epsilon(1.7, SampledReleases(delta=delta, **settings)) for delta in (1e-3, 1e-5, 1e-7, 1e-9)]
    assert sampled._loss.cache_info().misses == before + 1
    assert sampled._loss.cache_info().maxsize <= 64
    assert found == sorted(found)


def test_an_event_without_releases_of_its_own_is_one_gaussian():
    event = GaussianEvent(2.0, 2.0, Grouped.of([0.5]), TERMS)
    assert event.multipliers.tolist() == [2.0]
    assert event.accountant_results(DELTA)[0].epsilon == pytest.approx(gdp.epsilon(0.5, DELTA), rel=1e-3)


def test_a_gaussian_event_states_the_epsilon_of_every_machine_and_a_copy_keeps_its_releases():
    event = GaussianEvent(2.0, 2.0, Grouped.of([1.0, 0.5]), TERMS, lambda machine: np.ones(machine + 1))
    np.testing.assert_allclose(event.epsilons(1e-5).each, gdp.epsilon(np.array([1.0, 0.5]), 1e-5))
    copied = event.restated(TERMS)
    assert [copied.releases(machine).size for machine in (0, 1)] == [1, 2]
