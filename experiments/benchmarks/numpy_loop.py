"""DP-μ²-FL with noise cancellation as a careful researcher would write it in NumPy: a loop over rounds, a round's
participants at once, float32, every message and every machine's noise written out."""

import numpy as np


def run(
    features, labels, participants, samples, relative, *, noise_std, step_size, radius, machines, classes, seed
) -> np.ndarray:
    """x_T, float32 [classes, features].

    Args:
        features, labels: [examples, features] and [examples].
        participants, samples, relative: each round's machines, their examples, and the relative standard deviation of
            their noise, [rounds, per_round] each.
    """
    rng = np.random.default_rng(seed)
    rounds, per_round = participants.shape
    shape = classes, features.shape[1]
    targets = np.eye(classes, dtype=np.float32)
    scales = (noise_std * relative).astype(np.float32)
    x, x_previous, w, q = (np.zeros(shape, np.float32) for _ in range(4))
    last_noise = np.zeros((machines, x.size), np.float32)
    for t in range(1, rounds + 1):
        who, z = participants[t - 1], features[samples[t - 1]]
        hot = targets[labels[samples[t - 1]]]
        residual = t * (softmax(z @ x.T) - hot) - (t - 1) * (softmax(z @ x_previous.T) - hot)
        messages = (residual[:, :, None] * z[:, None, :]).reshape(per_round, x.size)
        if noise_std:
            noise = rng.standard_normal((per_round, x.size), np.float32)
            noise *= scales[t - 1][:, None]
            messages += noise
            messages -= last_noise[who]
            last_noise[who] = noise
        q += messages.mean(axis=0).reshape(shape)
        w -= np.float32(step_size) * q
        norm = np.sqrt(np.vdot(w, w))
        if norm > radius:
            w *= np.float32(radius / norm)
        x_previous = x
        x = x + np.float32(2 / (t + 2)) * (w - x)
    return x_previous


def softmax(scores):
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)
