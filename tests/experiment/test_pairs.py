"""`[[protocol]]` with a custom algorithm: its keys, its privacy object, sweeps of both, and messages."""

import re
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
import tomli_w
from cases import sparing
from small_file import FEDERATION

from fedprivjax import (
    LocalEpochs,
    LocalPrivacy,
    NoisyMessages,
    NoisyMomentum,
    NoisyRecords,
    NoisyRecordSteps,
    Quantiser,
    Refusal,
    cli,
    experiment,
    load,
)
from fedprivjax.auditing.of_experiment import protocols_of
from fedprivjax.checks.numbers import numbers_in, with_numbers
from fedprivjax.experiment import jobs as listed
from fedprivjax.experiment.read import parse, to_mapping
from fedprivjax.experiment.run import run
from fedprivjax.experiment.tuning import selected
from fedprivjax.noise.message_factors import Toeplitz
from fedprivjax.protocols import ALGORITHMS
from fedprivjax.sweeps.intervals import of_iterate
from fedprivjax.testing.tiny import tiny

FILE = (
    """
title = "custom algorithms"
"""
    + FEDERATION
    + """
[[protocol]]
name = "heavy:HeavyBall"
step_size = 0.05
SETTINGS

[sweep]
mu = [4]
seeds = 2

[evaluation]
metrics = ["test_loss"]
select = "test_loss"
every = 8
"""
)
HEAVY = """
from typing import Any

import jax
import optax
from flax import struct

from fedprivjax import Algorithm, ServerOptimizer, gradient
from fedprivjax.protocols.fedavg import LocalGradientSteps


@struct.dataclass
class HeavyBall(Algorithm):
    beta: Any = 0.9
    nesterov: bool = struct.field(pytree_node=False, default=False)
    server: ServerOptimizer | None = struct.field(default=None, metadata={"part": ServerOptimizer})

    def init(self, public, step):
        return public.start, jax.tree.map(lambda leaf: 0 * leaf, public.start)

    def message(self, server, t):
        return gradient(server[0])

    def serve(self, server, read, at):
        velocity = jax.tree.map(lambda v, g: self.beta * v + g, server[1], read)
        return at.project(jax.tree.map(lambda w, v: w - at.step * v, server[0], velocity)), velocity

    def point(self, server):
        return server[0]


@struct.dataclass
class Needy(HeavyBall):
    weight: Any = struct.field(kw_only=True)


@struct.dataclass
class Local(LocalGradientSteps):
    pass


class Bare(HeavyBall):
    pass
"""
MESSAGES = 'privacy = { kind = "messages", clip = 0.5 }'


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "heavy.py").write_text(HEAVY, encoding="utf-8")
    return tmp_path


def parsed(settings, folder, sweep=(), name="HeavyBall"):
    raw = tomllib.loads(FILE.replace("SETTINGS", settings).replace("HeavyBall", name))
    raw["sweep"] |= dict(sweep)
    return parse(raw, folder)


def made(settings, folder, **options):
    """The protocol of a file at μ = 4."""
    return parsed(settings, folder, **options).protocol[0].make({"mu": 4.0})


def test_keys_of_the_table_are_those_of_the_pair_and_of_the_algorithm(folder):
    privacy = '{ kind = "messages", clip = 1.6, trust = "server", noise = { toeplitz = 0.4 }, batch = 2 }'
    method = made(f"beta = 0.5\nnesterov = true\nstep_scale = 2.0\nprivacy = {privacy}", folder)
    assert (method.name, method.algorithm.beta, method.algorithm.nesterov) == ("HeavyBall", 0.5, True)
    assert method.privacy == NoisyMessages(clip=1.6, trust="server", noise=Toeplitz(0.4), batch=2)
    assert (method.mu, method.step_size, method.step_scale) == (4.0, 0.05, 2.0)


def test_other_kinds_of_privacy_and_of_algorithms(folder):
    method = made('privacy = { kind = "records", clip = 1.0, batch = 4, sampler = "poisson" }', folder)
    assert method.privacy == NoisyRecords(clip=1.0, batch=4, sampler="poisson")
    momentum = 'privacy = { kind = "momentum", clip = 1.0, batch = 4, factor = "sensitivity tree" }'
    assert made(momentum, folder).privacy == NoisyMomentum(clip=1.0, batch=4, factor="sensitivity tree")
    work = "work = { local_epochs = 2, batch = 5 }"
    local = f'privacy = {{ kind = "local", {work}, unit = "machine", update_clip = 0.3, ENCODER }}'
    encoder = 'encoder = { kind = "quantiser", levels = 16 }'
    method = made(local.replace("ENCODER", encoder), folder, name="Local")
    known = {"unit": "machine", "update_clip": 0.3, "encoder": Quantiser(16)}
    assert method.privacy == LocalPrivacy(work=LocalEpochs(2, 5), **known)
    adaptive = local.replace("0.3, ENCODER", "{ start = 0.3, quantile = 0.4 }")
    assert made(adaptive, folder, name="Local").privacy.update_clip.quantile == 0.4
    steps = 'privacy = { kind = "steps", clip = 0.3, batch = 3, sampler = "disjoint" }'
    assert made(steps, folder, name="Local").privacy == NoisyRecordSteps(clip=0.3, batch=3, sampler="disjoint")


def test_a_component_of_the_algorithm_is_a_table_of_its_own(folder):
    settings = parsed(f'server = {{ kind = "adam", b1 = 0.8 }}\n{MESSAGES}', folder).protocol[0]
    method = settings.make({"mu": 4.0})
    assert numbers_in(method)["algorithm.server.b1"] == 0.8
    assert {"algorithm.beta", "algorithm.server.b1", "privacy.clip"} <= set(settings.sweepable)
    assert numbers_in(with_numbers(method, {"algorithm.server.b1": 0.1}))["algorithm.server.b1"] == 0.1


@pytest.mark.slow
def test_an_experiment_sweeps_the_numbers_of_both(folder, monkeypatch):
    grid = f"{MESSAGES}\ngrid = {{ algorithm.beta = [0.0, 0.9], privacy.clip = [0.05, 0.5] }}"
    (folder / "own.toml").write_text(FILE.replace("SETTINGS", grid), encoding="utf-8")
    settings = experiment.load(folder / "own.toml")
    assert parse(tomllib.loads(tomli_w.dumps(to_mapping(settings))), folder) == settings
    results = run(settings)
    losses = of_iterate(results["HeavyBall"].test_loss)
    assert dict(losses.sizes) == {"mu": 1, "algorithm.beta": 2, "privacy.clip": 2, "seed": 2, "round": 1}
    assert min(abs(losses.diff(name)).min() for name in ("algorithm.beta", "privacy.clip")) > 1e-4
    best = selected(settings, results)["HeavyBall"]
    assert float(best["best_algorithm.beta"].values.ravel()[0]) in (0.0, 0.9)


def test_a_fixed_number_is_not_swept_and_a_default_is(folder):
    sweep = {"algorithm": {"beta": [0.1, 0.2]}}
    assert parsed(MESSAGES, folder, sweep).protocol[0].fixed.isdisjoint({"algorithm.beta"})
    with pytest.raises(
        Refusal, match=r"sweep\.algorithm\.beta must be left out if every protocol sets algorithm\.beta"
    ):
        parsed(f"beta = 0.5\n{MESSAGES}", folder, sweep)
    with pytest.raises(Refusal, match=r"sweep\.privacy\.clip must be left out if every protocol sets privacy\.clip"):
        parsed(MESSAGES, folder, {"privacy": {"clip": [0.1, 0.2]}})


def test_results_are_read_without_the_algorithms_module(folder, tmp_path, monkeypatch):
    (folder / "own.toml").write_text(FILE.replace("SETTINGS", MESSAGES), encoding="utf-8")
    run(experiment.load(folder / "own.toml"), folder=tmp_path / "kept")
    (folder / "heavy.py").unlink()
    monkeypatch.chdir(tmp_path)
    results = load(tmp_path / "kept")
    assert np.isfinite(results["HeavyBall"].test_loss).all()


@pytest.mark.slow
def test_it_is_audited_and_has_a_non_private_baseline(folder):
    raw = tomllib.loads(FILE.replace("SETTINGS", MESSAGES))
    raw["evaluation"]["baselines"] = ["non-private"]
    settings = parse(raw, folder)
    found = protocols_of(settings, epsilon=2.0)
    assert found["HeavyBall"].epsilon == 2.0
    raw["evaluation"].pop("select")
    raw["protocol"][0]["participation"] = {"rounds": 4}
    results = run(parse(raw, folder))
    assert {"HeavyBall", "HeavyBall, non-private"} <= set(results)


REFUSED = {
    "no privacy": ("beta = 0.5", r"privacy must be a table for the algorithm HeavyBall, with kind 'messages' or 'reco"),
    "privacy by name": ('privacy = "messages"', "privacy must be a table for the algorithm HeavyBall"),
    "no kind": ("privacy = { clip = 1.0 }", "unknown privacy 'None'"),
    "kind": ('privacy = { kind = "mesages" }', "unknown privacy 'mesages', did you mean 'messages'"),
    "of another": ('privacy = { kind = "local" }', "unknown privacy 'local'"),
    "its key": (
        'privacy = { kind = "messages", cilp = 1.0 }',
        "unknown option of privacy messages 'cilp', did you mean 'clip'",
    ),
    "its value": ('privacy = { kind = "messages", clip = -1.0 }', "clip must be positive, got -1.0"),
    "its noise": ('privacy = { kind = "messages", noise = "unifrm" }', "unknown noise_schedule 'unifrm'"),
    "key": (f"bta = 0.5\n{MESSAGES}", "unknown key 'bta', did you mean 'beta'"),
    "derived": (f"known = 3\n{MESSAGES}", "unknown key 'known'"),
    "algorithm": (f"algorithm = 3\n{MESSAGES}", "algorithm must be a table of settings, got 3"),
    "its own key": (f"algorithm = {{ bta = 0.5 }}\n{MESSAGES}", "unknown option of algorithm heavy:HeavyBall 'bta'"),
    "a text": (f'beta = "x"\n{MESSAGES}', "beta must be a number, got 'x'"),
    "numbers": (f"beta = [0.5, 0.9]\n{MESSAGES}", r"got \[0\.5, 0\.9\]\. Put several into grid, as algorithm\.beta"),
    "targets": (f"mu = [1.0, 2.0]\n{MESSAGES}", r"mu must be one number, got \[1\.0, 2\.0\]. Put"),
    "rounds": (f"rounds = 3\n{MESSAGES}", r"rounds must be in \[participation\], got it here"),
    "δ": ('privacy = { kind = "records", batch = 3, delta = 2.0 }', "delta must be between 0 and 1, got 2.0"),
    "grid": (f"{MESSAGES}\ngrid = {{ beta = [0.1] }}", r"unknown key in its grid 'beta' \(nearest: algorithm\.beta"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_table_cannot_say_is_refused(name, folder):
    settings, message = REFUSED[name]
    with pytest.raises(Refusal, match=message) as found:
        parsed(settings, folder)
    assert "[[protocol]] 'HeavyBall'" in str(found.value)


@pytest.mark.parametrize(
    ("work", "message"),
    [
        ("", r"work of privacy must be a table, such as \{ local_epochs = 1, batch = 10 \}, got None"),
        ("work = { local_epoch = 1 }", "unknown key of work 'local_epoch', did you mean 'local_epochs'"),
        ("work = { batch = 5 }", "local_epochs or local_steps must be given, not both, got neither"),
    ],
    ids=["none", "key", "neither"],
)
def test_local_work_that_is_not_described_is_refused(work, message, folder):
    with pytest.raises(Refusal, match=message):
        parsed(f'privacy = {{ kind = "local"{", " * bool(work)}{work} }}', folder, name="Local")


def test_a_required_setting_of_the_algorithm_is_named(folder):
    with pytest.raises(Refusal, match=r"algorithm\.weight must be given there, or swept"):
        parsed(MESSAGES, folder, name="Needy")
    assert made(f"weight = 2.0\n{MESSAGES}", folder, name="Needy").algorithm.weight == 2.0


def test_an_algorithm_without_its_decorator_is_refused(folder):
    with pytest.raises(Refusal, match=r"'Bare': algorithm Bare must be a flax\.struct\.dataclass"):
        parsed(MESSAGES, folder, name="Bare")


def test_a_pair_without_a_step_is_refused(folder):
    raw = tomllib.loads(FILE.replace("SETTINGS", MESSAGES))
    del raw["protocol"][0]["step_size"]
    with pytest.raises(Refusal, match="step_size must be given for HeavyBall, which has no default step"):
        listed.jobs(parse(raw, folder))


LOCAL = 'privacy = { kind = "local", work = { local_epochs = 1, batch = 5 }, unit = "machine", update_clip = 0.3 }'
RECORDS = 'privacy = { kind = "records", clip = 0.5, batch = 4 }'
CANCELLED = 'privacy = { kind = "messages", clip = 0.5, noise = "uniform" }'
REGISTERED = {
    "sgd": MESSAGES,
    "mu2": CANCELLED,
    "stale_mu2": CANCELLED,
    "accelerated_sgd": RECORDS,
    "feddyn": LOCAL,
    "fedexp": LOCAL,
    "fednova": LOCAL,
    "ditto": LOCAL,
    "fedper": f'head = "Dense_1"\n{LOCAL}',
    "mimelite": LOCAL,
    "proxskip": LOCAL,
    "dpzero": RECORDS,
    "gossip": RECORDS,
    "staged": MESSAGES,
    "local_gradient_steps": LOCAL,
    "control_variates": LOCAL,
}


@pytest.mark.parametrize("name", sparing(list(ALGORITHMS), ["mu2"]))
def test_algorithms_of_the_package_have_a_name(name, folder):
    raw = tomllib.loads(FILE.replace("SETTINGS", REGISTERED[name]).replace("heavy:HeavyBall", name))
    raw["problem"]["partition"] = {"kind": "iid"}
    if name == "fedper":
        del raw["problem"]["radius"]
        raw["problem"]["model"] = "mlp"
    raw["participation"] |= {"rounds": 2} | ({"kind": "full", "per_round": 6} if name == "gossip" else {})
    data = run(parse(raw))[name]
    assert np.isfinite(data.test_loss).all()
    assert 3.99 < float(data.realised_mu.max() if name in ("sgd", "mu2", "stale_mu2") else 4.0) < 4.01
    assert data.attrs["parts"].startswith(
        f"algorithm: {ALGORITHMS[name][0].__module__}.{ALGORITHMS[name][0].__name__}("
    )


def test_a_scaled_down_copy_has_small_messages(folder):
    work = "work = { local_steps = 40, batch = 50 }"
    settings = parsed(f'privacy = {{ kind = "local", {work}, unit = "record", clip = 1.0 }}', folder, name="Local")
    small = tiny(settings)
    work = small.protocol[0].parts["privacy"].work
    assert (work.number, work.batch) == (5, 2)
    assert parse(tomllib.loads(tomli_w.dumps(to_mapping(small))), folder).protocol == small.protocol
    batch = tiny(parsed('beta = 0.5\nprivacy = { kind = "messages", clip = 1.0, batch = 4 }', folder))
    assert batch.protocol[0].make({"mu": 4.0}).privacy == NoisyMessages(clip=1.0, batch=2)
    assert batch.protocol[0].make({"mu": 4.0}).algorithm.beta == 0.5


def test_algorithms_of_equal_name_in_two_folders_are_distinct(folder, tmp_path_factory):
    other = tmp_path_factory.mktemp("other")
    (other / "heavy.py").write_text(HEAVY, encoding="utf-8")
    first, second = (listed.jobs(parsed(MESSAGES, each))[0].identity for each in (folder, other))
    assert first != second


@pytest.mark.slow
def test_the_command_line_runs_changes_reports_and_refuses(folder, monkeypatch, capsys):
    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["fedprivjax", *map(str, arguments)])
        monkeypatch.setattr(cli.console, "leave", sys.exit)
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        return stopped.value.code or 0, *capsys.readouterr()

    monkeypatch.chdir(folder)
    (folder / "own.toml").write_text(FILE.replace("SETTINGS", MESSAGES), encoding="utf-8")
    changed = "--set", "protocol.HeavyBall.privacy.clip=0.25", "--set", "protocol.0.beta=0.5"
    status, shown, said = call("run", "own.toml", "--tiny", *changed, "--out", "made")
    assert (status, "HeavyBall" in shown) == (0, True), said
    made = load(folder / "made")
    parts = made.provenance["parts"]["HeavyBall"]
    assert parts.startswith("algorithm: heavy.HeavyBall(beta=*, nesterov=False, server=None); privacy: ")
    assert "fedprivjax.method.noisy_messages.NoisyMessages(clip=*, trust='none'" in parts
    written = tomllib.loads((folder / "made/spec.toml").read_text(encoding="utf-8"))["protocol"][0]
    assert (written["algorithm"], written["privacy"]) == ({"beta": 0.5}, {"kind": "messages", "clip": 0.25})
    (folder / "heavy.py").unlink()
    assert call("report", "made")[0] == 0
    status, _, said = call("run", "own.toml", "--set", "protocol.HeavyBall.privacy.clip=-1")
    assert (status, said.count("\n")) == (2, 1)


GUIDES = Path(__file__).parents[2] / "notebooks"
TABLES = [
    pytest.param(table, id=f"{name}-{index}")
    for name in ("custom_algorithm", "experiment_methods")
    for index, table in enumerate(
        re.findall(r"```toml\n(.*?)```", (GUIDES / f"{name}.md").read_text("utf-8"), re.DOTALL)
    )
    if "privacy = {" in table
]


@pytest.mark.parametrize("table", TABLES)
def test_tables_of_the_guides_are_valid(table, tmp_path):
    page = (GUIDES / "custom_algorithm.md").read_text(encoding="utf-8")
    code = next(one for one in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "class Storm" in one)
    (tmp_path / "my_module.py").write_text(code.partition("\n\n\ndata = ")[0], encoding="utf-8")
    raw = tomllib.loads(f'title = "guide"\n{FEDERATION}\n{table}') | {"sweep": {"mu": [4.0], "seeds": 1}}
    raw["problem"]["partition"], raw["participation"]["rounds"] = {"kind": "iid"}, 1
    raw["evaluation"] = {"metrics": ["test_loss"], "select": "test_loss"}
    assert len(listed.jobs(parse(raw, tmp_path))) == len(raw["protocol"])
