"""`[problem] features`: maps by name with their settings, custom maps by import path, and messages."""

import sys
import tomllib

import numpy as np
import pytest
import tomli_w

from fedprivjax import Refusal, cli, datasets, experiment
from fedprivjax.experiment import jobs as listed
from fedprivjax.features import Constant, GroupNorm, Pooling, Scattering, UnitNorm
from fedprivjax.testing.tiny import tiny

OWN = """
from dataclasses import dataclass
import numpy as np
import fedprivjax as fpj

@dataclass(frozen=True)
class Scaled(fpj.features.FeatureMap):
    by: float = 0.5
    def shape(self, shape):
        return shape
    def bound(self, shape, bound):
        return self.by * bound
    def __call__(self, examples):
        return self.by * examples

half = Scaled()
nothing = 3

def times(by):
    return Scaled(by)

def whole():
    return fpj.linear_problem(np.eye(4), np.zeros(4), fpj.Squared(1.0), feature_bound=1.0, constraint=fpj.Ball(1.0))
"""
RAW = {
    "title": "features",
    "problem": {"dataset": "digits", "radius": 4.0, "partition": {"kind": "iid"}},
    "participation": {"kind": "full", "machines": 4, "rounds": 3},
    "protocol": [{"name": "noisy_minibatch_sgd", "sampler": "full", "clip": 1.0, "step_size": 1.0}],
    "sweep": {"mu": [1.0], "seeds": 2},
}


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDPRIVJAX_CACHE", str(tmp_path / "home"))
    (tmp_path / "mine.py").write_text(OWN)
    return tmp_path


def parsed(place=None, **problem):
    return experiment.parse({**RAW, "problem": {**RAW["problem"], **problem}}, place)


@pytest.mark.parametrize(
    ("said", "maps"),
    [
        ("unit_norm", (UnitNorm(),)),
        (["pooling", "unit_norm", "constant"], (Pooling(2), UnitNorm(), Constant(1.0))),
        ([{"kind": "scattering", "scales": 1}, {"kind": "group_norm", "groups": 3}], (Scattering(1), GroupNorm(3))),
    ],
)
def test_a_file_names_feature_maps(said, maps):
    read = parsed(features=said)
    assert read.problem.maps == maps
    raw = experiment.to_mapping(read)
    assert experiment.parse(tomllib.loads(tomli_w.dumps(raw))) == read
    assert raw["problem"]["features"] == said


def test_maps_reach_the_problem_and_its_bounds():
    problem = experiment.make_problem(parsed(features=["pooling", "unit_norm"]).problem, 4)
    assert (problem.dimension, problem.feature_bound) == (160, 1.0)
    whole = datasets.load("digits").features[:, :64].reshape(-1, 4, 2, 4, 2).mean(axis=(2, 4)).reshape(-1, 16)
    np.testing.assert_allclose(problem.pool.features, whole / np.linalg.norm(whole, axis=1, keepdims=True), rtol=1e-5)


def test_only_sampled_records_are_mapped():
    dealt = {"kind": "iid", "records": 5}
    problem = experiment.make_problem(parsed(features=["unit_norm"], partition=dealt).problem, 4)
    assert problem.pool.features.shape == (20, 64)


def test_a_network_sees_the_mapped_picture():
    problem = experiment.make_problem(parsed(features=["pooling"], model={"kind": "cnn", "channels": [2]}).problem, 4)
    assert problem.pool[0].shape == (1437, 4, 4, 1)


def test_a_tables_columns_may_be_a_picture(place):
    rows = np.random.default_rng(0).random((8, 4))
    lines = [",".join([*map(str, row), str(k % 2)]) for k, row in enumerate(rows)]
    (place / "rows.csv").write_text("\n".join(["a,b,c,d,y", *lines]))
    options = {"target": "y", "bounds": {name: [0, 1] for name in "abcd"}, "test_fraction": 0}
    table = {"dataset": "rows.csv", "options": options, "picture": [2, 2]}
    problem = experiment.make_problem(parsed(place, **table, features=["pooling"]).problem, 4)
    np.testing.assert_allclose(problem.pool.features[:, 0], 2 * rows.mean(axis=1) - 1, atol=1e-6)
    seen = experiment.make_problem(parsed(place, **table, model={"kind": "cnn", "channels": [2]}).problem, 4)
    assert seen.pool[0].shape == (8, 2, 2, 1)


@pytest.mark.parametrize("said", ["mine:Scaled", "mine:half", [{"kind": "mine:Scaled", "by": 0.5}]])
def test_a_custom_map_by_import_path(place, said):
    read = parsed(place, features=said)
    assert experiment.make_problem(read.problem, 4).feature_bound == pytest.approx(65**0.5 / 2)


def test_tiny_maps_few_records():
    small = tiny(parsed(features=["scattering"]))
    assert small.problem.partition.records == 20
    assert experiment.make_problem(small.problem, 4).examples == 80


@pytest.mark.parametrize(
    ("problem", "message"),
    [
        ({"features": ["poling"]}, "unknown feature map 'poling', did you mean 'pooling'?"),
        ({"features": [{"kind": "pooling", "by": 2}]}, "unknown option of feature map pooling 'by'"),
        ({"features": 3}, "a feature map must be a name, or a table with its name as kind, got 3"),
        ({"feature": ["pooling"]}, "unknown key in [problem] 'feature', did you mean 'features'?"),
        ({"features": ["mine:scale"]}, "unknown feature map in mine 'scale', did you mean 'Scaled'?"),
        ({"features": ["mine:nothing"]}, "feature map 'mine:nothing' must be a FeatureMap, got 3"),
        ({"features": ["mine:times"]}, "feature map 'mine:times' must be given its options in its table, got missing"),
        ({"features": [{"kind": "mine:Scaled", "of": 2}]}, "unknown option of feature map mine:Scaled 'of'"),
        ({"features": [{"kind": "mine:half", "by": 2}]}, "feature map 'mine:half' takes no options, got 'by'"),
    ],
)
def test_a_files_mistakes(place, problem, message):
    with pytest.raises(Refusal) as caught:
        parsed(place, **problem)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("problem", "message"),
    [
        (
            {"features": [{"kind": "pooling", "size": 3}]},
            "[problem]: pooling size must divide the picture's sides (8×8), got 3",
        ),
        ({"picture": [4, 16]}, "[problem]: picture must be [8, 8, 1], as in the dataset, got [4, 16, 1]"),
        (
            {"dataset": "logistic", "options": {"examples": 24, "features": 3}, "features": ["scattering"]},
            "[problem]: features scattering must be of pictures, got examples of 3 numbers: "
            "give picture = [height, width]",
        ),
        (
            {"dataset": "stream", "partition": None, "features": ["unit_norm"]},
            "problem.features must be left out: examples of 'stream' are computed as they are used",
        ),
        (
            {"dataset": "mine:whole", "partition": None, "radius": None, "features": ["unit_norm"]},
            "problem.features must be left out: 'mine:whole' returns a whole problem",
        ),
        (
            {"dataset": "mine:whole", "partition": None, "radius": None, "constraint": "simplex"},
            "problem.constraint must be left out: 'mine:whole' returns a whole problem",
        ),
    ],
)
def test_maps_that_do_not_fit_the_data(place, problem, message):
    read = parsed(place, **problem)
    with pytest.raises(Refusal) as caught:
        listed.jobs(read)
    assert str(caught.value) == message


def test_the_command_line_prints_a_mistake_in_one_line(place, monkeypatch, capsys):
    raw = {**RAW, "problem": {**RAW["problem"], "features": [{"kind": "pooling", "size": 3}]}}
    (place / "my.toml").write_text(tomli_w.dumps(raw))
    monkeypatch.setattr(sys, "argv", ["fedprivjax", "run", str(place / "my.toml"), "--out", str(place / "there")])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    said = capsys.readouterr().err
    assert stopped.value.code == 2
    assert said == "[problem]: pooling size must divide the picture's sides (8×8), got 3\n"
