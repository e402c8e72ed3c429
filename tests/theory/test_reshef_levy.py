import numpy as np
import pytest

from fedprivjax import theory

NUMBERS = {"rounds": 200, "dimension": 30, "diameter": 0.1, "increment": 118.1}
MNIST = {"dimension": 7850, "diameter": 0.1, "increment": 118.1}


def step(**changes):
    values = {"trust": "none", "mu": 4.0, "machines": 20, "per_round": 10, "smoothness": None}
    return theory.step_size(**{**NUMBERS, **values, **changes})


def standing_noise(rng, machines, per_round, rounds, noise_std, dimension):
    """Σ_t of the mean of all machines' last noises under balanced participation; shape [dimension]."""
    last, total = np.zeros((machines, dimension)), np.zeros(dimension)
    for t in range(rounds):
        cohort = (np.arange(per_round) + t * per_round) % machines
        last[cohort] = noise_std * rng.normal(size=(per_round, dimension))
        total += last.sum(axis=0) / per_round
    return total


def test_increment_bound_of_the_papers_experiments():
    lipschitz, smoothness = np.sqrt(2 * 785), 785 / 2
    assert theory.increment_bound(lipschitz, smoothness, 0.1) == pytest.approx(118.1, abs=0.05)
    assert theory.increment_bound(1.0, 0.0, 5.0) == 1.0


@pytest.mark.parametrize("per_round", [10, 20])
def test_noise_in_the_last_iterate_has_norm_of_the_diameter(per_round):
    """With σ² = 4S²·n/μ², η·Σ_t noise_t has norm D at the default step, for all and for half of the machines."""
    rng = np.random.default_rng(0)
    machines, rounds, mu, dimension = 20, 200, 4.0, 4000
    noise_std = 2 * 118.1 * np.sqrt(rounds * per_round / machines) / mu
    total = standing_noise(rng, machines, per_round, rounds, noise_std, dimension)
    eta = step(per_round=per_round, dimension=dimension)
    assert eta * np.linalg.norm(total) == pytest.approx(0.1, rel=0.05)


def test_fresh_noise_in_the_last_iterate_has_norm_of_the_diameter():
    rng = np.random.default_rng(1)
    per_round, rounds, mu, dimension = 10, 200, 4.0, 4000
    noise = rng.normal(0, 2 * 118.1 / mu / np.sqrt(per_round), (rounds, dimension))
    total = np.cumsum(noise, axis=0).sum(axis=0)
    eta = step(noise_schedule="independent", per_round=per_round, rounds=rounds, dimension=dimension)
    assert eta * np.linalg.norm(total) == pytest.approx(0.1, rel=0.05)


def test_full_participation_formulas():
    root = 2 * 118.1 * 200 * np.sqrt(30)
    assert step(per_round=20) == pytest.approx(4 * 0.1 * np.sqrt(20) / root)
    assert step(per_round=20, trust="server") == pytest.approx(4 * 0.1 * 20 / root)


def test_partial_participation_formulas():
    root = 2 * 118.1 * 200 * np.sqrt(30)
    assert step(trust="server") == pytest.approx(4 * 0.1 * 10 / root)
    assert step() == pytest.approx(4 * 0.1 * 10 / (root * np.sqrt(20)))
    growth = np.sqrt(1 + np.log(200))
    assert step(noise_schedule="proportional") == pytest.approx(step() / growth)
    assert step(noise_schedule="proportional", trust="server") == pytest.approx(step(trust="server") / growth)
    assert step(noise_schedule="gap") == step(noise_schedule=[1.0, 2.0]) == step()


def test_cap():
    cap = 1 / (4 * 3.0 * 200)
    assert step(mu=np.inf, smoothness=3.0) == pytest.approx(cap)
    assert step(mu=1e9, smoothness=3.0) == pytest.approx(cap)
    assert step(mu=1e-9, smoothness=3.0) == step(mu=1e-9) < cap
    assert step(noise_schedule="independent", mu=np.inf, smoothness=3.0) == pytest.approx(cap)
    np.testing.assert_allclose(step(mu=[1e-9, np.inf], smoothness=3.0), [step(mu=1e-9), cap])


def test_broadcasts_over_mu_diameter_and_increment():
    mu, diameter, increment = np.array([1.0, 2.0]), np.array([[0.1], [3.0], [4.0]]), np.ones((5, 1, 1))
    table = step(mu=mu, diameter=diameter, increment=increment, smoothness=1.0)
    assert table.shape == (5, 3, 2)
    assert table[4, 1, 0] == step(mu=1.0, diameter=3.0, increment=1.0, smoothness=1.0)
    assert type(step()) is float


def bounds(**changes):
    values = {**MNIST, "mu": 8.0, "machines": 100, "rounds": 600, "smoothness": 392.5}
    values |= {"optimum_gradient": 0.3, "deviation": 5.0} | changes
    return theory.full_bound(trust="none", **values), theory.full_bound(trust="server", **values)


def test_bounds_are_the_papers_expressions():
    first, sampling = (0.3 + 78.5) / 600, 5 / np.sqrt(60_000)
    noise = 2 * 118.1 * np.sqrt(7850) / (8 * 600)
    untrusted, trusted = bounds()
    assert untrusted == pytest.approx(0.4 * (first + noise / 10 + sampling))
    assert trusted == pytest.approx(0.4 * (first + noise / 100 + sampling))


def test_bounds_agree_where_trust_cannot_matter():
    for changes in ({"mu": np.inf}, {"machines": 1}):
        untrusted, trusted = bounds(**changes)
        assert untrusted == trusted
    untrusted, trusted = bounds(mu=np.array([1.0, 2.0]))
    assert (trusted < untrusted).all()


def test_noisy_sgd_step_minimises_the_bound_it_comes_with():
    values = {"diameter": 0.1, "rounds": 50, "lipschitz": 3.0, "dimension": 20, "noise_std_of_mean": 2.0}
    best, bound = theory.noisy_sgd_step(**values), theory.noisy_sgd_bound(**values)

    def regret(eta):
        return 0.1**2 / (2 * eta * 50) + eta * (3.0**2 + 20 * 2.0**2) / 2

    assert regret(best) == pytest.approx(bound)
    assert regret(0.9 * best) > bound < regret(1.1 * best)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: step(mu=np.inf), "smoothness must be given if mu is inf, .*"),
        (lambda: step(mu=[1.0, np.inf]), "smoothness must be given if mu is inf, .*"),
        (lambda: step(mu=0.0, smoothness=1.0), "mu must be positive, got 0.0"),
        (lambda: step(mu=[1.0, np.nan]), "mu must be positive, got nan"),
        (lambda: step(per_round=30), r"per_round must be at most machines \(20\), got 30"),
        (lambda: step(rounds=0), "rounds must be at least 1, got 0"),
        (lambda: step(diameter=np.inf), "diameter must be positive and finite, got inf"),
        (lambda: step(increment=-1.0), "increment must be positive and finite, got -1.0"),
        (lambda: step(smoothness=0.0), "smoothness must be positive and finite, got 0.0"),
        (lambda: step(trust="servr"), "unknown trust 'servr', did you mean 'server'.*"),
        (lambda: step(noise_schedule="gaps"), "unknown noise_schedule 'gaps', did you mean 'gap'.*"),
        (lambda: bounds(deviation=-1.0), "deviation must be at least 0 and finite, got -1.0"),
        (lambda: theory.increment_bound(0.0, 1.0, 1.0), "lipschitz must be positive and finite, got 0.0"),
    ],
)
def test_refusals(call, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        call()
