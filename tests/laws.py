"""Laws of noise over rounds: what a mechanism draws, the covariance it should have, and how far these are apart."""

import jax
import jax.numpy as jnp
import numpy as np

SAMPLES = 20_000  # coordinates, each an independent draw of the whole path
LIMIT = 5.0  # standard errors that the worst entry of a covariance may be off by


def path(source, dimension=SAMPLES, blocks=(6, 6), seed=11):
    """The noise of all rounds, [rounds, d], drawn block after block: equal ones share their programs."""
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
    """The noise of all rounds that a factor makes of standard normals, [rounds, d]."""
    normals = jax.random.normal(jax.random.key(seed), (rounds, dimension))

    def one_round(stream, normal):
        stream = factor.step(stream, normal, jnp.asarray(alpha, jnp.float32))
        return stream, stream.last

    return np.asarray(jax.lax.scan(one_round, factor.init(dimension, rounds), normals)[1], np.float64)


def misfit(z, covariance):
    """How far the worst entry of the empirical covariance is from `covariance`, in standard errors (two-sided)."""
    variance = np.diag(covariance)
    error = np.sqrt((np.multiply.outer(variance, variance) + covariance**2) / z.shape[1])
    return np.max(np.abs(z @ z.T / z.shape[1] - covariance) / error)


def standing_covariance(relative, schedule):
    """K(s, t) = (1/m²)·Σ r² over machines whose last message up to s is their last up to t, entry by entry; m is the
    schedule's constant, and slots that nobody fills send none."""
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


def tree_covariance(rounds, alpha):
    """Of a binary tree's noise: noise_t = (1−α)^b·noise_{t−b} + z_t, b the lowest bit of t."""
    B = np.zeros((rounds + 1, rounds + 1))
    for t in range(1, rounds + 1):
        b = t & -t
        B[t] = (1 - alpha) ** b * B[t - b]
        B[t, t] += 1
    return (B @ B.T)[1:, 1:]
