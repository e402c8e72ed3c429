"""Algorithms with noisy messages: bit-equal to the named methods, guarantees, sweeps, and their identity as objects."""

import pickle
from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest
from cases import COMPILED, POOL, SOME_MACHINES, sparing
from flax import struct
from heavy_ball import HeavyBall

from fedprivjax import (
    Algorithm,
    DPMu2,
    LocalEpochs,
    LocalPrivacy,
    NoisyMessages,
    NoisySGD,
    Protocol,
    Refusal,
    audit,
    check_protocol,
    draw_plan,
    guarantee_of,
    simulate,
    sweep,
    transcript,
)
from fedprivjax.engine.fingerprint import identity
from fedprivjax.engine.prepare import ready
from fedprivjax.protocols.dp_mu2 import Mu2
from fedprivjax.protocols.noisy_sgd import SGD
from fedprivjax.sweeps.execute import run_chunk
from fedprivjax.testing import PROPERTIES

ROUNDS = 8
SETTINGS: dict[str, Any] = {"mu": 4.0, "step_size": 0.05}


Lighter = struct.dataclass(type("Lighter", (HeavyBall,), {"__module__": __name__, "__doc__": "Another class."}))


def heavy_ball(**settings):
    """Heavy ball with settings of the protocol, the algorithm or the privacy object."""
    own = {name: settings.pop(name) for name in ("mu", "epsilon", "noise_std", "step_size") if name in settings}
    of_algorithm = {name: settings.pop(name) for name in ("beta", "nesterov") if name in settings}
    privacy = NoisyMessages(**{"clip": 0.5, **settings})
    return Protocol(HeavyBall(**of_algorithm), privacy=privacy, **(own or SETTINGS))


# ---- the named methods


def mu2_pair(trust="none", clip=0.5, noise="uniform", batch=1):
    cancel = {"cancel": False} if noise == "independent" else {"noise_schedule": noise}
    named = DPMu2(trust=trust, clip=clip, batch=batch, **cancel, **SETTINGS)
    return named, Protocol(Mu2(), privacy=NoisyMessages(clip=clip, trust=trust, noise=noise, batch=batch), **SETTINGS)


def sgd_pair(trust="none", clip=0.5, batch=1, average=False):
    named = NoisySGD(trust=trust, clip=clip, batch=batch, average=average, **SETTINGS)
    return named, Protocol(SGD(average=average), privacy=NoisyMessages(clip=clip, trust=trust, batch=batch), **SETTINGS)


PAIRS = {
    "mu2": mu2_pair(),
    "mu2-server": mu2_pair(trust="server"),
    "mu2-bounded": mu2_pair(clip=None),
    "mu2-server-bounded": mu2_pair(trust="server", clip=None),
    "mu2-gap": mu2_pair(noise="gap"),
    "mu2-toeplitz": mu2_pair(noise="toeplitz"),
    "mu2-independent": mu2_pair(noise="independent"),
    "mu2-batch": mu2_pair(batch=2),
    "sgd": sgd_pair(),
    "sgd-server": sgd_pair(trust="server"),
    "sgd-bounded": sgd_pair(clip=None),
    "sgd-batch": sgd_pair(batch=3),
    "sgd-average": sgd_pair(average=True),
}


@pytest.mark.parametrize("name", sparing(list(PAIRS), ["mu2-toeplitz"]))
def test_a_pair_is_the_named_method_bit_for_bit(name):
    options = {"rounds": ROUNDS, "seed": 3, "metrics": ()}
    named, pair = (simulate(each, POOL, SOME_MACHINES, **options) for each in PAIRS[name])
    np.testing.assert_array_equal(named.params, pair.params)
    assert named.guarantee.to_json() == pair.guarantee.to_json()
    assert {**named.costs, "seconds": 0.0} == {**pair.costs, "seconds": 0.0}


@pytest.mark.parametrize("name", sparing(["mu2", "mu2-bounded", "mu2-server", "sgd"], []))
def test_and_so_is_what_an_adversary_sees(name):
    one, other = (transcript(each, POOL, SOME_MACHINES, rounds=ROUNDS, seed=3) for each in PAIRS[name])
    np.testing.assert_array_equal(one.queries, other.queries)
    np.testing.assert_array_equal(one.messages, other.messages)


# ---- a custom algorithm


def test_the_server_reads_the_mean_of_the_messages_as_they_are_sent():
    """Noise that cancels over rounds, for an algorithm that reads means: its own steps in NumPy, from the messages."""
    view = transcript(heavy_ball(noise="uniform", beta=0.7), POOL, SOME_MACHINES, rounds=ROUNDS, seed=1)
    w, v = np.zeros(15), np.zeros(15)
    for query, messages in zip(view.queries, view.messages, strict=True):
        np.testing.assert_allclose(query, w, atol=1e-5)
        v = 0.7 * v + messages.mean(axis=0)
        w = w - 0.05 * v
        w = w / max(1.0, np.linalg.norm(w))
    np.testing.assert_allclose(np.ravel(view.params), w, atol=1e-5)
    assert np.linalg.norm(w) > 0.1


@pytest.mark.parametrize("noise", ["independent", "uniform", "gap", "toeplitz"])
@pytest.mark.parametrize("trust", ["none", "server"])
def test_its_guarantee_is_that_of_the_messages(trust, noise):
    """The same as that of any other algorithm with the same bound, noise and plan."""
    start = ready(heavy_ball(trust=trust, noise=noise), POOL, SOME_MACHINES, rounds=ROUNDS, metrics=())
    if noise == "independent":
        other = NoisySGD(trust=trust, clip=0.5, **SETTINGS)
    else:
        other = DPMu2(trust=trust, clip=0.5, noise_schedule=noise, **SETTINGS)
    same = ready(other, POOL, SOME_MACHINES, rounds=ROUNDS, metrics=())
    np.testing.assert_array_equal(start.event.mus.each, same.event.mus.each)
    assert start.guarantee.terms.theorem == same.guarantee.terms.theorem
    assert start.event.mu == pytest.approx(4.0) if noise != "gap" else start.event.mu <= 4.0


LAWS = [(trust, noise) for trust in ("none", "server") for noise in ("independent", "uniform", "gap", "toeplitz")]


@pytest.mark.slow  # DPMu2, in test_contract.py, has the same classes and the other noises
@pytest.mark.parametrize(("trust", "noise"), [("none", "uniform"), ("server", "gap")])
def test_it_keeps_the_contract(trust, noise):
    properties = PROPERTIES if noise == "uniform" else COMPILED
    report = check_protocol(heavy_ball(trust=trust, noise=noise), POOL, SOME_MACHINES, properties=properties)
    assert set(report.held) == set(properties)
    assert str(report).startswith("HeavyBall: ")


@pytest.mark.slow
@pytest.mark.parametrize(("trust", "noise"), LAWS)
@pytest.mark.usefixtures("small_audits")
def test_an_audit_finds_what_is_claimed_and_no_more(trust, noise):
    found = audit(heavy_ball(mu=2.0, trust=trust, noise=noise), runs=2000)
    assert not found.refuted
    assert found.tightness > 0.5


@pytest.mark.slow
def test_numbers_of_both_parts_are_swept_in_one_program():
    options = {"rounds": ROUNDS, "metrics": ("test_loss",)}
    over = {"algorithm.beta": [0.0, 0.9], "privacy.clip": [0.1, 0.5]}
    before = run_chunk._cache_size()
    grid = sweep(heavy_ball(), POOL, SOME_MACHINES, over=over, seeds=[2], **options)
    again = sweep(heavy_ball(), POOL, SOME_MACHINES, over={**over, "algorithm.beta": [0.2, 0.4]}, seeds=[2], **options)
    assert run_chunk._cache_size() == before + 1
    alone = simulate(heavy_ball(beta=0.9, clip=0.1), POOL, SOME_MACHINES, seed=2, **options)
    cell = grid.sel({"algorithm.beta": 0.9, "privacy.clip": 0.1})
    np.testing.assert_allclose(cell.test_loss.values.ravel(), alone.metrics["test_loss"], rtol=1e-5)
    assert guarantee_of(cell).mu == pytest.approx(4.0, rel=1e-5)
    assert np.ptp(np.concatenate([grid.test_loss.values.ravel(), again.test_loss.values.ravel()])) > 1e-3
    with pytest.raises(Refusal, match=r"unknown swept setting 'algorithm.bta', did you mean 'algorithm.beta'"):
        sweep(heavy_ball(), POOL, SOME_MACHINES, over={"algorithm.bta": [0.5]}, **options)


# ---- as objects


def test_a_pair_is_printed_and_pickled():
    pair = heavy_ball(beta=0.5)
    assert str(pair) == "HeavyBall(beta = 0.5) with NoisyMessages(clip = 0.5), step_size = 0.05, mu = 4"
    assert pair.name == "HeavyBall"
    assert "HeavyBall(beta=0.5, nesterov=False)" in repr(pair)
    assert pickle.loads(pickle.dumps(pair)) == pair
    assert replace(pair, mu=1.0).mu == pair.replace(mu=1.0).mu == 1.0


def test_a_pair_of_classes_or_of_wrong_objects_is_refused():
    for privacy in (NoisyMessages, "messages", None, NoisySGD(mu=1.0)):
        with pytest.raises(Refusal, match="privacy must be"):
            Protocol(HeavyBall(), privacy=privacy, mu=1.0)
    local = LocalPrivacy(work=LocalEpochs(1), unit="record", clip=1.0)
    with pytest.raises(Refusal, match=r"privacy must be a NoisyMessages or .* with HeavyBall, got a LocalPrivacy"):
        replace(heavy_ball(), privacy=local)
    for algorithm in (HeavyBall, NoisySGD(mu=1.0), None):
        with pytest.raises(Refusal, match="algorithm must be an Algorithm"):
            Protocol(algorithm, privacy=NoisyMessages(clip=1.0), mu=1.0)

    class Undecorated(HeavyBall):
        pass

    class Bare(Algorithm):
        pass

    for wrong in (Undecorated(), Bare()):
        with pytest.raises(Refusal, match=rf"{type(wrong).__name__} must be a flax\.struct\.dataclass"):
            Protocol(wrong, privacy=NoisyMessages(clip=1.0), **SETTINGS)


@pytest.mark.parametrize(
    ("other", "got"),
    [
        (lambda server: (*server, server[0]), r"\('float32\[3, 5\]', 'float32\[3, 5\]', 'float32\[3, 5\]'\)"),
        (lambda server: (server[0][:1], server[1]), r"\('float32\[1, 5\]', 'float32\[3, 5\]'\)"),
        (lambda server: (server[0], server[1].astype(int)), r"\('float32\[3, 5\]', 'int32\[3, 5\]'\)"),
    ],
    ids=["structure", "shape", "type"],
)
def test_a_server_of_another_form_is_refused_before_anything_is_compiled(other, got):
    @struct.dataclass
    class Other(HeavyBall):
        def serve(self, server, read, at):
            return other(super().serve(server, read, at))

    with pytest.raises(
        Refusal, match=rf"^serve must return a state of the form of init in Other, .*, got {got}\. Return"
    ):
        ready(replace(heavy_ball(), algorithm=Other()), POOL, SOME_MACHINES, rounds=2)


def test_identities_tell_classes_and_static_fields_apart():
    """Leaves are compared by themselves, so they are not part of it."""
    pairs = [heavy_ball(), heavy_ball(nesterov=True), heavy_ball(noise="gap"), heavy_ball(noise="toeplitz")]
    pairs.append(replace(heavy_ball(), algorithm=Lighter()))
    assert len({identity(each) for each in pairs}) == len(pairs)
    assert identity(heavy_ball(beta=0.1, clip=2.0)) == identity(heavy_ball())
    assert "heavy_ball.HeavyBall(beta=*, nesterov=False)" in identity(heavy_ball())


def test_hosts_read_an_algorithm_that_is_not_calibrated_and_programs_do_not():
    method = NoisySGD(noise_std=1.0, clip=0.5, step_size=0.1)
    plan = draw_plan(POOL, SOME_MACHINES, 4)
    assert method.event(POOL, plan).sensitivity == 1.0
    assert method.rounds.bound(POOL, 4).norm == 0.5
    with pytest.raises(Refusal, match="NoisySGD must be calibrated before it is run"):
        method.init(POOL, plan.size, jax.random.key(0))
