import itertools

import numpy as np
import pytest

from fedprivjax.theory import lowy_razaviyayn as lr

RECORDS, BATCH = [3, 2, 4], [2, 1, 2]
PMF = [0.2, 0.5, 0.3]
SAMPLERS = ["replacement", "subset", "disjoint", "poisson", "full"]


def record_gradients():
    rng = np.random.default_rng(0)
    return [rng.normal(rng.normal(size=2), 1.0, (n, 2)) for n in RECORDS]


def outcomes(sampler, gradients, batch):
    """All values of a machine's minibatch mean, with their probabilities."""
    n = len(gradients)
    if sampler == "full":
        return [(1.0, gradients.mean(axis=0))]
    if sampler == "replacement":
        return [(n**-batch, gradients[list(who)].mean(axis=0)) for who in itertools.product(range(n), repeat=batch)]
    if sampler == "subset":
        subsets = list(itertools.combinations(range(n), batch))
        return [(1 / len(subsets), gradients[list(who)].mean(axis=0)) for who in subsets]
    if sampler == "disjoint":
        orders = list(itertools.permutations(range(n)))
        last = slice((n // batch - 1) * batch, n // batch * batch)
        return [(1 / len(orders), gradients[list(who[last])].mean(axis=0)) for who in orders]
    rate, masks = batch / n, itertools.product([0, 1], repeat=n)
    return [(rate ** sum(mask) * (1 - rate) ** (n - sum(mask)), np.array(mask) @ gradients / batch) for mask in masks]


def enumerated(machines, center):
    """E‖mean over the chosen machines − center‖² over sizes, subsets and every machine's outcomes."""
    total = 0.0
    for size, chance in enumerate(PMF, start=1):
        subsets = list(itertools.combinations(machines, size))
        for subset in subsets:
            for draw in itertools.product(*subset):
                weight = chance / len(subsets) * np.prod([p for p, _ in draw])
                total += weight * np.sum((np.mean([g for _, g in draw], axis=0) - center) ** 2)
    return total


def exact(sampler, data, batch, noise_std=0.0):
    return lr.aggregate_variance(
        sampler=sampler,
        gradients=[g.mean(axis=0) for g in data],
        spread=[np.mean(np.sum((g - g.mean(axis=0)) ** 2, axis=1)) for g in data],
        records=[len(g) for g in data],
        batch=batch,
        noise_std=noise_std,
        pmf=PMF,
    )


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_aggregate_variance_by_enumeration(sampler):
    data = record_gradients()
    batch = RECORDS if sampler == "full" else BATCH
    center = np.mean([g.mean(axis=0) for g in data], axis=0)
    machines = [outcomes(sampler, g, k) for g, k in zip(data, batch, strict=True)]
    means = [[(1.0, g.mean(axis=0))] for g in data]
    variance = exact(sampler, data, batch)
    assert variance.total == pytest.approx(enumerated(machines, center), rel=1e-10)
    assert variance.clients == pytest.approx(enumerated(means, center), rel=1e-10)
    assert variance.noise == 0


def test_noise_of_unequal_machines():
    """The noise is E[1/M_r]·d·mean σ_i², and the other parts do not change."""
    data, noise_std = record_gradients(), np.array([0.5, 1.0, 2.0])
    with_noise, without = exact("subset", data, BATCH, noise_std), exact("subset", data, BATCH)
    expected = 2 * sum(
        p / len(s) * np.mean([sum(c) / m**2 for c in s])
        for m, p in enumerate(PMF, start=1)
        for s in [list(itertools.combinations(noise_std**2, m))]
        for p in [p * len(s)]
    )
    assert with_noise.noise == pytest.approx(expected)
    assert with_noise[:2] == without[:2]


def test_one_machine_has_no_client_variance():
    arguments = {"gradients": [[3.0]], "spread": [1.0], "records": 1, "batch": 1, "noise_std": 0.0, "pmf": [1.0]}
    assert lr.aggregate_variance(sampler="subset", **arguments) == (0.0, 0.0, 0.0)
    assert lr.aggregate_variance(sampler="replacement", **arguments) == (1.0, 0.0, 0.0)


def random_machines(rng):
    """Three machines with equally many records, φ_i² ≥ s_i² and K = 2."""
    data = [rng.normal(rng.normal(size=2), rng.uniform(0.1, 2), (4, 2)) for _ in range(3)]
    noise_std = rng.uniform(0, 1, 3)
    deviation = [np.sqrt(np.mean(np.sum((g - g.mean(axis=0)) ** 2, axis=1))) for g in data]
    return data, noise_std, deviation


@pytest.mark.parametrize("sampler", ["replacement", "subset"])
def test_the_papers_bounds_hold(sampler):
    rng = np.random.default_rng(2)
    for _ in range(20):
        data, noise_std, deviation = random_machines(rng)
        found = exact(sampler, data, 2, noise_std)
        diversity = lr.client_diversity([g.mean(axis=0) for g in data])
        common = {"batch": 2, "noise_std": noise_std, "dimension": 2, "diversity": diversity, "pmf": PMF}
        pooled = np.concatenate(data)
        spread = np.mean(np.sum((pooled - pooled.mean(axis=0)) ** 2, axis=1))
        for bound in (
            lr.population_variance(deviation=deviation, **common),
            lr.empirical_variance(spread=spread, **common),
        ):
            assert found.total <= bound.total * (1 + 1e-12)
            assert found.clients == pytest.approx(bound.clients)


def test_the_bound_is_attained_by_equal_machines():
    gradients, spread = [[1.0], [-1.0]], [4.0, 4.0]
    found = lr.aggregate_variance(
        sampler="replacement", gradients=gradients, spread=spread, records=9, batch=3, noise_std=2.0, pmf=[0.3, 0.7]
    )
    bound = lr.population_variance(deviation=2.0, batch=3, noise_std=2.0, dimension=1, diversity=1.0, pmf=[0.3, 0.7])
    np.testing.assert_allclose(found, bound)


def test_the_printed_empirical_bound_misses_the_choice_of_machines():
    """Two machines with gradients ±1, one per round, full batches: the variance is 1, and 1/n by the printed lemma."""
    n = 5
    found = lr.aggregate_variance(
        sampler="full", gradients=[[1.0], [-1.0]], spread=0.0, records=n, batch=n, noise_std=0.0, pmf=[1.0, 0.0]
    )
    common = {"batch": n, "noise_std": 0.0, "dimension": 1, "pmf": [1.0, 0.0]}
    printed = lr.empirical_variance(spread=1.0, diversity=0.0, total_records=2 * n, **common)
    assert found.total == pytest.approx(1.0)
    assert printed.total == pytest.approx(1 / n)
    assert lr.empirical_variance(spread=0.0, diversity=1.0, **common).total == pytest.approx(1.0)


def test_the_printed_indicator():
    common = {"spread": 1.0, "noise_std": 0.0, "dimension": 1, "pmf": [0.0, 1.0], "diversity": 0.0, "batch": 5}
    assert lr.empirical_variance(**common, total_records=10).total == 0
    assert lr.empirical_variance(**common, total_records=11).total == lr.empirical_variance(**common).total == 0.1


def test_worst_variance_is_the_bound_of_a_lipschitz_loss():
    problem = lr.ProblemConstants(records=9, per_round=2, dimension=5, diameter=1.0, lipschitz=3.0)
    worst = lr.worst_variance(problem, batch=2, noise_std=0.5, clients=0.25)
    bound = lr.population_variance(
        deviation=6.0, batch=2, noise_std=0.5, dimension=5, diversity=0.0, pmf=[0.0, 1.0, 0.0]
    )
    assert worst == (pytest.approx(bound.sampling), 0.25, pytest.approx(bound.noise))


def test_refusals():
    good = {"gradients": np.ones((3, 2)), "spread": 1.0, "records": 4, "batch": 2, "noise_std": 0.0, "pmf": PMF}
    with pytest.raises(ValueError, match="did you mean 'poisson'"):
        lr.aggregate_variance(sampler="poison", **good)
    with pytest.raises(ValueError, match=r"batch must be at most records \(4.0\), got 5.0"):
        lr.aggregate_variance(sampler="subset", **{**good, "batch": 5})
    with pytest.raises(ValueError, match=r"batch must be records .* for the sampler 'full'"):
        lr.aggregate_variance(sampler="full", **good)
    with pytest.raises(ValueError, match=r"gradients must be \[machines \(3\), dimension\], got shape \(2, 2\)"):
        lr.aggregate_variance(sampler="subset", **{**good, "gradients": np.ones((2, 2))})
    problem = lr.ProblemConstants(records=9, per_round=1, dimension=1, diameter=1.0, lipschitz=1.0)
    with pytest.raises(ValueError, match=r"clients must be a single number, got shape \(2,\)"):
        lr.worst_variance(problem, batch=1, noise_std=0.0, clients=[1.0, 2.0])
