"""Gossip in NumPy: Metropolis-Hastings weights edge by edge, runs of DSGD in float64, and recursions on quadratics."""

import numpy as np


def metropolis(adjacency):
    """Return the Metropolis-Hastings weights of a graph given by its matrix, one entry at a time."""
    n = len(adjacency)
    weights = np.zeros((n, n))
    for i in range(n):
        for j in range(n):
            if i != j and adjacency[i][j]:
                weights[i, j] = 1 / (1 + max(sum(adjacency[i]), sum(adjacency[j])))
        weights[i, i] = 1 - weights[i].sum()
    return weights


def softmax_gradient(w, features, label):
    """Return the gradient of softmax regression at w, [classes, features], for one record."""
    scores = w @ features
    shares = np.exp(scores - scores.max())
    shares /= shares.sum()
    shares[label] -= 1
    return np.outer(shares, features)


def clipped(gradient, clip):
    return gradient * min(1.0, clip / np.linalg.norm(gradient))


def run(records, labels, used, noise, weights, *, shape, eta, clip, radius):
    """Return the models of all machines after every round, [rounds, machines, *shape].

    Args:
        used: records of every machine's message, [rounds, machines, batch].
        noise: noise of every message, [rounds, machines, d].
        weights: mixing matrices, used in turn.
    """
    rounds, machines = used.shape[:2]
    x, every = np.zeros((machines, *shape)), []
    for t in range(rounds):
        half = np.zeros_like(x)
        for i in range(machines):
            each = [clipped(softmax_gradient(x[i], records[k], labels[k]), clip) for k in used[t, i]]
            step = x[i] - eta * (sum(each) / len(each) + noise[t, i].reshape(shape))
            half[i] = step * min(1.0, radius / np.linalg.norm(step))
        mixing = weights[t % len(weights)]
        x = np.array([sum(mixing[i, j] * half[j] for j in range(machines)) for i in range(machines)])
        every.append(x)
    return np.array(every)


def on_quadratics(points, weights, covariance, *, eta, rounds):
    """Return mean and covariance of the machines' models on ½·‖x − a_i‖², without a clip: [n, d] and [n, n].

    X ← W·(X − η·(X − A + Z)) with Z of this covariance in every coordinate.
    """
    n = len(points)
    mean, errors = np.zeros_like(points), np.zeros((n, n))
    for t in range(rounds):
        mixing = weights[t % len(weights)]
        mean = mixing @ ((1 - eta) * mean + eta * points)
        errors = mixing @ ((1 - eta) ** 2 * errors + eta**2 * covariance) @ mixing.T
    return mean, errors
