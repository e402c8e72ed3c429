"""Any algorithm of local work with `LocalPrivacy`: equal to FedAvg and SCAFFOLD, swept, divided over devices."""

import pickle
from typing import Any

import jax
import numpy as np
import optax
import pytest
from cases import sparing
from flax import struct

from fedprivjax import (
    AdaptiveClip,
    Algorithm,
    FedAvg,
    FedDyn,
    FedExP,
    LocalAlgorithm,
    LocalEpochs,
    LocalPrivacy,
    LocalSteps,
    MimeLite,
    NoisyMessages,
    PoissonCohorts,
    Protocol,
    Quantiser,
    Refusal,
    Scaffold,
    ServerOptimizer,
    Softmax,
    Uniform,
    linear_problem,
    ready,
    simulate,
    sweep,
    transcript,
)
from fedprivjax.method.local_algorithm import add, mul, sub
from fedprivjax.plan.samplers import Poisson
from fedprivjax.protocols.fedavg import LocalGradientSteps
from fedprivjax.protocols.scaffold import ControlVariates
from fedprivjax.sweeps.execute import run_chunk

RNG = np.random.default_rng(4)
SIZES = (7, 2, 5, 4, 1)
ROUNDS, MACHINES = 4, len(SIZES)


def uneven(**options):
    """Return a problem on machines of unequal numbers of records, with 12 parameters."""
    ends, rows = np.cumsum(SIZES), np.full((MACHINES, max(SIZES)), -1)
    for i, (end, size) in enumerate(zip(ends, SIZES, strict=True)):
        rows[i, :size] = np.arange(end - size, end)
    features = RNG.normal(size=(sum(SIZES), 4)).astype(np.float32)
    settings = {"feature_bound": 1.0, "partition_table": rows, **options}
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    return linear_problem(features, RNG.integers(0, 3, sum(SIZES)), Softmax(3), **settings)


PROBLEM = uneven()
SOME, COHORTS = Uniform(MACHINES, 3), PoissonCohorts(MACHINES, 0.6)
STEP = {"step_size": 0.2}


def numbers(tree):
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])


def run(protocol, problem=PROBLEM, participation=SOME, **options):
    return simulate(protocol, problem, participation, rounds=ROUNDS, seed=3, **options)


# ---- equal to FedAvg and SCAFFOLD

RECORD: dict[str, Any] = {"unit": "record", "clip": 0.3}
MACHINE: dict[str, Any] = {"unit": "machine", "update_clip": 0.1}
EPOCHS = LocalEpochs(2, 3)
SETTINGS: dict[str, tuple[dict[str, Any], Any]] = {  # privacy, and the sampler of the local steps
    "none": ({}, EPOCHS),
    "clipped": ({"clip": 0.3, "update_clip": 0.1}, EPOCHS),
    "record": (RECORD, EPOCHS),
    "lipschitz": ({"unit": "record"}, EPOCHS),
    "poisson": (RECORD | {"relation": "add-or-remove-one"}, LocalSteps(3, Poisson(2, rate=0.4))),
    "machine": (MACHINE, EPOCHS),
    "untrusted": (MACHINE | {"trust": "none"}, EPOCHS),
    "encoded": (MACHINE | {"encoder": Quantiser(4)}, EPOCHS),
    "encoded, untrusted": (MACHINE | {"encoder": Quantiser(4), "trust": "none"}, EPOCHS),
    "adaptive": (MACHINE | {"update_clip": AdaptiveClip(start=0.1)}, EPOCHS),
    "tree": (MACHINE | {"noise": "tree"}, EPOCHS),
    "added": (MACHINE | {"relation": "add-or-remove-one"}, EPOCHS),
}


def of_method(method, privacy, work, **settings):
    """Return a method of the package with the settings of a pair."""
    steps = {"local_epochs": 2, "batch": 3}
    if isinstance(work, LocalSteps):
        steps = {"local_steps": 3, "batch": 2, "sampler": "poisson", "rate": 0.4}
    given = {"noise_schedule" if name == "noise" else name: value for name, value in privacy.items()}
    return method(**given, **steps, **STEP, **settings)


def require_equal(pair, method, problem=PROBLEM, participation=SOME):
    """Assert that two runs agree bit for bit, with their guarantees and costs."""
    ours, theirs = (run(one, problem, participation) for one in (pair, method))
    np.testing.assert_array_equal(numbers(ours.params), numbers(theirs.params))
    assert np.linalg.norm(numbers(ours.params)) > 1e-3
    assert ours.protocol.noise_std == theirs.protocol.noise_std
    assert str(ours.guarantee) == str(theirs.guarantee)
    assert ours.protocol.rounds.costs(problem) == theirs.protocol.rounds.costs(problem)
    assert ours.protocol.rounds.run_costs(problem, ours.plan) == theirs.protocol.rounds.run_costs(problem, theirs.plan)


@pytest.mark.parametrize("kind", sparing([*SETTINGS], ["none"]))
def test_a_pair_equals_fedavg_bit_for_bit(kind):
    private, work = SETTINGS[kind]
    target = {"epsilon": 5.0} if "unit" in private else {}
    privacy = LocalPrivacy(work=work, **private)
    participation = COHORTS if kind in ("machine", "added", "adaptive") else SOME
    pair = Protocol(LocalGradientSteps(), privacy=privacy, **STEP, **target)
    require_equal(pair, of_method(FedAvg, private, work, **target), participation=participation)


@pytest.mark.slow
def test_a_pair_with_weights_and_all_settings_equals_fedavg_bit_for_bit():
    weighted = uneven(machine_weights="sizes")
    settings = {"server": ServerOptimizer("adam"), "server_step": optax.cosine_decay_schedule(0.1, 4), "window": 2}
    pair = Protocol(LocalGradientSteps(prox=0.1, **settings), privacy=LocalPrivacy(work=EPOCHS), **STEP)
    require_equal(pair, of_method(FedAvg, {}, EPOCHS, prox=0.1, **settings), weighted)


@pytest.mark.parametrize("kind", sparing([*SETTINGS], []))
def test_a_pair_equals_scaffold_bit_for_bit(kind):
    private, work = SETTINGS[kind]
    target = {"epsilon": 5.0} if "unit" in private else {}
    algorithm = ControlVariates(scaled="update_clip" in private)
    pair = Protocol(algorithm, privacy=LocalPrivacy(work=work, **private), **STEP, **target)
    require_equal(pair, of_method(Scaffold, private, work, **target))


@pytest.mark.parametrize("kind", ["untrusted", "encoded, untrusted"])
def test_a_prepared_run_with_noise_on_the_machines_updates_is_pickled(kind):
    start = ready(of_method(FedAvg, *SETTINGS[kind], epsilon=5.0), PROBLEM, SOME, rounds=ROUNDS, seed=3)
    again = pickle.loads(pickle.dumps(start))
    assert again.protocol == start.protocol
    assert str(again) == str(start)
    assert again.guarantee.to_json() == start.guarantee.to_json()
    assert again.event.accountant_results(1e-5) == start.event.accountant_results(1e-5)


# ---- what the server sends

PRIVATE = LocalPrivacy(work=EPOCHS, **MACHINE)
SENT = {"FedAvg": LocalGradientSteps(), "SCAFFOLD": ControlVariates(), "FedDyn": FedDyn(), "MimeLite": MimeLite()}


@pytest.mark.parametrize("name", sparing(list(SENT), ["SCAFFOLD"]))
def test_a_transcript_has_all_that_the_server_sends(name):
    """The query is the server's point; what else a machine reads is broadcast, with the logarithm of the clip."""
    clip = AdaptiveClip(start=0.1)
    privacy = LocalPrivacy(work=EPOCHS, unit="machine", update_clip=clip, trust="none")
    method = Protocol(SENT[name], privacy=privacy, noise_std=1.0, **STEP)
    seen = transcript(method, PROBLEM, SOME, rounds=ROUNDS, seed=3)
    *others, clips = jax.tree.leaves(seen.broadcast)
    assert [len(others), seen.messages.shape[-1]] == {
        "FedAvg": [0, 13],
        "SCAFFOLD": [1, 25],
        "FedDyn": [0, 13],
        "MimeLite": [1, 25],
    }[name]
    one = run(method, metrics=["clip"], eval_every=1, noise_method="materialised")
    np.testing.assert_allclose(np.exp(np.ravel(clips))[:-1], one.metrics["clip"][1:], rtol=1e-5)
    assert all(np.any(each[t]) for each in others for t in range(ROUNDS))


# ---- sweeps and devices


@pytest.mark.slow
def test_numbers_of_both_parts_are_swept_in_one_program():
    method = Protocol(FedDyn(), privacy=PRIVATE, noise_std=0.01, **STEP)
    over = {"algorithm.alpha": [0.1, 0.5], "privacy.update_clip": [0.05, 0.5]}
    before = run_chunk._cache_size()  # pyright: ignore[reportFunctionMemberAccess]
    swept = sweep(method, PROBLEM, SOME, over=over, seeds=[3], rounds=ROUNDS, metrics=["train_loss"])
    assert run_chunk._cache_size() == before + 1  # pyright: ignore[reportFunctionMemberAccess]
    for alpha in over["algorithm.alpha"]:
        for clip in over["privacy.update_clip"]:
            one = Protocol(
                FedDyn(alpha=alpha),
                privacy=LocalPrivacy(work=EPOCHS, unit="machine", update_clip=clip),
                noise_std=0.01,
                **STEP,
            )
            found = swept["train_loss"].sel({"algorithm.alpha": alpha, "privacy.update_clip": clip}).values.ravel()[-1]
            loss = run(one, metrics=["train_loss"]).metrics["train_loss"][-1]
            np.testing.assert_allclose(found, loss, rtol=1e-5)


@pytest.mark.slow
def test_every_configuration_is_calibrated_to_its_own_clip():
    """The noise is a multiple of the clip, so that the target holds for all."""
    method = Protocol(FedDyn(), privacy=PRIVATE, epsilon=3.0, **STEP)
    swept = sweep(method, PROBLEM, SOME, over={"privacy.update_clip": [0.05, 0.5]}, seeds=[3], rounds=ROUNDS)
    std = swept["noise_std"].values.ravel()
    assert std[1] == pytest.approx(10 * std[0])
    np.testing.assert_allclose(swept["realised_epsilon"].values.ravel(), 3.0, rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", [FedDyn(), FedExP(), MimeLite()], ids=lambda one: type(one).__name__)
def test_two_devices_give_the_same_run(algorithm):
    mesh = jax.make_mesh((2,), ("machines",), devices=jax.devices()[:2])
    method = Protocol(algorithm, privacy=PRIVATE, noise_std=0.01, **STEP)
    alone, divided = (numbers(run(method, mesh=one).params) for one in (None, mesh))
    assert np.linalg.norm(divided - alone) <= 1e-5 * np.linalg.norm(alone)


# ---- parts that do not go together


@struct.dataclass
class Unweighted(LocalGradientSteps):
    equal_weights = True


@struct.dataclass
class OfOneMessage(Algorithm):
    """An algorithm without local work."""


PARTS = {
    "no privacy object": (
        FedDyn(),
        NoisyMessages(clip=1.0),
        "privacy must be a LocalPrivacy or a NoisyRecordSteps or an IntegerSums with FedDyn",
    ),
    "no local work": (OfOneMessage(), PRIVATE, "privacy must be a NoisyMessages .* with OfOneMessage"),
    "a class": (
        FedDyn(),
        LocalPrivacy,
        "privacy must be a LocalPrivacy or a NoisyRecordSteps or an IntegerSums with FedDyn, got ",
    ),
    "no algorithm": (PRIVATE, PRIVATE, "algorithm must be an Algorithm or a LocalAlgorithm, got "),
}


@pytest.mark.parametrize("name", PARTS)
def test_parts_that_do_not_go_together_are_refused(name):
    algorithm, privacy, message = PARTS[name]
    with pytest.raises(Refusal, match=f"^{message}"):
        Protocol(algorithm, privacy=privacy, noise_std=1.0, **STEP)


@struct.dataclass
class Shortest(LocalAlgorithm):
    """The members without a default."""

    def init(self, public, step):
        return public.start

    def move(self, carry, g, received, own, work):
        return work.project(sub(carry, mul(work.step, g)))

    def serve(self, server, mean, at):
        return at.project(add(server, mean))

    def point(self, server):
        return server


@pytest.mark.slow
def test_an_algorithm_of_four_functions_is_fedavg():
    short = Protocol(Shortest(), privacy=LocalPrivacy(work=LocalEpochs(1, 2)), step_size=0.1)
    runs = [simulate(one, PROBLEM, SOME, rounds=2) for one in (short, FedAvg(local_epochs=1, batch=2, step_size=0.1))]
    np.testing.assert_allclose(runs[0].params, runs[1].params, rtol=1e-6)


def test_weights_are_refused_where_the_algorithm_needs_equal_ones():
    weighted = uneven(machine_weights="sizes")
    method = Protocol(Unweighted(), privacy=LocalPrivacy(work=EPOCHS), **STEP)
    with pytest.raises(Refusal, match=r"^machine_weights must not be set for Unweighted, which weights all"):
        run(method, weighted)
    run(Protocol(LocalGradientSteps(), privacy=LocalPrivacy(work=EPOCHS), **STEP), weighted)
    with pytest.raises(Refusal, match=r"^machine_weights must be left out with unit = 'machine'"):
        run(Protocol(LocalGradientSteps(), privacy=PRIVATE, noise_std=1.0, **STEP), weighted)
