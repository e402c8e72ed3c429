"""Declared constants of a problem, metrics that rounds report, and custom algorithms with equal names."""

import numpy as np
import pytest

from fedprivjax import experiment, final
from fedprivjax.checks.refusal import Refusal
from fedprivjax.experiment import jobs as listed
from fedprivjax.experiment import run as runner
from fedprivjax.experiment.jobs import recorded
from fedprivjax.experiment.tuning import selected

PROBLEM = {"dataset": "logistic", "options": {"examples": 60, "features": 3}, "radius": 5.0}
MINIBATCHES = {"name": "noisy_minibatch_sgd", "batch": 4, "epsilon": 2.0, "step_size": 0.1}


def make(protocol=MINIBATCHES, folder=None, evaluation=None, **problem):
    raw = {
        "title": "declared",
        "problem": {**PROBLEM, "partition": {"kind": "iid"}, **problem},
        "participation": {"machines": 3, "per_round": 3, "rounds": 4},
        "protocol": protocol if isinstance(protocol, list) else [protocol],
        "sweep": {"seeds": 2},
        "evaluation": evaluation or {"metrics": ["test_loss"]},
    }
    assert experiment.parse(experiment.to_mapping(experiment.parse(raw, folder)), folder) == experiment.parse(
        raw, folder
    )
    return experiment.parse(raw, folder)


def problem_of(**problem):
    (job,) = listed.jobs(make(**problem))
    return job.prepare().first.problem


def test_declared_constants_reach_the_problem():
    declared = problem_of(lipschitz=[0.5, 1.0, 2.0], distance=3.0, machine_weights=[0.5, 0.25, 0.25])
    assert declared.own_lipschitz == (0.5, 1.0, 2.0)
    assert declared.distance_to_optimum == 3.0
    assert declared.machine_weights == (0.5, 0.25, 0.25)
    assert problem_of(lipschitz=2.0).lipschitz == 2.0
    assert problem_of(machine_weights="sizes").weights == pytest.approx((1 / 3, 1 / 3, 1 / 3))
    plain = problem_of()
    assert (plain.own_lipschitz, plain.distance_to_optimum, plain.machine_weights) == (None, 10.0, None)


def test_noise_and_step_follow_from_declared_constants():
    def members(**problem):
        protocol = {key: value for key, value in MINIBATCHES.items() if key != "step_size"}
        return listed.jobs(make(protocol, **problem))[0].prepare().configurations

    plain = members(lipschitz=1.0)
    np.testing.assert_allclose(members(lipschitz=2.0).noise_std, 2 * plain.noise_std)
    np.testing.assert_allclose(
        members(lipschitz=1.0, machine_weights=[0.5, 0.25, 0.25]).noise_std, 1.5 * plain.noise_std
    )
    assert members(lipschitz=1.0, distance=0.1).step_size < plain.step_size


@pytest.mark.parametrize(
    ("problem", "message"),
    [
        ({"machine_weights": [0.5, 0.4, 0.2]}, "machine_weights must be positive and add up to 1, got a sum of 1.1"),
        ({"machine_weights": [0.5, 0.5]}, "machine_weights must have a value for each of 3 machines, got 2"),
        ({"machine_weights": 0.5}, "problem.machine_weights must be a list, got 0.5"),
        ({"lipschitz": [0.5, 0.5]}, "lipschitz must have a value for each of 3 machines, got 2"),
        ({"lipschitz": [0.5, -0.5, 1.0]}, "lipschitz must be positive and finite on every machine, got -0.5"),
        ({"lipschitz": 0.0}, "lipschitz must be positive, got 0.0"),
        ({"distance": -1.0}, "distance must be positive, got -1.0"),
        ({"distanse": 1.0}, "unknown key in [problem] 'distanse', did you mean 'distance'?"),
    ],
    ids=lambda value: "-".join(map(str, value.items())) if isinstance(value, dict) else "",
)
def test_what_no_problem_has_is_refused(problem, message):
    with pytest.raises(Refusal) as caught:
        listed.jobs(make(**problem))
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("schedule", [["x"], [["x"]], [None], 3.0])
def test_a_noise_schedule_of_no_numbers_is_refused(schedule):
    with pytest.raises(Refusal, match=r"noise_schedule must be a name or a list of numbers, got "):
        listed.jobs(make({"name": "dp_mu2", "mu": 1.0, "noise_schedule": schedule}))


CLIPPED = {"name": "noisy_sgd", "label": "tight", "mu": 4.0, "clip": 0.01, "step_size": 0.1}


def test_metrics_that_rounds_report_are_recorded_by_name():
    entries = [CLIPPED, {**CLIPPED, "label": "loose", "clip": 1e3}]
    made = make(entries, evaluation={"metrics": ["test_loss", "clipped_share", "message_norm"], "every": 2})
    todo = listed.jobs(made)
    assert recorded(todo[0].prepare())["output"] == ["test_loss", "clipped_share", "message_norm"]
    results = runner.run_jobs(todo)
    shares = {label: final(data, "clipped_share") for label, data in selected(made, results).items()}
    assert (shares["tight"] == 1).all()
    assert (shares["loose"] == 0).all()
    assert results["tight"]["message_norm"].dims == ("seed", "round")
    assert (results["loose"]["message_norm"] > 0.01).all()
    assert results["tight"].attrs["non_private_metrics"] == "clipped_share, message_norm"


def test_a_metric_that_no_round_reports_is_refused():
    evaluation = {"metrics": ["test_loss", "clipped_share"]}
    unclipped = {key: value for key, value in CLIPPED.items() if key != "clip"}
    with pytest.raises(Refusal, match=r"unknown metric 'clipped_share' \(nearest: "):
        listed.jobs(make(unclipped, evaluation=evaluation))
    with pytest.raises(Refusal, match=r"unknown metric 'clipped_shares', did you mean 'clipped_share'\?"):
        listed.jobs(make(CLIPPED, evaluation={"metrics": ["clipped_shares"]}))


OWN = """
from typing import Any
from flax import struct
from fedprivjax.protocols.noisy_sgd import SGD

@struct.dataclass
class Mine(SGD):
    beta: Any = 0.5

    def point(self, server):
        return {} * server.w
"""


@pytest.mark.slow
def test_classes_of_equal_name_and_fields_are_distinct(tmp_path):
    entry = {"name": "mine:Mine", "label": "ours", "mu": 4.0, "step_size": 0.1}
    entry["privacy"] = {"kind": "messages", "clip": 1.0}
    found, done = [], {}
    for factor in (1.0, 0.0):
        folder = tmp_path / str(factor)
        folder.mkdir()
        (folder / "mine.py").write_text(OWN.replace("{}", str(factor)), encoding="utf-8")
        made = make(entry, folder)
        found.append(runner.run(made, done=done)["ours"])
        runner.run(make(entry, folder), done=done)  # one class that is read twice is the same
    assert len(done) == 2
    assert not np.array_equal(found[0]["test_loss"], found[1]["test_loss"])
    np.testing.assert_allclose(final(found[1], "test_loss"), np.log(2), rtol=1e-6)  # at zero
