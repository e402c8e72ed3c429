"""Guarantees of methods on batches of users agree with the noise, the users and the view of a run."""

from itertools import product

import numpy as np
import pytest
from cases import sparing

from fedprivjax import (
    Ball,
    Dropouts,
    Logistic,
    OnePass,
    UserAGD,
    UserSGD,
    WholeSpace,
    linear_problem,
    simulate,
    transcript,
)
from fedprivjax.engine.prepare import ready
from fedprivjax.privacy.accountants.binomial.accountant import scalar_epsilon
from fedprivjax.sweeps.prepare import ready_sweep

DELTA = 1e-5
DROPPING = Dropouts(OnePass(12, 6), 0.5)
TRUSTS = ("shuffler", "none", "server", "pan-private")


def problem(features, constraint=None):
    constraint = constraint or Ball(1.0)
    return linear_problem(features, np.ones(len(features)), Logistic(), feature_bound=1.0, constraint=constraint)


def absent(plan):
    return plan.samples[..., 0][~plan.schedule.present]


@pytest.mark.parametrize(
    ("method", "trust"),
    sparing(list(product([UserSGD, UserAGD], TRUSTS)), [(UserSGD, "shuffler")]),
)
def test_users_who_drop_out_leave_no_trace(method, trust):
    """Their ε is stated as 0: whatever their records, the run is the same."""
    features = np.tile(np.float32([0.5, 0.0]), (12, 1))
    protocol = method(noise_std=0.05, trust=trust, step_size=0.1)
    plan = ready(protocol, problem(features), DROPPING, seed=3, metrics=()).plan
    others = features.copy()
    others[absent(plan)] = [0.0, 1.0]
    assert absent(plan).size
    one, other = (simulate(protocol, problem(x), DROPPING, seed=3, metrics=()).params for x in (features, others))
    np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("levels", [3, 6, 7, 12])
def test_the_event_accounts_for_the_bits_that_are_drawn(levels):
    """Also where σ, a float32 here, is just above what one trial less would give."""
    clip, users = float(np.sqrt(2)), 100
    noise_std = float(np.float32(clip / levels))
    start = ready(
        UserSGD(noise_std=noise_std, clip=clip, levels=levels, step_size=0.1),
        problem(np.ones((users, 1), np.float32)),
        OnePass(users, users),
        delta=DELTA,
        metrics=(),
    )
    sums = start.protocol.vector_sum
    drawn = scalar_epsilon(users * sums.trials, float(sums.probability), levels, DELTA)
    assert start.guarantee.epsilon >= drawn * (1 - 1e-6)


@pytest.mark.parametrize("trust", sparing(["shuffler", "none"], []))
def test_a_transcript_with_absent_users_is_of_those_who_take_part(trust):
    """With a shuffler the sum has only their bits; without one, empty slots stay empty."""
    features = np.zeros((12, 400), np.float32)
    protocol, zero = UserSGD(noise_std=0.7, step_size=1.0, trust=trust), problem(features, WholeSpace())
    seen = transcript(protocol, zero, DROPPING, seed=3)
    users = seen.plan.schedule.present.sum(axis=1)
    assert users[0] < 6
    total = seen.messages[0]
    if trust == "none":
        assert not seen.messages[~seen.plan.schedule.present].any()
        total = total.sum(axis=0)
    np.testing.assert_allclose(-seen.queries[1] * users[0], total, atol=1e-4)


def test_every_member_of_a_sweep_has_bits_that_float32_draws():
    base, everyone = UserSGD(step_size=1.0), OnePass(60, 20)
    given = {"noise_method": "materialised", "seeds": 1, "metrics": ()}
    with pytest.raises(ValueError, match="trials must be at most"):
        ready_sweep(base, problem(np.zeros((60, 20), np.float32)), everyone, over={"noise_std": [0.3, 1000.0]}, **given)


def test_a_shortcut_is_named_in_the_guarantee():
    """Rounded normals are not the binomial that the accounting is of."""
    given = {"problem": problem(np.zeros((20, 2), np.float32)), "participation": OnePass(20, 20), "metrics": ()}
    with pytest.raises(ValueError, match="must go with accounting = 'gaussian-limit'"):
        ready(UserSGD(epsilon=1.0, step_size=0.1), **given, noise_method="normal")
    limit = UserSGD(epsilon=1.0, step_size=0.1, accounting="gaussian-limit")
    text = str(ready(limit, **given, noise_method="normal").guarantee)
    assert "not a proof" in text
    assert "in total variation" in text
