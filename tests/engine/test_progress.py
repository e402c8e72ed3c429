"""Progress of long work, and callbacks of evaluations: reported at every evaluation, without cost if off."""

import re
import time
from contextlib import nullcontext

import numpy as np
import pytest
from rich.console import Console

from fedprivjax import Ball, DPMu2, Softmax, Uniform, linear_problem, simulate, sweep
from fedprivjax.engine import progress
from fedprivjax.engine.progress import Pace, bar
from fedprivjax.engine.segments import advance

PROBLEM = linear_problem(np.eye(24, 3), np.arange(24) % 2, Softmax(2), feature_bound=1.0, constraint=Ball(1.0))
OURS = DPMu2(mu=1.0, clip=1.0)
SOME = Uniform(6, 3)
OPTIONS = {"rounds": 8, "eval_every": 3, "metrics": ["train_loss"]}


@pytest.fixture(scope="module")
def silent():
    return simulate(OURS, PROBLEM, SOME, **OPTIONS)


def test_a_run_reports_every_evaluation_and_is_the_same(silent):
    heard = []
    aloud = simulate(OURS, PROBLEM, SOME, progress=lambda *done: heard.append(done), **OPTIONS)
    assert heard == [(3, 8), (6, 8), (8, 8)]
    np.testing.assert_allclose(aloud.metrics["train_loss"], silent.metrics["train_loss"], rtol=1e-6)


def test_another_callback_does_not_recompile(silent):
    simulate(OURS, PROBLEM, SOME, progress=lambda *done: None, **OPTIONS)
    programs = advance._cache_size()
    heard = []
    simulate(DPMu2(mu=2.0, clip=1.0), PROBLEM, SOME, progress=lambda *done: heard.append(done), **OPTIONS)
    assert heard[-1] == (8, 8)
    assert advance._cache_size() <= programs


def test_exceptions_of_a_callback_are_raised(silent):
    def broken(done, total):
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        simulate(OURS, PROBLEM, SOME, progress=broken, **OPTIONS)


def test_evaluations_are_reported_with_the_metrics_of_the_output(silent):
    heard = []
    protocol = DPMu2(mu=1.0, clip=1.0)
    run = simulate(protocol, PROBLEM, SOME, on_evaluation=lambda *at: heard.append(at), **OPTIONS)
    assert heard == [
        (rounds, {"train_loss": loss}) for rounds, loss in zip((3, 6, 8), run.metrics["train_loss"], strict=True)
    ]
    np.testing.assert_allclose(run.params, silent.params, rtol=1e-6)
    assert all(type(value) is float for _, metrics in heard for value in metrics.values())


def test_exceptions_of_evaluations_end_the_run(silent):
    heard = []

    def broken(rounds, metrics):
        heard.append(rounds)
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        simulate(OURS, PROBLEM, SOME, on_evaluation=broken, **OPTIONS)
    assert heard == [3]


def test_a_run_displays_its_progress(silent, capsys):
    simulate(OURS, PROBLEM, SOME, progress=True, **OPTIONS)
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["DPMu2: 8 of 8 rounds"]


def test_a_sweep_shows_its_preparation(monkeypatch):
    class Prepared(Exception):
        """Raised instead of running."""

    def stop(*_):
        raise Prepared

    shown = []
    monkeypatch.setattr(progress, "lines", lambda first="": nullcontext(shown.append))
    monkeypatch.setattr("fedprivjax.sweeps.sweep.execute", stop)
    with pytest.raises(Prepared):
        sweep(OURS, PROBLEM, SOME, progress=True, seeds=2, **OPTIONS)
    assert shown[:2] == [f"DPMu2: sampling schedules ({number} of 2)" for number in (1, 2)]
    assert shown[-1].startswith("DPMu2: calibrating noise")


def test_the_first_report_of_compiled_work_tells_a_time_left():
    pace = Pace(now=0.0)
    assert pace.left(1, 5, now=3.0) == 12.0
    assert pace.left(2, 5, now=4.0) == 3.0  # the first had a program to compile


def test_cached_results_give_no_estimate_of_the_time_left():
    pace = Pace(now=0.0)
    assert pace.left(50, 100, now=0.001) is None
    assert pace.left(60, 100, now=0.002) is None
    assert pace.left(70, 100, now=1.002) == pytest.approx(3.0)
    assert pace.left(80, 100, now=3.002) == pytest.approx(4.0)


def test_a_terminal_has_a_bar_with_the_time_left(monkeypatch, tmp_path):
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    with (tmp_path / "screen").open("w", encoding="utf-8") as file:
        console = Console(force_terminal=True, width=100, file=file)
        with bar("ours", "runs", console) as on_progress:
            now[0] = 30.0
            on_progress(2, 10)
    said = (tmp_path / "screen").read_text(encoding="utf-8")
    assert "2/10" in said
    assert "2:00 left" in said


def test_the_bar_fits_80_columns(tmp_path):
    with (tmp_path / "screen").open("w", encoding="utf-8") as file:
        console = Console(force_terminal=True, width=80, file=file)
        with bar("A title of an experiment " * 8, "runs", console) as on_progress:
            on_progress(20_000, 100_000)
    said = (tmp_path / "screen").read_text(encoding="utf-8")
    lines = [line for line in re.split(r"[\r\n]+", re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", said)) if line.strip()]
    assert max(map(len, lines)) <= 80
    shown = [line for line in lines if "20000/100000 runs" in line]
    assert shown
    assert all(line.startswith("A title of an exp") for line in shown)


def test_a_file_has_a_line_of_the_current_step_at_intervals(capsys):
    with progress.lines("reading", every=0.01) as say:
        time.sleep(0.1)
        say("calibrating")
        time.sleep(0.1)
    said = capsys.readouterr().err.splitlines()
    assert {*said} == {"reading", "calibrating"}
    assert said == sorted(said, reverse=True)
    with progress.lines("reading"):
        pass
    assert progress.EVERY == 10.0
    assert capsys.readouterr().err == ""


def test_a_notebook_has_one_line_that_changes(monkeypatch):
    shown = []

    class Display:
        def update(self, text, raw):
            shown.append(("changed", text["text/plain"]))

    def display(text, raw, display_id):
        shown.append(("new", text["text/plain"]))
        return Display()

    monkeypatch.setattr("IPython.display.display", display)
    with bar("ours", "runs", Console(force_jupyter=True)) as on_progress:
        on_progress(5, 10)
        on_progress(10, 10)
    assert [kind for kind, _ in shown] == ["new", "changed"]
    assert shown[1][1] == "ours: 10 of 10 runs"


@pytest.mark.slow
def test_swept_integers_are_joined_and_are_the_sweeps_they_stand_for():
    heard = []
    options = {"seeds": 2, "metrics": ["train_loss"], "eval_every": 4, "common_noise": False}
    over = {"per_round": [2], "rounds": [8, 4], "mu": [1.0, 2.0]}
    data = sweep(DPMu2(clip=1.0), PROBLEM, SOME, over=over, progress=lambda *done: heard.append(done), **options)
    assert dict(data["train_loss"].sizes) == {"per_round": 1, "rounds": 2, "mu": 2, "seed": 2, "round": 2}
    assert heard[-1] == (8, 8)
    alone = sweep(DPMu2(clip=1.0), PROBLEM, Uniform(6, 2), over={"mu": [1.0, 2.0]}, rounds=8, **options)
    part = data.sel(per_round=2, rounds=8)
    np.testing.assert_array_equal(part["train_loss"], alone["train_loss"])
    assert part["guarantee"].values.tolist() == alone["guarantee"].values.tolist()
    assert np.isnan(data["train_loss"].sel(rounds=4, round=8)).all()  # of runs that ended before
