"""Any algorithm with noise on means over machines' own records: equal to minibatch SGD, and refused where unproved."""

from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest
from cases import COMPILED, PARTIAL, SHARES, sparing
from flax import struct

from fedprivjax import (
    AcceleratedMinibatchSGD,
    Algorithm,
    Ball,
    Full,
    NoisyMessages,
    NoisyMinibatchSGD,
    NoisyRecords,
    NoisySGD,
    Protocol,
    Refusal,
    Softmax,
    draw_plan,
    gradient,
    linear_problem,
    simulate,
    transcript,
)
from fedprivjax.checks.numbers import with_numbers
from fedprivjax.method.linear import Linear
from fedprivjax.method.protocol import Pair
from fedprivjax.method.small_form import scaled_down
from fedprivjax.privacy.calibration import calibrate
from fedprivjax.privacy.event_on_plan import event_of
from fedprivjax.privacy.optional_members import with_relation
from fedprivjax.privacy.relations import ADD_OR_REMOVE
from fedprivjax.protocols.accelerated_minibatch_sgd import AcceleratedSGD
from fedprivjax.protocols.dp_mu2 import Mu2
from fedprivjax.protocols.noisy_minibatch_sgd import MinibatchSGD
from fedprivjax.protocols.noisy_sgd import SGD
from fedprivjax.testing import check_protocol

ROUNDS, DELTA = 6, 1e-5
POISSON = {"clip": 0.5, "batch": 4, "sampler": "poisson"}
ADDED = {**POISSON, "rate": 0.25, "relation": ADD_OR_REMOVE}
EPSILONS = (4.0, 2.0, 1.0, 3.0)
STEP = {"step_size": 0.1}


def numbers(tree):
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])


def run(protocol, problem=SHARES, **options):
    return simulate(protocol, problem, PARTIAL, rounds=ROUNDS, seed=3, **options)


def composed(epsilon=4.0, algorithm=None, **settings):
    made = MinibatchSGD() if algorithm is None else algorithm
    return Protocol(made, privacy=NoisyRecords(**settings), epsilon=epsilon, **STEP)


SETTINGS = {
    "subset": {"batch": 4},
    "poisson": POISSON,
    "added": ADDED,
    "full": {"clip": 0.5, "sampler": "full"},
    "disjoint": {"batch": 3, "sampler": "disjoint"},
    "relative": {"clip": 0.5, "batch": 4, "relative_privacy": EPSILONS},
    "shuffler": {"batch": 1, "trust": "shuffler"},
    "advanced": {"batch": (4, 3, 3, 4), "noise_rule": "advanced"},
}


@pytest.mark.parametrize("kind", sparing([*SETTINGS], ["shuffler"]))
def test_a_pair_equals_minibatch_sgd_bit_for_bit(kind):
    pair, method = composed(**SETTINGS[kind]), NoisyMinibatchSGD(epsilon=4.0, **SETTINGS[kind], **STEP)
    ours, theirs = run(pair), run(method)
    np.testing.assert_array_equal(numbers(ours.params), numbers(theirs.params))
    assert ours.protocol.noise_std == theirs.protocol.noise_std > 0
    assert str(ours.guarantee) == str(theirs.guarantee)
    assert ours.protocol.rounds.costs(SHARES) == theirs.protocol.rounds.costs(SHARES)
    views = [transcript(one, SHARES, PARTIAL, rounds=ROUNDS, seed=3) for one in (pair, method)]
    np.testing.assert_array_equal(views[0].messages, views[1].messages)
    np.testing.assert_array_equal(views[0].queries, views[1].queries)


def test_each_machine_has_its_own_epsilon():
    pair = composed(epsilon=list(EPSILONS), clip=0.5, batch=4)
    method = NoisyMinibatchSGD(epsilon=EPSILONS, clip=0.5, batch=4, **STEP)
    plan = draw_plan(SHARES, PARTIAL, ROUNDS, 3, sampler=pair.minibatches)
    ours, theirs = (calibrate(one, SHARES, plan, delta=DELTA) for one in (pair, method))
    assert ours.noise_std == theirs.noise_std
    assert ours.epsilon == theirs.epsilon == EPSILONS
    each = event_of(ours, SHARES, plan).epsilons(DELTA).each
    assert (each <= np.array(EPSILONS) * (1 + 1e-6)).all()
    assert (each > 0.5 * np.array(EPSILONS) * (plan.schedule.total > 0)).sum() == (plan.schedule.total > 0).sum() == 3
    np.testing.assert_array_equal(each, event_of(theirs, SHARES, plan).epsilons(DELTA).each)
    np.testing.assert_array_equal(numbers(run(pair).params), numbers(run(method).params))


@pytest.mark.slow
def test_algorithms_of_one_message_run_with_both_privacy_objects():
    with_messages = Protocol(SGD(), privacy=NoisyMessages(clip=0.5), epsilon=4.0, **STEP)
    assert type(with_messages) is Pair
    ours = run(composed(algorithm=SGD(), **POISSON))
    assert ours.guarantee.epsilon == run(composed(**POISSON)).guarantee.epsilon
    accelerated = run(composed(algorithm=AcceleratedSGD(), batch=4))
    known = run(AcceleratedMinibatchSGD(epsilon=4.0, batch=4, **STEP))
    np.testing.assert_array_equal(numbers(accelerated.params), numbers(known.params))


@struct.dataclass
class Storm(Algorithm):
    """The gradient at two points, as one message."""

    a: Any = 0.3

    def init(self, public, step):
        return public.start, public.start

    def message(self, server, t) -> Linear:
        return gradient(server[0]) - (1 - self.a) * gradient(server[1])

    def serve(self, server, read, at):
        return at.project(jax.tree.map(lambda w, g: w - at.step * g, server[0], read)), server[0]

    def point(self, server):
        return server[0]


def test_a_combination_needs_a_clip_if_it_is_private():
    assert 0 < run(composed(algorithm=Storm(), **POISSON)).guarantee.epsilon <= 4.0
    with pytest.raises(Refusal, match="clip must be set, because a message is a combination of gradients"):
        run(composed(algorithm=Storm(), batch=4))
    with pytest.raises(Refusal, match="clip must be set, because a message is a combination of gradients"):
        run(Protocol(Storm(), privacy=NoisyRecords(batch=4), noise_std=0.3, **STEP))
    assert np.isinf(run(composed(algorithm=Storm(), epsilon=np.inf, batch=4)).guarantee.epsilon)


@struct.dataclass
class Louder(Storm):
    """A gradient when it is read on the host, and 100 times the gradient when it is planned for a run."""

    factor: Any = None

    def planned(self, rounds, step):
        return self if rounds == 1 else replace(self, factor=100.0)

    def message(self, server, t):
        return gradient(server[0]) if self.factor is None else self.factor * gradient(server[0])


def test_a_message_that_gets_a_coefficient_later_is_refused():
    with pytest.raises(Refusal, match="message of Louder must be a gradient without a coefficient in every round"):
        run(composed(algorithm=Louder(), batch=4))


def test_a_sum_is_refused():
    with pytest.raises(Refusal, match=r"reads must be Mean\(\) with NoisyRecords"):
        run(composed(algorithm=Mu2(), **POISSON))


def test_a_stated_lipschitz_constant_is_enforced():
    """A false constant is too small, and a record's gradient is clipped to it in a private run only."""
    features = np.full((2, 4, 3), 5.0, np.float32)
    problem = linear_problem(features, np.zeros((2, 4), int), Softmax(3), lipschitz=[0.1, 0.05], constraint=Ball(1.0))
    pair = Protocol(MinibatchSGD(), privacy=NoisyRecords(sampler="full"), noise_std=1e-9, **STEP)
    sent = [
        np.linalg.norm(transcript(one, problem, Full(2), rounds=1).messages, axis=2).max()
        for one in (pair, replace(pair, noise_std=0.0))
    ]
    assert sent[0] == pytest.approx(0.1, rel=1e-4)
    assert sent[1] > 1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: NoisyRecords(batch=4, relation=ADD_OR_REMOVE), "relation must be 'replace-one' for records with"),
        (lambda: NoisyRecords(batch=2, trust="shuffler"), "batch must be 1 with a shuffler"),
        (lambda: NoisyRecords(batch=4, trust="server"), "unknown trust 'server'"),
        (lambda: NoisyRecords(batch=4, noise_rule="paper_moments"), "unknown noise_rule 'paper_moments'"),
        (lambda: NoisyRecords(batch=4, clip=0.0), "clip must be positive"),
        (lambda: composed(epsilon=[1.0, np.inf], batch=4), "epsilon must be finite on all machines or on none"),
        (lambda: composed(epsilon=EPSILONS, batch=4, relative_privacy=EPSILONS), "relative_privacy or an epsilon"),
        (lambda: Protocol(SGD(), privacy=NoisySGD(mu=1.0)), "privacy must be a NoisyMessages or a NoisyRecords"),
    ],
)
def test_invalid_settings_are_refused(make, message):
    with pytest.raises(Refusal, match=message):
        make()


def test_it_is_sealed():
    with pytest.raises(Refusal, match="NoisyRecords must not be subclassed"):

        class Quiet(NoisyRecords):  # type: ignore[misc]
            pass


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["disjoint", "added"])
def test_a_pair_keeps_the_contract(kind):
    check_protocol(composed(**SETTINGS[kind]), SHARES, properties=None if kind == "added" else COMPILED)


def test_its_relation_can_be_restated():
    pair = composed(**ADDED)
    assert with_relation(pair, "replace-one").privacy.relation == "replace-one"
    with pytest.raises(Refusal, match="relation must be left out for SGD"):
        with_relation(Protocol(SGD(), privacy=NoisyMessages(clip=1.0), mu=1.0, **STEP), ADD_OR_REMOVE)
    each = composed(epsilon=EPSILONS, **{**ADDED, "relation": "replace-one"})
    with pytest.raises(Refusal, match="relation must stay 'replace-one' with an ε of each machine"):
        with_relation(each, ADD_OR_REMOVE)


def test_its_clip_can_be_swept():
    pair = composed(**POISSON)
    assert with_numbers(pair, {"privacy.clip": 0.25}).privacy.clip == 0.25
    assert scaled_down(pair, 3).minibatches.batch == 3
