"""`[tuning]`: hyper-parameters tuned on another dataset, before anything runs on this one."""

import copy
import tomllib

import numpy as np
import pytest
import tomli_w
import xarray as xr

from fedprivjax import Refusal, experiment, final, load, table
from fedprivjax.cli import experiments as command
from fedprivjax.experiment import folder, tuning
from fedprivjax.experiment import jobs as listed
from fedprivjax.experiment import run as runner
from fedprivjax.experiment.tuning import Choice
from fedprivjax.report import remarks
from fedprivjax.testing.tiny import tiny

FILE = """
title = "small"

[problem]
dataset = "logistic"
options = { examples = 120, features = 3 }
radius = 5.0

[participation]
machines = 6
per_round = 3
rounds = 4

[[protocol]]
name = "dp_mu2"
label = "ours"
grid = { clip = [0.5, 2.0], step_scale = [1e-6, 1.0] }

[[protocol]]
name = "noisy_sgd"
label = "theirs"
mu = inf
clip = 1.0
grid = { step_scale = [1e-6, 1.0, 3.0] }
participation = { rounds = 2 }

[[protocol]]
name = "noisy_sgd"
label = "as it is"
clip = 1.0

[sweep]
mu = [1, 64]
seeds = 2

[evaluation]
metrics = ["test_accuracy"]
every = 2

[tuning]
problem = { dataset = "digits", radius = 8.0 }
participation = { machines = 20, per_round = 10 }
seeds = 2
"""


def raw(**sections):
    """Return the settings of the file with keys of its sections changed."""
    said = tomllib.loads(FILE)
    for section, keys in sections.items():
        said[section] = {**said[section], **keys}
    return said


def scored(values, **axes):
    """Return a dataset with one evaluation of the test accuracy, over the axes and seeds."""
    dims = [*axes, "seed"]
    runs = xr.DataArray(np.asarray(values, float), dims=dims, coords=axes)
    diverged = runs.isnull()
    return xr.Dataset({"test_accuracy": runs.expand_dims(round=[1], axis=-1), "diverged": diverged})


def choices(made, results):
    """Return the chosen point of "theirs"."""
    return tuning.choices(made, experiment.tuning_experiment(made), results)["theirs"]


def chosen_of(values, **axes):
    """Return the chosen step size, given the scores of every cell and seed."""
    made = raw()
    made["protocol"] = [{**made["protocol"][1], "grid": {"step_scale": axes["step_scale"]}}]
    return choices(experiment.parse(made), {"theirs": scored(values, **axes)})


def test_the_choice_is_one_point_for_all_cells():
    values = [[[0.9, 0.9], [0.1, 0.1]], [[0.6, 0.6], [0.6, 0.5]]]  # [step, mu, seed]: each is best at one level
    found = chosen_of(values, step_scale=[0.1, 1.0], mu=[1.0, 2.0])
    assert found.values == {"step_scale": 1.0}
    assert found.score == pytest.approx(0.575)
    assert (found.points, found.diverged) == (2, 0)


def test_a_run_that_diverges_scores_worst():
    found = chosen_of([[0.9, np.nan], [0.1, 0.1], [0.2, 0.1]], step_scale=[0.1, 1.0, 10.0])
    assert found.values == {"step_scale": 10.0}
    assert "of those of 3 (step_scale at the edge of its grid) that diverged least, on" in found.why
    found = chosen_of([[0.9, np.nan], [np.nan, np.nan], [0.2, np.nan]], step_scale=[0.1, 1.0, 10.0])
    assert (found.values, found.score, found.diverged) == ({"step_scale": 0.1}, 0.9, 1)


def test_a_choice_among_diverged_runs_is_reported():
    found = chosen_of(np.full((3, 2), np.nan), step_scale=[0.1, 1.0, 10.0])
    assert (found.values, found.diverged) == ({"step_scale": 0.1}, 2)
    assert found.why.startswith(
        "step_scale = 0.1: the first of 3 (step_scale at the edge of its grid), for every run diverged, "
    )


def test_the_smallest_loss_is_best():
    made = raw(evaluation={"metrics": ["test_loss"], "select": "test_loss"})
    made["protocol"] = [{**made["protocol"][1], "grid": {"step_scale": [0.1, 1.0]}}]
    data = scored([[0.9, 0.8], [0.2, 0.3]], step_scale=[0.1, 1.0]).rename(test_accuracy="test_loss")
    found = choices(experiment.parse(made), {"theirs": data})
    assert found.values == {"step_scale": 1.0}


def test_the_tuning_experiment_uses_the_other_data():
    other = experiment.tuning_experiment(experiment.parse(raw()))
    assert (other.problem.dataset, other.problem.options, other.problem.radius) == ("digits", {}, 8.0)
    assert [(one.label, one.points) for one in other.protocol] == [("ours", 4), ("theirs", 3)]
    made = [experiment.make_participation(other.participation_of(one), {}) for one in other.protocol]
    assert [(law.machines, law.per_round, rounds) for law, rounds in made] == [(20, 10, 4), (20, 10, 2)]
    assert (other.sweep.over, other.sweep.seeds, other.tuning) == ({"mu": [1.0, 64.0]}, 2, None)


def test_participation_of_tuning_overrides_everything():
    said = raw(
        tuning={"participation": {"machines": 20, "per_round": 5, "rounds": 3}, "sweep": {"mu": [8.0]}},
        sweep={"per_round": [2, 3]},
    )
    other = experiment.tuning_experiment(experiment.parse(said))
    assert other.sweep.over == {"mu": [8.0]}
    made = [experiment.make_participation(other.participation_of(one), {}) for one in other.protocol]
    assert [(law.per_round, rounds) for law, rounds in made] == [(5, 3), (5, 3)]


@pytest.mark.parametrize("chooser", [{"dataset": "digits"}, {"options": {"examples": 60, "features": 3}}])
def test_declared_constants_are_not_inherited_by_other_data(chooser):
    declared = {"lipschitz": 0.1, "distance": 1.0, "machine_weights": [1 / 6] * 6}
    made = raw(problem=declared, tuning={"problem": chooser})
    other = experiment.tuning_experiment(experiment.parse(made)).problem
    assert (other.lipschitz, other.distance, other.machine_weights) == (None, None, None)
    made["tuning"]["problem"] = {**chooser, "lipschitz": 2.0}
    assert experiment.tuning_experiment(experiment.parse(made)).problem.lipschitz == 2.0


def test_an_empty_partition_is_none():
    said = raw(problem={"dataset": "digits", "options": {}, "partition": {"kind": "iid"}})
    said["tuning"]["problem"] = {"dataset": "logistic", "options": {"examples": 120, "features": 3}}
    assert experiment.tuning_experiment(experiment.parse(said)).problem.partition.kind == "iid"
    said["tuning"]["problem"]["partition"] = {}
    made = experiment.parse(said)
    assert experiment.tuning_experiment(made).problem.partition is None
    again = experiment.parse(tomllib.loads(tomli_w.dumps(experiment.to_mapping(made))))
    assert experiment.tuning_experiment(again).problem.partition is None


def test_plot_positions_are_left_out_of_tuning():
    made = experiment.parse(raw(evaluation={"at": {"mu": 64.0}}, tuning={"sweep": {"mu": [8.0]}}))
    assert experiment.tuning_experiment(made).evaluation == made.evaluation.model_copy(update={"at": {}})


def test_model_loss_and_features_are_inherited_unless_overridden():
    said = raw(problem={"loss": "softmax", "features": ["unit_norm"], "partition": {"kind": "iid"}})
    said["tuning"]["problem"] = {"dataset": "digits", "constraint": {"kind": "box", "low": -1.0, "high": 1.0}}
    other = experiment.tuning_experiment(experiment.parse(said)).problem
    assert (other.loss.kind, other.features, other.partition.kind) == ("softmax", ["unit_norm"], "iid")
    assert (other.constraint.kind, other.radius) == ("box", None)


MISTAKES = [
    ({"problem": {"dataset": "digit"}}, "in [tuning]: unknown dataset 'digit', did you mean 'digits'?"),
    ({"problem": {"raduis": 2.0}}, "in [tuning]: unknown key in [problem] 'raduis', did you mean 'radius'?"),
    (
        {"problem": {"radius": 2.0}},
        "in [tuning]: problem must have another dataset than the experiment, got 'logistic' again",
    ),
    (
        {"problem": {"dataset": "logistic"}},
        "in [tuning]: problem must have another dataset than the experiment, got 'logistic' again",
    ),
    ({"participation": {"machine": 20}}, "in [tuning]: unknown key in [participation] 'machine', did you mean"),
    (
        {"participation": {"machines": 20, "per_round": 30}},
        "in [tuning]: [participation] for 'ours': per_round must be",
    ),
    ({"sweep": {"clip": [1.0]}}, "in [tuning]: unknown key in its sweep 'clip'"),
    ({"sweep": {"mu": [1.0, 1.0]}}, "in [tuning]: sweep.mu must be a list of distinct numbers"),
    ({"seeds": 0}, "tuning.seeds must be at least 1, got 0"),
    ({"seed": 2}, "unknown key in [tuning] 'seed', did you mean 'seeds'?"),
    ({"problem": "digits"}, "tuning.problem must be a table, got 'digits'"),
]


@pytest.mark.parametrize(("said", "line"), MISTAKES)
def test_a_mistake_is_one_line_before_anything_runs(said, line, tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "execute", None)
    spec = tmp_path / "small.toml"
    spec.write_text(tomli_w.dumps(raw(tuning=said)), encoding="utf-8")
    with pytest.raises(Refusal) as caught:
        command.run(str(spec), folder=tmp_path / "out")
    assert str(caught.value).startswith(line)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_grids_of_one_point_and_missing_data_are_refused():
    said = raw()
    for one in said["protocol"]:
        one["grid"] = {"step_scale": [1.0]} if "grid" in one else {}
    with pytest.raises(Refusal, match=r"^in \[tuning\]: a \[\[protocol\]\] must have a grid of several points, got"):
        experiment.parse(said)
    said["tuning"] = {"seeds": 2}
    with pytest.raises(Refusal, match=r"^tuning\.problem must be given"):
        experiment.parse(said)


def test_tuning_round_trips_and_accepts_changes(tmp_path):
    spec = tmp_path / "small.toml"
    spec.write_text(FILE, encoding="utf-8")
    made = experiment.load(spec, {"tuning.seeds": 5, "tuning.problem.radius": 4.0})
    assert (made.tuning.seeds, experiment.tuning_experiment(made).problem.radius) == (5, 4.0)
    again = experiment.parse(tomllib.loads(tomli_w.dumps(experiment.to_mapping(made))))
    assert again == made
    assert experiment.tuning_experiment(again) == experiment.tuning_experiment(made)


@pytest.mark.parametrize(
    ("options", "ending"),
    [
        ({}, "on logistic, which may share data with this run: not accounted for"),
        ({"seed": 1}, "on logistic; no data of this run had a part, so it costs them no privacy"),
    ],
)
def test_data_that_may_overlap_are_reported_as_not_accounted_for(options, ending):
    said = raw(tuning={"problem": {"options": {"examples": 60, "features": 3, **options}}})
    made = experiment.parse(said)
    data = scored(np.zeros((2, 2, 2)), clip=[0.5, 2.0], step_scale=[1e-6, 1.0])
    results = {"ours": data, "theirs": scored(np.zeros((3, 2)), step_scale=[1e-6, 1.0, 3.0])}
    choice = tuning.choices(made, experiment.tuning_experiment(made), results)["ours"]
    assert choice.why.endswith(ending)
    assert choice.on_other_data == bool(options)


TABLE = {"target": "y", "bounds": {"a": [0.0, 1.0]}}
OWN = """
from fedprivjax import datasets


def load():
    return datasets.load("digits")
"""


@pytest.fixture
def beside(tmp_path):
    """Folder with a table, a copy of it, and a user-defined function."""
    for name in ("people.csv", "copy.csv"):
        (tmp_path / name).write_text("a,y\n0.1,0\n0.2,1\n0.3,0\n0.4,1\n", encoding="utf-8")
    (tmp_path / "own_digits.py").write_text(OWN, encoding="utf-8")
    return tmp_path


def on(dataset, chooser, here):
    """Return an experiment on one dataset with tuning on another. Tables have the columns of the file."""
    options = {name: TABLE if name.endswith(".csv") else {} for name in (dataset, chooser)}
    made = raw(problem={"dataset": dataset, "options": options[dataset]}, participation={"machines": 2, "per_round": 1})
    made["protocol"] = [made["protocol"][1]]
    made["tuning"] = {"problem": {"dataset": chooser, "options": options[chooser]}}
    return experiment.parse(made, here)


@pytest.mark.parametrize(
    ("dataset", "chooser", "shared"),
    [
        ("people.csv", "copy.csv", True),
        ("digits", "own_digits:load", True),
        ("people.csv", "digits", True),
        ("mnist", "mnist_pairs", True),
        ("mnist_pairs", "mnist", True),
        ("people.csv", "clusters", False),
        ("own_digits:load", "stream", False),
        ("mnist", "digits", False),
        ("digits", "mnist", False),
    ],
)
def test_only_disjoint_data_are_reported_as_free_of_privacy_cost(dataset, chooser, shared, beside):
    made = on(dataset, chooser, beside)
    data = scored(np.zeros((3, 2)), step_scale=[1e-6, 1.0, 3.0])
    why = choices(made, {"theirs": data}).why
    assert why.endswith("which may share data with this run: not accounted for") == shared
    assert why.endswith("no data of this run had a part, so it costs them no privacy") != shared


def test_a_tuning_table_is_found_from_any_folder(beside, tmp_path_factory):
    made = on("digits", "copy.csv", beside)
    kept = tomllib.loads(tomli_w.dumps(experiment.to_mapping(made)))
    again = experiment.parse(kept, tmp_path_factory.mktemp("elsewhere"))
    assert again == made
    assert experiment.tuning_experiment(again).problem.dataset == str(beside / "copy.csv")


def test_tiny_scales_tuning_down():
    said = raw(tuning={"seeds": 7}, participation={"rounds": 200})
    said["problem"]["partition"] = {"kind": "iid"}
    said["tuning"]["problem"] = {"dataset": "clusters", "options": {"examples": 4000, "features": 12}}
    small = tiny(experiment.parse(said))
    other = experiment.tuning_experiment(small)
    assert (other.sweep.seeds, other.evaluation.every) == (2, 5)
    assert other.participation.rounds == 2  # the minimum is the second protocol's own number
    assert [one.grid for one in other.protocol] == [
        {"clip": [0.5, 2.0], "step_scale": [1e-6]},
        {"step_scale": [1e-6, 3.0]},
    ]
    assert (other.problem.options["examples"], other.problem.partition.records) == (400, 20)
    assert other.problem.options["features"] == 12
    assert other.problem.options["test_examples"] == 200
    said["problem"].pop("partition")
    said["tuning"]["problem"]["partition"] = {}
    assert experiment.tuning_experiment(tiny(experiment.parse(said))).problem.options["examples"] == 400


@pytest.mark.parametrize(
    ("dataset", "options"),
    [("clusters", {"examples": 120}), pytest.param("stream", {}, marks=pytest.mark.slow)],
)
def test_the_classes_of_synthetic_tuning_data_are_the_experiments(dataset, options):
    """Both have ten classes by default, and the experiment's data have two."""
    said = raw(participation={"machines": 6})
    said["tuning"]["problem"] |= {"dataset": dataset, "options": {**options, "features": 20}}
    says = (
        rf"^in \[tuning\]: problem.options must have classes for '{dataset}', which has 10 classes by default and the "
        r"experiment's data 2, got none\. Set classes = 2$"
    )
    with pytest.raises(Refusal, match=says):
        listed.ready_experiment(experiment.parse(said))
    for own in (2, 10):  # which may differ from the experiment's, if this is said
        said["tuning"]["problem"]["options"]["classes"] = own
        assert listed.ready_experiment(experiment.parse(said)).before is not None


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """Return a results folder, and its experiment file."""
    here = tmp_path_factory.mktemp("choice")
    spec = here / "small.toml"
    said = raw(sweep={"mu": [8.0]})
    said["protocol"] = said["protocol"][1:]  # fewer programs
    spec.write_text(tomli_w.dumps(said), encoding="utf-8")
    command.run(str(spec), folder=here / "out")
    return load(here / "out"), spec


def test_the_choice_follows_from_the_tuning_runs(ran):
    results, _ = ran
    kept = folder.load(results.folder / folder.CHOICE)
    assert list(results.choices) == list(kept) == ["theirs"]
    for label, found in results.choices.items():
        mean = final(kept[label], "test_accuracy").mean([d for d in ("mu", "seed") if d in kept[label].dims])
        assert found.score == pytest.approx(float(mean.max()))
        assert float(mean.sel(found.values)) == pytest.approx(found.score)
    assert results.choices["theirs"].points == kept["theirs"].sizes["step_scale"] == 3


def test_the_results_are_of_the_chosen_point_alone(ran):
    results, _ = ran
    for label, found in results.choices.items():
        best = results.best[label]
        for name, value in found.values.items():
            assert results[label][name].values.tolist() == [value]
            assert np.unique(best[f"best_{name}"]).tolist() == [value]
        assert best.attrs["selected"] == found.why
        assert found.why.endswith("on digits; no data of this run had a part, so it costs them no privacy")
    assert "selected" not in results.best["as it is"].attrs
    assert results["theirs"]["round"].values.tolist() == [2]


def test_the_choice_is_shown(ran):
    results, _ = ran
    text = str(table(results))
    page = (results.folder / "report.html").read_text(encoding="utf-8")
    title = "chosen on digits, by the best mean over all cells and 2 seeds"
    for words in (title, *(found.why for found in results.choices.values())):
        assert words in " ".join(text.split())
        assert words in page
    frame = next(sheet for sheet in table(results).sheets if sheet.title == title).frame
    assert frame["of points"].tolist() == ["3"]


def test_a_report_runs_nothing(ran, monkeypatch):
    results, _ = ran
    monkeypatch.setattr(runner, "execute", None)
    (results.folder / "report.html").unlink()
    command.report(results.folder)
    page = (results.folder / "report.html").read_text(encoding="utf-8")
    assert "chosen on digits" in page
    assert "show as it is at μ = 8, first seed" in page
    assert page.count('alt="participation"') == 1


def test_python_chooses_as_the_command_does(ran, monkeypatch):
    results, spec = ran
    seen, calibrated = [], []
    real = listed.ready_sweep

    def counted(*args, **options):
        calibrated.append(len(options["over"].get("step_scale", [1])))
        return real(*args, **options)

    monkeypatch.setattr(listed, "ready_sweep", counted)
    found = runner.run(experiment.load(spec), progress=lambda *counts: seen.append(counts))
    assert list(found) == list(results)
    for label, data in found.items():
        assert data.attrs["grid_points"] == 3 if label == "theirs" else "grid_points" not in data.attrs
        kept, made = (one.drop_vars(["guarantee", "seconds"]) for one in (results[label], data))
        xr.testing.assert_equal(made, kept)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert seen[-1] == (10, 10)  # of three points and two seeds, and two methods of two seeds
    assert calibrated == [1, 1, 3, 1, 1]  # to check, to choose, and at the choice


@pytest.mark.slow
def test_a_resumed_run_reuses_a_finished_choice(ran, monkeypatch):
    results, spec = ran
    before = (results.folder / "choice" / "results.nc").stat().st_mtime_ns
    (results.folder / "results.nc").unlink()
    seen = []
    real = runner.execute
    monkeypatch.setattr(runner, "execute", lambda start, *rest: seen.append(start) or real(start, *rest))
    command.run(str(spec), folder=results.folder, resume=True)
    assert (results.folder / "choice" / "results.nc").stat().st_mtime_ns == before
    assert len(seen) == 2  # the protocols of the main part
    again = load(results.folder)
    for label in results:
        kept, made = (data[label].drop_vars(["guarantee", "seconds"]) for data in (results, again))
        xr.testing.assert_equal(made, kept)


def test_an_unfinished_choice_is_an_unfinished_run(tmp_path):
    made = experiment.parse(raw())
    folder.claim(tmp_path, made)
    kept = tmp_path / folder.CHOICE / folder.CHUNKS
    kept.mkdir(parents=True)
    folder.claim(tmp_path, made)
    (kept / "0.npz").touch()
    with pytest.raises(Refusal) as caught:
        folder.claim(tmp_path, made)
    assert str(caught.value).startswith(f"results folder {tmp_path} holds an unfinished run: add --resume")
    folder.claim(tmp_path, made, resume=True)


def test_grids_of_one_size_need_no_line():
    def line(*sizes):
        data = {str(n): xr.Dataset(attrs={"grid_points": size}) for n, size in enumerate(sizes)}
        return remarks._unequal(data)

    assert line(3, 3) == []
    assert line(3, 4) == ["chosen from grids of unequal size: 0 3, 1 4"]


def test_only_tuned_protocols_are_marked():
    found = {"ours": Choice({"clip": 1.0}, 0.5, 4, 0, "why")}
    made = tuning.with_choices({"ours": xr.Dataset(), "theirs": xr.Dataset()}, found)
    assert made["ours"].attrs == {"selected": "why", "grid_points": 4, "unaccounted_choice": "clip"}
    assert made["theirs"].attrs == {}
    at = tuning.at_choices(experiment.parse(copy.deepcopy(raw())), found)
    assert [one.grid.get("clip") for one in at.protocol] == [[1.0], None, None]
