"""Cheu, Joseph, Mao & Peng's algorithms 3, 4 and 5 in NumPy and float64, with θ − η·g and the penalty of Lan's proof.

`gradients(theta, users)` are the users' own, [b, d]; `estimate(t, rows)` is what the sum of their rows becomes in round
t (from 0), so noise and rounding are the caller's. All return the query points, and what is reported after each round.
"""

import numpy as np


def project(theta, radius):
    return theta * min(1.0, radius / max(np.linalg.norm(theta), 1e-30))


def exact(t, rows):
    """A sum without noise."""
    return rows.sum(axis=0)


def huber_gradients(features, labels, width):
    """Of ½(⟨x, θ⟩ − y)² within the width, and linear beyond."""
    features, labels = np.asarray(features, np.float64), np.asarray(labels, np.float64)

    def gradients(theta, users):
        residuals = np.clip(features[users] @ theta - labels[users], -width, width)
        return residuals[:, None] * features[users]

    return gradients


def clipped(gradients, bound):
    def shortened(theta, users):
        rows = gradients(theta, users)
        return rows * np.minimum(1.0, bound / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-30))

    return shortened


def p_sgd(gradients, batches, theta, *, step, radius, estimate=exact):
    """Algorithm 3: output the mean of θ_0 … θ_{T−1}."""
    queries, outputs = [], []
    for t, users in enumerate(batches):
        queries.append(theta)
        outputs.append(np.mean(queries, axis=0))
        mean = estimate(t, gradients(theta, users)) / len(users)
        theta = project(theta - step * mean, radius)
    return queries, outputs


def p_gd(gradients, users, rounds, *, dimension, step, radius, estimate=exact):
    """Algorithm 5: all users in every round, from 0."""
    return p_sgd(gradients, [users] * rounds, np.zeros(dimension), step=step, radius=radius, estimate=estimate)


def p_agd(gradients, batches, theta, *, smoothness, spread, radius, estimate=exact, half=False, first=0):
    """Algorithm 4: L_t·‖θ − θ_t‖² with L_t = (β + S)/(t + 1), or `half` of it; `first` is the first round's number."""
    average, queries, outputs = theta, [], []
    for t, users in enumerate(batches, start=1):
        alpha, penalty = 2 / (t + 2), (smoothness + spread) / (t + 1)
        middle = alpha * theta + (1 - alpha) * average
        mean = estimate(first + t - 1, gradients(middle, users)) / len(users)
        theta = project(theta - mean / (penalty if half else 2 * penalty), radius)
        average = alpha * theta + (1 - alpha) * average
        queries.append(middle)
        outputs.append(average)
    return queries, outputs


def strong_p_agd(gradients, batches, theta, *, smoothness, spreads, rounds, radius, estimate=exact):
    """Phases of Algorithm 4, each from the last one's output; users left over are asked, and change nothing."""
    queries, outputs, done = [], [], 0
    for spread in spreads:
        known = {"smoothness": smoothness, "spread": spread, "radius": radius, "estimate": estimate, "first": done}
        more = p_agd(gradients, batches[done : done + rounds], theta, **known)
        queries, outputs, done = queries + more[0], outputs + more[1], done + rounds
        theta = outputs[-1]
    left = len(batches) - done
    return queries + [theta] * left, outputs + [theta] * left
