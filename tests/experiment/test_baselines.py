"""Baselines of `[evaluation] baselines`, and their lines in tables."""

import copy
import tomllib

import numpy as np
import pytest
import xarray as xr
from scipy.stats import t

from fedprivjax import Ball, Full, NoisyMinibatchSGD, Refusal, Squared, datasets, experiment, linear_problem
from fedprivjax.engine.metrics import known
from fedprivjax.engine.simulate import alone as trained_alone
from fedprivjax.engine.simulate import machines_alone
from fedprivjax.experiment.jobs import jobs
from fedprivjax.experiment.run import run
from fedprivjax.protocols import PROTOCOLS
from fedprivjax.report import display as reports
from fedprivjax.sweeps.prepare import ready_sweep
from fedprivjax.sweeps.results import constant, with_alone
from fedprivjax.sweeps.sweep import joined

FILE = """
title = "small"
problem = { dataset = "digits", radius = 8.0, partition = { kind = "iid" } }
participation = { kind = "full", machines = 4, rounds = 3 }
sweep = { epsilon = [1.0, 8.0], seeds = 2 }
evaluation = { baselines = ["constant", "non-private"] }

[[protocol]]
name = "noisy_minibatch_sgd"
label = "ours"
sampler = "full"
clip = 1.0
relative_privacy = [1.0, 1.0, 1.0, 2.0]
grid = { step_scale = [0.5, 1.0] }
"""
INF = float("inf")


def parsed(*more, baselines=("constant", "non-private")):
    raw = tomllib.loads(FILE)
    raw["evaluation"] = {"baselines": list(baselines)}
    raw["protocol"] = [*raw["protocol"], *copy.deepcopy(more)]
    return experiment.parse(raw)


def test_non_private_is_the_same_protocol_without_a_target():
    ours, free = parsed().protocol
    assert (free.label, free.name, free.grid) == ("ours, non-private", ours.name, ours.grid)
    assert free.settings == {"sampler": "full", "clip": 1.0, "epsilon": INF}
    assert "epsilon" in free.fixed  # the sweep does not reach it


def test_by_default_no_protocol_is_added():
    assert [one.label for one in parsed(baselines=["constant"]).protocol] == ["ours"]
    assert experiment.load("quickstart").evaluation.baselines == ["constant"]


def test_a_baseline_in_the_file_is_not_added_again():
    free = {"name": "noisy_minibatch_sgd", "label": "mine", "sampler": "full", "clip": 1.0, "epsilon": INF}
    made = parsed({**free, "grid": {"step_scale": [0.5, 1.0]}})
    assert [one.label for one in made.protocol] == ["ours", "mine"]
    assert [one.label for one in parsed(free).protocol] == ["ours", "mine", "ours, non-private"]


def test_settings_are_read_back_with_the_baselines():
    made = parsed()
    said = experiment.to_mapping(made)
    assert [one["label"] for one in said["protocol"]] == ["ours"]
    assert experiment.parse(said) == made


def test_finished_results_have_baselines_without_imports():
    raw = tomllib.loads(FILE)
    raw["protocol"] = [
        {"name": "mine:Private", "label": "mine"},
        {"name": "mine:Free", "label": "free", "epsilon": INF},
    ]
    made = experiment.parse(raw, recorded={})
    assert [one.label for one in made.protocol] == ["mine", "free", "mine, non-private"]


def test_an_unknown_baseline_is_refused():
    with pytest.raises(Refusal, match="baselines"):
        parsed(baselines=["best"])


@pytest.mark.parametrize("name", [name for name in PROTOCOLS if not name.startswith("released")])
def test_every_private_method_has_a_baseline(name):
    raw = tomllib.loads(FILE)
    raw["protocol"] = [{"name": name, "label": "ours", "batch": 2}]
    raw["sweep"] = {"epsilon": [1.0]}
    known = PROTOCOLS[name][0].__dataclass_fields__
    if "batch" not in known:
        raw["protocol"][0].pop("batch")
    if "local_epochs" in known:
        raw["protocol"][0] |= {"local_epochs": 1, "unit": "record", "clip": 1.0, "step_size": 0.1}
    labels = [one.label for one in experiment.parse(raw).protocol]
    assert labels == ["ours", "ours, non-private"]


def test_the_constant_baseline_of_several_trials_is_their_mean():
    parts = []
    for trial, value in enumerate((0.5, 0.7)):
        accuracy = ("round", [0.9], {"constant_predictor": value})
        parts.append(({"trial": trial}, xr.Dataset({"test_accuracy": accuracy}, {"round": [1]})))
    assert constant(joined(parts), "test_accuracy") == pytest.approx(0.6)


# ---- weights of machines of unequal sizes

X = np.eye(10)[:, :3]


def weights(sizes, **options):
    table = datasets.table(np.split(np.arange(10), np.cumsum(sizes)[:-1]))[0]
    settings = {"feature_bound": 1.0, "constraint": Ball(2.0), "partition_table": table} | options
    problem = linear_problem(X, X[:, 0], Squared(label_bound=1.0), **settings)
    protocol = NoisyMinibatchSGD(epsilon=1.0, sampler="full")
    start = ready_sweep(protocol, problem, Full(len(sizes)), rounds=2, metrics=["noise_norm"], seeds=1)
    return start.attributes().get("weights")


def test_unequal_machines_that_count_equally_are_named():
    said = "every machine counts equally: machine 1 (3 of 10 records) as much as machine 0 (7)"
    assert weights([7, 3]) == f"{said}, and machine 1 has the largest noise"
    assert weights([5, 5]) is None
    assert weights([7, 3], machine_weights=[0.7, 0.3]) is None


# ---- each machine alone

RNG = np.random.default_rng(3)
FEATURES = RNG.uniform(-1, 1, size=(40, 3))
LABELS = FEATURES @ [0.5, -0.3, 0.2] + 0.1 * RNG.normal(size=40)
PARTS = np.split(np.arange(40), [12, 33])  # of unequal sizes, so rows are padded


def owned(parts=PARTS, radius=50.0):
    settings = {"feature_bound": 2.0, "constraint": Ball(radius), "partition_table": datasets.table(parts)[0]}
    return linear_problem(FEATURES, LABELS, Squared(label_bound=2.0), optimum=np.zeros(3), **settings)


def fits(parts):
    return [np.linalg.lstsq(FEATURES[rows], LABELS[rows], rcond=None)[0] for rows in parts]


def test_each_machine_alone_is_least_squares_on_its_own_records():
    learnt = trained_alone(owned(), [known("distance"), known("noise_norm")])
    assert list(learnt) == ["distance"]  # of parameters alone: there are no rounds
    np.testing.assert_allclose(learnt["distance"], [np.linalg.norm(w) for w in fits(PARTS)], rtol=2e-3)


def test_machines_alone_stay_in_the_constraint_set():
    least = min(np.linalg.norm(w) for w in fits(PARTS))
    learnt = trained_alone(owned(radius=0.5 * least), [known("distance")])
    np.testing.assert_allclose(learnt["distance"], 0.5 * least, rtol=1e-4)


def test_at_most_a_fixed_hundred_machines_train_alone(monkeypatch):
    monkeypatch.setattr("fedprivjax.engine.simulate.MOST", 2)
    problem = owned([*PARTS[:2], *np.split(PARTS[2], [4])])
    chosen = machines_alone(problem)
    assert (len(chosen), len(set(chosen))) == (2, 2)
    np.testing.assert_array_equal(chosen, machines_alone(problem))
    data = with_alone(xr.Dataset(), {"loss": np.array([1.0, 2.0])}, 4)
    assert data.attrs["alone"] == "2 machines, a fixed random sample of 4"
    assert np.isnan(data["alone_loss_interval"])


@pytest.mark.slow
def test_an_experiment_shows_each_machine_alone_in_tables_and_plots(tmp_path):
    raw = tomllib.loads(FILE)
    raw["evaluation"] = {"baselines": ["alone"], "metrics": ["test_accuracy"]}
    raw["protocol"][0].pop("grid")
    raw["protocol"][0].pop("relative_privacy")
    made = experiment.parse(raw)
    run(made, tmp_path / "run")
    (learnt,) = trained_alone(jobs(made)[0].alone, [known("test_accuracy")]).values()
    tables = reports.table(tmp_path / "run")
    (cells,) = (c for c in tables.sheets[0].columns if c.header == "each machine alone")
    half = t.ppf(0.975, 3) * learnt.std(ddof=1) / 2
    assert cells.cells == [f"{100 * learnt.mean():.1f} ± {100 * half:.1f}", "″"]
    (note,) = (line for line in tables.notes if line.startswith("each machine alone"))
    assert "± 95% interval over 4 machines, each after 300 full-batch gradient steps on its own records" in note


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"sweep": {"epsilon": [1.0], "trials": 3}},
            "evaluation.baselines must leave 'alone' out of trials, got 3 trials",
        ),
        ({"problem": {"dataset": "digits", "radius": 8.0}}, "baseline 'alone' must go with machines that own records"),
        ({"sweep": {"epsilon": [1.0], "radius": [4.0, 8.0]}}, "must leave 'alone' out if radius is swept, got both"),
    ],
)
def test_invalid_settings_of_alone_are_refused(change, said):
    raw = tomllib.loads(FILE) | {"evaluation": {"baselines": ["alone"]}} | change
    with pytest.raises(Refusal, match=said):
        jobs(experiment.parse(raw))


def test_tuning_runs_train_no_machine_alone():
    raw = tomllib.loads(FILE) | {"evaluation": {"baselines": ["constant", "alone"]}}
    raw["tuning"] = {"problem": {"dataset": "logistic"}}
    raw["problem"]["radius"] = 8.0
    assert experiment.tuning_experiment(experiment.parse(raw)).evaluation.baselines == ["constant"]
