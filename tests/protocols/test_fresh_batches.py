"""Messages that are means over fresh samples: noise, step, and an audit of one sample."""

from dataclasses import replace

import chex
import numpy as np
import pytest
from audited import smaller
from cases import MACHINES, POOL, SOME_MACHINES, sparing
from restating import planted, unsealed
from scipy.stats import kstest, norm

from fedprivjax import (
    Ball,
    DPMu2,
    Full,
    Given,
    NoisySGD,
    NormBound,
    Softmax,
    StaleMomentum,
    Uniform,
    audit,
    linear_problem,
)
from fedprivjax.auditing.federation import Federation
from fedprivjax.auditing.neighbouring import small_federation
from fedprivjax.auditing.one_run import audit_one_run
from fedprivjax.engine.prepare import ready
from fedprivjax.engine.simulate import execute
from fedprivjax.engine.transcript import transcript
from fedprivjax.method import round as cohort
from fedprivjax.method.small_form import scaled_down
from fedprivjax.problem.problem import numbers_of_one
from fedprivjax.testing.trial import PROBE

BATCH, CLIP, MU = 3, 0.5, 2.0
METHODS = {
    "mu2": DPMu2(mu=MU, clip=CLIP),
    "mu2-server": DPMu2(mu=MU, clip=CLIP, trust="server"),
    "mu2-fresh": DPMu2(mu=MU, clip=CLIP, cancel=False),
    "sgd": NoisySGD(mu=MU, clip=CLIP),
    "stale": StaleMomentum(mu=MU, clip=CLIP),
}


def wide(features=300):
    """Few samples, many parameters: 1500 numbers of noise in a message."""
    rng = np.random.default_rng(1)
    rows = rng.normal(size=(48, features)) / features**0.5
    return linear_problem(rows, rng.integers(0, 5, 48), Softmax(5), constraint=Ball(1.0))


def begun(protocol, rounds=None, participation=SOME_MACHINES, **changes):
    return ready(protocol.replace(**changes), POOL, participation, rounds=rounds, seed=2, metrics=())


@pytest.mark.parametrize("name", METHODS)
def test_one_sample_a_message_is_what_it_was(name):
    """No sampler, no weights: the inputs and the protocol are those of a method without the setting."""
    start = begun(METHODS[name], batch=1)
    assert (start.plan.sampler, start.plan.weights, start.inputs.weights) == (None, None, None)
    assert (
        start.protocol.traced
        == begun(METHODS[name], batch=BATCH)
        .protocol.replace(noise_std=start.protocol.noise_std, step_size=start.protocol.step_size)
        .traced
    )


@pytest.mark.parametrize("name", METHODS)
def test_a_kth_of_the_noise_gives_the_same_privacy(name):
    rounds = 9
    one, several = (begun(METHODS[name], rounds, batch=batch) for batch in (1, BATCH))
    assert several.protocol.noise_std == pytest.approx(one.protocol.noise_std / BATCH)
    np.testing.assert_allclose(several.event.mus.each, one.event.mus.each)
    assert "every message is a mean over 3 records" in str(several.guarantee)
    assert "mean over" not in str(one.guarantee)


@pytest.mark.parametrize(("name", "power"), [("mu2", 2.0), ("mu2-server", 2.0), ("mu2-fresh", 2.5)])
def test_the_step_grows_with_the_noise_in_the_iterate(name, power):
    """In T/K rounds: by K², and where the noises add up, whose sum is of T^1.5, by √K more."""
    steps = [begun(METHODS[name], 12 // batch, batch=batch, mu=MU / 4).protocol.step_size for batch in (1, BATCH)]
    assert steps[1] / steps[0] == pytest.approx(BATCH**power)


def test_the_cap_of_unclipped_increments_grows_by_the_batch_alone():
    steps = [begun(DPMu2(mu=1e3), 30 // batch, batch=batch).protocol.step_size for batch in (1, 2)]
    assert steps[1] / steps[0] == pytest.approx(2)


@pytest.mark.parametrize("name", ["mu2", "mu2-server", "stale"])
def test_no_default_step_of_clipped_batches_crosses_the_set_more_than_twice(name):
    """2D/(CT), with little noise; one sample a message has no such cap."""
    steps = [begun(METHODS[name], 5, mu=1e4, batch=batch).protocol.step_size for batch in (1, BATCH)]
    assert steps[1] == pytest.approx(2 * 2.0 / (CLIP * 5))
    assert steps[0] > 10 * steps[1]


def test_the_noise_in_x_is_that_of_one_sample_a_message():
    """w gathers η times every round's noise; in T/K rounds, with K² times the step, as much of it."""
    gathered = []
    for batch in (1, BATCH):
        start = begun(METHODS["mu2"], 12 // batch, Full(MACHINES), batch=batch, mu=MU / 4)
        squares = start.protocol.noise_variances(start.plan)
        gathered.append(start.protocol.step_size * np.sqrt(np.sum(squares)))
    assert gathered[1] == pytest.approx(gathered[0])


@pytest.mark.parametrize("trust", sparing(["none", "server"], ["none"]))
def test_the_noise_that_is_sent_has_its_law(trust):
    """Independently: 2C/(Kμ), over m with a trusted server, times √T of the uniform schedule; two-sided."""
    problem, people, rounds = wide(), Full(2), 4
    protocol = DPMu2(mu=MU, clip=CLIP, trust=trust, batch=BATCH, step_size=1e-3)
    noisy, silent = (
        transcript(replace(protocol, mu=mu), problem, people, rounds=rounds, seed=5) for mu in (MU, np.inf)
    )
    scale = 2 * CLIP / (BATCH * MU) * rounds**0.5
    if trust == "none":
        noise = noisy.messages[0] - silent.messages[0]
    else:  # x_2 = w_1 + 2/3·(w_2 − w_1), well inside the ball
        noise, scale = 1e3 * 1.5 * (noisy.queries[1] - silent.queries[1]), scale / 2
    white = np.ravel(noise) / scale
    assert kstest(white, norm.cdf).pvalue > 1e-3
    for wrong in (2 / 3, 3 / 2, 1 / BATCH, BATCH):
        assert kstest(wrong * white, norm.cdf).pvalue < 1e-9


@pytest.mark.parametrize("name", sparing(["mu2", "stale"], []))
@pytest.mark.parametrize("clip", [None, CLIP])
def test_factored_dense_and_chunked_are_one(name, clip, general_twin, monkeypatch):
    protocol = METHODS[name].replace(batch=BATCH, clip=clip, mu=np.inf, step_size=0.05)
    people, options = Given(3, np.tile(np.arange(3), (5, 1))), {"metrics": (PROBE,), "seed": 3, "eval_every": 1}
    found = [execute(ready(protocol, problem, people, **options)) for problem in (POOL, general_twin())]
    twin = general_twin()
    monkeypatch.setattr(cohort, "CACHE_FLOATS", 4 * numbers_of_one(twin))  # three increments of nine, which divide them
    assert cohort.rows_in_memory(twin, 9) == 3
    found.append(execute(ready(protocol, twin, people, **options)))
    for other in found[1:]:
        chex.assert_trees_all_close(other.metrics, found[0].metrics, rtol=1e-4, atol=1e-5)


def test_no_gradient_of_a_linear_predictor_is_written_out():
    start = begun(METHODS["mu2"], batch=BATCH)
    assert start.protocol.rounds.vectors_in_memory(POOL, start.plan.size, 2 * BATCH) == 0


# ---- audits


# planted: the sensitivity of a batch's mean is taken as 2C/K²
TOO_QUIET = unsealed(bounded=lambda private, stated, *, plain: NormBound(private.clip / private.batch, ()))
FEDERATION = Federation(Uniform(4, 2), rounds=6, records=18)


@pytest.mark.slow
def test_an_audit_sees_one_sample_of_a_batch(monkeypatch):
    smaller(monkeypatch, preparing=1024)
    found = audit(DPMu2(mu=MU, clip=1.0, batch=BATCH), FEDERATION, runs=1000)
    assert not found.refuted
    assert found.attained == pytest.approx(MU, rel=0.1)
    assert found.best.bounds.mu_lower > 0.6 * MU


@pytest.mark.slow
def test_an_audit_refutes_too_little_noise(monkeypatch):
    smaller(monkeypatch, preparing=1024)
    found = audit(planted(DPMu2(mu=MU, clip=1.0, batch=BATCH), TOO_QUIET), FEDERATION, runs=1000)
    assert found.refuted
    assert found.attained == pytest.approx(BATCH * MU, rel=0.1)


@pytest.mark.parametrize("name", METHODS)
def test_a_small_federation_has_samples_enough(name):
    protocol = scaled_down(METHODS[name].replace(batch=20), MACHINES)
    assert protocol.batch == BATCH
    federation = small_federation(protocol)
    assert federation.records >= BATCH * federation.rounds


@pytest.mark.slow
def test_one_run_with_canaries_in_batches():
    rng = np.random.default_rng(0)
    problem = linear_problem(rng.normal(size=(1200, 40)), rng.integers(0, 2, 1200), Softmax(2), constraint=Ball(1.0))
    found = audit_one_run(DPMu2(mu=4.0, clip=1.0, batch=BATCH), problem, Uniform(60, 30), rounds=8)
    assert not found.refuted
    assert found.attained > 2.0  # as with one sample a message
