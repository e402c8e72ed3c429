"""Lowy & Razaviyayn 2023, "Private Federated Learning Without a Trusted Server", as plain functions of numbers.

The paper's Algorithm 1 is minibatch SGD, and its Algorithm 2 the accelerated method AC-SA, here called accelerated SGD.
Upper bounds named `_bound` have explicit constants. Functions named `_rate` hold up to a constant, which is set to 1.

The losses of machines have equal weights. For weights p_i and N machines, use p_i·N·L_i for the Lipschitz constant L_i
of machine i, and likewise for the smoothness and the strong convexity.

Symbols of the paper: N is `machines`, M `per_round`, n `records`, R `rounds`, K `batch`, d `dimension`, D `diameter` (a
bound on the distance from the start to the optimum), L `lipschitz`, β `smoothness`, μ `strong_convexity`, φ
`deviation`, υ² `diversity`, Δ `gap` (excess loss at the start) and ξ `load` (noise variance divided by 256RL²). M˜ and
ξ˜ replace M and ξ if machines differ or their number is random, see `average_or_max`. A tilde or a hat after a letter,
as in ξ˜ or Φˆ, is above the letter in the paper.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
