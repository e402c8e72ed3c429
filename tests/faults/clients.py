"""Planted faults in FedAvg and SCAFFOLD, with the brute force and the distributions that find them."""

from dataclasses import dataclass, replace
from unittest.mock import patch

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from neighbours import KEY
from restating import buggy, planted, states, unsealed

from fedprivjax import (
    FedAvg,
    FedExP,
    Full,
    Grouped,
    LinearLoss,
    LocalPrivacy,
    Logistic,
    Protocol,
    Scaffold,
    Varying,
    draw_plan,
    linear_problem,
    ready,
    transcript,
)
from fedprivjax.engine.prepare import round_inputs
from fedprivjax.method import local_rounds
from fedprivjax.method.work_rounds import WorkRounds
from fedprivjax.plan.samplers import LocalEpochs
from fedprivjax.protocols.scaffold import ControlVariates

CLIP = 0.3
MACHINE = {"unit": "machine", "update_clip": CLIP, "local_epochs": 1, "batch": 3, "step_size": 5.0}
RECORD = {"unit": "record", "clip": CLIP, "local_epochs": 1, "batch": 2, "step_size": 1.0, "noise_std": 1e-9}


def half_the_move(private, facts, noise_std):
    event = LocalPrivacy.event(private, facts, noise_std)
    return replace(event, sensitivity=event.sensitivity / 2)


def counted_once(private, facts, noise_std):
    event = LocalPrivacy.event(private, facts, noise_std)
    return replace(event, exposure=Grouped.of(np.ones(facts.plan.size.machines)), releases=None)


HALF_THE_MOVE = unsealed(event=half_the_move)  # a machine is claimed to move its update by C where it is replaced
COUNTED_ONCE = unsealed(event=counted_once)  # a machine's updates of all its rounds are counted as one
# the sum of clipped updates is divided by the number of machines that came
OWN_COHORT = unsealed(divisor=lambda self, weight, inputs: jnp.where(weight > 0, weight, 1.0))
OWN_LENGTH = unsealed(step_divisor=None)  # the last, shorter batch of an epoch is divided by its own number of records


class QuietControl(WorkRounds):
    """Control variates are means of the gradients without noise."""

    def client(self, server, own, data, noise, key):
        (update, _), _, info = super().client(server, own, data, noise, key)
        change = super().client(server, own, data, None, key)[0][1]
        return (update, change), jax.tree.map(jnp.add, own, change), info


QUIET_CONTROL = buggy(Scaffold, rounds=property(QuietControl))


@struct.dataclass(kw_only=True)
class KeptTwice(ControlVariates):
    """A machine adds the sent change to its control variate twice. This is an error of the algorithm, not a leak."""

    def keep(self, own, message, work):
        return super().keep(super().keep(own, message, work), message, work)


@states("settled", "uses", "of_step", "divisors")
@dataclass(frozen=True)
class OneOrder(LocalEpochs):
    """The order of the first round's epochs in all rounds."""

    def draw(self, rows, schedule, rng, stored=False):
        places, used = super().draw(rows, schedule, rng, stored)
        return np.broadcast_to(places[:1], places.shape), used


# a message is normals of the key of the machine's noise, or of its encoder's key
OF_THE_NOISE = unsealed(
    sent=lambda private, message, info, public, noise, facts: jax.random.normal(noise[0], message.shape)
)
OF_THE_ENCODER = unsealed(encoded=lambda private, message, key, facts: jax.random.normal(key, message.shape))


class Score(LinearLoss):
    """The score itself: the gradient is the record, at any point."""

    def value(self, score, label):
        return score


def largest_update(protocol):
    """Return the claimed sensitivity of one release, and the largest change of the server's point by a machine.

    One to three machines of four records take part. In the tested round only the machine comes whose records are
    replaced by the opposite ones.
    """
    features = np.random.default_rng(5).normal(size=(3, 4, 3)).astype(np.float32)

    def after(sign):
        x = features.copy()
        x[alone] *= 100 * sign
        problem = linear_problem(x, np.ones((3, 4)), Score())
        start = ready(protocol, problem, scheme, rounds=4, seed=3, metrics=[])
        at = jax.tree.map(lambda leaf: jnp.asarray(leaf)[when], start.inputs)
        state = start.protocol.init(start.problem, start.plan.size, KEY)
        state = start.protocol.round(start.problem, state, at, None, KEY)[0]
        return np.asarray(start.protocol.output(state)), start.event.sensitivity

    scheme = Varying.between(3, 1, 3)
    schedule = draw_plan(linear_problem(features, np.ones((3, 4)), Score()), scheme, 4, seed=3).schedule
    when = int(np.argmin(schedule.present.sum(axis=1)))
    assert schedule.present[when].sum() == 1
    alone = int(schedule.participants[when][schedule.present[when]][0])
    (one, claimed), (other, _) = after(1), after(-1)
    return claimed, float(np.linalg.norm(one - other))


def largest_step(protocol):
    """Return the claimed sensitivity of a local step, and the largest change by one of 2B + 1 records."""
    features = np.random.default_rng(5).normal(size=(5, 3)).astype(np.float32)

    def steps(record, factor):
        x = features.copy()
        x[record] *= factor
        problem = linear_problem(x, np.ones(5), Score(), partition_table=np.arange(5)[None])
        claimed = ready(protocol, problem, Full(1), rounds=1, seed=2).event.sensitivity
        return transcript(protocol, problem, Full(1), rounds=1, seed=2).steps[0, 0], claimed

    pairs = [(steps(record, 50.0), steps(record, -50.0)) for record in range(5)]
    moved = max(np.linalg.norm(one[0] - other[0], axis=1).max() for one, other in pairs)
    return pairs[0][0][1], float(moved)


def controls(protocol, samples, machines=3, steps=2):
    """Return the control variates that machines send in round 1 where all gradients are 0, [machines, samples]."""
    problem = linear_problem(np.zeros((machines, 2 * steps, samples)), np.zeros((machines, 2 * steps), int), Logistic())
    plan = draw_plan(problem, Full(machines), 1, sampler=protocol.minibatches)
    at = jax.tree.map(lambda leaf: leaf[0], round_inputs(plan))
    noise = protocol.noise((), (KEY, np.ones(machines, np.float32)), None)[1]
    sent = protocol.rounds.messages(problem, protocol.init(problem, plan.size, KEY), at, noise, KEY)
    return np.asarray(sent[1])


def places(sampler, samples, rounds=3, records=4):
    """Return the place of each machine's first record in its epochs, with mean 0 and variance 1: [rounds, machines]."""
    rows, rng = np.arange(samples * records).reshape(samples, records), np.random.default_rng(3)
    order, _ = sampler.draw(rows, Full(samples).draw(rounds, rng), rng)
    return (np.argmax(order == 0, axis=2) - (records - 1) / 2) / np.sqrt((records**2 - 1) / 12)


def keys_of_encoders(fold_in, samples):
    """Return normals of a machine's key of noise and of its encoder's, [2, samples]. `fold_in` is that of jax."""
    problem = linear_problem(np.zeros((1, 1, samples)), np.zeros((1, 1), int), Logistic())
    protocols = [planted(FedAvg(**RECORD), copy) for copy in (OF_THE_NOISE, OF_THE_ENCODER)]
    plan = draw_plan(problem, Full(1), 1, sampler=protocols[0].minibatches)
    at, sent = jax.tree.map(lambda leaf: leaf[0], round_inputs(plan)), []
    with patch.object(jax.random, "fold_in", fold_in):
        for protocol in protocols:
            noise = protocol.noise((), (KEY, np.ones(1, np.float32)), None)[1]
            state = protocol.init(problem, plan.size, KEY)
            sent.append(np.asarray(protocol.rounds.messages(problem, state, at, noise, KEY)[0], float))
    return np.array(sent)


def encoded_pair(encoder):
    privacy = LocalPrivacy(work=LocalEpochs(1, 3), unit="machine", update_clip=CLIP, encoder=encoder)
    return Protocol(FedExP(), privacy=privacy, epsilon=2.0, step_size=0.1)


def key_of_the_client(key, data, fold_in=jax.random.fold_in):
    """Return the key itself where an encoder's is asked for."""
    return key if data is local_rounds.ENCODING else fold_in(key, data)
