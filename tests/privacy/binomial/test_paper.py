"""The paper's constants: formulas by hand, their claims and their conditions."""

from math import exp, floor, log, sqrt

import numpy as np
import pytest
from one_coordinate import claimed_scalar, paper_scalar, with_dropouts

from fedprivjax import Refusal
from fedprivjax.privacy.accountants.binomial.accountant import scalar_epsilon
from fedprivjax.privacy.accountants.binomial.paper import (
    STEEPEST,
    Bits,
    claimed_vector,
    composed_epsilon,
    coordinate_budget,
    paper_vector,
    round_budget,
)

SETTINGS = [(1000, 10, 1.0, 1e-6, 64), (10000, 100, 4.0, 1e-6, 200), (400, 3, 15.0, 1e-3, 40), (400, 3, 0.1, 0.4, 40)]


@pytest.mark.parametrize(("users", "dimension", "epsilon", "delta", "levels"), SETTINGS)
def test_parameters_are_the_papers(users, dimension, epsilon, delta, levels):
    found = paper_vector(epsilon, delta, users, dimension, levels)
    failure = delta / (dimension + 1)
    part = epsilon / (18 * sqrt(log(1 / failure)))
    share = levels**2 * log(2 / failure) / (part**2 * users)
    assert found.trials == floor(180 * share) + 1
    assert users * found.trials * found.probability == pytest.approx(90 * share * users)
    assert found.probability < 0.5
    assert found == paper_scalar(part, failure, users, levels)
    assert (coordinate_budget(epsilon, delta, dimension)) == pytest.approx((part, failure))


@pytest.mark.parametrize(("users", "dimension", "epsilon", "delta", "levels"), SETTINGS)
def test_a_claim_is_the_inverse_of_the_parameters(users, dimension, epsilon, delta, levels):
    message = paper_vector(epsilon, delta, users, dimension, levels)
    assert claimed_vector(message, users, dimension, delta) == pytest.approx(epsilon, rel=1e-9)
    message = paper_scalar(epsilon, delta, users, levels)
    for distance in (0.0, 0.3, 1.0):
        expected = epsilon * (2 / levels + distance)
        assert claimed_scalar(message, users, delta, distance) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("distance", [0.1, 0.5, 1.0])
def test_an_instances_claim_covers_its_exact_epsilon(distance):
    users, levels, delta = 100, 20, 1e-4
    message = paper_scalar(2.0, delta, users, levels)
    exact = scalar_epsilon(users * message.trials, message.probability, round(distance * levels), delta)
    assert exact < claimed_scalar(message, users, delta, distance) / 3


def test_the_proofs_arithmetic_leaves_two_thirds():
    """Theorem 3.2: 18·ε̂² + 6·ε̂·√ln(1/δ̂) is within ε, and near a third of it for ordinary ε."""
    for epsilon, delta, dimension in ((1.0, 1e-6, 10), (15.0, 0.49, 1), (15.0, 1e-3, 100)):
        part = coordinate_budget(epsilon, delta, dimension)
        total = 18 * part.epsilon**2 + 6 * part.epsilon * sqrt(log(1 / part.delta))
        assert total == pytest.approx(epsilon**2 / (18 * log(1 / part.delta)) + epsilon / 3)
        assert total <= epsilon


def test_the_condition_that_the_scalar_proof_does_not_state():
    steep = np.array([0.1, 0.5, STEEPEST])
    assert np.all(np.log((1 + steep) / (1 - steep)) <= 3 * steep)
    assert log((1 + 0.859) / (1 - 0.859)) > 3 * 0.859
    assert pytest.approx(1 / 2.57, rel=2e-3) == 1 / (3 * STEEPEST)
    paper_scalar(15.0, 1e-3, users=9, levels=6)
    with pytest.raises(Refusal, match=r"levels must be at least epsilon/2\.57, 6, with the paper's constants, got 5"):
        paper_scalar(15.0, 1e-3, users=9, levels=5)


@pytest.mark.parametrize("honest", [1 / 3, 0.5, 0.8, 1.0])
def test_dropouts(honest):
    assert with_dropouts(0.9, 1e-6, 32, honest, "paper") == pytest.approx(0.9 / honest)
    found = with_dropouts(0.9, 1e-6, 32, honest)
    assert found == pytest.approx(0.9 / sqrt(honest))
    # the lemma, with m·p of the honest users only: δ, and the divergence of the full range
    steep, successes = 0.9 / (3 * 32 * sqrt(honest)), honest * 90 * 32**2 * log(2e6) / 0.81
    assert 2 * exp(-(steep**2) * successes / 10) == pytest.approx(1e-6)
    assert steep * successes >= 2 * 32
    assert 32 * log((1 + steep) / (1 - steep)) <= found


def test_dropouts_are_the_claim_at_fewer_users():
    message = paper_vector(1.0, 1e-6, 1000, 10, 64)
    assert claimed_vector(message, 500, 10, 1e-6) == pytest.approx(with_dropouts(1.0, 1e-6, 64, 0.5))


def test_rounds_share_the_budget():
    part = round_budget(1.0, 1e-6, 100)
    assert part == pytest.approx((1 / (2 * sqrt(200 * log(1e6))), 1e-6 / 101))
    total = sqrt(200 * log(101e6)) * part.epsilon + 100 * part.epsilon * (exp(part.epsilon) - 1)
    assert composed_epsilon(part.epsilon, 1e-6, 100) == pytest.approx(total)
    assert round_budget(1.0, 1e-6, 1) == (1.0, 1e-6)
    assert composed_epsilon(1.0, 1e-6, 1) == 1.0


@pytest.mark.parametrize(
    ("epsilon", "delta", "rounds", "share"),
    [(1.0, 1e-6, 100, 0.59), (1.0, 1e-6, 10**5, 0.69), (15.0, 1e-4, 10**4, 0.91)],
)
def test_composition_stays_within_the_specifications_shares(epsilon, delta, rounds, share):
    part = round_budget(epsilon, delta, rounds)
    assert composed_epsilon(part.epsilon, delta, rounds) / epsilon == pytest.approx(share, abs=0.006)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (
            lambda: paper_vector(15.5, 1e-6, 100, 10, 64),
            "epsilon must be at most 15 with the paper's constants, got 15.5",
        ),
        (lambda: paper_vector(1.0, 0.5, 100, 10, 64), "delta must be below 1/2 with the paper's constants, got 0.5"),
        (
            lambda: paper_vector(1.0, 1e-6, 100, 900, 20),
            "levels must be at least the square root of the dimension, 30,",
        ),
        (lambda: paper_vector(1.0, 1e-6, 900, 10, 20), "levels must be at least the square root of the users, 30,"),
        (lambda: paper_scalar(1.0, 1e-6, 900, 20), "levels must be at least the square root of the users, 30,"),
        (lambda: paper_scalar(0.0, 1e-6, 9, 20), "epsilon must be positive, got 0.0"),
        (lambda: claimed_vector(Bits(64, 100, 0.5), 100, 10, 1e-6), "epsilon must be at most 15"),
        (lambda: claimed_scalar(Bits(64, 100, 0.5), 10**6, 1e-6, 1.5), r"distance must be in \[0, 1\], got 1.5"),
        (lambda: with_dropouts(2.0, 1e-6, 32, 0.5, "paper"), "epsilon must be at most 1 and honest at least 1/3"),
        (lambda: with_dropouts(1.0, 1e-6, 32, 0.3, "paper"), "epsilon must be at most 1 and honest at least 1/3"),
        (lambda: with_dropouts(1.0, 1e-6, 2, 0.5, "paper"), "levels must be at least 3, got 2"),
        (lambda: with_dropouts(15.0, 0.49, 64, 0.1), "epsilon must be at most 15·√honest·ln"),
        (lambda: with_dropouts(12.0, 1e-6, 6, 0.5), "levels must be at least epsilon/"),
        (lambda: with_dropouts(1.0, 1e-6, 32, 0.0), r"honest must be in \(0, 1\], got 0.0"),
        (lambda: with_dropouts(1.0, 1e-6, 32, 0.5, "none"), "unknown loss 'none'"),
        (
            lambda: round_budget(15.0, 0.1, 10),
            "epsilon must be at least the composed ε, got 15.0: 10 rounds compose",
        ),
        (lambda: round_budget(1.0, 1e-6, 0), "rounds must be at least 1, got 0"),
    ],
)
def test_refusals(call, says):
    with pytest.raises(Refusal, match=says) as refused:
        call()
    assert "\n" not in str(refused.value)
