"""`privacy` of an experiment file with a custom privacy object: its keys, sweeps, results and messages."""

import tomllib
from math import sqrt
from pathlib import Path

import laplace_messages
import numpy as np
import pytest
import tomli_w
from laplace_messages import LaplaceMessages
from sign_sgd import OneSign
from small_file import FEDERATION

from fedprivjax import LocalEpochs, Refusal, experiment, guarantee_of, load
from fedprivjax.experiment.names import Unimported
from fedprivjax.experiment.read import parse, to_mapping
from fedprivjax.experiment.run import run
from fedprivjax.sweeps.intervals import of_iterate

GRID = "grid = { privacy.clip = [0.01, 1.0] }"
MINE = """
from flax import struct

from fedprivjax import MessagePrivacy
from laplace_messages import LaplaceMessages


@struct.dataclass(kw_only=True)
class Levelled(LaplaceMessages):
    level: float
    kind_of_law: str = struct.field(pytree_node=False, default="laplace")


class Bare(LaplaceMessages):
    pass
"""


@pytest.fixture
def folder(tmp_path):
    """Folder of an experiment file, with a module."""
    (tmp_path / "mine.py").write_text(MINE, encoding="utf-8")
    return tmp_path


def raw(privacy, name="sgd", grid=""):
    table = f'[[protocol]]\nname = "{name}"\nlabel = "ours"\nstep_size = 0.05\nprivacy = {privacy}\n{grid}'
    end = '[sweep]\nepsilon = [2.0]\nseeds = 2\n[evaluation]\nmetrics = ["test_loss"]\nselect = "test_loss"'
    return tomllib.loads(f'title = "custom privacy"\n{FEDERATION}\n{table}\n{end}')


def privacy_of(privacy, folder=None, **options):
    return parse(raw(privacy, **options), folder).protocol[0].make({"epsilon": 2.0}).privacy


def test_a_path_names_a_custom_privacy_object_with_its_settings(folder):
    assert privacy_of('{ kind = "laplace_messages:LaplaceMessages", clip = 0.5 }') == LaplaceMessages(clip=0.5)
    made = privacy_of('{ kind = "mine:Levelled", level = 2, kind_of_law = "other" }', folder)
    assert (type(made).__name__, made.clip, made.level, made.kind_of_law) == ("Levelled", 1.0, 2, "other")
    assert privacy_of('{ kind = "sign_sgd:OneSign" }', name="feddyn") == OneSign()
    work = '{ kind = "sign_sgd:OneSign", work = { local_epochs = 2, batch = 5 } }'
    assert privacy_of(work, name="feddyn") == OneSign(work=LocalEpochs(2, 5))


def test_its_numbers_can_be_swept():
    settings = parse(raw('{ kind = "laplace_messages:LaplaceMessages" }', grid=GRID)).protocol[0]
    assert settings.grid == {"privacy.clip": [0.01, 1.0]}
    assert [settings.make({"privacy.clip": one}).privacy.clip for one in (0.01, 1.0)] == [0.01, 1.0]


@pytest.mark.slow
def test_its_results_are_read_without_its_module(tmp_path, monkeypatch):
    own = tmp_path / "own_messages.py"
    own.write_text(Path(laplace_messages.__file__).read_text(encoding="utf-8"), encoding="utf-8")
    settings = raw('{ kind = "own_messages:LaplaceMessages" }', grid=GRID)
    (tmp_path / "own.toml").write_text(tomli_w.dumps(settings), encoding="utf-8")
    ready = experiment.load(tmp_path / "own.toml")
    assert parse(tomllib.loads(tomli_w.dumps(to_mapping(ready))), tmp_path) == ready
    results = run(ready, folder=tmp_path / "kept")["ours"]
    losses = of_iterate(results.test_loss)
    assert dict(losses.sizes) == {"epsilon": 1, "privacy.clip": 2, "seed": 2, "round": 8}
    assert abs(losses.diff("privacy.clip")).max() > 1e-4
    np.testing.assert_allclose(results.realised_epsilon, 2.0, rtol=1e-6)
    np.testing.assert_allclose(results.noise_std.squeeze(), np.array([0.01, 1.0]) * sqrt(2), rtol=1e-4)
    own.unlink()
    monkeypatch.chdir(tmp_path)
    kept = load(tmp_path / "kept")
    np.testing.assert_array_equal(kept["ours"].test_loss, results.test_loss)
    stated = str(guarantee_of(kept["ours"].sel({"privacy.clip": 1.0})))
    assert "the mechanism is as stated by own_messages:LaplaceMessages" in stated


ENCODED = '{ kind = "local", unit = "machine", work = { local_epochs = 1 }, encoder = { kind = "absent:One" } }'
FINISHED = {
    "privacy": ("sgd", '{ kind = "absent:One", clip = 1.0 }', GRID),
    "its encoder": ("feddyn", ENCODED, GRID),
    "server": ("sgd", '{ kind = "messages" }', 'server = "absent:One"\ngrid = { algorithm.server.b1 = [0.1, 0.9] }'),
}


@pytest.mark.parametrize("what", FINISHED)
def test_settings_of_finished_results_are_read_without_custom_modules(what):
    name, privacy, rest = FINISHED[what]
    assert parse(raw(privacy, name=name, grid=rest), recorded={}).protocol[0].method == Unimported(name)


OTHER = "must be a subclass of MessagePrivacy for the algorithm SGD, got"
BARE = "must be a flax.struct.dataclass, got a class without"
NUMBER = "level must be a number, got 'x'. Put several into grid, as privacy.level, and declare"
REFUSED = {
    "module": ('{ kind = "absent:Mine" }', "privacy module 'absent' must be installed, next to the experiment file"),
    "class": (
        '{ kind = "mine:Leveled", level = 1 }',
        "unknown privacy in mine 'Leveled', did you mean 'Levelled'?",
    ),
    "no class": ('{ kind = "math:tau" }', f"privacy 'math:tau' {OTHER} 6.28"),
    "of another": ('{ kind = "sign_sgd:OneSign" }', f"privacy 'sign_sgd:OneSign' {OTHER} <class"),
    "the base": ('{ kind = "mine:MessagePrivacy" }', f"privacy object MessagePrivacy {BARE}"),
    "decorator": ('{ kind = "mine:Bare" }', f"privacy object Bare {BARE}"),
    "key": (
        '{ kind = "mine:Levelled", level = 1, clp = 1.0 }',
        "unknown option of privacy mine:Levelled 'clp', did you mean 'clip'?",
    ),
    "missing": ('{ kind = "mine:Levelled" }', "privacy.level must be given there, or swept"),
    "text": ('{ kind = "mine:Levelled", level = "x" }', NUMBER),
    "grid": ('{ kind = "mine:Levelled", level = 1 }\ngrid = { privacy.lvel = [1.0] }', "unknown key in its grid 'priv"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_table_cannot_say_is_refused_in_one_line(name, folder):
    privacy, message = REFUSED[name]
    with pytest.raises(Refusal) as found:
        parse(raw(privacy), folder)
    assert str(found.value).startswith(f"[[protocol]] 'ours': {message}")
    assert "\n" not in str(found.value)
