"""The papers' algorithms as plain NumPy loops over machines, in float64; independent of the package.

A gradient is `gradient(params, sample)`. `samples` and `participants` are [rounds, per_round], or samples have one more
axis, of the batch whose mean a machine sends; `noise` is what was
drawn, [rounds, *shape] for a server and [rounds, per_round, *shape] for machines, or 0.0. After t rounds a protocol
reports `points[t − 1]`.
"""

from collections import namedtuple
from functools import partial

import numpy as np
from oracles.optimizers import plain

Outcome = namedtuple("Outcome", "points messages")


def softmax_gradient(features, labels):
    """The gradient of one sample's cross-entropy in a matrix [classes, features]."""
    features = np.asarray(features, np.float64)

    def gradient(params, sample):
        x = features[sample]
        scores = params @ x
        p = np.exp(scores - scores.max())
        p /= p.sum()
        p[labels[sample]] -= 1.0
        return np.outer(p, x)

    return gradient


def project(w, radius):
    norm = np.linalg.norm(w)
    return w if norm <= radius else w * (radius / norm)


def clipped(s, bound):
    norm = np.linalg.norm(s)
    return s if bound is None or norm <= bound else s * (bound / norm)


def mean_clipped(vector, samples, bound):
    """The mean over a message's samples, one or several, of `vector(sample)`, each clipped."""
    return np.mean([clipped(vector(z), bound) for z in np.atleast_1d(samples)], axis=0)


def increment(gradient, t, x, x_before, samples, bound):
    return mean_clipped(lambda z: t * gradient(x, z) - (t - 1) * gradient(x_before, z), samples, bound)


def spread(noise, *shape):
    return np.broadcast_to(np.asarray(noise, np.float64), shape)


def mu2_step(x, w, q_noisy, t, step_size, radius):
    w = project(w - step_size * q_noisy, radius)
    return x + 2.0 / (t + 2.0) * (w - x), w


def mu2_full_trusted(gradient, samples, participants, start, *, radius, step_size, noise=0.0, clip=None):
    """2024, trusted server: every machine keeps d_{t,i}, the server adds one noise to the mean of t·d_{t,i}."""
    assert clip is None
    rounds, machines = samples.shape
    noise = spread(noise, rounds, *start.shape)
    x = x_before = w = start
    d = [np.zeros_like(start) for _ in range(machines)]
    points = []
    for t in range(1, rounds + 1):
        beta = 1.0 / t
        for i in range(machines):
            z = samples[t - 1, i]
            d[i] = gradient(x, z) + (1 - beta) * (d[i] - gradient(x_before, z))
        q_noisy = sum(t * d[i] for i in range(machines)) / machines + noise[t - 1]
        points.append(x)
        x_before, (x, w) = x, mu2_step(x, w, q_noisy, t, step_size, radius)
    return Outcome(np.array(points), None)


def mu2_full_untrusted(gradient, samples, participants, start, *, radius, step_size, noise=0.0, clip=None):
    """2024, untrusted server: machine i sends q_{t,i} + Y_{t,i} with fresh Y_{t,i}, q_{t,i} = t·d_{t,i}."""
    assert clip is None
    rounds, machines = samples.shape
    noise = spread(noise, rounds, machines, *start.shape)
    x = x_before = w = start
    d = [np.zeros_like(start) for _ in range(machines)]
    points, messages = [], []
    for t in range(1, rounds + 1):
        beta = 1.0 / t
        sent = []
        for i in range(machines):
            z = samples[t - 1, i]
            d[i] = gradient(x, z) + (1 - beta) * (d[i] - gradient(x_before, z))
            sent.append(t * d[i] + noise[t - 1, i])
        points.append(x)
        messages.append(sent)
        x_before, (x, w) = x, mu2_step(x, w, sum(sent) / machines, t, step_size, radius)
    return Outcome(np.array(points), np.array(messages))


def mu2_partial_trusted(gradient, samples, participants, start, *, radius, step_size, noise=0.0, clip=None):
    """2025, trusted server: the server keeps q and adds fresh noise to it in each round."""
    rounds, per_round = participants.shape
    noise = spread(noise, rounds, *start.shape)
    x = x_before = w = start
    q = np.zeros_like(start)
    points = []
    for t in range(1, rounds + 1):
        for z in samples[t - 1]:
            q = q + increment(gradient, t, x, x_before, z, clip) / per_round
        points.append(x)
        x_before, (x, w) = x, mu2_step(x, w, q + noise[t - 1], t, step_size, radius)
    return Outcome(np.array(points), None)


def mu2_cancelling(gradient, samples, participants, start, *, radius, step_size, noise=0.0, clip=None):
    """2025, untrusted server: machine i sends s + Y' − Y_i and remembers Y'; the server sums the messages."""
    rounds, per_round = participants.shape
    noise = spread(noise, rounds, per_round, *start.shape)
    x = x_before = w = start
    q_noisy = np.zeros_like(start)
    remembered = {}
    points, messages = [], []
    for t in range(1, rounds + 1):
        sent = []
        for j, (i, z) in enumerate(zip(participants[t - 1], samples[t - 1], strict=True)):
            s = increment(gradient, t, x, x_before, z, clip)
            fresh = noise[t - 1, j]
            sent.append(s + fresh - remembered.get(i, 0.0))
            remembered[i] = fresh
        q_noisy = q_noisy + sum(sent) / per_round
        points.append(x)
        messages.append(sent)
        x_before, (x, w) = x, mu2_step(x, w, q_noisy, t, step_size, radius)
    return Outcome(np.array(points), np.array(messages))


def mu2_fresh_noise(gradient, samples, participants, start, *, radius, step_size, noise=0.0, clip=None):
    """2025, the ablation: nothing is taken back, so the noise adds up in the server's sum."""
    rounds, per_round = participants.shape
    noise = spread(noise, rounds, per_round, *start.shape)
    x = x_before = w = start
    q_noisy = np.zeros_like(start)
    points, messages = [], []
    for t in range(1, rounds + 1):
        sent = []
        for j, z in enumerate(samples[t - 1]):
            s = increment(gradient, t, x, x_before, z, clip)
            sent.append(s + noise[t - 1, j])
        q_noisy = q_noisy + sum(sent) / per_round
        points.append(x)
        messages.append(sent)
        x_before, (x, w) = x, mu2_step(x, w, q_noisy, t, step_size, radius)
    return Outcome(np.array(points), np.array(messages))


def stale_momentum(gradient, samples, participants, start, *, radius, step_size, noise=0.0, clip=None):
    """2025, alternative 1: d_i ← ∇f(x_t) + (1−β_t)(d_i − ∇f(x_{last_i})), and the server averages t·d_i."""
    rounds, per_round = participants.shape
    noise = spread(noise, rounds, per_round, *start.shape)
    x = w = start
    d, seen = {}, {}
    points, messages = [], []
    for t in range(1, rounds + 1):
        beta = 1.0 / t
        sent = []
        for j, (i, z) in enumerate(zip(participants[t - 1], samples[t - 1], strict=True)):
            if i not in d:
                d[i] = mean_clipped(lambda one, x=x, t=t: t * gradient(x, one), z, clip) / t
            else:
                correction = increment(gradient, t, x, seen[i], z, clip) / t
                d[i] = correction + (1 - beta) * d[i]
            seen[i] = x
            sent.append(t * d[i] + noise[t - 1, j])
        points.append(x)
        messages.append(sent)
        x, w = mu2_step(x, w, sum(sent) / per_round, t, step_size, radius)
    return Outcome(np.array(points), np.array(messages))


def noisy_sgd(
    gradient, samples, participants, start, *, radius, step_size, noise=0.0, clip=None, average=False, server=plain
):
    """Projected SGD; noise [rounds, ...] on the mean, or [rounds, per_round, ...] on each machine's gradient."""
    rounds, per_round = participants.shape
    stepped = server()
    noise = np.asarray(noise, np.float64)
    of_server = noise.ndim == start.ndim + 1
    w = start
    visited, points, messages = [], [], []
    for t in range(1, rounds + 1):
        on_mean = noise[t - 1] if of_server else 0.0
        on_each = spread(0.0 if of_server else noise, rounds, per_round, *start.shape)[t - 1]
        sent = [mean_clipped(partial(gradient, w), z, clip) + on_each[j] for j, z in enumerate(samples[t - 1])]
        visited.append(w)
        messages.append(sent)
        w = project(stepped(w, sum(sent) / per_round + on_mean, step_size), radius)
        points.append(sum(visited) / t if average else w)
    return Outcome(np.array(points), np.array(messages))
