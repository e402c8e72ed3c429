"""Seeds, and the named random streams that are derived from them.

Host streams (`participation_rng`, `samples_rng`, `binomial_stream`) are used before a run. Device keys are derived from
the noise seed: `run_key` for the mechanism, `round_keys` for the noise of each round, and `protocol_key` for the
protocol's other randomness.
"""

from typing import NamedTuple

import jax
import numpy as np

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_at_least

PARTICIPATION, SAMPLES = 2**20 + 1, 2**20 + 2  # spawn keys, independent of `default_rng(seed)`, which user code may use
RESAMPLED, CONFIGURATION = 2**20, 2**20 + 3
BINOMIAL = 2**20 + 4  # spawn key of the noise seed, for counts sampled on the host
SHUFFLER = 3
PROTOCOL = 2**32 - 1  # larger than every round number


class Seeds(NamedTuple):
    """Seeds of a run's three independent streams: participation, record samples and noise.

    The configurations of a sweep can share each stream or vary it.
    """

    participation: int
    samples: int
    noise: int

    def resample(self, index: int) -> "Seeds":
        """Return the seeds of independent streams for this index, derived from these seeds.

        >>> Seeds(1, 1, 1).resample(0) != Seeds(1, 1, 1).resample(1)
        True
        """
        words = (np.random.SeedSequence(seed, spawn_key=(RESAMPLED, index)).generate_state(1)[0] for seed in self)
        return Seeds(*map(int, words))


def as_seeds(seed: int | Seeds) -> Seeds:
    """Return seeds of all three streams from one integer. The streams stay independent.

    >>> as_seeds(3)
    Seeds(participation=3, samples=3, noise=3)
    """
    seeds = seed if isinstance(seed, Seeds) else Seeds(seed, seed, seed)
    for one in seeds:
        require_at_least("seed", one, 0)
        if one >= 2**32:
            raise Refusal(f"seed must be below 2³², got {one}")
    return Seeds(*map(int, seeds))


def participation_rng(seeds: Seeds) -> np.random.Generator:
    """Return the generator of the participation stream."""
    return np.random.default_rng(np.random.SeedSequence(seeds.participation, spawn_key=(PARTICIPATION,)))


def samples_rng(seeds: Seeds) -> np.random.Generator:
    """Return the generator of the stream of record samples."""
    return np.random.default_rng(np.random.SeedSequence(seeds.samples, spawn_key=(SAMPLES,)))


def configuration_seed(seeds: Seeds, configuration: int) -> int:
    """Return the seed of a configuration's host noise, for sweeps whose configurations do not share noise.

    >>> configuration_seed(Seeds(1, 1, 1), 0) != configuration_seed(Seeds(1, 1, 1), 1)
    True
    """
    return int(np.random.SeedSequence(seeds.noise, spawn_key=(CONFIGURATION, configuration)).generate_state(1)[0])


def binomial_stream(noise_seed: int, configuration: int | None = None) -> np.random.SeedSequence:
    """Return the stream of binomial noise sampled on the host, for a noise seed or one of its configurations.

    >>> draws = [binomial_stream(seed, one).generate_state(1)[0] for seed in (0, 1) for one in (None, 0, 1)]
    >>> len(set(draws))
    6
    """
    spawn_key = (BINOMIAL,) if configuration is None else (BINOMIAL, configuration)
    return np.random.SeedSequence(noise_seed, spawn_key=spawn_key)


def shuffler_rng(noise_seed: int) -> np.random.Generator:
    """Return the generator of a shuffler's permutations."""
    return np.random.default_rng([noise_seed, SHUFFLER])


def run_key(seeds: Seeds) -> jax.Array:
    """Return the key of a run's noise."""
    return jax.random.key(seeds.noise)


def round_keys(key: jax.Array, rounds) -> jax.Array:
    """Return the key of each round's noise, from round numbers that start at 1."""
    return jax.vmap(lambda number: jax.random.fold_in(key, number))(rounds)


def protocol_key(key: jax.Array, number=0) -> jax.Array:
    """Return the key of a protocol's additional randomness in a round. Number 0 is for `init`."""
    return jax.random.fold_in(jax.random.fold_in(key, np.uint32(PROTOCOL)), number)
