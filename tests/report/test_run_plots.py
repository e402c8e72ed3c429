"""Figures of one run show its plan, its guarantee and its noise."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

import fedprivjax as fpj
from fedprivjax import experiment
from fedprivjax.experiment.jobs import jobs
from fedprivjax.experiment.run import run_jobs
from fedprivjax.experiment.tuning import selected
from fedprivjax.layout.colours import look, slots
from fedprivjax.noise.server_factors import round_factor
from fedprivjax.privacy import gdp
from fedprivjax.privacy.per_machine import Grouped
from fedprivjax.privacy.rounding import up
from fedprivjax.report.run_plots import VIEWS, plots_of_first
from fedprivjax.report.summary import summary


@pytest.fixture(scope="module")
def run():
    data = fpj.datasets.load("digits")
    rows = fpj.datasets.table([list(range(start, 200, 20)) for start in range(20)])[0]
    problem = fpj.from_dataset(data, constraint=fpj.Ball(8.0), partition_table=rows)
    method = fpj.FedAvg(
        unit="machine",
        epsilon=8.0,
        update_clip=1.0,
        trust="server",
        local_steps=1,
        step_size=0.1,
        noise_schedule="tree",
    )
    return fpj.simulate(method, problem, fpj.Dropouts(fpj.Uniform(20, 10), 0.3), rounds=8, seed=1, eval_every=2)


def test_metrics_are_curves_over_rounds(run):
    figure = fpj.plot(run, "test_loss")
    (line,) = figure.axes[0].lines
    np.testing.assert_array_equal(line.get_xdata(), run.rounds)
    np.testing.assert_array_equal(line.get_ydata(), run.metrics["test_loss"])
    assert line.get_color() == look(*slots(["FedAvg"]))["color"] != look(0)["color"]
    shown = [axis.get_ylabel() for axis in fpj.plot(run).axes if axis.lines]
    assert len(shown) == len(run.metrics)
    assert shown[0] == "test accuracy"
    with pytest.raises(fpj.Refusal, match="test_los"):
        fpj.plot(run, "test_los")
    with pytest.raises(fpj.Refusal, match="unknown metric 'epsilonn', did you mean 'epsilon'"):
        fpj.plot(run, "epsilonn")
    with pytest.raises(fpj.Refusal, match="axis of a plot"):
        fpj.plot(run, "test_loss", "hours")


def test_participation_is_the_schedule(run):
    figure = fpj.plot(run, "participation")
    shown = figure.axes[0].images[0].get_array()
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["takes part", "drops out"]
    expected = np.zeros((20, 8))
    schedule = run.plan.schedule
    for t, slot in np.argwhere(schedule.scheduled):
        expected[schedule.participants[t, slot], t] = 0.5 if schedule.dropped[t, slot] else 1.0
    np.testing.assert_array_equal(shown, expected)
    assert {0.0, 0.5, 1.0} == set(shown.ravel().tolist())


def test_many_machines_share_a_row(run):
    size = 1003
    schedule = replace(run.plan.schedule, machines=size, participants=np.arange(size, dtype=np.int32)[None])
    schedule = replace(schedule, dropped=None)
    figure = fpj.plot(replace(run, plan=replace(run.plan, schedule=schedule)), "participation")
    shown = figure.axes[0].images[0].get_array()
    assert shown.shape == (400, 1)
    np.testing.assert_allclose(shown, 1)  # every machine takes part


def test_a_secret_schedule_is_not_drawn(run):
    schedule = replace(run.plan.schedule, secret=fpj.PoissonCohorts(20, 0.5), dropped=None)
    with pytest.raises(fpj.Refusal, match="keeps secret"):
        fpj.plot(replace(run, plan=replace(run.plan, schedule=schedule)), "participation")


def test_every_machine_has_its_epsilon(run):
    one = run.guarantee
    every = gdp.epsilon(one.per_machine, one.delta)
    axis = fpj.plot(run, "machine_epsilon").axes[0]
    assert [patch.get_width() for patch in axis.patches] == pytest.approx(every)
    assert [patch.get_y() + patch.get_height() / 2 for patch in axis.patches] == pytest.approx(range(20))
    marked = [patch.get_facecolor() != axis.patches[every.argmin()].get_facecolor() for patch in axis.patches]
    np.testing.assert_array_equal(marked, np.isclose(every, every.max()))
    assert axis.lines[0].get_xdata()[0] == pytest.approx(one.epsilon)
    assert axis.get_title().startswith(f"the worst: machine {every.argmax()}")
    equal = replace(run, guarantee=replace(one, mus=Grouped.of([1.0] * 20)))
    axis = fpj.plot(equal, "machine_epsilon").axes[0]
    assert len({patch.get_facecolor() for patch in axis.patches}) == 1
    assert axis.get_title().startswith("every machine, ε = ")


def test_many_machines_have_a_histogram_of_their_epsilons(run):
    mus = np.tile(run.guarantee.per_machine, 2)
    run = replace(run, guarantee=replace(run.guarantee, mus=Grouped.of(mus)))
    axis = fpj.plot(run, "machine_epsilon").axes[0]
    assert sum(patch.get_height() for patch in axis.patches) == 40
    every = gdp.epsilon(mus, run.guarantee.delta)
    for patch in axis.patches:
        left, right = patch.get_x(), patch.get_x() + patch.get_width()
        inside = (every >= left - 1e-9) & (
            every < right - 1e-9 if right < every.max() - 1e-6 else every <= right + 1e-9
        )
        assert patch.get_height() == inside.sum()
    assert axis.lines[0].get_xdata()[0] == pytest.approx(run.guarantee.epsilon)
    assert axis.get_title().startswith(f"the worst: machine {every.argmax()}")
    equal = replace(run, guarantee=replace(run.guarantee, mus=Grouped.of([1.0] * 40)))
    axis = fpj.plot(equal, "machine_epsilon").axes[0]
    assert max(patch.get_height() for patch in axis.patches) == 40
    assert axis.get_title().startswith("every machine, ε = ")


def test_correlation_is_that_of_sampled_noise(run):
    shown = np.asarray(fpj.plot(run, "noise_correlation").axes[0].images[0].get_array())
    normals = np.random.default_rng(0).normal(size=(8, 200_000))
    sampled = np.linalg.solve(round_factor(run.protocol.noise_schedule).known(run.plan.schedule), normals)
    np.testing.assert_allclose(shown, np.corrcoef(sampled), atol=0.01)
    assert abs(shown - np.eye(8)).max() > 0.1


def test_pairwise_noise_is_correlated_between_neighbours(run):
    noisy = replace(run.protocol, trust="none", noise_schedule=fpj.Pairwise("ring", 1.0))
    shown = fpj.plot(replace(run, protocol=noisy), "noise_correlation").axes[0].images[0].get_array()
    assert shown[0, 1] == pytest.approx(-1 / 3)  # s² = 1 of an edge, of 1 + 2 s² in all
    assert shown[0, 2] == 0


def test_what_a_run_lacks_is_refused(run, tmp_path):
    plain = replace(run.protocol, noise_schedule="independent")
    with pytest.raises(fpj.Refusal, match="noise must be correlated"):
        fpj.plot(replace(run, protocol=plain), "noise_correlation")
    sums = fpj.DPMu2(mu=2.0, clip=1.6, noise_schedule="toeplitz")  # over the messages of a machine
    with pytest.raises(fpj.Refusal, match="noise must be correlated over at most"):
        fpj.plot(replace(run, protocol=sums), "noise_correlation")
    with pytest.raises(fpj.Refusal, match="against must go with a metric"):
        fpj.plot(run, "participation", "round")
    with pytest.raises(fpj.Refusal, match="metric of a run must have one value a round to be drawn"):
        fpj.plot(replace(run, iterates={"output": {"client_test_loss": np.ones((3, 20))}}), "client_test_loss")
    run.save(tmp_path / "run")
    saved = fpj.load_run(tmp_path / "run")
    assert fpj.plot(saved, "machine_epsilon").axes
    with pytest.raises(fpj.Refusal, match="must have its plan"):
        fpj.plot(saved, "participation")


def drawn(run) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rounds of the plot of ε over rounds, and ε of the worst and of the median machine."""
    worst, *others = fpj.plot(run, "epsilon").axes[0].lines
    (median,) = others or [worst]  # one line if all machines are equal
    return worst.get_xdata().astype(int), worst.get_ydata(), median.get_ydata()


def first_rounds(plan, rounds):
    """A plan's first rounds."""
    schedule = plan.schedule
    filled, dropped = (None if each is None else each[:rounds] for each in (schedule.filled, schedule.dropped))
    cut = replace(schedule, participants=schedule.participants[:rounds], filled=filled, dropped=dropped)
    return replace(plan, schedule=cut)


def prepared(run, method, participation, rounds=9, table=True):
    """A problem, and a run of another method, of which nothing is computed."""
    rows = np.arange(240).reshape(12, 20) if table else None
    problem = fpj.from_dataset(fpj.datasets.load("digits"), constraint=fpj.Ball(8.0), partition_table=rows)
    start = fpj.ready(method, problem, participation, rounds=rounds, seed=1)
    return problem, replace(run, protocol=start.protocol, plan=start.plan, guarantee=start.guarantee)


SERVER = {"unit": "machine", "epsilon": 4.0, "update_clip": 1.0, "trust": "server", "local_steps": 1, "step_size": 0.1}
RECORDS = {"epsilon": 4.0, "clip": 1.6, "step_size": 0.1, "batch": 5}
SPENT = {
    "records": (fpj.NoisyMinibatchSGD(**RECORDS), fpj.Varying(12, [0, 0.5, 0, 0.5])),
    "steps": (fpj.LocalSGD(**RECORDS), fpj.Uniform(12, 4)),
    "machines": (fpj.FedAvg(**SERVER), fpj.Dropouts(fpj.Uniform(12, 4), 0.3)),
    "cohorts": (fpj.FedAvg(**SERVER), fpj.PoissonCohorts(12, 0.4)),
    "epochs": (fpj.Scaffold(**{**SERVER, "local_steps": None}, local_epochs=1, batch=5), fpj.Uniform(12, 4)),
}


@pytest.mark.parametrize("name", SPENT)
def test_epsilon_over_rounds_is_that_of_a_shorter_plan(run, name):
    problem, run = prepared(run, *SPENT[name])
    rounds, worst, median = drawn(run)
    assert (np.diff(worst) >= 0).all()
    assert worst[-1] == pytest.approx(run.guarantee.epsilon, rel=1e-9)
    for k, most, middle in list(zip(rounds, worst, median, strict=True))[1:]:
        each = run.protocol.event(problem, first_rounds(run.plan, k)).guarantee(run.guarantee.delta)
        values = each.per_machine if each.mus is None else gdp.epsilon(each.per_machine, each.delta)
        assert (most, middle) == pytest.approx((values.max(), np.median(values)), rel=1e-9)


def test_epsilon_over_rounds_of_equal_machines_is_one_line(run):
    _, run = prepared(run, fpj.NoisyMinibatchSGD(**RECORDS), fpj.Uniform(12, 12))
    (line,) = fpj.plot(run, "epsilon").axes[0].lines
    assert line.get_label() == "all machines"
    assert line.get_ydata()[-1] == pytest.approx(run.guarantee.epsilon, rel=1e-9)


@pytest.mark.parametrize("trust", ["none", "server"])
def test_epsilon_over_rounds_with_cancelled_noise(run, trust):
    method = fpj.DPMu2(mu=2.0, clip=1.6, trust=trust, noise_schedule=(1.0, 2.0, 1.5, 1.0, 3.0, 1.0, 1.0, 2.0))
    _, run = prepared(run, method, fpj.Uniform(6, 3), 8, table=False)
    event, schedule = run.guarantee.event, run.plan.schedule
    for k, worst in list(zip(*drawn(run)[:2], strict=True))[1:]:
        found = []
        for machine in range(6):
            sent = int((schedule.participants[:k] == machine).sum())
            count = k if trust == "server" else sent
            cancels = np.eye(count) - np.eye(count, k=-1)
            noise = event.noise_std * cancels * np.asarray(event.releases(machine))[:count]
            moved = event.sensitivity * np.eye(count)[0] if sent else np.zeros(count)
            found.append(np.linalg.norm(np.linalg.solve(noise, moved)) if sent else 0.0)  # of Gaussian vectors
        assert worst == pytest.approx(gdp.epsilon(max(found), run.guarantee.delta), rel=1e-9)


def test_epsilon_over_rounds_needs_noise_that_ends_with_the_rounds(run):
    with pytest.raises(fpj.Refusal, match="noise must be independent"):
        fpj.plot(run, "epsilon")  # a tree over rounds
    weak = replace(run, guarantee=replace(run.guarantee, mus=Grouped.of([np.inf] * 20)))
    with pytest.raises(fpj.Refusal, match="must be private"):
        fpj.plot(weak, "epsilon")
    grown = prepared(run, fpj.StaleMomentum(mu=2.0, clip=1.6), fpj.Uniform(6, 3), table=False)[1]
    with pytest.raises(fpj.Refusal, match="noise must be independent"):
        fpj.plot(grown, "epsilon")
    counted = prepared(run, fpj.NoisyMinibatchSGD(sampler="cyclic", **RECORDS), fpj.Uniform(12, 4))[1]
    with pytest.raises(fpj.Refusal, match="must be secret"):
        fpj.plot(counted, "epsilon")


SMALL = {
    "title": "small",
    "problem": {"dataset": "digits", "loss": "softmax", "radius": 8.0},
    "participation": {"machines": 20, "per_round": 10, "rounds": 4},
    "protocol": [{"name": "dp_mu2", "trust": "server", "clip": 1.6, "grid": {"step_scale": [0.3, 1.0, 3.0]}}],
    "sweep": {"epsilon": [1.0, 2.0, 8.0], "per_round": [5, 10], "seeds": 2, "resample": ["epsilon"]},
}


@pytest.fixture(scope="module")
def found():
    """A summary of an experiment's results, and its jobs."""
    made = experiment.parse(SMALL)
    todo = jobs(made)
    results = run_jobs(todo)
    return replace(summary(made, selected(made, results)), grids=results), todo


@pytest.mark.slow
def test_the_chosen_run_of_an_experiment_is_drawn(found):
    this, todo = found
    name, figures = plots_of_first(this, todo)
    best = this.best["dp_mu2"].sel(epsilon=2.0, per_round=10)  # both in the middle
    step = f"step_scale = {best['best_step_scale'].item():g}"
    assert name.startswith(f"dp_mu2 at m = 10, ε = 2, {step} (step_scale by the best mean test_accuracy")
    assert list(figures) == ["participation", "ε of each machine", "ε over rounds"]  # its noise is independent
    epsilon = best["realised_epsilon"].isel(seed=0).item()
    assert figures["ε of each machine"].axes[0].get_title().endswith(f"ε = {up(epsilon, 4)}")
    assert plots_of_first(this, []) == ("", {})


@pytest.mark.slow
def test_a_prepared_sweep_has_the_run_of_every_point(found):
    start = found[1][0].prepare()
    every = start.configurations
    for place, values in enumerate(product(*start.axes.values())):
        one = start.start_at(dict(zip(start.axes, values, strict=True)))
        assert one.plan is start.starts[np.argwhere(start.index == place)[0][0]].plan
        assert one.protocol is every.protocols[place]
        assert one.guarantee.epsilon == every.realised(one.delta)[0]["realised_epsilon"][0, place]


@pytest.mark.slow
def test_clients_are_named(run, tmp_path):
    rows = fpj.datasets.table([list(range(start, 200, 20)) for start in range(20)])[0]
    data = replace(fpj.datasets.load("digits"), machine_names=tuple("abcdefghijklmnopqrst"))
    problem = fpj.from_dataset(data, constraint=fpj.Ball(8.0), partition_table=rows)
    start = fpj.ready(run.protocol, problem, fpj.Uniform(20, 10), rounds=8, seed=1)
    done = fpj.simulate(run.protocol, problem, fpj.Uniform(20, 10), rounds=8, seed=1)
    for one in (start, done):
        axis = VIEWS["participation"][1](one).axes[0]
        assert [text.get_text() for text in axis.get_yticklabels()] == list(data.machine_names)
        axis = VIEWS["machine_epsilon"][1](one).axes[0]
        assert "the worst: client '" in axis.get_title()
        assert [text.get_text() for text in axis.get_yticklabels()] == list(data.machine_names)
    done.save(tmp_path)  # without the names
    axis = fpj.plot(fpj.load_run(tmp_path), "machine_epsilon").axes[0]
    assert "the worst: machine " in axis.get_title()
    assert "machine_names" not in (written := (tmp_path / "run.json").read_text())
    assert "client_names" not in written
