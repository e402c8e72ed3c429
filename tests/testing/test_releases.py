"""Planted faults in what leaves machines and reaches the server, each found by a property of the contract."""

from functools import partial

import jax
import jax.numpy as jnp
import optax
import pytest
from cases import PARTIAL, POOL, SHARES, SOME_MACHINES, sparing
from faults.clients import HALF_THE_MOVE
from faults.messages import CLIPPED_BY_COORDINATE
from restating import buggy, planted, unsealed

from fedprivjax import (
    DPMu2,
    FedAvg,
    FedDyn,
    FedExP,
    LocalEpochs,
    LocalPrivacy,
    MimeLite,
    NoisyMessages,
    NoisySGD,
    Protocol,
    Scaffold,
)
from fedprivjax.method.linear import of_record
from fedprivjax.testing import PROPERTIES, Trial
from fedprivjax.testing.contract import OF_RELEASES

BOUND, ISOLATED, REPLAYED = OF_RELEASES
MOMENTUM = partial(optax.sgd, momentum=0.9)
OF_POOL = {"noise_std": 1.0, "step_size": 0.1, "clip": 0.5}
OF_MACHINES = {"noise_std": 0.4, "step_size": 0.2, "unit": "machine", "update_clip": 0.1, "local_epochs": 1, "batch": 3}
OF_STEPS = {"noise_std": 0.4, "step_size": 0.2, "unit": "record", "clip": 0.3, "local_epochs": 1, "batch": 3}


def unclipped(self, problem, message, minibatch, noise, facts):
    return minibatch.mean(of_record(message), divisor=self.step_divisor)


UNCLIPPED = unsealed(of_batch=unclipped)  # local steps do not clip records' gradients


def longer(private, message, info, public, noise, facts):
    """Return a message that is longer by 1000 times its norm after the clip."""
    norm = jnp.sqrt(sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(message)))
    return jax.tree.map(lambda leaf: leaf + 1000 * norm, message)


def centred(private, problem, message, inputs, noise, limits, key):
    rows = NoisyMessages.messages(private, problem, message, inputs, noise, limits, key)
    return jax.tree.map(lambda leaf: 0.5 * (leaf - jnp.mean(leaf, axis=0, keepdims=True)), rows)


CENTRED = unsealed(messages=centred)  # the cohort's mean is subtracted from half of a message


def peeking(private, problem, message, minibatch, noise, facts):
    """Return the mean of a local step with that of all machines' features."""
    mean = LocalPrivacy.of_batch(private, problem, message, minibatch, noise, facts)
    return jax.tree.map(lambda leaf: leaf + 1e-3 * jnp.mean(problem.pool.features), mean)


def moved_by_the_sum(self, state):
    """Return the reported point, moved by the un-noised running sum."""
    return jax.tree.map(lambda w, q: w - 0.1 * q, DPMu2.output(self, state), state.memory.q)


def moved_by_the_machines(self, state):
    """Return the reported point, moved by the mean of what the machines hold."""
    return jax.tree.map(lambda w, rows: w - 0.1 * jnp.mean(rows, axis=0), Scaffold.output(self, state), state.own)


SUM_REPORTED, HELD_REPORTED = buggy(DPMu2, output=moved_by_the_sum), buggy(Scaffold, output=moved_by_the_machines)
FAULTS = {
    "a clip of every coordinate": (BOUND, planted(NoisySGD(**OF_POOL), CLIPPED_BY_COORDINATE), POOL, SOME_MACHINES),
    "half of the sensitivity": (BOUND, planted(FedAvg(**OF_MACHINES), HALF_THE_MOVE), SHARES, PARTIAL),
    "a number after the clip": (BOUND, planted(FedAvg(**OF_MACHINES), unsealed(sent=longer)), SHARES, PARTIAL),
    "steps without a clip": (BOUND, planted(FedAvg(**OF_STEPS), UNCLIPPED), SHARES, PARTIAL),
    "the mean of the cohort": (ISOLATED, planted(NoisySGD(**OF_POOL), CENTRED), POOL, SOME_MACHINES),
    "records of all machines": (ISOLATED, planted(FedAvg(**OF_MACHINES), unsealed(of_batch=peeking)), SHARES, PARTIAL),
    "the un-noised sum": (REPLAYED, SUM_REPORTED(**OF_POOL), POOL, SOME_MACHINES),
    "what machines hold": (REPLAYED, HELD_REPORTED(**OF_MACHINES), SHARES, PARTIAL),
}
QUICK = ["a number after the clip", "the mean of the cohort", "the un-noised sum"]  # one for each property
TEXTS = {
    BOUND: "a message's norm must be at most",
    ISOLATED: "other data of machine . must change no other machine's message",
    REPLAYED: "the server's states must follow from the released numbers",
}


@pytest.mark.parametrize("fault", sparing(list(FAULTS), QUICK))
def test_a_fault_is_found_by_its_property(fault):
    name, *settings = FAULTS[fault]
    with pytest.raises(AssertionError, match=TEXTS[name]):
        PROPERTIES[name](Trial(*settings))


@pytest.mark.parametrize("name", sparing(list(OF_RELEASES), [BOUND]))
@pytest.mark.parametrize(
    ("algorithm", "settings"),
    [
        (FedDyn(alpha=0.3), {"unit": "machine", "update_clip": 0.1, "trust": "none"}),
        (FedExP(local=MOMENTUM), {"unit": "machine", "update_clip": 0.1}),
        (MimeLite(local=MOMENTUM), {"unit": "record", "clip": 0.3}),
    ],
    ids=["FedDyn", "FedExP", "MimeLite"],
)
def test_algorithms_of_local_work_hold(algorithm, settings, name):
    privacy = LocalPrivacy(work=LocalEpochs(1, 3), **settings)
    method = Protocol(algorithm, privacy=privacy, noise_std=0.4, step_size=0.2)
    assert PROPERTIES[name](Trial(method, SHARES, PARTIAL)) is None
