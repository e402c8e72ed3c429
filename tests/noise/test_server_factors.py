"""Noise correlated over rounds: exposures against brute force, factors, samplers, and refusals."""

import time
from dataclasses import replace
from itertools import pairwise, product

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy
from cases import SHARES, sparing
from threadpoolctl import threadpool_limits

from fedprivjax import (
    AdaptiveClip,
    DPMu2,
    FedAvg,
    Full,
    LinearLoss,
    PoissonCohorts,
    Refusal,
    Scaffold,
    Uniform,
    experiment,
    linear_problem,
    ready,
    simulate,
)
from fedprivjax.experiment import jobs as listed
from fedprivjax.noise.covariance import Recursive
from fedprivjax.noise.factors import Factor, Independent, Tree, fit
from fedprivjax.noise.factors import exposures as exposure_sums
from fedprivjax.noise.factors import least_noise as bounds
from fedprivjax.noise.factors.exposures import exposures, groups, rounds_of
from fedprivjax.noise.factors.fit import loss_of, prefix_noise
from fedprivjax.noise.factors.interface import StreamOfRounds
from fedprivjax.noise.factors.matrices import coefficients
from fedprivjax.noise.interface import normals
from fedprivjax.noise.message_factors import Toeplitz
from fedprivjax.noise.server_factors import ROUND_FACTORS, GivenFactor, OptimalFactor, over_rounds, round_factor
from fedprivjax.plan.schedule import Schedule
from fedprivjax.plan.seeds import round_keys

SMALL = 8  # rounds
SIGNED, POSITIVE = "signed", "positive"
KEY = jax.random.key(3)


def given(matrix) -> GivenFactor:
    return GivenFactor(tuple(tuple(row) for row in np.asarray(matrix, float).tolist()))


class Elsewhere:
    """A factor of another library."""

    def materialize(self, n):
        return jnp.asarray(np.tril(1.0 / (1 + np.subtract.outer(np.arange(n), np.arange(n)).clip(0))))


def test_factors_of_other_libraries_are_those_of_their_matrix():
    schedule = Schedule(4, np.arange(8, dtype=np.int32).reshape(4, 2) % 4)
    matrix = np.asarray(Elsewhere().materialize(4), float)
    wanted, found = over_rounds(matrix), over_rounds(Elsewhere())
    assert over_rounds(jnp.asarray(matrix)) == wanted
    for factor in (wanted, found):
        factor.check(schedule, 3)
        np.testing.assert_allclose(factor.matrix(schedule), matrix)
    np.testing.assert_allclose(found.exposures(schedule), wanted.exposures(schedule))
    np.testing.assert_array_equal(found.mechanism(schedule).inputs, wanted.mechanism(schedule).inputs)
    assert found.first_std(schedule) == wanted.first_std(schedule)
    scaled = matrix / np.linalg.norm(matrix, axis=0).max()
    sums = [DPMu2(mu=1.0, clip=1.0, noise_schedule=given) for given in (Elsewhere(), jnp.asarray(0.5 * scaled))]
    np.testing.assert_allclose(sums[0].noise_schedule.matrix(4, None), scaled, rtol=1e-6)
    np.testing.assert_allclose(sums[1].noise_schedule.matrix(4, None), 0.5 * scaled, rtol=1e-6)


def random_schedule(rng) -> Schedule:
    machines, rounds = int(rng.integers(2, 5)), int(rng.integers(1, SMALL))
    per_round = int(rng.integers(1, machines + 1))
    participants = np.stack([rng.permutation(machines)[:per_round] for _ in range(rounds)]).astype(np.int32)
    dropped = rng.random(participants.shape) < 0.3 if rng.random() < 0.5 else None
    return Schedule(machines, participants, dropped=dropped)


def random_factor(kind, rounds, rng) -> GivenFactor:
    matrix = np.tril(rng.normal(size=(rounds, rounds)) if kind == SIGNED else rng.random((rounds, rounds)))
    return given(matrix + np.diag(0.2 + np.abs(np.diag(matrix)) - np.diag(matrix)))


def largest_move(matrix, when) -> float:
    """The largest ‖F·x‖ over the signs of a machine's updates of norm 1 along one axis."""
    columns = matrix[:, when]
    return max((np.linalg.norm(columns @ signs) for signs in product((1, -1), repeat=len(when))), default=0.0)


def compared(seeds):
    """Yield the stated exposure, brute force, and whether FᵀF ≥ 0, of all machines of random schedules."""
    for seed in range(seeds):
        rng = np.random.default_rng(seed)
        schedule = random_schedule(rng)
        kind = (SIGNED, POSITIVE)[seed % 2]
        factor = random_factor(kind, schedule.size.rounds, rng)
        stated, matrix = factor.exposures(schedule), factor.matrix(schedule)
        for machine in range(schedule.machines):
            when = [t for t, row in enumerate(schedule.participants) if machine in row]
            yield stated[machine], largest_move(matrix, when), (matrix.T @ matrix >= 0).all()


def test_no_machine_moves_the_releases_by_more_than_its_exposure():
    """Brute force over signs on 200 random schedules: never more, and equal if FᵀF ≥ 0."""
    equal = 0
    for stated, found, positive in compared(200):
        assert found <= stated * (1 + 1e-12)
        if positive:
            assert found == pytest.approx(stated, rel=1e-9, abs=1e-12)
            equal += 1
    assert equal > 100


def test_a_machine_counted_once_is_found(monkeypatch):
    """The fault: the norm of one column of F, as for one participation of every machine."""

    def once(gram, patterns):
        return np.diag(gram)[patterns].max(axis=1)

    monkeypatch.setattr(exposure_sums, "pattern_sums", once)
    assert any(found > stated * 1.01 for stated, found, _ in compared(20))


@pytest.mark.parametrize("gram", [1.0, -1.0])
def test_updates_of_any_direction_move_less(gram):
    rng, matrix = np.random.default_rng(2), np.array([[1.0, 0.0], [gram * 0.5, 1.0]])
    stated = given(matrix).exposures(Full(1).draw(2, rng))[0]
    for _ in range(200):
        x = rng.normal(size=(2, 3))
        x /= np.linalg.norm(x, axis=1, keepdims=True)
        assert np.linalg.norm(matrix @ x) <= stated * (1 + 1e-12)


FITTED = [("optimal", 1), ("optimal", 2), ("optimal", 7)]  # a longer fit is slow


@pytest.mark.parametrize(
    ("name", "rounds"), [*product([name for name in ROUND_FACTORS if name != "optimal"], (1, 2, 7, 24)), *FITTED]
)
def test_factors(name, rounds):
    """B·F = A; exposures by machine are the norms of sums of columns; F(1, 1) = 1."""
    schedule = Uniform(5, 2).draw(rounds, np.random.default_rng(1))
    factor = round_factor(name)
    assert isinstance(factor, Factor)
    matrix, sums = factor.known(schedule), np.tril(np.ones((rounds, rounds)))
    assert matrix[0, 0] == 1.0
    assert not np.triu(matrix, 1).any()
    assert (np.diag(matrix) > 0).all()
    np.testing.assert_allclose(sums @ np.linalg.inv(matrix) @ matrix, sums, atol=1e-9)
    stated = factor.exposures(schedule)
    np.testing.assert_allclose(stated, exposures(matrix.T @ matrix, schedule), rtol=1e-12)
    for machine in range(5):
        assert largest_move(matrix, rounds_of(schedule, machine)) <= stated[machine] * (1 + 1e-12)
        releases = factor.releases(schedule, machine)
        assert np.sqrt(np.sum(releases**-2.0)) == pytest.approx(stated[machine], rel=1e-9)
    if name != "optimal":
        np.testing.assert_allclose(
            stated, [np.linalg.norm(matrix[:, rounds_of(schedule, machine)].sum(axis=1)) for machine in range(5)]
        )


def sampled(mechanism, rounds, dimension, blocks):
    """The noise z, [rounds, d], sampled block by block, and its normals."""
    keys, state, parts = round_keys(KEY, np.arange(1, rounds + 1)), mechanism.init(dimension, KEY), []
    for first, end in pairwise(blocks):
        inputs = jax.tree.map(lambda leaf: leaf[first:end], mechanism.inputs)  # noqa: B023
        state, z = mechanism.draw(state, inputs, keys[first:end], dimension)
        parts.append(np.asarray(z, float))
    return np.concatenate(parts), np.stack([np.asarray(normals(key, (dimension,)), float) for key in keys])


@pytest.mark.parametrize("name", sparing(["tree", "toeplitz", "full"], ["tree"]))
def test_samplers(name):
    """F·z is the normals, and prefix sums of z have the covariance B·Bᵀ; 2/3 and 3/2 of it are rejected."""
    rounds, dimension = 13, 4000
    schedule = Uniform(50, 1).draw(rounds, np.random.default_rng(1))
    factor = given(random_factor(POSITIVE, rounds, np.random.default_rng(4)).rows) if name == "full" else None
    factor = round_factor(name) if factor is None else factor
    assert factor is not None
    matrix = factor.known(schedule)
    z, normal = sampled(factor.mechanism(schedule), rounds, dimension, (0, 5, 6, rounds))
    size = np.linalg.cond(matrix)
    np.testing.assert_allclose(matrix @ z, normal, atol=2e-6 * size)
    b = np.tril(np.ones((rounds, rounds))) @ np.linalg.inv(matrix)
    expected, found = b @ b.T, np.cumsum(z, axis=0) @ np.cumsum(z, axis=0).T / dimension
    error = np.sqrt((np.multiply.outer(np.diag(expected), np.diag(expected)) + expected**2) / dimension)
    for scale in (1.0, 2 / 3, 3 / 2):
        assert (np.abs(scale**2 * found - expected) < 5 * error).all() == (scale == 1.0)


# minsep_sensitivity_squared(coefficients, separation) of jax-privacy 2.0.0, float64, by rounds, separation, bandwidth
JAX_PRIVACY = {
    (16, 4, 15): 13.80286600802343,
    (40, 7, 39): 28.295245496128462,
    (40, 7, 15): 18.819731196332853,
    (100, 1, 99): 6398.245858627153,
    (100, 10, 31): 43.474438926579964,
}


@pytest.mark.parametrize("case", JAX_PRIVACY, ids=str)
def test_sensitivity_of_rounds_at_equal_distances(case):
    rounds, separation, band = case
    column = coefficients(rounds, band)
    matrix = [[column[t - s] if t >= s else 0.0 for s in range(rounds)] for t in range(rounds)]
    participants = np.arange(rounds)[:, None] % separation
    schedule = Schedule(separation, participants.astype(np.int32))
    assert given(matrix).exposures(schedule).max() ** 2 == pytest.approx(JAX_PRIVACY[case], rel=1e-6)


def noise_of(factor, schedule):
    """The variance of all prefix sums at exposure 1."""
    return prefix_noise(factor) * exposures(factor.T @ factor, schedule).max() ** 2


def least_noise(factor, separation):
    """A lower bound on `noise_of` any factor, for machines in every `separation`-th round, by duality.

    For V ⪰ 0 that is 0 at rounds of different machines and w_i on the diagonal at rounds of machine i, and X = FᵀF,
    Σ_i w_i·max_i Σ |X| ≥ tr(VX), and tr(AᵀA·X⁻¹) + tr(VX) ≥ 2·tr((AVAᵀ)^½).
    """
    sums = np.tril(np.ones(factor.shape))
    slope = sums @ np.linalg.inv(factor.T @ factor)
    machine = np.arange(len(factor)) % separation
    dual = np.where(machine[:, None] == machine, slope.T @ slope, 0.0)
    diagonal = np.diag(dual)
    weights = np.array([diagonal[machine == one].mean() for one in range(separation)])
    scale = np.sqrt(weights[machine] / diagonal)
    dual *= scale[:, None] * scale
    assert np.linalg.eigvalsh(dual).min() > 0
    return np.sqrt(np.linalg.eigvalsh(sums @ dual @ sums.T).clip(0)).sum() ** 2 / weights.sum()


LONG = [pytest.param(rounds, marks=pytest.mark.slow) for rounds in (200, 500, 1000)]


def ten_uses(rounds):
    separation = rounds // 10
    return Schedule(separation, (np.arange(rounds) % separation).astype(np.int32)[:, None])


@pytest.mark.parametrize("rounds", [50, *LONG])
def test_factors_for_ten_uses_are_near_the_optimum(rounds, keeping, caplog):
    separation, schedule = rounds // 10, ten_uses(rounds)
    toeplitz = ROUND_FACTORS["toeplitz"]().known(schedule)
    with caplog.at_level("INFO", "fedprivjax"):
        best = OptimalFactor().known(schedule)
    band = scipy.linalg.toeplitz(coefficients(rounds, separation - 1), np.zeros(rounds))
    assert noise_of(toeplitz, schedule) < 0.98 * noise_of(band, schedule)
    assert not np.tril(toeplitz, -separation).any()
    least = least_noise(best, separation)
    assert noise_of(best, schedule) <= 1.001 * least
    assert noise_of(best, schedule) < 0.9 * noise_of(toeplitz, schedule)
    assert OptimalFactor().excess(schedule) == pytest.approx(noise_of(best, schedule) / least - 1, abs=1e-5)
    assert ("above the least noise" in caplog.text) == (rounds > 200)


def uniform(machines, per_round, rounds, seed=1):
    return Uniform(machines, per_round).draw(rounds, np.random.default_rng(seed))


@pytest.mark.slow
@pytest.mark.timed
@pytest.mark.parametrize("cohorts", ["cyclic", "random"])
def test_the_optimal_factor_of_a_thousand_rounds_takes_at_most_as_long_as_two_hundred_inversions(cohorts, keeping):
    """About 110 were measured, 8 to 10 seconds of one core."""
    schedule = ten_uses(1000) if cohorts == "cyclic" else uniform(1000, 100, 1000)
    square = np.eye(1000) + np.tril(np.ones((1000, 1000))) / 1000
    with threadpool_limits(1):
        taken = {}
        for name, work in {
            "inversions": lambda: [np.linalg.inv(square) for _ in range(10)],
            "factor": lambda: OptimalFactor().known(schedule),
        }.items():
            start = time.process_time()
            work()
            taken[name] = time.process_time() - start
    assert taken["factor"] < 20 * taken["inversions"]
    assert noise_of(OptimalFactor().known(schedule), schedule) < 0.9 * noise_of(
        ROUND_FACTORS["toeplitz"]().known(schedule), schedule
    )


# lower bound on `noise_of` any factor, 0.1% below a long fit in float64, by machines, machines per round, and rounds
LEAST = {(100, 10, 200): 125545.93}


@pytest.mark.slow
@pytest.mark.parametrize("case", LEAST, ids=str)
def test_factors_for_random_cohorts_are_near_the_optimum(case, keeping):
    """Within 0.5% of the least noise of any factor; exposures are never understated."""
    schedule = uniform(*case)
    with threadpool_limits(1):
        best = OptimalFactor().known(schedule)
    assert LEAST[case] < noise_of(best, schedule) <= 1.005 * LEAST[case]
    assert OptimalFactor().excess(schedule) < 0.05
    stated = OptimalFactor().exposures(schedule)
    for machine in range(0, case[0], 10):
        columns = best[:, rounds_of(schedule, machine)]
        signs = np.random.default_rng(machine).choice((-1.0, 1.0), (columns.shape[1], 100))
        signs[:, 0] = 1.0
        assert np.linalg.norm(columns @ signs, axis=0).max() <= stated[machine] * (1 + 1e-12)


def test_a_fit_never_understates_the_exposure_of_machines_that_it_did_not_read(monkeypatch):
    """A fit that reads three machines: exposures are those of the schedule, and it is no worse than its start."""
    monkeypatch.setattr(fit, "MACHINES", 3)
    schedule = uniform(30, 4, 24)
    patterns = [group.patterns for group in groups(schedule)]
    start = ROUND_FACTORS["toeplitz"]().known(schedule)
    with threadpool_limits(1):
        factor = fit._fit(start, patterns)
    stated = exposures(factor.T @ factor, schedule)
    for machine in range(30):
        when = rounds_of(schedule, machine)
        assert np.linalg.norm(factor[:, when].sum(axis=1)) <= stated[machine] * (1 + 1e-12)
    assert noise_of(factor, schedule) <= noise_of(start, schedule) * (1 + 1e-12)
    assert np.sqrt(loss_of(factor, patterns) / prefix_noise(factor)) == pytest.approx(stated.max(), rel=1e-12)


def test_the_excess_bounds_any_factor():
    """The least noise stated near bad factors is below that of good ones, on schedules of overlapping cohorts."""
    for seed in range(5):
        schedule = Uniform(6, 2).draw(12, np.random.default_rng(seed))
        patterns = [group.patterns for group in groups(schedule)]
        factors = [one().known(schedule) for one in ROUND_FACTORS.values()]
        least = max(bounds.least_noise(factor, patterns) for factor in [*factors, np.eye(12)])
        assert 0 < least <= min(noise_of(factor, schedule) for factor in factors)


def test_a_fit_to_single_participation_is_near_the_optimum():
    """Each of 8 machines takes part once: the mean squared error of prefix sums is that of jax-privacy's optimum."""
    schedule = Schedule(8, np.arange(8, dtype=np.int32)[:, None])
    factor = round_factor("optimal")
    assert factor is not None
    best, start = factor.known(schedule), ROUND_FACTORS["toeplitz"]().known(schedule)
    found = [prefix_noise(one) * np.sum(one**2, axis=0).max() / 8 for one in (best, start)]
    assert 2.2332732 <= found[0] <= 1.005 * 2.2332732 < found[1]


def test_a_hundred_thousand_machines():
    """Identical participation is grouped; others take one gather of their pairs of rounds."""
    schedule = Uniform(100_000, 5000).draw(40, np.random.default_rng(0))
    stated, dense = (round_factor(name) for name in ("tree", "toeplitz"))
    assert stated is not None
    assert dense is not None
    matrix = stated.matrix(schedule)
    np.testing.assert_allclose(stated.exposures(schedule), exposures(matrix.T @ matrix, schedule))
    assert np.isfinite(dense.exposures(schedule)).all()


# ---- runs

PRIVATE = {"unit": "machine", "update_clip": 0.1, "local_epochs": 1, "batch": 3, "step_size": 0.2}
PARTIAL = Uniform(SHARES.partition_table.sizes.size, 2)


def test_mu_of_a_run():
    """μ = (s·C/m̄)·max_i √(Σ |FᵀF|)/σ, with s = 2 or 1; calibration inverts it."""
    for relation, s in (("replace-one", 2), ("add-or-remove-one", 1)):
        method = FedAvg(noise_schedule="tree", mu=1.5, relation=relation, **PRIVATE)
        start = ready(method, SHARES, PARTIAL, rounds=SMALL)
        matrix = ROUND_FACTORS["tree"]().matrix(start.plan.schedule)
        norms = [
            np.linalg.norm(matrix[:, (start.plan.schedule.participants == machine).any(axis=1)].sum(axis=1))
            for machine in range(PARTIAL.machines)
        ]
        assert start.event.mu == pytest.approx(1.5, rel=1e-6)
        assert start.protocol.noise_std == pytest.approx(s * 0.1 / 2 * max(norms) / 1.5, rel=1e-6)
        opinion = start.event.accountant_results(1e-5)[0].epsilon
        assert opinion == pytest.approx(start.event.epsilon(1e-5), rel=1e-2)


class Fixed(LinearLoss):
    """The score times the label: gradients do not depend on the parameters."""

    def value(self, score, label):
        return score


@pytest.mark.parametrize(
    ("relation", "s"), [("replace-one", 2), pytest.param("add-or-remove-one", 1, marks=pytest.mark.slow)]
)
def test_a_replaced_machine_moves_the_releases_of_a_run_by_its_exposure(relation, s):
    """Clipped updates of opposite sign, or zero updates, in all rounds of the machine with the largest exposure."""
    method = FedAvg(noise_std=1.0, noise_schedule="tree", relation=relation, **{**PRIVATE, "step_size": 50.0})
    schedule = Uniform(5, 2)

    def started(worst, sign):
        x = np.ones((15, 2), np.float32)
        x[3 * worst : 3 * worst + 3] *= sign
        where = linear_problem(x, np.ones(15), Fixed(), partition_table=np.arange(15).reshape(5, 3))
        return ready(method, where, schedule, rounds=SMALL, seed=4)

    def updates(start):
        state = jax.tree.map(jnp.asarray, start.protocol.init(start.problem, start.plan.size, start.key))
        found, inputs = [np.asarray(method.output(state))], jax.tree.map(jnp.asarray, start.inputs)
        for t in range(SMALL):
            one = jax.tree.map(lambda leaf: leaf[t], inputs)  # noqa: B023
            state = round_of(start.problem, state, one, start.key)
            found.append(np.asarray(method.output(state)))
        return np.diff(found, axis=0)

    first = started(0, 1)
    round_of = jax.jit(lambda problem, state, one, key: first.protocol.round(problem, state, one, None, key)[0])
    event = first.event
    worst = int(np.argmax(event.mus.each))
    moved = updates(started(worst, 1)) - updates(started(worst, 1 - s))
    matrix = ROUND_FACTORS["tree"]().matrix(first.plan.schedule)
    assert np.linalg.norm(matrix @ moved) == pytest.approx(event.mu * method.noise_std, rel=1e-4)


def test_too_many_rounds_are_refused_before_a_fit():
    schedule = Uniform(5, 1).draw(2001, np.random.default_rng(0))
    factor = round_factor("optimal")
    assert factor is not None
    with pytest.raises(Refusal, match="rounds must be at most 2000 for OptimalFactor, got 2001"):
        factor.exposures(schedule)


@pytest.mark.slow
def test_the_identity_is_independent_noise():
    """The same run, bit by bit."""
    runs = [
        simulate(FedAvg(noise_std=0.4, noise_schedule=schedule, **PRIVATE), SHARES, PARTIAL, rounds=SMALL, metrics=[])
        for schedule in ("independent", np.eye(SMALL).tolist())
    ]
    np.testing.assert_array_equal(runs[0].params, runs[1].params)
    assert runs[0].guarantee.mu == pytest.approx(runs[1].guarantee.mu, rel=1e-12)


def test_a_stream_is_a_factor_over_rounds():
    """`Tree()` is the noise of "tree". `Independent()` has the exposures of independent noise."""
    settings = {"noise_std": 0.4, **PRIVATE}
    one, other = (
        ready(FedAvg(noise_schedule=schedule, **settings), SHARES, PARTIAL, rounds=SMALL)
        for schedule in ("tree", Tree())
    )
    assert jax.tree.structure(one.mechanism) == jax.tree.structure(other.mechanism)
    jax.tree.map(np.testing.assert_array_equal, one.mechanism, other.mechanism)
    assert one.guarantee.mu == other.guarantee.mu
    schedule = uniform(5, 2, SMALL)
    np.testing.assert_allclose(Independent().exposures(schedule), np.sqrt(schedule.total))
    assert Independent().first_std(schedule) == 1.0
    z, normal = sampled(Independent().mechanism(schedule), SMALL, 100, (0, SMALL))
    np.testing.assert_allclose(z, normal, atol=2e-6)


@pytest.mark.parametrize(
    ("rounds", "ends"),
    [
        (3, [2, 3]),  # nodes [1, 2] and [3, 3]
        pytest.param(4, [4], marks=pytest.mark.slow),  # node [1, 4]
    ],
)
def test_noise_reaches_the_iterates(rounds, ends):
    """Without updates (C → 0), iterates are prefix sums of the noise in the mean: σ·B·Ξ."""
    method = FedAvg(noise_schedule="tree", **{**PRIVATE, "update_clip": 1e-9, "noise_std": 0.4})
    run = simulate(method, SHARES, PARTIAL, rounds=rounds, metrics=[])
    key = ready(method, SHARES, PARTIAL, rounds=rounds).key
    nodes = [np.asarray(normals(one, run.params.shape)) for one in round_keys(key, np.array(ends))]
    np.testing.assert_allclose(run.params, 0.4 * np.sum(nodes, axis=0), atol=1e-5)


@pytest.mark.slow
def test_scaffold_takes_a_matrix():
    matrix = np.tril(np.full((SMALL, SMALL), 0.1)) + 0.9 * np.eye(SMALL)
    run = simulate(
        Scaffold(mu=1.0, noise_schedule=matrix, **PRIVATE), SHARES, PARTIAL, rounds=SMALL, metrics=[], seed=1
    )
    assert run.guarantee.mu == pytest.approx(1.0)
    assert np.isfinite(run.params).all()


REFUSED = {
    "trust": ({"trust": "none", "noise_schedule": "tree"}, "noise_schedule must be 'independent' without unit = 'mach"),
    "unit": (
        {"unit": "record", "update_clip": None, "noise_schedule": "tree"},
        "noise_schedule must be 'independent' without unit = 'mach",
    ),
    "name": ({"noise_schedule": "teee"}, "unknown noise_schedule 'teee', did you mean 'tree'"),
    "upper": ({"noise_schedule": np.ones((2, 2))}, "noise_schedule must be a lower triangular matrix"),
    "diagonal": ({"noise_schedule": [[1.0, 0.0], [0.0, -1.0]]}, "must have a positive diagonal, got -1 in row 2"),
    "zero": ({"noise_schedule": [[1.0, 0.0], [1.0, 0.0]]}, "must have no 0 on its diagonal"),
    "ragged": ({"noise_schedule": [[1.0], [1.0, 1.0]]}, "noise_schedule must be"),
    "numbers": ({"noise_schedule": [1.0, 2.0]}, "noise_schedule must be a name or a matrix as a list of rows"),
    "nodes": ({"noise_schedule": Tree("sensitivity")}, "nodes must be 'uniform' without epochs, got 'sensitivity'"),
    "messages": (
        {"noise_schedule": Toeplitz()},
        "noise_schedule must be a name or a matrix as a list of rows, got Toe",
    ),
    "size": ({"noise_schedule": [[1.0]]}, "noise_schedule must have one row per round, 8, got 1"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_invalid_settings(name):
    settings, message = REFUSED[name]
    with pytest.raises(Refusal, match=message):
        ready(FedAvg(**{**PRIVATE, "noise_std": 0.1, **settings}), SHARES, PARTIAL, rounds=SMALL)


def test_secret_participation_is_refused():
    method = FedAvg(noise_std=0.1, noise_schedule="tree", **PRIVATE)
    with pytest.raises(Refusal, match="noise_schedule must be 'independent' under secret participation"):
        ready(method, SHARES, PoissonCohorts(PARTIAL.machines, 0.5), rounds=SMALL)
    plan = ready(FedAvg(noise_std=0.0, **PRIVATE), SHARES, PARTIAL, rounds=SMALL).plan
    secret = replace(plan, schedule=replace(plan.schedule, secret=PoissonCohorts(PARTIAL.machines, 0.5)))
    with pytest.raises(Refusal, match="noise_schedule must be 'independent' under secret participation"):
        method.check(SHARES, secret)


def test_an_adaptive_clip_is_refused():
    with pytest.raises(Refusal, match="noise_schedule must be 'independent' with an AdaptiveClip"):
        FedAvg(noise_std=0.1, noise_schedule="tree", **{**PRIVATE, "update_clip": AdaptiveClip(start=0.1)})


def test_a_factor_of_bandwidth_0():
    """Everyone in every round: noise over rounds gains nothing, and the band is empty."""
    factor, schedule = round_factor("toeplitz"), Full(3).draw(4, np.random.default_rng(0))
    assert factor is not None
    np.testing.assert_array_equal(factor.known(schedule), np.eye(4))
    z, normal = sampled(factor.mechanism(schedule), 4, 5, (0, 4))
    np.testing.assert_allclose(z, normal, atol=1e-6)


def test_files_name_a_schedule_or_give_a_matrix():
    for schedule, sampler in (("tree", StreamOfRounds), ([[1, 0, 0], [0.5, 1, 0], [0, 0.5, 1]], Recursive)):
        file = {
            "title": "correlated",
            "problem": {
                "dataset": "logistic",
                "options": {"examples": 12, "features": 2},
                "partition": {"kind": "iid"},
            },
            "participation": {"machines": 3, "per_round": 2, "rounds": 3},
            "protocol": [{"name": "fedavg", "mu": 1.0, "noise_schedule": schedule, **PRIVATE}],
        }
        spec = experiment.parse(file)
        assert experiment.parse(experiment.to_mapping(spec)) == spec
        assert isinstance(listed.jobs(spec)[0].prepare().first.mechanism, sampler)


def test_noise_that_does_not_fit_is_refused():
    schedule = Uniform(50, 1).draw(SMALL, np.random.default_rng(0))
    factor = given(np.tril(np.ones((SMALL, SMALL))) + np.eye(SMALL))
    with pytest.raises(
        Refusal, match=r"must keep at most 1\.07 GB of noise in a run, got 28 GB \(7 vectors of 1000000000"
    ):
        factor.check(schedule, 10**9)
    ROUND_FACTORS["tree"]().check(schedule, 10**9)
