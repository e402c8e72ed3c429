import numpy as np
import pytest

from fedprivjax.theory import lowy_razaviyayn as lr

CONSTANTS = {"records": 20, "per_round": 600, "dimension": 50, "diameter": 2.0, "lipschitz": 3.0}
PROBLEM = lr.ProblemConstants(**CONSTANTS)
CLASSICAL = {"dimension": 50, "diameter": 2.0, "lipschitz": 3.0}
LOCAL = {"epsilon": 0.3, "round_epsilons": [0.03] * 100, "round_deltas": [1e-12] * 100}
CENTRAL = {"epsilon": 0.01, "delta": 1e-8}


def test_values_by_hand():
    private = np.sqrt(50) / (0.3 * 20 * np.sqrt(600))
    statistical = 1.5 * 2 / np.sqrt(12_000)
    assert lr.local_lower_bound(PROBLEM, deviation=1.5, **LOCAL) == pytest.approx(statistical + 6 * private)
    assert lr.local_lower_bound(PROBLEM, **LOCAL) == pytest.approx(6 * private)
    strong = lr.local_lower_bound(PROBLEM, deviation=1.5, strong_convexity=0.5, **LOCAL)
    assert strong == pytest.approx(1.5**2 / (0.5 * 12_000) + 6 * private**2)
    assert lr.local_lower_bound(PROBLEM, strong_convexity=0.5, **LOCAL) == pytest.approx(6 * private**2)


def test_central_values_by_hand():
    private = np.sqrt(50) / (0.01 * 12_000)
    statistical = 1.5 * 2 / np.sqrt(12_000)
    assert lr.central_lower_bound(PROBLEM, deviation=1.5, **CENTRAL) == pytest.approx(statistical + 6 * private)
    assert lr.central_lower_bound(PROBLEM, **CENTRAL) == pytest.approx(6 * private)
    strong = lr.central_lower_bound(PROBLEM, strong_convexity=0.5, **CENTRAL)
    assert strong == pytest.approx(6 * private**2)


def test_compositionality_weakens_the_bound():
    weak = {**LOCAL, "compositionality": 3.0, "deviation": 0.0}
    assert lr.local_lower_bound(PROBLEM, **weak) == pytest.approx(
        lr.local_lower_bound(PROBLEM, **{**weak, "compositionality": 1.0}) / 9
    )
    strong = {**weak, "strong_convexity": 0.5}
    one = lr.local_lower_bound(PROBLEM, **{**strong, "compositionality": 1.0})
    assert lr.local_lower_bound(PROBLEM, **strong) == pytest.approx(one / 81)


def test_a_sequential_algorithm_needs_no_constant():
    settings = {**LOCAL, "epsilon": 0.04, "round_epsilons": [0.04], "round_deltas": [1e-12], "deviation": 1.0}
    sequential = lr.local_lower_bound(PROBLEM, interaction="sequential", **settings)
    assert sequential == lr.local_lower_bound(PROBLEM, **settings)


def test_nothing_exceeds_the_trivial_bound():
    starved = lr.ProblemConstants(**{**CONSTANTS, "dimension": 10**9})
    assert lr.local_lower_bound(starved, **LOCAL) == 6.0
    assert lr.central_lower_bound(starved, **CENTRAL) == 6.0
    assert lr.classical_local_lower_bound(machines=10, epsilon=0.5, **CLASSICAL) == 6.0


def algorithm_one(rng):
    """Algorithm 1 in a regime where the lower bounds apply, with the privacy of its rounds by advanced composition."""
    records, machines, rounds = int(rng.integers(1, 30)), int(rng.integers(1000, 100_000)), int(rng.integers(1, 300))
    delta = 0.1 / (records * machines) ** 2
    most = 2 * np.sqrt(2 * rounds * np.log(2 / delta))
    epsilon = min(most / records, 2 * np.log(2 / delta)) * rng.uniform(0.01, 1)
    local = {
        "epsilon": epsilon,
        "round_epsilons": [epsilon / most] * rounds,
        "round_deltas": [delta / (2 * rounds)] * rounds,
    }
    dimension, lipschitz, diameter = int(rng.integers(1, 1000)), 10 ** rng.uniform(-1, 1), 10 ** rng.uniform(-1, 1)
    sizes = {"records": records, "per_round": machines, "dimension": dimension}
    load = lr.privacy_load(records=records, epsilon=epsilon, delta=delta, rounds=rounds)
    return lr.ProblemConstants(lipschitz=lipschitz, diameter=diameter, **sizes), local, load


def test_lower_bounds_are_below_upper_bounds():
    rng, informative = np.random.default_rng(0), 0
    for _ in range(300):
        problem, local, load = algorithm_one(rng)
        phi = problem.lipschitz * rng.uniform(0, 1)
        mu = problem.lipschitz / problem.diameter * rng.uniform(0.01, 1)
        lower = lr.local_lower_bound(problem, deviation=phi, **local)
        assert lower <= lr.minibatch_bound(problem, load=load) <= lr.nonsmooth_bound(problem, load=load)
        strong = lr.local_lower_bound(problem, deviation=phi, strong_convexity=mu, **local)
        assert strong <= lr.strong_rate(problem, strong_convexity=mu, load=load)
        assert lr.local_lower_bound(problem, **local) <= lr.empirical_rate(problem, load=load)
        empirical = lr.local_lower_bound(problem, strong_convexity=mu, **local)
        assert empirical <= lr.empirical_strong_rate(problem, strong_convexity=mu, load=load)
        informative += lower < 0.5 * problem.lipschitz * problem.diameter
    assert informative > 100


def test_the_empirical_rate_is_optimal_but_for_logarithms():
    load = lr.bare_load(records=20, epsilon=0.3)
    rate = lr.empirical_rate(PROBLEM, load=load)
    assert lr.local_lower_bound(PROBLEM, **LOCAL) == pytest.approx(rate)
    strong = lr.empirical_strong_rate(PROBLEM, strong_convexity=1.5, load=load)
    assert lr.local_lower_bound(PROBLEM, strong_convexity=1.5, **LOCAL) == pytest.approx(strong)


def test_the_shuffled_rate_is_optimal_in_the_central_model():
    load = lr.shuffled_bare_load(machines=600, per_round=600, records=20, epsilon=0.01)
    rate = lr.shuffled_rate(PROBLEM, load=load)
    assert lr.central_lower_bound(PROBLEM, deviation=3.0, **CENTRAL) == pytest.approx(rate)


def test_models_of_trust_are_ordered():
    """With one record per machine, the central bound is below the local one, which equals the classical one."""
    one = lr.ProblemConstants(**{**CONSTANTS, "records": 1, "per_round": 100_000})
    local = lr.local_lower_bound(one, epsilon=0.5, round_epsilons=[0.5], round_deltas=[1e-12])
    assert lr.central_lower_bound(one, epsilon=0.5, delta=1e-8) < local
    assert lr.classical_local_lower_bound(machines=100_000, epsilon=0.5, **CLASSICAL) == pytest.approx(local)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epsilon": 25.0}, r"hypothesis ε ≤ √N must hold, got epsilon = 25, machines = 600"),
        ({"round_epsilons": [0.06], "epsilon": 1.0}, r"hypothesis ε_r ≤ 1/n must hold, got .* = 0.06, limit = 0.05"),
        ({"per_round": 300}, r"hypothesis N ≥ 16·ln\(2/\(n·min δ_r\)\) must hold, got machines = 300, limit = 405"),
        ({"round_deltas": [1e-10] * 100}, r"hypothesis Σδ_r = o\(1/\(nN\)²\) must hold, got .* = 1e-08"),
        (
            {"round_deltas": [1e-8], "interaction": "sequential"},
            r"hypothesis δ = o\(1/\(nN\)²\) must hold, got .* = 1e-08, limit = 6.94444e-09",
        ),
        (
            {"round_epsilons": [0.05] * 100},
            r"hypothesis √Σε_r² ≤ C·ε must hold, got compositionality = 1, needed = 1.66",
        ),
        (
            {"strong_convexity": 2.0},
            r"hypothesis μD ≤ L must hold, got strong_convexity = 2, diameter = 2, lipschitz = 3",
        ),
        ({"interaction": "sequentail"}, "unknown interaction 'sequentail', did you mean 'sequential'"),
    ],
)
def test_refuses_outside_the_local_hypotheses(changes, message):
    for more in ({"deviation": 1.0}, {}):
        lr.local_lower_bound(PROBLEM, **LOCAL, **more)
        problem = lr.ProblemConstants(**{name: changes.get(name, value) for name, value in CONSTANTS.items()})
        settings = {name: value for name, value in changes.items() if name not in CONSTANTS}
        with pytest.raises(ValueError, match=message):
            lr.local_lower_bound(problem, **{**LOCAL, **more, **settings})


def test_refuses_outside_the_central_and_classical_hypotheses():
    with pytest.raises(ValueError, match=r"deviation must be at most lipschitz \(3.0\), got 3.5"):
        lr.local_lower_bound(PROBLEM, deviation=3.5, **LOCAL)
    with pytest.raises(ValueError, match=r"deviation must be at most lipschitz \(3.0\), got 3.5"):
        lr.central_lower_bound(PROBLEM, deviation=3.5, **CENTRAL)
    with pytest.raises(ValueError, match=r"hypothesis δ = o\(1/\(nN\)\) must hold, got delta = 0.0001, limit = 8.33"):
        lr.central_lower_bound(PROBLEM, **{**CENTRAL, "delta": 1e-4})
    with pytest.raises(ValueError, match=r"hypothesis ε ≤ 1 must hold, got epsilon = 1.5"):
        lr.classical_local_lower_bound(machines=10, epsilon=1.5, **CLASSICAL)
