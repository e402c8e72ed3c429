"""Reports of a sweep's evaluations: what the callback gets, in which order, and what its exception leaves."""

import jax
import numpy as np
import pytest
from cases import sparing

from fedprivjax import DPMu2, Uniform, sweep
from fedprivjax.checks.refusal import Refusal
from fedprivjax.sweeps import execute, memory
from fedprivjax.sweeps.intervals import of_iterate
from fedprivjax.sweeps.memory import run_bytes
from fedprivjax.sweeps.prepare import ready_sweep

METHOD, SCHEME = DPMu2(clip=1.0, step_size=0.1), Uniform(6, 3)
MESH = jax.make_mesh((1,), ("runs",), devices=jax.devices()[:1])
NAMES = ("train_loss", "noise_norm")
OPTIONS = {"over": {"mu": [1.0, 2.0]}, "seeds": [3, 8], "rounds": 6, "eval_every": 3, "metrics": NAMES, "mesh": MESH}


@pytest.fixture
def single(softmax_problem):
    """Options of a sweep whose chunks are single runs."""
    settings = {name: OPTIONS[name] for name in ("over", "seeds", "rounds", "eval_every")}
    return {"memory_budget": sum(run_bytes(ready_sweep(METHOD, softmax_problem, SCHEME, **settings).first))}


def reported(problem, **options):
    """Reports of a sweep, and its dataset."""
    found: list = []
    data = sweep(METHOD, problem, SCHEME, on_evaluation=lambda *each: found.append(each), **{**OPTIONS, **options})
    assert data is not None
    return found, data


@pytest.mark.parametrize("resample", sparing([[], ["mu"]], [["mu"]]))
def test_every_evaluation_is_reported_with_the_value_of_the_dataset(softmax_problem, resample):
    found, data = reported(softmax_problem, resample=resample)
    assert len(found) == len({(index["mu"], index["seed"], done) for index, done, _ in found}) == 8
    for index, done, metrics in found:
        assert [type(index["mu"]), type(index["seed"]), type(done)] == [float, int, int]
        assert tuple(metrics) == NAMES
        for name, value in metrics.items():
            assert type(value) is float
            assert value == of_iterate(data[name]).sel(round=done, **index).item()


def test_runs_are_reported_one_after_the_other_with_rounds_in_order(softmax_problem, single):
    found, _ = reported(softmax_problem, **single)
    runs = [tuple(index.values()) for index, _, _ in found]
    assert runs[::2] == runs[1::2]
    assert len(set(runs)) == 4
    assert [done for _, done, _ in found] == [3, 6] * 4


@pytest.mark.slow
def test_a_run_that_pads_a_chunk_is_reported_once(softmax_problem, monkeypatch):
    monkeypatch.setattr(execute, "chunks", lambda runs, sizes: memory.chunks(runs, (3, 2)))
    found, _ = reported(softmax_problem, seeds=5)
    runs = [(index["seed"], index["mu"], done) for index, done, _ in found]
    assert sorted(runs) == [(seed, mu, done) for seed in range(5) for mu in (1.0, 2.0) for done in (3, 6)]


@pytest.mark.slow
def test_swept_integers_are_in_the_index(softmax_problem):
    swept = {"over": {"mu": [2.0], "rounds": [2, 4]}, "rounds": None, "seeds": 1, "eval_every": 2}
    found, _ = reported(softmax_problem, **swept)
    assert [(list(index.items()), done) for index, done, _ in found] == [
        ([("rounds", rounds), ("mu", 2.0), ("seed", 0)], done) for rounds in (2, 4) for done in range(2, rounds + 1, 2)
    ]


def test_an_exception_stops_the_sweep_and_keeps_the_reported_chunks(softmax_problem, single, tmp_path):
    def failing(index, done, metrics):
        calls.append(index)
        if len(calls) == 3:
            raise KeyError("logger")

    calls: list = []
    with pytest.raises(KeyError, match="logger"):
        sweep(METHOD, softmax_problem, SCHEME, on_evaluation=failing, folder=tmp_path, **OPTIONS, **single)
    stored = {file.name: file.stat().st_mtime_ns for file in tmp_path.glob("*.npz")}
    assert len(calls) == 3
    assert len(stored) >= 2
    again, data = reported(softmax_problem, folder=tmp_path, **single)
    assert {name: (tmp_path / name).stat().st_mtime_ns for name in stored} == stored  # loaded, and reported too
    assert len(again) == 8
    whole, plain = reported(softmax_problem, **single)
    assert again == whole
    np.testing.assert_array_equal(data["train_loss"], plain["train_loss"])


def test_a_part_reports_the_chunks_that_it_computes(softmax_problem, single, tmp_path):
    first, _ = reported(softmax_problem, folder=tmp_path, part=(1, 2), **single)
    second, _ = reported(softmax_problem, folder=tmp_path, part=(2, 2), **single)
    assert len(first) == 8  # a part alone computes all chunks
    assert second == []


@pytest.mark.parametrize("wrong", [True, "print", 3])
def test_what_cannot_be_called_is_refused(softmax_problem, wrong):
    with pytest.raises(Refusal, match=r"on_evaluation must be a callable \(index, round, metrics\), got "):
        sweep(METHOD, softmax_problem, SCHEME, on_evaluation=wrong, **OPTIONS)
