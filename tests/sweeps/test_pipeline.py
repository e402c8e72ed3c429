"""The pipeline of chunks: order of dispatch and storage, errors, interrupts and seconds."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedprivjax import DPMu2, Uniform
from fedprivjax.engine import pipeline
from fedprivjax.engine.pipeline import one_ahead
from fedprivjax.sweeps import execute
from fedprivjax.sweeps.chunk_store import ChunkStore
from fedprivjax.sweeps.part import Part
from fedprivjax.sweeps.prepare import ready_sweep


@pytest.fixture
def busy(monkeypatch):
    """No chunk is computed before the next one is dispatched, as on a device that takes long."""
    monkeypatch.setattr(pipeline, "computed", lambda values: False)


@pytest.fixture
def events(monkeypatch):
    """Dispatches and writes of chunks in order, by number."""
    seen: list[str] = []
    dispatched, save = execute._dispatched, ChunkStore.save

    def dispatch(*arguments):
        seen.append(f"dispatch {sum(event.startswith('dispatch') for event in seen)}")
        return dispatched(*arguments)

    def write(store, number, values):
        seen.append(f"write {number}")
        save(store, number, values)

    monkeypatch.setattr(execute, "_dispatched", dispatch)
    monkeypatch.setattr(ChunkStore, "save", write)
    return seen


@pytest.fixture
def four_chunks(softmax_problem):
    grid = {"over": {"mu": [1.0, 4.0]}, "seeds": 4, "rounds": 6, "eval_every": 3}
    start = ready_sweep(DPMu2(clip=1.0), softmax_problem, Uniform(6, 3), mesh={"runs": 1}, **grid)
    return replace(start, sizes=(2, 1))


AHEAD = [
    "dispatch 0",
    *("dispatch 1", "write 0"),
    *("dispatch 2", "write 1"),
    *("dispatch 3", "write 2"),
    "write 3",
]


@pytest.mark.usefixtures("busy")
def test_the_next_chunk_is_dispatched_before_a_chunk_is_written(four_chunks, events, tmp_path):
    execute.execute(four_chunks, None, tmp_path)
    assert events == AHEAD


@pytest.mark.usefixtures("busy")
def test_a_part_dispatches_its_next_chunk_before_it_writes_one(four_chunks, events, tmp_path):
    computed, missing = execute._execute_part(four_chunks, Part(1, 1), tmp_path, None)
    assert (computed, missing) == (4, [])
    assert events == AHEAD
    assert not list(tmp_path.glob("*.claim"))


def test_a_chunk_that_is_computed_is_written_before_the_next_is_prepared(four_chunks, events, tmp_path, monkeypatch):
    monkeypatch.setattr(pipeline, "computed", lambda values: True)
    execute.execute(four_chunks, None, tmp_path)
    assert events == [f"{event} {number}" for number in range(4) for event in ("dispatch", "write")]


@pytest.mark.usefixtures("busy")
def test_chunks_dispatched_ahead_give_the_same_numbers(four_chunks, tmp_path, monkeypatch):
    ahead = execute.execute(four_chunks)
    monkeypatch.setattr(pipeline, "computed", lambda values: True)
    after = execute.execute(four_chunks)
    for name in ahead.drop_vars("seconds").data_vars:
        np.testing.assert_array_equal(ahead[name], after[name])


@pytest.mark.usefixtures("busy")
def test_a_part_that_is_stopped_keeps_no_claim(four_chunks, tmp_path):
    def stop(done, total):
        assert len(list(tmp_path.glob("*.claim"))) == 1  # of the chunk in flight
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        execute._execute_part(four_chunks, Part(1, 1), tmp_path, stop)
    assert len(list(tmp_path.glob("*.npz"))) == 1
    assert not list(tmp_path.glob("*.claim"))


@pytest.mark.parametrize(
    ("error", "is_computed", "kept"),
    [(ValueError, False, [0, 1]), (KeyboardInterrupt, False, [0]), (KeyboardInterrupt, True, [0, 1])],
)
def test_the_chunk_before_a_failing_dispatch_is_not_lost(error, is_computed, kept, monkeypatch):
    """But an interrupt does not wait for a chunk that is still computed."""
    failed, found = [], []
    monkeypatch.setattr(pipeline, "computed", lambda values: bool(failed) and is_computed)

    def dispatch(number):
        if number == 2:
            failed.append(number)
            raise error
        return np.full(1, number)

    def run():
        for value, _ in one_ahead(dispatch, range(4)):
            found.append(int(value[0]))

    with pytest.raises(error):
        run()
    assert found == kept


def test_the_error_of_a_chunk_is_raised_at_that_chunk():
    def fail(_):
        raise ValueError("no value")

    @jax.jit
    def program(x):
        return jax.pure_callback(fail, jax.ShapeDtypeStruct((), jnp.float32), x)

    chunks = one_ahead(lambda number: program(jnp.float32(1)) if number == 1 else jnp.float32(0), range(3))
    assert np.asarray(next(chunks)[0]) == 0
    with pytest.raises(Exception, match="no value"):
        np.asarray(next(chunks)[0])


def test_the_seconds_of_a_chunk_are_its_own(monkeypatch):
    """Each lasts from the end of the chunk before it. The time to prepare the next chunk and to write is hidden."""
    now, free = 0.0, 0.0  # the time, and when the device has computed all that was dispatched

    def dispatch(seconds):
        nonlocal now, free
        now += 1.0
        free = max(free, now) + seconds
        return free

    def wait(end):
        nonlocal now
        now = max(now, end)

    monkeypatch.setattr(pipeline, "perf_counter", lambda: now)
    monkeypatch.setattr(pipeline, "computed", lambda end: end <= now)
    monkeypatch.setattr(pipeline, "wait", wait)
    found = []
    for _, seconds in one_ahead(dispatch, [10.0, 30.0, 10.0, 20.0]):
        found.append(seconds)
        now += 2.0
    assert found == [11.0, 30.0, 10.0, 20.0]
    assert now == 73.0
