"""Tran & Cutkosky 2022, "Momentum Aggregation for Private Non-convex ERM", as plain functions of numbers.

Notation: `records` is the paper's N, also the number of rounds of an epoch, `rounds` T, `alpha` α, `step_size` η,
`reset_rate` γ, `dimension` d, `lipschitz` G, `smoothness` L, `gap` R (F(w_1) − inf F), `noise_multiplier` σ, `nodes` V,
and `ratio` ρ. Names that begin with `momentum_` belong to Algorithm 1, and those with `reduced_` to Algorithm 2.
Functions named `_bound` or `_norm` have explicit constants; those named `_rate` have constant 1. The statements are
those of the paper's appendix; corrections are marked.
"""

from fedprivjax.theory.tran_cutkosky.composition import composition_epsilon, composition_zcdp
from fedprivjax.theory.tran_cutkosky.federated import Federated, federated
from fedprivjax.theory.tran_cutkosky.momentum import (
    GradientBound,
    MomentumSettings,
    momentum_bound,
    momentum_noise_norm,
    momentum_rate,
    momentum_settings,
)
from fedprivjax.theory.tran_cutkosky.nodes import (
    ReducedNodes,
    node_count,
    node_sensitivity,
    reduced_node_counts,
    sensitivity_cap,
)
from fedprivjax.theory.tran_cutkosky.privacy import (
    momentum_epsilon,
    momentum_max_epsilon,
    momentum_multiplier,
    reduced_epsilon,
    reduced_max_epsilon,
    reduced_multiplier,
)
from fedprivjax.theory.tran_cutkosky.problem import ProblemConstants
from fedprivjax.theory.tran_cutkosky.reduced import (
    ReducedSettings,
    reduced_bound,
    reduced_noise_norm,
    reduced_rate,
    reduced_settings,
)
from fedprivjax.theory.tran_cutkosky.sensitivities import Sensitivities, reduced_sensitivities, residual_sensitivity

__all__ = [
    "Federated",
    "GradientBound",
    "MomentumSettings",
    "ProblemConstants",
    "ReducedNodes",
    "ReducedSettings",
    "Sensitivities",
    "composition_epsilon",
    "composition_zcdp",
    "federated",
    "momentum_bound",
    "momentum_epsilon",
    "momentum_max_epsilon",
    "momentum_multiplier",
    "momentum_noise_norm",
    "momentum_rate",
    "momentum_settings",
    "node_count",
    "node_sensitivity",
    "reduced_bound",
    "reduced_epsilon",
    "reduced_max_epsilon",
    "reduced_multiplier",
    "reduced_node_counts",
    "reduced_noise_norm",
    "reduced_rate",
    "reduced_sensitivities",
    "reduced_settings",
    "residual_sensitivity",
    "sensitivity_cap",
]
