import json
from dataclasses import replace

import numpy as np
import pytest
import xarray as xr
from cases import sparing

from fedprivjax import Full, averaged, experiment, final, guarantee_of, simulate
from fedprivjax.experiment import jobs as listed
from fedprivjax.experiment import run as runner
from fedprivjax.experiment.jobs import ready_experiment
from fedprivjax.experiment.tuning import selected
from fedprivjax.layout.drawing import save
from fedprivjax.report import plots, tables
from fedprivjax.report.summary import summary
from fedprivjax.testing.tiny import tiny

HIDDEN = """
import numpy as np
import optax
from fedprivjax import Given, Metric


def rotating(machines, per_round):
    return Given(machines, [[(t + i) % machines for i in range(per_round)] for t in range(3)])


def steps(learning_rate, share=0.5):
    return optax.sgd(learning_rate * share)


class Loss:
    def __repr__(self):
        return "a loss"

    def __call__(self, problem, snapshot):
        return 0.0


one, two = Metric("one", Loss(), of="round"), Metric("one", Loss(), of="round")
"""
PROBLEM = {"dataset": "logistic", "options": {"examples": 60, "features": 3}, "radius": 5.0}


def make(protocols=({"name": "dp_mu2"},), participation=None, sweep=None, whole=None, **more):
    return experiment.parse(
        {
            "title": "small",
            "problem": PROBLEM,
            "participation": whole or {"machines": 6, "per_round": 3, "rounds": 4, **(participation or {})},
            "protocol": list(protocols),
            "sweep": {"mu": [1, 4], "seeds": 2, **(sweep or {})},
            **more,
        }
    )


def dataset(values, dims, **coordinates):
    """Return a dataset with one evaluation of one metric, and the attributes that selection preserves."""
    runs = xr.DataArray(np.asarray(values, float), dims=dims, coords=coordinates)
    return xr.Dataset({"test_accuracy": runs.expand_dims(round=[1], axis=-1)}, attrs={"delta": 1e-5})


def choose(data, grid, metric="test_accuracy"):
    entries = [{"name": "dp_mu2", "label": "ours", "grid": grid}]
    return selected(make(entries, evaluation={"select": metric}), {"ours": data})["ours"]


def test_selection_takes_the_best_mean_of_each_cell():
    values = [  # [mu, clip, seed]; the best single seed is not the best mean
        [[0.5, 0.5], [0.9, 0.0], [0.4, 0.4]],
        [[0.5, 0.5], [0.6, 0.6], [0.7, 0.3]],
        [[0.1, 0.1], [0.2, 0.2], [0.3, 0.3]],
    ]
    data = dataset(values, ["mu", "clip", "seed"], mu=[1.0, 2.0, 4.0], clip=[0.5, 1.0, 2.0], seed=[0, 1])
    best = choose(data, {"clip": [0.5, 1.0, 2.0]})
    assert best["best_clip"].values.tolist() == [0.5, 1.0, 2.0]
    assert final(best, "test_accuracy").values.tolist() == [[0.5, 0.5], [0.6, 0.6], [0.3, 0.3]]
    assert "clip" not in best.dims
    assert best.attrs["selected"].endswith("not accounted for")


def test_selection_over_two_axes_at_once():
    values = np.zeros((2, 2, 3, 2))
    values[0, 1, 2], values[1, 0, 1] = 0.9, 0.8
    axes = {"mu": [1.0, 2.0], "clip": [0.5, 1.0], "step_scale": [0.1, 1.0, 10.0]}
    best = choose(dataset(values, [*axes, "seed"], **axes, seed=[0, 1]), {k: v for k, v in axes.items() if k != "mu"})
    assert best["best_clip"].values.tolist() == [1.0, 0.5]
    assert best["best_step_scale"].values.tolist() == [10.0, 1.0]
    assert final(best, "test_accuracy").mean("seed").values.tolist() == [0.9, 0.8]


def test_selection_uses_the_mean_over_rounds_of_an_averaged_metric():
    values = xr.DataArray([[[1.0, 0.0]], [[0.3, 0.3]]], dims=["clip", "seed", "round"], coords={"clip": [0.5, 1.0]})
    data = xr.Dataset({"gradient_norm": values}, attrs={"delta": 1e-5})
    entries = [{"name": "dp_mu2", "label": "ours", "grid": {"clip": [0.5, 1.0]}}]
    for names, best in (([], 0.5), (["gradient_norm"], 1.0)):
        made = make(entries, evaluation={"select": "gradient_norm", "averaged": names})
        assert float(selected(made, {"ours": data})["ours"]["best_clip"]) == best


def test_selection_takes_the_smallest_loss():
    data = dataset([[0.3, 0.5], [0.5, 0.2]], ["clip", "seed"], clip=[0.5, 1.0], seed=[0, 1])
    data = data.rename(test_accuracy="test_loss")
    assert float(choose(data, {"clip": [0.5, 1.0]}, "test_loss")["best_clip"]) == 1.0


def test_selection_never_takes_a_point_with_a_diverged_run():
    data = dataset([[0.9, np.nan], [0.1, 0.1]], ["clip", "seed"], clip=[0.5, 1.0], seed=[0, 1])
    assert float(choose(data, {"clip": [0.5, 1.0]})["best_clip"]) == 1.0


def test_the_fewest_diverged_runs_come_first_and_then_the_mean():
    """All runs of the first point diverged, one of three of the second and third, two of the last, with the best."""
    values = [[np.nan] * 3, [0.4, 0.6, np.nan], [np.nan, 0.7, 0.5], [0.9, np.nan, np.nan]]
    data = dataset(values, ["clip", "seed"], clip=[0.1, 0.5, 1.0, 2.0], seed=[0, 1, 2])
    assert float(choose(data, {"clip": [0.1, 0.5, 1.0, 2.0]})["best_clip"]) == 1.0


def test_a_grid_of_one_point_is_no_selection():
    data = dataset([[0.9, 0.8]], ["clip", "seed"], clip=[0.5], seed=[0, 1])
    best = choose(data, {"clip": [0.5]})
    assert "selected" not in best.attrs
    assert final(best, "test_accuracy").values.tolist() == [0.9, 0.8]


def test_no_grid_leaves_the_results_as_they_are():
    data = dataset([[0.9, 0.8]], ["mu", "seed"], mu=[1.0], seed=[0, 1])
    assert choose(data, {}).identical(data)


@pytest.fixture(scope="module")
def joined():
    swept = make(sweep={"per_round": [2, 3]}, participation={"rounds": None}, evaluation={"every": 7})
    done = {}
    return swept, runner.run(swept, done=done)["dp_mu2"], done


@pytest.mark.slow
def test_ragged_rounds_are_joined_and_padded(joined):
    _, data, _ = joined  # 30 rounds of 2 machines, 20 of 3
    assert dict(data["test_loss"].sizes) == {"per_round": 2, "mu": 2, "seed": 2, "round": 6}
    assert data["round"].values.tolist() == [7, 14, 20, 21, 28, 30]
    recorded = data["test_loss"].notnull().all(["mu", "seed"])
    assert data["round"].values[recorded.sel(per_round=2)].tolist() == [7, 14, 21, 28, 30]
    assert data["round"].values[recorded.sel(per_round=3)].tolist() == [7, 14, 20]
    assert data["diverged"].dtype == bool
    assert not data["diverged"].any()


@pytest.mark.slow
def test_joining_changes_no_number(joined):
    swept, data, done = joined
    for per_round, job in zip([2, 3], listed.jobs(swept), strict=True):
        alone = done[job.identity]
        part = data.sel(per_round=per_round, round=alone["round"])
        for name in alone.data_vars:
            np.testing.assert_array_equal(part[name].transpose(*alone[name].dims), alone[name])
        last = final(data, "test_accuracy").sel(per_round=per_round)
        np.testing.assert_array_equal(last, alone["test_accuracy"].isel(round=-1))


def test_a_protocols_own_level_takes_it_out_of_the_sweep():
    entries = [{"name": "dp_mu2", "label": name, **own} for name, own in {"a": {}, "b": {"mu": 2.0}}.items()]
    first, second = listed.jobs(make(entries))
    assert list(first.prepare().axes) == ["mu"]
    assert not second.prepare().axes
    members = second.prepare().configurations
    np.testing.assert_allclose(members.events[0][0].sensitivity / members.noise_std, 2.0)


@pytest.mark.slow
def test_progress_counts_every_run_once():
    entries = [{"name": "dp_mu2", "label": str(clip), "clip": clip} for clip in (1.0, 2.0)]  # of one program
    seen = []
    runner.run(make(entries), progress=lambda *counts: seen.append(counts))
    assert seen[-1] == (8, 8)
    assert sorted(seen) == seen
    assert {total for _, total in seen} == {8}


def test_a_sweep_already_done_is_not_run_again(monkeypatch):
    calls = []
    real = runner.execute
    monkeypatch.setattr(runner, "execute", lambda *args: calls.append(1) or real(*args))
    done = {}
    first = runner.run(make(), done=done)
    assert runner.run(make(), done=done)["dp_mu2"].identical(first["dp_mu2"])
    assert len(calls) == len(done) == 1
    runner.run(make(evaluation={"delta": 1e-6}), done=done)
    assert len(calls) == len(done) == 2


def test_jobs_prepared_before_are_run_as_they_are():
    job = listed.jobs(make())[0]
    silent = replace(
        job.prepare(), configurations=replace(job.prepare().configurations, noise_std=np.array([7.0, 8.0]))
    )
    found = runner.run_jobs([replace(job, start=silent)])["dp_mu2"]
    assert found["noise_std"].values.tolist() == [7.0, 8.0]


def identities(**participation):
    return [
        job.identity for job in listed.jobs(make(participation={"per_round": None, "rounds": None, **participation}))
    ]


def test_given_schedules_are_distinguished():
    one, other = ({"kind": "given", "schedule": rows} for rows in ([[0, 1], [2, 3]], [[0, 1], [3, 4]]))
    assert identities(**one) == identities(**one)
    assert identities(**one) != identities(**other)


@pytest.mark.slow
def test_cohorts_of_random_size_are_distinguished():
    kinds = [
        *({"kind": "binomial", "rate": rate} for rate in (0.1, 0.9)),
        *({"kind": "between", "min_machines": least, "max_machines": 5} for least in (1, 5)),
        *({"kind": "varying", "sizes": sizes} for sizes in ([0.5, 0.5], [0.0, 1.0])),
    ]
    partition = {**PROBLEM, "partition": {"kind": "iid"}}
    found = []
    for kind in kinds:
        settings = {"machines": 6, "rounds": 4, **kind}
        entry = {"name": "noisy_minibatch_sgd", "batch": 2, "step_size": 0.1}
        parsed = make([entry], sweep={"mu": [2.0]}, problem=partition, whole=settings)
        found.append(listed.jobs(parsed)[0].identity)
    assert len(set(found)) == len(kinds)


@pytest.mark.slow
def test_a_protocols_own_target_next_to_a_swept_one():
    free = {"name": "noisy_minibatch_sgd", "batch": 2, "step_size": 0.1, "epsilon": float("inf")}
    one = {**free, "label": "one", "epsilon": 1.0}
    swept = {**free, "label": "swept"}
    del swept["epsilon"]
    found = runner.run(make([free, one, swept], problem={**PROBLEM, "partition": {"kind": "iid"}}))
    assert "mu" not in found["noisy_minibatch_sgd"].dims
    assert "mu" not in found["one"].dims
    assert not found["noisy_minibatch_sgd"]["noise_std"].any()
    assert 0 < float(found["one"]["realised_epsilon"].max()) <= 1
    assert found["swept"].sizes["mu"] == 2


@pytest.mark.slow
def test_one_machine_has_one_distribution_under_both_names():
    def both(machines):
        found = []
        for trust in ("none", "server"):
            one = make([{"name": "dp_mu2", "trust": trust}], {"kind": "full", "per_round": None, "machines": machines})
            found.append((one, listed.jobs(one)[0].identity))
        return found

    (one, first), (other, second) = both(1)
    assert first == second
    assert len({identity for _, identity in both(2)}) == 2
    done = {}
    trust = [guarantee_of(runner.run(e, done=done)["dp_mu2"].sel(mu=4.0)).trust for e in (one, other)]
    assert len(done) == 1
    assert len(set(trust)) == 2  # the numbers are shared, the guarantee's text is not


def test_a_cache_key_distinguishes_cohorts_and_arguments_that_no_text_shows(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hidden.py").write_text(HIDDEN)
    whole = {"kind": "hidden:rotating", "machines": 6, "rounds": 3}
    found = [job.identity for job in listed.jobs(make(whole=whole, sweep={"per_round": [2, 3]}))]
    for share in (0.1, 0.2):
        encoded = {"name": "dp_mu2", "server": {"kind": "hidden:steps", "share": share}, "step_size": 0.1}
        found.append(listed.jobs(make([encoded], {"per_round": 3}))[0].identity)
    for metric in ("one", "two"):
        found.append(listed.jobs(make(evaluation={"metrics": [f"hidden:{metric}"], "select": "one"}))[0].identity)
    assert len(set(found)) == len(found)


def test_a_cache_key_distinguishes_settings():
    job = listed.jobs(make())[0]
    assert json.loads(job.identity)
    assert job.identity != listed.jobs(make(evaluation={"delta": 1e-6}))[0].identity


def test_selecting_by_an_unrecorded_metric_is_refused():
    entries = [{"name": "dp_mu2", "grid": {"clip": [1.0, 2.0]}}]
    with pytest.raises(ValueError, match=r"evaluation.select 'test_accuracy' must be recorded, got test_loss\."):
        listed.jobs(make(entries, evaluation={"metrics": ["test_loss"]}))


@pytest.mark.parametrize(
    ("participation", "sweep", "rounds"),
    sparing(
        [
            ({"rounds": None}, {}, 10),
            ({"rounds": 4}, {}, 4),
            ({"rounds": None}, {"rounds": [6, 8]}, 6),
            ({"kind": "given", "per_round": None, "rounds": None, "schedule": [[0], [1], [2]]}, {}, 3),
        ],
        [],
    ),
)
def test_tiny_is_small_and_no_larger_than_the_original(participation, sweep, rounds):
    sweep = {"mu": [1, 2, 4, 8], "per_round": [1], **sweep}
    judged = [{"protocol": "dp_mu2", "cells": [{"at": {"mu": 1, "per_round": 1}, "value": 0.5}]}]
    small = tiny(make(participation=participation, sweep=sweep, expected=judged))
    assert not small.expected
    assert [job.prepare().static.size.rounds for job in listed.jobs(small)] == [rounds]
    assert small.sweep.over["mu"] == [1, 8]
    assert small.sweep.seeds == 2
    assert runner.run(small)["dp_mu2"]["test_loss"].notnull().all()


def test_chunks_are_written_unless_disabled(monkeypatch, tmp_path):
    seen = []
    real = runner.execute
    monkeypatch.setattr(runner, "execute", lambda start, *rest: seen.append(rest[1]) or real(start, *rest))
    for name, keep in (("kept", True), ("not", False)):
        runner.run_ready(ready_experiment(make()), tmp_path / name, keep=keep)
    assert seen == [tmp_path / "kept" / "chunks", None]


ALONE = {"kind": "full", "machines": 1}
METRICS = ["gradient_norm", "noise_mean_square"]
ROBUST = {"dataset": "robust_regression", "options": {"examples": 64, "features": 3, "test_examples": 0}}
STEPS = {"name": "noisy_minibatch_sgd", "batch": 2, "step_size": 0.1, "noise_std": 0.5, "clip": 1.0}


@pytest.fixture(scope="module")
def sized():
    """Return results of one machine with several sizes and numbers of rounds."""
    made = experiment.parse(
        {
            "title": "sizes",
            "problem": {**ROBUST, "loss": {"kind": "tukey", "scale": 2.0}, "partition": {"kind": "iid"}},
            "participation": ALONE,
            "protocol": [STEPS],
            "sweep": {"records": [8, 16, 32], "rounds": [4, 8], "seeds": 2},
            "evaluation": {"metrics": METRICS, "every": 1, "averaged": ["gradient_norm"]},
        }
    )
    return made, runner.run(made)["noisy_minibatch_sgd"]


@pytest.mark.slow
def test_records_and_rounds_are_swept_as_sizes(sized):
    made, data = sized
    norms = data["gradient_norm"].sel(iterate="output")
    assert norms.sizes == {"records": 3, "rounds": 2, "seed": 2, "round": 8}
    assert norms.notnull().sum("round").isel(seed=0).values.tolist() == [[4, 8]] * 3
    todo = {(job.shape["records"], job.shape["rounds"]): job for job in listed.jobs(made)}
    assert len({job.identity for job in todo.values()}) == 6
    for (records, rounds), job in todo.items():
        start = job.prepare()
        assert (start.first.problem.examples, start.static.size.rounds) == (records, rounds)
        run = simulate(start.first.protocol, start.first.problem, Full(1), rounds=rounds, metrics=METRICS, eval_every=1)
        cell = data.sel(records=records, rounds=rounds).isel(seed=0)
        found = norms.sel(records=records, rounds=rounds).isel(seed=0).dropna("round")
        np.testing.assert_allclose(found, run.metrics["gradient_norm"], rtol=1e-4)
        np.testing.assert_allclose(
            averaged(cell, "noise_rms"), np.sqrt(np.mean(run.metrics["noise_mean_square"])), rtol=1e-4
        )


@pytest.mark.slow
def test_results_are_drawn_and_tabled_over_their_sizes(sized, tmp_path):
    made, data = sized
    best = {"ours": data}
    names = [path.name for path in save(plots.all_plots(summary(made, best)), tmp_path)]
    assert names == [
        "gradient_norm_against_records.png",
        "noise_rms_against_records.png",
        "gradient_norm_over_rounds.png",
    ]
    titles = [table.title.partition(", mean ")[0] for table in tables.results_tables(summary(made, best))]
    realised = "realised ε at δ = 1e-05, the worst of 2 seeds"  # the file gives the noise, so no target states ε
    assert titles == ["gradient norm averaged over rounds", "noise rms", realised, "what a run costs"]


@pytest.mark.parametrize(
    ("participation", "rounds"),
    [
        ({"kind": "uniform", "per_round": 3}, 3),
        ({"kind": "by_size", "per_round": 3}, 7),
        ({"kind": "uniform", "per_round": 3, "rounds": 2}, 2),
    ],
)
def test_tiny_has_no_more_rounds_than_the_whole_where_a_client_is_small(tmp_path, participation, rounds):
    sizes = [3, 6, 7, 6]
    rows = [f"{i / 10},{name},{i % 2}" for name, size in zip("abcd", sizes, strict=True) for i in range(size)]
    (tmp_path / "small.csv").write_text("\n".join(["x,who,y", *rows]))
    options = {"target": "y", "client": "who", "classes": [0, 1], "bounds": {"x": [0, 1]}, "test_fraction": 0}
    made = experiment.parse(
        {
            "title": "few records",
            "problem": {"dataset": "small.csv", "options": options},
            "participation": participation,
            "protocol": [{"name": "noisy_sgd", "clip": 1.0, "step_size": 0.1, "noise_std": 1.0}],
            "sweep": {"seeds": 1},
        },
        tmp_path,
    )
    small = tiny(made)
    assert small.participation.rounds == rounds
    assert listed.jobs(small)[0].prepare().static.size.rounds == rounds


def test_tiny_has_few_records_if_sizes_are_equal():
    method = {"name": "noisy_sgd", "batch": 30, "clip": 1.0, "mu": 1.0}
    method["grid"] = {"radius": [4.0, 8.0], "step_scale": [0.5, 1.0, 2.0]}

    def small(partition, machines=20):
        problem = {"dataset": "digits", "loss": "softmax", "radius": 8.0, "partition": partition}
        taking_part = {"kind": "full", "rounds": 2}
        made = {"title": "few", "problem": problem, "participation": taking_part, "protocol": [method]}
        made["sweep"] = {"machines": [machines]}
        return tiny(experiment.parse(made))

    few = small({"kind": "iid"})
    assert few.problem.partition.records == 20
    (job,) = listed.jobs(few)
    start = job.prepare()
    assert (start.first.problem.examples, start.static.size.rounds, start.first.plan.width) == (400, 2, 2)
    assert few.protocol[0].grid == {"radius": [4.0], "step_scale": [0.5, 2.0]}
    for partition in ({"kind": "by_label", "classes_per_machine": 2}, {"kind": "iid", "sizes": "lognormal"}):
        assert small(partition).problem.partition.records is None
    assert small({"kind": "iid", "records": 5}).problem.partition.records == 5
    assert small({"kind": "iid"}, machines=100).problem.partition.records is None  # there are 14 for each


@pytest.mark.parametrize(
    ("changed", "machines", "per_round"),
    [
        ({"kind": "full"}, 10, 10),
        ({"kind": "one_pass", "per_round": 30}, 200, 10),
        ({"kind": "uniform", "per_round": 8}, 600, 8),
        ({"kind": "uniform", "per_round": 300}, 20, 10),
        ({"kind": "uniform", "per_round": 50, "machines": 100}, 100, 50),
        ({"kind": "uniform", "per_round": 300, "dropouts": [0.1] * 600}, 600, 300),
    ],
)
def test_tiny_has_few_machines_if_there_are_many_and_no_setting_depends_on_them(changed, machines, per_round):
    said = {
        "title": "machines",
        "problem": {"dataset": "digits", "radius": 8.0, "partition": {"kind": "iid"}},
        "participation": {"machines": 600, **changed},
        "protocol": [{"name": "noisy_sgd", "clip": 1.0, "noise_std": 1.0}],
        "sweep": {"seeds": 1},
    }
    (job,) = runner.jobs(tiny(experiment.parse(said)))
    size = job.prepare().static.size
    assert (size.machines, size.per_round) == (machines, per_round)


def test_tiny_makes_a_whole_epoch_if_a_method_needs_one():
    entry = {"name": "tree_momentum", "batch": 2, "alpha": 0.5, "step_size": 0.1, "noise_std": 0.5, "clip": 1.0}
    made = experiment.parse(
        {
            "title": "epochs",
            "problem": {"dataset": "digits", "partition": {"kind": "iid", "records": 40}},
            "participation": {"kind": "full", "machines": 3, "rounds": 60},
            "protocol": [entry],
        }
    )
    assert tiny(made).participation.rounds == 20
    (job,) = listed.jobs(tiny(made))
    assert job.prepare().static.size.rounds == 20


def test_tiny_keeps_all_records_if_a_method_needs_them():
    made = experiment.load("tran-cutkosky-2022/noise")  # alpha = 1/256, one over a machine's records
    small = tiny(made)
    assert small.participation.rounds == 256
    assert small.problem.partition == made.problem.partition
    assert len(listed.jobs(small)) == len(made.protocol)
