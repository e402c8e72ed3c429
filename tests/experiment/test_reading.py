"""Reading of finished results without importing user code."""

import shutil
import sys
from dataclasses import replace

import numpy as np
import pytest
import tomli_w
from cases import sparing

import fedprivjax as fpj
from fedprivjax import Refusal, cli, experiment
from fedprivjax.experiment import folder
from fedprivjax.experiment import jobs as listed
from fedprivjax.experiment import run as runner
from fedprivjax.experiment.names import Unimported
from fedprivjax.sweeps.schema import metric_words

EVIL = """
from pathlib import Path
Path(__file__).with_name("imported").touch()
raise RuntimeError("imported")
"""
RAW = {
    "title": "handed on",
    "problem": {"dataset": "least_squares", "options": {"examples": 30, "features": 3}, "radius": 2.0},
    "participation": {"machines": 6, "per_round": 3, "rounds": 2},
    "protocol": [{"name": "dp_mu2", "label": "ours", "grid": {"step_size": [0.1, 0.2]}}, {"name": "noisy_sgd"}],
    "sweep": {"mu": [1, 2], "seeds": 2},
    "evaluation": {"select": "excess_risk"},
}
PROTOCOL = {**RAW["protocol"][0], "name": "evilmod:MyP"}
SERVER = {"name": "noisy_minibatch_sgd", "label": "ours", "batch": 1, "grid": PROTOCOL["grid"]}
CHOICE = {"problem": {"dataset": "clusters", "options": {}}}
CHANGES = {
    "protocol": {"protocol": [{**PROTOCOL, "depth": 3, "part": {"kind": "evilmod:part"}}]},
    "protocol with sweep": {"protocol": [PROTOCOL], "sweep": {"mu": [1, 2], "depth": [3], "part.size": [1]}},
    "server optimiser": {"protocol": [{**SERVER, "server": {"kind": "evilmod:adam"}}]},
    "loss": {"problem": {**RAW["problem"], "loss": {"kind": "evilmod:loss", "width": 1.0}}},
    "model": {"problem": {**RAW["problem"], "model": {"kind": "evilmod:Net", "width": 3}}},
    "constraint": {"problem": {**RAW["problem"], "radius": None, "constraint": "evilmod:Set"}},
    "metric": {"evaluation": {"metrics": ["excess_risk", "evilmod:largest"], "select": "excess_risk"}},
    "dataset": {"problem": {"dataset": "evilmod:load", "options": {"rows": 3}, "loss": "squared", "radius": 2.0}},
    "participation": {"participation": {"kind": "evilmod:Law", "machines": 6, "rate": 0.5}},
    "own participation": {"protocol": [{**PROTOCOL, "name": "dp_mu2", "participation": {"kind": "evilmod:Law"}}]},
    "feature map": {"problem": {**RAW["problem"], "features": ["unit_norm", {"kind": "evilmod:Map", "size": 2}]}},
    "choice": {"protocol": [PROTOCOL], "tuning": CHOICE},
    "choice's data": {"tuning": {**CHOICE, "problem": {"dataset": "evilmod:load", "options": {}}}},
    "no machines": {"participation": {"per_round": 3}, "problem": {"dataset": "evilmod:load", "radius": 2.0}},
}


def without_none(value):
    return {key: without_none(v) for key, v in value.items() if v is not None} if isinstance(value, dict) else value


@pytest.fixture(scope="module")
def found():
    return runner.run(experiment.parse(RAW))


@pytest.fixture(scope="module")
def kept(found, tmp_path_factory):
    into = tmp_path_factory.mktemp("handed") / "results"
    for place in (into, into / folder.CHOICE):
        folder.save(found, place)
    for place in (into, into.parent):
        (place / "evilmod.py").write_text(EVIL, encoding="utf-8")
    return into


@pytest.fixture
def handed(kept, monkeypatch):
    """Return a function that writes other settings next to results, with a module that reports its import."""
    monkeypatch.chdir(kept.parent)

    def write(change):
        raw = without_none({**RAW, **change})
        (kept / "spec.toml").write_text(tomli_w.dumps(raw), encoding="utf-8")
        return kept

    yield write
    assert not list(kept.parent.rglob("imported"))
    assert "evilmod" not in sys.modules


@pytest.mark.parametrize("name", sparing(list(CHANGES), ["protocol"]))
def test_no_module_is_imported(handed, name):
    change = CHANGES[name]
    into = handed(change)
    results = fpj.load(into)
    assert results.spec.title == "handed on"
    assert "step_size" not in results.best["ours"].dims
    assert set(results.choices) == ({"ours"} if "tuning" in change else set())
    with pytest.raises(Refusal, match=r"settings must be loaded to run, got '|participation.machines must be given"):
        listed.jobs(results.spec if "tuning" not in change else experiment.tuning_experiment(results.spec))


@pytest.mark.parametrize("name", sparing(["protocol", "dataset", "feature map", "metric"], ["dataset"]))
def test_the_report_imports_no_user_code(handed, name, monkeypatch, capsys):
    into = handed(CHANGES[name])
    monkeypatch.setattr(sys, "argv", ["fedprivjax", "report", str(into)])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    assert not stopped.value.code, capsys.readouterr()
    assert (into / "report.html").is_file()
    told = "data partition is not drawn: settings must be loaded to run, got 'evilmod:load'"
    assert (told in capsys.readouterr().out) == (name == "dataset")


def test_a_custom_metric_is_described_by_the_results(found, kept, handed, tmp_path):
    """Names, signs and digits of a custom metric are read from the results, not from its module."""
    metric = fpj.Metric("largest", lambda problem, snapshot: np.max, better="higher", unit="%", shown=("table",))
    words = metric_words([metric], experiment.make_problem(experiment.parse(RAW).problem, 6))
    handed(CHANGES["metric"])
    changed = {label: data.assign(largest=data["excess_risk"]) for label, data in found.items()}
    for data in changed.values():
        data["largest"].attrs = words["largest"]
    folder.save(changed, tmp_path)
    shutil.copy(kept / "spec.toml", tmp_path)
    results = fpj.load(tmp_path)
    (one,) = results.spec.evaluation.custom_metrics.values()
    assert replace(one, function=metric.function) == metric
    assert any("largest %" in sheet.title for sheet in fpj.table(results).sheets)


def test_a_bare_name_refuses_to_be_called():
    with pytest.raises(Refusal, match=r"got 'm:f' of finished results\. Load their spec\.toml with fedprivjax\.exper"):
        Unimported("m:f")(1, rate=2)


MADE = {
    "problem": lambda spec: experiment.make_problem(spec.problem, 6),
    "protocol": lambda spec: experiment.make_protocol(spec.protocol[0], spec.real_axes),
    "jobs": listed.jobs,
}


@pytest.mark.parametrize("what", MADE)
def test_settings_of_results_make_nothing(what):
    """Also if all that they name is built in."""
    spec = experiment.parse(experiment.to_mapping(experiment.parse(RAW)), recorded={})
    with pytest.raises(Refusal, match="settings must be loaded to run, got '"):
        MADE[what](spec)
