"""Keys of random numbers, of one generator whatever jax's settings are, and a check of the settings that change it."""

from typing import Any

import jax

from fedprivjax.checks.refusal import Refusal

GENERATOR = "threefry2x32"
SETTINGS = {"jax_random_seed_offset": 0, "jax_threefry_partitionable": True}  # of jax, with the values that runs need


def random_key(seed: Any) -> jax.Array:
    """Return the key of a seed, of the generator "threefry2x32". jax's default generator may be another one.

    >>> jax.random.key_impl(random_key(0))
    'threefry2x32'
    """
    return jax.random.key(seed, impl=GENERATOR)


def random_settings() -> dict[str, Any]:
    """Return the generator, and jax's settings that change random numbers, by name."""
    return {"prng_impl": GENERATOR, **{name: getattr(jax.config, name, value) for name, value in SETTINGS.items()}}


def require_random_settings() -> None:
    """Raise Refusal unless jax's settings that change random numbers have their default values.

    >>> require_random_settings()
    """
    for name, value in SETTINGS.items():
        found = random_settings()[name]
        if found != value:
            remedy = f"Unset {name.upper()} in the environment"
            raise Refusal(f"{name} must be {value}, got {found}: noise and starting points depend on it. {remedy}")
