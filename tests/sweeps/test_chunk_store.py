"""Chunks on disk: nothing finished is lost, nothing of another run is taken for one's own."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import jax
import numpy as np
import pytest
from cases import sparing

from fedprivjax import Balanced, Ball, DPMu2, Full, Given, Refusal, Seeds, Softmax, Uniform, linear_problem, sweep
from fedprivjax.sweeps import chunk_store
from fedprivjax.sweeps.chunk_store import ChunkStore, fingerprint, sweep_fingerprint
from fedprivjax.sweeps.execute import execute
from fedprivjax.sweeps.prepare import ready_sweep

SOME = Uniform(6, 3)
GRID = {"mu": [1.0, 4.0]}
ONE = {"runs": 1}
OPTIONS = {"over": GRID, "seeds": 4, "rounds": 6, "eval_every": 3}

SCRIPT = """
import sys, time
from pathlib import Path
import numpy as np
from fedprivjax import Ball, DPMu2, Softmax, Uniform, linear_problem, sweep

rng = np.random.default_rng(3)
problem = linear_problem(rng.normal(size=(24, 3)), rng.integers(0, 2, 24), Softmax(2), constraint=Ball(1.0))

def slowly(done, total):
    print(done, flush=True)
    time.sleep(float(sys.argv[2]))

found = sweep(
    DPMu2(clip=1.0, step_size=0.1), problem, Uniform(6, 3), over={"mu": [1.0, 4.0]}, seeds=4, rounds=6, eval_every=3,
    memory_budget=BUDGET, folder=sys.argv[1], progress=slowly, metrics=["train_loss", "noise_norm"],
)
np.savez(Path(sys.argv[1]) / "found.npz", loss=found["train_loss"], noise=found["noise_norm"])
"""


@pytest.fixture
def prepared(softmax_problem):
    def make(problem=softmax_problem, protocol=None, participation=SOME, **options):
        protocol = DPMu2(clip=1.0) if protocol is None else protocol
        options = {"mesh": ONE, **OPTIONS, **options}
        return replace(ready_sweep(protocol, problem, participation, **options), sizes=(2, 1))

    return make


def values(data):
    """All that two equal sweeps have alike."""
    return {name: np.asarray(data[name]) for name in data.drop_vars("seconds").data_vars}


def same(one, other):
    assert one.keys() == other.keys()
    for name in one:
        np.testing.assert_array_equal(one[name], other[name])


def near(one, other):
    assert one.keys() == other.keys()
    np.testing.assert_array_equal(one["guarantee"], other["guarantee"])
    for name in one.keys() - {"guarantee"}:
        np.testing.assert_allclose(one[name], other[name], rtol=1e-5, atol=1e-6)


def test_a_stopped_sweep_goes_on_bit_for_bit(prepared, tmp_path):
    whole = values(execute(prepared()))

    def stop(done, total):
        if done == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        execute(prepared(), stop, tmp_path)
    assert len(list(tmp_path.glob("*.npz"))) == 2
    finished = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*.npz")}
    same(values(execute(prepared(), None, tmp_path)), whole)
    assert all(path.stat().st_mtime_ns == when for path, when in finished.items())  # taken, not run again
    assert len(list(tmp_path.glob("*.npz"))) == 4


def test_the_chunk_size_of_the_run_that_was_begun_holds(prepared, tmp_path):
    whole = values(execute(prepared(), None, tmp_path))
    other = replace(prepared(), sizes=(4, 2))
    seen = []
    same(values(execute(other, lambda *done: seen.append(done), tmp_path)), whole)
    assert len(seen) == 4


@pytest.mark.slow
def test_other_chunks_and_devices_agree(prepared):
    """Chunks that the devices do not divide are padded."""
    whole = values(execute(replace(prepared(), sizes=(4, 2))))
    for sizes, mesh in (((1, 1), None), ((4, 2), 4), ((3, 4), 4), ((4, 1), 2), ((3, 1), 4), ((1, 1), 4)):
        options = {} if mesh is None else {"mesh": {"runs": mesh}}
        near(values(execute(replace(prepared(**options), sizes=sizes))), whole)


@pytest.mark.slow
def test_a_sweep_over_a_mesh_is_the_sweep(softmax_problem):
    options = {"over": GRID, "seeds": 3, "rounds": 6}  # three seeds, two members: neither is a multiple of four
    spread = sweep(DPMu2(clip=1.0), softmax_problem, SOME, mesh={"runs": 4}, **options)
    alone = sweep(DPMu2(clip=1.0), softmax_problem, SOME, mesh=ONE, **options)
    near(values(spread), values(alone))


@pytest.mark.slow
def test_runs_that_differ_in_anything_share_no_chunk(prepared, softmax_problem, general_twin, tmp_path):
    everything = [
        prepared(),
        prepared(protocol=DPMu2(clip=1.1)),
        prepared(protocol=DPMu2(clip=1.0, trust="server")),
        prepared(protocol=DPMu2(clip=1.0, noise_schedule="gap")),
        prepared(over={"mu": [1.0, 5.0]}),
        prepared(seeds=[1, 2, 3, 4]),
        prepared(rounds=7),
        prepared(eval_every=2),
        prepared(common_noise=False),
        prepared(noise_method="replayed"),
        prepared(softmax_problem.replace(constraint=Ball(0.9))),
        prepared(softmax_problem.replace(pool=jax.tree.map(lambda leaf: leaf[::-1], softmax_problem.pool))),
        prepared(general_twin()),
        prepared(order="stored"),
        prepared(participation=Balanced(6, 3)),
        prepared(participation=Balanced(6, 3, reshuffle=False)),
        prepared(participation=Given(6, [[0, 1, 2], [3, 4, 5]] * 3)),
        prepared(participation=Full(6)),
        prepared(resample=["mu"]),
        prepared(metrics=["test_loss"]),
        prepared(metrics=["noise_norm"]),
        prepared(softmax_problem.replace(start=softmax_problem.start + 0.1)),
        prepared(softmax_problem.replace(test=jax.tree.map(lambda leaf: leaf[::-1], softmax_problem.test))),
    ]
    assert len({sweep_fingerprint(each) for each in everything}) == len(everything)
    for each in everything[:2]:
        execute(each, None, tmp_path)
    assert len(list(tmp_path.glob("*.json"))) == 2


def test_what_changes_no_number_begins_no_run_anew(prepared, softmax_problem):
    protocol = DPMu2(clip=1.0, step_size=0.1)
    declared = replace(softmax_problem, feature_bound=2.0, distance=0.5)  # neither noise nor step follow from these
    alike = [
        prepared(protocol=protocol),
        prepared(protocol=protocol, memory_budget=10_000),
        prepared(protocol=protocol, delta=1e-7),  # at which a target mu's ε is stated
        prepared(declared, protocol=protocol),
    ]
    assert len({sweep_fingerprint(each) for each in alike}) == 1


def test_without_a_folder_no_program_is_written_out(prepared, monkeypatch):
    monkeypatch.setattr(chunk_store, "program_text", lambda *_: pytest.fail("lowered"))
    execute(prepared())


def test_another_version_of_the_code_is_refused(prepared, tmp_path, monkeypatch):
    execute(prepared(), None, tmp_path)
    monkeypatch.setattr(chunk_store, "code_version", lambda: "another")
    with pytest.raises(ValueError, match="must be resumed by the code that began it, and it has changed"):
        execute(prepared(), None, tmp_path)


@pytest.mark.parametrize("left", sparing([0, 40, -30], [40]))
def test_a_damaged_chunk_is_computed_again(prepared, tmp_path, left):
    whole = values(execute(prepared(), None, tmp_path))
    damaged = sorted(tmp_path.glob("*.npz"))[1]
    damaged.write_bytes(damaged.read_bytes()[:left])
    with pytest.warns(UserWarning, match="damaged") as said:
        same(values(execute(prepared(), None, tmp_path)), whole)
    assert [str(one.message) for one in said] == [f"chunk {damaged} is damaged: it is computed again"]
    same(values(execute(prepared(), None, tmp_path)), whole)  # and is whole again


SIZES = (
    "[0, 0]",
    "[-1, 1]",
    '["1", "1"]',
    "[1000000000, 1000000000]",
    "[1, 1, 1]",
    "[true, 1]",
    "[1e400, 1]",
    "[" * 10**5,
)


SHAPE = (2, 1)
CHUNK = {"diverged": np.zeros(SHAPE, bool), "loss": np.zeros((*SHAPE, 3)), "seconds": np.float64(1.0)}


@pytest.mark.parametrize(
    "text",
    [
        "",
        '{"sizes": [2',
        "{}",
        '{"sizes": 3, "code": "x"}',
        "[]",
        *(f'{{"sizes": {one}, "code": "x"}}' for one in SIZES),
    ],
)
def test_damaged_notes_of_a_run_begin_it_anew(tmp_path, text):
    """Chunks of sizes that nobody knows are not taken for others."""
    chunks = ChunkStore(tmp_path, "run", (2, 1))
    assert chunks.settle() == (2, 1)
    chunks.save(0, CHUNK)
    (tmp_path / "run.json").write_text(text)
    with pytest.warns(UserWarning, match=r"run\.json is damaged: chunks of other sizes are computed again"):
        assert ChunkStore(tmp_path, "run", (4, 2)).settle() == (4, 2)
    again = ChunkStore(tmp_path, "run", (2, 1))
    assert again.settle() == (4, 2)
    assert again.load(0, SHAPE) is None


@pytest.mark.parametrize(
    "spoilt",
    [
        {"diverged": np.zeros((1, 2), bool)},
        {"loss": np.zeros((2, 2, 3))},
        {"loss": np.array([["a"], ["b"]])},
        {"seconds": np.zeros(2)},
    ],
)
def test_a_chunk_of_other_arrays_is_damaged(tmp_path, spoilt):
    chunks = ChunkStore(tmp_path, "run", (2, 1))
    chunks.save(0, CHUNK)
    assert chunks.load(0, SHAPE).keys() == CHUNK.keys()
    for arrays in ({}, CHUNK | spoilt):
        chunks.save(0, arrays)
        with pytest.warns(UserWarning, match="is damaged: it is computed again"):
            assert chunks.load(0, SHAPE) is None


def test_chunks_of_other_metrics_are_refused(prepared, tmp_path):
    execute(prepared(), None, tmp_path)
    path = sorted(tmp_path.glob("*.npz"))[1]
    np.savez(path, **np.load(path), other=np.zeros((2, 1)))
    with pytest.raises(Refusal, match="must be those of one run, got arrays of other names or shapes"):
        execute(prepared(), None, tmp_path)


def test_chunks_without_their_notes_are_not_taken(tmp_path):
    chunks = ChunkStore(tmp_path, "run", (2, 1))
    chunks.settle()
    chunks.save(0, CHUNK)
    (tmp_path / "run.json").unlink()
    other = ChunkStore(tmp_path, "run", (4, 2))
    other.settle()
    assert other.load(0, SHAPE) is None


def test_chunks_of_other_sizes_or_other_code_are_never_mixed(tmp_path, monkeypatch):
    """Two processes that begin one folder with other memory budgets do not read each other's chunks."""
    one, other = ChunkStore(tmp_path, "run", (2, 1)), ChunkStore(tmp_path, "run", (1, 2))
    one.save(0, CHUNK)
    assert other.load(0, SHAPE) is None
    other.save(0, CHUNK | {"loss": np.ones((*SHAPE, 4))})
    assert one.load(0, SHAPE)["loss"].shape == (*SHAPE, 3)
    monkeypatch.setattr(chunk_store, "code_version", lambda: "another")
    assert one.load(0, SHAPE) is None


def test_a_full_disk_loses_nothing_that_was_finished(tmp_path, file_size_limit):
    chunks = ChunkStore(tmp_path, "run")
    chunks.save(0, CHUNK)
    with file_size_limit(1000), pytest.raises(OSError, match="File too large") as caught:
        chunks.save(1, {"a": np.arange(1000)})
    assert caught.value.filename.endswith("-0001.npz")
    assert len(list(tmp_path.iterdir())) == 1
    np.testing.assert_array_equal(chunks.load(0, SHAPE)["loss"], CHUNK["loss"])
    assert chunks.load(1, SHAPE) is None


@pytest.mark.slow
def test_kill_minus_nine_loses_nothing_that_was_finished(tmp_path):
    """A process killed at once after its second chunk; the next one takes these, and finds what one start finds."""
    script = tmp_path / "sweep.py"
    script.write_text(SCRIPT.replace("BUDGET", "6_000"))
    one_device = os.environ["XLA_FLAGS"] + " --xla_force_host_platform_device_count=1"
    start = partial(
        subprocess.Popen,
        text=True,
        stdout=subprocess.PIPE,
        env={**os.environ, "XLA_FLAGS": one_device, "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"},
    )

    killed = start([sys.executable, script, tmp_path / "killed", "60"])
    assert killed.stdout is not None
    killed.stdout.readline()
    time.sleep(0.1)
    os.kill(killed.pid, signal.SIGKILL)
    killed.communicate()
    kept = sorted((tmp_path / "killed").glob("*.npz"))
    assert len(kept) >= 1
    sizes = json.loads(next((tmp_path / "killed").glob("*.json")).read_text())["sizes"]
    assert sizes != [4, 2]  # so there was something left to do

    said = {}
    for name in ("killed", "whole"):
        (said[name], _) = start([sys.executable, script, tmp_path / name, "0"]).communicate()
    assert said["killed"].split()[-1] == said["whole"].split()[-1] == "8"
    found = [np.load(tmp_path / name / "found.npz") for name in ("killed", "whole")]
    same(dict(found[0]), dict(found[1]))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["6"], r"6 kills: \{.*'under way': [1-6].*; all bit-identical\n$"),
        (["4", "checkpoint"], r"4 kills of a run: .* of 20000 rounds stored; all bit-identical\n$"),
        # A killed part has 0 to 2 chunks that are begun but not stored: no kill of four need fall between two chunks.
        (["4", "parts"], r"4 kills of a part: .*; all bit-identical\nchunks begun: 8[0-2] to 8[0-2]\n$"),
    ],
)
def test_runs_killed_at_random_moments_end_bit_for_bit(words, said):
    script = Path(__file__).parents[1] / "killed_runs.py"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    command = [sys.executable, script, *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert re.match(said, done.stdout)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((1, 1, 11), (11, 1, 1)),
        ([1, 11], [11, 1]),
        (((1, 2), 3), (1, (2, 3))),
        ((1, None), (None, 1)),
        ("1", 1),
        ((1, "2"), (12, "")),
        (np.float32([1, 2]), np.float32([[1, 2]])),
        (np.uint8([1, 0, 0, 0]), np.uint32([1])),
        (Seeds(1, 1, 11), Seeds(11, 1, 1)),
    ],
)
def test_what_differs_has_another_fingerprint(one, other):
    assert fingerprint(one) != fingerprint(other)
    assert fingerprint([one]) == fingerprint([one])


@pytest.mark.slow
def test_seeds_in_another_order_are_another_run(tmp_path):
    problem = linear_problem(np.eye(12), np.arange(12) % 3, Softmax(3), constraint=Ball(1.0))

    def noise_of(*seeds, **more):
        found = sweep(
            DPMu2(mu=2.0, clip=1.0), problem, Full(3), seeds=list(seeds), order="stored", metrics=["noise_norm"], **more
        )
        return found["noise_norm"].isel(round=-1).values

    for seeds in ([Seeds(11, 1, 1)], [Seeds(1, 1, 11)], [1, 11], [11, 1]):
        np.testing.assert_array_equal(noise_of(*seeds, folder=tmp_path), noise_of(*seeds))
