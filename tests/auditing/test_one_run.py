"""Audits with one run and many canaries: choice of canaries, weights of scores, and bounds from right guesses."""

import json

import numpy as np
import pytest
from cases import sparing
from faults.noise import scaled
from restating import planted

from fedprivjax import (
    Ball,
    DPMu2,
    Dropouts,
    FedAvg,
    Full,
    Logistic,
    NoisyMinibatchSGD,
    Refusal,
    Scaffold,
    Uniform,
    UserSGD,
    linear_problem,
)
from fedprivjax.auditing.one_run import COINS, Projections, _own_messages, audit_one_run, first_records, weigh
from fedprivjax.engine.prepare import ready
from fedprivjax.privacy import gdp

DELTA, CLIP = 1e-5, 0.5


def problem(machines, records, dimension=200, split=False):
    rng = np.random.default_rng(2)
    features = rng.normal(size=(machines * records, dimension)).astype(np.float32)
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    labels = rng.choice([0, 1], size=machines * records)
    table = np.arange(machines * records).reshape(machines, records) if split else None
    return linear_problem(features, labels, Logistic(), constraint=Ball(1.0), partition_table=table)


def at(epsilon, method=DPMu2, **settings):
    return method(mu=float(gdp.mu(epsilon, DELTA)), clip=CLIP, **settings)


def few(protocol=None, **options):
    options = {"rounds": 4, "delta": DELTA} | options
    return audit_one_run(at(4.0) if protocol is None else protocol, problem(50, 4), Full(50), **options)


# ---- views


def test_messages_of_empty_slots_are_left_out(monkeypatch):
    start = begun(at(4.0), problem(4, 30), Dropouts(Full(4), 0.4), 12)
    schedule = start.plan.schedule

    def told(arguments, size, record, directions):
        numbers = np.where(schedule.present, schedule.counts, np.nan)
        return None, (None, np.repeat(numbers[..., None], 1 + len(directions[1]), axis=2), None, None)

    monkeypatch.setattr("fedprivjax.auditing.one_run.replay", told)
    own = _own_messages(start, start.problem, 1).own
    least = np.bincount(schedule.participants[schedule.present]).min()
    assert schedule.dropped.any()
    np.testing.assert_array_equal(own, np.broadcast_to(np.arange(1, least + 1), (4, 1, least)))


# ---- choice of canaries


def begun(protocol, given, participation, rounds):
    return ready(protocol, given, participation, rounds=rounds, seed=0, delta=DELTA, metrics=())


def test_canaries_are_the_records_that_machines_use_first():
    start = begun(at(2.0), problem(5, 8), Uniform(5, 2), 10)
    found = first_records(start, 2)
    participants = start.plan.schedule.participants
    samples = start.plan.samples.reshape(participants.shape)
    for machine, rows in enumerate(found):
        used = [int(samples[t, j]) for t, j in np.argwhere(participants == machine)]
        assert rows.tolist() == used[:2]
    assert np.unique(found).size == found.size


def test_where_samples_are_secret_canaries_are_any_records_of_their_machine():
    protocol = NoisyMinibatchSGD(epsilon=2.0, clip=CLIP, batch=2, sampler="poisson", step_size=0.1)
    given = problem(3, 6, split=True)
    np.testing.assert_array_equal(
        first_records(begun(protocol, given, Full(3), 5), 2), np.array(given.partition_table.rows)[:, :2]
    )


@pytest.mark.parametrize("each", [0, 5])
def test_no_more_canaries_than_a_machine_uses(each):
    with pytest.raises(
        Refusal, match=rf"^each must be between 1 and 4, the records that every machine uses, got {each}$"
    ):
        first_records(begun(at(2.0), problem(3, 4), Full(3), 4), each)


# ---- weights


def test_weights_are_those_of_the_likelihood_ratio():
    rng = np.random.default_rng(0)
    root, signal = np.array([[1.0, 0.0, 0.0], [-0.9, 0.5, 0.0], [0.0, 0.3, 2.0]]), np.array([1.0, 0.2, 0.5])
    machines, paths = 4000, 50_000
    signs = rng.choice([-1.0, 1.0], size=machines)
    own = signs[:, None] * signal + rng.normal(size=(machines, 3)) @ root.T + 7.0
    pure = rng.normal(size=(paths, 3)) @ root.T + 7.0
    scores, reached = weigh(Projections(own[:, None], pure), np.broadcast_to(signal, (machines, 1, 3)))
    mu = 2 * np.sqrt(signal @ np.linalg.solve(root @ root.T, signal))
    assert reached == pytest.approx(mu, rel=0.02)
    ratio = (own - 7.0) @ np.linalg.solve(root @ root.T, signal)
    assert np.corrcoef(scores, ratio)[0, 1] > 0.999
    scores /= mu / 2
    assert (scores * signs).mean() == pytest.approx(mu / 2, abs=0.06)


def test_clearer_canaries_count_for_more():
    """A machine's second canary has half the separation, so that its scores have half the spread."""
    rng = np.random.default_rng(1)
    own, signal = rng.normal(size=(5000, 2, 1)), np.broadcast_to([[[2.0], [1.0]]], (5000, 2, 1))
    scores, _ = weigh(Projections(own, rng.normal(size=(20_000, 1))), signal)
    spread = scores.reshape(5000, 2).std(axis=0)
    assert spread[0] / spread[1] == pytest.approx(2.0, rel=0.05)


# ---- audits


def test_an_audit_counts_right_guesses_and_can_be_saved():
    found = few(guesses=30)
    assert not found.refuted
    assert (found.bounds.canaries, found.bounds.guesses) == (50, 30)
    assert found.bounds.right > 20
    assert found.attained == pytest.approx(float(gdp.mu(4.0, DELTA)), rel=0.25)
    assert 0 < found.bounds.mu_lower < found.guarantee.mu
    assert found.strict.mu_lower < found.bounds.mu_lower
    saved = json.loads(json.dumps(found.as_mapping(), allow_nan=False))
    assert (saved["bounds"]["right"], saved["refuted"]) == (found.bounds.right, False)
    assert f"{found.bounds.right} of 30 guesses right (50 canaries)" in str(found)


def test_coins_are_fair_and_a_seeds_own():
    coins = [np.random.default_rng([seed, COINS]).random((2, 1000)) < 0.5 for seed in (0, 1)]
    for drawn in coins:
        assert np.abs(drawn.mean(axis=1) - 0.5).max() < 0.07
        assert np.abs((drawn[0] == drawn[1]).mean() - 0.5) < 0.07
    assert (coins[0] != coins[1]).mean() > 0.4
    assert few(guesses=30).bounds == few(guesses=30).bounds


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"canary": 0.0}, "canary must be positive"),
        ({"level": 1.0}, "level must be"),
        ({"verdict": 0.0}, "verdict must be"),
        ({"delta": 2.0}, "delta must be"),
        ({"each": 9}, "each must be between 1 and 4"),
        ({"protocol": UserSGD(epsilon=4.0, clip=CLIP, trust="pan-private")}, "trust must be 'none' or 'server'"),
    ],
    ids=str,
)
def test_bad_input_is_refused(options, said):
    with pytest.raises(Refusal, match=f"^{said}"):
        few(**options)


@pytest.mark.parametrize(("trust", "rounds"), [("server", 4), ("none", 3)])
def test_as_many_numbers_as_parameters_are_refused(trust, rounds):
    """Noises of more numbers than there are parameters have no covariance of full rank, and scores would be NaN."""
    private = FedAvg(unit="machine", epsilon=8.0, update_clip=0.5, local_epochs=1, step_size=0.5, trust=trust)
    with pytest.raises(Refusal, match=r"^problem must have more parameters than a canary has numbers .* \(3 in"):
        audit_one_run(private, problem(6, 4, dimension=3, split=True), Full(6), rounds=rounds)


@pytest.mark.parametrize(
    ("kind", "trust", "rounds", "message"),
    [
        (FedAvg, "server", 1, "rounds must show every machine's canary .* got 1. Use more rounds"),
        (Scaffold, "none", 2, "messages must have the 9 numbers of the parameters .* got 18 of Scaffold"),
    ],
)
def test_canaries_that_are_not_seen_are_refused(kind, trust, rounds, message):
    private = kind(unit="machine", epsilon=8.0, update_clip=0.5, local_epochs=1, step_size=0.5, trust=trust)
    with pytest.raises(Refusal, match=f"^{message}"):
        audit_one_run(private, problem(6, 4, dimension=9, split=True), Full(6), rounds=rounds)


def test_canaries_below_the_sensitivity_are_refused():
    with pytest.raises(Refusal, match=r"^canaries must achieve at least 50% of .* sensitivity, got \d+% "):
        few(canary=0.2)


# ---- tightness

MANY = {"rounds": 2, "delta": DELTA}


@pytest.fixture(scope="module")
def large():
    return problem(1000, 2, dimension=2000)


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [2.0])
def test_a_thousand_canaries_prove_a_third_of_the_claim(large, epsilon):
    found = [audit_one_run(at(epsilon), large, Full(1000), seed=seed, **MANY) for seed in range(3)]
    assert {one.bounds.canaries for one in found} == {1000}
    shares = [one.bounds.gdp_epsilon_lower / one.guarantee.epsilon for one in found]
    assert 0.3 <= np.median(shares) <= 1
    assert not any(one.refuted for one in found)


@pytest.mark.slow
@pytest.mark.parametrize("trust", sparing(["none", "server"], ["none", "server"]))
def test_a_tenth_of_the_noise_is_refuted_and_all_of_it_is_not(large, trust):
    claim = {"epsilon": 4.0, "trust": trust}
    assert not audit_one_run(at(**claim), large, Full(1000), **MANY).refuted
    if trust == "none":  # a thousand canaries cannot refute half of the noise at the level of a verdict
        assert audit_one_run(planted(at(**claim), scaled(0.1)), large, Full(1000), guesses=600, **MANY).refuted
