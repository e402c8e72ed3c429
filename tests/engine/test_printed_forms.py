"""Printed forms of problems, protocols, plans, runs and events: a few readable lines without arrays."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from cases import sparing

from fedprivjax import (
    AcceleratedMinibatchSGD,
    Ball,
    DPMu2,
    Full,
    LocalSGD,
    Logistic,
    NoisyMinibatchSGD,
    Squared,
    Uniform,
    linear_problem,
    procedural_problem,
    ready,
    simulate,
)
from fedprivjax.engine.metrics import known
from fedprivjax.engine.simulate import worse_than_constant
from fedprivjax.privacy.rounding import up
from fedprivjax.protocols import PROTOCOLS

PROBLEM = linear_problem(
    np.eye(60).reshape(4, 15, 60), np.zeros((4, 15), int), Logistic(), feature_bound=1.0, constraint=Ball(1.0)
)
CASES = {
    "sampled": NoisyMinibatchSGD(batch=3, clip=1.0, step_size=0.1, epsilon=1.0),
    "gaussian": DPMu2(mu=1.0),
    "staged": AcceleratedMinibatchSGD(batch=3, epsilon=1.0, clip=1.0),
    "local": LocalSGD(batch=2, noise_std=1.0, step_size=0.1),
}


@pytest.mark.parametrize("name", CASES)
def test_nothing_prints_arrays(name):
    start = ready(CASES[name], PROBLEM, Uniform(4, 2), rounds=5)
    parts = (start.problem, start.plan, start.plan.schedule, start.event, start.protocol)
    for part in (*parts, start):
        text = str(part)
        assert len(text.splitlines()) <= (12 if part is start else 4)
        assert max(map(len, text.splitlines())) < 160
        assert "array" not in text
        assert "object at" not in text
    for part in (start.problem, start.plan, start.plan.schedule, start.event, start):
        assert repr(part) == str(part)
    for part in (start.problem, start.plan, start.event, start.protocol):
        assert str(part) in str(start)


@pytest.mark.parametrize("relation", sparing(["replace-one", "add-or-remove-one"], ["add-or-remove-one"]))
def test_a_ready_run_says_whether_its_text_tells_what_the_guarantee_hides(relation):
    method = NoisyMinibatchSGD(
        batch=3, sampler="poisson", rate=0.2, relation=relation, clip=1.0, step_size=0.1, epsilon=1.0
    )
    text = str(ready(method, PROBLEM, Full(4), rounds=2))
    assert ("not to be published" in text) == (relation == "add-or-remove-one")


def test_a_run_as_text():
    run = simulate(CASES["gaussian"], PROBLEM, Full(4), rounds=5)
    lines = repr(run).splitlines()
    assert lines[:2] == [f"Run: 5 rounds of {run.protocol}", "  parameters: 60"]
    name, values = next(iter(run.metrics.items()))
    assert lines[2].startswith(f"  last metrics: {name} {values[-1]:.4g}")
    assert lines[3] == f"  privacy: ε = {up(run.guarantee.epsilon, 4)} at δ = 1e-05 for one record of one machine"
    assert lines[4].startswith("  wall time: ")
    assert len(lines) == 5
    assert max(map(len, lines)) < 160


def test_a_run_that_is_worse_than_the_constant_predictor_says_so():
    labels = (np.arange(12) % 4 == 0).astype(int)  # three quarters are of class 0, in the test data a quarter
    rows = np.ones((12, 5)) / 5
    problem = linear_problem(rows, labels, Logistic(), constraint=Ball(1.0), test=(rows, 1 - labels))
    metrics = [known(name) for name in ("test_accuracy", "test_loss")]
    assert worse_than_constant(problem, metrics, {"test_accuracy": [0.1, 0.5]}) == {}
    found = worse_than_constant(problem, metrics, {"test_accuracy": [0.5, 0.2], "test_loss": [9.0, 9.0]})
    assert found == {"test_accuracy": ("20.0%", "25.0%")}
    run = replace(simulate(CASES["gaussian"], PROBLEM, Full(4), rounds=5), worse_than_constant=found)
    said = repr(run).splitlines()[-1]
    assert "test_accuracy 20.0% is worse than the constant predictor (25.0%, not private)" in said
    question = re.search("'(.*)'", said)[1]
    assert f"### {question}\n" in Path(__file__).parents[2].joinpath("notebooks", "faq.md").read_text(encoding="utf-8")
    assert repr(run.guarantee) == str(run.guarantee)


def test_a_problem_as_text():
    assert str(PROBLEM).splitlines() == [
        "Problem: 60 parameters in Ball(radius=1.0)",
        "  data: 60 examples, split over 4 machines (15 to 15 each), no test set",
        "  loss: LinearModel(loss=Logistic(score_bound=None))",
        "  constants: Lipschitz 1, smoothness 0.25",
    ]
    part = linear_problem(np.ones((60, 2)) / 2, np.zeros(60), Squared(), partition_table=np.arange(12).reshape(4, 3))
    assert "data: 60 examples, 12 of them split over 4 machines (3 to 3 each), no test set" in str(part)
    computed = procedural_problem(lambda key, machine: (np.ones(3), 0.0), Squared())
    assert "data: examples that are computed, no test set" in str(computed)


def test_a_plan_as_text():
    start = ready(CASES["sampled"], PROBLEM, Full(4), rounds=5)
    assert str(start.plan).splitlines() == [
        "Plan: Schedule: 5 rounds of 4 of 4 machines, each takes part 5 to 5 times",
        "  records of a message: Subset(batch=3), secret",
    ]
    assert not start.plan.drawn
    assert start.plan.data_used == start.plan.public.data_used == ""
    known = replace(start.plan, secret=False)
    used = np.unique(known.samples).size
    assert known.data_used == f"{used} of 60 examples ({100 * used / 60:.3g}%)"
    assert "data:" not in str(known)


def test_a_protocol_as_text_and_its_repr():
    """A protocol's `repr` identifies a job, and so has all settings."""
    protocol = NoisyMinibatchSGD(batch=(1, 2, 3, 4), clip=1.0, epsilon=(1.0, 2.0, 4.0, 4.0))
    words = "epsilon = 4 numbers from 1 to 4, clip = 1, batch = 4 numbers from 1 to 4"
    assert str(protocol) == f"NoisyMinibatchSGD with {words}"
    assert eval(repr(protocol), {"NoisyMinibatchSGD": NoisyMinibatchSGD}) == protocol
    assert str(DPMu2()) == "DPMu2"
    for kind, _ in PROTOCOLS.values():
        assert kind.__str__ is not object.__str__


def test_an_event_as_text():
    assert str(ready(CASES["gaussian"], PROBLEM, Full(4), rounds=5).event).splitlines() == [
        "Gaussian messages: noise 4, sensitivity 4",
        "  μ of 4 machines from 1 to 1, median 1",
    ]


def test_a_run_names_its_sampler():
    """Settings that do not fit are cut off after a whole setting, not to `sampler = [...]`."""
    run = simulate(replace(CASES["sampled"], sampler="poisson", window=2), PROBLEM, Full(4), rounds=5)
    assert "sampler = poisson" in str(run)
    assert "[...]" not in str(run)
