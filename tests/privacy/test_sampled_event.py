"""Events of sampled messages: every machine's ε, and the guarantee."""

import json
from dataclasses import replace

import numpy as np
import pytest
from cases import sparing

from fedprivjax.checks.refusal import Refusal
from fedprivjax.plan.samplers import as_sampler
from fedprivjax.privacy.accountants.bounds import attainable_epsilon
from fedprivjax.privacy.accountants.records import Sampled
from fedprivjax.privacy.accountants.sampled import SampledReleases, sampled_epsilon
from fedprivjax.privacy.events import GaussianEvent
from fedprivjax.privacy.gdp import mu as gdp_mu
from fedprivjax.privacy.guarantee import PrivacyGuarantee
from fedprivjax.privacy.per_machine import Grouped
from fedprivjax.privacy.record_event import RecordEvent, Releases
from fedprivjax.privacy.terms import PRIVATE_SEED, RECORD, Assumption, Terms

DELTA = 1e-5
SAMPLERS = ["replacement", "subset", "poisson", "disjoint", "full"]
QUICK = ["subset", "disjoint", "full"]
RECORDS = np.array([20, 30, 20, 20, 50, 20])
BATCH = np.array([8, 10, 8, 8, 5, 8])
MESSAGES = np.array([6, 3, 2, 0, 9, 6])
SHIFT = 2 / BATCH  # L = 1, equal noise
NOISE = 0.5


TERMS = Terms("none", "Lowy & Razaviyayn 2023, Algorithm 1", unit=RECORD)


def make(noise_std=NOISE, sampler="subset", terms=TERMS, **changes):
    releases = {"shift": SHIFT, "records": RECORDS, "batch": BATCH, "messages": MESSAGES}
    accountant = Sampled(as_sampler(sampler, None if sampler == "full" else 1))  # batches differ between machines
    return RecordEvent(noise_std, accountant, Releases.of(**{**releases, **changes}), terms)


def each_of(event):
    return event.epsilons(DELTA).each


def by_hand(noise_std, sampler="subset", account=sampled_epsilon, shift=SHIFT):
    """ε per machine with z = σK/L, where a replaced record shifts a message by 2L/K."""
    found = np.zeros(RECORDS.size)
    for i in np.flatnonzero(MESSAGES):
        releases = SampledReleases(sampler, int(RECORDS[i]), int(MESSAGES[i]), DELTA, int(BATCH[i]))
        found[i] = account(2 * noise_std / shift[i], releases)
    return found


@pytest.mark.parametrize("sampler", sparing(SAMPLERS, QUICK))
def test_every_machine_by_hand(sampler):
    each = each_of(make(sampler=sampler))
    np.testing.assert_allclose(each, by_hand(NOISE, sampler), rtol=1e-6)
    assert np.unique(each[MESSAGES > 0].round(6)).size == (3 if sampler == "disjoint" else 4)
    assert each[3] == 0
    wrong = by_hand(NOISE / 2, sampler)  # half or twice the shift would fail
    assert (wrong[MESSAGES > 0] > 1.1 * each[MESSAGES > 0]).all()


@pytest.mark.parametrize("sampler", sparing(SAMPLERS, QUICK))
def test_the_worst_machine_is_the_largest(sampler):
    events = [make(0.3 * ratio, sampler) for ratio in (0.8, 1.6, 6.0, 20.0)]
    found = [event.epsilon(DELTA) for event in events]
    for event, value in zip(events, found, strict=True):
        assert value == each_of(event).max()
    assert (np.diff(found) < 0).all()


def test_the_most_messages_decide_among_otherwise_identical_machines():
    messages = np.array([1, 2, 40])
    alike = {"shift": np.full(3, 0.25), "records": np.full(3, 20), "batch": np.full(3, 8), "messages": messages}
    event = make(1.2, **alike)
    releases = SampledReleases("subset", records=20, batch=8, rounds=40, delta=DELTA)
    expected = sampled_epsilon(4.0 * 0.3 * 2 / 0.25, releases)
    assert event.epsilon(DELTA) == pytest.approx(expected, rel=1e-6)
    assert event.epsilon(DELTA) == each_of(event)[2]
    assert (np.diff(each_of(event)) > 0).all()


def test_noise_per_machine():
    """A machine whose noise is twice as large has half the shift."""
    shift = SHIFT / np.array([1, 2, 1, 1, 1, 2])
    each = each_of(make(shift=shift))
    np.testing.assert_allclose(each, by_hand(NOISE, shift=shift), rtol=1e-6)
    assert each[5] < each[0] / 1.8


def test_without_noise_epsilon_is_infinite():
    event = make(0.0)
    assert each_of(event).tolist() == [np.inf, np.inf, np.inf, 0.0, np.inf, np.inf]
    assert event.epsilon(DELTA) == np.inf
    assert not event.guarantee(DELTA).private
    assert event.summary(DELTA)["ε (at least)"] == np.inf


def test_without_messages_nothing_is_revealed():
    for noise_std in (0.0, 0.3):
        event = make(noise_std, messages=np.zeros(6, int))
        assert each_of(event).tolist() == [0.0] * 6
        assert event.epsilon(DELTA) == 0
        assert event.guarantee(DELTA).epsilon == 0


def test_machines_that_never_send_are_in_no_median():
    gaussian = GaussianEvent(1.0, 1.0, Grouped.of([0.0, 0.0, 0.0, 1.0, 3.0]), TERMS)
    assert gaussian.summary(DELTA)["median μ"] == 2.0
    assert replace(gaussian, exposure=Grouped.of([0.0])).summary(DELTA)["median μ"] == 0.0
    event = make(sampler="full", messages=np.array([0, 0, 0, 0, 2, 0]))
    assert event.summary(DELTA)["median ε"] == event.epsilon(DELTA) > 0


def test_a_gdp_parameter_is_not_stated():
    assert make(0.0).mu == np.inf
    assert np.isnan(make(0.3).mu)
    assert make(0.3).mus is None
    assert make(0.3).guarantee(DELTA).mu is None


def noises():
    """Noises that include some which nine digits round up."""
    rng = np.random.default_rng(0)
    return np.concatenate([1 + np.arange(1, 20) * 1e-9, rng.uniform(0.99, 1.01, 20), rng.uniform(0.2, 9.9, 20)])


@pytest.mark.parametrize("sampler", ["full", "disjoint"])
def test_rounding_never_understates(sampler):
    """ε is above the exact one by at most a part in 10⁷, and never below."""
    one = {"shift": np.array([1.0]), "records": np.array([20]), "batch": np.array([8]), "messages": np.array([6])}
    settings = {"sampler": sampler, "records": 20, "batch": 8, "rounds": 6, "delta": DELTA}
    exact = np.array([sampled_epsilon(2 * noise, SampledReleases(**settings)) for noise in noises()])
    stated = np.array([each_of(make(noise, sampler, **one))[0] for noise in noises()])
    assert (stated >= exact * (1 - 1e-14)).all()
    np.testing.assert_allclose(stated, exact, rtol=1e-7)


def test_rounding_errors_do_not_split_groups():
    shift = SHIFT * (1 + np.array([0, 0, 0, 0, 0, 4e-16]))
    each = each_of(make(shift=shift))
    assert each[0] == each[5]


@pytest.mark.parametrize("sampler", sparing(["replacement", "subset", "poisson", "full"], ["subset", "full"]))
def test_summary(sampler):
    summary = make(sampler=sampler).summary(DELTA)
    each, least = by_hand(NOISE, sampler), by_hand(NOISE, sampler, attainable_epsilon)
    assert summary["ε (at most)"] == pytest.approx(each.max(), rel=1e-6)
    assert summary["ε (at least)"] == pytest.approx(least[each.argmax()], rel=1e-3)
    assert summary["median ε"] == pytest.approx(np.median(each[MESSAGES > 0]), rel=1e-6)
    assert summary["ε (at least)"] <= summary["ε (at most)"]


def test_the_guarantee_of_an_event():
    clipped = Assumption("clipped records", {"bound": 1.0})
    event = make(terms=Terms("none", TERMS.theorem, (clipped,), unit=RECORD))
    found = event.guarantee(DELTA)
    np.testing.assert_array_equal(found.per_machine, each_of(event))
    assert found.epsilon == event.epsilon(DELTA)
    assert (found.delta, found.trust, found.theorem) == (DELTA, "none", TERMS.theorem)
    assert (found.unit, found.relation) == ("one record of one machine", "replace-one")
    assert found.assumptions == (clipped, PRIVATE_SEED)


def guarantee(*epsilons, trust="none"):
    words = [Assumption("stated", {"text": text}) for text in ("batches are secret", "gradients are clipped to 1")]
    terms = Terms(trust, "Lowy & Razaviyayn 2023, Algorithm 1", tuple(words), unit=RECORD)
    return PrivacyGuarantee(DELTA, terms, epsilons=Grouped.of(epsilons))


@pytest.mark.parametrize(("worst", "private", "large"), [(9.9, True, False), (10.1, True, True), (np.inf, False, True)])
def test_marks(worst, private, large):
    found = guarantee(0.5, worst, 1.0)
    assert (found.epsilon, found.private, found.large) == (worst, private, large)


def test_text_states_unit_relation_trust_and_assumptions():
    assert str(guarantee(1.0, 14.2415, 3.0)).splitlines() == [
        "(14.25, 1e-05)-DP (large: ε > 10) for one record of one machine (replace-one)",
        "  covers: every message a machine sends (no trusted server)",
        "  theorem: Lowy & Razaviyayn 2023, Algorithm 1",
        "  per machine (3): ε min 1, median 3, max 14.25",
        "  assumes: batches are secret",
        "  assumes: gradients are clipped to 1",
    ]
    assert str(guarantee(1.0)).startswith("(1, 1e-05)-DP for one record")
    assert str(guarantee(1.0, np.inf)).startswith("non-private: ε = inf for one record")


def test_an_unknown_trust_is_refused():
    with pytest.raises(ValueError, match=r"^unknown trust 'sever', did you mean 'server'"):
        guarantee(1.0, trust="sever")


# ---- curves of Gaussian releases


@pytest.mark.parametrize("sampler", ["full", "disjoint"])
def test_a_saved_guarantee_of_gaussian_releases_keeps_its_curve(sampler):
    stated = make(sampler=sampler).guarantee(DELTA)
    saved = PrivacyGuarantee.from_json(stated.to_json())
    for delta in (1e-9, 1e-6, 1e-3):
        assert saved.epsilon_at(delta) == pytest.approx(stated.event.epsilon(delta), rel=1e-9)
    assert saved.advantage == pytest.approx(stated.advantage)
    assert saved.mu is None
    assert saved.curve.mu == pytest.approx(float(gdp_mu(stated.epsilon, DELTA)))


@pytest.mark.parametrize("sampler", ["full", "disjoint"])
def test_a_group_of_saved_gaussian_releases_is_that_of_the_run(sampler):
    stated = make(sampler=sampler).guarantee(DELTA)
    saved = PrivacyGuarantee.from_json(stated.to_json())
    for size in (1, 2, 7):
        run, file = stated.for_user(size), saved.for_user(size)
        assert file.delta == DELTA
        assert (file.per_machine >= run.per_machine * (1 - 1e-12)).all()
        np.testing.assert_allclose(file.per_machine[MESSAGES > 0], run.per_machine[MESSAGES > 0], rtol=1e-7)
        for delta in (1e-8, DELTA, 1e-2):
            assert file.epsilon_at(delta) == pytest.approx(run.epsilon_at(delta), rel=1e-7)
        for group in (run, file, file.for_group(3)):
            again = PrivacyGuarantee.from_json(group.to_json())
            assert again.epsilon_at(1e-8) == pytest.approx(group.epsilon_at(1e-8), rel=1e-9)


@pytest.mark.parametrize("sampler", ["subset", "poisson", "replacement"])
def test_amplified_releases_have_no_gaussian_curve(sampler):
    stated = make(sampler=sampler).guarantee(DELTA)
    assert stated.curve.mu is None
    with pytest.raises(Refusal, match="the one at which this guarantee was saved"):
        PrivacyGuarantee.from_json(stated.to_json()).epsilon_at(1e-6)


def test_subclasses_with_another_epsilon_have_no_gaussian_curve():
    class Doubled(Sampled):
        def epsilon(self, *machine, delta):
            return 2 * super().epsilon(*machine, delta=delta)

    class Larger(RecordEvent):
        def epsilons(self, delta):
            return super().epsilons(delta).map(lambda each: 2 * each)

    known = make(sampler="full")
    assert known.curve is not None
    assert replace(known, accountant=Doubled(known.accountant.sampler)).curve is None
    assert Larger(known.noise_std, known.accountant, known.releases, known.terms).curve is None


def test_without_noise_there_is_no_curve_to_save():
    stated = make(0.0, sampler="full").guarantee(DELTA)
    assert "curve" not in json.loads(stated.to_json())
    assert not PrivacyGuarantee.from_json(stated.to_json()).private


def test_a_saved_curve_below_the_stated_epsilon_is_refused():
    saved = json.loads(make(sampler="full").guarantee(DELTA).to_json())
    saved["curve"]["mu"] *= 0.99
    with pytest.raises(Refusal, match="curve of a guarantee must be at least its ε"):
        PrivacyGuarantee.from_json(json.dumps(saved))
