"""Projected SGD in stages with a regulariser, in NumPy and float64; independent of the package."""

import numpy as np


def staged_sgd(gradient, start, rounds, steps, *, strengths, centre, radius, average, noise):
    """Return the reported point after every round and all queries, each [rounds, d].

    `gradient(w)` is the mean of the bounded gradients at w, and `noise` [rounds, d] is added to it.
    """
    run_start, x, reported, queries, r = start, start, [], [], 0
    for length, step, strength in zip(rounds, steps, strengths, strict=True):
        begin, w, total = x, x, np.zeros_like(x)
        for t in range(1, length + 1):
            queries.append(w)
            total = total + w
            c = begin if centre == "stage" else run_start
            w = w - step * (gradient(w) + noise[r] + strength * (w - c))
            w = w * min(1.0, radius / np.linalg.norm(w))
            x = total / t if average else w
            reported.append(x)
            r += 1
    return np.array(reported), np.array(queries)
