from dataclasses import replace
from math import log

import numpy as np
import pytest

from fedprivjax import Full, Uniform, Varying
from fedprivjax.noise import NOISE_SCHEDULES
from fedprivjax.noise.chooser import exposure, relative_std, server_std
from fedprivjax.plan.schedule import Schedule

# machine 0 takes part in rounds 1, 2, 4; machine 1 in 1, 3; machine 2 in 2, 3, 4; machine 3 never
SMALL = Schedule(4, np.array([[0, 1], [0, 2], [1, 2], [2, 0]]))
RANDOM = Uniform(20, 7).draw(40, np.random.default_rng(5))
UNIT = 1 + log(4)


@pytest.mark.parametrize(
    ("noise_schedule", "variances"),
    [
        ("uniform", [[3, 2], [3, 3], [2, 3], [3, 3]]),
        ("proportional", [[UNIT, UNIT], [2 * UNIT, UNIT], [2 * UNIT, 2 * UNIT], [3 * UNIT, 3 * UNIT]]),
        # gaps: 0 → 1, 2, 1 (of 4); 1 → 2, 2 (of 4); 2 → 1, 1, 1 (of 3)
        ("gap", [[4 / 1, 4 / 2], [4 / 2, 3], [4 / 2, 3], [3, 4 / 1]]),
        # Σ 1/σ² = 1 + 1/4 + 1/16 for three messages
        ([1.0, 2.0, 4.0, 9.0], np.array([[1, 1], [4, 1], [4, 4], [16, 16]]) * (1 + 1 / 4 + 1 / 16)),
    ],
    ids=["uniform", "proportional", "gap", "given"],
)
def test_values_by_hand(noise_schedule, variances):
    relative = relative_std(noise_schedule, SMALL)
    assert relative.dtype == np.float64
    np.testing.assert_allclose(relative**2, variances, rtol=1e-12)


def spent(relative, schedule):
    """Return Σ_k 1/r_k² of each machine, in a loop."""
    total = np.zeros(schedule.machines)
    for row, machines in zip(relative, schedule.participants, strict=True):
        for r, i in zip(row, machines, strict=True):
            total[i] += 1 / r**2
    return total


@pytest.mark.parametrize("schedule", [SMALL, RANDOM, Full(3).draw(9, np.random.default_rng(0))])
@pytest.mark.parametrize("noise_schedule", ["uniform", "gap", "proportional", [3.0 + k for k in range(40)]])
def test_no_machine_spends_more_than_the_budget(noise_schedule, schedule):
    relative = relative_std(noise_schedule, schedule)
    total = spent(relative, schedule)
    np.testing.assert_allclose(exposure(relative, schedule), np.sqrt(total), rtol=1e-12)
    busy = schedule.total > 0
    assert total.max() <= 1 + 1e-12
    assert (total[~busy] == 0).all()
    if noise_schedule in ("uniform", "gap"):
        np.testing.assert_allclose(total[busy], 1.0, rtol=1e-12)
    elif noise_schedule == "proportional":
        harmonic = [sum(1 / k for k in range(1, n + 1)) for n in schedule.total]
        np.testing.assert_allclose(total, np.array(harmonic) / (1 + log(schedule.size.rounds)), rtol=1e-12)
    else:
        np.testing.assert_allclose(total.max(), 1.0, rtol=1e-12)
        assert total.argmax() == schedule.total.argmax()


def test_scale_of_a_given_sequence_does_not_matter():
    sequence = np.linspace(1, 2, 40)
    np.testing.assert_allclose(relative_std(7 * sequence, RANDOM), relative_std(sequence, RANDOM), rtol=1e-12)


def test_gap_leaves_less_noise_at_the_end_than_uniform():
    """The noise in the last iterate is Σ_k gap_k²·σ_k², by Cauchy-Schwarz at least (Σ_k gap_k)²."""
    reaching = {name: np.sum((RANDOM.gaps * relative_std(name, RANDOM)) ** 2) for name in ("gap", "uniform")}
    least = sum(RANDOM.gaps[RANDOM.participants == i].sum() ** 2 for i in range(20))
    assert reaching["gap"] < 0.95 * reaching["uniform"]
    np.testing.assert_allclose(reaching["gap"], least, rtol=1e-12)


def test_a_server_releases_in_every_round():
    np.testing.assert_allclose(server_std("uniform", 9), 3.0)
    np.testing.assert_allclose(server_std("gap", 9), 3.0)
    np.testing.assert_allclose(server_std("proportional", 4) ** 2, UNIT * np.arange(1, 5))
    given = server_std([1.0, 2.0, 5.0], 2)
    np.testing.assert_allclose(given, np.array([1.0, 2.0]) * np.sqrt(1 + 1 / 4))


@pytest.mark.parametrize(
    ("noise_schedule", "message"),
    [
        ([1.0, 2.0], "noise_schedule must have at least 3 entries for this schedule, got 2"),
        ([1.0, -2.0, 1.0], "noise_schedule must be positive and finite, got -2.0"),
        ([1.0, np.nan, 1.0], "noise_schedule must be positive and finite, got nan"),
        ([1.0, np.inf, 1.0], "noise_schedule must be positive and finite, got inf"),
        ("unifrom", "unknown noise_schedule 'unifrom', did you mean 'uniform'"),
    ],
)
def test_refusals(noise_schedule, message):
    with pytest.raises(ValueError, match=message):
        relative_std(noise_schedule, SMALL)


@pytest.mark.parametrize("name", [*NOISE_SCHEDULES, "sequence"])
def test_noise_is_by_the_plan_and_what_is_sent_stays_within_its_budget(name):
    """With dropouts, every message has the planned noise, and a machine's messages leak at most the planned amount."""
    noise_schedule = tuple(1.0 + 0.3 * k for k in range(40)) if name == "sequence" else name
    planned = Varying.between(12, 2, 7).draw(40, np.random.default_rng(3))
    relative = relative_std(noise_schedule, planned)
    budget = exposure(relative, planned)
    assert budget.max() <= 1 + 1e-12
    for seed in range(20):
        rng = np.random.default_rng([6, seed])
        dropped = rng.random(planned.participants.shape) < rng.random()
        schedule = replace(planned, dropped=dropped)
        np.testing.assert_array_equal(relative_std(noise_schedule, schedule), relative)
        np.testing.assert_array_equal(exposure(relative, schedule), budget)
        squares = np.where(schedule.present, relative**-2.0, 0.0)
        told = np.sqrt(np.bincount(planned.participants.ravel(), squares.ravel(), 12))
        assert (told <= budget + 1e-12).all()
    assert (told < budget - 1e-3).any()
