"""`[[protocol]] participation`: rounds, cohorts and schemes of single methods in one file."""

import tomllib

import pytest
import tomli_w

from fedprivjax import Full, Refusal, Uniform, experiment
from fedprivjax.auditing import of_experiment as audits
from fedprivjax.experiment import jobs as listed
from fedprivjax.experiment import run as runner
from fedprivjax.planner.options import plan_settings
from fedprivjax.privacy.calibration import target_of
from fedprivjax.report.plots import all_plots
from fedprivjax.report.summary import Summary
from fedprivjax.testing.tiny import tiny

SINGLE = {"name": "noisy_sgd", "label": "single", "clip": 1.0}
SEVERAL = {"name": "noisy_minibatch_sgd", "label": "several", "clip": 1.0, "batch": 2}
BOTH = " the participation of 'several', not both"
MANY = {"machines": 20, "per_round": 10}


def make(own, section=MANY, sweep=None, **more):
    return experiment.parse(
        {
            "title": "small",
            "problem": {"dataset": "digits", "radius": 8.0, "partition": {"kind": "iid"}},
            "participation": section,
            "protocol": [SINGLE, {**SEVERAL, "participation": own}],
            "sweep": {"epsilon": [4.0], "seeds": 1, **(sweep or {})},
            **more,
        }
    )


def of(made, label):
    """Return the participation and rounds of a protocol's runs."""
    settings = next(one for one in made.protocol if one.label == label)
    return experiment.make_participation(made.participation_of(settings), made.shapes[0])


def test_own_rounds_next_to_the_rounds_that_the_data_allow():
    made = make({"rounds": 3})
    assert of(made, "single") == (Uniform(20, 10), None)
    assert of(made, "several") == (Uniform(20, 10), 3)
    rounds = {job.label: job.prepare().static.size.rounds for job in listed.jobs(made)}
    assert rounds["several"] == 3
    assert rounds["single"] == 71  # one pass over the smallest dataset


@pytest.mark.parametrize(
    ("section", "own", "law", "rounds"),
    [
        (MANY, {"per_round": 5, "rounds": 4}, Uniform(20, 5), 4),
        ({**MANY, "rounds": 7}, {"kind": "full"}, Full(20), 7),  # whose cohort is not the section's
        ({"kind": "full", "machines": 20, "rounds": 7}, {"kind": "uniform", "per_round": 5}, Uniform(20, 5), 7),
        ({**MANY, "rounds": 7}, {"kind": "uniform"}, Uniform(20, 10), 7),
        ({**MANY, "rounds": 7}, {}, Uniform(20, 10), 7),
    ],
)
def test_own_keys_override_the_section(section, own, law, rounds):
    made = make(own, section)
    assert of(made, "several") == (law, rounds)
    assert of(made, "single") == of(make({}, section), "single")
    raw = experiment.to_mapping(made)
    assert experiment.parse(tomllib.loads(tomli_w.dumps(raw))) == made


@pytest.mark.parametrize(
    ("own", "sweep", "said"),
    [
        (
            {"round": 3},
            {},
            "in the participation of 'several': unknown key in [participation] 'round', did you mean 'rounds'?",
        ),
        ({"rounds": 0}, {}, "in the participation of 'several': participation.rounds must be at least 1"),
        ({"kind": "ful"}, {}, "in the participation of 'several': unknown participation 'ful', did you mean"),
        ({"kind": "full", "per_round": 5}, {}, "[[protocol]] 'several': per_round must be 20 for kind 'full', got 5"),
        (
            {"kind": "uniform", "weights": [1.0]},
            {},
            "in the participation of 'several': weights must be in [participation] of",
        ),
        ({"machines": 10}, {}, "machines must be left out of the participation of 'several', got 10"),
        ({"rounds": 3}, {"rounds": [2, 4]}, "rounds must be swept or in" + BOTH),
        (
            {"per_round": 3},
            {"per_round": [2]},
            "per_round must be swept or in" + BOTH,
        ),
        (40, {}, "[[protocol]] 'several': participation must be a table, got 40"),
    ],
)
def test_invalid_own_participation_prints_one_line(own, sweep, said):
    with pytest.raises(Refusal) as caught:
        listed.jobs(make(own, sweep=sweep))
    assert str(caught.value).startswith(said)
    assert "\n" not in str(caught.value)


def test_rounds_outside_the_table_are_told_where_they_belong():
    with pytest.raises(Refusal, match=r"^\[\[protocol\]\] 'single': rounds must be in \[participation\], got it here"):
        make({}, protocol=[{**SINGLE, "rounds": 40}])


def test_tiny_has_the_same_few_rounds_for_all():
    for own in ({"rounds": 40}, {"rounds": 3}, {"kind": "full", "rounds": 40}):
        small = tiny(make(own))
        found = [of(small, label)[1] for label in ("single", "several")]
        assert found == [min(10, own["rounds"])] * 2
        assert of(small, "several")[0] == of(make(own), "several")[0]


def test_theory_chooses_only_for_methods_that_request_it():
    methods = [{"name": "user_sgd", "label": label, "epsilon": 1.0} for label in ("fixed", "theory")]
    methods[1]["participation"] = {"per_round": "theory"}
    made = experiment.parse(
        {
            "title": "users",
            "problem": {"dataset": "least_absolute", "options": {"examples": 1000, "features": 3}, "radius": 1.0},
            "participation": {"kind": "one_pass", "machines": 800, "per_round": 40},
            "protocol": methods,
            "sweep": {"seeds": 1},
        }
    )
    sizes = {job.label: job.prepare().first.plan.size.per_round for job in listed.jobs(made)}
    protocol = experiment.make_protocol(made.protocol[1])
    problem = experiment.make_problem(made.problem, 800)
    best = protocol.theory.choices(protocol, problem).per_round(800, target_of(protocol, delta=1e-5))
    assert sizes == {"fixed": 40, "theory": best}
    assert best != 40


def test_an_audit_in_one_run_goes_as_long_as_each_method(monkeypatch):
    seen = {}
    monkeypatch.setattr(
        audits, "audit_one_run", lambda p, problem, law, **options: seen.update({law: options["rounds"]})
    )
    made = make({"kind": "full", "rounds": 3}, {**MANY, "rounds": 5})
    chosen = audits.chosen("a file", lambda: made, None, None, None)
    attack = audits.one_run_audits(chosen, each=1, seed=0)
    for label, protocol in chosen.protocols.items():
        attack(label, protocol, None)
    assert seen == {Uniform(20, 10): 5, Full(20): 3}


def test_a_plan_is_for_the_files_section(tmp_path):
    path = tmp_path / "two.toml"
    path.write_text(tomli_w.dumps(experiment.to_mapping(make({"kind": "full", "rounds": 3}))), encoding="utf-8")
    assert plan_settings(str(path), {}).arguments["per_round"] == 10


@pytest.fixture(scope="module")
def ran():
    made = make({"rounds": 2}, {**MANY, "rounds": 6}, {"epsilon": [2.0, 4.0]}, evaluation={"every": 3})
    todo = listed.jobs(made)
    return made, todo, runner.run_jobs(todo)


@pytest.mark.slow
def test_evaluations_end_with_each_methods_rounds(ran):
    _, _, found = ran
    assert {label: data["round"].values.tolist() for label, data in found.items()} == {"single": [3, 6], "several": [2]}
    assert all_plots(Summary(found))


def test_a_mean_over_rounds_needs_several_evaluations_of_the_method(ran):
    made, _, _ = ran
    single, several = (
        made.but(expected=[experiment.Expected(protocol=label, rule="shown", rounds="mean")])
        for label in ("single", "several")
    )
    listed.ready_experiment(single, judge=True)
    with pytest.raises(Refusal, match="must have several evaluations a run, got 1"):
        listed.ready_experiment(several, judge=True)
