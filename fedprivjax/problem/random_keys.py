"""Keys of random numbers, of one generator whatever jax's settings are, and a check of jax's other settings."""

from typing import Any

import jax
import numpy as np

from fedprivjax.checks.refusal import Refusal

GENERATOR = "threefry2x32"
SETTINGS = {"jax_random_seed_offset": 0, "jax_threefry_partitionable": True}  # of jax, with the values that runs need
PROMOTION = "jax_numpy_dtype_promotion", "standard"


def random_key(seed: Any) -> jax.Array:
    """Return the key of a seed, of the generator "threefry2x32". jax's default generator may be another one.

    >>> jax.random.key_impl(random_key(0))
    'threefry2x32'
    """
    if isinstance(seed, int) and not jax.config.read("jax_enable_x64"):
        words: Any = np.array([0, seed % 2**32], np.uint32)
        return jax.random.wrap_key_data(words, impl=GENERATOR)  # the same key, without a program that computes it
    return jax.random.key(seed, impl=GENERATOR)


def random_settings() -> dict[str, Any]:
    """Return the generator, and jax's settings that change random numbers, by name."""
    return {"prng_impl": GENERATOR, **{name: getattr(jax.config, name, value) for name, value in SETTINGS.items()}}


def require_jax_settings() -> None:
    """Raise Refusal unless jax's settings that change random numbers, or refuse mixed types, have default values.

    >>> require_jax_settings()
    """
    needed = [(name, value, "noise and starting points depend on it") for name, value in SETTINGS.items()]
    for name, value, why in [*needed, (*PROMOTION, "programs mix types of numbers")]:
        found = getattr(jax.config, name, value)
        if found != value:
            raise Refusal(f"{name} must be {value}, got {found}: {why}. Unset {name.upper()} in the environment")
