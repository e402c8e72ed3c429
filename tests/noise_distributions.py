"""Distribution of noise over rounds: samples of a mechanism, the expected covariance, and their distance."""

import jax
import jax.numpy as jnp
import numpy as np

SAMPLES = 20_000  # coordinates, each an independent sample of the whole path
LIMIT = 5.0  # largest error of a covariance entry, in standard errors


def path(source, dimension=SAMPLES, blocks=(6, 6), seed=11):
    """Return the noise of all rounds, [rounds, d], sampled in blocks. Blocks of equal size share a program."""
    key = jax.random.key(seed)
    keys = jax.vmap(lambda t: jax.random.fold_in(key, t))(jnp.arange(1, sum(blocks) + 1))
    state, parts, start = source.init(dimension, key), [], 0
    for size in blocks:
        some = slice(start, start + size)
        inputs = jax.tree.map(lambda leaf, some=some: leaf[some], source.inputs)
        state, noise = source.draw(state, inputs, keys[some], dimension)
        parts.append(np.asarray(noise, np.float64))
        start += size
    return np.concatenate(parts)


def factor_path(factor, rounds, alpha, dimension=SAMPLES, seed=11):
    """Return a factor's noise of all rounds from standard normals, [rounds, d]."""
    normals = jax.random.normal(jax.random.key(seed), (rounds, dimension))

    def one_round(stream, normal):
        stream = factor.step(stream, normal, jnp.asarray(alpha, jnp.float32))
        return stream, stream.last

    return np.asarray(jax.lax.scan(one_round, factor.init(dimension, rounds), normals)[1], np.float64)


def misfit(z, covariance):
    """Return the largest error of an entry of the empirical covariance, in standard errors (two-sided)."""
    variance = np.diag(covariance)
    error = np.sqrt((np.multiply.outer(variance, variance) + covariance**2) / z.shape[1])
    return np.max(np.abs(z @ z.T / z.shape[1] - covariance) / error)


def standing_covariance(relative, schedule):
    """Return K(s, t) = (1/m²)·Σ r² over machines whose last message up to s is also their last up to t.

    It is computed entry by entry. m is the schedule's constant, and empty slots send no message.
    """
    rounds = schedule.size.rounds
    last = np.full((rounds, schedule.machines), -1)
    for t in range(rounds):
        last[t] = last[t - 1] if t else -1
        last[t, schedule.participants[t][schedule.present[t]]] = t
    K = np.zeros((rounds, rounds))
    for s in range(rounds):
        for t in range(rounds):
            for i in range(schedule.machines):
                if last[s, i] == last[t, i] >= 0:
                    j = list(schedule.participants[last[s, i]]).index(i)
                    K[s, t] += relative[last[s, i], j] ** 2 / schedule.divisor**2
    return K


def tree_covariance(rounds, alpha, restart=None):
    """Return the covariance of a binary tree's noise_t = (1−α)^b·noise_{t−b} + z_t, with b the lowest bit of t.

    With `restart`, b is the lowest bit of the round within its tree.
    """
    B = np.zeros((rounds + 1, rounds + 1))
    for t in range(1, rounds + 1):
        local = (t - 1) % (restart or rounds) + 1
        b = local & -local
        B[t] = (1 - alpha) ** b * B[t - b]
        B[t, t] += 1
    return (B @ B.T)[1:, 1:]
