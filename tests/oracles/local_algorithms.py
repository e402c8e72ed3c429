"""Algorithms of local work as plain loops over machines and steps, in NumPy, from the papers' formulas.

The server's step is one of `optimizers`, along its pseudo-gradient and with a learning rate.
"""

import numpy as np
from oracles.clients import batches_of
from oracles.isrl import project
from oracles.optimizers import plain

PLAIN = plain, 1.0  # takes the formula's point


def cohort(gradient, plan_of_round, steps):
    """Yield the machine and its steps' gradient functions, for every participant that is present."""
    participants, present, samples, weights = plan_of_round

    def mean(records):
        return lambda v: np.mean([gradient(v, record) for record in records], axis=0)

    for slot in np.flatnonzero(present):
        yield participants[slot], [mean(records) for records in batches_of(samples[slot], weights[slot], steps)]


def kept(w, radius):
    return w if radius is None else project(w, radius)


def feddyn(gradient, plan, start, *, machines, steps, step, alpha, radius=None, server=PLAIN):
    """Return the iterates w_1 to w_R, and the machines' linear terms, [machines, d]."""
    served, rate = server[0](), server[1]
    w, h, own, path = start.copy(), 0 * start, np.zeros((machines, *start.shape)), []
    for each in plan:
        ends = []
        for i, gradients in cohort(gradient, each, steps):
            v = w
            for g in gradients:
                v = kept(v - step * (g(v) - own[i] + alpha * (v - w)), radius)
            own[i] = own[i] - alpha * (v - w)
            ends.append(v)
        h = h - alpha / machines * sum((v - w for v in ends), 0 * w)
        w = kept(served(w, w - (np.mean(ends, axis=0) - h / alpha), rate), radius)
        path.append(w)
    return np.array(path), own


def fedexp(gradient, plan, start, *, steps, step, offset, radius=None, server=PLAIN):
    """Return the iterates w_0 to w_R, and the server's extrapolation of each round."""
    served, rate = server[0](), server[1]
    path, sizes = [start.copy()], []
    for each in plan:
        w, updates = path[-1], []
        for _, gradients in cohort(gradient, each, steps):
            v = w
            for g in gradients:
                v = kept(v - step * g(v), radius)
            updates.append(v - w)
        mean = np.mean(updates, axis=0)
        agreed = np.mean([update @ update for update in updates]) / (2 * (mean @ mean + offset))
        sizes.append(max(1.0, agreed))
        path.append(kept(served(w, -sizes[-1] * mean, rate), radius))
    return np.array(path), np.array(sizes)


def fednova(gradient, plan, start, *, steps, step, prox=0.0, momentum=0.0, effective=None, radius=None, server=PLAIN):
    """Return the iterates w_1 to w_R. The numbers a of the k-th last step are those of the paper's section 4."""
    served, rate = server[0](), server[1]
    w, path = start.copy(), []
    for each in plan:
        directions, lengths = [], []
        for _, gradients in cohort(gradient, each, steps):
            v, buffer = w, 0 * w
            for g in gradients:
                buffer = momentum * buffer + g(v) + prox * (v - w)
                v = kept(v - step * buffer, radius)
            last = np.arange(len(gradients))
            a = (1 - step * prox) ** last if prox else np.cumsum(momentum**last)
            lengths.append(a.sum())
            directions.append((v - w) / a.sum() if gradients else 0 * w)
        length = np.mean(lengths) if effective is None else effective * steps
        w = kept(served(w, -length * np.mean(directions, axis=0), rate), radius)
        path.append(w)
    return np.array(path)


def proxskip(gradient, plan, start, *, machines, steps, step, radius=None, server=PLAIN):
    """Return the iterates w_1 to w_R, and the machines' corrections h_i, as in the paper with all machines present."""
    w, h, path = start.copy(), np.zeros((machines, *start.shape)), []
    for each in plan:
        ends = {}
        for i, gradients in cohort(gradient, each, steps):
            v = w
            for g in gradients:
                v = kept(v - step * (g(v) - h[i]), radius)
            ends[i] = v
        mean, rate = np.mean(list(ends.values()), axis=0), 1 / (steps * step)
        h = h + rate / machines * sum(v - w for v in ends.values())  # h_i + rate·(mean − v_i) if none is absent
        for i, v in ends.items():
            h[i] = h[i] - rate * (v - w)
        w = kept(mean, radius)
        path.append(w)
    return np.array(path), h


def mimelite(gradient, plan, start, *, steps, step, beta, radius=None, server=PLAIN):
    """Return the iterates w_1 to w_R, and the momentum."""
    served, rate = server[0](), server[1]
    w, m, path = start.copy(), 0 * start, []
    for each in plan:
        ends, firsts = [], []
        for _, gradients in cohort(gradient, each, steps):
            v = w
            for g in gradients:
                v = kept(v - step * ((1 - beta) * g(v) + beta * m), radius)
            ends.append(v)
            firsts.append(gradients[0](w) if gradients else 0 * w)
        m = (1 - beta) * np.mean(firsts, axis=0) + beta * m
        w = kept(served(w, w - np.mean(ends, axis=0), rate), radius)
        path.append(w)
    return np.array(path), m


def fedper(gradient, plan, start, *, shared, machines, steps, step, prox=0.0):
    """Return the last point, whose first `shared` coordinates are the body, and the machines' heads."""
    w, heads = start.copy(), np.tile(start[shared:], (machines, 1))
    for each in plan:
        moves = []
        for i, gradients in cohort(gradient, each, steps):
            v = np.concatenate([w[:shared], heads[i]])
            for g in gradients:
                pull = np.concatenate([v[:shared] - w[:shared], 0 * heads[i]])
                v = v - step * (g(v) + prox * pull)
            moves.append(v[:shared] - w[:shared])
            heads[i] = v[shared:]
        w[:shared] += np.mean(moves, axis=0)
    return w, heads
