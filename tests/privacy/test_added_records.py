"""Records that may be added or removed: Poisson samples of a public rate, their sensitivity and ε, and refusals."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from dp_accounting.pld import PLDAccountant
from dp_accounting.privacy_accountant import NeighboringRelation
from frequencies import within

from fedprivjax import FedAvg, Full, Refusal, Scaffold, Softmax, draw_plan, linear_problem
from fedprivjax.method.local_data import Minibatch
from fedprivjax.plan.samplers import LocalSteps, Poisson, as_sampler
from fedprivjax.privacy.accountants.sampled import SampledReleases, sampled_epsilon
from fedprivjax.privacy.calibration import calibrate, event_of, guarantee
from fedprivjax.privacy.terms import ADD_OR_REMOVE, REPLACE_ONE

RATE, BATCH, CLIP, STEPS, ROUNDS, DELTA = 0.2, 3, 0.5, 2, 10, 1e-5


def problem_of(records):
    features = np.eye(4, dtype=np.float32)[np.arange(2 * records) % 4].reshape(2, records, 4)
    return linear_problem(features, np.zeros((2, records), int), Softmax(2))


def method(kind=FedAvg, relation=ADD_OR_REMOVE, **settings):
    given = {"local_steps": STEPS, "sampler": "poisson", "batch": BATCH, "rate": RATE, "clip": CLIP, "step_size": 0.1}
    return kind(**{"unit": "record", "relation": relation, **given, **settings})


def plan_of(problem, one):
    return draw_plan(problem, Full(2), ROUNDS, 1, sampler=one.minibatches)


@pytest.mark.parametrize("kind", [FedAvg, Scaffold])
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
    weights = draw_plan(problem, Full(2), 1500, 1, sampler=one.minibatches).weights
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
        mean = minibatch.gradient(w, divisor=divisor(minibatch), clip=CLIP)
        return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(mean)])

    pairs = [((1, 1, 1), (1, 1, 0)), ((1, 1, 0), (1, 0, 0)), ((1, 0, 0), (0, 0, 0))]
    return max(np.linalg.norm(gradient(one) - gradient(other)) for one, other in pairs)


def test_a_record_moves_a_step_by_the_claimed_sensitivity():
    problem, one = problem_of(12), method(noise_std=1.0)
    claimed = event_of(one, problem, plan_of(problem, one)).sensitivity
    assert largest_move(one.divisor) == pytest.approx(claimed, rel=1e-4)
    assert largest_move(lambda minibatch: None) > 1.4 * claimed, "planted fault: the divisor is the sample's own size"


EPOCHS = {"local_steps": None, "local_epochs": 1, "sampler": "subset"}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rate": None}, "relation must be 'replace-one' for records with Poisson"),
        ({"sampler": "subset", "rate": None}, "relation must be 'replace-one' for records with Subset"),
        ({**EPOCHS, "rate": None}, "Use local_steps with sampler = 'poisson'"),
        (EPOCHS, "rate must be left out with local_epochs"),
        ({"sampler": "subset"}, "rate must be left out, or given with sampler = 'poisson', got 0.2 with 'subset'"),
        ({"rate": 1.5}, "rate must be a probability above 0 and at most 1, got 1.5"),
        ({"unit": None, "clip": None}, "relation must be 'replace-one' with unit = None"),
    ],
)
def test_what_depends_on_the_number_of_records_is_refused(settings, message):
    with pytest.raises(Refusal, match=message):
        method(**settings)


def test_names_and_objects_give_the_same_sampler():
    assert method().minibatches == LocalSteps(STEPS, Poisson(BATCH, RATE))
    assert as_sampler("poisson", 3, 0.2) == Poisson(3, rate=0.2)


def test_little_noise_on_poisson_samples_states_no_finite_epsilon():
    """An answer comes at once, without a grid of all losses."""
    releases = SampledReleases(Poisson(4), records=40, rounds=3, delta=1e-5)
    assert sampled_epsilon(1e-6, releases) == np.inf
    assert 100 < sampled_epsilon(0.05, releases) < 5000
