"""What sampled messages do to every machine's privacy, and the guarantee that says so."""

import numpy as np
import pytest

from fedprivjax.privacy.accountants.attainable import attainable_epsilon
from fedprivjax.privacy.accountants.sampled import sampled_epsilon
from fedprivjax.privacy.events import SampledEvent
from fedprivjax.privacy.guarantee import RecordGuarantee

DELTA = 1e-5
RECORDS = np.array([20, 30, 20, 20, 50, 20])
BATCH = np.array([8, 10, 8, 8, 5, 8])
MESSAGES = np.array([6, 3, 2, 0, 9, 6])
SHIFT = 2 / BATCH  # L = 1, all noise alike
NOISE = 0.5


def make(**changes):
    values = {
        "sampler": "subset",
        "sensitivity": 0.3,
        "shift": SHIFT,
        "records": RECORDS,
        "batch": BATCH,
        "messages": MESSAGES,
        "trust": "none",
        "theorem": "Lowy & Razaviyayn 2023, Algorithm 1",
    }
    return SampledEvent(**{**values, **changes})


def by_hand(noise_std, sampler="subset", account=sampled_epsilon, shift=SHIFT):
    """Machine by machine: z = σK/L, where a record that is replaced shifts a message by 2L/K."""
    found = np.zeros(RECORDS.size)
    for i in np.flatnonzero(MESSAGES):
        settings = {"records": int(RECORDS[i]), "batch": int(BATCH[i]), "rounds": int(MESSAGES[i])}
        found[i] = account(2 * noise_std / shift[i], sampler=sampler, delta=DELTA, **settings)
    return found


@pytest.mark.parametrize("sampler", ["replacement", "subset", "poisson", "disjoint", "full"])
def test_every_machine_by_hand(sampler):
    event = make(sampler=sampler)
    each = event.per_machine(NOISE / event.sensitivity, DELTA)
    np.testing.assert_allclose(each, by_hand(NOISE, sampler), rtol=1e-6)
    assert np.unique(each[MESSAGES > 0].round(6)).size == (3 if sampler == "disjoint" else 4)
    assert each[3] == 0
    wrong = by_hand(NOISE / 2, sampler)  # half or twice the shift would not go unnoticed
    assert (wrong[MESSAGES > 0] > 1.1 * each[MESSAGES > 0]).all()


@pytest.mark.parametrize("sampler", ["replacement", "subset", "poisson", "disjoint", "full"])
def test_the_worst_machine_is_the_largest(sampler):
    event, ratios = make(sampler=sampler), np.array([[0.8, 1.6], [6.0, 20.0]])
    found = event.epsilon(ratios, DELTA)
    assert found.shape == ratios.shape
    for ratio, value in zip(ratios.ravel(), found.ravel(), strict=True):
        assert value == event.per_machine(ratio, DELTA).max()
    assert (np.diff(found.ravel()) < 0).all()


def test_the_most_messages_decide_among_machines_alike():
    messages = np.array([1, 2, 40])
    alike = {"shift": np.full(3, 0.25), "records": np.full(3, 20), "batch": np.full(3, 8), "messages": messages}
    event = make(**alike)
    expected = sampled_epsilon(4.0 * 0.3 * 2 / 0.25, sampler="subset", records=20, batch=8, rounds=40, delta=DELTA)
    assert event.epsilon(np.array(4.0), DELTA) == pytest.approx(expected, rel=1e-6)
    assert event.epsilon(np.array(4.0), DELTA) == event.per_machine(4.0, DELTA)[2]
    assert (np.diff(event.per_machine(4.0, DELTA)) > 0).all()


def test_noise_of_ones_own():
    """A machine whose noise is twice as large has half the shift."""
    shift = SHIFT / np.array([1, 2, 1, 1, 1, 2])
    each = make(shift=shift).per_machine(NOISE / 0.3, DELTA)
    np.testing.assert_allclose(each, by_hand(NOISE, shift=shift), rtol=1e-6)
    assert each[5] < each[0] / 1.8


def test_without_noise_nothing_is_promised():
    event = make()
    assert event.per_machine(0.0, DELTA).tolist() == [np.inf, np.inf, np.inf, 0.0, np.inf, np.inf]
    assert event.epsilon(np.array([0.0, 1.0]), DELTA)[0] == np.inf
    assert not event.guarantee(0.0, DELTA).private
    assert event.figures(0.0, DELTA)["ε (at least)"] == np.inf


def test_without_messages_nothing_is_revealed():
    event = make(messages=np.zeros(6, int))
    for ratio in (0.0, 1.0):
        assert event.per_machine(ratio, DELTA).tolist() == [0.0] * 6
        assert event.epsilon(np.array(ratio), DELTA) == 0
    assert event.guarantee(1.0, DELTA).epsilon == 0


def test_a_gdp_parameter_is_not_stated():
    found = make().mu(np.array([0.0, 1.0]))
    assert found[0] == np.inf
    assert np.isnan(found[1])


def noises():
    """Among them those that nine digits round up."""
    rng = np.random.default_rng(0)
    return np.concatenate([1 + np.arange(1, 20) * 1e-9, rng.uniform(0.99, 1.01, 20), rng.uniform(0.2, 9.9, 20)])


@pytest.mark.parametrize("sampler", ["full", "disjoint"])
def test_rounding_never_understates(sampler):
    """By at most a part in 10⁷ more than the exact ε, and never less."""
    one = {"shift": np.array([1.0]), "records": np.array([20]), "batch": np.array([8]), "messages": np.array([6])}
    event = make(sampler=sampler, sensitivity=1.0, **one)
    settings = {"sampler": sampler, "records": 20, "batch": 8, "rounds": 6, "delta": DELTA}
    exact = np.array([sampled_epsilon(2 * noise, **settings) for noise in noises()])
    stated = np.array([event.per_machine(noise, DELTA)[0] for noise in noises()])
    assert (stated >= exact * (1 - 1e-14)).all()
    np.testing.assert_allclose(stated, exact, rtol=1e-7)


def test_an_error_of_rounding_is_no_other_machine():
    shift = SHIFT * (1 + np.array([0, 0, 0, 0, 0, 4e-16]))
    each = make(shift=shift).per_machine(NOISE / 0.3, DELTA)
    assert each[0] == each[5]


@pytest.mark.parametrize("sampler", ["replacement", "subset", "poisson", "full"])
def test_figures(sampler):
    figures = make(sampler=sampler).figures(NOISE / make(sampler=sampler).sensitivity, DELTA)
    each, least = by_hand(NOISE, sampler), by_hand(NOISE, sampler, attainable_epsilon)
    assert figures["ε (at most)"] == pytest.approx(each.max(), rel=1e-6)
    assert figures["ε (at least)"] == pytest.approx(least[each.argmax()], rel=1e-3)
    assert figures["median ε"] == pytest.approx(np.median(each), rel=1e-6)
    assert figures["ε (at least)"] <= figures["ε (at most)"]


def test_the_guarantee_of_an_event():
    event = make(assumptions=("gradients are clipped to 1",))
    found = event.guarantee(NOISE, DELTA)
    np.testing.assert_array_equal(found.per_machine, event.per_machine(NOISE / 0.3, DELTA))
    assert found.epsilon == event.epsilon(np.array(NOISE / 0.3), DELTA)
    assert (found.delta, found.trust, found.theorem) == (DELTA, "none", event.theorem)
    assert (found.unit, found.relation) == ("one record of one machine", "replace-one")
    assert found.assumptions == ("gradients are clipped to 1",)


def guarantee(*epsilons, **changes):
    values = {
        "per_machine": np.array(epsilons),
        "delta": DELTA,
        "unit": "one record of one machine",
        "relation": "replace-one",
        "trust": "none",
        "theorem": "Lowy & Razaviyayn 2023, Algorithm 1",
        "assumptions": ("batches are secret", "gradients are clipped to 1"),
    }
    return RecordGuarantee(**{**values, **changes})


@pytest.mark.parametrize(("worst", "private", "large"), [(9.9, True, False), (10.1, True, True), (np.inf, False, True)])
def test_marks(worst, private, large):
    found = guarantee(0.5, worst, 1.0)
    assert (found.epsilon, found.private, found.large) == (worst, private, large)


def test_statement_says_everything_that_gives_the_number_its_meaning():
    assert str(guarantee(1.0, 14.2415, 3.0)).splitlines() == [
        "(14.24, 1e-05)-DP (large: ε > 10) for one record of one machine (replace-one)",
        "  covers: every message a machine sends (no trusted server)",
        "  theorem: Lowy & Razaviyayn 2023, Algorithm 1",
        "  per machine (3): ε min 1, median 3, max 14.24",
        "  assumes: batches are secret",
        "  assumes: gradients are clipped to 1",
    ]
    assert str(guarantee(1.0)).startswith("(1, 1e-05)-DP for one record")
    assert str(guarantee(1.0, np.inf)).startswith("non-private: ε = inf for one record")


def test_an_unknown_trust_is_refused():
    with pytest.raises(ValueError, match=r"^unknown trust 'sever', did you mean 'server'"):
        guarantee(1.0, trust="sever")
