"""Stages: NumPy transcriptions, successive calls, multi-stage AC-SA, guarantees by brute force, and refusals."""

import tomllib
from dataclasses import replace
from typing import Any

import numpy as np
import optax
import pytest
from cases import sparing
from oracles.stages import staged_sgd
from small_file import FEDERATION

import fedprivjax as fpj
from fedprivjax.experiment.read import parse
from fedprivjax.experiment.run import run as run_file
from fedprivjax.privacy import gdp
from fedprivjax.protocols.accelerated_minibatch_sgd import AcceleratedSGD
from fedprivjax.protocols.noisy_sgd import SGD
from fedprivjax.sweeps.execute import run_chunk
from fedprivjax.testing import check_protocol
from fedprivjax.testing.tiny import tiny

MACHINES, RECORDS, D, RADIUS, CLIP, SIGMA = 4, 12, 3, 0.6, 0.8, 0.3
RNG = np.random.default_rng(0)
X = RNG.normal(size=(MACHINES, RECORDS, D))
X = (X / np.linalg.norm(X, axis=2, keepdims=True)).astype(np.float32)
Y = (X[..., 0] + 0.3 * RNG.normal(size=(MACHINES, RECORDS)) > 0).astype(int)
ALL = fpj.Full(MACHINES)
LAST = SGD()
LENGTHS, SCALES, STRENGTHS = (9, 6, 5), (1.0, 0.5, 0.125), (0.0, 0.3, 0.9)


def problem(labels=Y, **options):
    return fpj.linear_problem(X, labels, fpj.Logistic(), feature_bound=1.0, constraint=fpj.Ball(RADIUS), **options)


PROBLEM = problem()


def method(steps: Any = LAST, *, clip=CLIP, sampler="full", noise_std=SIGMA, step_size=0.7, **stages) -> Any:
    privacy = fpj.NoisyRecords(clip=clip, sampler=sampler, batch=None if sampler == "full" else 1)
    made = fpj.Staged(steps, **{"rounds": LENGTHS, "scales": SCALES, **stages})
    return fpj.Protocol(made, privacy=privacy, noise_std=noise_std, step_size=step_size)


def mean_gradient(w):
    """Mean over all machines of the mean clipped gradient of their records."""
    rows = X.reshape(-1, D).astype(float)
    each = (1 / (1 + np.exp(-rows @ w)) - Y.ravel())[:, None] * rows
    return np.mean(each * np.minimum(1, CLIP / np.linalg.norm(each, axis=1, keepdims=True)), axis=0)


@pytest.mark.parametrize(("centre", "average"), sparing([("stage", True), ("run", False)], quick=[("stage", True)]))
def test_runs_are_those_of_numpy(centre, average):
    """From its messages alone, the server computes what NumPy does."""
    staged = method(SGD(average=average), regularisation=STRENGTHS, centre=centre)
    seen = fpj.transcript(staged, PROBLEM, ALL, rounds=sum(LENGTHS), seed=3)
    queries = np.asarray(seen.queries, float).reshape(sum(LENGTHS), D)
    noise = np.asarray(seen.messages, float).mean(axis=1) - np.array([mean_gradient(w) for w in queries])
    assert np.std(noise) == pytest.approx(SIGMA / MACHINES**0.5, rel=0.3)
    settings: dict[str, Any] = {"strengths": STRENGTHS, "centre": centre, "radius": RADIUS, "average": average}
    points, asked = staged_sgd(
        mean_gradient, np.zeros(D), LENGTHS, [0.7 * one for one in SCALES], noise=noise, **settings
    )
    np.testing.assert_allclose(queries, asked, atol=1e-5)
    np.testing.assert_allclose(np.ravel(seen.params), points[-1], atol=1e-5)


STEPS: dict[str, Any] = {
    "average": SGD(average=True),
    "adam": SGD(server=fpj.ServerOptimizer(optax.adam, b1=0.8)),
    "regularised": AcceleratedSGD(regularisation=0.2),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", STEPS)
def test_a_run_is_that_of_successive_calls(name):
    """Without noise and with all records, the calls have the same inputs. The state begins anew in each."""
    steps, last = STEPS[name], PROBLEM
    for rounds, scale in zip(LENGTHS, SCALES, strict=True):
        privacy = fpj.NoisyRecords(clip=CLIP, sampler="full")
        one = fpj.Protocol(steps, privacy=privacy, noise_std=0.0, step_size=0.7 * scale)
        last = replace(last, start=fpj.simulate(one, last, ALL, rounds=rounds).params)
    whole = fpj.simulate(method(steps, noise_std=0.0), PROBLEM, ALL, rounds=sum(LENGTHS)).params
    np.testing.assert_allclose(whole, last.start, rtol=1e-6, atol=1e-7)


@pytest.mark.slow
def test_multi_stage_accelerated_sgd_is_one_case():
    """Lowy & Razaviyayn's stages halve the excess loss, with another v in each."""
    settings: dict[str, Any] = {"noise_std": 0.01, "clip": 2.0, "sampler": "full"}
    wide = fpj.linear_problem(X, Y, fpj.Logistic(), feature_bound=1.0, constraint=fpj.Ball(1.0))
    several = fpj.AcceleratedMinibatchSGD(form="multistage", strong_convexity=0.2, gap=5.0, **settings)
    planned: Any = fpj.ready(several, wide, ALL, rounds=164).protocol
    schedule = np.asarray(planned.schedule)
    starts = np.flatnonzero(schedule[:, 2])
    v, lengths = schedule[starts, 1], np.diff(np.append(starts, 164)).tolist()
    assert (len(v), len(set(v))) == (13, 5)
    assert schedule[:, 0].all()  # no idle rounds
    stages = {"rounds": lengths, "scales": tuple(v[0] / v), "step_size": float(1 / v[0])}
    own = method(AcceleratedSGD(strong_convexity=0.2), **settings, **stages)
    mine, theirs = (fpj.simulate(one, wide, ALL, rounds=164) for one in (own, several))
    np.testing.assert_allclose(mine.params, theirs.params, atol=1e-5)
    assert mine.guarantee.epsilon == pytest.approx(theirs.guarantee.epsilon, rel=1e-9)


@pytest.mark.slow
def test_one_number_halves_the_stages():
    halved = fpj.simulate(method(rounds=3), PROBLEM, ALL, rounds=20).params
    np.testing.assert_array_equal(halved, fpj.simulate(method(rounds=(10, 5, 5)), PROBLEM, ALL, rounds=20).params)


@pytest.mark.slow
def test_gossip_takes_stages():
    """On a complete graph without noise, every machine's model is the server's."""
    steps = fpj.Staged(rounds=LENGTHS, scales=SCALES, regularisation=STRENGTHS)
    wide = replace(PROBLEM, constraint=fpj.Ball(20.0))  # where projections do nothing
    privacy = fpj.NoisyRecords(clip=CLIP, sampler="full")
    own = fpj.Protocol(fpj.Gossip(steps, mixing="complete"), privacy=privacy, noise_std=0.0, step_size=0.7)
    alone, found = (
        fpj.simulate(one, wide, ALL, rounds=sum(LENGTHS)).params
        for one in (method(regularisation=STRENGTHS, noise_std=0.0), own)
    )
    np.testing.assert_allclose(found, alone, atol=1e-5)


# ---- guarantees


@pytest.mark.parametrize("sampler", sparing(["full", "disjoint"], quick=["disjoint"]))
def test_the_guarantee_is_the_largest_distance_of_two_runs(sampler):
    """With a small clip, a message does not depend on where it is taken, so a run is one Gaussian vector.

    Disjoint batches of one record use each of them in one round: stages compose in parallel.
    """
    settings: dict[str, Any] = {"clip": 0.01, "sampler": sampler, "regularisation": STRENGTHS, "rounds": (5, 4, 3)}
    options: dict[str, Any] = {"rounds": 12, "seed": 1}
    staged = method(SGD(average=True), **settings)
    epsilon = fpj.ready(staged, PROBLEM, ALL, **options).event.epsilon(1e-5)
    reference, found = fpj.transcript(staged, PROBLEM, ALL, **options).messages, []
    for record in range(RECORDS):
        labels = Y.copy()
        labels[1, record] = 1 - labels[1, record]  # the opposite gradient
        moved = fpj.transcript(staged, problem(labels), ALL, **options).messages
        found.append(np.linalg.norm(np.asarray(moved, float) - np.asarray(reference, float)) / SIGMA)
    share = 1 / RECORDS * 12**0.5 if sampler == "full" else 1.0
    np.testing.assert_allclose(found, 2 * 0.01 * share / SIGMA, rtol=1e-3)
    assert epsilon == pytest.approx(float(gdp.epsilon(np.mean(found), 1e-5)), rel=2e-3)


@pytest.mark.slow
def test_fresh_records_compose_in_parallel_and_successive_calls_do_not():
    pool = fpj.from_dataset(fpj.datasets.load("digits"), constraint=fpj.Ball(8.0))
    privacy = fpj.NoisyMessages(clip=1.0)
    staged = fpj.Protocol(fpj.Staged(rounds=(20, 10)), privacy=privacy, noise_std=0.5, step_size=0.1)
    whole = fpj.ready(staged, pool, fpj.Full(8), rounds=30).event.mu
    plain = fpj.Protocol(SGD(), privacy=privacy, noise_std=0.5, step_size=0.1)
    parts = [fpj.simulate(plain, pool, fpj.Full(8), rounds=rounds, seed=rounds) for rounds in (20, 10)]
    assert whole == pytest.approx(2 / 0.5)
    assert parts[0].guarantee.then(parts[1].guarantee).mu == pytest.approx(2**0.5 * whole)


@pytest.mark.slow
def test_an_audit_attains_the_guarantee():
    privacy = fpj.NoisyMessages(clip=1.0, trust="server")
    stages = fpj.Staged(SGD(average=True), (3, 2, 1), SCALES, STRENGTHS)
    federation = fpj.Federation(fpj.Full(4), rounds=6, records=12)
    found = fpj.audit(fpj.Protocol(stages, privacy=privacy, mu=2.0, step_size=0.1), federation, runs=1000)
    assert not found.refuted
    assert found.attained == pytest.approx(2.0, rel=0.1)


# ---- numbers, files and refusals


@pytest.mark.slow
def test_sweeps_name_the_number_of_a_stage_and_nothing_recompiles():
    sizes = []
    for lengths, strength in ((LENGTHS, 0.1), ((4, 6, 10), 0.4)):
        staged = method(rounds=lengths, regularisation=strength).replace(noise_std=None)
        over = {"epsilon": [2.0, 8.0], "algorithm.scales.1": [0.5, 0.1], "algorithm.regularisation": [strength, 0.2]}
        found = fpj.sweep(staged, PROBLEM, ALL, over=over, rounds=20, seeds=2, metrics=["train_loss"])
        sizes.append(run_chunk._cache_size())
    assert sizes[0] == sizes[1]
    assert float(abs(found.realised_epsilon - found.epsilon).max()) < 1e-4
    at: dict[str, Any] = {"epsilon": 8.0, "algorithm.scales.1": 0.1, "algorithm.regularisation": 0.2, "seed": 1}
    own = method(rounds=(4, 6, 10), scales=(1.0, 0.1, 0.125), regularisation=0.2).replace(noise_std=None, epsilon=8.0)
    alone = fpj.simulate(own, PROBLEM, ALL, rounds=20, seed=1, metrics=["train_loss"])
    cell = found["train_loss"].isel(round=-1, iterate=0).sel(at, method="nearest")
    assert float(cell) == pytest.approx(float(alone.metrics["train_loss"][-1]), rel=1e-5)


@pytest.mark.slow
def test_stages_meet_the_contract():
    privacy = fpj.NoisyRecords(clip=0.5, batch=3, sampler="subset")
    stages = fpj.Staged(SGD(average=True), (5, 4, 3), SCALES, 0.2)
    staged = fpj.Protocol(stages, privacy=privacy, noise_std=1.0, step_size=0.1)
    names = ["new numbers do not recompile", "every leaf can be swept", "a prefix of a longer run"]
    check_protocol(staged, PROBLEM, fpj.Uniform(MACHINES, 2), rounds=12, properties=names)


TABLE = """
[[protocol]]
name = "staged"
steps = { kind = "sgd", average = true }
rounds = [6, 4, 2]
scales = [1.0, 0.5, 0.25]
step_size = 0.1
privacy = { kind = "records", clip = 0.5, sampler = "full" }
grid = { "algorithm.scales.2" = [0.25, 0.1] }
"""


def refused(made):
    with pytest.raises(fpj.Refusal) as found:
        made()
    assert "\n" not in str(found.value)
    return str(found.value)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rounds": (3, 0)}, "rounds must be at least 1, got 0"),
        ({"rounds": ()}, "rounds must be those of at least one stage, got none"),
        ({"rounds": (3, 2), "scales": (1, 1, 1)}, "scales must be one number, or one for each of the 2 stages, got 3"),
        ({"scales": 0.0}, "scales must be positive, got 0.0"),
        ({"regularisation": -1.0}, "regularisation must be positive, got -1.0"),
        ({"centre": "zero"}, "unknown centre 'zero'"),
        ({"steps": fpj.Gossip()}, "steps must be the steps of one stage, got a Gossip"),
        ({"steps": fpj.FedDyn()}, "steps must be an algorithm whose server reads means, such as SGD, got a FedDyn"),
        ({"steps": SGD}, "got the class SGD"),
    ],
)
def test_invalid_stages_are_refused(settings, message):
    assert message in refused(lambda: fpj.Staged(**settings))


def test_rounds_that_do_not_add_up_are_refused():
    def run(total, **options):
        return lambda: fpj.ready(method(**options), PROBLEM, ALL, rounds=total)

    assert refused(run(21)).startswith("rounds of the stages must add up to the 21 of the run, got 9 + 6 + 5 = 20")
    assert refused(run(3, rounds=3, scales=1.0)) == "rounds must be at least 4 for 3 stages, got 3"
    pulled = method(fpj.DPZero(), regularisation=0.1)
    assert "with regularisation" in refused(lambda: fpj.ready(pulled, PROBLEM, ALL, rounds=20))
    assert "step_size must be given for Staged" in refused(run(20, step_size=None))


@pytest.mark.slow
def test_a_file_runs_stages_and_a_scaled_down_copy_keeps_them():
    raw = {"title": "stages", **tomllib.loads(FEDERATION)}
    raw["participation"]["rounds"] = 12
    raw |= {"sweep": {"epsilon": [8.0], "seeds": 1}, "protocol": tomllib.loads(TABLE)["protocol"]}
    raw["problem"]["partition"] = {"kind": "iid"}
    for experiment in (parse(raw), tiny(parse(raw))):
        data = run_file(experiment)["staged"]
        assert data["algorithm.scales.2"].values.tolist() == [0.25, 0.1]
        assert int(data["round"].values[-1]) == 12
        assert np.isfinite(data.test_loss).all()


def test_a_file_refuses_what_is_no_number():
    raw = {"title": "stages", **tomllib.loads(FEDERATION)}
    raw["protocol"] = tomllib.loads(TABLE.replace("[1.0, 0.5, 0.25]", '[1.0, "half", 0.25]'))["protocol"]
    assert "scales must be a number, got [1.0, 'half', 0.25]" in refused(lambda: parse(raw))
