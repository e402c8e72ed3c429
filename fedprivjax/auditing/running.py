"""Runs of an audit in chunks: views are scored and discarded; stored scores let a stopped audit resume."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from fedprivjax.atomic_write import write_atomically
from fedprivjax.auditing.neighbouring import Worlds
from fedprivjax.auditing.scores import Counting, Score, ViewDistribution, discriminant, moments, sums
from fedprivjax.auditing.views import ViewOptions, chunk_of, observed
from fedprivjax.checks.refusal import Refusal
from fedprivjax.disk_cache import code_version, digest, read_chunk, write_chunk

Progress = Callable[[int, int], None]
OTHER = 2**21  # offset of the second dataset's seeds


Chunk = dict[str, np.ndarray]  # "scores" [worlds, scores, runs], "totals" and "products" of their views by world


class Runs(NamedTuple):
    """Settings of an audit's runs.

    Attributes:
        pair: prepared runs on the two neighbouring datasets.
        options: options of the adversary's view.
        seed: seed of all runs.
        folder: folder of finished chunks, or None.
        progress: callback, called with (finished runs, all runs), or None.
    """

    pair: Worlds
    options: ViewOptions
    seed: int
    folder: Path | None = None
    progress: Progress | None = None


def score_runs(
    runs: Runs, distribution: ViewDistribution, scores: list[Score], counting: Counting
) -> list[tuple[Score, tuple[np.ndarray, np.ndarray]]]:
    """Return every score with its values on both datasets.

    The last score is a discriminant fitted on the first half of the runs, with values of the second half.
    """
    size, half = chunk_of(runs.pair.start), counting.runs // 2
    _claim(runs, counting)

    def chunks(scores: list[Score], begin: int, end: int) -> list[Chunk]:
        done = []
        for start in range(begin, end, size):
            part = range(start, min(start + size, end))
            done.append(_chunk(runs, distribution, scores, part))
            if runs.progress is not None:
                runs.progress(part.stop, counting.runs)
        return done

    first = chunks(scores, 0, half)
    totals, products = (np.sum([chunk[name] for chunk in first], axis=0) for name in ("totals", "products"))
    worlds = (moments(*world, half, distribution.middle) for world in zip(totals, products, strict=True))
    fitted = discriminant(worlds, distribution.columns, counting)
    second = chunks([*scores, fitted], half, counting.runs)
    early, late = (np.concatenate([chunk["scores"] for chunk in done], axis=2) for done in (first, second))
    joined = np.concatenate([early, late[:, :-1]], axis=2)
    numbers = [(joined[0, place], joined[1, place]) for place in range(len(scores))]
    return list(zip([*scores, fitted], [*numbers, (late[0, -1], late[1, -1])], strict=True))


def _chunk(runs: Runs, distribution: ViewDistribution, scores: list[Score], part: range) -> Chunk:
    """Return the stored results of the runs `part`, or compute and store them."""
    file = None if runs.folder is None else runs.folder / f"{part.start:09d}-{part.stop:09d}.npz"
    found = None if file is None else read_chunk(file)
    if found is not None:
        return found
    starts = zip(runs.pair.starts, (runs.seed, runs.seed + OTHER), strict=True)
    views = [observed(start, seed, part.start, runs.options)[0].values[: len(part)] for start, seed in starts]
    totals, products = zip(*(sums(one, distribution.middle) for one in views), strict=True)
    numbers = np.array([[score.function(one) for score in scores] for one in views])
    found = {"scores": numbers, "totals": np.array(totals), "products": np.array(products)}
    if file is not None:
        write_chunk(file, found)
    return found


def _claim(runs: Runs, counting: Counting) -> None:
    """Reserve a folder for this audit, by a digest of its settings, of all input arrays of its runs, and of the code.

    Raises:
        Refusal: if the folder holds runs of another audit or of another version of the code.
    """
    if runs.folder is None:
        return
    start, file = runs.pair.start, runs.folder / "identity"
    settings = f"{start}|{runs.pair.canary}|{counting}|{runs.options}|{runs.seed}"
    numbers = start.arguments._replace(key=jax.random.key_data(start.key))
    identity = digest(code_version(), settings, *map(np.asarray, jax.tree.leaves(numbers)))
    if file.is_file() and file.read_text() != identity:
        raise Refusal(f"folder must be empty or of the same audit and code, got {runs.folder}")
    write_atomically(file, identity)
