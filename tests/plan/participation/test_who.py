"""Selection of machines: in turn, by public weights, with caps, and by their remaining data."""

import time
from itertools import permutations

import numpy as np
import pytest
from frequencies import within

from fedprivjax import Balanced, BySize, Cyclic, Full, Refusal, Uniform, Weighted
from fedprivjax.plan.participation import weighted
from fedprivjax.plan.participation.weighted import rounds_filled

WEIGHTS = np.array([0.0, 1.0, 2.0, 3.0, 6.0])


def draw(law, rounds, seed=5):
    return law.draw(rounds, np.random.default_rng(seed))


def inclusion(weights, count):
    """Every machine's probability of being among the first `count`, by enumeration of all orders."""
    found = np.zeros(weights.size)
    for order in permutations(range(weights.size), count):
        chance, rest = 1.0, weights.sum()
        for machine in order:
            chance, rest = chance * weights[machine] / rest, rest - weights[machine]
        found[list(order)] += chance
    return found


def fits(participants, weights, count):
    exact = inclusion(np.asarray(weights, float), count)
    often = [(participants == machine).any(axis=1).astype(float) for machine in range(len(weights))]
    return all(within(values, p) if 0 < p < 1 else (values == p).all() for values, p in zip(often, exact, strict=True))


@pytest.mark.parametrize("clocks", [0, 4096])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_machines_are_drawn_by_weight(clocks, count, monkeypatch):
    """By clocks, and by draws with replacement as for many machines."""
    monkeypatch.setattr(weighted, "CLOCKS", clocks)
    rows = draw(Weighted(5, count, WEIGHTS), 6000).participants
    assert fits(rows, WEIGHTS, count)
    for factor in (2 / 3, 3 / 2):
        assert not fits(rows, WEIGHTS * np.where(np.arange(5) == 3, factor, 1.0), count)


@pytest.mark.parametrize("law", [Full(5), Uniform(5, 2), Balanced(6, 2), Cyclic(5, 2), Weighted(5, 2, [2.0] * 5)])
def test_identical_machines_are_equally_likely(law):
    rows = draw(law, 3000).participants
    for machine in range(law.machines):
        often = (rows == machine).any(axis=1).astype(float)
        share = law.per_round / law.machines
        assert abs(often.mean() - share) <= 4 * np.sqrt(share * (1 - share) / often.size) + 1e-12
        assert abs(often.mean() - 2 / 3 * share) > 4 * np.sqrt(share / often.size)


def test_in_turn():
    rows = draw(Cyclic(7, 3), 14).participants
    np.testing.assert_array_equal(rows.ravel(), np.arange(42) % 7)
    assert rows.dtype == np.int32


@pytest.mark.parametrize("seed", range(20))
def test_the_rounds_that_shares_allow_in_turn(seed):
    rng = np.random.default_rng(seed)
    law, shares = Cyclic(6, int(rng.integers(1, 7))), rng.integers(0, 9, 6)
    most = law.rounds_of_shares(shares)
    assert (draw(law, most).total <= shares).all()
    assert (draw(law, most + 1).total > shares).any()


def test_periodic_weights_follow_the_round():
    law = Weighted(4, 1, [[1, 0, 0, 1], [0, 1, 0, 1], [0, 0, 1, 1]])
    rows = draw(law, 3000).participants.ravel()
    for hour in range(3):
        there = rows[hour::3]
        assert set(there) == {hour, 3}
        assert within((there == 3).astype(float), 1 / 2)


def test_diurnal_weights():
    law = Weighted.diurnal(3, 1, [0.0, 6.0, 12.0], strength=2.0)
    assert law.phases.shape == (24, 3)
    np.testing.assert_allclose(law.phases[:, 0], np.maximum(0, 1 + 2 * np.cos(np.pi * np.arange(24) / 12)), atol=1e-9)
    np.testing.assert_allclose(law.phases[:, 2], np.roll(law.phases[:, 0], 12), atol=1e-9)
    assert (law.phases == 0).sum(axis=0).tolist() == [9, 9, 9]
    rows = draw(law, 480).participants.ravel()
    assert all(law.phases[t % 24, machine] > 0 for t, machine in enumerate(rows))
    assert (Weighted.diurnal(3, 1, [0, 6, 12], strength=0.0).phases == 1).all()


@pytest.mark.parametrize("clocks", [0, 4096])
def test_caps_hold_and_every_round_is_filled(clocks, monkeypatch):
    monkeypatch.setattr(weighted, "CLOCKS", clocks)
    caps = np.array([1, 5, 2, 9, 4])
    for weights in (WEIGHTS + 0.1, WEIGHTS):
        law = Weighted(5, 2, weights, caps)
        for seed in range(20):
            schedule = draw(law, law.rounds_given, seed)
            assert (schedule.total <= caps).all()
            assert schedule.total.sum() == 2 * law.rounds_given
            assert (np.diff(np.sort(schedule.participants, axis=1), axis=1) > 0).all()
        with pytest.raises(
            Refusal,
            match=rf"^rounds must be at most {law.rounds_given}, the largest number that the machines' caps allow",
        ):
            draw(law, law.rounds_given + 1)


def test_caps_that_are_far_away_change_nothing():
    free, capped = (Weighted(5, 2, WEIGHTS, most) for most in (None, 10**6))
    np.testing.assert_array_equal(draw(free, 50).participants, draw(capped, 50).participants)


def test_caps_with_hours_leave_too_few_in_the_end():
    law = Weighted(3, 1, [[1, 1, 0], [0, 0, 1]], max_uses=[5, 5, 2])
    assert draw(law, 4).total[2] == 2
    with pytest.raises(Refusal, match=r"^max_uses must leave 1 machines for every round, got fewer in round 6$"):
        draw(law, 6)


def fillable(caps, per_round, rounds):
    """Return True if taking the largest remaining machines in every round fills all rounds."""
    left = caps.copy()
    for _ in range(rounds):
        largest = np.argsort(-left)[:per_round]
        if (left[largest] < 1).any():
            return False
        left[largest] -= 1
    return True


@pytest.mark.parametrize("seed", range(60))
def test_shares_are_used_up_in_every_feasible_case(seed):
    """For random shares, the largest possible number of rounds is filled, for every sample."""
    rng = np.random.default_rng(seed)
    machines = int(rng.integers(2, 9))
    per_round = int(rng.integers(1, machines + 1))
    shares = rng.integers(0, int(rng.choice([3, 8, 30])), machines)
    shares[rng.permutation(machines)[:per_round]] += 1
    law = BySize(machines, per_round, shares)
    most = law.rounds_given
    assert most == rounds_filled(shares, per_round) >= 1
    assert fillable(shares, per_round, most)
    assert not fillable(shares, per_round, most + 1)
    for rounds in {most, max(1, most // 2)}:
        schedule = draw(law, rounds, seed)
        assert schedule.participants.shape == (rounds, per_round)
        assert (schedule.total <= shares).all()
        assert (np.diff(np.sort(schedule.participants, axis=1), axis=1) > 0).all()
    if shares.max() <= most:
        assert shares.sum() - most * per_round < per_round
    with pytest.raises(Refusal, match=f"^rounds must be at most {most}, "):
        draw(law, most + 1)


@pytest.mark.parametrize("clocks", [pytest.param(0, marks=pytest.mark.slow), 4096])
def test_machines_are_drawn_by_what_remains(clocks, monkeypatch):
    """First rounds of many draws: one machine by the shares, the next by the reduced shares."""
    monkeypatch.setattr(weighted, "CLOCKS", clocks)
    law, rng = BySize(4, 1, [4, 1, 2, 3]), np.random.default_rng(6)
    rows = np.array([law.draw(2, rng).participants.ravel() for _ in range(4000)])
    for machine, share in enumerate([0.4, 0.1, 0.2, 0.3]):
        assert within((rows[:, 0] == machine).astype(float), share)
    again = (rows[rows[:, 0] == 0, 1] == 0).astype(float)
    assert within(again, 3 / 9)
    assert not within(again, 4 / 10)
    assert not (rows == 1).all(axis=1).any()


def unequal():
    """59 machines of 61 to 763 examples, 20,000 in all."""
    shares = np.round(61 + 702 * np.linspace(0, 1, 59) ** 1.526).astype(int)
    shares[30] += 20_000 - shares.sum()
    return shares


def test_unequal_shares_are_used_up_with_every_machine_there_to_the_end():
    shares = unequal()
    assert (shares.min(), shares.max(), shares.sum()) == (61, 763, 20_000)
    law = BySize(59, 14, shares)
    schedule = draw(law, law.rounds_given)
    assert schedule.participants.size == law.rounds_given * 14 > 0.999 * 20_000
    assert np.unique(schedule.participants[-law.rounds_given // 10 :]).size >= 58
    halves = [np.bincount(rows.ravel(), minlength=59) for rows in np.array_split(schedule.participants, 2)]
    assert (np.abs(halves[0] - shares / 2) < 5 * np.sqrt(shares / 4) + 2).all()


@pytest.mark.parametrize(
    "law",
    [
        Cyclic(9, 4),
        Weighted(9, 4, np.arange(1, 10)),
        Weighted.diurnal(9, 2, range(9), max_uses=9),
        BySize(9, 4, [8] * 9),
    ],
)
def test_one_seed_is_one_schedule(law):
    one, same, other = (draw(law, 12, seed).participants for seed in (1, 1, 2))
    np.testing.assert_array_equal(one, same)
    assert (one != other).any() or law == Cyclic(9, 4)


@pytest.mark.slow
def test_a_million_machines_are_drawn_in_seconds():
    rng = np.random.default_rng(0)
    laws = [
        Weighted(10**6, 50, rng.random(10**6)),
        BySize(10**6, 50, rng.integers(1, 100, 10**6)),
        Weighted(10**6, 50, rng.random(10**6), max_uses=1),
    ]
    for law in laws:
        started = time.process_time()
        schedule = draw(law, 100)
        assert time.process_time() - started < 4  # 0.1 to 0.6 s where nothing else runs
        assert (np.diff(np.sort(schedule.participants, axis=1), axis=1) > 0).all()
        assert schedule.total.sum() == 5000


WRONG = [
    (lambda: Cyclic(4, 5), r"per_round must be at most machines \(4\), got 5"),
    (lambda: Weighted(3, 1, [1, 2]), r"weights must be \[machines\] or \[period, machines\] = \[..., 3\], got \[2\]"),
    (lambda: Weighted(3, 1, [1, -1, 2]), "weights must be at least 0 and finite, got others"),
    (lambda: Weighted(3, 1, [1, float("nan"), 2]), "weights must be at least 0 and finite, got others"),
    (lambda: Weighted(3, 2, [1, 0, 0]), r"weights must be positive for at least per_round \(2\) machines, got 1"),
    (
        lambda: Weighted(3, 2, [[1, 1, 0], [0, 1, 0]]),
        r"weights must be positive for at least per_round \(2\) machines, got 1 in round 1 of the period",
    ),
    (lambda: Weighted(3, 1, [[1, 2], [1]]), r"weights must be numbers, of one length each, got \[\[1, 2\], \[1\]\]"),
    (lambda: Weighted(3, 1, [1, 1, 1], max_uses=0), "max_uses must be an integer of at least 1, got 0"),
    (lambda: Weighted(3, 1, [1, 1, 1], max_uses=[1, 2.5, 1]), "max_uses must be an integer of at least 1, got 2.5"),
    (
        lambda: Weighted(3, 1, [1, 1, 1], max_uses=[1, 2]),
        "max_uses must be one integer or one for each of 3 machines, got 2",
    ),
    (lambda: Weighted.diurnal(3, 1, [1, 2]), r"peaks must be a number for each of 3 machines, got \[2\]"),
    (lambda: Weighted.diurnal(3, 1, [1, 2, 3], -1.0), "strength must be a number of at least 0, got -1.0"),
    (lambda: Weighted.diurnal(3, 1, [1, 2, 3], period=0), "period must be at least 1, got 0"),
    (lambda: BySize(3, 1, [1, 2]), r"shares must be an integer of at least 0 for each of 3 machines, got int64 \[2\]"),
    (lambda: BySize(3, 2, [1, 0, 0]), r"shares must be positive on at least per_round \(2\) machines, got 1"),
    (
        lambda: draw(BySize(3, 2), 1),
        "shares must be given for BySize unless machines own records and use each of them once",
    ),
]


@pytest.mark.parametrize(("make", "says"), WRONG)
def test_refused(make, says):
    with pytest.raises(Refusal, match=f"^{says}$"):
        make()
