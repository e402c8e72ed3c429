"""Claimed sensitivities and ε, with the values found by brute force and by other accountants."""

from dataclasses import replace
from unittest.mock import patch

import jax
import jax.numpy as jnp
import numpy as np
from cases import MACHINES, POOL, SHARES
from dp_accounting.pld.pld_pmf import DensePLDPmf
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
from faults.federations import CLIP
from neighbours import KEY, sent_by, with_sample

from fedprivjax import (
    Ball,
    Cohorts,
    Dropouts,
    Full,
    Given,
    LinearLoss,
    Logistic,
    OnePass,
    Squared,
    Uniform,
    UserSGD,
    Varying,
    draw_plan,
    linear_problem,
)
from fedprivjax.engine.prepare import round_inputs
from fedprivjax.method.algorithm import Mean, NormBound
from fedprivjax.method.private_mean import GaussianMean
from fedprivjax.method.protocol import as_leaves
from fedprivjax.method.release import RunFacts
from fedprivjax.method.shuffled_bits import BitMean
from fedprivjax.method.shuffled_sums import VectorSum
from fedprivjax.plan.samplers import Replacement
from fedprivjax.privacy import gdp
from fedprivjax.privacy.accountants import composition
from fedprivjax.privacy.accountants.binomial import vector
from fedprivjax.privacy.accountants.binomial.accountant import BinomialSums
from fedprivjax.privacy.accountants.binomial.paper import Bits
from fedprivjax.privacy.accountants.bounds import attainable_epsilon
from fedprivjax.privacy.accountants.dp_accounting_backend import gaussian_epsilon
from fedprivjax.privacy.accountants.sampled import SampledReleases, sampled_epsilon
from fedprivjax.privacy.calibration import calibrate
from fedprivjax.privacy.noise_rules import noise_std
from fedprivjax.problem.program import typed_jit
from fedprivjax.protocols.dp_mu2 import Mu2State


def largest_increment(protocol):
    """Return the problem, the plan and the largest change of an increment by replacing one record.

    f = ½(a·w)² on the unit ball (G = L = 1), and the iterate moves from −a to a. A record's increment is 3a, and 0
    for a record with a = 0.
    """
    features = np.zeros((4, 2), np.float32)
    features[:, 0] = 1.0
    problem = linear_problem(features, np.zeros(4), Squared(1e-6), feature_bound=1.0, constraint=Ball(1.0))
    end, round = jnp.array([1.0, 0.0]), 1000
    plan = draw_plan(problem, Given(1, [[0]]), seed=1)
    protocol = calibrate(protocol, problem, plan)
    state = protocol.init(problem, plan.size, KEY)
    state = state._replace(server=Mu2State(-end + 2 / (round + 1) * (end + end), -end, end))
    at = jax.tree.map(lambda leaf: leaf[0], round_inputs(plan))._replace(round=jnp.asarray(round))
    other = with_sample(problem, int(plan.samples[0, 0]), np.zeros(2), 0.0)
    sent = [np.asarray(sent_by(as_leaves(protocol), one, state, at)) for one in (problem, other)]
    return problem, plan, np.linalg.norm(sent[1] - sent[0])


def largest_gradient(protocol):
    """Return the problem, the plan and the largest change of a message at the start by replacing one record.

    Gradients are ∓x/2 along any direction, of length 1.02·C. The record is replaced by one with the other label.
    """
    rng = np.random.default_rng(5)
    features = rng.normal(size=(12, 6))
    features *= 2 * 1.02 * CLIP / np.linalg.norm(features, axis=1, keepdims=True)
    problem = linear_problem(features, np.zeros(12, int), Logistic(), constraint=Ball(1.0))
    plan = draw_plan(problem, Given(2, [[0, 1]]), seed=1)
    protocol = calibrate(protocol, problem, plan)
    state, at = protocol.init(problem, plan.size, KEY), jax.tree.map(lambda leaf: leaf[0], round_inputs(plan))
    record = int(plan.samples[0, 0])
    other = with_sample(problem, record, np.asarray(problem.pool.features[record]), 1)
    sent = [np.asarray(sent_by(as_leaves(protocol), one, state, at)) for one in (problem, other)]
    return problem, plan, np.linalg.norm(sent[1] - sent[0])


@typed_jit
def next_state(protocol, problem, state, inputs):
    return protocol.round(problem, state, inputs, None, KEY)[0]


def largest_release(read):
    """Return a function like `largest_gradient` for a trusted server's release, `read` of its state.

    One to three machines take part per round, and one in the tested round. The record's gradient changes its sign.
    """

    def moved(protocol):
        rng = np.random.default_rng(5)
        features = rng.normal(size=(3, 4, 6))
        features *= 2 * 1.02 * CLIP / np.linalg.norm(features, axis=2, keepdims=True)
        problem = linear_problem(features, np.zeros((3, 4), int), Logistic(), constraint=Ball(1.0))
        plan = draw_plan(problem, Varying.between(3, 1, 3), 4, seed=3, sampler=protocol.minibatches)
        alone = int(np.argmin(plan.schedule.present.sum(axis=1)))
        assert plan.schedule.present[alone].sum() == 1
        record = int(np.ravel(plan.samples[alone, 0])[0])
        other = with_sample(problem, record, np.asarray(problem.pool.features[record]), 1)
        protocol = calibrate(protocol, problem, plan)
        leaves, at = as_leaves(protocol.traced), jax.tree.map(lambda leaf: leaf[alone], round_inputs(plan))
        start = protocol.init(problem, plan.size, KEY)
        released = [read(next_state(leaves, one.traced, start, at)) for one in (problem, other)]
        return problem, plan, float(jnp.linalg.norm(released[1] - released[0]))

    return moved


def largest_pair(protocol):
    """Return the problem, the plan and the largest change of a pair of update and bit by replacing one machine.

    The clip is twice that of the first round. Machines have one record each, along a line on both sides of the clip,
    and send minus their record.
    """
    clip = 2 * protocol.update_clip.start
    rows = np.outer(np.linspace(-1.2, 1.2, 25) * clip, [0.6, 0.8])
    options = {"partition_table": np.arange(25)[:, None]}
    problem = linear_problem(rows, np.zeros(25), Identity(), **options)
    plan = draw_plan(problem, Full(25), 1, seed=1, sampler=protocol.minibatches)
    ready = calibrate(protocol, problem, plan)
    start, at = ready.init(problem, plan.size, KEY), jax.tree.map(lambda leaf: leaf[0], round_inputs(plan))
    state = start._replace(server=start.server._replace(clip=jnp.float32(clip)))
    sent = np.asarray(sent_by(as_leaves(ready.traced), problem.traced, state, at))
    return problem, plan, np.linalg.norm(sent[:, None] - sent[None], axis=2).max()


class Identity(LinearLoss):
    """The score itself, whose gradient is the record at any point."""

    def value(self, score, label):
        return score


DELTA = 1e-2


def of_messages(protocol, delta=1e-5):
    """Return the claimed ε on a schedule, and dp-accounting's for the noise of the most frequent machine's messages."""
    problem = POOL
    plan = draw_plan(problem, Uniform(4, 2), 12, seed=3)
    ready = calibrate(protocol, problem, plan, delta=delta)
    inputs = ready.mechanism(problem, plan, "materialised").inputs
    relative = np.asarray(inputs.relative, float)
    own = plan.schedule.participants == np.argmax(plan.schedule.total)
    claimed = ready.event(problem, plan).epsilon(delta)
    return claimed, gaussian_epsilon(ready.noise_std * relative[own] / (2 * CLIP), delta)


def of_each_round(whole):
    """Return the sum of the ε of 50 full batches, each at δ (`whole`) or at δ/50, and the ε of their composition."""
    rounds, mu = 50, 0.026
    claimed = rounds * float(gdp.epsilon(mu, DELTA if whole else DELTA / rounds))
    return claimed, gaussian_epsilon(np.full(rounds, 1 / mu), DELTA)


def of_sampler(counted):
    """Return the ε of the sampler `counted`, and a lower bound on ε of sampling with replacement."""
    settings = {"records": 20, "rounds": 10, "delta": 1e-5}
    attained = attainable_epsilon(2.0, SampledReleases(sampler=Replacement(5), **settings))
    return sampled_epsilon(2.0, SampledReleases(sampler=counted, **settings)), attained


def of_infinite_losses(grid):
    """Return the ε of a loss of 0, 1 or inf with probabilities 1/2, 0.3 and 0.2, and the exact one.

    It solves 0.3(1 − e^{ε−1}) = δ − 0.2.

    Args:
        grid: function that reads dp-accounting's probabilities.
    """
    loss = PrivacyLossDistribution(DensePLDPmf(1.0, 0, np.array([0.5, 0.3]), 0.2, True))
    with patch.object(composition, "symmetric_grid", grid):
        return composition.epsilon_between(loss, 0.3)[1], 1 + np.log(2 / 3)


def of_rule(rule):
    """Return the target ε of a noise rule, and a lower bound on ε with its noise."""
    releases = SampledReleases(Replacement(40), records=1000, rounds=35, delta=1e-6)
    std = noise_std(rule, releases, lipschitz=1.0, epsilon=12.0, acknowledged=True)
    return 12.0, attainable_epsilon(40 * std, releases)


def of_halves(change):
    """Return the ε of a pan-private server, and that of one release with half of its noise variance."""
    problem = POOL
    plan = draw_plan(problem, OnePass(12, 4), 3, seed=1)
    ready = calibrate(change(UserSGD(epsilon=4.0, clip=CLIP, trust="pan-private")), problem, plan, delta=DELTA)
    multiplier = ready.noise_std * np.sqrt(plan.size.per_round / 2) / (2 * CLIP)
    return ready.event(problem, plan).epsilon(DELTA), gaussian_epsilon([multiplier], DELTA)


def of_sums(protocol):
    """Return the claimed ε of noise correlated over three messages, and that of the most exposed sample.

    The second follows from the covariance of the sampled noise.
    """
    plan = draw_plan(POOL, Full(MACHINES), 3, seed=1)
    drawn = protocol.mechanism(POOL, plan, "materialised")
    noise = np.asarray(drawn.rows, float)[:3, :3] * float(drawn.inputs.relative[0, 0]) * protocol.noise_std
    shown = np.linalg.inv(noise @ noise.T).diagonal().max()
    return protocol.event(POOL, plan).epsilon(DELTA), gdp.epsilon(2 * CLIP * np.sqrt(shown), DELTA)


def of_steps(protocol):
    """Return the claimed ε for a step size times a scale, and for the equal step size with scale 1."""
    plan = draw_plan(SHARES, Full(MACHINES), 12, seed=1, sampler=protocol.minibatches)
    ready = calibrate(protocol, SHARES, plan)
    whole = replace(ready, step_size=ready.step_scale * ready.step_size, step_scale=1.0)
    return tuple(one.event(SHARES, plan).epsilon(DELTA) for one in (ready, whole))


def of_supports(mass):
    """Return the ε of four releases of two coordinates, and of one release of eight, a special case of the four.

    `mass` is the function of the noise's probability outside the accountant's window.
    """
    message = Bits(1, 900, 0.02)
    with patch.object(vector, "mass_outside", mass):
        claimed = vector.possible_epsilon.__wrapped__(message, 1, 2, 4, 1e-3)
    return claimed, vector.possible_epsilon(message, 1, 8, 1, 1e-3)


def of_bits(totals):
    """Return the ε of cohorts of 5 and 12 users, where the latter share 35 noise bits, and that of the fewest bits."""
    plan = draw_plan(linear_problem(np.eye(17), np.zeros(17, int), Logistic()), Cohorts(17, (5, 12)), seed=1)
    chosen = VectorSum(CLIP, np.int32(1), 7, 0.5)
    release = BitMean(clip=CLIP, levels=1)
    fewest = totals(release, plan, chosen).min()

    def epsilon(users, variance):
        return BinomialSums(users, 3, 1).epsilon(np.sqrt(variance), 1, 1, 1, delta=DELTA)

    return epsilon(release._users(plan), 7 / 4), epsilon(1, fewest / 4)


def of_epochs(counted):
    """Return the ε of five rounds over partitioned records with dropouts, and that of the noise without dropouts."""
    table = np.array([[0, 1, 2], [3, 4, -1], [5, 6, 7]])
    problem = linear_problem(np.eye(8), np.zeros(8, int), Logistic(), partition_table=table)
    method = UserSGD(noise_std=1.0, clip=CLIP, step_size=0.1, trust="none")
    plan = draw_plan(problem, Dropouts(Full(3), 0.6), 5, seed=2, order="cyclic")
    sent = draw_plan(problem, Full(3), 5, seed=2, order="cyclic").samples
    claimed = method.event(problem, counted(problem, plan)).epsilon(DELTA)
    return claimed, gaussian_epsilon(np.full(np.bincount(np.ravel(sent)).max(), 1 / (2 * CLIP)), DELTA)


def of_server(mechanism):
    """Return the claimed ε with dropouts, and that of the smallest noise in a sum."""
    plan = draw_plan(POOL, Dropouts(OnePass(12, 4), 0.5), 3, seed=1)
    privacy = GaussianMean(clip=CLIP, trust="server")
    facts = RunFacts(POOL, plan, Mean(), NormBound(CLIP, ()), plain=True, epsilon=None)
    sent = plan.schedule.present.sum(axis=1)
    least = (np.asarray(mechanism(privacy, facts, "auto").inputs) * sent).min()
    assert sent.min() < 4
    return privacy.event(facts, 1.0).epsilon(DELTA), gaussian_epsilon([least / (2 * CLIP)], DELTA)
