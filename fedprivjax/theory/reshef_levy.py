"""Reshef & Levy 2024 (full participation) and 2025 (partial participation) as plain functions of numbers.

Our words for the papers' letters: `mu` is ρ, `machines` M, `per_round` m, `rounds` T, `dimension` d, `diameter` D,
`lipschitz` G, `smoothness` L, `increment` S (or a clip C in its place). Everything broadcasts over arrays.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_choice
from fedprivjax.theory._numbers import counts, nonnegative, plain, positive

_SCHEDULES = ("uniform", "proportional", "gap")


def increment_bound(lipschitz: ArrayLike, smoothness: ArrayLike, diameter: ArrayLike) -> Any:
    """The largest norm of an increment `t·∇f(x_t) − (t−1)·∇f(x_{t−1})`: `S = G + 2LD`.

    It uses `(t−1)‖x_t − x_{t−1}‖ ≤ 2D`, which holds for the query points of an honest server.

    Source: Reshef & Levy 2024, section 4.

    >>> increment_bound(1.0, 2.0, 0.5)
    3.0
    """
    lipschitz, smoothness = positive("lipschitz", lipschitz), nonnegative("smoothness", smoothness)
    return plain(lipschitz + 2 * smoothness * positive("diameter", diameter))


def full_untrusted_bound(
    *,
    mu: ArrayLike,
    machines: int,
    rounds: int,
    dimension: int,
    diameter: ArrayLike,
    increment: ArrayLike,
    smoothness: ArrayLike,
    optimum_gradient: ArrayLike = 0.0,
    deviation: ArrayLike = 0.0,
) -> Any:
    """Expected excess loss of full participation with no trusted server.

    `4D·[(G* + 2LD)/T + 2S√d/(μT√M) + σ̃/√(TM)]`

    Args:
        mu: privacy of every machine; inf drops the middle term.
        optimum_gradient: G*, the gradient's norm at the constrained optimum; 0 where that is interior.
        deviation: σ̃ = σ_gradient + 2·D·σ_smoothness, the standard deviation of a sample's increment.

    Source: Reshef & Levy 2024, untrusted server.

    >>> full_untrusted_bound(mu=2.0, machines=4, rounds=10, dimension=9, diameter=1.0, increment=3.0, smoothness=1.0)
    2.6
    """
    counts(machines=machines, rounds=rounds, dimension=dimension)
    spread = np.sqrt(machines)
    return _bound(mu, spread, machines, rounds, dimension, diameter, increment, smoothness, optimum_gradient, deviation)


def full_trusted_bound(
    *,
    mu: ArrayLike,
    machines: int,
    rounds: int,
    dimension: int,
    diameter: ArrayLike,
    increment: ArrayLike,
    smoothness: ArrayLike,
    optimum_gradient: ArrayLike = 0.0,
    deviation: ArrayLike = 0.0,
) -> Any:
    """Expected excess loss of full participation with a trusted server.

    `4D·[(G* + 2LD)/T + 2S√d/(μTM) + σ̃/√(TM)]`; the arguments are those of `full_untrusted_bound`.

    Source: Reshef & Levy 2024, trusted server.

    >>> full_trusted_bound(mu=2.0, machines=4, rounds=10, dimension=9, diameter=1.0, increment=3.0, smoothness=1.0)
    1.7
    """
    counts(machines=machines, rounds=rounds, dimension=dimension)
    spread = float(machines)
    return _bound(mu, spread, machines, rounds, dimension, diameter, increment, smoothness, optimum_gradient, deviation)


def step_size(
    *,
    trust: str,
    noise_schedule: str | Sequence[float] = "uniform",
    mu: ArrayLike,
    machines: int,
    per_round: int,
    rounds: int,
    dimension: int,
    diameter: ArrayLike,
    increment: ArrayLike,
    smoothness: ArrayLike | None,
) -> Any:
    """The default step of DP-μ²-FL: the noise that has gathered in the last iterate has norm D, up to the cap.

    `η = min{μDm/(2ST√d·c), 1/(4LT)}` with `c = 1` for a trusted server, `c = √M` without one; the schedule
    `proportional` spends `√(1 + ln T)` more. Full participation is `per_round == machines`.

    Args:
        trust: "server" or "none".
        noise_schedule: "uniform", "proportional", "gap", or a given sequence, which gets the step of "uniform".
        mu: positive; inf (non-private) leaves the cap alone.
        smoothness: L; None drops the cap, as for clipped increments.

    Returns:
        The step, broadcast over mu, diameter, increment and smoothness.

    Raises:
        ValueError: for a number out of range, or where neither noise nor smoothness bounds the step.

    Source: Reshef & Levy 2024 (both trust models), 2025 (`proportional`); `uniform` and `gap` by the same rule.

    >>> step_size(trust="none", mu=2.0, machines=4, per_round=4, rounds=10, dimension=25, diameter=1.0, increment=2.0,
    ...           smoothness=None)
    0.02
    """
    require_choice("trust", trust, ("server", "none"))
    if isinstance(noise_schedule, str):
        require_choice("noise_schedule", noise_schedule, _SCHEDULES)
    counts(machines=machines, per_round=per_round, rounds=rounds, dimension=dimension)
    if per_round > machines:
        raise Refusal(f"per_round must be at most machines ({machines}), got {per_round}")
    cost = 1.0 if trust == "server" else machines
    if isinstance(noise_schedule, str) and noise_schedule == "proportional":
        cost *= 1 + np.log(rounds)
    signal = _privacy(mu) * positive("diameter", diameter) / positive("increment", increment)
    return _capped(signal * per_round / (2 * rounds * np.sqrt(dimension * cost)), rounds, smoothness)


def fresh_noise_step(
    *,
    mu: ArrayLike,
    per_round: int,
    rounds: int,
    dimension: int,
    diameter: ArrayLike,
    increment: ArrayLike,
    smoothness: ArrayLike | None,
) -> Any:
    """The same rule for messages whose noise is never taken back: `η = min{μD√(3m)/(2S·T^1.5·√d), 1/(4LT)}`.

    The noises add up in the server's aggregate and once more in the iterate, where their norm is
    `η·√d·2S·T^1.5/(μ√(3m))` after T rounds. Arguments, errors and result as for `step_size`.

    Source: the ablation of Reshef & Levy 2025; the step is ours.

    >>> fresh_noise_step(mu=2.0, per_round=3, rounds=4, dimension=9, diameter=1.0, increment=2.0, smoothness=None)
    0.0625
    """
    counts(per_round=per_round, rounds=rounds, dimension=dimension)
    signal = _privacy(mu) * positive("diameter", diameter) / positive("increment", increment)
    return _capped(signal * np.sqrt(3 * per_round / dimension) / (2 * rounds**1.5), rounds, smoothness)


def noisy_sgd_step(
    *, diameter: ArrayLike, rounds: int, lipschitz: ArrayLike, dimension: int, noise_std_of_mean: ArrayLike
) -> Any:
    """The step of noisy SGD that is best for its bound: `η = D/√(T(G² + dσ²))`.

    Args:
        noise_std_of_mean: σ, per coordinate, of the noise on the mean gradient of a round.

    Source: the standard analysis of projected SGD (Zinkevich 2003; Bassily, Smith & Thakurta 2014).

    >>> noisy_sgd_step(diameter=1.0, rounds=4, lipschitz=3.0, dimension=4, noise_std_of_mean=2.0)
    0.1
    """
    second_moment = _second_moment(rounds, lipschitz, dimension, noise_std_of_mean)
    return plain(positive("diameter", diameter) / np.sqrt(rounds * second_moment))


def noisy_sgd_bound(
    *, diameter: ArrayLike, rounds: int, lipschitz: ArrayLike, dimension: int, noise_std_of_mean: ArrayLike
) -> Any:
    """Expected excess loss of noisy SGD's average iterate at that step: `D·√((G² + dσ²)/T)`.

    Arguments and source as for `noisy_sgd_step`.

    >>> noisy_sgd_bound(diameter=1.0, rounds=4, lipschitz=3.0, dimension=4, noise_std_of_mean=2.0)
    2.5
    """
    second_moment = _second_moment(rounds, lipschitz, dimension, noise_std_of_mean)
    return plain(positive("diameter", diameter) * np.sqrt(second_moment / rounds))


def _bound(mu, spread, machines, rounds, dimension, diameter, increment, smoothness, optimum_gradient, deviation):
    diameter = positive("diameter", diameter)
    start = nonnegative("optimum_gradient", optimum_gradient) + 2 * nonnegative("smoothness", smoothness) * diameter
    privacy = 2 * positive("increment", increment) * np.sqrt(dimension) / (_privacy(mu) * spread)
    sampling = nonnegative("deviation", deviation) / np.sqrt(rounds * machines)
    return plain(4 * diameter * ((start + privacy) / rounds + sampling))


def _capped(step: np.ndarray, rounds: int, smoothness: ArrayLike | None):
    if smoothness is not None:
        step = np.minimum(step, 1 / (4 * rounds * positive("smoothness", smoothness)))
    if np.isinf(step).any():
        raise Refusal("smoothness must be given where mu is inf: nothing else bounds the step, got None")
    return plain(step)


def _second_moment(rounds: int, lipschitz: ArrayLike, dimension: int, noise_std: ArrayLike) -> np.ndarray:
    counts(rounds=rounds, dimension=dimension)
    return positive("lipschitz", lipschitz) ** 2 + dimension * nonnegative("noise_std_of_mean", noise_std) ** 2


def _privacy(mu: ArrayLike) -> np.ndarray:
    mu = np.asarray(mu, float)
    wrong = mu[~(mu > 0)]
    if wrong.size:
        raise Refusal(f"mu must be positive, got {wrong.flat[0]}")
    return mu
