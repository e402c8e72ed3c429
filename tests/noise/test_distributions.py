"""Every mechanism has its distribution: z at unit scale has independent coordinates and covariance K over rounds."""

from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import sparing
from noise_distributions import LIMIT, SAMPLES, misfit, path, standing_covariance
from scipy.stats import kstest, norm

from fedprivjax import DPMu2, Full, Given, Uniform, draw_plan
from fedprivjax.noise import Fresh, PerMachine, Silent, choose
from fedprivjax.noise.chooser import cheapest, relative_std
from fedprivjax.noise.covariance import Cancelling, Covariance, factor, padded
from fedprivjax.plan.schedule import Schedule, Size
from fedprivjax.sweeps.configurations import stacked

MACHINES, ROUNDS = 5, 12
ROWS = np.array([np.random.default_rng([9, t]).permutation(MACHINES)[:2] for t in range(ROUNDS)])
PARTIAL = Schedule(MACHINES, ROWS)
FEW = Schedule(  # one to three of three slots are filled, and some of these drop out
    MACHINES,
    np.array([np.random.default_rng([7, t]).permutation(MACHINES)[:3] for t in range(ROUNDS)]),
    np.array([3, 2, 1, 3, 3, 2, 3, 1, 2, 3, 3, 2]),
    dropped=np.isin(np.arange(3 * ROUNDS).reshape(ROUNDS, 3), [4, 13, 18, 20, 28, 31]),
    expected=1.9,
)
EVERYONE = Full(3).draw(ROUNDS, np.random.default_rng(0))
ABSENT = (np.random.default_rng(5).random((ROUNDS, 3)) < 0.6) & (np.arange(ROUNDS)[:, None] % 3 != np.arange(3))
DROPOUTS = replace(EVERYONE, dropped=ABSENT, expected=1.8)
CANCELLING = ("materialised", "replayed", "covariance")


class Law(NamedTuple):
    source: Any
    covariance: np.ndarray


def fresh_covariance(relative):
    return np.diag([sum(r**2 for r in row) / len(row) ** 2 for row in relative])


def summed_covariance(relative):
    """Return the covariance of a running sum of independent noise: Cov(s, t) is the variance up to min(s, t)."""
    up_to = np.cumsum(np.diag(fresh_covariance(relative)))
    return np.minimum.outer(up_to, up_to)


def uneven(schedule):
    """Return relative noise that differs over machines and rounds, to detect mixed-up entries."""
    return np.random.default_rng(1).uniform(0.5, 2.0, schedule.participants.shape)


def distributions():
    some, everyones = uneven(PARTIAL), uneven(EVERYONE)
    for name, schedule in {"few": FEW, "dropouts": DROPOUTS}.items():
        for method in CANCELLING:
            source = choose(schedule, uneven(schedule), SAMPLES, method, cancel=True)
            yield f"{name}-{method}", Law(source, standing_covariance(uneven(schedule), schedule))
    for method in ("materialised", "aggregate"):
        summed = choose(FEW, uneven(FEW), SAMPLES, method, cancel=False, accumulate=True)
        sent = np.where(FEW.present, uneven(FEW), 0.0) * 3 / FEW.divisor
        yield f"few-accumulated-{method}", Law(summed, summed_covariance(sent))
    for method in CANCELLING:
        source = choose(PARTIAL, some, SAMPLES, method, cancel=True)
        yield f"cancelling-{method}", Law(source, standing_covariance(some, PARTIAL))
    for schedule in ("uniform", "proportional", "gap", tuple(1.0 + k for k in range(ROUNDS))):
        relative = relative_std(schedule, PARTIAL)
        name = schedule if isinstance(schedule, str) else "sequence"
        source = choose(PARTIAL, relative, SAMPLES, "covariance", cancel=True)
        yield f"cancelling-{name}", Law(source, standing_covariance(relative, PARTIAL))
    for method in (*CANCELLING, "aggregate"):
        source = choose(EVERYONE, everyones, SAMPLES, method, cancel=True)
        yield f"everyone-{method}", Law(source, standing_covariance(everyones, EVERYONE))
    for method in ("materialised", "aggregate"):
        fresh = choose(PARTIAL, some, SAMPLES, method, cancel=False)
        yield f"fresh-{method}", Law(fresh, fresh_covariance(some))
        summed = choose(PARTIAL, some, SAMPLES, method, cancel=False, accumulate=True)
        yield f"accumulated-{method}", Law(summed, summed_covariance(some))
    server = np.linspace(0.5, 2.0, ROUNDS)
    yield "server", Law(Fresh(jnp.asarray(server, jnp.float32)), np.diag(server**2))


DISTRIBUTIONS = dict(distributions())


def p_value(z, covariance):
    """Return the Kolmogorov-Smirnov p-value of the whitened path against the standard normal."""
    white = np.linalg.solve(np.linalg.cholesky(covariance), z[:, :4000])
    return kstest(white.ravel(), norm.cdf).pvalue


@cache
def path_of(name):
    return path(DISTRIBUTIONS[name].source)


QUICK = (
    *("cancelling-materialised", "cancelling-covariance", "cancelling-gap", "everyone-aggregate"),
    *("fresh-materialised", "accumulated-materialised", "server"),
    *("few-materialised", "few-covariance", "dropouts-covariance"),
)


@pytest.mark.parametrize("name", sparing(DISTRIBUTIONS, QUICK))
def test_covariance_over_rounds(name):
    assert misfit(path_of(name), DISTRIBUTIONS[name].covariance) < LIMIT


@pytest.mark.parametrize("name", sparing(DISTRIBUTIONS, QUICK))
@pytest.mark.parametrize("scale", [2 / 3, 3 / 2, 0.95, 1.05])
def test_another_scale_is_rejected(name, scale):
    assert misfit(scale * path_of(name), DISTRIBUTIONS[name].covariance) > 1.5 * LIMIT
    assert 0.9 < scale < 1.1 or p_value(scale * path_of(name), DISTRIBUTIONS[name].covariance) < 1e-6


@pytest.mark.parametrize("name", sparing(DISTRIBUTIONS, QUICK))
def test_normal(name):
    assert p_value(path_of(name), DISTRIBUTIONS[name].covariance) > 1e-3


def test_another_shape_of_the_right_variance_is_rejected():
    z = np.random.default_rng(2).laplace(scale=0.5**0.5, size=(ROUNDS, SAMPLES))
    assert misfit(z, np.eye(ROUNDS)) < 3 * LIMIT  # second moments alone would not detect it
    assert p_value(z, np.eye(ROUNDS)) < 1e-6


@pytest.mark.parametrize("name", sparing(DISTRIBUTIONS, QUICK))
def test_coordinates_are_independent(name):
    z = path_of(name)
    for shift in (1, 2):
        products = z[:, shift:] * z[:, :-shift]
        deviation = products.sum(axis=1) / np.sqrt(np.sum(products**2, axis=1))
        assert np.abs(deviation).max() < LIMIT


def test_one_sample_for_all_rounds_is_detected():
    noise = DISTRIBUTIONS["server"]
    key = jax.random.split(jax.random.key(0), 1)
    same = np.asarray(noise.source.draw((), noise.source.inputs, jnp.repeat(key, ROUNDS), SAMPLES)[1], np.float64)
    assert misfit(same, noise.covariance) > 4 * LIMIT


def test_the_distributions_of_different_mechanisms_differ():
    """Cancelling, accumulated and fresh noise fail each other's tests."""
    names = ("cancelling-covariance", "fresh-materialised", "accumulated-materialised")
    for one in names:
        for other in names:
            assert (misfit(path_of(one), DISTRIBUTIONS[other].covariance) < LIMIT) == (one == other)


@pytest.mark.parametrize(
    "name",
    sparing(
        [*(f"cancelling-{method}" for method in CANCELLING), "accumulated-materialised", "accumulated-aggregate"],
        [],
    ),
)
def test_blocks_change_nothing(name):
    source = DISTRIBUTIONS[name].source
    whole = path(source, dimension=50, blocks=(12,))
    np.testing.assert_allclose(path(source, dimension=50, blocks=(1, 7, 4)), whole, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "name",
    sparing(
        ["cancelling-materialised", "fresh-materialised", "accumulated-materialised"],
        ["cancelling-materialised"],
    ),
)
def test_messages_add_up_to_the_aggregate(name):
    source, dimension = DISTRIBUTIONS[name].source, 8
    memory, total = source.message_memory(dimension, jax.random.key(11)), 0.0
    expected = path(source, dimension)
    running = isinstance(source, Cancelling) or source.accumulate
    for t in range(ROUNDS):
        inputs = jax.tree.map(lambda leaf, t=t: leaf[t], source.inputs)
        key = jax.random.fold_in(jax.random.key(11), t + 1)
        memory, sent = source.message_noise(memory, inputs, key, dimension)
        total = np.mean(sent, axis=0) + (total if running else 0.0)
        np.testing.assert_allclose(total, expected[t], rtol=1e-5, atol=1e-5)


def test_absent_machines_add_nothing_and_keep_their_noise():
    """This holds even if the entry of an empty slot names a machine that sends in that round."""
    rows = np.array([[0, 1], [2, 2], [0, 1]])  # only machine 2 is scheduled in round 2
    schedule = Schedule(3, rows, np.array([2, 1, 2]), expected=1.5)
    source = choose(schedule, np.ones((3, 2)), 4, "materialised", cancel=True)
    memory = source.message_memory(4, jax.random.key(0)) + 1.0
    inputs = jax.tree.map(lambda leaf: leaf[1], source.inputs)
    after, added = source.message_noise(memory, inputs, jax.random.key(1), 4)
    assert not added[1].any()
    np.testing.assert_array_equal(after[:2], memory[:2])
    np.testing.assert_allclose(after[2] - memory[2], added[0], rtol=1e-6)


def test_dropouts_exclude_the_shortcut_of_full_participation():
    """The shortcut would treat the earlier noise of a machine that drops out as fresh."""
    ones = np.ones((ROUNDS, 3))
    assert isinstance(choose(DROPOUTS, ones, 10, cancel=True), Covariance)
    with pytest.raises(ValueError, match="full participation or no cancellation"):
        choose(DROPOUTS, ones, 10, "aggregate", cancel=True)
    with pytest.raises(ValueError, match="divisor must be left out"):
        choose(DROPOUTS, ones, 10, cancel=True, divisor=DROPOUTS.present.sum(axis=1))


def test_silent_samples_nothing():
    source = Silent()
    assert source.draw(source.init(3, None), (), None, 3) == ((), None)


def test_the_cheapest_exact_sampler_is_chosen():
    ones = np.ones((ROUNDS, 2))
    assert isinstance(choose(PARTIAL, ones, 10, cancel=False), Fresh)
    assert isinstance(choose(PARTIAL, ones, 10, "materialised", cancel=False), PerMachine)
    assert isinstance(choose(PARTIAL, ones, 10, "materialised", cancel=True), Cancelling)
    assert isinstance(choose(PARTIAL, ones, 10, cancel=True), Covariance)
    assert isinstance(choose(EVERYONE, np.ones((ROUNDS, 3)), 10, cancel=True), Fresh)


@pytest.mark.parametrize(
    ("machines", "per_round", "bandwidth", "dimension", "way"),
    [
        (100, 50, 20, 7850, "covariance"),
        (10**6, 50, 1199, 7850, "covariance"),
        (100, 50, 1000, 10**6, "materialised"),  # a band of a thousand rounds does not fit,
        (10**6, 50, 1000, 10**6, "replayed"),  # and neither do a million machines' vectors
        (10, 1, 1000, 100, "materialised"),  # a long band for one participant's sample
    ],
)
def test_corners_of_the_choice(machines, per_round, bandwidth, dimension, way):
    assert cheapest(Size(machines, per_round, 1200), bandwidth, dimension) == way


def test_a_factor_that_does_not_fit_is_not_chosen():
    assert cheapest(Size(10**6, 50, 5_000), 4_999, 1) == "covariance"
    assert cheapest(Size(10**9, 50, 20_000), 19_999, 1) == "replayed"


def test_impossible_methods_are_refused():
    ones = np.ones((ROUNDS, 2))
    with pytest.raises(ValueError, match="full participation or no cancellation"):
        choose(PARTIAL, ones, 10, "aggregate", cancel=True)
    for method in ("replayed", "covariance"):
        with pytest.raises(ValueError, match="must have noise that is cancelled"):
            choose(PARTIAL, ones, 10, method, cancel=False)
    with pytest.raises(ValueError, match="unknown noise method 'agregate', did you mean 'aggregate'"):
        choose(PARTIAL, ones, 10, "agregate", cancel=True)


def test_factor_gives_back_the_covariance():
    """B·Bᵀ = K in float64, banded, including a schedule in which some machines never take part."""
    sizes = (5, 2, 12), (40, 3, 25), (7, 6, 30), (3, 1, 1)
    drawn = [Uniform(n, m).draw(rounds, np.random.default_rng([n, rounds])) for n, m, rounds in sizes]
    for schedule in (*drawn, FEW, DROPOUTS):
        rounds = schedule.size.rounds
        relative = uneven(schedule)
        K = standing_covariance(relative, schedule)
        rows = factor(schedule, relative)
        b = rows.shape[1] - 1
        B = np.zeros((rounds, rounds))
        for t in range(rounds):
            for lag in range(min(b, t) + 1):
                B[t, t - lag] = rows[t, b - lag]
        np.testing.assert_allclose(B @ B.T, K, rtol=1e-10, atol=1e-12)
        assert b == max(abs(s - t) for s, t in zip(*np.nonzero(K), strict=True))  # of minimal width


@pytest.mark.slow
def test_mechanisms_of_several_seeds_stack():
    """Bands of different widths are padded to one width, and the noise stays the same."""
    schedules = [Uniform(30, 6).draw(ROUNDS, np.random.default_rng(seed)) for seed in range(2)]
    sources = [choose(s, uneven(s), 4, "covariance", cancel=True) for s in schedules]
    both = stacked(sources[0].align([*sources, Covariance(padded(np.asarray(sources[0].inputs), 24))]))
    assert both.bandwidth == 24
    for k in (0, 1):
        one = Covariance(both.inputs[k])
        np.testing.assert_allclose(path(one, 4), path(sources[k], 4), rtol=1e-5, atol=1e-6)


def test_protocol_hands_its_schedule_to_the_mechanism(softmax_problem):
    plan = draw_plan(softmax_problem, Given(MACHINES, ROWS), ROUNDS)
    source = DPMu2(noise_std=1.0, noise_schedule="gap").mechanism(softmax_problem, plan, "materialised")
    np.testing.assert_allclose(source.inputs.relative, relative_std("gap", plan.schedule), rtol=1e-6)
    np.testing.assert_array_equal(source.inputs.machine, ROWS)
