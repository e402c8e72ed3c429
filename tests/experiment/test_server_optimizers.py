"""`server` of a `[[protocol]]`: by name and by import path, in sweeps and audits, and messages."""

import tomllib

import pytest
import tomli_w
from optax import contrib
from small_file import FEDERATION

from fedprivjax import Refusal, ServerOptimizer, experiment
from fedprivjax.auditing.of_experiment import protocols_of
from fedprivjax.experiment.build import make_protocol
from fedprivjax.experiment.jobs import jobs
from fedprivjax.experiment.read import parse, to_mapping
from fedprivjax.experiment.run import run
from fedprivjax.experiment.tuning import selected
from fedprivjax.sweeps.intervals import of_iterate

FILE = (
    """
title = "server optimisers"
"""
    + FEDERATION
    + """
[[protocol]]
name = "noisy_sgd"
label = "FedAdam"
clip = 0.5
SERVER

[sweep]
mu = [4]
seeds = 2

[evaluation]
metrics = ["test_loss"]
select = "test_loss"
every = 8
"""
)
OWN = "import optax\n\n\ndef quick(learning_rate, b1=0.5):\n    return optax.adam(learning_rate, b1=b1)\n"


def parsed(server, sweep=()):
    raw = tomllib.loads(FILE.replace("SERVER", server))
    raw["sweep"] |= dict(sweep)
    return parse(raw)


def test_an_experiment_sweeps_its_numbers(tmp_path):
    (tmp_path / "mine.py").write_text(OWN)
    server = 'server = { kind = "mine:quick" }\ngrid = { server.b1 = [0.2, 0.9] }'
    (tmp_path / "served.toml").write_text(FILE.replace("SERVER", server))
    settings = experiment.load(tmp_path / "served.toml")
    results = run(settings)
    losses = of_iterate(results["FedAdam"].test_loss)
    assert dict(losses.sizes) == {"mu": 1, "server.b1": 2, "seed": 2, "round": 1}
    assert abs(losses.diff("server.b1")).min() > 1e-4
    assert float(selected(settings, results)["FedAdam"]["best_server.b1"].values.ravel()[0]) in (0.2, 0.9)
    assert parse(tomllib.loads(tomli_w.dumps(to_mapping(settings))), tmp_path) == settings


@pytest.mark.parametrize(
    ("server", "made"),
    [
        ('server = "yogi"', ServerOptimizer("yogi")),
        ('server = { kind = "adam", b1 = 0.9 }', ServerOptimizer("adam", b1=0.9)),
        (
            'server = { kind = "sgd", momentum = 0.5, nesterov = true }',
            ServerOptimizer("sgd", momentum=0.5, nesterov=True),
        ),
        ('server.kind = "optax.contrib:adopt"', ServerOptimizer(contrib.adopt)),
        (
            'server = { kind = "linear_schedule", init_value = 1.0, end_value = 0.1, transition_steps = 9 }',
            ServerOptimizer("linear_schedule", init_value=1.0, end_value=0.1, transition_steps=9),
        ),
    ],
)
def test_a_table_is_an_optimizer(server, made):
    settings = parsed(server)
    assert make_protocol(settings.protocol[0]).server == made
    assert protocols_of(settings)["FedAdam"].server == made


def test_local_steps_and_other_servers_have_one_too():
    raw = tomllib.loads(FILE.replace('name = "noisy_sgd"', 'name = "dp_mu2"').replace("SERVER", 'server = "adam"'))
    local = {"kind": "sgd", "momentum": 0.5}
    walk = {"name": "fedavg", "label": "walk", "local_steps": 2, "batch": 2, "step_size": 0.1, "local": local}
    raw["protocol"].append(walk | {"noise_std": 0.0, "grid": {"local": {"momentum": [0.5, 0.9]}}})
    settings = parse(raw)
    assert make_protocol(settings.protocol[0]).server == ServerOptimizer("adam")
    assert make_protocol(settings.protocol[1]).local == ServerOptimizer("sgd", momentum=0.5)
    assert settings.protocol[1].grid == {"local.momentum": [0.5, 0.9]}


def test_an_audit_uses_the_first_value_of_a_swept_number():
    settings = parsed('server = "adam"', {"server": {"b1": [0.3, 0.6]}})
    assert settings.sweep.over["server.b1"] == [0.3, 0.6]
    assert protocols_of(settings)["FedAdam"].server == ServerOptimizer("adam", b1=0.3)


@pytest.mark.parametrize(
    ("server", "sweep", "message"),
    [
        ('server = "adm"', {}, "unknown optimiser 'adm', did you mean 'adam'"),
        ('server = { kind = "adam", bb1 = 0.9 }', {}, "unknown setting of adam 'bb1', did you mean 'b1'"),
        ("server = { b1 = 0.9 }", {}, "server must name its kind, such as .* got {'b1': 0.9}"),
        ('server = "nowhere:adam"', {}, "optimiser module 'nowhere' must be installed"),
        (
            'server = "adam"',
            {"server": {"bb1": [0.9]}},
            "key in .sweep. 'server.bb1', did you mean 'server.b1'",
        ),
        ('server = "adam"\ngrid = { server.bb1 = [0.9] }', {}, "unknown key in its grid 'server.bb1'"),
        ("", {"server.b1": [0.9]}, "unknown key in .sweep. 'server.b1'"),
        ('server = { kind = "adam", b1 = 0.9 }', {"server.b1": [0.5]}, "server.b1 must be left out if every"),
    ],
)
def test_an_invalid_optimizer_is_refused(server, sweep, message):
    with pytest.raises(Refusal, match=message) as raised:
        parsed(server, sweep)
    assert "\n" not in str(raised.value)


def test_optimizers_of_equal_name_in_two_modules_are_distinct(tmp_path):
    """Also two objects of a module that print the same text."""
    (tmp_path / "mine.py").write_text("import optax\nadam, one, two = optax.adam, optax.adam(0.1), optax.adam(0.2)\n")
    (tmp_path / "other.py").write_text("from optax import adam\n")
    servers = ['"mine:one"', '"mine:two"', '{ kind = "adam", b1 = 0.8 }']
    servers += [f'{{ kind = "{module}:adam", b1 = 0.8 }}' for module in ("mine", "other")]
    texts = [FILE.replace("SERVER", f"server = {server}") for server in servers]
    identities = {jobs(parse(tomllib.loads(text), tmp_path))[0].identity for text in texts}
    assert len(identities) == len(servers)
