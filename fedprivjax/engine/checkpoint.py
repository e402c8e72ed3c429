"""Checkpoint of one run on disk: its state, digests of everything that the completed rounds depend on, and resuming.

A run goes on from a checkpoint only if all of them are equal. Arrays of rounds are compared up to the next checkpoint,
because a killed run may have reported these rounds: with the same noise for other messages, no guarantee covers both.
"""

import json
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from math import ceil
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from fedprivjax.atomic_write import write_atomically
from fedprivjax.bounded_read import arrays_from, json_value
from fedprivjax.checks.refusal import Refusal
from fedprivjax.engine.fingerprint import DIGEST, Prefix, fixed_parts, program_digest
from fedprivjax.engine.kept_state import of_carry
from fedprivjax.engine.prepare import ReadyRun
from fedprivjax.engine.segments import Done, Segments, begin_program, placed_like, trajectory

FILE, FORMAT = "checkpoint.npz", 1
REMEDIES = {"noise_std": "Give noise_std instead of a target", "step_size": "Give step_size"}
SHARE = 20  # checkpoints of a run by default


class Stored(NamedTuple):
    """A run at a checkpoint.

    Attributes:
        evaluations: number of evaluations before the carry.
        carry: leaves of the carry, keys as key data.
        values: metrics by name, [evaluations so far, ...].
        params: leaves of the reported parameters of a finished run, otherwise none.
        own: leaves of the states that machines keep after a finished run, if `keep_own`, otherwise none.
    """

    evaluations: int
    carry: list[np.ndarray]
    values: dict[str, np.ndarray]
    params: list[np.ndarray]
    own: list[np.ndarray]


class Checkpoint:
    """The checkpoint of a prepared run in a folder.

    A worker of one thread computes what the run depends on, and writes, while the run goes on.
    """

    def __init__(self, folder: Path, start: ReadyRun, worker: Executor):
        self.path, self.start, self.prefix, self.worker = folder / FILE, start, Prefix(start), worker
        self._fixed, self._program = worker.submit(fixed_parts, start), worker.submit(program_digest, start)
        self._saved: Future | None = None
        self.reached = 0  # rounds that may have been reported

    def load(self) -> Stored | None:
        """Return the stored run, or None if there is none.

        Raises:
            Refusal: if it is damaged, or not the beginning of this run.
        """
        if not self.path.exists():
            return None
        try:
            arrays = arrays_from(self.path, follow=False)
            about = json_value(str(arrays.pop("about")))
            own = {"format of the file": str(FORMAT)}
            self._compare(about, {"format of the file": about["format"]}, own)
            found = _unpacked(about, arrays)
            fixed, prefix = ({name: str(text) for name, text in about[part].items()} for part in ("fixed", "prefix"))
            program, total, self.reached = str(about["program"]), int(about["rounds"]), int(about["reached"])
        except Refusal:
            raise
        except Exception as error:  # a damaged file may hold anything
            raise self.damaged(error) from error
        self._compare(about, fixed, self.fixed)
        rounds = self.start.static.size.rounds
        if rounds < self.reached:
            least = f"at least {self.reached}, which the run of the checkpoint {self.path} may have reported"
            raise Refusal(f"rounds must be {least}, got {rounds}. Give rounds = {total}, or use another folder")
        self._compare(about, prefix, self.prefix.to(self.reached))
        self._compare(about, {"program": program}, {"program": self.program})
        return found if rounds == total else found._replace(params=[])

    def save(self, stored: Stored, following: int) -> None:
        """Write the run at a checkpoint in place of the one before, in the worker, which has written that one.

        Args:
            following: rounds at the next checkpoint. Later rounds are not reported before it is written.
        """
        self.wait()
        self.reached = max(self.reached, following)
        self._saved = self.worker.submit(self._write, stored, self.reached)

    def wait(self) -> None:
        """Wait until the last checkpoint is written, and raise its error."""
        if self._saved is not None:
            self._saved.result()

    def _write(self, stored: Stored, reached: int) -> None:
        about = {
            "format": str(FORMAT),
            "rounds": self.start.static.size.rounds,
            "completed": stored.evaluations * self.start.static.eval_every,
            "reached": reached,
            "evaluations": stored.evaluations,
            "fixed": self.fixed,
            "program": self.program,
            "prefix": self.prefix.to(reached),
        }
        arrays = {f"carry/{place:06d}": leaf for place, leaf in enumerate(stored.carry)}
        arrays |= {f"params/{place:06d}": leaf for place, leaf in enumerate(stored.params)}
        arrays |= {f"own/{place:06d}": leaf for place, leaf in enumerate(stored.own)}
        arrays |= {f"metrics/{name}": values for name, values in stored.values.items()}
        text: Any = np.array(json.dumps(about))
        write_atomically(self.path, lambda file: np.savez(file, about=text, **arrays))  # type: ignore[arg-type]

    def params(self, stored: Stored) -> Any:
        """Return the reported parameters of a finished run."""
        shapes = jax.eval_shape(lambda arguments: trajectory(arguments, self.start.static)[0], self.start.arguments)
        return restored(shapes, stored.params, self)

    def own(self, stored: Stored) -> Any:
        """Return the states that machines keep after a finished run."""
        static = self.start.static
        shapes = jax.eval_shape(lambda given: of_carry(begin_program(given, static, 1)[0]), self.start.arguments)
        return restored(shapes, stored.own, self)

    def damaged(self, error: Any) -> Refusal:
        """Return the refusal of a file that cannot be used."""
        return Refusal(
            f"checkpoint {self.path} must be readable, got a damaged file ({type(error).__name__}). "
            "Delete it to start again"
        )

    @property
    def fixed(self) -> dict[str, str]:
        """Everything but arrays of rounds that the run depends on, as text by name."""
        return self._fixed.result()

    @property
    def program(self) -> str:
        """Digest of the text of the run's programs."""
        return self._program.result()

    def _compare(self, about: Mapping[str, Any], stored: Mapping[str, str], own: Mapping[str, str]) -> None:
        """Raise Refusal unless all texts are equal."""
        for name in (*stored, *own):
            one, other = stored.get(name, "none"), own.get(name, "none")
            if one != other:
                values = ", got another" if DIGEST in one + other else f", {one}, got {other}"
                remedy = self._remedy(about, name)
                raise Refusal(f"{name} must be as in the checkpoint {self.path}{values}. {remedy}")

    def _remedy(self, about: Mapping[str, Any], name: str) -> str:
        if about.get("rounds") in (None, self.start.static.size.rounds):
            return "Use what the run began with, or another folder"
        advice = REMEDIES.get(name, "")
        if name == "eval_every":
            advice = f"Give eval_every = {about['fixed'][name]}"
        advice = f"{advice}, keep" if advice else "It changes with the number of rounds: keep"
        return f"{advice} rounds = {about['rounds']}, or use another folder"


def plain(tree: Any) -> list[np.ndarray]:
    """Return the leaves of a pytree as host arrays, keys as key data."""
    is_key = lambda leaf: jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key)  # noqa: E731
    return [np.asarray(jax.random.key_data(leaf) if is_key(leaf) else leaf) for leaf in jax.tree.leaves(tree)]


def restored(like: Any, leaves: list[np.ndarray], checkpoint: Checkpoint) -> Any:
    """Return a pytree of arrays of the structure, types and devices of another one, from the leaves of `plain`."""
    templates, tree = jax.tree.flatten(like)
    try:
        found = [_restored(template, leaf) for template, leaf in zip(templates, leaves, strict=True)]
    except ValueError as error:
        raise checkpoint.damaged(error) from error
    return jax.tree.unflatten(tree, found)


def _restored(like: Any, leaf: np.ndarray) -> Any:
    if jax.numpy.issubdtype(like.dtype, jax.dtypes.prng_key):
        return jax.random.wrap_key_data(jax.numpy.asarray(leaf), impl=jax.random.key_impl(like))
    leaf = leaf.view(like.dtype) if leaf.dtype.kind == "V" else leaf  # NumPy writes bfloat16 as bytes
    if (leaf.shape, leaf.dtype) != (like.shape, like.dtype):
        raise ValueError(f"{leaf.shape} {leaf.dtype} for {like.shape} {like.dtype}")
    return placed_like(leaf, like)


def _unpacked(about: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> Stored:
    parts: dict[str, dict[str, np.ndarray]] = {"carry": {}, "params": {}, "metrics": {}, "own": {}}
    for name, array in arrays.items():
        part, _, rest = name.partition("/")
        parts[part][rest] = array
    carry, params, own = ([parts[part][place] for place in sorted(parts[part])] for part in ("carry", "params", "own"))
    return Stored(int(about["evaluations"]), carry, parts["metrics"], params, own)


def computed_in_folder(
    start: ReadyRun, folder: Path, every: int | None, report: Callable[[Done], Any] | None, keep_own: bool = False
) -> tuple[Any, tuple[Any, Any]]:
    """Return the states of machines and the results of a run, resumed from its checkpoint if the folder has one.

    Args:
        every: rounds between checkpoints, rounded up to evaluations; None writes about 20.
        report: function that is called with the state at every evaluation, before the checkpoint is written, or None.
        keep_own: whether to return and to store the states that machines keep after the run. Otherwise they are ().
    """
    with ThreadPoolExecutor(1) as worker:
        return _computed(start, Checkpoint(folder, start, worker), every, report, keep_own)


def _computed(
    start: ReadyRun, checkpoint: Checkpoint, every: int | None, report: Callable[[Done], Any] | None, keep_own: bool
) -> tuple[Any, tuple[Any, Any]]:
    """Return the result of `computed_in_folder`."""
    stored = checkpoint.load()
    if stored is not None and stored.params and (stored.own or not keep_own):
        results = checkpoint.params(stored), jax.tree.map(jax.numpy.asarray, stored.values)
        return checkpoint.own(stored) if keep_own else (), results
    segments, first = Segments(start), 0
    if stored is not None:
        first = stored.evaluations
        segments.restore(restored(segments.carry, stored.carry, checkpoint), stored.values)
    whole, last = segments.whole, segments.evaluations
    apart = max(1, ceil(whole / SHARE)) if every is None else ceil(every / segments.every)
    kept = {*range(apart, whole, apart), whole}

    def following(evaluations: int) -> int:
        """Return the rounds at the next checkpoint, before which a killed run may have reported."""
        end = min(end for end in kept if end > evaluations)
        return segments.rounds if end == whole else end * segments.every

    ends = sorted({end for end in (*kept, *range(1, last + 1, 1 if report else last + 1), last) if end > first})
    for done in segments.run(ends, kept.__contains__, first):
        if report is not None:
            checkpoint.wait()  # it holds for the rounds up to the next one only
            report(done)
        if done.carry is not None:
            values = {name: np.asarray(value)[: done.evaluations] for name, value in done.values.items()}
            stored = Stored(done.evaluations, plain(done.carry), values, [], [])
            if done.evaluations < whole:
                checkpoint.save(stored, following(done.evaluations))
    params, values = jax.block_until_ready(segments.output())
    own = of_carry(segments.carry) if keep_own else ()
    assert stored is not None
    finished = {name: np.asarray(value) for name, value in values.items()}
    checkpoint.save(stored._replace(values=finished, params=plain(params), own=plain(own)), segments.rounds)
    checkpoint.wait()
    return own, (params, values)
