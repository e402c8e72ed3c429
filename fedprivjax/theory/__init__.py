"""Theorems of the papers as functions of numbers: bounds, and the step sizes that attain them, by paper."""

from fedprivjax.theory.reshef_levy import (
    AnytimeBound,
    anytime_bound,
    fresh_noise_step,
    full_trusted_bound,
    full_untrusted_bound,
    increment_bound,
    noisy_sgd_bound,
    noisy_sgd_step,
    step_size,
)

__all__ = [
    "AnytimeBound",
    "anytime_bound",
    "fresh_noise_step",
    "full_trusted_bound",
    "full_untrusted_bound",
    "increment_bound",
    "noisy_sgd_bound",
    "noisy_sgd_step",
    "step_size",
]
