"""Late answers: the schedule of a buffered server, simulated hours, and invalid settings."""

from dataclasses import dataclass, replace

import numpy as np
import pytest

from fedprivjax import (
    Buffered,
    Delays,
    Dropouts,
    FedAvg,
    Full,
    Late,
    Logistic,
    Participation,
    PoissonCohorts,
    Refusal,
    Schedule,
    Timed,
    Uniform,
    linear_problem,
    ready,
)
from fedprivjax.plan.participation.validate import checked_draw


def rng(seed=0):
    return np.random.default_rng(seed)


def test_equal_delays_and_a_buffer_of_all_working_machines_are_synchronous():
    schedule = checked_draw(Buffered(8, 3, concurrency=3, delays=Delays("constant", 2.0)), 50, rng())
    assert not schedule.late.staleness.any()
    assert (schedule.late.weights == 1).all()
    np.testing.assert_allclose(schedule.hours, 2.0 * np.arange(1, 51))
    assert all(len(set(row)) == 3 for row in schedule.participants.tolist())


def test_equal_delays_with_twice_as_many_machines_as_the_buffer_step_twice_at_a_time():
    schedule = checked_draw(Buffered(6, 3, delays="constant"), 6, rng())
    assert schedule.hours.tolist() == [1, 1, 2, 2, 3, 3]
    assert schedule.late.staleness.tolist() == [[0] * 3, [1] * 3] * 3
    np.testing.assert_allclose(schedule.late.weights[1], np.sqrt(0.5))


def test_a_machine_twice_as_fast_answers_twice_as_often_and_twice_in_a_buffer():
    schedule = checked_draw(Buffered(4, 4, delays=Delays("exponential", [1.0, 1.0, 1.0, 0.5])), 4000, rng())
    assert schedule.total[3] / schedule.total[:3].mean() == pytest.approx(2, rel=0.05)
    assert any(len(set(row)) < 4 for row in schedule.participants.tolist())
    assert schedule.hours[-1] / 4000 == pytest.approx(4 / 5, rel=0.05)  # five answers an hour


def test_idle_machines_start_uniformly_at_random():
    schedule = checked_draw(Buffered(5, 2, concurrency=2), 20000, rng())
    assert schedule.total / schedule.total.mean() == pytest.approx(np.ones(5), rel=0.05)


@pytest.mark.parametrize("kind", ["exponential", "log_normal"])
def test_delays_have_their_mean_and_deviation(kind):
    options = {"deviation": 0.5} if kind == "log_normal" else {}
    delays = Delays(kind, [1.0, 4.0], **options).of(np.tile([0, 1], (200_000, 1)), rng())
    assert delays.mean(axis=0) == pytest.approx([1, 4], rel=0.02)
    if kind == "log_normal":
        assert np.log(delays).std(axis=0) == pytest.approx([0.5, 0.5], rel=0.02)


def test_answers_that_are_too_stale_are_not_sent_and_more_rounds_start_alike():
    scheme = Buffered(20, 2, delays=Delays("log_normal", deviation=2.0), max_staleness=3)
    schedule, longer = checked_draw(scheme, 300, rng()), checked_draw(scheme, 2000, rng())
    assert (schedule.late.staleness.max(), schedule.late.versions) == (3, 4)
    for part in ("participants", "hours"):
        np.testing.assert_array_equal(getattr(longer, part)[:300], getattr(schedule, part))
    assert checked_draw(scheme, 2, rng()).late.versions == 2
    assert Buffered(20, 3).longest == 67


def test_a_synchronous_round_lasts_as_long_as_its_slowest_machine_that_sends():
    scheme = Dropouts(Uniform(6, 3), 0.4)
    alone, timed = (
        checked_draw(scheme, 40, rng()),
        checked_draw(Timed(scheme, Delays("constant", range(1, 7))), 40, rng()),
    )
    np.testing.assert_array_equal(alone.participants, timed.participants)
    slowest = [max(row[here] + 1) for row, here in zip(alone.participants, alone.present, strict=True)]
    np.testing.assert_allclose(timed.hours, np.cumsum(slowest))
    assert Timed(Uniform(6, 3)).resized(per_round=2).per_round == 2


def test_delays_by_numbers_of_records_make_these_public():
    delays = Delays("constant", 0.5, per_record=True)
    rows = np.array([[0, 1, 2, 3], [4, 5, -1, -1]])
    problem = linear_problem(np.eye(6), [0, 1, 0, 1, 0, 1], Logistic(), partition_table=rows)
    method = FedAvg(unit="machine", update_clip=1.0, noise_std=1.0, local_epochs=1, batch=2, step_size=0.1)
    schemes = {  # the second machine answers after 1, 2, 3, … hours, the first after 2, 4, …
        Buffered(2, 1, delays=delays): [1, 2, 2, 3],
        Timed(Full(2), delays): [2, 4, 6, 8],
        Timed(Dropouts(Full(2), 0.0), delays): [2, 4, 6, 8],
        Dropouts(Timed(Full(2), delays), 0.0): [2, 4, 6, 8],
    }
    for scheme, hours in schemes.items():
        start = ready(method, problem, scheme, rounds=4, metrics=[])
        assert start.plan.schedule.hours.tolist() == hours
        assert "each machine's number of records is public" in str(start.guarantee)
        with pytest.raises(Refusal, match="must not depend on dataset sizes, which are private"):
            ready(replace(method, relation="add-or-remove-one"), problem, scheme, rounds=4)
        with pytest.raises(Refusal, match="per_record must be False for a schedule without data"):
            scheme.draw(2, rng())
        with pytest.raises(Refusal, match="per_record must go with machines that own records"):
            scheme.sized(None)


def test_weights_of_a_machine_in_one_buffer_are_added():
    schedule = checked_draw(Buffered(3, 3), 30, rng(1))
    machine, weights = schedule.weights_by_machine
    expected = [(i, schedule.late.weights[r][schedule.participants[r] == i].sum()) for r in range(30) for i in range(3)]
    found = [(i, w) for i, w in expected if w > 0]
    np.testing.assert_allclose(np.stack([machine, weights], axis=1), found)


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda: Delays(hours=0.0), "hours must be positive and finite, .* got 0.0"),
        (lambda: Delays(hours=[1.0, np.inf]), "hours must be positive and finite, .* got inf"),
        (lambda: Delays(hours=np.ones((2, 2))), r"hours must be .* got shape \[2, 2\]"),
        (lambda: Delays(hours="soon"), "hours must be one number or one for each machine, got soon"),
        (lambda: Delays("gamma"), "unknown delays 'gamma'"),
        (lambda: Delays("log_normal", deviation=0.0), "deviation must be positive, got 0.0"),
        (lambda: Delays("constant", deviation=0.5), "deviation must go with log_normal delays, got 0.5 with constant"),
        (lambda: Buffered(3, 4), r"per_round must be at most machines \(3\), got 4"),
        (lambda: Buffered(9, 4, concurrency=3), r"concurrency must be from per_round \(4\) to machines \(9\), got 3"),
        (lambda: Buffered(9, 4, concurrency=10), r"concurrency must be from per_round \(4\) to machines \(9\), got 10"),
        (lambda: Buffered(9, 4, delays=2.0), "delays must be Delays or one of constant, .*, got 2.0"),
        (lambda: Buffered(9, 4, delays=Delays(hours=[1.0, 2.0])), "hours must be .* each of 9 machines, got 2"),
        (lambda: Buffered(9, 4, power=-1.0), "power must be at least 0 and finite, got -1.0"),
        (lambda: Buffered(9, 4, max_staleness=-1), "max_staleness must be at least 0, got -1"),
        (lambda: Timed(PoissonCohorts(9, 0.5)), "scheme must be a public Participation"),
        (lambda: Dropouts(Buffered(9, 4), 0.1).draw(2, rng()), "dropouts must be left out with late answers"),
        (lambda: Timed(Buffered(9, 4)).draw(2, rng()), "delays must be given once, .* Leave out Timed"),
        (lambda: Dropouts(Timed(Full(9)), 0.1).draw(2, rng()), "dropouts must be inside of delays, got Timed"),
    ],
)
def test_invalid_settings_are_refused(made, message):
    with pytest.raises(Refusal, match=message):
        made()


@dataclass(frozen=True)
class Own(Participation):
    """Two machines in one slot each, with a given staleness and times."""

    late: object
    hours: object = None
    machines: int = 2
    per_round: int = 2

    def draw(self, rounds, rng):
        return Schedule(2, np.zeros((rounds, 2), np.int32), late=self.late, hours=self.hours)


ZERO, ONES = np.zeros((2, 2), np.int32), np.ones((2, 2))


@pytest.mark.parametrize(
    ("late", "message"),
    [
        (Late(ZERO + 1, ONES, 3), "staleness from 0 to the rounds before"),
        (Late(ZERO, ONES, 0), r"staleness .* below versions \(0\)"),
        (Late(ZERO, 2 * ONES, 1), "weights of late answers above 0 and at most 1"),
        (Late(ZERO[:1], ONES, 1), "staleness .integers. and weights of late answers"),
    ],
)
def test_custom_late_schedules_are_checked(late, message):
    with pytest.raises(Refusal, match=rf"Own\.draw must give {message}"):
        checked_draw(Own(late), 2, rng())


def test_custom_late_schedules_and_hours():
    assert checked_draw(Own(Late(ZERO, ONES, 1), np.array([0.5, 0.5])), 2, rng()).total.tolist() == [4, 0]
    with pytest.raises(Refusal, match=r"Own\.draw must give hours \[2\] that do not decrease"):
        checked_draw(Own(Late(ZERO, ONES, 1), np.array([0.5, 0.4])), 2, rng())
    with pytest.raises(Refusal, match="distinct machines in a round"):
        checked_draw(Own(None), 2, rng())
    assert checked_draw(Full(2), 2, rng()).hours is None
