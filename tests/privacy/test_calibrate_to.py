"""Noise for the sampled schedule: the worst machine's privacy equals the target, for every method."""

from dataclasses import replace
from itertools import pairwise, product

import numpy as np
import pytest
from cases import sparing

from fedprivjax import (
    DSGD,
    AcceleratedMinibatchSGD,
    Ball,
    DPMu2,
    FedAvg,
    Full,
    Given,
    LocalSGD,
    Logistic,
    NoisyMinibatchSGD,
    NoisySGD,
    ReducedTreeMomentum,
    Refusal,
    Scaffold,
    StaleMomentum,
    TreeMomentum,
    Uniform,
    UserAGD,
    UserSGD,
    Varying,
    WholeSpace,
    draw_plan,
    linear_problem,
    simulate,
    sweep,
)
from fedprivjax.experiment import parse
from fedprivjax.privacy.calibration import calibrate, guarantee
from fedprivjax.privacy.cross_check import AGREES, BELOW, entry
from fedprivjax.privacy.event_on_plan import event_of
from fedprivjax.privacy.optional_members import privacy_of
from fedprivjax.privacy.target import PLAN, Target
from fedprivjax.protocols import PROTOCOLS, ReleasedLocalSGD, ReleasedMinibatchSGD

DELTA, ROUNDS, MACHINES = 1e-5, 8, 6
LAWS = {
    "half": Uniform(MACHINES, 3),
    "full": Full(MACHINES),
    "varying": Varying(MACHINES, (0.0, 0.2, 0.3, 0.3, 0.2)),
}
STEP = {"step_size": 0.1, "calibrate_to": PLAN}
METHODS = {
    "mu2": DPMu2(clip=1.0, **STEP),
    "mu2, proportional": DPMu2(clip=1.0, noise_schedule="proportional", **STEP),
    "mu2, trusted": DPMu2(clip=1.0, trust="server", noise_schedule="proportional", **STEP),
    "sgd": NoisySGD(clip=1.0, **STEP),
    "stale": StaleMomentum(clip=1.0, **STEP),
    "subset": NoisyMinibatchSGD(batch=4, clip=1.0, **STEP),
    "poisson": NoisyMinibatchSGD(batch=4, clip=1.0, sampler="poisson", **STEP),
    "all records": NoisyMinibatchSGD(sampler="full", clip=1.0, **STEP),
    "shuffled": NoisyMinibatchSGD(batch=1, clip=1.0, trust="shuffler", **STEP),
    "gossip": DSGD(batch=4, clip=1.0, **STEP),
    "accelerated": AcceleratedMinibatchSGD(batch=4, clip=1.0, **STEP),
    "local": LocalSGD(batch=2, clip=1.0, **STEP),
    "updates": FedAvg(local_epochs=1, batch=4, unit="machine", update_clip=1.0, **STEP),
    "epochs": FedAvg(local_epochs=2, batch=4, unit="record", clip=1.0, **STEP),
    "pairs": Scaffold(local_epochs=1, batch=4, unit="machine", update_clip=1.0, **STEP),
    "message": ReleasedMinibatchSGD(batch=4, clip=1.0, clip_at="message", **STEP),
    "released local": ReleasedLocalSGD(batch=2, clip=1.0, **STEP),
    "tree": TreeMomentum(batch=4, clip=1.0, alpha=0.5, **STEP),
    "reduced tree": ReducedTreeMomentum(batch=4, clip=1.0, alpha=0.5, **STEP),
    "users": UserSGD(trust="none", clip=1.0, **STEP),
    "bits": UserSGD(clip=1.0, **STEP),
    "bits, accelerated": UserAGD(clip=1.0, **STEP),
}
ALONE = {
    "reduced tree": ("full",),
    "gossip": ("full",),
    "shuffled": ("half", "full"),
}  # the participation schemes that a method supports
ALIKE = ("shuffled", "reduced tree")  # for machines of equal dataset sizes
CASES = [(name, law) for name, law in product(METHODS, LAWS) if law in ALONE.get(name, LAWS)]
QUICK = [
    *(("mu2, proportional", "half"), ("subset", "half"), ("local", "varying"), ("tree", "half")),
    *(("bits", "half"), ("updates", "half"), ("gossip", "full")),
]


def make_problem(sizes):
    rng = np.random.default_rng(1)
    features = rng.normal(size=(sum(sizes), 3)).astype(np.float32)
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    rows = np.full((len(sizes), max(sizes)), -1)
    for row, size, start in zip(rows, sizes, np.cumsum([0, *sizes[:-1]]), strict=True):
        row[:size] = start + np.arange(size)
    labels = rng.integers(0, 2, sum(sizes))
    settings = {"feature_bound": 1.0, "constraint": Ball(1.0), "partition_table": rows}
    return linear_problem(features, labels, Logistic(), **settings)


UNEQUAL, EQUAL = make_problem([8, 12, 16, 20, 24, 32]), make_problem([16] * MACHINES)


def plan_of(protocol, problem, law, seed=0, rounds=ROUNDS):
    several = {"order": "cyclic"} if privacy_of(protocol).several_epochs and protocol.minibatches is None else {}
    return draw_plan(problem, law, rounds, seed, sampler=protocol.minibatches, **several)


def test_every_registered_method_is_looked_at():
    assert {type(protocol) for protocol in METHODS.values()} == {kind for kind, _ in PROTOCOLS.values()}


@pytest.mark.parametrize(("name", "law"), sparing(CASES, QUICK))
def test_the_worst_machine_gets_what_was_asked_for(name, law):
    """ε is within a part in a million of the target, never above it, and the accountants agree."""
    protocol, problem = METHODS[name], EQUAL if name in ALIKE else UNEQUAL
    plan = plan_of(protocol, problem, LAWS[law])
    epsilon = 2.0
    ready = calibrate(protocol, problem, plan, epsilon=epsilon, delta=DELTA)
    event = event_of(ready, problem, plan)
    assert epsilon * (1 - 1e-6) <= event.epsilon(DELTA) <= epsilon * (1 + 1e-12)
    line = entry(event, DELTA)
    assert line.verdict in (AGREES, BELOW)
    assert line.valid <= epsilon * (1 + 1e-9)
    less = event_of(replace(ready, noise_std=ready.noise_std * (1 - 1e-5)), problem, plan)
    assert less.epsilon(DELTA) > epsilon


@pytest.mark.parametrize("name", ["subset", "local", "mu2, proportional"])
def test_a_gdp_target_is_met_too(name):
    plan = plan_of(METHODS[name], UNEQUAL, LAWS["half"])
    event = event_of(calibrate(METHODS[name], UNEQUAL, plan, mu=1.0, delta=DELTA), UNEQUAL, plan)
    asked = Target(mu=1.0, delta=DELTA).worst_epsilon
    assert asked * (1 - 2e-6) <= event.epsilon(DELTA) <= asked * (1 + 1e-12)


@pytest.mark.parametrize("name", ["subset", "mu2, proportional"])
def test_who_takes_part_more_needs_more_noise(name):
    """Over schedules of many seeds, the noise is ordered as the busiest machine's messages are."""
    protocol, found = METHODS[name], {}
    for seed in range(12):
        plan = plan_of(protocol, EQUAL, LAWS["half"], seed)
        noise = calibrate(protocol, EQUAL, plan, epsilon=1.0, delta=DELTA).noise_std
        found.setdefault(int(plan.schedule.total.max()), []).append(noise)
    assert len(found) > 1
    assert all(max(each) <= min(each) * (1 + 1e-6) for each in found.values())
    busiest = sorted(found)
    assert all(found[less][0] < found[more][0] for less, more in pairwise(busiest))


def test_only_the_machine_that_takes_part_most_decides():
    rounds = np.array([[0, 1], [0, 2], [0, 3], [0, 4], [0, 5], [0, 1]])
    protocol = METHODS["subset"]
    one, other = (
        plan_of(protocol, EQUAL, Given(MACHINES, chosen), rounds=6) for chosen in (rounds, np.roll(rounds, 2, 1))
    )
    noise = [calibrate(protocol, EQUAL, plan, epsilon=1.0, delta=DELTA).noise_std for plan in (one, other)]
    everyone = plan_of(protocol, EQUAL, Full(MACHINES), rounds=6)
    assert noise[0] == noise[1] == calibrate(protocol, EQUAL, everyone, epsilon=1.0, delta=DELTA).noise_std


def test_each_machines_own_epsilon_and_delta_are_met():
    epsilons, deltas = (0.5, 1.0, 1.5, 2.0, 3.0, 4.0), (1e-6, 1e-5, 1e-6, 1e-5, 1e-6, 1e-5)
    protocol = replace(METHODS["subset"], epsilon=epsilons, delta=deltas)
    plan = plan_of(protocol, UNEQUAL, LAWS["half"])
    event = event_of(calibrate(protocol, UNEQUAL, plan, delta=DELTA), UNEQUAL, plan)
    over = [event.epsilons(delta).each[i] / epsilons[i] for i, delta in enumerate(deltas)]
    assert 1 - 1e-6 <= max(over) <= 1


def test_a_rule_for_every_round_asks_for_more():
    plan = plan_of(METHODS["subset"], UNEQUAL, LAWS["half"])
    ready = calibrate(METHODS["subset"], UNEQUAL, plan, epsilon=1.0, delta=DELTA)
    own = calibrate(replace(METHODS["subset"], calibrate_to="rule"), UNEQUAL, plan, epsilon=1.0, delta=DELTA)
    assert ready.noise_std < own.noise_std
    assert event_of(own, UNEQUAL, plan).epsilon(DELTA) < 0.95


def test_the_guarantee_says_so():
    plan = plan_of(METHODS["subset"], UNEQUAL, LAWS["half"])
    ready = calibrate(METHODS["subset"], UNEQUAL, plan, epsilon=1.0, delta=DELTA)
    said = "the noise is fixed for the public schedule that was drawn, and may be too little for another"
    assert said in str(guarantee(ready, UNEQUAL, plan, DELTA))
    own = calibrate(replace(METHODS["subset"], calibrate_to="rule"), UNEQUAL, plan, epsilon=1.0, delta=DELTA)
    assert said not in str(guarantee(own, UNEQUAL, plan, DELTA))


@pytest.mark.slow
def test_in_a_sweep_the_noise_is_enough_for_every_seeds_schedule():
    settings = {"rounds": 6, "delta": DELTA, "metrics": ["train_loss"], "eval_every": 6}
    grid = sweep(METHODS["subset"], UNEQUAL, LAWS["half"], over={"epsilon": [1.0]}, seeds=4, **settings)
    realised = grid.realised_epsilon.values.ravel()
    assert 1 - 1e-6 <= realised.max() <= 1
    run = simulate(replace(METHODS["subset"], epsilon=1.0), UNEQUAL, LAWS["half"], seed=3, **settings)
    assert 1 - 1e-6 <= run.guarantee.epsilon <= 1


def test_without_a_bound_there_is_no_noise_to_find():
    protocol, unbounded = replace(METHODS["mu2"], clip=None), replace(UNEQUAL, constraint=WholeSpace())
    with pytest.raises(Refusal, match=r"^clip must be set, because the loss has no finite gradient bound here"):
        calibrate(protocol, unbounded, plan_of(protocol, unbounded, LAWS["half"]), mu=1.0, delta=DELTA)


@pytest.mark.parametrize(
    ("protocol", "message"),
    [
        (lambda: DPMu2(mu=1.0, calibrate_to="plans"), "unknown calibrate_to 'plans', did you mean 'plan'"),
        (
            lambda: NoisyMinibatchSGD(epsilon=1.0, batch=4, clip=1.0, noise_rule="advanced", **STEP),
            "noise_rule must be 'accountant' with calibrate_to = 'plan', got 'advanced'",
        ),
    ],
)
def test_refusals(protocol, message):
    with pytest.raises(Refusal, match=message):
        simulate(protocol(), UNEQUAL, LAWS["half"], rounds=3)


def test_an_experiment_file_says_it():
    raw = {
        "title": "plan",
        "problem": {"dataset": "logistic", "options": {"examples": 60, "features": 3}, "radius": 5.0},
        "participation": {"machines": 6, "per_round": 3, "rounds": 8},
        "protocol": [{"name": "noisy_minibatch_sgd", "batch": 4, "clip": 1.0, "calibrate_to": "plan"}],
        "sweep": {"epsilon": [1.0]},
    }
    assert parse(raw).protocol[0].settings["calibrate_to"] == PLAN
    with pytest.raises(ValueError, match="unknown calibrate_to 'plans', did you mean 'plan'"):
        parse({**raw, "protocol": [{**raw["protocol"][0], "calibrate_to": "plans"}]})
