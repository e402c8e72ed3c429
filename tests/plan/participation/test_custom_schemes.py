"""Custom participation schemes: required definitions, and checks of their schedules before compilation."""

from dataclasses import dataclass, field

import jax
import numpy as np
import pytest

from fedprivjax import (
    DPMu2,
    Dropouts,
    NoisySGD,
    Participation,
    Refusal,
    Schedule,
    Softmax,
    Uniform,
    draw_plan,
    linear_problem,
    ready,
    simulate,
)

PROBLEM = linear_problem(np.eye(60, 2), np.arange(60) % 2, Softmax(2), feature_bound=1.0)


@dataclass(frozen=True)
class Written(Participation):
    """A scheme with given rows and any other fields of its schedule."""

    rows: object = field(repr=False)
    machines: int = 5
    per_round: int = 2
    more: dict = field(default_factory=dict)
    law: tuple = ()

    @property
    def varies(self):
        return bool(self.law)

    @property
    def cohort_size_pmf(self):
        return np.array(self.law) if self.law else super().cohort_size_pmf

    def draw(self, rounds, rng):
        return Schedule(**{"machines": self.machines, "participants": self.rows, **self.more})


GOOD = np.array([[0, 1], [3, 2], [4, 0]])


def drawn(law, rounds=3):
    return draw_plan(PROBLEM, law, rounds).schedule


def test_a_custom_scheme_is_sampled_and_stored():
    schedule = drawn(Written(GOOD))
    np.testing.assert_array_equal(schedule.participants, GOOD)
    assert schedule.participants.dtype == np.int32
    assert (schedule.varies, schedule.divisor, schedule.cohort) == (False, 2.0, 2)


def test_missing_moments_follow_from_the_sizes():
    schedule = drawn(Written(GOOD, law=(0.25, 0.75), more={"filled": np.array([1, 2, 2])}))
    assert (schedule.expected, 1 / schedule.mean) == (1.75, pytest.approx(0.25 + 0.75 / 2))
    given = drawn(Written(GOOD, law=(0.25, 0.75), more={"filled": np.array([1, 2, 2]), "expected": 1.5, "mean": 1.2}))
    assert (given.expected, given.mean) == (1.5, 1.2)


def rows(*changed):
    made = GOOD.copy()
    for place, value in changed:
        made[place] = value
    return made


FILLED = np.array([1, 2, 2])
EMPTY = np.array([[True, True], [False, False], [False, False]])
WRONG = [
    (Written(np.zeros((3, 2), int)), "must give distinct machines in a round .*, got machine 0 twice in round 1"),
    (Written(rows(((1, 1), 3))), "must give distinct machines in a round .*, got machine 3 twice in round 2"),
    (
        Written(np.array([[0, 0], [1, 2], [3, 4]]), law=(0.5, 0.5), more={"filled": FILLED}),
        r"must give distinct machines in a round \(in empty slots, too\), got machine 0 twice in round 1",
    ),
    (
        Written(np.array([[2, 1, 2], [0, 1, 2], [2, 1, 0]], np.uint32), per_round=3),
        "must give distinct machines in a round .*, got machine 2 twice in round 1",
    ),
    (Written(rows(((0, 0), 5))), "must give machines in 0..4, got 0..5"),
    (Written(rows(((0, 0), -1))), "must give machines in 0..4, got -1..4"),
    (Written(GOOD.astype(float)), "must give participants as an array of integers, got float64"),
    (Written(GOOD.tolist()), "must give participants as an array of integers, got list"),
    (Written(GOOD[:2]), r"must give participants \[rounds, per_round\] = \[3, 2\], got \[2, 2\]"),
    (Written(GOOD[:, :1]), r"must give participants \[rounds, per_round\] = \[3, 2\], got \[3, 1\]"),
    (Written(GOOD.ravel()), r"must give participants \[rounds, per_round\] = \[3, 2\], got \[6\]"),
    (Written(GOOD, more={"machines": 9}), r"must give a schedule of machines \(5\), got 9"),
    (
        Written(GOOD, law=(0.5, 0.5), more={"filled": FILLED - 1}),
        r"must fill 1 to 2 slots a round, got 0..1",
    ),
    (Written(GOOD, law=(0.5, 0.5), more={"filled": FILLED + 1}), "must fill 1 to 2 slots a round, got 2..3"),
    (
        Written(GOOD, law=(0.5, 0.5), more={"filled": FILLED[:2]}),
        r"must give filled as integers \[3\], got int64 \(2,\)",
    ),
    (
        Written(GOOD, law=(0.5, 0.5), more={"dropped": EMPTY}),
        "must leave a machine in every round, got a round in which all",
    ),
    (
        Written(GOOD, law=(0.5, 0.5), more={"dropped": EMPTY[:2]}),
        r"must give dropped as bool \[3, 2\], got \[2, 2\]",
    ),
    (
        Written(GOOD, law=(0.5, 0.5), more={"filled": FILLED, "expected": 3.0}),
        r"must have E\[M\] from 1 to 2 machines, got 3.0",
    ),
]


@pytest.mark.parametrize(("law", "says"), WRONG)
def test_schedules_that_break_a_guarantee_are_refused(law, says):
    with pytest.raises(Refusal, match=f"^Written(.draw)? {says}") as caught:
        drawn(law)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("law", "says"),
    [*WRONG[:-1], (Written(GOOD, more={"filled": FILLED}), "varies must be True")],  # dropouts have their own moments
)
def test_they_are_refused_with_dropouts_too(law, says):
    with pytest.raises(Refusal, match=f"^Written(.draw|.)? ?{says}"):
        drawn(Dropouts(law, 0.5))


@dataclass(frozen=True)
class Careless(Participation):
    """A uniform scheme that samples from NumPy's global generator."""

    machines: int = 50
    per_round: int = 2

    def draw(self, rounds, rng):
        return Schedule(self.machines, np.array([np.random.permutation(50)[:2] for _ in range(rounds)]))  # noqa: NPY002


@dataclass(frozen=True)
class Short(Participation):
    machines: int = 5
    per_round: int = 2

    def draw(self, rounds):  # pyright: ignore[reportIncompatibleMethodOverride]
        return Schedule(self.machines, np.tile([0, 1], (rounds, 1)))


@dataclass(frozen=True)
class Careful(Careless):
    def draw(self, rounds, rng):
        return Schedule(self.machines, np.array([rng.permutation(50)[:2] for _ in range(rounds)]))


@pytest.mark.parametrize("wrapped", [lambda law: law, lambda law: Dropouts(law, 0.1)])
def test_a_custom_scheme_must_be_reproducible(wrapped):
    with pytest.raises(
        Refusal, match=r"^Careless\.draw must use no randomness except rng, got different schedules from equal"
    ):
        drawn(wrapped(Careless()))
    with pytest.raises(Refusal, match=r"^Short\.draw must take \(rounds, rng\), got \(rounds\)$"):
        drawn(wrapped(Short()))
    same = [drawn(wrapped(Careful())).participants for _ in range(2)]
    np.testing.assert_array_equal(*same)


@pytest.mark.parametrize("method", [NoisySGD, DPMu2])
@pytest.mark.parametrize("trust", ["server", "none"])
def test_what_a_law_says_of_a_fixed_number_changes_no_noise(method, trust):
    """A round divides by the number of its slots, and so must the noise."""
    protocol = method(mu=1.0, clip=1.0, step_size=0.1, trust=trust)
    honest, other = (
        ready(protocol, PROBLEM, Written(GOOD, more=more), rounds=3) for more in ({}, {"expected": 50.0, "mean": 40.0})
    )
    assert other.protocol.noise_std == honest.protocol.noise_std
    assert (other.plan.schedule.divisor, other.plan.schedule.cohort) == (2.0, 2)
    jax.tree.map(np.testing.assert_array_equal, other.mechanism, honest.mechanism)


def test_varies_must_be_set_for_varying_sizes():
    with pytest.raises(Refusal, match=r"^Written.varies must be True if its schedule has empty slots, got False$"):
        drawn(Written(GOOD, more={"filled": FILLED}))


def test_a_machine_eight_times_in_a_round_gets_no_guarantee():
    law = Written(np.zeros((2, 8), int), machines=20, per_round=8)
    with pytest.raises(Refusal, match="got machine 0 twice in round 1"):
        simulate(DPMu2(mu=2.0, clip=1.0, step_size=0.1), PROBLEM, law, rounds=2)


def test_a_scheme_without_a_schedule():
    @dataclass(frozen=True)
    class Rows(Participation):
        machines: int = 5
        per_round: int = 2

        def draw(self, rounds, rng):
            return GOOD

    for law in (Rows(), Dropouts(Rows(), 0.5)):
        with pytest.raises(Refusal, match=r"^Rows.draw must give a Schedule, got ndarray$"):
            drawn(law)


@pytest.mark.parametrize(
    ("participation", "given"),
    [
        (10, "10"),
        ([0, 1], "a list"),
        (None, "None"),
        ("", "''"),
        (Uniform, "the class Uniform"),
        (PROBLEM, "a Problem"),
    ],
)
def test_other_objects_are_refused(participation, given):
    with pytest.raises(Refusal) as caught:
        simulate(DPMu2(mu=2.0, clip=1.0), PROBLEM, participation, rounds=2)
    text = str(caught.value)
    assert text.startswith("participation must be a Participation, such as ")
    assert "\n" not in text
    with pytest.raises(Refusal, match=f"got {given}$"):
        draw_plan(PROBLEM, participation, 2)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"machines": 2.0}, "machines must be an integer, got 2.0"),
        ({"per_round": 9}, r"per_round must be at most machines \(5\), got 9"),
        ({"per_round": None}, "per_round must be an integer, got None"),
    ],
)
def test_impossible_sizes_are_refused(settings, says):
    with pytest.raises(Refusal, match=f"^{says}$"):
        drawn(Written(GOOD, **settings))
