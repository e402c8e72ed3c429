"""Published results: the same for all secret samples and cohorts, and for all numbers of records that are hidden."""

import json
import pickle
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from uncomputed import compute_nothing

import fedprivjax as fpj
from fedprivjax import FedAvg, Full, LocalSGD, NoisyMinibatchSGD, PoissonCohorts, SecretSubsets, Softmax, Uniform
from fedprivjax import experiment as experiments
from fedprivjax.cli import outcome
from fedprivjax.engine import simulate as simulation
from fedprivjax.engine.prepare import ready
from fedprivjax.engine.published import published_plan
from fedprivjax.experiment import folder
from fedprivjax.experiment.inputs import inputs_of
from fedprivjax.experiment.jobs import jobs
from fedprivjax.experiment.run import run_jobs
from fedprivjax.layout.text_table import plain
from fedprivjax.leaderboards.leaderboard import entries
from fedprivjax.plan import draw
from fedprivjax.plan.samplers import Cyclic, LocalEpochs, LocalSteps, Poisson, Replacement, Subset
from fedprivjax.plan.uses import DataUsed, data_used
from fedprivjax.report.display import tables
from fedprivjax.report.guarantees import guarantee_tables
from fedprivjax.report.page import write_page
from fedprivjax.report.run_plots import plots_of_first
from fedprivjax.report.summary import summary
from fedprivjax.sweeps import execute as execution
from fedprivjax.sweeps.prepare import ready_sweep
from fedprivjax.sweeps.schema import PARAMS

FULL, COHORTS = {"kind": "full"}, {"kind": "poisson_cohorts", "rate": 0.5}
RECORD = {"name": "noisy_minibatch_sgd", "batch": 2, "clip": 1.0, "step_size": 0.1}
MACHINE = {"name": "fedavg", "unit": "machine", "update_clip": 1.0, "step_size": 0.1}
ADDED = {"relation": "add-or-remove-one"}
LOCAL = {"name": "local_sgd", "batch": 2, "clip": 1.0, "step_size": 0.1}
STEPS = {**MACHINE, "local_steps": 2, "batch": 3}
slow = pytest.mark.slow
PLANS = {  # protocol and participation of an experiment whose samples or cohorts are secret
    "poisson": (RECORD | {"sampler": "poisson"}, FULL),
    "poisson of a rate": (RECORD | ADDED | {"sampler": "poisson", "rate": 0.1}, FULL),
    "subset": (RECORD | {"sampler": "subset"}, FULL),
    "replacement": (RECORD | {"sampler": "replacement"}, FULL),
    "local steps": (LOCAL, FULL),
    "cohorts": (MACHINE | ADDED | {"local_epochs": 1, "batch": 5}, COHORTS),
    "subsets of machines": (MACHINE | {"local_epochs": 1}, {"kind": "secret_subsets", "per_round": 2}),
    "samples in cohorts": (STEPS | ADDED, COHORTS),
    "dropouts": (STEPS | {"sampler": "poisson"}, COHORTS | {"dropouts": 0.3}),
}
FAST = ("poisson",)
CASES = [pytest.param(name, marks=[] if name in FAST else slow) for name in PLANS]


@pytest.fixture
def other_sample(monkeypatch):
    """Function that replaces the streams of samples, and of cohorts if they are secret, by others."""

    def salted(salt, cohorts):
        monkeypatch.setattr(draw, "samples_rng", lambda seeds: np.random.default_rng([salt, seeds.samples]))
        if cohorts:
            monkeypatch.setattr(draw, "participation_rng", lambda seeds: np.random.default_rng([salt, seeds.noise]))

    return salted


@pytest.fixture
def nothing_computed(monkeypatch):
    compute_nothing(monkeypatch)


def experiment_of(protocol, participation):
    return experiments.parse(
        {
            "title": "two samples",
            "problem": {
                "dataset": "logistic",
                "options": {"examples": 60, "features": 3},
                "partition": {"kind": "iid", "sizes": [20, 20, 14, 6]},
                "lipschitz": 1.0,
            },
            "participation": {"machines": 4, "rounds": 5, **participation},
            "protocol": [{"label": "method", **protocol}],
            "sweep": {"noise_std": [1.0], "seeds": 3, "keep": ["params"]},
        }
    )


def files_of(made, todo, into):
    """Return what an experiment publishes: datasets, texts of files without dates, and the privacy command's table."""
    folder.claim(into, made, inputs_of(made, todo))
    folder.save(run_jobs(todo), into, "small", 1.0, {"experiment": "two", "command": "fedprivjax run two"})
    results = fpj.load(into)
    this = summary(made, results.best)
    write_page(this, results, {}, plots_of_first(this, todo))
    origin = results.provenance
    texts = {file.name: file.read_text() for file in into.iterdir() if file.suffix != ".nc"}
    texts = {name: text.replace(origin["date"], "date") for name, text in texts.items()}
    texts["rows"] = entries(results)[0].to_json().replace(origin["date"], "date")
    texts |= {"printed": str(tables(this)), "results": str(results).replace(origin["date"], "").replace(str(into), "")}
    texts["privacy"] = "\n".join(plain(table) for table in guarantee_tables(todo, 1e-5))
    return results["method"], texts


def fields_of(start, into):
    """Return what one run publishes: every field of `Run`, its texts and its file."""
    found = simulation.execute(start)
    found.save(into)
    found.costs.pop("seconds")
    told = {field.name: getattr(found, field.name) for field in fields(found)}
    told["guarantee"] = found.guarantee.to_json(), str(found.guarantee)
    public = told.pop("plan").public
    told["plan"] = repr(public), {each.name: repr(getattr(public, each.name)) for each in fields(public)}
    saved = json.loads(Path(into, "run.json").read_text())
    saved["costs"].pop("seconds")
    return {**{name: repr(value) for name, value in told.items()}, "run.json": saved, "ready": repr(start)}


@pytest.mark.parametrize("name", CASES)
def test_two_secret_samples_publish_the_same(name, tmp_path, other_sample, nothing_computed):
    protocol, participation = PLANS[name]
    made, found, plans = experiment_of(protocol, participation), [], []
    for salt in (1, 2):
        other_sample(salt, participation is not FULL)
        todo = jobs(made)
        drawn = [(start, start.plan.samples) for start in todo[0].prepare().starts]  # secret samples, on first use
        start = drawn[0][0]
        found.append((*files_of(made, todo, tmp_path / f"{salt}"), fields_of(start, tmp_path / f"run {salt}")))
        plans.append(start.plan)
    realised = [(plan.times_used, plan.used, plan.schedule.present.sum()) for plan in plans]
    assert not np.array_equal(plans[0].samples, plans[1].samples)
    assert realised[0] != realised[1] or name in ("subset", "subsets of machines"), "a realised size would differ"
    (data, texts, told), (other, other_texts, other_told) = found
    private = [each for each in data.data_vars if "round" in data[each].dims]
    xr.testing.assert_identical(data.drop_vars([*private, PARAMS]), other.drop_vars([*private, PARAMS]))
    assert set(texts) >= {"spec.toml", "inputs.json", "provenance.json", "report.html"}
    for file, text in texts.items():
        assert text == other_texts[file], file
    for field, value in told.items():
        assert value == other_told[field], field


def owned(*sizes):
    """Return a problem whose machines have these numbers of records."""
    ends = np.cumsum(sizes)
    rows = np.full((len(sizes), max(sizes)), -1)
    for machine, (end, size) in enumerate(zip(ends, sizes, strict=True)):
        rows[machine, :size] = np.arange(end - size, end)
    numbers, labels = np.eye(ends[-1], 3), np.arange(ends[-1]) % 2
    test = np.eye(4, 3), np.arange(4) % 2
    return fpj.linear_problem(numbers, labels, Softmax(2), feature_bound=1.0, partition_table=rows, test=test)


@pytest.mark.parametrize(("name", "drawn"), [pytest.param("subset", True, marks=slow), ("cohorts", False)])
def test_the_partition_is_drawn_unless_its_sizes_are_private(name, drawn, tmp_path, monkeypatch, nothing_computed):
    asked = []
    monkeypatch.setattr(outcome, "_partition_plot", asked.append)
    monkeypatch.setattr("fedprivjax.report.plots.all_plots", lambda this: {})
    made = experiment_of(*PLANS[name])
    folder.claim(tmp_path, made)
    folder.save(run_jobs(jobs(made)), tmp_path)
    outcome.show(made, fpj.load(tmp_path), tmp_path)
    assert asked == [made] * drawn


STEP = {"step_size": 0.1, "batch": 2}
HIDING = {
    "added record": (NoisyMinibatchSGD(sampler="poisson", rate=0.2, clip=1.0, **ADDED, **STEP), Full(4), 0.2),
    "machine": (FedAvg(unit="machine", local_epochs=2, update_clip=1.0, **STEP), Uniform(4, 2), 1.0),
    "added machine": (FedAvg(unit="machine", local_epochs=2, update_clip=1.0, **ADDED, **STEP), Full(4), 2.0),
    "samples": (FedAvg(unit="machine", local_steps=3, update_clip=1.0, **STEP), PoissonCohorts(4, 0.5), np.nan),
    "machines of a rate": (
        FedAvg(unit="machine", local_steps=3, update_clip=1.0, sampler="poisson", rate=0.1, **STEP),
        PoissonCohorts(4, 0.5),
        0.15,
    ),
}


@pytest.mark.parametrize("name", HIDING)
@pytest.mark.filterwarnings("ignore:delta exceeds")
def test_nothing_tells_a_number_of_records_that_the_relation_hides(name, nothing_computed):
    protocol, participation, uses = HIDING[name]
    texts, costs, datasets = [], [], []
    for sizes in ((5, 5, 5, 5), (5, 9, 5, 200)):
        options = {"over": {"noise_std": [1.0]}, "rounds": 5, "metrics": ["test_loss"], "seeds": 3, "delta": 0.01}
        start = ready_sweep(protocol, owned(*sizes), participation, **options)
        data = execution.execute(start)
        datasets.append(data.assign_attrs(data=""))
        texts.append([str(fpj.table(data)), *map(str, start.methods().values()), str(start.first.plan)])
        costs.append(start.first.costs)
        assert data.attrs.keys().isdisjoint({"data_used", "weights"})
        assert "delta_warning" not in data.attrs or "machines" in data.attrs["delta_warning"]
    xr.testing.assert_identical(*datasets)
    assert texts[0] == texts[1]
    assert repr(costs[0]) == repr(costs[1])
    np.testing.assert_allclose(costs[0]["gradients_per_record"], 5 * uses)


def test_sizes_are_told_if_a_record_is_replaced_or_they_are_public():
    sizes = owned(5, 9, 5, 20)
    start = ready(NoisyMinibatchSGD(noise_std=1.0, clip=1.0, sampler="poisson", **STEP), sizes, Full(4), rounds=5)
    assert start.published.data_used.endswith(" of 39 examples (61.2%), expected")
    assert start.published.weights.startswith("every machine counts equally: machine 0 (5 of 39 records)")
    public = FedAvg(unit="machine", local_epochs=1, update_clip=1.0, noise_std=1.0, **STEP)
    drawn = ready(public, sizes, fpj.BySize(4, 2, [1, 2, 1, 4]), rounds=3)
    assert "of 39 examples" in drawn.published.data_used


def test_a_transcripts_plan_has_no_samples_that_tell_private_sizes():
    machine = FedAvg(unit="machine", local_epochs=1, update_clip=1.0, noise_std=1.0, **STEP)
    start = ready(machine, owned(5, 9), Full(2), rounds=2)
    plan = published_plan(start)
    assert (plan.samples.size, plan.weights.size, plan.examples) == (0, 0, None)
    np.testing.assert_array_equal(plan.schedule.participants, start.plan.schedule.participants)
    record = ready(fpj.NoisySGD(noise_std=1.0, clip=1.0, step_size=0.1), owned(5, 9), Full(2), rounds=2)
    np.testing.assert_array_equal(published_plan(record).samples, record.plan.samples)


DERIVED = ("slot_classes", "all_records")


@pytest.mark.parametrize("name", ["machine", "added record"])
@pytest.mark.filterwarnings("ignore:delta exceeds")
def test_a_runs_public_plan_and_protocol_tell_no_private_size(name, nothing_computed):
    """Neither by samples and classes of local steps, nor by values that a public schedule caches of them."""
    (protocol, participation, _), found = HIDING[name], []
    for sizes in ((5, 5, 5, 5), (5, 9, 5, 200)):
        start = ready(protocol.replace(noise_std=1.0), owned(*sizes), participation, rounds=5, delta=0.01)
        run = simulation.execute(start)
        public = run.plan.public
        assert (public.samples.size, public.weights.size, public.data_used, public.secret) == (0, 0, "", True)
        assert run.plan.samples.size, "the run's own plan has them"
        found.append((pickle.dumps(public), *(getattr(run.protocol.known, name, None) for name in DERIVED)))
    assert found[0] == found[1]


def test_a_private_size_is_warned_of_and_not_published():
    added = NoisyMinibatchSGD(noise_std=1.0, sampler="poisson", rate=0.2, clip=1.0, **ADDED, **STEP)
    with pytest.warns(UserWarning, match=r"n = 200 records.*No guarantee covers this warning"):
        start = ready(added, owned(5, 200), Full(2), rounds=2, delta=0.01)
    assert start.published.delta_warning == ""


# ---- expected values

UNEVEN = owned(3, 8, 8, 6)
DRAWS = {
    "poisson": (Poisson(2), Uniform(4, 2)),
    "rate": (Poisson(2, rate=0.3), Full(4)),
    "subset": (Subset(2), Uniform(4, 3)),
    "replacement": (Replacement(3), Uniform(4, 3)),
    "local steps": (LocalSteps(3, Poisson(2)), Uniform(4, 2)),
    "cohorts": (LocalEpochs(2, 2), PoissonCohorts(4, 0.4)),
    "both": (LocalSteps(2, Subset(2)), PoissonCohorts(4, 0.4)),
    "subsets": (Poisson(2), SecretSubsets(4, 2)),
    "dropouts": (LocalEpochs(1, 2), fpj.Dropouts(PoissonCohorts(4, 0.5), 0.3)),
    "slices": (Cyclic(1), PoissonCohorts(4, 0.4)),
}


QUICK = ("poisson", "local steps", "cohorts", "slices")


@pytest.mark.parametrize("name", [pytest.param(name, marks=[] if name in QUICK else slow) for name in DRAWS])
def test_expected_values_are_those_of_many_draws(name):
    """Means of realised numbers of uses and of used records, and not 2/3 or 3/2 of the uses."""
    sampler, scheme = DRAWS[name]
    seeds = [fpj.Seeds(seed if scheme.secret else 1, seed, 0) for seed in range(200)]
    plans = [fpj.draw_plan(UNEVEN, scheme, 5, seed, sampler=sampler) for seed in seeds]
    realised = np.array([(plan.times_used, plan.used) for plan in plans], float)
    found = data_used(UNEVEN, plans[0])
    assert found.expected
    expected = np.array([found.uses * 25, found.records])
    error = 4 * realised.std(axis=0) / np.sqrt(len(plans)) + 1e-9 * expected
    assert (abs(realised.mean(axis=0) - expected) <= error).all()
    assert all(abs(realised[:, 0].mean() - scale * expected[0]) > error[0] for scale in (2 / 3, 3 / 2))


@pytest.mark.parametrize(("records", "text"), [(335.0, "335"), (334.96, "335"), (24.06, "24.1")])
def test_a_whole_number_of_examples_has_no_decimal(records, text):
    assert str(DataUsed(1.0, 1.0, records, 336, True, 1.0)).startswith(f"{text} of 336 examples")


def test_twenty_records_of_two_on_average():
    """One round of a Poisson sample of 2 of 20 records uses 2 on average, whatever the seed."""
    problem = owned(20)
    method = NoisyMinibatchSGD(noise_std=1.0, sampler="poisson", clip=1.0, **STEP)
    found = [ready(method, problem, Full(1), rounds=1, seed=seed) for seed in range(4)]
    assert len({start.plan.used for start in found}) > 1
    assert {start.published.data_used for start in found} == {"2 of 20 examples (10%), expected"}
    assert {start.costs["gradients_per_record"] for start in found} == {0.1}
    local = LocalSGD(noise_std=1.0, clip=1.0, **STEP)
    assert ready(local, problem, Full(1), rounds=3).published.expected == ("gradients_per_record",)
    public = replace(found[0].plan, secret=False)
    assert not data_used(problem, public).expected
