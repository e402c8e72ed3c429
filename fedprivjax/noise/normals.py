"""Standard normals, two per evaluation of the generator."""

import jax


def normals(key, shape):
    """Return standard normals of a shape, float32.

    JAX's default layout discards half of the generator's output, to shard one large sample over devices. Noise here is
    sharded over seeds, not within a vector. The older layout is therefore sufficient, and about twice as fast.

    >>> normals(jax.random.key(0), (3,)).shape
    (3,)
    """
    with jax.threefry_partitionable(False):
        return jax.random.normal(key, shape)
