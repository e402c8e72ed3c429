"""Cheu, Joseph, Mao & Peng 2022, "Shuffle Private Stochastic Convex Optimization", as plain functions of numbers.

Notation: `users` is the paper's n, `per_round` b, `rounds` T, `dimension` d, `diameter` D, `distance` a bound on the
distance from the start to the minimum, `lipschitz` L, `smoothness` β (of the loss or its Moreau envelopes),
`strong_convexity` λ, `spread` S, `levels` g, and `trials` q. `noise` is C, the noise variance of a sum of gradients,
summed over coordinates and divided by L². Functions named `_bound`, `_scan` or `_phases` have explicit constants. Those
named `_rate` or `_order` have constant 1.

The bounds depend on privacy only through C. They therefore also hold for a trusted server (`gaussian_noise_constant`),
for the pan-private method (`pan_private_noise_constant`) and, with C as a function of b, for noise added by each user.
"""

from fedprivjax.theory.cheu._passes import Phase
from fedprivjax.theory.cheu.agd import agd_bound, agd_mixing, agd_spread, agd_steps
from fedprivjax.theory.cheu.batches import best_batch
from fedprivjax.theory.cheu.costs import analyzer_time, bits_per_user, bits_rate, messages_per_user, runtime_rate
from fedprivjax.theory.cheu.gd import gd_bound, gd_step
from fedprivjax.theory.cheu.gd_scans import (
    Descent,
    gd_groups,
    gd_paper,
    gd_paper_budget,
    gd_paper_rounds,
    gd_phases,
    gd_scan,
)
from fedprivjax.theory.cheu.noise import (
    gaussian_noise_constant,
    oracle_variance,
    pan_private_noise_constant,
    paper_noise_constant,
    rounding_constant,
)
from fedprivjax.theory.cheu.orders import (
    agd_per_round_order,
    sgd_per_round_order,
    smoothed_per_round_order,
    smoothed_smoothness_order,
)
from fedprivjax.theory.cheu.problem import ProblemConstants
from fedprivjax.theory.cheu.rates import (
    TABLE_1,
    Exponents,
    convex_rate,
    full_rate,
    full_strong_rate,
    sgd_rate,
    smooth_rate,
    strong_rate,
    strong_smooth_rate,
)
from fedprivjax.theory.cheu.scans import agd_scan, smoothed_scan
from fedprivjax.theory.cheu.sgd import Choice, sgd_best_per_round, sgd_bound, sgd_scan, sgd_step
from fedprivjax.theory.cheu.strong import strong_per_round, strong_phase_count, strong_phases

__all__ = [
    "TABLE_1",
    "Choice",
    "Descent",
    "Exponents",
    "Phase",
    "ProblemConstants",
    "agd_bound",
    "agd_mixing",
    "agd_per_round_order",
    "agd_scan",
    "agd_spread",
    "agd_steps",
    "analyzer_time",
    "best_batch",
    "bits_per_user",
    "bits_rate",
    "convex_rate",
    "full_rate",
    "full_strong_rate",
    "gaussian_noise_constant",
    "gd_bound",
    "gd_groups",
    "gd_paper",
    "gd_paper_budget",
    "gd_paper_rounds",
    "gd_phases",
    "gd_scan",
    "gd_step",
    "messages_per_user",
    "oracle_variance",
    "pan_private_noise_constant",
    "paper_noise_constant",
    "rounding_constant",
    "runtime_rate",
    "sgd_best_per_round",
    "sgd_bound",
    "sgd_per_round_order",
    "sgd_rate",
    "sgd_scan",
    "sgd_step",
    "smooth_rate",
    "smoothed_per_round_order",
    "smoothed_scan",
    "smoothed_smoothness_order",
    "strong_per_round",
    "strong_phase_count",
    "strong_phases",
    "strong_rate",
    "strong_smooth_rate",
]
