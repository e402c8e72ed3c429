"""Cheu, Joseph, Mao & Peng 2022, "Shuffle Private Stochastic Convex Optimization", as plain functions of numbers.

The paper's methods are P_SGD (one-pass SGD), P_AGD (one pass of the accelerated method AC-SA, here called accelerated
SGD) and P_GD (gradient descent with all users in every round). A loss that is not smooth is replaced by a Moreau
envelope, a smooth lower approximation.

Functions named `_bound`, `_scan` or `_phases` have explicit constants. Functions named `_rate` or `_order` return the
order only: the constant factor is set to 1.

Bounds depend on privacy only through the noise constant C: the noise variance of a sum of gradients, summed over
coordinates and divided by L². They therefore also hold for a trusted server (`gaussian_noise_constant`), for the
pan-private method (`pan_private_noise_constant`) and for noise added by each user, where C depends on the batch size.

Symbols of the paper: n is `users`, b `per_round`, T `rounds`, d `dimension`, D `diameter` or `distance` (a bound on the
distance from the start to the minimum), L `lipschitz`, β `smoothness` (of the loss or its Moreau envelopes), λ
`strong_convexity`, S `spread`, g `levels`, q `trials` and C `noise`.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
