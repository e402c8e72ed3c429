"""Clipping of gradients and messages, factored (linear predictors) or dense (networks and other models)."""

import jax
import jax.numpy as jnp

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.restated import of_package
from fedprivjax.checks.values import called
from fedprivjax.problem.models import Dense, Outer


def clip(vector, bound):
    """Return `vector · min(1, bound/‖vector‖)`, of norm at most `bound` for any input. Non-finite vectors become zero.

    Raises:
        Refusal: if numbers of the vector are not float32, such as integers, whose squares overflow, or if its class,
            which computes the norm, is not one of the package.

    >>> float(clip(Dense(jnp.array([3.0, 4.0])), 1.0).norm())
    1.0
    >>> clip(Dense(jnp.array([jnp.nan, 4.0])), 1.0).value.tolist()
    [0.0, 0.0]
    """
    if not of_package(type(vector)):
        raise Refusal(f"message must be a vector of the package to be clipped, got {called(vector)}")
    for leaf in jax.tree.leaves(vector):
        if jnp.result_type(leaf) != jnp.float32:
            kind = jnp.result_type(leaf)
            raise Refusal(f"message must consist of float32 numbers to be clipped, got {kind}. Convert it to float32")
    norm = vector.norm()
    finite = jnp.isfinite(norm)
    factor = jnp.where(norm > bound, bound / jnp.where(norm > 0, norm, 1.0), 1.0)
    return vector._map(lambda leaf: jnp.where(finite, factor * leaf, 0.0))


def clipping(vectors: Outer | Dense, used, bound) -> jax.Array:
    """Return the number of used vectors longer than the bound, and the sum of the norms of used vectors; shape [2]."""
    norms = jax.vmap(lambda vector: vector.norm())(vectors)
    return jnp.stack([jnp.sum(used * (norms > bound)), jnp.sum(jnp.where(used > 0, norms, 0.0))])


def clipping_info(sums, count) -> dict[str, jax.Array]:
    """Return the clipping metrics of a round with `count` clipped messages, from the sums of `clipping`."""
    share, norm = sums / jnp.maximum(count, 1.0)
    return {"clipped_share": share, "message_norm": norm}


def clipped(vectors: Outer | Dense, bound) -> Outer | Dense:
    """Clip each vector along the leading axis to norm at most `bound`. None leaves the vectors unchanged."""
    return vectors if bound is None else jax.vmap(lambda vector: clip(vector, bound))(vectors)
