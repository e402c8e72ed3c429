"""The planner: the noise of a run, at the ε that is asked for, with bounds that scale as the theorems say."""

import json
from dataclasses import replace

import numpy as np
import pytest

from fedprivjax import (
    Ball,
    DPMu2,
    Full,
    NoisyMinibatchSGD,
    NoisySGD,
    PrivacyGuarantee,
    Refusal,
    StaleMomentum,
    Target,
    TreeMomentum,
    Uniform,
    UserSGD,
    general_problem,
    planner,
    ready,
)
from fedprivjax.method.planning.setting import Setting
from fedprivjax.planner.survey import calibrated
from fedprivjax.protocols import PROTOCOLS

SIZES = {"machines": 12, "per_round": 4, "samples": 20, "dimension": 6}
EPSILON, DELTA = 2.0, 1e-5
OFF = 0.01  # by which part of the ε asked for a plan's may be less


@pytest.fixture(scope="module")
def untrusted():
    return planner.plan(**SIZES, epsilon=EPSILON, delta=DELTA)


@pytest.fixture(scope="module")
def everyone():
    return planner.plan(**{**SIZES, "per_round": 12}, epsilon=EPSILON, delta=DELTA)


def at(found, label):
    return found.sel(protocol=label).isel(epsilon=0)


def planned(found):
    return [label for label in found["protocol"].values.tolist() if not at(found, label)["refusal"].item()]


@pytest.mark.slow
@pytest.mark.parametrize("trust", ["none", "server", "shuffler", "pan-private"])
def test_every_protocol_is_planned_or_refused_with_a_reason(trust):
    found = planner.plan(**SIZES, epsilon=EPSILON, delta=DELTA, trust=trust)
    assert {label.partition(",")[0] for label in found["protocol"].values.tolist()} == set(PROTOCOLS)
    for label in found["protocol"].values.tolist():
        cell = at(found, label)
        refused = cell["refusal"].item() != ""
        assert refused == (cell["bound_kind"].item() == "")
        assert refused == bool(np.isnan(cell["noise_std"]))
        assert (cell["bound_kind"].item() in ("missing", "")) == bool(np.isnan(cell["bound"]))


@pytest.mark.parametrize("found", [pytest.param("untrusted", marks=pytest.mark.slow), "everyone"])
def test_the_noise_gives_the_epsilon_asked_for(found, request):
    found = request.getfixturevalue(found)
    for label in planned(found):
        realised = float(at(found, label)["realised_epsilon"])
        assert EPSILON * (1 - OFF) <= realised <= EPSILON * (1 + 1e-6), label
        guarantee = PrivacyGuarantee.from_json(at(found, label)["guarantee"].item())
        assert guarantee.epsilon == pytest.approx(realised, rel=1e-9)
        assert guarantee.delta == DELTA


def arrays(machines, samples, dimension, *, split):
    """The planner's problem with data in it."""
    shape = (machines, samples) if split else (machines * samples,)
    options = {"constraint": Ball(0.5), "lipschitz": 1.0, "smoothness": 1.0, "split": split}
    return general_problem(lambda w, x: np.float32(0) * w.sum() + x, np.ones(shape, np.float32), np.zeros(6), **options)


RUNS = {
    "dp_mu2": (DPMu2(), Uniform(12, 4), 60),
    "noisy_sgd": (NoisySGD(average=True), Uniform(12, 4), 60),
    "stale_momentum": (StaleMomentum(clip=3.0), Uniform(12, 4), 60),
    "user_sgd, one pass": (UserSGD(trust="none"), Uniform(12, 4), 60),
}


@pytest.mark.parametrize("label", RUNS)
def test_the_noise_and_the_step_are_those_of_a_run(untrusted, label):
    protocol, participation, rounds = RUNS[label]
    problem, target = arrays(12, 20, 6, split=False), Target(epsilon=EPSILON, delta=DELTA)
    start = ready(protocol, problem, participation, rounds=rounds, delta=DELTA, target=target, metrics=["distance"][:0])
    cell = at(untrusted, label)
    assert float(cell["noise_std"]) == pytest.approx(float(start.protocol.noise_std), rel=1e-6)
    assert float(cell["step_size"]) == pytest.approx(float(start.protocol.step_size), rel=1e-6)
    assert float(cell["realised_epsilon"]) == pytest.approx(start.guarantee.epsilon, rel=1e-6)
    assert int(cell["rounds"]) == start.plan.size.rounds


def test_a_noise_that_is_solved_for_is_a_runs(untrusted):
    cell = at(untrusted, "noisy_minibatch_sgd, full batches")
    problem, rounds = arrays(12, 20, 6, split=True), int(cell["rounds"])
    run = {"rounds": rounds, "delta": DELTA, "metrics": []}
    own = ready(NoisyMinibatchSGD(sampler="full", epsilon=EPSILON), problem, Uniform(12, 4), **run)
    assert own.guarantee.epsilon < EPSILON * (1 - OFF)  # its own noise is for a machine that is in every round
    protocol = NoisyMinibatchSGD(sampler="full", noise_std=float(cell["noise_std"]))
    start = ready(protocol, problem, Uniform(12, 4), **run)
    assert start.guarantee.epsilon == pytest.approx(float(cell["realised_epsilon"]), rel=1e-6)
    assert float(cell["step_size"]) == pytest.approx(start.protocol.step_size, rel=1e-6)


def test_the_noise_of_records_used_in_every_round_is_a_runs():
    sizes = {"machines": 12, "per_round": 12, "samples": 1, "dimension": 6, "rounds": 5}
    plan = planner.plan(**sizes, epsilon=EPSILON, delta=DELTA, protocols=["user_sgd"])
    cell = at(plan, "user_sgd, all users")
    protocol = UserSGD(trust="none", noise_std=float(cell["noise_std"]))
    run = {"rounds": 5, "order": "cyclic", "delta": DELTA, "metrics": []}
    start = ready(protocol, arrays(12, 1, 6, split=True), Full(12), **run)
    assert start.guarantee.epsilon == pytest.approx(EPSILON, rel=OFF)
    assert float(cell["realised_epsilon"]) == pytest.approx(start.guarantee.epsilon, rel=1e-6)


def test_the_tree_is_a_runs(everyone):
    cell = at(everyone, "tree_momentum")
    problem, target = arrays(12, 20, 6, split=True), Target(epsilon=EPSILON, delta=DELTA)
    protocol, rounds = TreeMomentum(trust="none", sampler="reshuffled"), int(cell["rounds"])
    start = ready(protocol, problem, Full(12), rounds=rounds, delta=DELTA, target=target, metrics=[])
    assert float(cell["noise_std"]) == pytest.approx(start.protocol.noise_std, rel=1e-6)
    assert cell["bound_kind"].item() == "gradient norm"


def test_terms_add_up_and_none_is_negative(everyone):
    for label in planned(everyone):
        terms = at(everyone, label)["bound_term"].values
        if at(everyone, label)["bound_kind"].item() != "missing":
            assert np.nansum(terms) == pytest.approx(float(at(everyone, label)["bound"]), rel=1e-9)
            assert np.nanmin(terms) >= -1e-12


def term(found, label, name):
    return float(at(found, label)["bound_term"].sel(term=name))


def test_bounds_scale_as_theorems_say():
    sizes, names = {**SIZES, "per_round": 12, "dimension": 400}, ["dp_mu2", "noisy_sgd"]
    one = planner.plan(**sizes, epsilon=EPSILON, delta=DELTA, protocols=names)
    four = planner.plan(**{**sizes, "dimension": 1600}, epsilon=EPSILON, delta=DELTA, protocols=names)
    longer = planner.plan(**{**sizes, "samples": 80}, epsilon=EPSILON, delta=DELTA, protocols=names)
    assert term(four, "dp_mu2", "noise") / term(one, "dp_mu2", "noise") == pytest.approx(2, rel=1e-6)  # √d
    assert term(one, "dp_mu2", "noise") / term(longer, "dp_mu2", "noise") == pytest.approx(4, rel=1e-6)  # 1/T
    assert term(one, "noisy_sgd", "noise") / term(longer, "noisy_sgd", "noise") == pytest.approx(2, rel=1e-6)  # 1/√T
    mu = [float(at(found, "dp_mu2")["realised_mu"]) for found in (one, longer)]
    assert mu[0] == pytest.approx(mu[1], rel=1e-9)


@pytest.mark.slow
def test_noise_terms_fall_with_epsilon():
    found = planner.plan(**SIZES, epsilon=[0.5, 2.0], delta=DELTA)
    for label in planned(found):
        cell = found.sel(protocol=label)
        if (cell["rounds"] == cell["rounds"][0]).all() and (cell["batch"] == cell["batch"][0]).all():
            assert (np.diff(cell["noise_std"].values) < 0).all(), label


def test_the_constants_count():
    names = ["noisy_sgd", "dp_mu2", "noisy_minibatch_sgd"]
    one = planner.plan(**SIZES, epsilon=EPSILON, delta=DELTA, protocols=names)
    scaled = {"lipschitz": 3.0, "smoothness": 1.5, "diameter": 2.0}  # losses three times, lengths twice as large
    other = planner.plan(**SIZES, epsilon=EPSILON, delta=DELTA, protocols=["noisy_sgd", "dp_mu2"], **scaled)
    for label in ("noisy_sgd", "dp_mu2"):  # L·D/G is 1 in both
        assert float(at(other, label)["bound"]) == pytest.approx(6 * float(at(one, label)["bound"]), rel=1e-6)
    assert other.attrs["trivial"] == 6.0


def test_costs_are_counted(everyone, untrusted):
    assert float(at(untrusted, "dp_mu2")["gradients"]) == 2 * 12 * 20
    assert float(at(untrusted, "noisy_sgd")["messages"]) == 12 * 20
    assert float(at(untrusted, "noisy_sgd")["bytes"]) == 12 * 20 * 6 * 4
    full = at(everyone, "noisy_minibatch_sgd, full batches")
    assert float(full["gradients"]) == float(full["rounds"]) * 12 * 20
    bits = planner.plan(**SIZES, epsilon=EPSILON, delta=DELTA, trust="shuffler", protocols=["user_sgd"])
    assert float(at(bits, "user_sgd, one pass")["messages"]) > 12 * 20  # many bits a message


@pytest.mark.slow
def test_a_million_machines_are_a_schedule_alone():
    names = ["noisy_sgd", "noisy_minibatch_sgd", "accelerated_minibatch_sgd"]
    sizes = {"machines": 10**6, "per_round": 100, "samples": 600, "dimension": 7850, "rounds": 4}
    found = planner.plan(**sizes, epsilon=EPSILON, delta=DELTA, protocols=names)
    assert {"noisy_sgd", "noisy_minibatch_sgd, full batches"} <= set(planned(found))


def test_rounds_and_batch_may_be_given():
    names = ["noisy_sgd", "noisy_minibatch_sgd", "accelerated_minibatch_sgd", "local_sgd", "user_sgd"]
    found = planner.plan(**SIZES, epsilon=EPSILON, delta=DELTA, rounds=5, batch=2, protocols=names)
    for label in planned(found):
        assert int(at(found, label)["rounds"]) == 5, label
    assert int(at(found, "noisy_minibatch_sgd, secret subsets")["batch"]) == 2
    with pytest.raises(Refusal, match="noisy_sgd: rounds must be at most 60"):
        planner.plan(**SIZES, epsilon=EPSILON, delta=DELTA, rounds=61, protocols=["noisy_sgd"])


@pytest.mark.parametrize("per_round", [4, 12])
def test_batches_of_dp_mu2_trade_rounds_for_nothing_but_steps(per_round):
    """Of the same records, noise and sampling weigh as much or less; the steps are fewer."""
    sizes = {**SIZES, "per_round": per_round, "epsilon": EPSILON, "delta": DELTA, "protocols": ["dp_mu2"]}
    one, five = (at(planner.plan(**sizes, batch=batch), "dp_mu2") for batch in (1, 5))
    assert float(one["rounds"]) == 5 * float(five["rounds"]) == 5 * float(five["bytes"]) / (per_round * 24)
    assert (float(five["batch"]), float(five["gradients"])) == (5, float(one["gradients"]))
    assert "batch=5" in five["settings"].item()
    assert float(five["realised_mu"]) == pytest.approx(float(one["realised_mu"]))
    rows = [row["bound_term"].to_series() for row in (one, five)]
    terms = {term: (rows[0][term], rows[1][term]) for term in rows[0].index}
    assert terms["optimisation"][1] > terms["optimisation"][0]
    if per_round == 12:  # every term by the theorem
        assert terms["noise"][1] == pytest.approx(terms["noise"][0])
        assert terms["sampling"][1] == pytest.approx(terms["sampling"][0])


def test_a_batch_above_what_a_machine_has_is_refused():
    with pytest.raises(Refusal, match=r"dp_mu2: batch must be at most samples \(20\), got 21"):
        planner.plan(**SIZES, epsilon=EPSILON, delta=DELTA, batch=21, protocols=["dp_mu2"])


def test_what_only_the_shuffler_gives():
    sizes = {**SIZES, "machines": 600, "per_round": 600, "samples": 1}
    found = planner.plan(**sizes, epsilon=1.0, delta=DELTA, trust="shuffler", protocols=["user_sgd", "noisy_sgd"])
    local = planner.plan(**sizes, epsilon=1.0, delta=DELTA, protocols=["user_sgd"])
    assert float(at(found, "user_sgd, one pass")["noise_std"]) < float(at(local, "user_sgd, one pass")["noise_std"])
    assert "trust='none'" in at(found, "noisy_sgd")["settings"].item()  # which covers what a shuffler shows
    assert at(found, "user_sgd, all users")["bound_kind"].item() == "explicit"


def test_the_mapping_is_json(everyone):
    text = json.dumps(planner.mapping(everyone), allow_nan=False)
    entries = {entry["protocol"]: entry for entry in json.loads(text)["plans"]}
    assert entries["noisy_sgd"]["guarantee"]["delta"] == DELTA
    assert entries["local_sgd"]["bound"] is None
    assert entries["released_local_sgd"]["refusal"]
    assert json.loads(text)["settings"]["machines"] == 12


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"delta": 1.0}, "delta must be between 0 and 1, got 1.0"),
        ({"delta": 0.0}, "delta must be between 0 and 1, got 0.0"),
        ({"epsilon": 0.0}, "epsilon must be positive, got 0.0"),
        ({"epsilon": [1.0, -1.0]}, "epsilon must be positive, got -1.0"),
        ({"epsilon": float("nan")}, "epsilon must be positive, got nan"),
        ({"epsilon": float("inf")}, "epsilon must be finite, got inf"),
        ({"epsilon": []}, "epsilon must have at least one value, got none"),
        ({"per_round": 13}, r"per_round must be at most machines \(12\), got 13"),
        ({"machines": 0}, "machines must be at least 1, got 0"),
        ({"dimension": 2.5}, "dimension must be an integer, got 2.5"),
        ({"trust": "sever"}, "unknown trust 'sever', did you mean 'server'"),
        ({"diameter": -1.0}, "diameter must be positive, got -1.0"),
        ({"gap": 0.0}, "gap must be positive, got 0.0"),
        ({"rounds": 0}, "rounds must be at least 1, got 0"),
        ({"protocols": ["dp_mu"]}, "unknown protocol 'dp_mu', did you mean 'dp_mu2'"),
        ({"protocols": ["released_local_sgd"]}, "must include one that can be planned, got none"),
    ],
)
def test_bad_settings_are_one_line(changes, message):
    with pytest.raises(Refusal, match=message):
        planner.plan(**{**SIZES, "epsilon": EPSILON, "delta": DELTA, **changes})


def test_the_schedule_is_that_of_a_drawn_plan():
    s = Setting(**SIZES, epsilon=EPSILON, seed=3)
    sampler = NoisyMinibatchSGD(sampler="subset", batch=5).minibatches
    problem = arrays(12, 20, 6, split=True)
    drawn = ready(
        NoisyMinibatchSGD(sampler=sampler, epsilon=1.0), problem, Uniform(12, 4), rounds=7, seed=3, metrics=[]
    )
    assert (s.outline(sampler, 7).schedule.participants == drawn.plan.schedule.participants).all()


def test_settings_that_differ_in_epsilon_share_their_plan():
    s = Setting(**SIZES, epsilon=EPSILON)
    first, second = (next(NoisySGD.theory.uses(NoisySGD)[0].drafts(each)) for each in (s, replace(s, epsilon=1.0)))
    assert first.plan is second.plan
    assert calibrated(first, s).event.epsilon(s.delta) == pytest.approx(EPSILON)


@pytest.mark.parametrize("found", ["untrusted", "everyone"])
def test_the_noise_that_is_printed_is_not_less(found, request):
    found = request.getfixturevalue(found)
    for label in planned(found):
        cell = at(found, label)
        printed = float(cell["settings"].item().rpartition("noise_std=")[2].rstrip(")"))
        assert 1 <= printed / float(cell["noise_std"]) < 1 + 2e-5, label
