"""Methods with absent machines as plain NumPy loops, in float64: who is asked and does not send does nothing at all.

A gradient is `gradient(params, sample)`; `rounds` lists every round's participants as (machine, sample) of those who
send. Points are those that machines are asked about, one for each round.
"""

import numpy as np
from oracles.pseudocode import clipped, mu2_step, project


def mu2(gradient, rounds, start, *, divisor, radius, step_size, clip):
    """DP-μ²-FL: every round's sum is divided by one constant."""
    x = x_before = w = start
    q, points = np.zeros_like(start), []
    for t, sent in enumerate(rounds, start=1):
        points.append(x)
        for _, z in sent:
            q = q + clipped(t * gradient(x, z) - (t - 1) * gradient(x_before, z), clip) / divisor
        x_before, (x, w) = x, mu2_step(x, w, q, t, step_size, radius)
    return np.array(points)


def noisy_sgd(gradient, rounds, start, *, divisor, radius, step_size, clip):
    """Noisy SGD: every round's sum is divided by one constant."""
    w, points = start, []
    for sent in rounds:
        points.append(w)
        w = project(w - step_size * sum(clipped(gradient(w, z), clip) for _, z in sent) / divisor, radius)
    return np.array(points)


def stale_momentum(gradient, rounds, start, *, divisor, radius, step_size, clip):
    """Stale momentum: a machine's momentum stands still until it sends again; the mean is of those who send."""
    x = w = start
    known, points = {}, []
    for t, sent in enumerate(rounds, start=1):
        points.append(x)
        for i, z in sent:
            q, seen, before = known.get(i, (0.0, None, 1))
            u = t * gradient(x, z) - (0.0 if seen is None else (t - 1) * gradient(seen, z))
            growth = 0.0 if seen is None else (t - 1) / before
            known[i] = clipped(u, clip) + growth * q, x, t
        mean = sum(known[i][0] for i, _ in sent) / len(sent)
        x, w = mu2_step(x, w, mean, t, step_size, radius)
    return np.array(points)
