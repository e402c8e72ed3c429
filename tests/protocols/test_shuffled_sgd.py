from dataclasses import replace

import numpy as np
import pytest

from fedprivjax import (
    Full,
    NoisyMinibatchSGD,
    Refusal,
    Squared,
    Uniform,
    Varying,
    draw_plan,
    linear_problem,
    simulate,
    transcript,
)
from fedprivjax.plan.samplers import Subset
from fedprivjax.privacy.calibration import calibrate, guarantee
from fedprivjax.protocols.released import ReleasedMinibatchSGD

MACHINES, RECORDS, ROUNDS, DELTA = 20_000, 2, 20, 1e-3  # many enough to hide among
RNG = np.random.default_rng(0)
X = RNG.normal(size=(MACHINES, RECORDS, 2)).astype(np.float32)
X /= np.linalg.norm(X, axis=2, keepdims=True)
PROBLEM = linear_problem(X, X.sum(axis=2), Squared())
COMMON = {"batch": 1, "clip": 1.0, "step_size": 0.1}


def make(trust="shuffler", **settings):
    return NoisyMinibatchSGD(**{**COMMON, "trust": trust, **settings})


@pytest.mark.slow
def test_less_noise_for_the_same_epsilon():
    plan = draw_plan(PROBLEM, Full(MACHINES), ROUNDS, sampler=make().minibatches)
    ready = [calibrate(make(trust, epsilon=0.2), PROBLEM, plan, delta=DELTA) for trust in ("none", "shuffler")]
    assert ready[1].noise_std < 0.9 * ready[0].noise_std


def test_the_guarantee_is_of_the_shuffled_messages():
    run = simulate(
        make(epsilon=0.2),
        PROBLEM,
        Full(MACHINES),
        rounds=ROUNDS,
        delta=DELTA,
        eval_every=ROUNDS,
        metrics=["noise_norm"],
    )
    assert run.guarantee.epsilon == pytest.approx(0.2, rel=0.01)
    assert run.guarantee.epsilon <= 0.2
    assert run.guarantee.trust == "shuffler"
    assert "Theorem 3.2 (clones)" in run.guarantee.theorem
    assert any("participation is public" in str(text) for text in run.guarantee.assumptions)
    plain = guarantee(make("none", noise_std=run.protocol.noise_std), PROBLEM, run.plan, DELTA)
    assert plain.epsilon > 1.1 * run.guarantee.epsilon


@pytest.mark.slow
def test_a_machine_that_comes_seldom_spends_less():
    plan = draw_plan(PROBLEM, Uniform(MACHINES, 15_000), 20, sampler=make().minibatches)
    found = guarantee(make(noise_std=20.0), PROBLEM, plan, DELTA)
    often, seldom = plan.schedule.total.argmax(), plan.schedule.total.argmin()
    assert found.per_machine[seldom] < found.per_machine[often]


@pytest.mark.slow
def test_the_same_noise_makes_the_same_run():
    runs = [
        simulate(make(trust, noise_std=2.0), PROBLEM, Full(MACHINES), rounds=5, delta=DELTA, metrics=["noise_norm"])
        for trust in ("none", "shuffler")
    ]
    np.testing.assert_array_equal(*[run.params for run in runs])


@pytest.mark.slow
def test_the_transcript_is_shuffled():
    views = [
        transcript(make(trust, noise_std=2.0), PROBLEM, Full(MACHINES), rounds=3) for trust in ("none", "shuffler")
    ]
    plain, shuffled = (view.messages for view in views)
    assert not np.array_equal(plain, shuffled)
    for one, two in zip(plain, shuffled, strict=True):
        np.testing.assert_array_equal(one[np.lexsort(one.T)], two[np.lexsort(two.T)])
    places = [np.flatnonzero((two == one[0]).all(axis=1))[0] for one, two in zip(plain, shuffled, strict=True)]
    assert len(set(places)) == 3  # resampled in each round


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"batch": 2}, "batch must be 1 with a shuffler, resampled in each round, got 2"),
        ({"sampler": "disjoint"}, "batch must be 1 with a shuffler, resampled"),
        ({"noise_rule": "advanced"}, "noise_rule must be 'accountant' with a shuffler"),
        ({"trust": "server"}, "unknown trust 'server'"),
    ],
)
def test_refused_settings(settings, says):
    with pytest.raises(ValueError, match=says):
        make(**settings)


def test_a_sampler_object_has_its_batch():
    assert make(batch=None, sampler=Subset(1)).minibatches == make().minibatches
    with pytest.raises(Refusal, match=r"^batch must be 1 with a shuffler, resampled in each round, got 2 subset$"):
        make(batch=None, sampler=Subset(2))


def test_messages_clipped_as_a_whole_are_not_shuffled():
    with pytest.raises(Refusal, match=r"^unknown trust 'shuffler' \(known: none\)$"):
        ReleasedMinibatchSGD(clip_at="message", trust="shuffler", **COMMON)


def test_refused_where_machines_are_not_alike():
    with pytest.raises(ValueError, match="lipschitz must be equal on all machines"):
        simulate(
            make(epsilon=1.0, clip=None),
            replace(PROBLEM, own_lipschitz=(1.0, 2.0) * (MACHINES // 2)),
            Full(MACHINES),
            rounds=3,
        )
    with pytest.raises(ValueError, match="fixed number of machines per round"):
        simulate(make(noise_std=1.0), PROBLEM, Varying.between(MACHINES, 1, 9), rounds=3)
