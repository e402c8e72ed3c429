"""Records that may be added or removed: Poisson samples of a public rate, their sensitivity and ε, and refusals."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import sparing
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from dp_accounting.pld import PLDAccountant
from dp_accounting.privacy_accountant import NeighboringRelation
from frequencies import within

from fedprivjax import (
    AcceleratedMinibatchSGD,
    FedAvg,
    Full,
    NoisyMinibatchSGD,
    Refusal,
    Scaffold,
    Softmax,
    draw_plan,
    linear_problem,
)
from fedprivjax.method.algorithm import Mean
from fedprivjax.method.linear import gradient
from fedprivjax.method.local_data import Minibatch
from fedprivjax.method.release import Limits
from fedprivjax.method.round import RoundInputs
from fedprivjax.plan.samplers import LocalSteps, Poisson, as_sampler
from fedprivjax.privacy.accountants.records import Sampled
from fedprivjax.privacy.accountants.sampled import SampledReleases, sampled_epsilon
from fedprivjax.privacy.calibration import calibrate, guarantee
from fedprivjax.privacy.event_on_plan import event_of
from fedprivjax.privacy.relations import ADD_OR_REMOVE, REPLACE_ONE
from fedprivjax.problem.random_keys import random_key
from fedprivjax.protocols.released import ReleasedMinibatchSGD

RATE, BATCH, CLIP, STEPS, ROUNDS, DELTA = 0.2, 3, 0.5, 2, 10, 1e-5


def problem_of(records):
    features = np.eye(4, dtype=np.float32)[np.arange(2 * records) % 4].reshape(2, records, 4)
    return linear_problem(features, np.zeros((2, records), int), Softmax(2))


def method(kind=FedAvg, relation=ADD_OR_REMOVE, **settings):
    given = {"local_steps": STEPS, "sampler": "poisson", "batch": BATCH, "rate": RATE, "clip": CLIP, "step_size": 0.1}
    return kind(**{"unit": "record", "relation": relation, **given, **settings})


def plan_of(problem, one):
    return draw_plan(problem, Full(2), ROUNDS, 1, sampler=one.minibatches)


@pytest.mark.parametrize("kind", sparing([FedAvg, Scaffold], [FedAvg]))
@pytest.mark.parametrize("relation", [REPLACE_ONE, ADD_OR_REMOVE])
def test_calibrated_noise_has_the_target_by_dp_accounting(kind, relation):
    problem, one = problem_of(12), method(kind, relation)
    found = calibrate(one, problem, plan_of(problem, one), epsilon=2.0, delta=DELTA)
    tree = SelfComposedDpEvent(
        PoissonSampledDpEvent(RATE, GaussianDpEvent(found.noise_std * BATCH / CLIP)), ROUNDS * STEPS
    )
    theirs = NeighboringRelation.REPLACE_ONE if relation == REPLACE_ONE else NeighboringRelation.ADD_OR_REMOVE_ONE
    assert PLDAccountant(theirs).compose(tree).get_epsilon(DELTA) == pytest.approx(2.0, rel=1e-3)
    stated = guarantee(found, problem, plan_of(problem, one), DELTA)
    assert stated.relation == relation
    assert stated.unit == "one record of one machine"


def test_nothing_depends_on_the_number_of_records():
    events = []
    for records in (2, 12):
        problem, one = problem_of(records), method(noise_std=1.0)
        events.append(event_of(one, problem, plan_of(problem, one)))
    assert events[0].epsilon(DELTA) == events[1].epsilon(DELTA)
    assert str(events[0]) == str(events[1])
    assert "probability 0.2 of a record and the divisor 3" in str(events[0].guarantee(DELTA))


def test_each_record_is_used_with_the_public_rate():
    problem, one = problem_of(7), method()
    weights = np.asarray(draw_plan(problem, Full(2), 1500, 1, sampler=one.minibatches).weights)
    count = np.count_nonzero(weights.reshape(1500, 2, STEPS, -1), axis=3).ravel().astype(float)
    assert within(count, 7 * RATE)
    assert not within(count, BATCH), "the rate is not batch divided by records"
    assert within(count**2, 7 * RATE * (1 - RATE) + (7 * RATE) ** 2)


def largest_move(divisor):
    """Return the largest change of a step's mean gradient if one of three sampled records is left out."""
    features = 100 * np.eye(4, dtype=np.float32)[None, :3]
    problem = linear_problem(features, np.zeros((1, 3), int), Softmax(2))
    w = jax.tree.map(jnp.zeros_like, problem.start)

    def gradient(used):
        minibatch = Minibatch(problem, jnp.arange(3), jnp.asarray(used, jnp.float32), jnp.int32(0), jnp.int32(0))
        mean = minibatch.gradient(w, divisor=divisor, clip=CLIP)
        return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(mean)])

    pairs = [((1, 1, 1), (1, 1, 0)), ((1, 1, 0), (1, 0, 0)), ((1, 0, 0), (0, 0, 0))]
    return max(np.linalg.norm(gradient(one) - gradient(other)) for one, other in pairs)


def test_a_record_moves_a_step_by_the_claimed_sensitivity():
    problem, one = problem_of(12), method(noise_std=1.0)
    claimed = event_of(one, problem, plan_of(problem, one)).sensitivity
    assert largest_move(one.privacy.step_divisor) == pytest.approx(claimed, rel=1e-4)
    assert largest_move(None) > 1.4 * claimed, "planted fault: the divisor is the sample's own size"


EPOCHS = {"local_steps": None, "local_epochs": 1, "sampler": "subset"}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rate": None}, "relation must be 'replace-one' for records with Poisson"),
        ({"sampler": "subset", "rate": None}, "relation must be 'replace-one' for records with Subset"),
        ({**EPOCHS, "rate": None}, "Use sampler = 'poisson' with a batch and a public rate"),
        (EPOCHS, "rate must be left out with local_epochs"),
        ({"sampler": "subset"}, "rate must be left out, or given with sampler = 'poisson', got 0.2 with 'subset'"),
        ({"rate": 1.5}, "rate must be a probability above 0 and at most 1, got 1.5"),
        ({"unit": None, "clip": None}, "relation must be 'replace-one' with unit = None"),
    ],
)
def test_what_depends_on_the_number_of_records_is_refused(settings, message):
    with pytest.raises(Refusal, match=message):
        method(**settings)


# ---- minibatch methods


def minibatches(kind=NoisyMinibatchSGD, relation=ADD_OR_REMOVE, **settings):
    given = {"sampler": "poisson", "batch": BATCH, "rate": RATE, "clip": CLIP, "step_size": 0.1}
    return kind(**{"relation": relation, **given, **settings})


def uneven(*sizes):
    present = np.arange(max(sizes)) < np.array(sizes)[:, None]
    table = np.where(present, np.cumsum(present).reshape(present.shape) - 1, -1)
    features = np.eye(4, dtype=np.float32)[np.arange(sum(sizes)) % 4]
    return linear_problem(features, np.zeros(sum(sizes), int), Softmax(2), partition_table=table)


@pytest.mark.parametrize(
    ("kind", "relation", "epsilon"),
    [
        pytest.param(NoisyMinibatchSGD, ADD_OR_REMOVE, 2.0, marks=pytest.mark.slow),
        pytest.param(NoisyMinibatchSGD, ADD_OR_REMOVE, (2.0, 1.0), marks=pytest.mark.slow),
        pytest.param(AcceleratedMinibatchSGD, ADD_OR_REMOVE, 2.0, marks=pytest.mark.slow),
        pytest.param(NoisyMinibatchSGD, REPLACE_ONE, (2.0, 1.0), marks=pytest.mark.slow),
    ],
)
def test_calibrated_noise_of_minibatches_has_the_target_by_dp_accounting(kind, relation, epsilon):
    problem, one = problem_of(12), minibatches(kind, relation, epsilon=epsilon)
    found = calibrate(one, problem, plan_of(problem, one), delta=DELTA)
    noise = found.noise_std * np.asarray(found.records.relative(problem, ROUNDS))
    theirs = NeighboringRelation.REPLACE_ONE if relation == REPLACE_ONE else NeighboringRelation.ADD_OR_REMOVE_ONE
    for std, target in zip(noise, np.broadcast_to(epsilon, 2), strict=True):
        tree = SelfComposedDpEvent(PoissonSampledDpEvent(RATE, GaussianDpEvent(std * BATCH / CLIP)), ROUNDS)
        assert PLDAccountant(theirs).compose(tree).get_epsilon(DELTA) == pytest.approx(target, rel=1e-3)
    stated = guarantee(found, problem, plan_of(problem, one), DELTA)
    assert (stated.relation, stated.unit) == (relation, "one record of one machine")
    assert ("public constants" in str(stated)) == (relation == ADD_OR_REMOVE)
    results = {one.accountant: one.epsilon for one in stated.event.accountant_results(DELTA)}
    assert results["dp-accounting PLD"] == pytest.approx(stated.epsilon, rel=2e-3)


@pytest.mark.parametrize("kind", [NoisyMinibatchSGD, AcceleratedMinibatchSGD])
def test_noise_steps_and_epsilon_of_minibatches_do_not_depend_on_numbers_of_records(kind):
    found = []
    for sizes in ((4, 4), (12, 5)):
        problem, one = uneven(*sizes), minibatches(kind, epsilon=2.0)
        calibrated = calibrate(one, problem, plan_of(problem, one), delta=DELTA)
        event = event_of(calibrated, problem, plan_of(problem, one))
        noise = calibrated.noise_std * calibrated.records.relative(problem, ROUNDS)
        found.append((event.epsilon(DELTA), str(event), noise.tolist()))
    assert found[0] == found[1]
    assert "public constants" in str(event.guarantee(DELTA))
    one = minibatches(kind, REPLACE_ONE, epsilon=2.0, rate=None)
    assert np.ptp(one.records.relative(uneven(12, 5), ROUNDS)) > 0.1, "under replace-one, sizes are public and used"


@pytest.mark.parametrize(
    ("relation", "rounds", "epsilon"),
    [
        (ADD_OR_REMOVE, 3515, 1.134),
        pytest.param(REPLACE_ONE, 3515, 1.928, marks=pytest.mark.slow),
        pytest.param(ADD_OR_REMOVE, 14062, 2.382, marks=pytest.mark.slow),
        pytest.param(REPLACE_ONE, 14062, 4.221, marks=pytest.mark.slow),
    ],
)
def test_known_values_of_minibatch_sgd(relation, rounds, epsilon):
    problem = linear_problem(np.ones((1, 60_000, 1), np.float32), np.zeros((1, 60_000), int), Softmax(2))
    one = minibatches(relation=relation, batch=256, rate=256 / 60_000, noise_std=1.1 * CLIP / 256)
    plan = draw_plan(problem, Full(1), rounds, 1, sampler=one.minibatches)
    assert event_of(one, problem, plan).epsilon(DELTA) == pytest.approx(epsilon, rel=1e-3)


def test_orders_that_the_renyi_accountant_leaves_out_are_not_logged(caplog):
    results = Sampled(Poisson(2, rate=0.1), relation=ADD_OR_REMOVE).accountant_results(0.7765, 1, 2, 5, delta=DELTA)
    assert [one.accountant for one in results][:2] == ["dp-accounting PLD", "dp-accounting RDP"]
    assert not caplog.records


def test_a_record_moves_a_minibatch_message_by_the_claimed_sensitivity():
    features = 100 * np.eye(4, dtype=np.float32)[None, :3]
    problem = linear_problem(features, np.zeros((1, 3), int), Softmax(2))
    one = minibatches(noise_std=1.0)
    plan = draw_plan(problem, Full(1), ROUNDS, 1, sampler=one.minibatches)
    at_zero, silent = gradient(jax.tree.map(jnp.zeros_like, problem.start)), jnp.zeros(problem.dimension)

    def message(used, divisor=BATCH):
        weights = jnp.asarray([used], jnp.float32) / divisor
        inputs = RoundInputs(1, jnp.arange(3)[None], jnp.zeros(1, int), jnp.ones(1, int), weights, jnp.ones(1))
        total = one.privacy.release(problem, at_zero, inputs, silent, (), Limits(Mean(), None), random_key(0)).read
        return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(total)])

    claimed = event_of(one, problem, plan).sensitivity
    pairs = [((1, 1, 1), (1, 1, 0)), ((1, 1, 0), (1, 0, 0)), ((1, 0, 0), (0, 0, 0))]
    assert max(np.linalg.norm(message(a) - message(b)) for a, b in pairs) == pytest.approx(claimed, rel=1e-4)
    own = [np.linalg.norm(message(a, sum(a)) - message(b, max(sum(b), 1))) for a, b in pairs]
    assert max(own) > 1.4 * claimed, "planted fault: the divisor is the sample's own size"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rate": None}, "relation must be 'replace-one' for records with Poisson"),
        ({"sampler": "subset", "rate": None}, "relation must be 'replace-one' for records with Subset"),
        ({"sampler": "subset"}, "rate must be left out, or given with sampler = 'poisson', got 0.2 with 'subset'"),
        ({"noise_rule": "advanced"}, "noise_rule must be 'accountant' with relation = 'add-or-remove-one'"),
        ({"delta": "records"}, "delta must be a number with relation = 'add-or-remove-one'"),
        ({"kind": ReleasedMinibatchSGD, "clip_at": "message"}, "relation must be 'replace-one' with messages that are"),
        ({"relation": "other"}, "unknown relation 'other'"),
    ],
)
def test_minibatches_that_depend_on_the_number_of_records_are_refused(settings, message):
    with pytest.raises(Refusal, match=message):
        minibatches(**{"epsilon": 2.0, **settings})


def test_weights_by_size_are_refused_for_added_records():
    problem, one = replace(uneven(12, 5), machine_weights="sizes"), minibatches(epsilon=2.0)
    with pytest.raises(Refusal, match="machine_weights must be a list of public numbers under add-or-remove-one"):
        calibrate(one, problem, plan_of(problem, one), delta=DELTA)


def test_names_and_objects_give_the_same_sampler():
    assert method().minibatches == LocalSteps(STEPS, Poisson(BATCH, RATE))
    assert as_sampler("poisson", 3, 0.2) == Poisson(3, rate=0.2)


def test_little_noise_on_poisson_samples_states_no_finite_epsilon():
    """An answer comes at once, without a grid of all losses."""
    releases = SampledReleases(Poisson(4), records=40, rounds=3, delta=1e-5)
    assert sampled_epsilon(1e-6, releases) == np.inf
    assert 100 < sampled_epsilon(0.05, releases) < 5000
