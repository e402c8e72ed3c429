"""The command `fedprivjax audit`: methods by name, experiments, custom privacy, scaled-down and one-run audits."""

import json
import sys
from pathlib import Path

import pytest
from audited import smaller

from fedprivjax import DPMu2, NoisyMinibatchSGD, Refusal, cli
from fedprivjax.auditing import of_experiment as audits
from fedprivjax.auditing.audit import VERDICT, Audit, Found
from fedprivjax.auditing.bounds import LowerBounds
from fedprivjax.auditing.neighbouring import NotAllowed, small_federation, worlds
from fedprivjax.auditing.of_experiment import (
    Chosen,
    at_level,
    audited_at,
    chosen,
    protocols_named,
    protocols_of,
    run_all,
)
from fedprivjax.auditing.small_audits import audit_label
from fedprivjax.auditing.tables import audit_table, audit_verdict, plot
from fedprivjax.experiment import load
from fedprivjax.layout.drawing import save
from fedprivjax.protocols import PROTOCOLS

SMALL = """
title = "small"

[problem]
dataset = "least_squares"
options = { examples = 320, features = 30, machines = 40 }
radius = 2.0

[participation]
machines = 40
per_round = 40
rounds = 4

[[protocol]]
name = "dp_mu2"
label = "ours"
clip = 0.5

[[protocol]]
name = "sgd"
label = "half"
step_size = 0.1
privacy = { kind = "my_module:Half", clip = 0.5 }

[sweep]
mu = [inf, 2, 4]
seeds = 2
"""

MODULE = """
from typing import Any

import numpy as np
from flax import struct

import fedprivjax as fpj


@struct.dataclass(kw_only=True)
class Half(fpj.MessagePrivacy):
    \"\"\"One that adds half of its noise, and does not say so.\"\"\"

    clip: Any = 1.0

    def mechanism(self, facts, method):
        alike = np.ones(facts.plan.schedule.participants.shape)
        return fpj.noise.choose(facts.plan.schedule, alike, facts.problem.dimension, method, cancel=False)

    def event(self, facts, noise_std):
        terms = fpj.Terms("none", "the Gaussian mechanism", (*fpj.USED_ONCE, *facts.bound.assumptions))
        takes_part = fpj.Grouped.of(facts.plan.schedule.total > 0)
        return fpj.GaussianEvent(noise_std, 2 * float(self.clip), takes_part, terms)

    def round_noise(self, state, drawn, noise_std, reads, host_noise):
        return state, 0.5 * noise_std * drawn
"""

QUICK = ("--runs", 1000, "--rounds", 8, "--participation", "fixed")


@pytest.fixture
def spec(tmp_path, monkeypatch):
    """Write an experiment and the module of a custom privacy object to the current folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_module.py").write_text(MODULE, encoding="utf-8")
    (tmp_path / "small.toml").write_text(SMALL, encoding="utf-8")
    return "small.toml"


@pytest.fixture
def call(monkeypatch, capsys):
    """`fedprivjax audit` in this process, with smaller chunks: (exit status, stdout, stderr)."""
    smaller(monkeypatch, preparing=1024)

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["fedprivjax", "audit", *map(str, arguments)])
        monkeypatch.setattr(cli.out, "_width", 200)
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        return stopped.value.code or 0, *capsys.readouterr()

    return run


# ---- the command


@pytest.mark.slow
def test_a_custom_privacy_object_with_half_its_noise_is_refuted(call, spec, tmp_path):
    status, said, errors = call(spec, *QUICK, "--protocol", "half", "--json", "found.json", "--out", "kept")
    assert (status, "Traceback" in errors) == (1, False)
    assert "half: REFUTED by likelihood ratio" in " ".join(said.split())
    saved = json.loads((tmp_path / "found.json").read_text(encoding="utf-8"))
    assert list(saved) == ["half"]
    assert "likelihood ratio" in saved["half"]["refuted_by"]
    assert saved["half"]["claimed"]["mu"] == pytest.approx(2.0)
    assert saved["half"]["scores"]["likelihood ratio"]["strict_mu_lower"] > 2.0
    assert (tmp_path / "kept" / "audit.png").read_bytes().startswith(b"\x89PNG")
    assert list((tmp_path / "kept" / "runs" / "half").glob("*.npz"))


@pytest.mark.slow
def test_an_experiments_protocols_are_audited_together(call, spec):
    status, said, _ = call(spec, *QUICK)
    assert status == 1
    ours, half = (next(line for line in said.splitlines() if f" {label} " in line) for label in ("ours", "half"))
    assert "not refuted" in ours
    assert "REFUTED" in half


def test_a_protocol_by_its_name_holds(call):
    status, said, errors = call("dp_mu2", *QUICK, "--epsilon", 8, "--delta", 1e-6)
    assert (status, errors.count("Traceback")) == (0, 0), said + errors
    row = next(line for line in said.splitlines() if "dp_mu2" in line)
    for cell in ("1e-06", " 8 ", "1000 runs per dataset", "not refuted"):
        assert cell in row


NETWORK = """
title = "network"

[problem]
dataset = "digits"
model = { kind = "mlp", clipping = "ghost" }
loss = "softmax"

[participation]
machines = 4

[[protocol]]
name = "noisy_sgd"
mu = 2.0
clip = 0.5
"""


@pytest.mark.parametrize(("given", "used"), [(None, "ghost"), ("rows", "rows")])
def test_clipped_gradients_are_computed_as_in_the_experiment(tmp_path, monkeypatch, given, used):
    file = tmp_path / "network.toml"
    file.write_text(NETWORK)
    asked = []
    monkeypatch.setattr(
        "fedprivjax.auditing.small_audits.audit",
        lambda protocol, federation, **options: asked.append(options["clipping"]),
    )
    found = chosen(str(file), lambda: load(file), None, None, None)
    attack = audits.scaled_down_audits(found, runs=1000, rounds=1, seed=0, folder=None, clipping=given)
    attack("noisy_sgd", found.protocols["noisy_sgd"], None)
    assert set(asked) == {used}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("dp_mu2", "--epsilon", 0), "epsilon must be positive"),
        (("dp_mu2", "--epsilon", -1), "epsilon must be positive"),
        (("dp_mu2", "--delta", 1), "delta must be"),
        (("dp_mu2", "--delta", 0), "delta must be"),
        (("dp_mu2", "--runs", 999), "runs must be at least 1000, got 999"),
        (("dp_mu2", "--rounds", 0), "rounds must be"),
        (("dp_mu2", "--participation", "often"), "unknown participation 'often'"),
        (
            ("dp_mu2", "--participation", "secret"),
            "nothing was audited with participation secret: trust must be 'server' under secret participation",
        ),
        (
            ("stale_momentum", "--participation", "dropouts", "--participation", "secret"),
            "nothing was audited with participation dropouts or secret: trust must be 'server'",
        ),
        (("dp_mu2", "--loss", "cubic"), "unknown loss 'cubic'"),
        (("small.toml", "--one-run", 1, "--loss", "quadratic"), "loss must be left out with --one-run"),
        (("small.toml", "--one-run", 1, "--clipping", "ghost"), "clipping must be left out with --one-run"),
        (("dp_mu2", "--clipping", "gost"), "unknown clipping 'gost', did you mean 'ghost'?"),
        (("dp_mu2", "--clipping", "ghost"), "clipping must be 'auto' or 'rows' with DPMu2, got 'ghost'"),
        (("dp_mu2", "--seed", -1), "seed must be at least 0, got -1"),
        (("dp_mu2", "--protocol", "sgd"), "unknown protocol 'sgd'"),
        (("dp_mu2", "--one-run", 1), "--one-run must go with an experiment"),
        (("dp_mu2", "--json", "nowhere/found.json"), "--json must be in a folder that exists"),
        (("dp_mu3",), "unknown protocol 'dp_mu3', did you mean 'dp_mu2'?"),
        (("dp-mu-3000",), "unknown experiment 'dp-mu-3000'"),
        (("small.toml", "--one-run", 9), "each must be between 1 and"),
    ],
    ids=str,
)
def test_invalid_input_prints_one_line(call, spec, arguments, said):
    status, _, errors = call(*arguments, *(("--protocol", "ours") if "small.toml" in arguments else ()))
    assert status == 2
    assert said in errors
    assert "Traceback" not in errors
    assert errors.count("\n") == 1


def test_methods_that_are_all_refused_have_a_line_each_and_no_table(call, spec):
    status, said, _ = call("small.toml", "--runs", 999, "--out", "audits")
    assert status == 2
    assert [line.partition(": ")[0] for line in said.splitlines() if "audited at" not in line] == ["not audited"] * 2
    assert not Path("audits").exists()


def test_of_several_methods_those_not_audited_are_listed(call, spec, monkeypatch):
    def attack(label, *_):
        if label == "half":
            raise Refusal("batch must be whole")
        return {label: made_up(())}

    monkeypatch.setattr(audits, "scaled_down_audits", lambda *_, **__: attack)
    status, said, _ = call("small.toml")
    assert status == 2
    assert "not audited: half: batch must be whole" in said.splitlines()


def test_a_requested_participation_that_a_method_does_not_allow_is_named(call, spec, monkeypatch):
    monkeypatch.setattr(audits, "scaled_down_audits", lambda *_, **__: lambda label, *_: {label: made_up(())})
    kinds = ("--participation", "fixed", "--participation", "secret")
    status, said, _ = call("small.toml", "--protocol", "ours", *kinds)
    assert status == 0
    assert [line for line in said.splitlines() if line.startswith("not audited")] == [
        "not audited: ours: it does not allow participation 'secret'"
    ]


@pytest.mark.usefixtures("spec")
def test_a_method_that_allows_none_of_the_named_kinds_is_not_audited(call, monkeypatch):
    def attack(label, *_):
        if label == "half":
            raise NotAllowed("nothing was audited with participation secret: trust must be 'server'")
        return {audit_label(label, "secret"): made_up(())}

    monkeypatch.setattr(audits, "scaled_down_audits", lambda *_, **__: attack)
    status, said, _ = call("small.toml", "--participation", "secret")
    assert status == 2
    found = [line for line in said.splitlines() if line.startswith("not audited")]
    assert found == ["not audited: half: nothing was audited with participation secret: trust must be 'server'"]


def test_an_audit_replaces_none_of_another_method(call, spec, monkeypatch):
    verdicts = iter([True, False])

    def attack(*_):
        return {"ours": made_up(next(verdicts))}

    monkeypatch.setattr(audits, "scaled_down_audits", lambda *_, **__: attack)
    status, said, _ = call("small.toml")
    assert status == 1
    assert "ours: REFUTED by likelihood ratio" in said
    assert "label must differ from those of other audits, got 'ours' again. Rename one" in " ".join(said.split())


@pytest.mark.slow
def test_one_run_audit_on_the_experiments_problem(call, spec, tmp_path):
    status, said, _ = call(spec, "--one-run", 1, "--protocol", "ours", "--json", "found.json", "--out", "kept")
    assert status == 0
    saved = json.loads((tmp_path / "found.json").read_text(encoding="utf-8"))["ours"]
    assert saved["bounds"]["canaries"] == 40
    assert (tmp_path / "kept" / "audit.png").read_bytes().startswith(b"\x89PNG")
    assert saved["claimed"]["mu"] == pytest.approx(2.0)
    assert not saved["refuted"]
    assert "not refuted" in next(line for line in said.splitlines() if "ours" in line)


@pytest.mark.slow
def test_every_protocol_is_audited_or_says_why_not(call, tmp_path, monkeypatch):
    smaller(monkeypatch, preparing=512)
    monkeypatch.chdir(tmp_path)
    status, said, errors = call("all", "--runs", 1000, "--rounds", 6, "--json", "found.json")
    assert (status, errors.count("Traceback")) == (0, 0)
    audited = set(json.loads((tmp_path / "found.json").read_text(encoding="utf-8")))
    reasons = [line for line in said.splitlines() if line.startswith("not audited: ")]
    skipped = {line.split(": ")[1] for line in reasons}
    methods = {label.split(", ")[0] for label in audited}
    assert methods | skipped == set(PROTOCOLS)
    assert not methods & skipped
    assert {f"{name}, {kind}" for name in ("dp_mu2", "local_sgd") for kind in ("varying", "dropouts")} <= audited
    assert all(len(line.split(": ", 2)[2]) > 10 for line in reasons)
    assert {"dp_mu2", "noisy_sgd", "noisy_minibatch_sgd", "tree_momentum", "user_sgd"} <= audited


# ---- chosen protocols and levels


def test_an_experiments_protocols_take_the_first_finite_level(spec):
    found = protocols_of(load(spec))
    assert list(found) == ["ours", "half"]
    for protocol in found.values():
        guarantee = worlds(protocol, small_federation(protocol, 8), 0, delta=1e-5).start.guarantee
        assert guarantee.mu == pytest.approx(2.0)
    assert type(found["half"].privacy).__name__ == "Half"


def test_a_level_replaces_every_target():
    one = at_level(DPMu2(mu=9.0, clip=1.0), 2.0, 1e-5)
    assert (one.mu, one.epsilon) == (None, 2.0)
    assert at_level(NoisyMinibatchSGD(epsilon=9.0, clip=1.0, batch=3), 2.0, 1e-5).epsilon == 2.0
    assert set(protocols_named("all", 2.0, 1e-5)) == set(PROTOCOLS)
    assert list(protocols_named("dp_mu2", 2.0, 1e-5)) == ["dp_mu2"]


def test_audited_values_of_a_sweep_are_printed(spec):
    changes = {"sweep.per_round": [20, 40], "protocol.0.grid": {"step_scale": [0.5, 1.0]}}
    swept = load(spec, changes)
    ours = chosen(spec, lambda: swept, None, None, ["ours"])
    level, size = (
        f"audited at {name} that are swept" for name in ("mu = 2, of inf, 2, 4", "per_round = 20, of 20, 40")
    )
    grid = "audited at step_scale = 0.5 of ours, of 0.5, 1 that are swept"
    assert audited_at(ours, None, sizes=False) == [level, grid]
    assert audited_at(ours, 2.0, sizes=True) == [size, grid]
    assert audited_at(ours._replace(protocols={"half": None}), None, sizes=False) == [level]
    assert audited_at(chosen("dp_mu2", lambda: swept, None, None, None), None, sizes=True) == []


def test_error_probability_is_divided_among_protocols(spec):
    assert chosen("dp_mu2", dict, 2.0, None, None).verdict == VERDICT
    picked = chosen(spec, lambda: load(spec), None, None, None)
    assert picked.verdict == VERDICT / 2
    assert list(chosen(spec, lambda: load(spec), None, None, ["half"]).protocols) == ["half"]


def test_a_refused_audit_does_not_stop_the_others():
    class Shown:
        def __enter__(self):
            return None

        def __exit__(self, *error):
            return False

    def attack(label, protocol, progress):
        if label == "bad":
            raise Refusal("batch must be whole")
        return {label: protocol}

    several = Chosen({"bad": 1, "good": 2}, 1e-5)
    finished, skipped = run_all(several, attack, lambda title: Shown())
    assert finished == {"good": 2}
    assert {label: str(why) for label, why in skipped.items()} == {"bad": "batch must be whole"}
    with pytest.raises(Refusal, match="batch must be whole"):
        run_all(Chosen({"bad": 1}, 1e-5), attack, lambda title: Shown())


# ---- tables and plots


def made_up(refuted):
    """Return an audit of a real guarantee with given bounds."""
    protocol = DPMu2(mu=2.0, clip=1.0)
    guarantee = worlds(protocol, small_federation(protocol, 4), 0, delta=1e-5).start.guarantee
    bounds = LowerBounds(4.5, 1.9, 1e-5, 0.05, (3000, 3000))
    strict = LowerBounds(4.0, 2.5 if refuted else 1.5, 1e-5, 1e-5, (3000, 3000))
    return Audit("DPMu2", guarantee, (Found("likelihood ratio", bounds, strict),), 1.99, VERDICT)


def test_tables_show_claim_bounds_and_verdict(capsys, monkeypatch):
    monkeypatch.setattr(cli.out, "_width", 200)
    cli.out.print(audit_table({"one": made_up(False), "two": made_up(True)}))
    said = capsys.readouterr().out.splitlines()
    one, two = (next(line for line in said if f" {label} " in line) for label in ("one", "two"))
    for cell in ("4.5", "3000 runs per dataset", "100%", "not refuted"):
        assert cell in one
    assert "REFUTED" in two
    both = {"one": made_up(False), "two": made_up(True)}
    assert audit_verdict(both) == ["two: REFUTED by likelihood ratio", "not refuted: 1 of 2 claims"]
    assert audit_verdict({}) == []


def test_plots_have_a_panel_for_each(tmp_path):
    figure = plot({str(number): made_up(False) for number in range(2)})
    assert [axis.get_title() for axis in figure.axes if axis.axison] == [f"{number} (none)" for number in range(2)]
    (file,) = save({"audit": figure}, tmp_path / "deep" / "er")
    assert file.name == "audit.png"
    assert file.stat().st_size > 20_000
    assert not any(axis.lines for axis in plot({}).axes)
