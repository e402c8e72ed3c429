"""User-supplied data, losses, models and metrics in experiment files, by path or import path, and messages."""

import sys
import tomllib
from dataclasses import replace

import numpy as np
import pytest
import tomli_w
import xarray as xr

import fedprivjax as fpj
from fedprivjax import Huber, Refusal, cli, datasets, experiment
from fedprivjax.experiment import folder
from fedprivjax.experiment import jobs as listed
from fedprivjax.experiment.problem_section import Source
from fedprivjax.experiment.tuning import selected

pytestmark = pytest.mark.filterwarnings("ignore:.* lie outside ")  # of tests that clip values on purpose
CSV = (
    '\ufeffclinic,age, income,smoker,"town, region",outcome\r\n'
    '"St. Mary\'s, North",34,1e4,yes,"east, inner",ill\r\n'
    '"B ""old""",18,0,no,north,well\r\n'
    '"St. Mary\'s, North",,50000,no,n/a,well\r\n'
    "Ånäs,120,25000,yes,north,ill\r\n"
    "Ånäs,70,25000,yes,north,ill\r\n"
    '"B ""old""",28,0,no,north,well\r\n'
    '"St. Mary\'s, North",59,100000,no,north,well\r\n'
    '"B ""old""",40,100,no,"east, inner",ill\r\n'
)
TOML = """title = "Illness by clinic"
[problem]
dataset = "awkward.csv"
radius = 4.0
[problem.options]
target = "outcome"
client = "clinic"
bounds = { age = [18, 100], income = [0, 50_000] }
categories = { smoker = ["no", "yes"], "town, region" = ["north", "east, inner", "unknown"] }
fill = { age = 50, "town, region" = "unknown" }
[participation]
kind = "full"
rounds = 4
[[protocol]]
name = "noisy_minibatch_sgd"
sampler = "full"
clip = 1.0
step_size = 0.5
[sweep]
epsilon = [1, 8]
seeds = 2
"""
OWN = """
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
import fedprivjax as fpj

class Net(nn.Module):
    width: int = 2
    @nn.compact
    def __call__(self, x):
        return nn.Dense(1)(nn.tanh(nn.Dense(self.width)(x)))[:, 0]

def load(rows, seed=0):
    x = np.random.default_rng(seed).uniform(-0.5, 0.5, (rows, 3))
    return fpj.datasets.from_arrays(x, x[:, 0], x[:5], x[:5, 0], feature_bound=1.0, label_bound=1.0)

def whole():
    return fpj.linear_problem(np.eye(4), np.zeros(4), fpj.Squared(1.0), feature_bound=1.0, constraint=fpj.Ball(1.0))

def make_loss(width):
    return fpj.Huber(width)

loss = fpj.Huber(0.25)

def squares(params, example):
    return (params["w"] @ example[0] - example[1]) ** 2

def general():
    return fpj.general_problem(squares, (np.eye(3), np.zeros(3)), {"w": jnp.zeros(3)})

def length(problem, snapshot):
    return jnp.linalg.norm(snapshot.params)

largest = fpj.Metric("largest", lambda problem, snapshot: jnp.max(snapshot.params), better="higher", shown=("table",))
number = 3
"""
COUNTED = """
from people import load
asked = []

def again(rows):
    asked.append(rows)
    return load(rows, seed=len(asked))
"""
RAW = {
    "title": "own",
    "problem": {"dataset": "mine:load", "options": {"rows": 24}},
    "participation": {"kind": "full", "machines": 4, "rounds": 3},
    "protocol": [{"name": "noisy_sgd", "mu": 1.0, "clip": 1.0, "step_size": 0.1}],
    "sweep": {"seeds": 1},
}


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Folder of an experiment file, a table and a module, which is not the working directory."""
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "awkward.csv").write_text(CSV, encoding="utf-8", newline="")
    (tmp_path / "own" / "my.toml").write_text(TOML, encoding="utf-8")
    (tmp_path / "own" / "mine.py").write_text(OWN, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "own"


@pytest.fixture
def call(monkeypatch, capsys):
    """Run the command line in this process and return (exit status, stdout, stderr)."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["fedprivjax", *map(str, arguments)])
        monkeypatch.setattr(cli.out, "_width", 200)
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        return stopped.value.code or 0, *capsys.readouterr()

    return run


def changed(place, **problem):
    """Return the settings of a file on user-supplied data, with some keys of `[problem]` changed."""
    return experiment.parse({**RAW, "problem": {**RAW["problem"], **problem}}, place)


def made(parsed):
    """Return the problem of the file."""
    return experiment.make_problem(parsed.problem, 4)


@pytest.mark.slow
def test_one_command_runs_and_reports_a_user_table(place, call):
    assert len(TOML.splitlines()) < 25
    status, said, _ = call("run", "own/my.toml", "--out", "there")
    assert status == 0
    pictures = {"partition.png", "test_accuracy_against_epsilon.png", "test_loss_over_rounds.png"}
    assert pictures < {path.name for path in (place.parent / "there").iterdir()}
    assert "0 = 'ill', 1 = 'well'" in said
    assert "3 machines: 0 = 'B \"old\"', 1 = \"St. Mary's, North\", 2 = 'Ånäs'" in said
    assert "NON-PRIVATE preparation of the data, which no guarantee covers: classes of 'outcome' are those" in said
    (data,) = folder.load(place.parent / "there").values()
    assert isinstance(data, xr.Dataset)
    assert data.attrs["non_private_data"] == "classes of 'outcome' are those in the data"
    spec = tomllib.loads((place.parent / "there" / "spec.toml").read_text(encoding="utf-8"))
    assert spec["participation"]["machines"] == 3
    assert experiment.parse(spec) == experiment.load(place / "my.toml")  # it finds its table from anywhere


@pytest.mark.slow
def test_results_are_shown_without_their_data(place, call):
    call("run", "own/my.toml", "--out", "there")
    moved = (place.parent / "there").rename(place.parent / "handed_on")
    (place / "awkward.csv").unlink()
    tables = str(fpj.table(moved))
    (moved / "report.html").unlink()
    status, said, _ = call("report", moved)
    assert status == 0
    first, shown = said.split("\n", 1)
    assert first.startswith("data partition is not drawn: problem.dataset must be a file, got ")
    assert tables.splitlines()[0] == shown.splitlines()[0]
    assert (moved / "report.html").is_file()
    with pytest.raises(Refusal, match=r"^problem\.dataset must be a file, got "):
        experiment.load(moved / "spec.toml")


def test_a_table_is_found_next_to_the_file_or_in_the_working_directory(place):
    beside = experiment.load(place / "my.toml").problem.dataset
    assert beside == str((place / "awkward.csv").resolve())
    (place / "awkward.csv").rename(place.parent / "awkward.csv")
    assert experiment.load(place / "my.toml").problem.dataset == str((place.parent / "awkward.csv").resolve())
    (place.parent / "awkward.csv").unlink()
    (place / "awkward.csv").mkdir()
    with pytest.raises(Refusal, match=r"^problem\.dataset must be a file, got 'awkward\.csv'"):
        experiment.load(place / "my.toml")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ('problem.dataset="absent.csv"', "problem.dataset must be a file, got 'absent.csv', which is not in "),
        ('problem.options.test="held.csv"', "problem.options.test must be a file, got 'held.csv', which is not in "),
        ('problem.options.target="outcom"', "unknown column 'outcom', did you mean 'outcome'?"),
        ("problem.options.fill={}", "column 'age' must have a value in every row, got 1 missing (first in row 3 of"),
        ('problem.options.tagret="x"', "unknown option of a table 'tagret', did you mean 'target'?"),
        ('problem.options={client="clinic"}', "target must be given: the column that is predicted"),
        ('problem.options.features=["outcome"]', "features must be without the target and the client, got 'outcome'"),
        ("problem.options.bounds={}", "bounds of 'age', "),
        (
            "participation.machines=5",
            "participation.machines must be 3, the clients in the data, or be left out, got 5",
        ),
        ('problem.partition={kind="iid"}', "participation.machines must be given, or swept"),
        ("sweep.trials=2", "unknown option of a table 'trial'"),
        ('problem.partition={kind="by_value", column="smokr"}', "unknown column 'smokr', did you mean 'smoker'?"),
    ],
)
def test_a_tables_mistakes_print_one_line_and_exit_with_status_2(place, call, change, message):
    status, _, said = call("run", "own/my.toml", "--set", change)
    assert status == 2
    assert said.startswith(message)
    assert said.count("\n") == 1
    assert not (place.parent / "results").exists()


@pytest.mark.parametrize(
    ("partition", "sizes"),
    [
        ({"kind": "by_value", "column": "smoker"}, [2, 3]),
        ({"kind": "quantiles", "column": "age", "sizes": [1, 4]}, [1, 4]),
        ({"kind": "iid", "sizes": [0.8, 0.2]}, [4, 1]),
        ({"kind": "shards", "shards_per_machine": 1}, [3, 2]),
    ],
)
def test_a_tables_column_may_decide_the_split(place, partition, sizes):
    raw = tomllib.loads(TOML)
    raw["problem"] |= {"partition": partition}
    raw["problem"]["options"] |= {"test_fraction": 0.4}
    raw["participation"] |= {"machines": 2}
    if partition["kind"] == "by_value":
        del raw["participation"]["machines"]
    parsed = experiment.parse(raw, place)
    assert parsed.participation.machines == 2
    problem = experiment.make_problem(parsed.problem, 2)
    found = (
        sorted(problem.partition_table.sizes)
        if partition["kind"] in ("by_value", "shards")
        else problem.partition_table.sizes
    )
    assert list(found) == (sorted(sizes) if partition["kind"] in ("by_value", "shards") else sizes)


@pytest.mark.parametrize("kind", ["by_value", "quantiles"])
def test_a_column_with_unknown_values_decides_no_split(place, kind):
    raw = tomllib.loads(TOML)
    del raw["problem"]["options"]["fill"]["age"]
    raw["problem"]["options"]["features"] = ["income"]
    del raw["problem"]["options"]["bounds"]["age"]
    raw["problem"] |= {"partition": {"kind": kind, "column": "age"}}
    raw["participation"] |= {"machines": 2}
    with pytest.raises(Refusal, match=r"^column 'age' must have a value in every row, got 1 missing \(first in row 3 "):
        listed.jobs(experiment.parse(raw, place))


def test_machines_without_records_are_dropped_on_request():
    raw = {**RAW, "problem": {"dataset": "digits", "partition": {"kind": "dirichlet", "alpha": 0.01}}}
    raw["participation"] = {"kind": "full", "machines": 40, "rounds": 1}
    with pytest.raises(Refusal, match=r"^every machine must have an example, got none for machines "):
        listed.jobs(experiment.parse(raw))
    raw["problem"]["partition"]["empty"] = "drop"
    (job,) = listed.jobs(experiment.parse(raw))
    start = job.prepare().first
    assert start.plan.size.machines == start.problem.partition_table.sizes.size < 40
    assert (start.problem.partition_table.sizes > 0).all()


def test_a_user_defined_function_returns_the_data(place):
    parsed = changed(place)
    assert experiment.parse(experiment.to_mapping(parsed), place) == parsed
    assert made(parsed).examples == 24
    other = made(changed(place, options={"rows": 24, "seed": 1}))
    assert not np.array_equal(other.pool.features, made(parsed).pool.features)
    whole = made(changed(place, dataset="mine:whole", options={}))
    assert (whole.examples, whole.constraint.radius) == (4, 1.0)


@pytest.mark.parametrize(
    ("settings", "loss"),
    [
        ({"loss": {"kind": "mine:make_loss", "width": 0.5}}, Huber(0.5)),
        ({"loss": {"kind": "fedprivjax:Huber", "width": 0.5}}, Huber(0.5)),
        ({"loss": "mine:loss"}, Huber(0.25)),
        ({"loss": {"kind": "mine:loss"}}, Huber(0.25)),
    ],
)
def test_a_custom_loss(place, settings, loss):
    parsed = changed(place, **settings)
    assert made(parsed).model.loss == loss
    raw = tomllib.loads(tomli_w.dumps(experiment.to_mapping(parsed)))
    assert experiment.parse(raw, place) == parsed


def test_a_custom_model_is_a_module_or_a_function_of_a_whole_problem(place):
    network = changed(place, model={"kind": "mine:Net", "width": 3, "start_seed": 2})
    assert made(network).dimension == 4 * 3 + 4  # a layer of three, and the scores
    general = changed(place, dataset="mine:general", options={})
    problem = made(general)
    assert problem.start["w"].shape == (3,)
    assert float(problem.model.value({"w": np.array([1.0, 0, 0])}, (np.array([0.5, 0, 0]), 0.25))) == 0.0625
    for parsed in (network, general):
        assert experiment.parse(tomllib.loads(tomli_w.dumps(experiment.to_mapping(parsed))), place) == parsed


@pytest.mark.slow
def test_custom_metrics_are_recorded_shown_and_used_for_tuning(place, call):
    raw = {**RAW, "evaluation": {"metrics": ["mine:length", "mine:largest", "test_loss"], "select": "largest"}}
    raw["protocol"] = [{**RAW["protocol"][0], "grid": {"step_scale": [0.5, 2.0]}}]
    (place / "metrics.toml").write_text(tomli_w.dumps(raw), encoding="utf-8")
    status, said, _ = call("run", "own/metrics.toml", "--out", "there")
    assert status == 0, said
    said = " ".join(said.split())
    assert "length, mean over" in said
    assert "largest, mean over" in said
    assert "length (not known), largest (not known)" in said
    results = folder.load(place.parent / "there")["noisy_sgd"]
    assert {"length", "largest"} < set(results.data_vars)
    parsed = experiment.load(place / "metrics.toml")
    best = selected(parsed, {"noisy_sgd": results})["noisy_sgd"]
    last = (
        results["largest"].sel(iterate="output", drop=True)
        if "iterate" in results["largest"].dims
        else results["largest"]
    )
    means = last.isel(round=-1).mean("seed")
    assert float(best["best_step_scale"]) == float(means.idxmax("step_scale"))


def test_a_module_may_lie_in_the_working_directory(place, monkeypatch):
    (place / "elsewhere.py").write_text(OWN, encoding="utf-8")
    raw = {**RAW, "problem": {"dataset": "elsewhere:load", "options": {"rows": 24}}}
    with pytest.raises(Refusal, match=r"must be installed, next to the experiment file, or in the working dir"):
        experiment.parse(raw, place.parent / "results")
    monkeypatch.chdir(place)
    assert made(experiment.parse(raw, place.parent / "results")).examples == 24


def test_a_run_loads_its_data_once(place):
    (place / "people.py").write_text(OWN, encoding="utf-8")
    (place / "counted.py").write_text(COUNTED, encoding="utf-8")
    parsed = changed(place, dataset="counted:again")
    first, _ = experiment.make_data(parsed.problem, 4)
    assert experiment.make_data(parsed.problem, 2)[0] is first
    assert np.array_equal(made(parsed).pool.label, first.labels)
    fewer, _ = experiment.make_data(parsed.problem.model_copy(update={"options": {"rows": 12}}), 4)
    assert len(fewer.labels) == 12


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"problem": {"dataset": "mine:lod"}}, "unknown dataset in mine 'lod', did you mean 'load'?"),
        ({"problem": {"dataset": "mine:load"}}, "dataset 'mine:load' needs the option rows"),
        (
            {"problem": {"dataset": "mine:load", "options": {"rows": 3, "sed": 1}}},
            "unknown mine:load option 'sed', did you mean 'seed'?",
        ),
        ({"problem": {"dataset": "mine:number"}}, "dataset 'mine:number' must be a function that returns a dataset"),
        (
            {"problem": {"dataset": "math:tau"}},
            "dataset 'math:tau' must be a function that returns a dataset, got 6.2",
        ),
        (
            {"problem": {"dataset": "sys:maxunicode"}},  # of a module without a file
            "dataset 'sys:maxunicode' must be a function that returns a dataset, got 1114111",
        ),
        (
            {"problem": {"dataset": "mine:make_loss", "options": {"width": 0.5}}},
            "dataset 'mine:make_loss' must return a fedprivjax Dataset, Stream or Problem, got ",
        ),
        (
            {"problem": {"dataset": "mine:whole", "radius": 2.0}},
            "problem.radius must be left out: 'mine:whole' returns",
        ),
        (
            {"problem": {"dataset": "mine:load", "options": {"rows": 9}, "loss": "mine:number"}},
            "loss 'mine:number' must be a LinearLoss, got 3",
        ),
        (
            {"problem": {"dataset": "mine:load", "options": {"rows": 9}, "loss": "mine:make_loss"}},
            "loss 'mine:make_loss' must be given its options in its table, got missing a required argument: 'width'",
        ),
        (
            {"problem": {"dataset": "mine:load", "options": {"rows": 9}, "model": "mine:Nett"}},
            "unknown model in mine 'Nett', did you mean 'Net'?",
        ),
        (
            {"evaluation": {"metrics": ["mine:number"]}},
            "metric 'mine:number' must be a function (problem, snapshot) -> scalar",
        ),
        ({"evaluation": {"metrics": ["mine:lenght"]}}, "unknown metric in mine 'lenght', did you mean 'length'?"),
        ({"evaluation": {"metrics": ["nowhere:x"]}}, "metric module 'nowhere' must be installed, next to"),
    ],
)
def test_missing_objects_and_wrong_types_are_refused(place, change, message):
    with pytest.raises(Refusal) as caught:
        listed.jobs(experiment.parse({**RAW, **change}, place))
    assert str(caught.value).startswith(message)


def test_tables_of_equal_name_in_two_folders_are_distinct(place):
    other = place.parent / "other"
    other.mkdir()
    for name in ("awkward.csv", "my.toml"):
        (other / name).write_bytes((place / name).read_bytes())
    first, second = (listed.jobs(experiment.load(each / "my.toml"))[0].identity for each in (place, other))
    assert first != second


def test_a_changed_table_is_read_again(place):
    path = place / "awkward.csv"
    before = datasets.read_table(path, "smoker", features=["income"], bounds={"income": [0, 1e5]}, test_fraction=0)
    text = path.read_text(encoding="utf-8").replace("1e4", "2e4")
    path.write_text(text + "\n", encoding="utf-8")
    after = datasets.read_table(path, "smoker", features=["income"], bounds={"income": [0, 1e5]}, test_fraction=0)
    assert (before.features[0, 0], after.features[0, 0]) == pytest.approx((-0.8, -0.6))
    assert replace(after, machine_of=None).columns["income"][0] == 2e4


def test_built_in_datasets_are_shared_by_experiments():
    options = {"examples": 40, "features": 12}
    one, two = Source.of("clusters"), Source.of("clusters")
    assert one.load(options) is two.load(dict(options))
    assert one.load(options) is not two.load({**options, "seed": 1})
