"""Methods on batches of users against the papers' algorithms in NumPy, with the noise of the run."""

from dataclasses import replace

import numpy as np
import pytest
from cases import sparing
from oracles import cheu as oracle

from fedprivjax import Ball, Dropouts, Full, Huber, OnePass, Squared, UserAGD, UserSGD, linear_problem, simulate, sweep
from fedprivjax.engine.prepare import ready
from fedprivjax.engine.simulate import execute, run_program
from fedprivjax.method.private_mean import noise_constant
from fedprivjax.plan.seeds import protocol_key, round_keys
from fedprivjax.sweeps.execute import run_chunk
from fedprivjax.testing import runs as swept
from fedprivjax.testing.trial import PROBE, Trial, close
from fedprivjax.theory import cheu

USERS, PER_ROUND, FEATURES, RADIUS, WIDTH, CLIP = 60, 5, 4, 0.6, 0.5, 0.2
RNG = np.random.default_rng(5)
X = RNG.normal(size=(USERS, FEATURES))
X /= np.maximum(1.0, np.linalg.norm(X, axis=1, keepdims=True))
X = X.astype(np.float32)
Y = (X @ [1.0, -1.0, 0.5, 2.0] + 0.1 * RNG.normal(size=USERS)).astype(np.float32)
PROBLEM = linear_problem(X[:, None], Y[:, None], Huber(WIDTH), feature_bound=1.0, constraint=Ball(RADIUS))
POOL = linear_problem(X, Y, Huber(WIDTH), feature_bound=1.0, constraint=Ball(RADIUS))
PASS = OnePass(USERS, PER_ROUND)
ONCE = {"metrics": (PROBE, "noise_norm"), "eval_every": 1, "seed": 3}
EPOCHS = {**ONCE, "rounds": 6, "order": "cyclic"}


def begun(protocol, participation=PASS, problem=PROBLEM, **settings):
    """Ready for one pass."""
    rounds = USERS // participation.per_round
    return ready(protocol, problem, participation, **{**ONCE, "rounds": rounds, **settings})


def in_bits(start):
    """The analyzer's estimate of a sum: rounded with the round's own key, slot by slot, and the noise of the run's
    host_noise."""
    sums, host_noise, present = start.protocol.vector_sum, start.host_noise, start.plan.schedule.present

    def estimate(t, rows):
        slots = np.zeros((present.shape[1], FEATURES), np.float32)
        slots[present[t % len(present)]] = rows
        rounded = sums.rounded(protocol_key(start.key, np.int32(t + 1)), slots)[present[t % len(present)]]
        noise = np.float64(host_noise.integers[t]) - host_noise.remainder[t]
        return 2 * sums.bound / sums.levels * (np.asarray(rounded).sum(axis=0) - len(rows) * sums.levels / 2 + noise)

    return estimate


def in_normals(start):
    """A sum with the Gaussian noise of the run, which the mechanism draws for the mean."""
    mechanism, keys = start.mechanism, round_keys(start.key, np.arange(1, start.plan.size.rounds + 1))
    drawn = mechanism.draw(mechanism.init(FEATURES, start.key), mechanism.inputs, keys, FEATURES)[1]
    noise = start.protocol.noise_std * np.asarray(drawn, np.float64)
    return lambda t, rows: rows.sum(axis=0) + len(rows) * noise[t]


def estimate_of(start):
    if start.protocol.noise_std == 0:
        return oracle.exact
    return in_bits(start) if start.protocol.trust == "shuffler" else in_normals(start)


def gradients_of(start):
    made = oracle.huber_gradients(X, Y, WIDTH)
    return made if start.protocol.clip is None else oracle.clipped(made, start.protocol.clip)


def batches(start):
    """The records of each round's users, those that take part."""
    present = start.plan.schedule.present
    return [samples[used] for samples, used in zip(start.plan.samples.reshape(present.shape), present, strict=True)]


def probes(points):
    return np.array(points) @ np.sin(1.0 + np.arange(FEATURES) ** 2)


def spread_of(start):
    return 1 / start.protocol.step_size - 1  # the loss is 1-smooth


def p_sgd(start):
    known = {"step": start.protocol.step_size, "radius": RADIUS, "estimate": estimate_of(start)}
    return oracle.p_sgd(gradients_of(start), batches(start), np.zeros(FEATURES), **known)


def p_gd(start):
    known = {"step": start.protocol.step_size, "radius": RADIUS, "estimate": estimate_of(start)}
    order = start.plan.samples[0]  # of all users: rounding goes by slot
    return oracle.p_gd(gradients_of(start), order, start.plan.size.rounds, dimension=FEATURES, **known)


def p_agd(start):
    known = {"smoothness": 1.0, "spread": spread_of(start), "radius": RADIUS, "estimate": estimate_of(start)}
    return oracle.p_agd(gradients_of(start), batches(start), np.zeros(FEATURES), **known)


def strong(start):
    size, bound = start.plan.size, start.protocol.clip or WIDTH
    phases = cheu.strong_phases(
        users=size.rounds * size.per_round,
        per_round=size.per_round,
        diameter=2 * RADIUS,
        lipschitz=bound,
        strong_convexity=start.protocol.strong_convexity,
        smoothness=1.0,
        noise=noise_constant(start.protocol, PROBLEM, start.plan),
    )
    known = {"smoothness": 1.0, "radius": RADIUS, "estimate": estimate_of(start), "rounds": phases[0].rounds}
    spreads = [phase.spread for phase in phases]
    return oracle.strong_p_agd(gradients_of(start), batches(start), np.zeros(FEATURES), spreads=spreads, **known)


TRUSTS = ("shuffler", "none", "server", "pan-private")
METHODS = {"sgd": (UserSGD, p_sgd, {}), "agd": (UserAGD, p_agd, {}), "gd": (UserSGD, p_gd, {})}
PAIRS = [(method, trust) for method in METHODS for trust in TRUSTS]
STEPS = {"sgd": 0.4, "gd": 0.4, "agd": 0.3}


def started(method, **settings):
    settings = {"noise_std": 0.3, "step_size": STEPS[method], **settings}
    protocol = METHODS[method][0](**settings)
    return begun(protocol, Full(USERS), **EPOCHS) if method == "gd" else begun(protocol)


def holds(start, replayed, tolerance=1e-4):
    run, (queries, outputs) = execute(start), replayed
    close(run.metrics["probe"], probes(outputs), tolerance)
    close(run.params, outputs[-1], tolerance)
    if "last" in run.iterates:
        close(run.iterates["last"]["probe"][:-1], probes(queries[1:]), tolerance)
    return run


@pytest.mark.parametrize(("method", "trust"), sparing(PAIRS, [("agd", "shuffler")]))
def test_the_trajectory_is_the_algorithms_with_the_same_noise(method, trust):
    start = started(method, trust=trust)
    run = holds(start, METHODS[method][1](start))
    assert run.metrics["noise_norm"].min() > 0


@pytest.mark.parametrize("method", sparing(METHODS, ["sgd"]))
def test_and_with_clipped_gradients(method):
    start = started(method, clip=CLIP)
    holds(start, METHODS[method][1](start))
    with pytest.raises(AssertionError):
        holds(start, METHODS[method][1](replace(start, protocol=replace(start.protocol, clip=None))))


@pytest.mark.parametrize("method", sparing(METHODS, ["agd"]))
def test_and_without_noise_nothing_is_rounded(method):
    start = started(method, noise_std=0.0)
    run = holds(start, METHODS[method][1](start), 1e-5)
    assert not run.metrics["noise_norm"].any()


@pytest.mark.slow
@pytest.mark.parametrize("trust", ["shuffler", "server"])
def test_strongly_convex_phases_begin_where_the_last_ended(trust):
    start = begun(UserAGD(noise_std=0.3, trust=trust, strong_convexity=0.3), OnePass(USERS, 4))
    assert (start.protocol.schedule[:, 2] == 1).sum() > 2
    holds(start, strong(start))


def test_a_step_that_is_given_is_that_of_every_phase():
    protocol = UserAGD(noise_std=0.3, strong_convexity=0.3)
    theory, given = (begun(replace(protocol, step_size=step), OnePass(USERS, 4)) for step in (None, 0.2))
    used = given.protocol.schedule[:, 0] > 0
    np.testing.assert_array_equal(given.protocol.schedule[:, [0, 2]], theory.protocol.schedule[:, [0, 2]])
    np.testing.assert_allclose(1 / given.protocol.schedule[used, 1], 0.2, rtol=1e-6)


@pytest.mark.slow
def test_only_those_who_take_part_count():
    """With dropouts, sums and noise are those of the realised cohort."""
    start = begun(UserSGD(noise_std=0.3, step_size=0.4), Dropouts(OnePass(USERS, PER_ROUND), 0.4), POOL)
    assert start.plan.schedule.present.sum(axis=1).min() < PER_ROUND
    holds(start, p_sgd(start))


@pytest.mark.parametrize("method", [UserSGD, UserAGD])
def test_the_theory_takes_the_step_where_none_is_given(method):
    start = begun(method(noise_std=0.3))
    constant = FEATURES * PER_ROUND * (0.3 / WIDTH) ** 2
    constant += cheu.rounding_constant(users=PER_ROUND, levels=start.protocol.vector_sum.levels, dimension=FEATURES)
    distance, rounds = PROBLEM.distance_to_optimum, USERS // PER_ROUND
    known = {"rounds": rounds, "distance": distance}
    if method is UserSGD:
        step = cheu.sgd_step(per_round=PER_ROUND, lipschitz=WIDTH, noise=constant, **known)
    else:
        deviation = (WIDTH**2 * (1 / PER_ROUND + constant / PER_ROUND**2)) ** 0.5
        step = 1 / (1 + cheu.agd_spread(deviation=deviation, **known))
    assert start.protocol.step_size == pytest.approx(step, rel=1e-6)


# ---- convergence

WELL = linear_problem(
    np.sqrt([[1.0, 0.0], [0.0, 0.02]] * 2)[:, None].astype(np.float32),
    np.array([[1.0], [0.1], [1.0], [0.1]], np.float32),
    Squared(),
    feature_bound=1.0,
    constraint=Ball(1e6),
)


def excess(w):
    """½·mean (⟨x, w⟩ − y)² over the four users; the least is 0."""
    x = np.sqrt([[1.0, 0.0], [0.0, 0.02]])
    return 0.25 * np.sum((x @ np.asarray(w, np.float64) - [1.0, 0.1]) ** 2)


def reached(rounds, **settings):
    protocol = UserAGD(noise_std=0.0, **settings)
    return excess(simulate(protocol, WELL, Full(4), rounds=rounds, order="cyclic", eval_every=rounds).params)


def test_accelerated_descent_converges_and_half_its_penalty_diverges():
    """The penalty that the paper's text lost; β = 1/2 of the mean loss, and step_scale = 2 halves the penalty."""
    start = excess(np.zeros(2))
    right, wrong = ([reached(rounds, step_size=1.0 / 0.5, step_scale=s) for rounds in (20, 80)] for s in (1.0, 2.0))
    assert right[1] < right[0] < 0.02 * start
    assert right[1] <= 2 * 0.5 * (1 + 0.5) / (80 * 81)  # 2β‖θ_1 − θ*‖²/(T(T+1))
    assert wrong[1] > wrong[0] > 1e6 * start


def test_the_oracle_diverges_with_half_the_penalty_too():
    x = np.sqrt([[1.0, 0.0], [0.0, 0.02]] * 2)
    gradients = oracle.huber_gradients(x, [1.0, 0.1] * 2, np.inf)
    known = {"smoothness": 0.5, "spread": 0.0, "radius": 1e6}
    ends = [oracle.p_agd(gradients, [range(4)] * 80, np.zeros(2), half=half, **known)[1][-1] for half in (False, True)]
    assert excess(ends[1]) > 1e6 * excess(ends[0])


def loss(w):
    """The mean of the users' Huber losses."""
    gap = np.abs(X @ np.asarray(w, np.float64) - Y)
    return np.where(gap <= WIDTH, gap**2 / 2, WIDTH * (gap - WIDTH / 2)).mean()


@pytest.mark.parametrize("method", [UserSGD, UserAGD])
def test_the_loss_falls_with_the_sign_that_the_listings_lost(method):
    assert loss(execute(begun(method(noise_std=0.1))).params) < 0.9 * loss(np.zeros(FEATURES))


# ---- programs and sweeps


@pytest.mark.parametrize("trust", sparing(("shuffler", "server"), ["shuffler"]))
def test_other_numbers_are_no_new_program(trust):
    protocol = UserSGD(epsilon=2.0, step_size=0.4, clip=CLIP, trust=trust)
    execute(begun(protocol))
    before = run_program._cache_size()
    others = [replace(protocol, epsilon=1.0), replace(protocol, step_size=0.1), replace(protocol, clip=0.3)]
    if trust == "shuffler":
        others += [replace(protocol, levels=100), replace(protocol, honest=0.8), replace(protocol, rounding="coupled")]
    for other in others:
        execute(begun(other))
    execute(begun(protocol, seed=5))
    assert run_program._cache_size() <= before


@pytest.mark.slow
@pytest.mark.parametrize("trust", ["shuffler", "none"])
def test_a_sweep_over_epsilon_is_the_loop(trust):
    """Every configuration has separate levels, bits and host noise."""
    protocol = UserSGD(step_size=0.4, trust=trust)
    settings = {"metrics": ONCE["metrics"], "eval_every": 1, "rounds": 12}
    grid = sweep(protocol, PROBLEM, PASS, over={"epsilon": [0.5, 2.0, np.inf]}, seeds=[3, 4], **settings)
    for epsilon, seed in [(0.5, 3), (2.0, 4), (np.inf, 3)]:
        alone = simulate(replace(protocol, epsilon=epsilon), PROBLEM, PASS, seed=seed, **settings)
        cell = grid.probe.sel(epsilon=epsilon, seed=seed, iterate="output")
        close(cell, alone.metrics["probe"], 1e-5)
        assert float(grid.noise_std.sel(epsilon=epsilon).max()) == pytest.approx(alone.protocol.noise_std, rel=1e-6)
    before = run_chunk._cache_size()
    sweep(protocol, PROBLEM, PASS, over={"epsilon": [1.0, 3.0, 4.0]}, seeds=[3, 4], **settings)
    assert run_chunk._cache_size() <= before


@pytest.mark.parametrize("trust", ["none", "server", "pan-private"])
def test_one_draw_serves_all_members(trust):
    swept.noise_is_shared_by_configurations(Trial(UserSGD(noise_std=0.3, step_size=0.4, trust=trust), PROBLEM, PASS))
