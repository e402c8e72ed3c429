"""Brute-force sensitivity: a problem with one sample replaced, and the machines' messages at a fixed point."""

from dataclasses import replace

import jax
import numpy as np

from fedprivjax.method.round import flat_rows
from fedprivjax.problem.program import typed_jit

KEY = jax.random.key(0)  # for protocols without their own randomness


def with_sample(problem, sample, features, label):
    """Return the neighbouring problem with one sample replaced."""
    pool = problem.pool
    return replace(
        problem,
        pool=pool._replace(
            features=pool.features.at[sample].set(features),
            label=pool.label.at[sample].set(label),
            feature_norm=pool.feature_norm.at[sample].set(np.linalg.norm(features)),
        ),
    )


@typed_jit
def sent_by(protocol, problem, state, inputs):
    """Return the participants' messages without noise, [per_round, d]."""
    return flat_rows(problem, protocol.rounds.messages(problem, state, inputs, None, KEY))
