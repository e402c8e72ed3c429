"""Tran & Cutkosky 2022, "Momentum Aggregation for Private Non-convex ERM", as plain functions of numbers.

Notation: `records` is the paper's N, also the number of rounds of an epoch, `rounds` T, `alpha` α, `step_size` η,
`reset_rate` γ, `dimension` d, `lipschitz` G, `smoothness` L, `gap` R (F(w_1) − inf F), `noise_multiplier` σ, `nodes` V,
and `ratio` ρ. Names that begin with `momentum_` belong to Algorithm 1, and those with `reduced_` to Algorithm 2.
Functions named `_bound` or `_norm` have explicit constants; those named `_rate` have constant 1. The statements are
those of the paper's appendix; corrections are marked.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
