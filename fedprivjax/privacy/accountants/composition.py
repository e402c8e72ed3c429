"""Composed privacy losses, and the least noise that a target allows."""

from collections.abc import Callable
from math import exp, inf, isinf, log

import numpy as np
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
from scipy.optimize import brentq

MOST = 600.0  # beyond, dp-accounting's search for ε divides by an e^{−ε} that underflows


def composed(loss: PrivacyLossDistribution, rounds: int) -> PrivacyLossDistribution:
    """The loss of so many releases, each with this one."""
    with np.errstate(over="ignore"):  # a moment that overflows bounds no tail, and dp-accounting leaves it out
        return loss.self_compose(rounds)


def epsilon_between(loss: PrivacyLossDistribution, delta: float) -> tuple[float, float]:
    """Between which two numbers the ε at δ lies, which are one where dp-accounting can tell."""
    low = MOST
    if loss.get_delta_for_epsilon(low) <= delta:
        epsilon = float(loss.get_epsilon_for_delta(delta))
        return epsilon, epsilon
    high = 2 * low
    while loss.get_delta_for_epsilon(high) > delta:
        low, high = high, 2 * high
        if isinf(high):
            return inf, inf
    while high - low > 1e-6 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if loss.get_delta_for_epsilon(middle) > delta else (low, middle)
    return low, high


def least_noise(epsilon_of: Callable[[float], float], epsilon: float, guess: float) -> float:
    """The least noise multiplier (to a part in 10⁴, from above) at which a decreasing `epsilon_of` it is at most ε."""

    def excess(logarithm: float) -> float:
        return min(epsilon_of(exp(logarithm)), 2 * epsilon) - epsilon

    low = high = log(guess)
    while excess(high) > 0:
        low, high = high, high + 0.5
    while low == high or excess(low) <= 0:
        low, high = low - 0.5, high if excess(low) > 0 else low
    return exp(float(brentq(excess, low, high, xtol=5e-5)) + 1e-4)  # type: ignore[arg-type]
