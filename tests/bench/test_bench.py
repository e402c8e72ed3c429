"""`fedprivjax bench`: what it says is well formed; the figures themselves are the machine's."""

import json
import math
import time

import numpy as np
import pytest
from typer.testing import CliRunner

from fedprivjax import bench, cli
from fedprivjax.bench import cell, sweeps
from fedprivjax.bench.timing import AT_MOST, Line, in_a_process, side_by_side

pytestmark = pytest.mark.optimised


def test_medians_are_of_the_time_that_was_taken():
    taken = side_by_side({"long": lambda: time.sleep(0.02), "short": lambda: None}, repeats=3)
    assert 0.015 < taken["long"] < 0.2
    assert taken["short"] < 0.01


def test_the_environment_bounds_how_often_things_are_timed(monkeypatch):
    """And a warm-up before; without it, as often as is asked."""
    count: list[int] = []

    def job():
        count.append(1)

    for bound, times in ((None, 4), ("1", 2), ("9", 4)):
        monkeypatch.delenv(AT_MOST, raising=False) if bound is None else monkeypatch.setenv(AT_MOST, bound)
        count.clear()
        side_by_side({"it": job}, repeats=3)
        assert len(count) == times


@pytest.mark.parametrize(
    ("value", "target", "met"),
    [(2.0, "≥ 2", True), (1.9, "≥ 2", False), (2.0, "≤ 2", True), (2.1, "≤ 2", False), (2.0, None, None)],
)
def test_a_target_has_a_sense(value, target, met):
    line = Line("a", value, "times", target)
    assert line.met is met
    assert line.as_dict() == {"name": "a", "value": value, "unit": "times", "target": target, "met": met}


def test_the_table_and_the_file_hold_every_line(monkeypatch, tmp_path):
    lines = [Line("fast", 20.0, "times", "≥ 12"), Line("slow", 3.0, "times", "≤ 2"), Line("shown", 1.0, "s")]
    monkeypatch.setattr(bench, "GROUPS", {"some": lambda: iter(lines)})
    table = bench.table(bench.measure(), bench.machine())
    assert [list(column.cells) for column in table.columns][-1] == ["ok", "MISS", "–"]
    file = tmp_path / "figures.json"
    answer = CliRunner().invoke(cli.app, ["bench", "--json", str(file)])
    assert answer.exit_code == 0
    written = json.loads(file.read_text())
    assert {"device", "jax", "python"} <= written["machine"].keys()
    assert written["results"] == [line.as_dict() for line in lines]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--only", "sweep"], "unknown group 'sweep', did you mean 'sweeps'?"),
        (["--json", "nowhere/to/be/found.json"], "--json must be in a folder that exists"),
    ],
)
def test_bench_refuses_before_it_measures(arguments, message):
    answer = CliRunner().invoke(cli.app, ["bench", *arguments])
    assert isinstance(answer.exception, ValueError)
    assert message in str(answer.exception)


@pytest.mark.slow
def test_a_failing_process_says_why():
    with pytest.raises(RuntimeError, match=r"math failed: TypeError"):
        in_a_process(math.sqrt, "one")


SMALL = {  # sizes of all groups, which are measured in this process here
    cell: {"FEATURES": 40, "SLOW_ROUNDS": 60},
    sweeps: {"ROUNDS": 100},
}


@pytest.fixture
def small(measured_once):
    """Measure every group once, at the sizes of `SMALL`."""
    measured_once(SMALL, (cell.make,))


@pytest.mark.slow
@pytest.mark.parametrize("group", list(bench.GROUPS))
def test_every_group_is_measured(group, small):
    lines = list(bench.measure([group]))
    assert all(line.value > 0 or line.unit == "programs" for line in lines)
    assert np.isfinite([line.value for line in lines]).all()
    assert (
        len(lines)
        == {
            "one run": 5,
            "sweeps": 2,
            "first result": 3,
            "second start": 5,
            "accelerator": 0,
            "launches": 0,
        }[group]
    )
