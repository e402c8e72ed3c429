"""Reshef & Levy 2024 (full participation) and 2025 (partial participation) as plain functions of numbers.

Notation: `mu` is the papers' ρ, `machines` M, `per_round` m, `rounds` T, `dimension` d, `diameter` D, `lipschitz` G,
`smoothness` L, and `increment` S, or the clip C of clipped increments. Every argument typed ArrayLike broadcasts.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_choice
from fedprivjax.theory._numbers import counts, nonnegative, one, plain, positive, positive_or_inf

_SCHEDULES = ("independent", "uniform", "proportional", "gap")


class AnytimeBound(NamedTuple):
    """Bound on the expected excess loss of DP-μ²-FL (Reshef & Levy), as three terms whose sum is `total`.

    * `optimisation`: the part that remains without sampling and noise;
    * `sampling`: the part due to sampled records;
    * `noise`: the part due to privacy.
    """

    optimisation: float
    sampling: float
    noise: float

    @property
    def total(self) -> float:
        return self.optimisation + self.sampling + self.noise


def increment_bound(lipschitz: ArrayLike, smoothness: ArrayLike, diameter: ArrayLike) -> Any:
    """Bound on the L2 norm of an increment, the vector that a machine releases in a round of DP-μ²-FL.

    The increment of round t is `t·∇f(x_t) − (t−1)·∇f(x_{t−1})`, where f is one record's loss and x_t is the query point
    of the round. If the server follows the protocol, x_t is a running average of its iterates, so that
    `(t−1)‖x_t − x_{t−1}‖` is at most 2D. The bound holds only for such a server.

    Args:
        lipschitz: G, Lipschitz constant of f.
        smoothness: L, smoothness of f.
        diameter: D, diameter of the constraint set.

    Returns:
        `S = G + 2LD`.

    Source: Reshef & Levy 2024, section 4.

    >>> increment_bound(1.0, 2.0, 0.5)
    3.0
    """
    lipschitz, smoothness = positive("lipschitz", lipschitz), nonnegative("smoothness", smoothness)
    return plain(lipschitz + 2 * smoothness * positive("diameter", diameter))


def full_bound(
    *,
    trust: str,
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
    """Bound on the expected excess loss of DP-μ²-FL if all machines take part in every round.

    Args:
        trust: "server" for a trusted server, or "none".
        mu: μ, the GDP (Gaussian differential privacy) parameter of every machine; inf sets the term with μ to 0.
        machines: M, number of machines.
        rounds: T, number of rounds.
        dimension: d, number of parameters.
        diameter: D, diameter of the constraint set.
        increment: S, bound on the L2 norm of an increment (`increment_bound`).
        smoothness: L, smoothness of one record's loss.
        optimum_gradient: G*, norm of the gradient at the constrained optimum; 0 if the optimum is interior.
        deviation: σ˜, root mean squared L2 distance of an increment to its mean over records. If σ˜ is unknown, give S.
            The default 0 omits the error due to sampled records.

    Returns:
        `4D·[(G* + 2LD)/T + 2S√d/(μTC) + σ˜/√(TM)]`, where C is M with a trusted server, and √M without one.

    Source: Reshef & Levy 2024, trusted and untrusted server.

    >>> known = {"machines": 4, "rounds": 10, "dimension": 9, "diameter": 1.0, "increment": 3.0, "smoothness": 1.0}
    >>> [full_bound(trust=trust, mu=2.0, **known) for trust in ("server", "none")]
    [1.7, 2.6]
    """
    require_choice("trust", trust, ("server", "none"))
    counts(machines=machines, rounds=rounds, dimension=dimension)
    spread = float(machines) if trust == "server" else np.sqrt(machines)
    diameter = positive("diameter", diameter)
    start = nonnegative("optimum_gradient", optimum_gradient) + 2 * nonnegative("smoothness", smoothness) * diameter
    privacy = 2 * positive("increment", increment) * np.sqrt(dimension) / (positive_or_inf("mu", mu) * spread)
    sampling = nonnegative("deviation", deviation) / np.sqrt(rounds * machines)
    return plain(4 * diameter * ((start + privacy) / rounds + sampling))


def anytime_bound(
    *,
    step: float,
    rounds: int,
    per_round: int,
    radius: float,
    lipschitz: float,
    deviation: float,
    noise: ArrayLike,
    fresh: bool,
) -> AnytimeBound:
    """Bound on the expected excess loss of DP-μ²-FL for any step size and any public participation schedule.

    In round t of the method, each of m machines sends the increment `t·∇f(x_t) − (t−1)·∇f(x_{t−1})`. Here f is the loss
    of one of the machine's records. The server adds the mean increment to its aggregate q_t, which also contains noise,
    and takes the projected step `w_{t+1} = Π(w_t − η·q_t)`, where Π is the projection onto the constraint set. The
    query point x_t is the mean of the iterates w_1, …, w_t with the weights 1, …, t. The output is x_T. All machines'
    records must have the same distribution.

    Let `e_t = σ˜·√(t/m)`, a bound on the error of q_t due to sampled records. With the symbols of the arguments, the
    bound is

        2/(T(T+1)) · [ 2R²/η + (η/2)·Σ_t (tG + e_t)² + R·Σ_t e_t  +  (η/2)·Σ_t z_t² ]            if `fresh`
        2/(T(T+1)) · [ 2R²/η + (η/2)·Σ_t (tG + e_t + z_t)² + R·Σ_t (e_t + z_t) ]            otherwise

    Args:
        step: η, step size.
        rounds: T, number of rounds.
        per_round: m, number of machines in a round.
        radius: R, radius of a ball that contains the iterates.
        lipschitz: G, Lipschitz constant of the loss.
        deviation: σ˜, root mean squared L2 distance of an increment to its mean. If σ˜ is unknown, give
            `increment_bound`.
        noise: z_t, root mean squared L2 norm of the noise in q_t; a number, or an array of shape [rounds].
        fresh: True if the noise in q_t is independent of the noise in earlier rounds. False if noise stays in q_t for
            several rounds. It is independent with a trusted server. It is also independent if all machines take part in
            every round, and each message subtracts the noise of the machine's previous message.

    Returns:
        An `AnytimeBound`. Its `total` is the bound.

    Source: derived here, after Reshef & Levy 2024 (anytime averaging: Cutkosky 2019).

    >>> anytime_bound(step=0.25, rounds=1, per_round=1, radius=1.0, lipschitz=2.0, deviation=0.0, noise=2.0, fresh=True)
    AnytimeBound(optimisation=8.5, sampling=0.0, noise=0.5)
    """
    # Proof. The output x_T is the mean of w_1, …, w_T with weights t, so that its excess loss over the minimum w* of
    # the loss F is at most 2/(T(T+1))·Σ_t ⟨t∇F(x_t), w_t − w*⟩ (anytime averaging). The server's aggregate is q_t =
    # t∇F(x_t) + U_t + Z_t, with an error U_t of sampling and noise Z_t. Projected steps have Σ_t ⟨q_t, w_t − w*⟩ ≤
    # (2R)²/(2η) + (η/2)·Σ_t ‖q_t‖². U_t is the sum of the errors of t increments. Each error has mean 0 given the
    # earlier ones, so that E‖U_t‖² ≤ e_t². For the centre c of the ball, E⟨U_t, w* − w_t⟩ = E⟨U_t, c − w_t⟩ ≤ R·e_t,
    # because U_t has mean 0. The same holds for Z_t. If Z_t is independent of w_t, its inner product has mean 0, and
    # Z_t only adds its square to E‖q_t‖². The proof ignores that most of Z_t is older than w_t if machines cancel
    # their noise.
    counts(rounds=rounds, per_round=per_round)
    step, radius = one(positive, "step", step), one(positive, "radius", radius)
    t = np.arange(1.0, rounds + 1)
    z = np.broadcast_to(nonnegative("noise", noise), t.shape)
    signal = t * one(positive, "lipschitz", lipschitz)
    drawn = one(nonnegative, "deviation", deviation) * np.sqrt(t / per_round)
    scale = 2 / (float(rounds) * (rounds + 1))
    steps = 2 * radius**2 / step + step / 2 * np.sum(signal**2)
    sampling = step / 2 * np.sum((signal + drawn) ** 2 - signal**2) + radius * np.sum(drawn)
    crossed = 0.0 if fresh else step * np.sum((signal + drawn) * z) + radius * np.sum(z)
    noisy = step / 2 * np.sum(z**2) + crossed
    return AnytimeBound(*(float(scale * term) for term in (steps, sampling, noisy)))


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
    """Default step size of DP-μ²-FL.

    At this step size, the noise moves the last iterate by about the diameter of the constraint set.

    Args:
        trust: "server" for a trusted server, or "none".
        noise_schedule: how a machine divides its privacy budget over its messages.

            * "uniform": equal noise in all messages;
            * "proportional": the noise variance of the machine's k-th message is proportional to k;
            * "gap": the noise variance is inversely proportional to the number of rounds until the machine's next
              message;
            * "independent": equal noise in all messages, without subtraction of earlier noise;
            * a sequence of numbers, in proportion to the noise standard deviations of the machine's first, second, …
              message. The step size is then the step size of "uniform".
        mu: μ, the GDP (Gaussian differential privacy) parameter of every machine, or inf for no privacy.
        machines: M, number of all machines.
        per_round: m, number of machines in a round; M at full participation.
        rounds: T, number of rounds.
        dimension: d, number of parameters.
        diameter: D, diameter of the constraint set.
        increment: S, bound on the norm of an increment (`increment_bound`).
        smoothness: L, smoothness of one record's loss. None omits the limit 1/(4LT) on the step size, as for clipped
            increments.

    Returns:
        The step size, broadcast over mu, diameter, increment and smoothness. The formula depends on the noise schedule.

        * for "independent": `min{μD√(3m)/(2S·T^1.5·√d), 1/(4LT)}`;
        * for all others: `min{μDm/(2ST√d·c), 1/(4LT)}`. The factor c is 1 with a trusted server and √M without one. For
          "proportional", c is √(1 + ln T) times as large.

    Raises:
        Refusal: if a number is out of range, or if mu is inf and smoothness is None.

    Source: Reshef & Levy 2024 (both trust models) and 2025 ("proportional"). The step sizes of "uniform", "gap" and
    "independent" are derived here by the same rule.

    >>> known = {"trust": "none", "mu": 2.0, "diameter": 1.0, "increment": 2.0, "smoothness": None}
    >>> step_size(machines=4, per_round=4, rounds=10, dimension=25, **known)
    0.02
    >>> step_size(noise_schedule="independent", machines=4, per_round=3, rounds=4, dimension=9, **known)
    0.0625
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
    signal = positive_or_inf("mu", mu) * positive("diameter", diameter) / positive("increment", increment)
    if isinstance(noise_schedule, str) and noise_schedule == "independent":
        return _capped(signal * np.sqrt(3 * per_round / dimension) / (2 * rounds**1.5), rounds, smoothness)
    return _capped(signal * per_round / (2 * rounds * np.sqrt(dimension * cost)), rounds, smoothness)


def clipped_step(*, rounds: int, diameter: ArrayLike, increment: ArrayLike, noise_step: ArrayLike = np.inf) -> Any:
    """Step size η of DP-μ²-FL for clipped increments and unknown smoothness.

    It satisfies `1/η² = 1/η_z² + T³·C²/(3D²)` for T rounds. The first term is due to noise: η_z is the noise-limited
    step size. The second term is due to the step size `D/√(Σ_t (tC)²)`, which minimises `anytime_bound` without noise.
    For losses that are not convex, η is a rule of thumb.

    Args:
        diameter: D, distance that the run may cover, such as the diameter of the constraint set.
        increment: C, the clip.
        noise_step: η_z, step size at which the accumulated noise moves the iterate by about D: `step_size` without
            smoothness.

    Source: derived here.

    >>> clipped_step(rounds=3, diameter=6.0, increment=1.0, noise_step=0.5)
    0.48507...
    """
    counts(rounds=rounds)
    signal = positive("increment", increment) * rounds**1.5 / (3**0.5 * positive("diameter", diameter))
    return plain(1 / np.hypot(signal, 1 / np.asarray(noise_step, float)))


def longest_step(*, rounds: int, diameter: ArrayLike, increment: ArrayLike) -> Any:
    """Largest default step size of DP-μ²-FL with clipped batches: `η = 2D/(CT)`.

    The increments of T rounds have a sum of norm at most C·T. Without noise, the last step thus moves the iterate by at
    most 2D. This is a rule of thumb for few rounds, for which the noise-limited step size may be arbitrarily large.

    Here T is the number of rounds.

    Args:
        diameter: D, distance that the run may cover, such as the diameter of the constraint set.
        increment: C, the clip.

    Source: derived here.

    >>> longest_step(rounds=4, diameter=2.0, increment=0.5)
    2.0
    """
    counts(rounds=rounds)
    return plain(2 * positive("diameter", diameter) / (positive("increment", increment) * rounds))


def noisy_sgd_step(
    *, diameter: ArrayLike, rounds: int, lipschitz: ArrayLike, dimension: int, noise_std_of_mean: ArrayLike
) -> Any:
    """Step size of noisy SGD with the smallest bound on the expected excess loss (`noisy_sgd_bound`).

    Args:
        diameter: D, diameter of the constraint set.
        rounds: T, number of rounds.
        lipschitz: G, Lipschitz constant of the loss.
        dimension: d, number of parameters.
        noise_std_of_mean: σ, standard deviation per coordinate of the noise on the mean gradient of a round.

    Returns:
        `η = D/√(T(G² + dσ²))`.

    Source: the standard analysis of projected SGD (Zinkevich 2003; Bassily, Smith & Thakurta 2014).

    >>> noisy_sgd_step(diameter=1.0, rounds=4, lipschitz=3.0, dimension=4, noise_std_of_mean=2.0)
    0.1
    """
    second_moment = _second_moment(rounds, lipschitz, dimension, noise_std_of_mean)
    return plain(positive("diameter", diameter) / np.sqrt(rounds * second_moment))


def noisy_sgd_bound(
    *, diameter: ArrayLike, rounds: int, lipschitz: ArrayLike, dimension: int, noise_std_of_mean: ArrayLike
) -> Any:
    """Bound on the expected excess loss of noisy SGD's average iterate, at the step size of `noisy_sgd_step`.

    Args:
        diameter: D, diameter of the constraint set.
        rounds: T, number of rounds.
        lipschitz: G, Lipschitz constant of the loss.
        dimension: d, number of parameters.
        noise_std_of_mean: σ, standard deviation per coordinate of the noise on the mean gradient of a round.

    Returns:
        `D·√((G² + dσ²)/T)`.

    Source: the standard analysis of projected SGD (Zinkevich 2003; Bassily, Smith & Thakurta 2014).

    >>> noisy_sgd_bound(diameter=1.0, rounds=4, lipschitz=3.0, dimension=4, noise_std_of_mean=2.0)
    2.5
    """
    second_moment = _second_moment(rounds, lipschitz, dimension, noise_std_of_mean)
    return plain(positive("diameter", diameter) * np.sqrt(second_moment / rounds))


def _capped(step: np.ndarray, rounds: int, smoothness: ArrayLike | None):
    if smoothness is not None:
        step = np.minimum(step, 1 / (4 * rounds * positive("smoothness", smoothness)))
    if np.isinf(step).any():
        raise Refusal("smoothness must be given if mu is inf, because nothing else bounds the step, got None")
    return plain(step)


def _second_moment(rounds: int, lipschitz: ArrayLike, dimension: int, noise_std: ArrayLike) -> np.ndarray:
    counts(rounds=rounds, dimension=dimension)
    return positive("lipschitz", lipschitz) ** 2 + dimension * nonnegative("noise_std_of_mean", noise_std) ** 2
