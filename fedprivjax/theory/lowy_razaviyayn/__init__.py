"""Lowy & Razaviyayn 2023, "Private Federated Learning Without a Trusted Server", as plain functions of numbers.

Notation: `machines` is the paper's N, `per_round` M, `records` n, `rounds` R, `batch` K, `dimension` d, `diameter` D (a
bound on the distance from the start to the optimum), `lipschitz` L, `smoothness` β, `strong_convexity` μ, `deviation`
φ, `diversity` υ², `load` ξ (noise variance divided by 256RL²), and `gap` Δ (excess loss at the start). M̃ and ξ̃ are
the `average_or_max` of M and ξ for random numbers of machines. Algorithm 1 is minibatch SGD and Algorithm 2 the
accelerated method AC-SA. The losses of machines have equal weights. For weights p_i, use p_i·N·L_i for the constant L_i
of machine i, and likewise for β and μ. Upper bounds named `_bound` have explicit constants. Those named `_rate` hold up
to a constant, which is set to 1.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
