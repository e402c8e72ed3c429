"""Tran & Cutkosky 2022, "Momentum Aggregation for Private Non-convex ERM", as plain functions of numbers.

Notation: `records` is the paper's N, also the number of rounds of an epoch, `rounds` T, `alpha` α, `step_size` η,
`reset_rate` γ, `dimension` d, `lipschitz` G, `smoothness` L, `gap` R (F(w_1) − inf F), `noise_multiplier` σ, `nodes` V,
and `ratio` ρ. Names that begin with `momentum_` belong to Algorithm 1, which releases a momentum of gradients with tree
noise. Names that begin with `reduced_` belong to Algorithm 2, which reduces this noise. Functions named `_bound` or
`_norm` have explicit constants; those named `_rate` hold up to a constant, which is set to 1. The statements are those
of the paper's appendix; corrections are marked.

Tree noise: a binary tree has the rounds as leaves. Each node releases the discounted sum of its rounds' gradients with
noise, and a momentum is the sum of a few nodes. An epoch is N rounds that use each of the N records once.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
