"""The measurements for accelerators, at small sizes on a CPU. Their values mean nothing there."""

import math

import jax
import numpy as np
import pytest
from typer.testing import CliRunner

from fedprivjax import DPMu2, Refusal, bench, cli, ready
from fedprivjax.bench import accelerator, cell, fedavg, sweeps
from fedprivjax.bench.timing import AT_MOST, Line

SMALL = {4: (2, 2), 6: (3, 2)}
ROUNDS = 6


@pytest.fixture(autouse=True)
def once(monkeypatch):
    monkeypatch.setenv(AT_MOST, "1")


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(accelerator, "COPIED", 2**12)
    monkeypatch.setattr(accelerator, "NORMALS", (4, 100))


@pytest.mark.slow
@pytest.mark.parametrize("warmed", [0, 100])
def test_sweeps_are_measured_next_to_their_limits(small, warmed, monkeypatch):
    monkeypatch.setattr(accelerator, "WARMED", warmed)
    lines = list(accelerator.throughput(SMALL, ROUNDS))
    assert [line.unit for line in lines] == ["GB/s", "10⁹/s", *(2 * ["runs/minute", "runs/minute", "%"])]
    assert all(line.value > 0 for line in lines)
    rate, limit, share = (line.value for line in lines[2:5])
    assert share == pytest.approx(100 * rate / limit)
    axis = accelerator.plot(lines, "a device").axes[0]
    for curve, wanted in zip(axis.get_lines(), (lines[2::3], lines[3::3]), strict=True):
        assert list(curve.get_xdata()) == list(SMALL)
        assert list(curve.get_ydata()) == [line.value for line in wanted]


def test_a_sweep_moves_its_states_and_shares_records_and_noise_between_levels():
    d = cell.CLASSES * cell.FEATURES
    moved, drawn = accelerator.cost(10, 2, 3)
    assert drawn == 3 * 2 * d
    assert moved == 3 * (10 * 2 * 4 * 4 * d + 2 * 50 * 785 * 4)


@pytest.mark.slow
def test_fedavg_is_measured_next_to_a_round_by_hand(monkeypatch):
    monkeypatch.setattr(fedavg, "RECORDS", 20)
    lines = list(accelerator.fedavg_rates(2))
    assert [line.unit for line in lines] == ["rounds/s"] * 4
    assert all(line.value > 0 for line in lines)


@pytest.fixture
def run():
    options = {"rounds": ROUNDS, "metrics": cell.METRICS, "eval_every": ROUNDS}
    return ready(DPMu2(mu=8.0), cell.make(), cell.PARTICIPATION, **options)


@pytest.mark.slow
def test_every_variant_of_the_loop_is_timed_and_a_refused_one_has_no_number(run, monkeypatch):
    monkeypatch.setitem(sweeps.VARIANTS, "unknown", sweeps.Variant({"xla_gpu_no_such_option": 1}))
    lines = list(sweeps.of_run(run))
    assert len(lines) == len(sweeps.VARIANTS)
    assert all(line.value > 0 for line in lines[:-1])
    assert math.isnan(lines[-1].value)
    assert len(list(sweeps.of_sweep(cell.sweep_of([4.0, 8.0], 2, ROUNDS)))) == len(sweeps.VARIANTS)


@pytest.mark.slow
@pytest.mark.parametrize("unroll", [4, 8])
def test_unrolled_rounds_give_the_same_run(run, unroll):
    program = sweeps.programs().run
    one, other = (program(run.arguments, run.static._replace(unroll=rounds))[0] for rounds in (1, unroll))
    np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-7)


def test_options_of_a_program_do_not_reach_the_process():
    before = dict(jax.config.values)
    for variant in sweeps.VARIANTS.values():
        sweeps.programs(variant.options)
    assert dict(jax.config.values) == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--plot", "a.png"], "plot must be left out on a CPU"),
        (["--check-device", "--plot", "a.png"], "--plot must be"),
    ],
)
def test_a_plot_needs_an_accelerator(arguments, message):
    answer = CliRunner().invoke(cli.app, ["bench", *arguments])
    assert isinstance(answer.exception, Refusal)
    assert message in str(answer.exception)


def test_a_plot_needs_its_group_and_is_written(monkeypatch, tmp_path):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    with pytest.raises(Refusal, match="plot must have the group 'accelerator', got sweeps"):
        bench.require_throughput(["sweeps"])
    bench.require_throughput(None)
    lines = [Line("sweep of 10", 5.0, "runs/minute"), Line("sweep of 10, limit by memory", 9.0, "runs/minute")]
    bench.save_throughput(lines, tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
