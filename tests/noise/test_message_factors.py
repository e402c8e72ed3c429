"""Noise correlated over a machine's messages: sensitivity, distribution, and optimality."""

from dataclasses import dataclass, replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import MACHINES, POOL, SOME_MACHINES, sparing
from restating import planted, unsealed

from fedprivjax import DPMu2, Dropouts, Full, NoisyMessages, Refusal, Uniform, Varying, audit, simulate
from fedprivjax.engine.prepare import ready
from fedprivjax.noise.chooser import relative_std
from fedprivjax.noise.covariance import Triangular, covariance_bands
from fedprivjax.noise.interface import normals
from fedprivjax.noise.message_factors import (
    CorrelatedSums,
    Given,
    Optimal,
    SumFactor,
    Toeplitz,
    anytime,
    anytime_workload,
    noise_lower_bound,
    noise_of,
    steps,
)
from fedprivjax.plan.seeds import round_keys

KINDS = {"toeplitz": Toeplitz(), "square root": Toeplitz(0.5), "optimal": Optimal(5)}
LAWS = {
    "some": SOME_MACHINES,
    "all": Full(MACHINES),
    "varying": Varying.between(MACHINES, 1, 3),
    "dropouts": Dropouts(Uniform(MACHINES, 3), 0.3),
}
ROUNDS = 20


def sums_of(kind, law, shares=None):
    schedule = law.draw(ROUNDS, np.random.default_rng(5))
    shares = np.ones(MACHINES) if shares is None else shares
    factor = kind.matrix(int(schedule.total.max()), partial(anytime_workload, schedule, shares))
    return CorrelatedSums(factor, schedule, shares)


def written(sums):
    """Return the coefficients of every machine's normals in every message: [rounds, per_round, machines, messages].

    They are computed by passing unit normals through the mechanism.
    """
    mechanism, schedule = sums.mechanism("materialised"), sums.schedule
    found = np.zeros((*schedule.participants.shape, MACHINES, len(mechanism.rows)))
    for t, p in zip(*np.nonzero(schedule.present), strict=True):
        machine, message = schedule.participants[t, p], schedule.counts[t, p] - 1
        row = mechanism.inputs.relative[t, p] * mechanism.rows[mechanism.inputs.count[t, p] - 1]
        assert mechanism.inputs.machine[t, p] == machine
        assert mechanism.inputs.count[t, p] - 1 == message
        found[t, p, machine] = row
    return found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("law", LAWS)
def test_one_changed_increment_changes_messages_by_at_most_the_exposure(kind, law):
    """Brute force: the shift of one message relative to the covariance of all materialised messages."""
    shares = np.array([1.0, 0.5, 0.8, 1.0])
    sums = sums_of(KINDS[kind], LAWS[law], shares)
    held, who = written(sums), sums.schedule.participants
    np.testing.assert_allclose(sums.exposure, np.where(sums.schedule.total > 0, shares, 0.0), rtol=1e-12)
    for machine in range(MACHINES):
        own = held[sums.schedule.present & (who == machine), machine]
        precision = np.linalg.inv(own @ own.T)
        worst = np.sqrt(np.diag(precision).max())
        assert worst <= sums.exposure[machine] * (1 + 1e-4)
        if law in ("some", "all"):  # with dropouts fewer messages are sent than planned
            assert worst == pytest.approx(sums.exposure[machine], rel=1e-4)
            releases = sums.releases(machine)
            assert np.sqrt(np.sum(releases**-2.0)) == pytest.approx(worst, rel=1e-4)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("law", LAWS)
def test_the_aggregates_covariance_is_that_of_the_messages(kind, law):
    sums = sums_of(KINDS[kind], LAWS[law])
    each = written(sums).sum(axis=1).reshape(ROUNDS, -1) / sums.schedule.divisor
    standing = np.cumsum(each, axis=0)
    np.testing.assert_allclose(sums.rows @ sums.rows.T, standing @ standing.T, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(sums.variances, np.sum(standing**2, axis=1), rtol=1e-4)
    assert np.all(np.triu(sums.rows, 1) == 0)


def test_power_one_is_the_uniform_schedule():
    """The bands of standing noise and the factor A/√n give the same covariance."""
    sums = sums_of(Toeplitz(1.0), SOME_MACHINES)
    bands = covariance_bands(sums.schedule, relative_std("uniform", sums.schedule))
    dense = sums.rows @ sums.rows.T
    for lag, band in enumerate(bands):
        np.testing.assert_allclose(np.diag(dense, -lag), band[: ROUNDS - lag], rtol=1e-9, atol=1e-12)
    assert np.abs(np.tril(dense, -len(bands))).max() < 1e-12


@pytest.mark.parametrize("stretch", [2 / 3, 1.0, 3 / 2])
def test_samples_have_the_distribution_and_no_other_scale(stretch):
    """The squared norm of the whitened aggregates is χ². Two thirds and three halves of the noise are rejected."""
    sums, dimension = sums_of(Toeplitz(), LAWS["dropouts"]), 300
    keys = jax.random.split(jax.random.key(3), ROUNDS)
    for method in ("covariance", "materialised"):
        mechanism = sums.mechanism(method)
        state = mechanism.init(dimension, jax.random.key(4))
        drawn = stretch * np.asarray(mechanism.draw(state, mechanism.inputs, keys, dimension)[1], float)
        squares = np.sum(np.linalg.solve(sums.rows, drawn) ** 2)
        count = ROUNDS * dimension
        assert (abs(squares - count) < 4 * np.sqrt(2 * count)) == (stretch == 1.0), method


@pytest.mark.slow
def test_blocks_of_any_size_and_seeds_side_by_side_take_the_same_rows():
    """The rows are those of B·ξ, with ξ each round's normals. 13 rounds are not a multiple of the product's strips."""
    rounds, dimension, seeds = 13, 5, jax.random.split(jax.random.key(1), 3)
    factors = np.tril(np.random.default_rng(0).normal(size=(3, rounds, rounds))).astype(np.float32)
    keys = jax.vmap(lambda seed: round_keys(seed, np.arange(1, rounds + 1)))(seeds)
    fresh = jax.vmap(jax.vmap(lambda key: normals(key, (dimension,))))(keys)

    def drawn(rows, seed, keys):
        mechanism, found = Triangular(rows), []
        state = mechanism.init(dimension, seed)
        for first, end in ((0, 5), (5, 6), (6, 13)):
            state, block = mechanism.draw(state, rows[first:end], keys[first:end], dimension)
            found.append(block)
        return jnp.concatenate(found), state[1]

    one_place = jax.jit(jax.vmap(drawn, out_axes=(0, None)))  # rejected if seeds have separate devices
    found, done = one_place(factors, seeds, keys)
    np.testing.assert_allclose(found, factors @ np.asarray(fresh), rtol=1e-4, atol=1e-5)
    assert int(done) == rounds


@pytest.mark.parametrize("rounds", sparing([1, 2, 5, 70], []))
def test_a_factor_of_any_number_of_rounds_is_stored_in_full(rounds):
    rows = np.eye(rounds, dtype=np.float32)
    noise, done = Triangular(rows).init(4, jax.random.key(2))
    assert noise.shape == (rounds, 4)
    assert int(done) == 0
    assert len(np.unique(noise)) == noise.size
    assert Triangular(rows).floats(4) == 2 * noise.size  # all rounds' normals, and a copy during the product


# mean squared error of prefix sums per unit of σ², single participation, by jax-privacy 2.0.0 (jax 0.10.2, float64):
# mean(dense.per_query_error(strategy_matrix=C)) of its optimum C = dense.optimize(n, max_optimizer_steps=300); and of
# C = toeplitz.materialize_lower_triangular(c), times toeplitz.sensitivity_squared(c), with the c that it has for the
# largest error, toeplitz.optimal_max_error_strategy_coefs(n)
JAX_PRIVACY = {
    8: (2.233273221070053, 2.514944004537689),
    32: (3.579999382137289, 4.048066022005728),
    128: (5.342260871376508, 5.9967473737552766),
}


@pytest.mark.parametrize("messages", sparing(list(JAX_PRIVACY), [8, 32]))
def test_prefix_sums_have_the_error_that_jax_privacy_finds(messages):
    """The square root of A agrees up to rounding in float64, the optimum and its lower bound to 1 in 1000."""
    optimum, square_root = JAX_PRIVACY[messages]
    sums = np.tril(np.ones((messages, messages)))
    squares = sums.T @ sums
    ours = Toeplitz(0.5).matrix(messages, lambda messages: squares)
    assert noise_of(squares, ours) / messages == pytest.approx(square_root, rel=1e-10)
    best = Optimal().matrix(messages, lambda messages: squares)
    assert noise_of(squares, best) / messages == pytest.approx(optimum, rel=1e-3)
    assert noise_lower_bound(squares, best) / messages == pytest.approx(optimum, rel=1e-3)
    assert noise_lower_bound(squares, best) <= noise_of(squares, best)


def test_noise_falls_from_the_papers_to_the_optimum_and_no_further_than_the_bound():
    """With full participation, divided by T: in w 0.71, 0.66, 0.61 and in x 0.52, 0.45, 0.40, as for T = 300."""
    rounds = 60
    expected = {"steps": (steps, 0.708, 0.658, 0.60), "anytime": (anytime, 0.517, 0.448, 0.40)}
    for name, (workload, *figures) in expected.items():
        made = workload(rounds) @ np.tril(np.ones((rounds, rounds)))
        squares = made.T @ made
        found = []
        for kind in (Toeplitz(1.0), Toeplitz(0.7), Optimal(60)):
            factor = kind.matrix(rounds, lambda messages, squares=squares: squares)
            np.testing.assert_allclose(np.linalg.norm(factor, axis=0).max(), 1.0, rtol=1e-12)
            found.append(np.sqrt(noise_of(squares, factor) / rounds) / rounds)
        bound = np.sqrt(noise_lower_bound(squares, factor) / rounds) / rounds
        np.testing.assert_allclose(found, figures, rtol=0.03, err_msg=name)
        assert bound <= found[-1] <= 1.02 * bound, name


def test_no_factor_is_below_the_bound():
    rng = np.random.default_rng(0)
    schedule = Uniform(MACHINES, 2).draw(24, rng)
    messages = int(schedule.total.max())
    squares = anytime_workload(schedule, np.ones(MACHINES), messages)
    best = Optimal(300).matrix(messages, lambda messages: squares)
    bound = noise_lower_bound(squares, best)
    assert bound <= noise_of(squares, best) <= 1.001 * bound
    for _ in range(50):
        factor = best + 0.1 * np.tril(rng.normal(size=best.shape))
        assert noise_of(squares, factor / np.linalg.norm(factor, axis=0)) >= bound


@pytest.mark.parametrize("law", LAWS)
def test_the_workload_is_that_of_the_schedule(law):
    """Compared with every machine's normals passed through the protocol's sums, at equal norms of the machines."""
    shares = np.array([1.0, 0.5, 0.8, 1.0])
    sums = sums_of(Toeplitz(), LAWS[law], shares)
    schedule, most = sums.schedule, len(sums.factor)
    held = np.zeros((ROUNDS, MACHINES, most))
    for t, p in zip(*np.nonzero(schedule.present), strict=True):
        machine, message = schedule.participants[t, p], schedule.counts[t, p] - 1
        held[t, machine] += sums.inverse[message] / shares[machine] / schedule.divisor
    reported = anytime(ROUNDS) @ np.cumsum(held, axis=0).reshape(ROUNDS, -1)
    squares = anytime_workload(schedule, shares, most)
    assert noise_of(squares, sums.factor) == pytest.approx(np.sum(reported**2), rel=1e-9)


def fitted(law, machines, rounds, evenly):
    """Return the reported noise per round, with a factor fitted to the sampled schedule, or to equal gaps."""
    schedule = law.draw(rounds, np.random.default_rng(0))
    most, shares = int(schedule.total.max()), np.ones(machines)
    turns = np.flatnonzero(np.diff(np.arange(rounds + 1) * most // rounds, prepend=0)[1:])[:, None]
    made = anytime(rounds) @ (np.arange(rounds)[:, None] >= turns.T)
    squares = made.T @ made if evenly else anytime_workload(schedule, shares, most)
    sums = CorrelatedSums(Optimal().matrix(most, lambda messages: squares), schedule, shares)
    return np.linalg.norm(anytime(rounds) @ sums.rows) / np.sqrt(rounds)


@pytest.mark.parametrize(("per_round", "less"), sparing([(10, 0.95), (2, 0.85)], []))
def test_a_factor_fitted_to_the_sampled_gaps_has_less_noise_than_one_fitted_to_equal_gaps(per_round, less):
    """7.6% less at half participation of 20 machines, 21% less at a tenth."""
    drawn, even = (fitted(Uniform(20, per_round), 20, 240, evenly) for evenly in (False, True))
    assert drawn < less * even


@pytest.mark.parametrize("trust", ["none", "server"])
def test_a_target_is_met_and_the_noise_reported(trust):
    protocol = DPMu2(mu=2.0, clip=0.5, step_size=0.1, trust=trust, noise_schedule="toeplitz")
    start = ready(protocol, POOL, SOME_MACHINES, metrics=())
    assert start.event.mu == pytest.approx(2.0, rel=1e-9)
    closest = min(result.epsilon for result in start.event.accountant_results(1e-5))  # of upper bounds
    assert closest == pytest.approx(start.event.epsilon(1e-5), rel=1e-3)
    rows = start.protocol.message_noise.sums(start.plan).rows
    variances = float(start.protocol.noise_std) ** 2 * np.sum(rows**2, axis=1)
    np.testing.assert_allclose(start.protocol.noise_variances(start.plan), variances)


def test_every_way_to_write_it():
    matrix = Toeplitz(0.6).matrix(30, lambda messages: np.eye(messages))
    found = []
    for written_as in ({"toeplitz": 0.6}, Toeplitz(0.6), matrix, matrix.tolist()):
        start = ready(DPMu2(mu=1.0, clip=0.5, noise_schedule=written_as), POOL, SOME_MACHINES, metrics=())
        found.append(start.protocol.noise_variances(start.plan))
    np.testing.assert_allclose(found, found[:1] * 4, rtol=1e-9)
    assert isinstance(DPMu2(noise_schedule=matrix).noise_schedule, Given)
    hash(DPMu2(noise_schedule=matrix).noise_schedule)


def test_a_better_factor_has_a_larger_default_step():
    found = {}
    for kind in ("uniform", "toeplitz", "optimal"):
        found[kind] = ready(
            DPMu2(mu=0.1, clip=0.5, noise_schedule=kind), POOL, SOME_MACHINES, metrics=()
        ).protocol.step_size
    assert found["uniform"] < found["toeplitz"] < found["optimal"]


def quieter(private, facts, method):
    """Return a mechanism of messages with half of the noise of the accounting."""
    made = NoisyMessages.mechanism(private, facts, "materialised")
    return replace(made, rows=made.rows / 2)


@pytest.mark.slow
@pytest.mark.usefixtures("small_audits")
def test_it_is_audited():
    settings = {"epsilon": 2.0, "clip": 1.0, "noise_schedule": "toeplitz"}
    assert not audit(DPMu2(**settings), runs=2000).refuted
    assert audit(planted(DPMu2(**settings), unsealed(mechanism=quieter)), runs=2000).refuted


def steep(diagonal, messages=8):
    """Return a factor with columns of norm 1, whose inverse grows like a power of the off-diagonal entry."""
    factor = np.tril(np.random.default_rng(0).normal(size=(messages, messages)))
    np.fill_diagonal(factor, diagonal)
    factor[-1, -1] = 1.0
    return factor / np.linalg.norm(factor, axis=0)


@pytest.mark.parametrize("diagonal", [0.5, 0.1, 0.01])
def test_a_factor_keeps_its_privacy_in_float32_or_is_refused(diagonal):
    """The sensitivity to one increment, by the inverse of F⁻¹ in float32: at 0.01 it is a hundredfold."""
    factor = steep(diagonal)
    held = np.linalg.inv(factor).astype(np.float32).astype(float)
    moved = np.linalg.norm(np.linalg.inv(held), axis=0).max()
    schedule = Full(MACHINES).draw(len(factor), np.random.default_rng(0))
    if moved > 1.001:
        assert diagonal == 0.01
        with pytest.raises(Refusal, match="must be a factor whose inverse float32 can represent"):
            CorrelatedSums(factor, schedule, np.ones(MACHINES))
    else:
        sums = CorrelatedSums(factor, schedule, np.ones(MACHINES))
        assert moved <= sums.exposure.max() * (1 + 1e-4)


@dataclass(frozen=True)
class Own(SumFactor):
    """A custom factor that is invalid."""

    what: str

    def matrix(self, messages, workload):
        factor = np.tril(np.ones((messages, messages)))
        factor[-1, 0] = {"nan": np.nan, "inf": np.inf}.get(self.what, 1.0)
        factor[0, 1] = self.what == "upper"
        factor[1, 1] = self.what != "zero"
        tiny = np.where(np.arange(messages)[:, None] == 0, 1e-9, 1.0)
        changed = {"small": factor[1:, 1:], "wide": factor[:, 1:], "complex": factor + 1j, "apart": factor * tiny}
        return changed.get(self.what, factor)


@pytest.mark.parametrize("target", [{"mu": 1.0}, {"noise_std": 1.0}])
@pytest.mark.parametrize(
    ("what", "why"),
    [
        ("nan", "must be finite"),
        ("inf", "must be finite"),
        ("upper", "must be a lower triangular matrix, got 1 in row 1, column 2"),
        ("zero", "must have no 0 on its diagonal, got one in row 2"),
        ("small", "must make a factor of 6 rows for this schedule, got 5"),
        ("wide", r"must be a square matrix, got shape \(6, 5\)"),
        ("complex", "must be a matrix of real numbers, got complex128"),
        ("apart", "must be a factor whose noise covariance over rounds has a Cholesky factor in float64"),
    ],
)
def test_an_invalid_custom_factor_is_refused(what, why, target):
    protocol = DPMu2(clip=0.5, step_size=0.1, noise_schedule=Own(what), **target)
    with pytest.raises(Refusal, match=why):
        ready(protocol, POOL, Full(MACHINES), rounds=6, metrics=())


def test_refusals_say_why():
    nested = np.eye(3)
    nested[0, 2] = 0.25
    for schedule, why in (
        (nested, "must be a lower triangular matrix, got 0.25 in row 1, column 3"),
        (2 * np.eye(3), r"must have columns of norm at most 1, got 2 \(column 1\)"),
        (np.ones((2, 3)), r"must be a square matrix, got shape \(2, 3\)"),
        (np.diag([1.0, 0.0]), "must have no 0 on its diagonal, got one in row 2"),
        ({"toeplitz": 1.5}, "power must be a number from 0 to 1, got 1.5"),
        ({"optimal": 0}, "iterations must be at least 1, got 0"),
        ({"toeplitz": 0.5, "optimal": 3}, "must be one name with its setting"),
        ("toeplits", "toeplitz"),
    ):
        with pytest.raises(Refusal, match=why):
            DPMu2(mu=1.0, noise_schedule=schedule)
    with pytest.raises(Refusal, match=r"must have at least .* rows for this schedule, got 3"):
        simulate(DPMu2(mu=1.0, clip=0.5, noise_schedule=np.eye(3)), POOL, SOME_MACHINES)
    with pytest.raises(Refusal, match="cancel=False must go with"):
        DPMu2(mu=1.0, cancel=False, noise_schedule="toeplitz")
