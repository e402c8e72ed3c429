"""Seeds, and the named random streams that are derived from them.

Host streams (`participation_rng`, `samples_rng`, `binomial_stream`) are used before a run. Device keys are derived from
the noise seed: `run_key` for the mechanism, `round_keys` for the noise of each round, and `protocol_key` for the
protocol's other randomness.
"""

from collections.abc import Iterable, Sequence
from itertools import count, product
from typing import NamedTuple

import jax
import numpy as np

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_at_least
from fedprivjax.problem.random_keys import random_key

PARTICIPATION, SAMPLES = 2**20 + 1, 2**20 + 2  # spawn keys, independent of `default_rng(seed)`, which user code may use
RESAMPLED, CONFIGURATION = 2**20, 2**20 + 3
BINOMIAL = 2**20 + 4  # spawn key of the noise seed, for counts sampled on the host
SHUFFLER = 3
PROTOCOL = 2**32 - 1  # larger than every round number


class Seeds(NamedTuple):
    """Seeds of the three independent sources of randomness in a run.

    Two runs can share one seed and differ in the other seeds, for example to use the same schedule with other noise.

    Attributes:
        participation: seed for the choice of each round's machines.
        samples: seed for the choice of each message's records.
        noise: seed of the noise, and of other random choices of the method.
    """

    participation: int
    samples: int
    noise: int

    def resample(self, index: int) -> "Seeds":
        """Return new seeds that are derived from these seeds and an index, to repeat a run with other randomness.

        Different indices give independent randomness.

        >>> Seeds(1, 1, 1).resample(0) != Seeds(1, 1, 1).resample(1)
        True
        """
        return Seeds(*(resampled_seed(seed, index) for seed in self))


def resampled_seed(seed: int, index: int, attempt: int = 0) -> int:
    """Return a seed of 32 bits for an index. Two of 10⁵ are equal by chance; another attempt gives another one."""
    spawn_key = (RESAMPLED, index, attempt) if attempt else (RESAMPLED, index)
    return int(np.random.SeedSequence(seed, spawn_key=spawn_key).generate_state(1)[0])


def distinct_resamples(seeds: Sequence[Seeds], indices: Iterable[int]) -> dict[tuple[Seeds, int], Seeds]:
    """Return `Seeds.resample` of all seeds and indices, with other seeds in place of those that are equal by chance.

    Seeds that have a stream in common still have it in common for the same index.

    >>> one, other = Seeds(1, 1, 1), Seeds(1, 1, 2)
    >>> found = distinct_resamples([one, other], range(3))
    >>> found[one, 2] == one.resample(2), found[one, 2].samples == found[other, 2].samples
    (True, True)
    """
    words: dict[tuple[int, int, int], int] = {}
    taken: set[tuple[int, int]] = set()
    pairs = list(product(seeds, indices))
    for seed, index in pairs:
        for place in (place for place in enumerate(seed) if (*place, index) not in words):
            attempts = (resampled_seed(place[1], index, attempt) for attempt in count())
            words[(*place, index)] = word = next(one for one in attempts if (place[0], one) not in taken)
            taken.add((place[0], word))
    return {(seed, index): Seeds(*(words[(*place, index)] for place in enumerate(seed))) for seed, index in pairs}


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

    It has 128 bits, so that no two configurations have the same by chance.

    >>> configuration_seed(Seeds(1, 1, 1), 0) != configuration_seed(Seeds(1, 1, 1), 1)
    True
    """
    words = np.random.SeedSequence(seeds.noise, spawn_key=(CONFIGURATION, configuration)).generate_state(4)
    return int.from_bytes(words.astype("<u4").tobytes(), "little")


def configuration_key(key: jax.Array, configuration) -> jax.Array:
    """Return the noise key of a configuration, for sweeps whose configurations do not share noise. All are distinct."""
    return jax.random.fold_in(key, configuration)


def binomial_stream(noise_seed: int) -> np.random.SeedSequence:
    """Return the stream of binomial noise, or noise of integers, sampled on the host, for a noise seed."""
    return np.random.SeedSequence(noise_seed, spawn_key=(BINOMIAL,))


def shuffler_rng(noise_seed: int) -> np.random.Generator:
    """Return the generator of a shuffler's permutations."""
    return np.random.default_rng([noise_seed, SHUFFLER])


def run_key(seeds: Seeds) -> jax.Array:
    """Return the key of a run's noise."""
    return random_key(seeds.noise)


def round_keys(key: jax.Array, rounds) -> jax.Array:
    """Return the key of each round's noise, from round numbers that start at 1."""
    return jax.vmap(lambda number: jax.random.fold_in(key, number))(rounds)


def protocol_key(key: jax.Array, number=0) -> jax.Array:
    """Return the key of a protocol's additional randomness in a round. Number 0 is for `init`."""
    return jax.random.fold_in(jax.random.fold_in(key, np.uint32(PROTOCOL)), number)
