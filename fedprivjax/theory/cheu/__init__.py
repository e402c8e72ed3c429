"""Cheu, Joseph, Mao & Peng 2022, "Shuffle Private Stochastic Convex Optimization", as plain functions of numbers.

Our words for the paper's letters: `users` n, `per_round` b, `rounds` T, `dimension` d, `diameter` D, `distance` a bound
on the way from the start to the minimum, `lipschitz` L, `smoothness` β (of the loss or its envelopes),
`strong_convexity` λ, `spread` S, `levels` g, `trials` q, `noise` C: a sum's noise variance, all coordinates together,
over L². What is named `_bound`, `_scan` or `_phases` has explicit constants; `_rate` and `_order` have constant 1.

The bounds know of privacy by C alone, so they are also those of a trusted server (`gaussian_noise_constant`), of the
pan-private method (`pan_private_noise_constant`) and, with C as a function of b, of noise that each user adds.
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
