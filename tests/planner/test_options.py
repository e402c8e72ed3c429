"""Method comparisons from an experiment file: unequal machines have the smallest size; a line names simplifications."""

import pytest
import tomli_w
from typer.testing import CliRunner

from fedprivjax import NoisyMinibatchSGD, cli, experiment, planner, ready
from fedprivjax.planner.options import plan_settings

PEOPLE = "your-own/people"  # eight clinics of 21 to 68 people for training
SIZES = "315 records on 8 machines, 21 to 68 each, by 21 each: the smallest machine sets noise, guarantee and rounds"
ROUNDS = "30 rounds by each method's own (--rounds 30 keeps them)"


TRUSTED = {"name": "dp_mu2", "trust": "server", "clip": 1.0}
FEDAVG = {
    "name": "fedavg",
    **{"unit": "machine", "trust": "none", "update_clip": 1.0, "step_size": 0.1},
    **{"local_epochs": 1, "batch": 5, "adversary": "secure-sum"},
}


def replaced(folder, changes, given):
    path = folder / "people.toml"
    path.write_text(tomli_w.dumps(experiment.to_mapping(experiment.load(PEOPLE, changes))), encoding="utf-8")
    return plan_settings(str(path), given).replaced


@pytest.mark.parametrize(
    ("changes", "given", "phrases"),
    [
        ({}, {}, [SIZES, ROUNDS]),
        ({}, {"samples": 21, "rounds": 30}, []),
        ({"participation.dropouts": 0.1}, {"rounds": 30}, [SIZES, "its dropouts by machines that are always there"]),
        (
            {"participation.kind": "balanced", "participation.per_round": 2},
            {"rounds": 30},
            [SIZES, "participation 'balanced' by uniformly random subsets, or all machines"],
        ),
        (
            {"participation.kind": "uniform", "sweep.per_round": [2, 4]},
            {"rounds": 30},
            ["2 swept values of per_round by the first (2)", SIZES],
        ),
        (
            {"protocol.0": TRUSTED},
            {"samples": 21, "rounds": 30},
            ["trust server by none, the strictest (--trust server keeps it)"],
        ),
        ({"protocol.0": TRUSTED}, {"samples": 21, "rounds": 30, "trust": "server"}, []),
        (
            {"protocol.1": {name: value for name, value in FEDAVG.items() if name not in ("trust", "adversary")}},
            {"samples": 21, "rounds": 30, "unit": "machine"},
            ["trust server by none, the strictest (--trust server keeps it)"],
        ),
        (
            {"protocol.1": FEDAVG},
            {"samples": 21, "rounds": 30},
            [
                "the adversary secure-sum by that of the trust model",
                "guarantees for machines by guarantees for one record",
            ],
        ),
    ],
)
def test_a_comparison_names_its_simplifications(tmp_path, changes, given, phrases):
    assert replaced(tmp_path, changes, given) == phrases


def test_the_first_line_names_the_simplifications():
    answer = CliRunner().invoke(cli.app, ["plan", PEOPLE, "--protocol", "noisy_sgd", "--epsilon", "1"])
    first = " ".join(answer.stdout.split("constants of the losses")[0].split())
    assert first.startswith(
        f"replaced in the file's own setting: {SIZES}; {ROUNDS} 8 identical machines, 8 a round, 21"
    )


def test_the_noise_of_unequal_machines_is_that_of_a_run():
    """The smallest machine needs the most noise, so a comparison for machines of its size has the noise of the run."""
    settings = plan_settings(PEOPLE, {"epsilon": 1.0, "rounds": 30}).arguments
    found = planner.plan(**settings, protocols=["noisy_minibatch_sgd"]).sel(
        protocol="noisy_minibatch_sgd, full batches"
    )
    made = experiment.load(PEOPLE)
    problem = experiment.make_problem(made.problem, 8)
    participation, rounds = experiment.make_participation(made.participation, {})
    method = NoisyMinibatchSGD(sampler="full", epsilon=1.0)
    run = ready(method, problem, participation, rounds=rounds, delta=settings["delta"], metrics=[])
    assert found["noise_std"].item() == pytest.approx(run.protocol.noise_std, rel=1e-4)
    assert found["realised_epsilon"].item() == pytest.approx(run.guarantee.epsilon, rel=1e-4)
