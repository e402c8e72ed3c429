"""The baselines' loops of Lowy & Razaviyayn (2023, section 5 and appendix I) as they were run, in NumPy and float64;
independent of the package.

Machine i owns features[i] [n, d] and labels[i] [n]. A gradient is `gradient(w, x, y)`, the mean over the rows of x.
Given `cohorts` [rounds, per_round] and `picks` [rounds, per_round, batch] (places among the machine's own records)
replay a run; else both are drawn from `rng`. Both report the mean of the last `window` iterates.
"""

import numpy as np


def logistic_gradient(w, x, y):
    """Binary logistic loss, labels 0 and 1, scores clipped to ±15."""
    scores = np.clip(x @ w, -15.0, 15.0)
    return x.T @ (1.0 / (1.0 + np.exp(-scores)) - y) / len(y)


def least_squares_gradient(w, x, y):
    """Half the squared error."""
    return x.T @ (x @ w - y) / len(y)


def logistic_curvature(w, x, y):
    """Second derivative of each row's loss in its score."""
    probability = 1.0 / (1.0 + np.exp(-np.clip(x @ w, -15.0, 15.0)))
    return probability * (1.0 - probability)


def logistic_risk(w, x, y):
    probability = 1.0 / (1.0 + np.exp(-np.clip(x @ w, -15.0, 15.0)))
    return -np.mean(y * np.log(1e-12 + probability) + (1 - y) * np.log(1e-12 + 1 - probability))


def least_squares_risk(w, x, y):
    return np.mean((x @ w - y) ** 2) / 2


def newton_minimum(x, y, gradient, curvature, *, damping=0.5, tolerance=1e-10):
    """Where the mean loss over the rows of x is least: damped steps, until a full one would gain < tolerance/2."""
    w = np.zeros(x.shape[1])
    while True:
        g = gradient(w, x, y)
        step = np.linalg.solve(x.T @ (curvature(w, x, y)[:, None] * x) / len(y), g)
        w = w - damping * step
        if g @ step < tolerance:
            return w


def test_error(w, features, labels):
    """Share of wrong predictions where 1 is predicted iff its probability exceeds a half."""
    probability = 1.0 / (1.0 + np.exp(-np.clip(features @ w, -15.0, 15.0)))
    return np.mean((probability > 0.5) != (labels == 1))


def relative_rmse(points, features, labels, train_labels):
    """Root of the squared error, averaged over runs, relative to predicting the mean of all training labels."""
    squares = np.mean([(features @ w - labels) ** 2 for w in points])
    return np.sqrt(squares / np.mean((np.mean(train_labels) - labels) ** 2))


def minibatch_sgd(
    features,
    labels,
    gradient,
    *,
    batch,
    rounds,
    per_round,
    step,
    noise_std,
    window,
    rng,
    picks=None,
    cohorts=None,
):
    """A step along the sum, not the mean, of the cohort's minibatch gradients, each with noise of its own."""
    w = np.zeros(features[0].shape[1])
    recent = []
    for r in range(rounds):
        total = np.zeros_like(w)
        for slot, i in enumerate(cohort_of(r, cohorts, len(features), per_round, rng)):
            own = records_of(r, slot, picks, len(labels[i]), batch, rng)
            g = gradient(w, features[i][own], labels[i][own])
            total += g + noise_std * rng.standard_normal(w.size)
        w = w - step * total
        recent = [*recent, w][-window:]
    return np.mean(recent, axis=0)


def local_sgd(
    features,
    labels,
    gradient,
    *,
    batch,
    rounds,
    per_round,
    step,
    noise_std,
    window,
    rng,
    picks=None,
    cohorts=None,
):
    """Every machine of the cohort does `batch` noisy steps on one record each; the end points are averaged."""
    w = np.zeros(features[0].shape[1])
    recent = []
    for r in range(rounds):
        ends = []
        for slot, i in enumerate(cohort_of(r, cohorts, len(features), per_round, rng)):
            v = w
            for j in records_of(r, slot, picks, len(labels[i]), batch, rng):
                g = gradient(v, features[i][[j]], labels[i][[j]])
                v = v - step * (g + noise_std * rng.standard_normal(w.size))
            ends.append(v)
        w = np.mean(ends, axis=0)
        recent = [*recent, w][-window:]
    return np.mean(recent, axis=0)


def cohort_of(r, cohorts, machines, per_round, rng):
    return rng.choice(machines, per_round, replace=False) if cohorts is None else cohorts[r]


def records_of(r, slot, picks, records, batch, rng):
    return rng.integers(0, records, batch) if picks is None else picks[r][slot]
