"""Cheu, Joseph, Mao & Peng 2022, "Shuffle Private Stochastic Convex Optimization", as plain functions of numbers.

Notation: `users` is the paper's n, `per_round` b, `rounds` T, `dimension` d, `diameter` D, `distance` a bound on the
distance from the start to the minimum, `lipschitz` L, `smoothness` β (of the loss or its Moreau envelopes),
`strong_convexity` λ, `spread` S, `levels` g, and `trials` q. `noise` is C, the noise variance of a sum of gradients,
summed over coordinates and divided by L². Functions named `_bound`, `_scan` or `_phases` have explicit constants. Those
named `_rate` or `_order` return the order only: the constant factor is set to 1. The paper's methods are P_SGD
(one-pass SGD), P_AGD (one pass of the accelerated method AC-SA) and P_GD (gradient descent with all users in every
round). A loss that is not smooth is replaced by a Moreau envelope, a smooth lower approximation.

The bounds depend on privacy only through C. They therefore also hold for a trusted server (`gaussian_noise_constant`),
for the pan-private method (`pan_private_noise_constant`) and, with C as a function of b, for noise added by each user.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
