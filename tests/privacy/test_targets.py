"""Privacy targets and the realised privacy on the sampled plan: never above the target, for any protocol."""

from dataclasses import replace

import numpy as np
import pytest
from cases import sparing
from restating import planted, unsealed

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
    NoisyRecords,
    NoisySGD,
    ReducedTreeMomentum,
    Scaffold,
    StaleMomentum,
    Target,
    TreeMomentum,
    Uniform,
    UserAGD,
    UserSGD,
    calibrate,
    draw_plan,
    guarantee,
    linear_problem,
)
from fedprivjax.privacy.calibration import exceeds, gaussian_rule
from fedprivjax.privacy.events import GaussianEvent
from fedprivjax.privacy.per_machine import Grouped
from fedprivjax.privacy.rounding import up
from fedprivjax.privacy.terms import Terms
from fedprivjax.protocols import PROTOCOLS, ReleasedLocalSGD, ReleasedMinibatchSGD

DELTA, ROUNDS = 1e-4, 6
PARTICIPATIONS = {
    "full": Full(4),
    "part": Uniform(4, 2),
    "given": Given(4, np.array([[0, 1], [0, 1], [0, 2], [0, 3], [0, 2], [1, 2]])),
}


def make_problem():
    rng = np.random.default_rng(5)
    features = rng.normal(size=(4, 15, 5)).astype(np.float32)
    features /= np.linalg.norm(features, axis=2, keepdims=True)
    return linear_problem(features, rng.integers(0, 2, (4, 15)), Logistic(), feature_bound=1.0, constraint=Ball(1.0))


PROBLEM = make_problem()
STEP = {"step_size": 0.1}
# each method's result for μ = 1 and ε = 0.5 on the three plans, before events were checked against targets
MU = {
    "mu2": (DPMu2(clip=0.5, **STEP), (1.0, 1.0, 1.0)),
    "mu2, not clipped": (DPMu2(), (1.0, 1.0, 1.0)),
    "mu2, proportional": (DPMu2(clip=0.5, noise_schedule="proportional", **STEP), (0.936794, 0.863854, 0.904369)),
    "mu2, gap": (DPMu2(clip=0.5, noise_schedule="gap", **STEP), (1.0, 1.0, 1.0)),
    "mu2, given": (DPMu2(clip=0.5, noise_schedule=[1.0, 2.0, 2.0, 3.0, 3.0, 4.0], **STEP), (1.0, 1.0, 1.0)),
    "mu2, trusted": (DPMu2(trust="server", clip=0.5, **STEP), (1.0, 1.0, 1.0)),
    "mu2, fresh": (DPMu2(cancel=False, clip=0.5, **STEP), (1.0, 1.0, 1.0)),
    "sgd": (NoisySGD(clip=0.5), (1.0, 1.0, 1.0)),
    "sgd, trusted": (NoisySGD(trust="server"), (1.0, 1.0, 1.0)),
    "stale": (StaleMomentum(clip=0.5, **STEP), (1.0, 1.0, 1.0)),
}
EPSILON = {
    "subset": (NoisyMinibatchSGD(batch=3, **STEP), (0.5, 0.408201, 0.456062)),
    "poisson": (NoisyMinibatchSGD(batch=3, sampler="poisson", clip=0.5, **STEP), (0.5, 0.39869, 0.45157)),
    "replacement": (NoisyMinibatchSGD(batch=3, sampler="replacement", **STEP), (0.5, 0.427406, 0.465485)),
    "disjoint": (NoisyMinibatchSGD(batch=2, sampler="disjoint", **STEP), (0.5, 0.5, 0.5)),
    "advanced": (NoisyMinibatchSGD(sampler="full", noise_rule="advanced", **STEP), (0.009911, 0.007697, 0.00885)),
    "δ of each": (NoisyMinibatchSGD(batch=3, delta=(1e-6, 1e-5, 1e-7, 1e-5), **STEP), (0.363994, 0.295222, 0.294563)),
    "accelerated": (AcceleratedMinibatchSGD(batch=3, **STEP), (0.5, 0.408201, 0.456062)),
    "local": (LocalSGD(batch=2, **STEP), (0.5, 0.414252, 0.458935)),
    "local, disjoint": (LocalSGD(batch=2, sampler="disjoint", **STEP), (0.5, 0.5, 0.5)),
    "released": (ReleasedMinibatchSGD(batch=3, **STEP), (0.5, 0.408201, 0.456062)),
    "released, local": (ReleasedLocalSGD(batch=2, **STEP), (0.5, 0.414252, 0.458935)),
}
CASES = {name: protocol for name, (protocol, _) in [*MU.items(), *EPSILON.items()]}
CASES["gossip"] = DSGD(batch=3, clip=0.5, **STEP)
CASES["shuffled"] = NoisyMinibatchSGD(batch=1, trust="shuffler", **STEP)
CASES["bits"] = UserSGD(**STEP)
CASES["bits, accelerated"] = UserAGD(**STEP)
CASES["trusted users"] = UserSGD(trust="server", **STEP)
CASES["message"] = ReleasedMinibatchSGD(batch=3, clip=0.5, clip_at="message", **STEP)
CASES["tree"] = TreeMomentum(batch=5, alpha=0.5, clip=0.5, **STEP)
CASES["reduced tree"] = ReducedTreeMomentum(batch=5, alpha=0.5, clip=0.5, **STEP)
CASES["updates"] = FedAvg(local_epochs=1, batch=3, unit="machine", update_clip=0.5, **STEP)
CASES["epochs"] = FedAvg(local_epochs=2, batch=3, unit="record", clip=0.5, **STEP)
CASES["local samples"] = FedAvg(local_steps=2, batch=3, unit="record", clip=0.5, **STEP)
CASES["pairs"] = Scaffold(local_epochs=1, batch=3, unit="machine", update_clip=0.5, **STEP)
OF_EVERYONE = ("reduced tree", "gossip")


QUICK = (
    *("mu2", "mu2, proportional", "mu2, given", "sgd, trusted", "stale", "subset", "disjoint", "local, disjoint"),
    *("tree", "reduced tree", "updates", "epochs", "pairs", "gossip"),
)


def plan_of(protocol, participation, seed=0):
    return draw_plan(PROBLEM, participation, ROUNDS, seed, sampler=protocol.minibatches)


def test_every_registered_protocol_is_checked_against_targets():
    assert {type(protocol) for protocol in CASES.values()} == {kind for kind, _ in PROTOCOLS.values()}


@pytest.mark.parametrize("target", sparing([{"mu": 1.0}, {"epsilon": 1.0}], [{"epsilon": 1.0}]), ids=["mu", "epsilon"])
@pytest.mark.parametrize("name", sparing(CASES, QUICK))
def test_no_protocol_exceeds_its_target(name, target):
    protocol = CASES[name]
    if "mu" in target and getattr(protocol, "delta", None) is not None:
        with pytest.raises(ValueError, match=r"^delta must be None with a target mu"):
            calibrate(protocol, PROBLEM, plan_of(protocol, Full(4)), **target, delta=DELTA)
        return
    asked = Target(**target, delta=DELTA)
    for participation in [Full(4)] if name in OF_EVERYONE else PARTICIPATIONS.values():
        for seed in range(2):
            plan = plan_of(protocol, participation, seed)
            ready = calibrate(protocol, PROBLEM, plan, **target, delta=DELTA)
            event = ready.event(PROBLEM, plan)
            assert not exceeds(event, asked)
            stated = guarantee(ready, PROBLEM, plan, DELTA)
            assert stated.epsilon <= asked.worst_epsilon * (1 + 1e-5)
            assert stated.mu is None or stated.mu <= asked.largest_mu * (1 + 1e-5)


@pytest.mark.parametrize("name", ["mu2", "sgd, trusted", "disjoint", "local, disjoint"])
def test_insufficient_noise_is_detected(name):
    protocol, plan = CASES[name], plan_of(CASES[name], Full(4))
    ready = calibrate(protocol, PROBLEM, plan, epsilon=1.0, delta=DELTA)
    event = replace(ready, noise_std=ready.noise_std / 1.0001).event(PROBLEM, plan)
    assert exceeds(event, Target(epsilon=1.0, delta=DELTA))


def realised(protocol, participation, **target):
    plan = plan_of(protocol, participation)
    return guarantee(calibrate(protocol, PROBLEM, plan, **target, delta=DELTA), PROBLEM, plan, DELTA)


@pytest.mark.parametrize("name", MU)
def test_a_methods_rule_gives_its_earlier_mu(name):
    protocol, expected = MU[name]
    found = [realised(protocol, each, mu=1.0).mu for each in PARTICIPATIONS.values()]
    np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize("name", EPSILON)
def test_a_methods_rule_gives_its_earlier_epsilon(name):
    protocol, expected = EPSILON[name]
    found = [realised(protocol, each, epsilon=0.5).epsilon for each in PARTICIPATIONS.values()]
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_a_target_of_every_machine_is_met_by_each():
    protocol = NoisyMinibatchSGD(batch=3, epsilon=(0.5, 1.0, 2.0, 4.0), **STEP)
    expected = {
        "full": (0.5, 1.0, 2.0, 3.999998),
        "part": (0.354885, 0.733694, 1.315016, 3.424752),
        "given": (0.456062, 0.733694, 1.518703, 2.227488),
    }
    for name, participation in PARTICIPATIONS.items():
        plan = plan_of(protocol, participation)
        ready = calibrate(protocol, PROBLEM, plan, delta=DELTA)
        event = ready.event(PROBLEM, plan)
        np.testing.assert_allclose(event.epsilons(DELTA).each, expected[name], atol=1e-6)
        assert not exceeds(event, Target(epsilon=protocol.epsilon, delta=DELTA))
        assert exceeds(event, Target(epsilon=(4.0, 2.0, 1.0, 0.5), delta=DELTA))


def test_a_delta_that_follows_from_records():
    """The target is at δ = 1/n² = 1/225. ε at a larger δ is smaller."""
    protocol = NoisyMinibatchSGD(sampler="full", delta="records", epsilon=0.5, **STEP)
    plan = plan_of(protocol, Full(4))
    event = calibrate(protocol, PROBLEM, plan, delta=5e-3).event(PROBLEM, plan)
    assert event.epsilon(1 / 225) == pytest.approx(0.5, rel=1e-6)
    assert event.epsilon(5e-3) < 0.499
    with pytest.raises(ValueError, match=r"^delta must be at most 0.0001, at which ε is stated, got 0.00444444$"):
        calibrate(protocol, PROBLEM, plan, delta=DELTA)


@pytest.mark.parametrize("kind", [ReleasedMinibatchSGD, ReleasedLocalSGD])
def test_an_acknowledged_claim_runs_and_states_a_valid_epsilon(kind):
    sampler = "replacement"
    protocol = kind(batch=15, sampler=sampler, noise_rule="paper_moments", acknowledged=True, epsilon=2.0, **STEP)
    plan = plan_of(protocol, Full(4))
    stated = guarantee(calibrate(protocol, PROBLEM, plan, delta=DELTA), PROBLEM, plan, DELTA)
    assert stated.epsilon > 2.2
    assert f"({up(stated.epsilon, 4)}, 0.0001)-DP" in str(stated)
    with pytest.raises(ValueError, match=r"^acknowledged must be true for noise_rule 'paper_moments'"):
        calibrate(replace(protocol, acknowledged=False), PROBLEM, plan, delta=DELTA)


def solved(exposure=3.0, needed_noise=lambda private, facts, target: None, **settings):
    """Return SGD with an exposure above or below 1, whose noise is solved for with its event."""

    def event(private, facts, noise_std):
        each = Grouped.of(exposure * np.linspace(0.25, 1, facts.plan.size.machines))
        return GaussianEvent(noise_std, 2.0, each, Terms("none", "a theorem of one's own"))

    return planted(NoisySGD(**STEP, **settings), unsealed(event=event, needed_noise=needed_noise))


def ruled(exposure=3.0):
    """Return the same with the noise rule for exposure at most 1."""

    def needed_noise(private, facts, target):
        return 2.0 / target.largest_mu if np.ndim(target.epsilon) else gaussian_rule(target, 2.0)

    return solved(exposure, needed_noise)


def promised():
    """Return minibatch SGD with half the noise that machines need."""

    def needed_noise(private, facts, target):
        return 0.5 * NoisyRecords.needed_noise(private, facts, target)

    return planted(NoisyMinibatchSGD(batch=3, **STEP), unsealed(needed_noise=needed_noise))


@pytest.mark.parametrize("target", [{"mu": 1.0}, {"mu": 0.03}, {"epsilon": 1.0}, {"epsilon": (3.0, 1.0, 2.0, 0.7)}])
@pytest.mark.parametrize("exposure", [3.0, 1.0, 0.01])
def test_noise_of_a_custom_method_is_solved_for(exposure, target):
    protocol = solved(exposure)
    plan = plan_of(protocol, Full(4))
    event = calibrate(protocol, PROBLEM, plan, **target, delta=DELTA).event(PROBLEM, plan)
    asked = Target(**target, delta=DELTA)
    if isinstance(target.get("epsilon"), tuple):
        ratio = event.guarantee(DELTA).delta_at(0.7) / DELTA  # the last machine: largest exposure, smallest ε
        assert 1 - 1e-3 < ratio <= 1
    else:
        assert asked.largest_mu * (1 - 1e-5) < event.mu <= asked.largest_mu


def test_a_custom_target_is_cleared():
    protocol = solved(mu=1.0)
    plan = plan_of(protocol, Full(4))
    ready = calibrate(protocol, PROBLEM, plan, delta=DELTA)
    assert (ready.mu, ready.noise_std) == (None, pytest.approx(6.0, rel=1e-5))
    assert calibrate(solved(mu=np.inf), PROBLEM, plan).noise_std == 0
    assert calibrate(solved(noise_std=0.7), PROBLEM, plan).noise_std == 0.7


def test_a_target_that_no_noise_meets_is_refused():
    protocol = solved(np.inf)
    with pytest.raises(ValueError, match=r"^SGD must have an event that meets μ = 1 at some noise_std"):
        calibrate(protocol, PROBLEM, plan_of(protocol, Full(4)), mu=1.0)


@pytest.mark.parametrize(
    ("protocol", "target", "message"),
    [
        (ruled(), {"mu": 1.0}, "SGD must give at most μ = 1, and its noise on this plan gives 3-GDP"),
        (
            ruled(),
            {"epsilon": 1.0},
            "SGD must give at most ε = 1 at δ = 0.0001, and its noise on this plan gives ε = 3.544",
        ),
        (
            ruled(1.5),
            {"epsilon": (3.0, 3.0, 3.0, 1.0)},
            r"SGD must give at most ε = 1 at δ = 0.0001 on machine 3, and its noise on this plan gives 1.\d+",
        ),
        (
            promised(),
            {"epsilon": (1.0, 1.0, 2.0, 1.0)},
            r"MinibatchSGD must give at most ε = 2 at δ = 0.0001 on machine 2, and its noise on this plan gives 7.\d+",
        ),
        (
            promised(),
            {"mu": 0.5},
            r"MinibatchSGD must give at most μ = 0.5, and its noise on this plan gives ε = \d.\d+",
        ),
    ],
)
def test_a_rule_that_gives_less_privacy_is_refused_by_name_with_both_numbers(protocol, target, message):
    plan = plan_of(protocol, Full(4))
    with pytest.raises(ValueError, match=f"^{message}$"):
        calibrate(protocol, PROBLEM, plan, **target, delta=DELTA)


def test_a_rule_that_gives_more_privacy_states_it():
    protocol = ruled(0.01)
    plan = plan_of(protocol, Full(4))
    assert calibrate(protocol, PROBLEM, plan, mu=1.0).event(PROBLEM, plan).mu == pytest.approx(0.01)


def test_a_target_of_each_machine_next_to_a_given_noise_is_refused():
    problem = linear_problem(np.ones((2, 4, 1)), np.ones((2, 4)), Logistic(), feature_bound=1.0)
    protocol = NoisyMinibatchSGD(noise_std=1.0, step_size=0.1, clip=1.0, batch=2)
    plan = draw_plan(problem, Full(2), 2, 0, sampler=protocol.minibatches)
    with pytest.raises(ValueError, match="epsilon or noise_std must be given, not both"):
        calibrate(protocol, problem, plan, epsilon=[1.0, 2.0], delta=DELTA)
