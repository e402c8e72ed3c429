"""What is computed from private records before a run: partitions by labels, machines found in the data, checksums."""

import numpy as np
import pandas as pd
import pytest
from uncomputed import compute_nothing

import fedprivjax as fpj
from fedprivjax import Ball, DPMu2, FedAvg, Full, datasets, experiment, from_dataset, guarantee_of
from fedprivjax.datasets import partition, table
from fedprivjax.datasets.partition import BY_VALUES, KINDS
from fedprivjax.engine import simulate as simulation
from fedprivjax.engine.prepare import ready
from fedprivjax.experiment import folder
from fedprivjax.experiment.jobs import jobs
from fedprivjax.experiment.run import run_jobs
from fedprivjax.report.page import not_covered
from fedprivjax.sweeps.prepare import ready_sweep

LABELS = np.arange(120) % 3
DATA = datasets.from_arrays(np.eye(3)[LABELS], LABELS, feature_bound=2.0, classes=3, name="three")
RECORD = DPMu2(mu=1.0, clip=1.0, step_size=0.1)
MACHINE = FedAvg(unit="machine", local_epochs=1, update_clip=1.0, noise_std=1.0, step_size=0.1)


def problem_of(kind):
    alpha = 5.0 if kind == "dirichlet" else None
    rows = table(partition(LABELS, 3, kind=kind, classes_per_machine=1, alpha=alpha, seed=1))[0]
    return from_dataset(DATA, constraint=Ball(1.0), partition_table=rows)


def test_one_label_moves_other_records():
    before = [set(part.tolist()) for part in partition(LABELS, 10, kind="dirichlet", alpha=5.0, seed=3)]
    changed = np.where(np.arange(120) == 60, 1, LABELS)
    after = [set(part.tolist()) for part in partition(changed, 10, kind="dirichlet", alpha=5.0, seed=3)]
    assert sum(len(one - other) for one, other in zip(before, after, strict=True)) > 20


@pytest.mark.parametrize("kind", KINDS)
def test_a_partition_by_labels_is_named_as_not_covered(kind):
    """In the run's facts, the guarantee's text and the dataset. A replaced record moves no other by its own value."""
    start = ready(RECORD, problem_of(kind), Full(3), rounds=3, metrics=())
    text = f"which machine holds a record, a partition by private values ({kind})"
    assert start.published.not_covered == ((text,) if kind in BY_VALUES else ())
    for said in (str(start.guarantee), start.guarantee.paragraph(), start.guarantee.to_json()):
        assert (text in said) == (kind in BY_VALUES)


def test_machines_found_in_the_data_are_not_covered_for_a_machine():
    frame = pd.DataFrame({"x": np.arange(12.0), "who": list("abcabcabcabc"), "y": np.arange(12) % 2})
    options = {"bounds": {"x": [0, 11]}, "classes": [0, 1], "client": "who", "test_fraction": 0}
    found, given = (
        from_dataset(datasets.from_frame(frame, "y", **options, **more)) for more in ({}, {"clients": list("abc")})
    )
    text = "the machines, which are the values of 'who' in the data"
    of = {
        (name, method is MACHINE): ready(method, problem, Full(3), rounds=3, metrics=()).published.not_covered
        for name, problem in (("found", found), ("given", given))
        for method in (RECORD, MACHINE)
    }
    assert of == {("found", True): (text,), ("found", False): (), ("given", True): (), ("given", False): ()}
    by_value = ready(MACHINE, problem_of("by_value"), Full(3), rounds=3, metrics=())
    assert by_value.published.not_covered == ("the machines, which are the values in the data",)


def test_results_name_partition_and_checksums(tmp_path, monkeypatch):
    compute_nothing(monkeypatch)
    problem = problem_of("dirichlet")
    run = simulation.execute(ready(RECORD, problem, Full(3), rounds=2, metrics=()))
    run.save(tmp_path)
    text = "which machine holds a record, a partition by private values (dirichlet)"
    assert run.non_private_data == fpj.load_run(tmp_path).non_private_data == (text,)
    start = ready_sweep(RECORD.replace(mu=None), problem, Full(3), over={"mu": [1.0]}, rounds=2, seeds=1)
    attributes = start.attributes()
    assert attributes["non_private_data"] == text
    named = attributes["non_private_attributes"]
    assert named == "data: unsalted checksums of private data, not covered by a guarantee"
    assert set(named.split(":")[:1]) <= attributes.keys()


def test_the_page_and_the_provenance_name_them(tmp_path, monkeypatch):
    compute_nothing(monkeypatch)
    made = experiment.parse(
        {
            "title": "split",
            "problem": {
                "dataset": "logistic",
                "radius": 2.0,
                "options": {"examples": 60, "features": 3},
                "partition": {"kind": "dirichlet", "alpha": 5.0},
            },
            "participation": {"kind": "full", "machines": 3, "rounds": 2},
            "protocol": [
                {"name": "fedavg", "unit": "machine", "update_clip": 1.0, "local_epochs": 1, "step_size": 0.1}
            ],
            "sweep": {"noise_std": [1.0], "seeds": 1},
            "evaluation": {"metrics": ["test_loss"]},
        }
    )
    found = run_jobs(jobs(made))
    folder.claim(tmp_path, made)
    folder.save(found, tmp_path)
    (data,) = found.values()
    text = "which machine holds a record, a partition by private values (dirichlet)"
    assert f"Computed from private records: {text}." in not_covered({"fedavg": data})
    assert text in str(guarantee_of(data.isel(noise_std=0)))
    assert "The plot of the partition" in "".join(not_covered({"fedavg": data}, drawn=True))
    origin = fpj.load(tmp_path).provenance
    assert origin["not_covered"] == "data_sha256: unsalted checksums of private data, not covered by a guarantee"
    assert "data_sha256" in origin
