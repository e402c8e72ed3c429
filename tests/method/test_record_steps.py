"""Noise in local steps on single records: any algorithm of local work with `NoisyRecordSteps`."""

import pickle
from dataclasses import replace
from typing import Any

import jax
import numpy as np
import optax
import pytest
from cases import PARTIAL, SHARES, sparing
from flax import struct

from fedprivjax import (
    FedDyn,
    LocalEpochs,
    LocalSGD,
    NoisyRecordSteps,
    Protocol,
    Refusal,
    ServerOptimizer,
    gradient,
    simulate,
    transcript,
)
from fedprivjax.privacy.noise_rules import PaperMoments
from fedprivjax.protocols import ReleasedLocalSGD
from fedprivjax.protocols.fedavg import LocalGradientSteps
from fedprivjax.protocols.local_sgd import AveragedEndPoints
from fedprivjax.protocols.scaffold import ControlVariates

ROUNDS = 4
STEP: dict[str, Any] = {"step_size": 0.3}
ADAM = {"server": ServerOptimizer("adam"), "server_step": optax.cosine_decay_schedule(0.1, ROUNDS)}
CASES: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {  # privacy, algorithm, target
    "clipped": ({"clip": 0.3}, {}, {"epsilon": 4.0}),
    "lipschitz": ({"delta": 1e-6}, {"window": 2}, {"epsilon": 4.0}),
    "one pass": ({"clip": 0.3, "sampler": "disjoint"}, {"window": 1}, {"epsilon": 4.0}),
    "shares": ({"clip": 0.3, "relative_privacy": [1.0, 2.0, 3.0, 4.0]}, {}, {"epsilon": 4.0}),
    "each": ({"clip": 0.3}, {}, {"epsilon": (1.0, 2.0, 3.0, 4.0)}),
    "optimiser": ({"clip": 0.3}, ADAM, {"noise_std": 0.3}),
    "no noise": ({}, {}, {"noise_std": 0.0}),
}


def numbers(tree):
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])


def steps_of(protocol):
    """Return the moves of all local steps, [rounds, machines, steps, numbers]."""
    steps: Any = transcript(protocol, SHARES, PARTIAL, rounds=ROUNDS, seed=3).steps
    return steps


def run(protocol, problem=SHARES):
    return simulate(protocol, problem, PARTIAL, rounds=ROUNDS, seed=3)


@pytest.mark.parametrize("name", sparing([*CASES], ["each"]))
def test_a_pair_equals_local_sgd_bit_for_bit(name):
    private, algorithm, target = CASES[name]
    pair = Protocol(AveragedEndPoints(**algorithm), privacy=NoisyRecordSteps(batch=3, **private), **STEP, **target)
    method = LocalSGD(batch=3, **private, **algorithm, **STEP, **target)
    ours, theirs = map(run, (pair, method))
    np.testing.assert_array_equal(numbers(ours.params), numbers(theirs.params))
    assert np.linalg.norm(numbers(ours.params)) > 1e-3
    assert ours.protocol.noise_std == theirs.protocol.noise_std
    assert str(ours.guarantee) == str(theirs.guarantee)
    assert ours.protocol.rounds.costs(SHARES) == theirs.protocol.rounds.costs(SHARES)


OTHERS = [LocalGradientSteps(), ControlVariates(scaled=False), FedDyn()]


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", OTHERS, ids=lambda one: type(one).__name__)
def test_other_algorithms_have_noise_in_every_step(algorithm):
    """The steps of all machines have the noise of LocalSGD, because it depends on the round, the slot and the step."""
    privacy = NoisyRecordSteps(batch=3, clip=0.3)
    pair = Protocol(algorithm, privacy=privacy, noise_std=0.4, **STEP)
    method = LocalSGD(batch=3, clip=0.3, noise_std=0.4, **STEP)
    ours, theirs = map(steps_of, (pair, method))
    assert ours.shape == theirs.shape
    assert np.linalg.norm(ours, axis=-1).min() > 0
    assert str(run(pair).guarantee) == str(run(method).guarantee)


@struct.dataclass
class Twice(LocalGradientSteps):
    """A thousand times the gradient."""

    def ask(self, carry):
        return 1000.0 * gradient(carry)


def test_a_longer_message_is_clipped():
    privacy = NoisyRecordSteps(batch=3, clip=0.01)
    longest = np.linalg.norm(steps_of(Protocol(Twice(), privacy=privacy, noise_std=1e-9, **STEP)), axis=-1).max()
    assert longest == pytest.approx(0.01 * STEP["step_size"], rel=1e-3)


def test_a_stated_constant_is_enforced_in_private_runs():
    """The loss states a tenth of its true constant: private gradients are clipped to it, plain ones are not."""
    false = replace(SHARES, own_lipschitz=0.1)
    method = LocalSGD(batch=3, step_size=0.3)
    steps = {}
    for noise in (1e-9, 0.0):
        seen = transcript(replace(method, noise_std=noise), false, PARTIAL, rounds=2, seed=3)
        steps[noise] = float(np.linalg.norm(np.diff(seen.queries, axis=0), axis=-1).max())
    assert steps[1e-9] <= 3 * 0.1 * 0.3 * (1 + 1e-4) < steps[0.0]


# ---- refusals

PAIR: dict[str, Any] = {"noise_std": 1.0, **STEP}
REFUSED: dict[str, tuple[Any, str]] = {
    "a combination": (
        lambda: run(Protocol(Twice(), privacy=NoisyRecordSteps(batch=3), **PAIR)),
        "clip must be set with unit = 'record', .* Set clip in NoisyRecordSteps$",
    ),
    "weights": (
        lambda: run(
            Protocol(LocalGradientSteps(), privacy=NoisyRecordSteps(batch=3), **PAIR),
            replace(SHARES, machine_weights=(0.4, 0.3, 0.2, 0.1)),
        ),
        "machine_weights must not be set for LocalGradientSteps",
    ),
    "another sampler": (
        lambda: NoisyRecordSteps(batch=3, sampler="poisson"),
        "sampler must be 'replacement' or 'disjoint'",
    ),
    "several records a step": (
        lambda: NoisyRecordSteps(sampler=LocalEpochs(1, 2)),
        "sampler must be 'replacement' or 'disjoint'",
    ),
    "a batch each": (
        lambda: NoisyRecordSteps(batch=(1, 2)),  # type: ignore[arg-type]
        "batch must be one number for local SGD",
    ),
    "a name of the released rule": (
        lambda: NoisyRecordSteps(batch=3, noise_rule="paper_moments"),
        "noise_rule",
    ),
    "an added record": (lambda: NoisyRecordSteps(batch=3, relation="add-or-remove-one"), "relation"),
    "a rule that is not acknowledged": (
        lambda: run(
            Protocol(
                AveragedEndPoints(), privacy=NoisyRecordSteps(batch=3, noise_rule=PaperMoments()), epsilon=4.0, **STEP
            )
        ),
        "acknowledged must be true",
    ),
    "no step": (lambda: run(LocalSGD(batch=3, noise_std=1.0)), "step_size must be set"),
    "no step of a pair": (
        lambda: run(Protocol(AveragedEndPoints(), privacy=NoisyRecordSteps(batch=3), noise_std=1.0)),
        "step_size must be set",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_proved_is_refused(name):
    make, said = REFUSED[name]
    with pytest.raises(Refusal, match=said):
        make()


def test_a_privacy_object_has_no_subclasses():
    with pytest.raises(Refusal, match=r"^NoisyRecordSteps must not be subclassed, .* Define a LocalAlgorithm"):

        class Quiet(NoisyRecordSteps):  # type: ignore[misc]
            pass


# ---- the released rule


def test_the_released_rule_is_that_of_a_pair():
    rule = PaperMoments(acknowledged=True, claimed_records=100)
    privacy = NoisyRecordSteps(batch=3, clip=0.3, noise_rule=rule)
    released = ReleasedLocalSGD(
        batch=3, clip=0.3, epsilon=4.0, noise_rule="paper_moments", acknowledged=True, claimed_records=100, **STEP
    )
    found = run(released)
    pair = Protocol(AveragedEndPoints(), privacy=privacy, noise_std=found.protocol.noise_std, **STEP)
    ours = run(pair)
    np.testing.assert_array_equal(numbers(ours.params), numbers(found.params))
    assert ours.guarantee.epsilon == found.guarantee.epsilon > 4.0


@pytest.mark.slow
def test_earlier_pickles_have_another_state():
    """Pickles of earlier versions hold the rates of a schedule, and nothing that is read of an algorithm."""
    method = LocalSGD(batch=3, noise_std=0.4, **STEP)
    earlier = pickle.loads(pickle.dumps(method))
    vars(earlier).pop("known")
    vars(earlier)["server_steps"] = None
    np.testing.assert_array_equal(numbers(run(earlier).params), numbers(run(method).params))
