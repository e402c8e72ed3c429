"""Tran & Cutkosky 2022, "Momentum Aggregation for Private Non-convex ERM", as plain functions of numbers.

Both methods are normalised SGD with private momentum. Names that begin with `momentum_` belong to Algorithm 1, which
releases a momentum of gradients with tree noise. Names that begin with `reduced_` belong to Algorithm 2, which reduces
this noise.

Tree noise: a binary tree has the rounds as leaves. Each node releases the discounted sum of its rounds' gradients with
noise, and a momentum is the sum of a few nodes. An epoch is N rounds that use each of the N records once.

Functions named `_bound` or `_norm` have explicit constants. Functions named `_rate` hold up to a constant, which is set
to 1. The statements are those of the paper's appendix; corrections are marked.

Symbols of the paper: N is `records`, also the number of rounds of an epoch, T `rounds`, α `alpha`, η `step_size`, γ
`reset_rate`, d `dimension`, G `lipschitz`, L `smoothness`, R `gap` (F(w_1) − inf F for the loss F), σ
`noise_multiplier`, V `nodes` and ρ `ratio`.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
