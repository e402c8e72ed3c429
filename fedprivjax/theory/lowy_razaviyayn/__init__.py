"""Lowy & Razaviyayn 2023, "Private Federated Learning Without a Trusted Server", as plain functions of numbers.

Notation: `machines` is the paper's N, `per_round` M, `records` n, `rounds` R, `batch` K, `dimension` d, `diameter` D (a
bound on the distance from the start to the optimum), `lipschitz` L, `smoothness` β, `strong_convexity` μ, `deviation`
φ, `diversity` υ², `load` ξ, and `gap` Δ. Machines have equal weights. For weights p_i, use p_i·N·L_i for L_i, and
likewise for β and μ. Upper bounds named `_bound` have explicit constants. Those named `_rate` have constant 1.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
