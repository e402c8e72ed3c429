"""Server optimisers in NumPy, from their papers: each a function that gives one run's `step(w, g, rate)`."""

import numpy as np


def momentum(beta):
    """Heavy-ball: v ← β·v + g, w ← w − η·v."""
    v = 0.0

    def step(w, g, rate):
        nonlocal v
        v = beta * v + g
        return w - rate * v

    return step


def adam(b1, b2, eps=1e-8):
    """Kingma & Ba 2015, Algorithm 1."""
    m = s = 0.0
    t = 0

    def step(w, g, rate):
        nonlocal m, s, t
        t += 1
        m = b1 * m + (1 - b1) * g
        s = b2 * s + (1 - b2) * g**2
        return w - rate * (m / (1 - b1**t)) / (np.sqrt(s / (1 - b2**t)) + eps)

    return step


def plain():
    """w ← w − η·g."""
    return lambda w, g, rate: w - rate * g
