"""The fraction of the data that a run uses: reported, warned about, and public if the schedule depends on it."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
from restating import planted, unsealed

from fedprivjax import (
    BySize,
    Cyclic,
    DPMu2,
    Dropouts,
    FedAvg,
    Full,
    Given,
    NoisyMessages,
    NoisyMinibatchSGD,
    NoisySGD,
    Refusal,
    Softmax,
    Uniform,
    Weighted,
    datasets,
    draw_plan,
    from_dataset,
    guarantee,
    linear_problem,
    ready,
    simulate,
)
from fedprivjax.privacy.event_on_plan import event_of
from fedprivjax.privacy.relations import ADD_OR_REMOVE, REPLACE_ONE
from fedprivjax.privacy.terms import Assumption


def problem(*sizes):
    """A problem whose machines have these numbers of examples."""
    ends = np.cumsum(sizes)
    rows = np.full((len(sizes), max(sizes)), -1)
    for machine, (end, size) in enumerate(zip(ends, sizes, strict=True)):
        rows[machine, :size] = np.arange(end - size, end)
    return linear_problem(
        np.eye(ends[-1], 2), np.arange(ends[-1]) % 2, Softmax(2), feature_bound=1.0, partition_table=rows
    )


SKEWED = problem(2, 10, 12, 16)
ONE_LARGE = problem(2, 2, 2, 100)
EVEN = problem(10, 10, 10, 10)
MINIBATCHES = NoisyMinibatchSGD(noise_std=1.0, step_size=0.1, batch=2, sampler="disjoint")


def test_use_of_less_than_half_warns_once():
    with pytest.warns(UserWarning, match="a run uses") as caught:
        plan = draw_plan(SKEWED, Uniform(4, 2))
    assert [str(one.message) for one in caught] == [
        "a run uses 4 of 40 examples (10%): rounds end with the smallest share; BySize(4, 2), in a file "
        'kind = "by_size", uses 100%'
    ]
    assert plan.size.rounds == 2
    assert plan.data_used == "4 of 40 examples (10%)"


@pytest.mark.parametrize(
    ("given", "law", "sampler", "used", "remedy", "better"),
    [
        (
            SKEWED,
            Full(4),
            None,
            "8 of 40 examples (20%)",
            'BySize(4, 3), in a file kind = "by_size", per_round = 3, ',
            90,
        ),
        (
            SKEWED,
            Uniform(4, 4),
            None,
            "8 of 40 examples (20%)",
            'BySize(4, 3), in a file kind = "by_size", per_r',
            90,
        ),
        (SKEWED, Uniform(4, 3), None, "6 of 40 examples (15%)", 'BySize(4, 3), in a file kind = "by_size", uses', 90),
        (
            ONE_LARGE,
            Full(4),
            None,
            "8 of 106 examples (7.55%)",
            "methods of minibatches from a machine's own rec",
            None,
        ),
        (
            ONE_LARGE,
            Full(4),
            "disjoint",
            "8 of 106 examples (7.55%)",
            "samplers that use records again, such as ",
            None,
        ),
    ],
)
def test_the_warning_names_a_remedy(given, law, sampler, used, remedy, better):
    """BySize does not help with full participation. Fewer machines per round do, or reusing records."""
    sampler = MINIBATCHES.minibatches if sampler else None
    with pytest.warns(UserWarning, match="a run uses") as caught:
        draw_plan(given, law, sampler=sampler)
    (said,) = (str(one.message) for one in caught)
    assert said.startswith(f"a run uses {used}: rounds end with the smallest share; {remedy}")
    if better is not None:
        fewer = int(remedy.split(", ")[1].rstrip(")"))
        assert draw_plan(given, BySize(4, fewer)).part_used == better
        assert said.endswith(f"uses {better}%")


@pytest.mark.parametrize(
    "prepared",
    [
        lambda: draw_plan(SKEWED, Uniform(4, 2)),
        lambda: ready(NoisySGD(mu=1.0, clip=1.0, step_size=0.1), SKEWED, Uniform(4, 2)),
    ],
)
def test_the_warning_points_to_user_code(prepared):
    with pytest.warns(UserWarning, match="a run uses") as caught:
        prepared()
    assert [one.filename for one in caught] == [__file__]


@pytest.mark.parametrize(
    ("given", "participation", "options"),
    [
        (SKEWED, Uniform(4, 2), {"rounds": 2}),  # a user's own rounds
        (EVEN, Uniform(4, 1), {}),  # no share is small
        (SKEWED, BySize(4, 2), {}),
        (SKEWED, Dropouts(BySize(4, 2), 0.7), {}),
        (SKEWED, Given(4, [[0, 1]]), {}),  # an end of its own
        (SKEWED, Full(4), {"rounds": 3, "order": "cyclic"}),
        (problem(8, 10, 12, 10), Uniform(4, 1), {}),
    ],
)
def test_no_warning_for_a_requested_number_of_rounds(given, participation, options):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        draw_plan(given, participation, **options)


def test_shares_come_from_the_problem():
    plan = draw_plan(SKEWED, BySize(4, 2))
    assert (plan.size.rounds, plan.used, plan.part_used) == (20, 40, 100.0)
    np.testing.assert_array_equal(plan.schedule.total, [2, 10, 12, 16])
    assert draw_plan(SKEWED, BySize(4, 2, [2, 5, 5, 2])).used == 14
    batches = draw_plan(SKEWED, BySize(4, 2), sampler=MINIBATCHES.minibatches)
    np.testing.assert_array_equal(batches.schedule.total, [1, 5, 6, 8])
    assert batches.used == 40


def test_dropouts_of_what_is_planned_stay_unused():
    plan = draw_plan(SKEWED, Dropouts(BySize(4, 2), 0.3))
    assert plan.used == plan.schedule.present.sum() < 40 == plan.schedule.scheduled.sum()


@pytest.mark.parametrize(
    ("law", "rounds"),
    [
        (Cyclic(4, 3), 6),  # machine 0 would have a sixth turn in the seventh
        (Weighted(4, 2, [0, 1, 1, 1]), 9),
        (Weighted(4, 2, [1, 1, 1, 1], max_uses=[2, 5, 6, 7]), 10),
        (Weighted(4, 2, [1, 1, 1, 1], max_uses=[3, 50, 6, 7]), 9),
    ],
)
def test_rounds_can_be_filled_for_every_sample(law, rounds):
    assert draw_plan(problem(5, 9, 9, 9), law).size.rounds == rounds


def test_a_run_reports_its_used_data():
    run = simulate(DPMu2(mu=2.0, clip=1.0, step_size=0.1), SKEWED, BySize(4, 2), metrics=())
    assert run.data_used == "40 of 40 examples (100%)"
    assert run.data_used == run.plan.data_used


@pytest.mark.slow
def test_a_run_says_why_it_does_not_report_its_used_data():
    machine = FedAvg(unit="machine", update_clip=1.0, noise_std=1.0, local_epochs=1, step_size=0.1)
    run = simulate(machine, SKEWED, Full(4), rounds=1, metrics=())
    assert run.data_used == "not stated: the guarantee hides numbers of records"
    computed = from_dataset(datasets.stream(3, 2))
    run = simulate(NoisySGD(mu=1.0, clip=1.0, step_size=0.1), computed, Full(4), rounds=1, metrics=())
    assert run.data_used == "examples are computed"


@pytest.mark.parametrize(
    ("law", "rounds", "public"),
    [(BySize(4, 2), None, True), (BySize(4, 2), 3, True), (Cyclic(4, 1), None, True), (Uniform(4, 2), 2, False)],
)
def test_sizes_that_the_schedule_follows_from_are_an_assumption(law, rounds, public):
    plan = draw_plan(problem(4, 6, 6, 6), law, rounds)
    assert plan.depends_on_sizes == public
    stated = guarantee(DPMu2(noise_std=1.0, clip=1.0, step_size=0.1), problem(4, 6, 6, 6), plan)
    assert (Assumption("public sizes") in stated.assumptions) == public
    assert stated.relation == REPLACE_ONE
    says = "^relation must stay 'replace-one'" + (" if participation depends on dataset sizes" if public else "")
    with pytest.raises(Refusal, match=says):
        stated.for_relation(ADD_OR_REMOVE)
    text = str(stated)
    assert ("each machine's number of records is public" in text) == public


def test_a_guarantee_for_added_records_is_refused_where_sizes_are_public():
    """A privacy object may state that relation, which is wrong on such a schedule."""

    def of_added(private, facts, noise_std):
        event = NoisyMessages.event(private, facts, noise_std)
        return replace(event, terms=replace(event.terms, relation=ADD_OR_REMOVE))

    protocol = planted(DPMu2(noise_std=1.0, clip=1.0, step_size=0.1), unsealed(event=of_added))
    assert event_of(protocol, SKEWED, draw_plan(SKEWED, Uniform(4, 2), 2)).terms.relation == ADD_OR_REMOVE
    with pytest.raises(Refusal, match=r"^participation and rounds must not depend on dataset sizes, which are private"):
        event_of(protocol, SKEWED, draw_plan(SKEWED, BySize(4, 2)))


def test_missing_shares_are_refused():
    pool = linear_problem(np.eye(40, 2), np.arange(40) % 2, Softmax(2))
    with pytest.raises(Refusal, match=r"^shares must be given for BySize unless machines own records"):
        draw_plan(pool, BySize(4, 2))
    assert draw_plan(pool, BySize(4, 2, [4, 4, 2, 2])).size.rounds == 6
    with pytest.raises(Refusal, match=r"^rounds must be given if records are reused$"):
        draw_plan(SKEWED, BySize(4, 2), order="cyclic")
    with pytest.raises(Refusal, match=r"^shares must be given for BySize"):
        draw_plan(SKEWED, BySize(4, 2), 5, order="cyclic")
    with pytest.raises(Refusal, match=r"^shares must be at most the 2 of machine 0, got 3$"):
        draw_plan(SKEWED, BySize(4, 2, [3, 3, 3, 3]))
