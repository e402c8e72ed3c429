"""Arguments of custom objects whose names are also keys of their section, or of a built-in object."""

import tomllib

import pytest
import tomli_w

from fedprivjax import Huber, Refusal, experiment
from fedprivjax.problem.smoothing import Moreau

MODULE = """
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import optax
from flax import linen as nn
import fedprivjax as fpj

def load(rows=24, trial="none", target=0.0):
    x = np.random.default_rng(0).uniform(-0.5, 0.5, (rows, 3))
    y = np.full(rows, target + (trial == "first"))
    return fpj.datasets.from_arrays(x, y, x[:5], y[:5], feature_bound=1.0, label_bound=9.0)

def smooth(width=0.5, smoothing=0.0):
    return fpj.Huber(width + smoothing)

def plain(width=0.5):
    return fpj.Huber(width)

def any_key(**keys):
    return fpj.Huber(keys.get("smoothing", 0.5))

class Net(nn.Module):
    start_seed: str = ""
    clipping: int = 0
    convolutions: int = 0

    @nn.compact
    def __call__(self, x):
        return nn.Dense(1)(x)[:, 0]

def failing(width=0.5):
    return fpj.Huber(width["of a table"])

def refusing(width):
    return fpj.Huber(-1.0)

def late(machines, per_round=1):
    return Scheme(machines, per_roun=per_round)

def broken(rows=24):
    return {}[rows]

def ball(found=0.0, object_settings=0.0, dimension=0.0):
    return fpj.Ball(found + object_settings + dimension)

def unit(picture=0, features=0):
    assert (picture, features) == (1, 2)
    return fpj.features.UnitNorm()

class Scheme(fpj.Participation):
    def __init__(self, machines, per_round=1, order="", dropouts=None, delays=None, hours=None, rounds=None):
        self.machines, self.per_round, self.given = machines, per_round, (order, dropouts, delays, hours, rounds)

    def draw(self, rounds, rng):
        return fpj.Schedule(self.machines, np.zeros((rounds, self.per_round), np.int32) + np.arange(self.per_round))

class Short(fpj.Participation):
    def __init__(self, machines, per_round=1):
        self.machines, self.per_round = machines, per_round

    draw = Scheme.draw

def optimiser(learning_rate, factory=0.0, self=0.0, local=0.0):
    return optax.sgd(learning_rate)

@dataclass(frozen=True)
class Watcher(fpj.LinearAdversary):
    name: ClassVar[str] = "watcher"
    sees: ClassVar[str] = "every message"
    server: Any = None

    def rows(self, machines):
        return np.eye(machines)
"""
RAW = {
    "title": "arguments",
    "problem": {"dataset": "custom:load", "options": {"rows": 24}},
    "participation": {"kind": "full", "machines": 4, "rounds": 3},
    "protocol": [{"name": "noisy_sgd", "mu": 1.0, "clip": 1.0, "step_size": 0.1}],
    "sweep": {"seeds": 1},
}


@pytest.fixture
def parsed(tmp_path):
    """Return a function that reads the experiment with other keys, after a file and back."""
    (tmp_path / "custom.py").write_text(MODULE, encoding="utf-8")

    def read(participation=None, protocol=None, sweep=None, **problem):
        raw = {**RAW, "problem": {**RAW["problem"], **problem}, "participation": participation or RAW["participation"]}
        raw |= {"protocol": [{**RAW["protocol"][0], **(protocol or {})}], "sweep": {"seeds": 1, **(sweep or {})}}
        found = experiment.parse(raw, tmp_path)
        assert experiment.parse(tomllib.loads(tomli_w.dumps(experiment.to_mapping(found))), tmp_path) == found
        return found

    return read


def made(read):
    return experiment.make_problem(read.problem, 4)


@pytest.mark.parametrize(
    ("table", "loss"),
    [
        ({"kind": "custom:smooth", "smoothing": 0.25}, Huber(0.75)),
        ({"kind": "custom:plain", "smoothing": 0.25}, Moreau(Huber(0.5), 0.25)),
        ({"kind": "custom:any_key", "smoothing": 0.25}, Moreau(Huber(0.5), 0.25)),  # it has no argument of this name
    ],
)
def test_a_losss_own_smoothing_is_its_argument(parsed, table, loss):
    assert made(parsed(loss=table)).model.loss == loss


def test_a_models_own_keys_are_its_arguments(parsed):
    read = parsed(model={"kind": "custom:Net", "start_seed": "x", "clipping": 3})
    model = read.problem.model.made()
    assert (model.start_seed, model.clipping, model.convolutions) == ("x", 3, 0)
    assert (read.problem.model.start_seed, read.problem.model.clipping) == (0, "auto")
    assert made(read).dimension == 3 + 1


def test_constraints_feature_maps_and_datasets_get_all_their_keys(parsed):
    assert made(parsed(constraint={"kind": "custom:ball", "found": 1.0, "dimension": 2.0})).constraint.radius == 3.0
    assert made(parsed(constraint={"kind": "custom:ball", "object_settings": 4.0})).constraint.radius == 4.0
    assert len(parsed(features=[{"kind": "custom:unit", "picture": 1, "features": 2}]).problem.maps) == 1
    options = {"rows": 12, "trial": "first", "target": 2.0}
    data, _ = experiment.make_data(parsed(options=options).problem, 4)
    assert (data.labels == 3.0).all()


def scheme_of(read, shape=None):
    return experiment.make_participation(read.participation_of(read.protocol[0]), shape or {})[0]


def test_a_schemes_own_keys_are_its_arguments(parsed):
    table = {"kind": "custom:Scheme", "machines": 4, "per_round": 2}
    own = {"order": "mine", "dropouts": 0.5, "delays": "none", "hours": [1.0]}
    scheme = scheme_of(parsed({**table, **own}))
    assert (type(scheme).__name__, scheme.machines, scheme.per_round) == ("Scheme", 4, 2)
    assert scheme.given == ("mine", 0.5, "none", [1.0], None)
    short = scheme_of(parsed({**table, "kind": "custom:Short", "dropouts": 0.5}))
    assert type(short).__name__ == "Dropouts"


def test_the_sizes_of_a_run_are_arguments_too(parsed):
    read = parsed({"kind": "custom:Scheme", "machines": 4, "rounds": 7})
    assert scheme_of(read).given[-1] == read.participation.planned == 7
    assert scheme_of(read, {"rounds": 9}).given[-1] == 9
    with pytest.raises(Refusal, match=r"^participation\.rounds must be an integer, got 'x'$"):
        parsed({"kind": "custom:Scheme", "machines": 4, "rounds": "x"})


def test_a_schemes_arguments_are_not_inherited_by_another_kind(parsed):
    table = {"kind": "custom:Scheme", "machines": 4, "order": "mine", "rounds": 3}
    read = parsed(table, {"participation": {"kind": "full"}})
    assert read.participation_of(read.protocol[0]).order == "shuffled"
    common = {"kind": "full", "machines": 4, "rounds": 3, "order": "stored"}
    scheme = scheme_of(parsed(common, {"participation": {"kind": "custom:Scheme"}}))
    assert scheme.given == ("", None, None, None, 3)
    assert scheme_of(parsed(table, {"participation": {"dropouts": 1}})).given == ("mine", 1, None, None, 3)


def test_an_optimisers_argument_may_be_named_as_one_of_the_package(parsed):
    server = parsed(protocol={"server": {"kind": "custom:optimiser", "factory": 2.0}}).protocol[0].parts["server"]
    assert server.leaves() == {"factory": 2.0, "local": None, "self": None}


def test_an_adversarys_own_server_is_its_argument(parsed):
    table = {"kind": "custom:Watcher", "server": "anything"}
    read = parsed(protocol={"adversary": table})
    assert read.protocol[0].parts["adversary"].server == "anything"


@pytest.mark.parametrize(
    ("problem", "message"),
    [
        (
            {"loss": "custom:failing"},
            r"loss 'custom:failing' must be made without an error, got TypeError: 'float' object ",
        ),
        ({"loss": {"kind": "custom:refusing", "width": 1.0}}, r"width must be positive, got -1\.0$"),
        ({"loss": {"kind": "custom:failing", "wdth": 1}}, "unknown option of loss custom:failing 'wdth', did you mean"),
        (
            {"dataset": "custom:broken"},
            r"dataset 'custom:broken' must be made without an error, got KeyError: 24 \(custom\.py",
        ),
    ],
)
def test_an_error_of_the_objects_own_code_names_the_object(parsed, problem, message):
    with pytest.raises(Refusal, match=f"^{message}"):
        made(parsed(**problem))


def test_an_error_of_a_schemes_own_code_is_not_one_of_its_arguments(parsed):
    table = {"kind": "custom:late", "machines": 4}
    wanted = r"participation 'custom:late' must be made without an error, got TypeError: .*'per_roun'"
    with pytest.raises(Refusal, match=rf"^{wanted}.* \(custom\.py, line \d+\)$"):
        scheme_of(parsed(table))
    with pytest.raises(
        Refusal, match=r"^participation 'custom:late' must take machines and its options, got .*'width'$"
    ):
        scheme_of(parsed({**table, "width": 3}))
