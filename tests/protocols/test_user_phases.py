"""P_AGD in phases with different cohorts and envelopes: against NumPy, and as private as with equal cohorts."""

import numpy as np
import pytest
from oracles import cheu as oracle

from fedprivjax import Absolute, Ball, Cohorts, Moreau, OnePass, Refusal, Squared, UserAGD, UserSGD, linear_problem
from fedprivjax.engine.prepare import ready
from fedprivjax.engine.simulate import execute
from fedprivjax.method.private_mean import noise_constant
from fedprivjax.plan.seeds import protocol_key
from fedprivjax.privacy.accountants.binomial.accountant import BinomialSums
from fedprivjax.testing.trial import close
from fedprivjax.theory import cheu

USERS, FEATURES, RADIUS = 2000, 3, 0.8
RNG = np.random.default_rng(2)
X = RNG.normal(size=(USERS, FEATURES))
X = (X / np.linalg.norm(X, axis=1, keepdims=True)).astype(np.float32)
Y = (X @ [0.5, -0.2, 0.3]).astype(np.float32)
SIZES = (50,) * 20 + (330,) * 3
AGD = {"epsilon": 2.0, "strong_convexity": 0.3, "phases": 2}
ONCE = {"metrics": ("noise_norm",), "eval_every": 1, "seed": 1, "delta": 1e-6}


def problem(loss):
    return linear_problem(X, Y, loss, feature_bound=1.0, constraint=Ball(RADIUS))


def begun(sizes=SIZES, loss=None, **settings):
    participation = sizes if isinstance(sizes, OnePass) else Cohorts(USERS, sizes)
    return ready(UserAGD(**AGD | settings), problem(loss or Squared(1.0)), participation, **ONCE)


def estimates(start):
    sums, host_noise = start.protocol.vector_sum, start.host_noise

    def estimate(t, rows):
        padded = np.zeros((start.plan.size.per_round, FEATURES), np.float32)
        padded[: len(rows)] = rows
        rounded = np.asarray(sums.rounded(protocol_key(start.key, t + 1), padded))[: len(rows)].sum(axis=0)
        noise = np.float64(host_noise.integers[t]) - host_noise.remainder[t]
        return 2 * sums.bound / sums.levels * (rounded - len(rows) * sums.levels / 2 + noise)

    return estimate


def batches(start):
    samples, present = start.plan.samples.reshape(start.plan.schedule.present.shape), start.plan.schedule.present
    return [row[used] for row, used in zip(samples, present, strict=True)]


def replayed(start, phases, lengths, gradients):
    """Phases of Algorithm 4, each with a smoothness of its own."""
    theta, done, every = np.zeros(FEATURES), 0, batches(start)
    for phase, rounds in zip(phases, lengths, strict=True):
        known = {"smoothness": phase.smoothness, "spread": phase.spread, "radius": RADIUS, "first": done}
        known |= {"estimate": estimates(start)}
        theta = oracle.p_agd(gradients(phase), every[done : done + rounds], theta, **known)[1][-1]
        done += rounds
    return theta


def phases_of(start, per_round, **settings):
    return cheu.strong_phases(
        users=USERS,
        diameter=2 * RADIUS,
        lipschitz=start.problem.lipschitz,
        strong_convexity=0.3,
        noise=noise_constant(start.protocol, start.problem, start.plan),
        phases=2,
        per_round=per_round,
        **settings,
    )


@pytest.mark.slow
@pytest.mark.parametrize("sampling", [True, False])
def test_every_phase_has_its_own_cohorts(sampling):
    start = begun(sampling=sampling)
    phases = phases_of(start, (50, 330), smoothness=1.0, sampling=sampling)

    def squares(_):
        return lambda w, users: (X[users] @ w - Y[users])[:, None] * X[users]

    close(execute(start).params, replayed(start, phases, (20, 3), squares), 1e-4)


@pytest.mark.slow
def test_every_phase_has_its_own_envelopes():
    start = begun(OnePass(USERS, 50), Moreau(Absolute(), 3000.0), smoothing="phases", epsilon=30.0)
    phases = phases_of(start, 50)
    assert phases[0].smoothness < phases[1].smoothness / 1.2

    def gradients(phase):
        return lambda w, users: np.clip(phase.smoothness * (X[users] @ w - Y[users]), -1, 1)[:, None] * X[users]

    found = execute(start).params
    close(found, replayed(start, phases, (20, 20), gradients), 1e-4)
    with pytest.raises(AssertionError):  # the last phase's envelopes in both
        close(found, replayed(start, phases, (20, 20), lambda _: gradients(phases[1])), 1e-4)


@pytest.mark.parametrize("honest", [1.0, 0.37])
def test_no_sum_has_less_noise_than_its_guarantee(honest):
    """A cohort's honest users have at least the trials that meet ε; a fifth fewer would not."""
    start = begun(honest=honest, epsilon=0.5)
    sums, mean = start.protocol.vector_sum, start.protocol.privacy
    users = np.array(SIZES)
    each, left = np.divmod(mean._totals(start.plan, sums), users)
    assert (left == 0).all()
    trials = each * np.floor(honest * users + 1e-9)

    def epsilon(total):
        known = BinomialSums(1, FEATURES, int(sums.levels))
        noise = np.sqrt(total * sums.probability * (1 - sums.probability)) / sums.levels
        return known.epsilon(noise, 1, 1, 1, delta=1e-6)

    assert trials.max() < trials.min() * 1.1
    assert epsilon(trials.min()) <= 0.5 * 1.001
    assert epsilon(0.8 * trials.min()) > 0.5


@pytest.mark.parametrize("trust", ["shuffler", "server"])
def test_noise_in_the_mean_goes_by_the_cohort(trust):
    norms = execute(begun(epsilon=0.05, trust=trust)).metrics["noise_norm"]
    assert norms[:20].mean() / norms[20:].mean() == pytest.approx(330 / 50, rel=0.5)


def test_refusals():
    squared = problem(Squared(1.0))
    for method, says in (
        (UserSGD(epsilon=1.0), "cohorts must be of one size"),
        (UserAGD(epsilon=1.0), "cohorts must be of one size"),
        (UserAGD(**AGD, trust="none"), "cohorts must be of one size with trust = 'none'"),
    ):
        with pytest.raises(Refusal, match=says):
            ready(method, squared, Cohorts(USERS, SIZES), **ONCE)
    with pytest.raises(Refusal, match="loss must be an envelope"):
        begun(OnePass(USERS, 50), smoothing="phases")
    with pytest.raises(Refusal, match="cohorts must be those of 2 phases of 1000 users each, got 3 phases"):
        begun((20, 30, 40))
    with pytest.raises(Refusal, match="noise method must be 'auto'"):
        ready(UserAGD(**AGD), squared, Cohorts(USERS, SIZES), noise_method="materialised", **ONCE)
    with pytest.raises(Refusal, match="phases must go with a positive strong_convexity, got 3"):
        UserAGD(epsilon=1.0, phases=3)
    with pytest.raises(Refusal, match="smoothing must go with a positive strong_convexity, got 'phases'"):
        UserAGD(epsilon=1.0, smoothing="phases")
