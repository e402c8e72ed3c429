"""FedAvg, FedProx and SCAFFOLD as plain loops over machines and steps, in NumPy."""

import numpy as np
from oracles.isrl import project


def walk(gradient, w, batches, *, step, prox=0.0, radius=None, correction=0.0):
    """Return the end point of the local steps, and the mean of their gradients."""
    v, taken = w.copy(), []
    for records in batches:
        g = np.mean([gradient(v, record) for record in records], axis=0)
        taken.append(g)
        v = v - step * (g + prox * (v - w) + correction)
        v = v if radius is None else project(v, radius)
    return v, np.mean(taken, axis=0) if taken else 0 * w


def batches_of(samples, weights, steps):
    """Return the record indices of every step of a participant that has records."""
    cut = zip(samples.reshape(steps, -1), weights.reshape(steps, -1), strict=True)
    return [records[on != 0] for records, on in cut if (on != 0).any()]


def fedavg(gradient, plan, start, *, steps, step, prox=0.0, radius=None, shares=None):
    """Return the iterates w_1 to w_R.

    Args:
        gradient: function of a point and a record's index.
        plan: (participants, present, samples, weights) of each round.
        steps: K, number of steps for which a participant's samples have room.
        shares: weight of each machine, or None for equal weights.
    """
    w, path = start.copy(), []
    for machines, present, samples, weights in plan:
        total, count = 0 * w, 0.0
        for slot in np.flatnonzero(present):
            end, _ = walk(
                gradient, w, batches_of(samples[slot], weights[slot], steps), step=step, prox=prox, radius=radius
            )
            share = 1.0 if shares is None else shares[machines[slot]]
            total, count = total + share * (end - w), count + share
        w = w + total / count if count else w
        path.append(w)
    return np.array(path)


def scaffold(gradient, plan, start, *, machines, steps, step, prox=0.0, radius=None):
    """Return the iterates w_1 to w_R, the server's control variate, and the machines'."""
    w, c, own, path = start.copy(), 0 * start, np.zeros((machines, *start.shape)), []
    for participants, present, samples, weights in plan:
        moves, changes = [], []
        for slot in np.flatnonzero(present):
            i, batches = participants[slot], batches_of(samples[slot], weights[slot], steps)
            end, mean = walk(gradient, w, batches, step=step, prox=prox, radius=radius, correction=c - own[i])
            moves.append(end - w)
            changes.append((i, mean - own[i] if batches else 0 * w))
        if moves:
            w = w + np.mean(moves, axis=0)
        for i, change in changes:
            own[i] += change
            c = c + change / machines
        path.append(w)
    return np.array(path), c, own


def adaptive(gradient, plan, start, *, machines, steps, step, controlled, clip, divisor=None):
    """Return the iterates and clips of FedAvg, or SCAFFOLD if `controlled`, with an adaptive clip and without noise.

    Args:
        machines, steps: M and K of SCAFFOLD.
        clip: the first clip, the quantile, and the rate.
        divisor: divisor of the sums, or None for the number of machines that send.
    """
    (bound, quantile, rate), w, c, own = clip, start.copy(), 0 * start, np.zeros((machines, *start.shape))
    path, bounds = [], [bound]
    for participants, present, samples, weights in plan:
        total, changes, bits = 0 * w, 0 * w, 0.0
        for slot in np.flatnonzero(present):
            i, batches = participants[slot], batches_of(samples[slot], weights[slot], steps)
            end, mean = walk(gradient, w, batches, step=step, correction=c - own[i] if controlled else 0.0)
            change = mean - own[i] if batches and controlled else 0 * w
            norm = np.linalg.norm([end - w, steps * step * change])
            factor = min(1.0, bound / norm) if norm else 1.0
            total, changes, bits = total + factor * (end - w), changes + factor * change, bits + (norm <= bound) - 0.5
            own[i] += factor * change
        count = divisor or max(np.sum(present), 1)
        w, c = w + total / count, c + changes / machines
        bound = bound * np.exp(-rate * (0.5 + bits / count - quantile))
        path.append(w)
        bounds.append(bound)
    return np.array(path), np.array(bounds)
