"""Ditto: a NumPy loop, a closed form, and a personal part on which no message depends."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import PARTIAL, SHARES, sparing
from flax import struct
from oracles import local_algorithms as oracle

import fedprivjax as fpj
from fedprivjax import Ditto, LocalEpochs, LocalGradientSteps, LocalPrivacy, Protocol, Refusal
from fedprivjax.engine.prepare import round_inputs
from fedprivjax.method import known_work
from fedprivjax.method.linear import gradient
from fedprivjax.testing import check_protocol

MACHINES, STEP, SIZES = 5, 0.5, (7, 2, 0, 4, 1)
RNG = np.random.default_rng(5)
X = RNG.normal(size=(sum(SIZES), 3)).astype(np.float32)
Y = (X @ np.array([1.0, -2.0, 0.5]) + RNG.normal(size=len(X)) > 0).astype(int)
ROWS = fpj.datasets.table(np.split(np.arange(sum(SIZES)), np.cumsum(SIZES)[:-1]))[0]
WORK = LocalEpochs(2, 3)
PRIVATE = {
    "record": {"unit": "record", "clip": 0.3},
    "machine": {"unit": "machine", "update_clip": 0.1},
    "untrusted": {"unit": "machine", "update_clip": 0.1, "trust": "none"},
}


def problem():
    return fpj.linear_problem(X, Y, fpj.Logistic(), partition_table=ROWS)


def method(algorithm, kind=None, **options):
    noise = {"noise_std": 0.0 if kind is None else 0.4}
    privacy = LocalPrivacy(work=WORK, **PRIVATE.get(kind, {}))
    return Protocol(algorithm, privacy=privacy, step_size=STEP, **noise, **options)


def run(algorithm, kind=None, participation=None, **options):
    participation = participation or fpj.Dropouts(fpj.Uniform(MACHINES, 4), 0.3)
    settings = {"rounds": 20, "seed": 3, "metrics": []} | options
    return fpj.simulate(method(algorithm, kind), problem(), participation, **settings)


def slope(v, record):
    margin = 2 * Y[record] - 1
    return -margin * X[record] / (1 + np.exp(margin * X[record] @ v))


@pytest.mark.parametrize("personal_step", [pytest.param(None, marks=pytest.mark.slow), 0.2])
def test_a_run_is_the_loop_over_machines_and_steps(personal_step):
    """Shares are unequal, one machine has no records, and machines drop out."""
    found = run(Ditto(pull=0.7, personal_step=personal_step))
    inputs = round_inputs(found.plan)
    plan = zip(inputs.machine, inputs.present, inputs.samples, inputs.weights, strict=True)
    steps, own_step = WORK.cut(found.plan.samples.shape[-1]), personal_step or STEP
    w, own = np.zeros(3), np.zeros((MACHINES, 3))
    for each in plan:
        moves, received = [], w
        for i, gradients in oracle.cohort(slope, each, steps):
            v = received
            for g in gradients:
                v = v - STEP * g(v)
                own[i] = own[i] - own_step * (g(own[i]) + 0.7 * (own[i] - received))
            moves.append(v - received)
        w = w + np.mean(moves, axis=0)
    np.testing.assert_allclose(found.params, w, atol=1e-5)
    np.testing.assert_allclose(found.own, own, atol=1e-5)
    assert np.linalg.norm(own - w, axis=1).max() > 0.1
    np.testing.assert_array_equal(found.model_of(3), found.own[3])


def test_personal_models_of_quadratics_are_between_client_and_server():
    h, a = np.array([1.0, 3.0, 10.0]), np.array([2.0, -1.0, 0.5])
    pool = {"h": h.astype(np.float32), "a": a.astype(np.float32)}
    loss = lambda w, e: e["h"] / 2 * (w[0] - e["a"]) ** 2  # noqa: E731
    made = fpj.general_problem(loss, pool, start=np.zeros(1), partition_table=np.arange(3)[:, None])
    ditto = Protocol(Ditto(pull=2.0), privacy=LocalPrivacy(work=LocalEpochs(1)), step_size=0.05)
    found = fpj.simulate(ditto, made, fpj.Full(3), rounds=300, eval_every=300)
    w = float(found.params[0])
    np.testing.assert_allclose(w, np.sum(h * a) / np.sum(h), atol=1e-5)
    np.testing.assert_allclose(found.own[:, 0], (h * a + 2.0 * w) / (h + 2.0), atol=1e-5)


@pytest.mark.parametrize("kind", sparing([None, *PRIVATE], []))
def test_the_shared_model_is_fedavgs_bit_for_bit(kind):
    one, other = run(Ditto(pull=0.7), kind), run(LocalGradientSteps(), kind)
    np.testing.assert_array_equal(one.params, other.params)
    assert np.abs(one.params).max() > 0.01
    if kind is not None:
        assert one.guarantee.epsilon == other.guarantee.epsilon
        joint = "what a client keeps for itself is seen by this client alone: joint differential privacy"
        assert joint in str(one.guarantee)
        assert joint not in str(other.guarantee)


def test_secret_cohorts_of_fixed_size_are_refused_because_a_personal_part_shows_its_rounds():
    """With one of two machines in a round, a client knows from its model when the other machine took part."""
    where, secret = problem(), fpj.PoissonCohorts(MACHINES, 0.4)
    one, other = (
        fpj.ready(method(algorithm, "machine"), where, secret, rounds=4)
        for algorithm in (Ditto(), LocalGradientSteps())
    )
    assert one.guarantee.epsilon == other.guarantee.epsilon
    for cohort in (1, 2):
        with pytest.raises(Refusal, match="participation must be PoissonCohorts or public with client state"):
            fpj.ready(method(Ditto(), "machine"), where, fpj.SecretSubsets(MACHINES, cohort), rounds=4)


@pytest.mark.slow
def test_secret_cohorts_leave_the_shared_model_fedavgs_and_absent_machines_models_at_the_start():
    secret = fpj.PoissonCohorts(MACHINES, 0.4)
    one, other = (run(algorithm, "machine", secret, rounds=4, seed=1) for algorithm in (Ditto(), LocalGradientSteps()))
    np.testing.assert_array_equal(one.params, other.params)
    schedule = one.plan.schedule
    came = np.unique(schedule.participants[schedule.present])
    assert 0 < came.size < MACHINES
    np.testing.assert_array_equal(np.delete(one.own, came, axis=0), 0)
    assert np.abs(one.own[came]).max() > 0.01


@struct.dataclass(kw_only=True)
class Starting(Ditto):
    def enter(self, received, own):
        return own


@struct.dataclass(kw_only=True)
class Asking(Ditto):
    def enter(self, received, own):
        return received, own

    def ask(self, carry):
        return gradient(carry[1])

    def move(self, carry, g, received, own, work):
        return super().move(carry[0], g, received, own, work), carry[1]

    def leave(self, carry, received, own, work):
        return super().leave(carry[0], received, own, work)


@struct.dataclass(kw_only=True)
class Moving(Ditto):
    def move(self, carry, g, received, own, work):
        return super().move(carry, jax.tree.map(jnp.add, g, own), received, own, work)


@struct.dataclass(kw_only=True)
class Leaving(Ditto):
    def leave(self, carry, received, own, work):
        return jax.tree.map(lambda w, v: jnp.where(v[0] > 0, w, -w), super().leave(carry, received, own, work), own)


LEAKS = Starting, Asking, Moving, Leaving


@pytest.mark.parametrize("kind", [None, "machine"])
@pytest.mark.parametrize("leak", LEAKS)
def test_a_personal_part_that_leaks_into_a_message_is_refused(leak, kind):
    with pytest.raises(Refusal, match=f"messages of {leak.__name__} must not depend on the personal part that adapt"):
        run(leak(), kind)


@pytest.mark.slow
@pytest.mark.parametrize("leak", [Moving, Leaving])
def test_messages_are_computed_from_zeros_even_if_the_check_is_passed(monkeypatch, leak):
    """Changed personal parts change no message: the server's path is that of machines that hold zeros."""
    monkeypatch.setattr(known_work, "require_apart", lambda *of: None)
    slow, fast = (run(leak(personal_step=step), "machine") for step in (0.01, 0.5))
    np.testing.assert_array_equal(slow.params, fast.params)
    assert np.abs(slow.own - fast.own).max() > 0.01


@pytest.mark.slow
@pytest.mark.parametrize("kind", PRIVATE)
def test_the_contract_holds(kind):
    properties = "stable structure and dtypes", "the number of gradients is as stated", "absent machines leave no trace"
    report = check_protocol(method(Ditto(), kind), SHARES, PARTIAL, properties=properties)
    assert report.held == properties


@struct.dataclass(kw_only=True)
class Keeping(Ditto):
    def keep(self, own, message, work):
        return own


def test_functions_that_a_personal_part_leaves_unused_are_refused():
    with pytest.raises(Refusal, match="Keeping must define keep or adapt, got both"):
        run(Keeping(), None)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Ditto(pull=0.0), "pull must be positive, got 0.0"),
        (lambda: Ditto(personal_step=-1.0), "personal_step must be positive, got -1.0"),
        (lambda: Ditto(local=fpj.ServerOptimizer("adam")), "personal_step must be given with local"),
    ],
)
def test_invalid_settings(make, message):
    with pytest.raises(Refusal, match=message):
        make()
