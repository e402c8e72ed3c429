"""Where all randomness comes from: seeds, and the named streams that are derived from them.

Host streams (`participation_rng`, `samples_rng`, `binomial_stream`) draw what is fixed before a run. Device keys
follow from the noise seed: `run_key` for the mechanism, its fold by the round's number for a round's noise, and
`protocol_key` for randomness that is the protocol's own.
"""

from typing import NamedTuple

import jax
import numpy as np

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_at_least

PARTICIPATION, SAMPLES = 2**20 + 1, 2**20 + 2  # spawn keys, apart from `default_rng(seed)`, which others may use
RESAMPLED, MEMBER = 2**20, 2**20 + 3
BINOMIAL = 2**20 + 4  # of the noise seed, for counts drawn on the host
SHUFFLER = 3
PROTOCOL = 2**32 - 1  # a fold that no round's number reaches


class Seeds(NamedTuple):
    """Seeds of the three independent streams of a run: who takes part, which examples, which noise.

    Each is a stream of its own, so that any of them can be shared by, or varied over, the members of a sweep.
    """

    participation: int
    samples: int
    noise: int

    def resample(self, index: int) -> "Seeds":
        """Independent streams of their own for each index, from these.

        >>> Seeds(1, 1, 1).resample(0) != Seeds(1, 1, 1).resample(1)
        True
        """
        words = (np.random.SeedSequence(seed, spawn_key=(RESAMPLED, index)).generate_state(1)[0] for seed in self)
        return Seeds(*map(int, words))


def as_seeds(seed: int | Seeds) -> Seeds:
    """One integer seeds all three streams (which stay independent).

    >>> as_seeds(3)
    Seeds(participation=3, samples=3, noise=3)
    """
    seeds = seed if isinstance(seed, Seeds) else Seeds(seed, seed, seed)
    for one in seeds:
        require_at_least("seed", one, 0)
        if one >= 2**32:
            raise Refusal(f"seed must be below 2³², got {one}")
    return seeds


def participation_rng(seeds: Seeds) -> np.random.Generator:
    """The stream of who takes part."""
    return np.random.default_rng(np.random.SeedSequence(seeds.participation, spawn_key=(PARTICIPATION,)))


def samples_rng(seeds: Seeds) -> np.random.Generator:
    """The stream of which examples are used."""
    return np.random.default_rng(np.random.SeedSequence(seeds.samples, spawn_key=(SAMPLES,)))


def member_seed(seeds: Seeds, member: int) -> int:
    """The seed of a sweep member's host-made noise, where members do not share it.

    >>> member_seed(Seeds(1, 1, 1), 0) != member_seed(Seeds(1, 1, 1), 1)
    True
    """
    return int(np.random.SeedSequence(seeds.noise, spawn_key=(MEMBER, member)).generate_state(1)[0])


def binomial_stream(noise_seed: int, member: int | None = None) -> np.random.SeedSequence:
    """The stream of binomial noise drawn on the host, of a noise seed alone, or of one of its members too.

    >>> draws = [binomial_stream(seed, member).generate_state(1)[0] for seed in (0, 1) for member in (None, 0, 1)]
    >>> len(set(draws))
    6
    """
    spawn_key = (BINOMIAL,) if member is None else (BINOMIAL, member)
    return np.random.SeedSequence(noise_seed, spawn_key=spawn_key)


def shuffler_rng(noise_seed: int) -> np.random.Generator:
    """The stream of the order that a shuffler puts messages in."""
    return np.random.default_rng([noise_seed, SHUFFLER])


def run_key(seeds: Seeds) -> jax.Array:
    """The key of a run's noise."""
    return jax.random.key(seeds.noise)


def round_keys(key: jax.Array, rounds) -> jax.Array:
    """The keys of rounds' noise, from their numbers, which start from 1."""
    return jax.vmap(lambda number: jax.random.fold_in(key, number))(rounds)


def protocol_key(key: jax.Array, number=0) -> jax.Array:
    """The key of a protocol's own randomness in a round; number 0 is for `init`."""
    return jax.random.fold_in(jax.random.fold_in(key, np.uint32(PROTOCOL)), number)
