"""Clipping of gradients and messages, factored or dense: of linear predictors, networks and any other model."""

import jax
import jax.numpy as jnp

from fedprivjax.problem.gradients import Dense, Outer


def clip(vector, bound):
    """`vector · min(1, bound/‖vector‖)`: norm at most `bound` whatever comes in; a non-finite vector becomes zero.

    >>> float(clip(Dense(jnp.array([3.0, 4.0])), 1.0).norm())
    1.0
    >>> clip(Dense(jnp.array([jnp.nan, 4.0])), 1.0).value.tolist()
    [0.0, 0.0]
    """
    norm = vector.norm()
    finite = jnp.isfinite(norm)
    factor = jnp.where(norm > bound, bound / jnp.where(norm > 0, norm, 1.0), 1.0)
    return vector._map(lambda leaf: jnp.where(finite, factor * leaf, 0.0))


def clipping(vectors: Outer | Dense, used, bound) -> jax.Array:
    """How many of the vectors that are used are longer than the bound, and the sum of their norms, [2]."""
    norms = jax.vmap(lambda vector: vector.norm())(vectors)
    return jnp.stack([jnp.sum(used * (norms > bound)), jnp.sum(jnp.where(used > 0, norms, 0.0))])


def clipping_info(sums, count) -> dict[str, jax.Array]:
    """What a round reports of so many clipped messages, from `clipping`."""
    share, norm = sums / jnp.maximum(count, 1.0)
    return {"clipped_share": share, "message_norm": norm}


def clipped(vectors: Outer | Dense, bound) -> Outer | Dense:
    """Vectors with a leading axis, each clipped to norm at most `bound`; None leaves them as they are."""
    return vectors if bound is None else jax.vmap(lambda vector: clip(vector, bound))(vectors)
