"""Parts that meet in a shared folder: on one chunk, after an expired claim, and in a folder that turns read-only."""

import errno
import os
import re
import sys
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import jax
import numpy as np
import pytest
import xarray as xr
from small_file import EXPERIMENT

from fedprivjax import DPMu2, Uniform, cli, sweep
from fedprivjax.experiment import folder as results_folder
from fedprivjax.sweeps import execute
from fedprivjax.sweeps.memory import run_bytes
from fedprivjax.sweeps.part import CLAIM
from fedprivjax.sweeps.prepare import ready_sweep

METHOD, SCHEME = DPMu2(clip=1.0, step_size=0.1), Uniform(6, 3)
pytestmark = pytest.mark.slow

ONE = jax.make_mesh((1,), ("runs",), devices=jax.devices()[:1])
OPTIONS = {"over": {"mu": [1.0, 2.0, 4.0]}, "seeds": 2, "rounds": 6, "eval_every": 3}
SPEC = EXPERIMENT + "mu = [1, 2, 4]\n"


@pytest.fixture
def arguments(softmax_problem):
    """Positional and named arguments of a sweep whose chunks are single runs."""
    budget = sum(run_bytes(ready_sweep(METHOD, softmax_problem, SCHEME, **OPTIONS).first))
    options = {"memory_budget": budget, "metrics": ["train_loss"], "mesh": ONE}
    return (METHOD, softmax_problem, SCHEME), {**OPTIONS, **options}


@pytest.fixture
def computed(monkeypatch):
    """Number of times that each chunk is computed, and a list of functions called before the next chunk."""
    counts: Counter[tuple[int, int]] = Counter()
    before: list = []
    dispatched = execute._dispatched

    def counted(start, over, indices):
        draws, columns = indices
        counts[int(draws[0]), int(columns[0])] += 1
        if before:
            before.pop()()
        return dispatched(start, over, indices)

    monkeypatch.setattr(execute, "_dispatched", counted)
    return counts, before


@pytest.fixture
def read_only(monkeypatch):
    """Context manager in which a folder is read-only, also for root: changes fail as on a read-only file system."""
    changes = {Path: ("open", "touch", "unlink"), os: ("link", "replace", "utime")}

    @contextmanager
    def during(folder):
        def failing(change):
            def changed(path, *arguments, **options):
                if Path(path).parent == folder and arguments != ("rb",):
                    raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
                return change(path, *arguments, **options)

            return changed

        with monkeypatch.context() as patch:
            for owner, names in changes.items():
                for name in names:
                    patch.setattr(owner, name, failing(getattr(owner, name)))
            yield

    return during


def same(one: xr.Dataset | None, other: xr.Dataset | None) -> None:
    assert one is not None
    assert other is not None
    xr.testing.assert_identical(one.drop_vars("seconds"), other.drop_vars("seconds"))


def test_two_parts_on_one_chunk_compute_it_once(arguments, computed, tmp_path):
    """The second part starts while the first computes its first chunk, and computes the others."""
    (protocol, *others), options = arguments
    counts, before = computed
    found = []
    options = {**options, "folder": tmp_path}
    before.append(lambda: found.append(sweep(protocol, *others, part=(2, 2), **options)))
    first = sweep(protocol, *others, part=(1, 2), **options)
    assert found == [None]
    assert set(counts.values()) == {1}
    assert len(counts) == 6
    same(first, sweep(protocol, *others, **options | {"folder": None}))


def test_only_the_chunk_of_an_expired_claim_is_computed_twice(arguments, computed, tmp_path):
    """The claim of a part that cannot reach the folder expires. Another part computes its chunk, with equal bits."""
    positional, options = arguments
    counts, before = computed
    options = {**options, "folder": tmp_path}
    stored: dict[Path, dict[str, np.ndarray]] = {}

    def expire():
        (claim,) = tmp_path.glob(f"*{CLAIM}")
        os.utime(claim, (0, 0))
        same(sweep(*positional, part=(2, 2), **options), whole)
        stored.update({path: dict(np.load(path)) for path in tmp_path.glob("*.npz")})

    whole = sweep(*positional, **options | {"folder": None})
    counts.clear()
    before.append(expire)
    same(sweep(*positional, part=(1, 2), **options), whole)
    assert sorted(counts.values()) == [1, 1, 1, 1, 1, 2]
    assert counts[0, 0] == 2
    assert len(stored) == 6
    for path, arrays in stored.items():
        again = dict(np.load(path))
        for name in arrays.keys() - {execute.SECONDS}:
            np.testing.assert_array_equal(again[name], arrays[name])


def test_a_folder_that_turns_read_only_stops_a_part_and_loses_nothing(arguments, computed, read_only, tmp_path):
    """The finished chunks stay, and the part completes the sweep once the folder is writable."""
    positional, options = arguments
    counts, before = computed
    whole = sweep(*positional, **options)
    counts.clear()
    options = {**options, "folder": tmp_path, "part": (1, 1)}
    stopped = read_only(tmp_path)
    before += [stopped.__enter__, lambda: None, lambda: None]  # in the third chunk
    with pytest.raises(OSError, match="Read-only file system") as caught:
        sweep(*positional, **options)
    stopped.__exit__(None, None, None)
    assert Path(caught.value.filename).parent == tmp_path
    stored = len(list(tmp_path.glob("*.npz")))
    assert stored in (1, 2)  # the chunk before the third may still be computed
    for claim in tmp_path.glob(f"*{CLAIM}"):
        os.utime(claim, (0, 0))
    same(sweep(*positional, **options), whole)
    assert len(counts) == 6
    assert sum(counts.values()) == 6 + 3 - stored
    assert not list(tmp_path.glob(f"*{CLAIM}"))


def test_a_results_folder_that_turns_read_only_is_one_line(computed, read_only, tmp_path, monkeypatch, capsys):
    """The line says how to resume, and the same command completes the run."""
    _, before = computed
    spec, folder = tmp_path / "small.toml", tmp_path / "results"
    spec.write_text(SPEC)
    monkeypatch.setattr(sys, "argv", ["fedprivjax", "run", str(spec), "--out", str(folder), "--part", "1/1"])
    chunks = folder / results_folder.CHUNKS
    stopped = read_only(chunks)
    before.append(stopped.__enter__)
    with pytest.raises(SystemExit) as left:
        cli.main()
    stopped.__exit__(None, None, None)
    said = capsys.readouterr().err
    assert left.value.code == 2
    assert said.count("\n") == 1
    assert re.search(r"-\d{4}\.(npz|claim) must be writable, got Read-only file system: no chunk of 6 runs was", said)
    for claim in chunks.glob(f"*{CLAIM}"):
        os.utime(claim, (0, 0))
    with pytest.raises(SystemExit):
        cli.main()
    assert results_folder.finished(folder)
