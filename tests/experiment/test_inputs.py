"""Results are loaded, and chunks taken, only if data and code are those of the run."""

import json
import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from cases import sparing
from small_results import small_results

from fedprivjax import Refusal, experiment, user_modules
from fedprivjax.experiment import folder as results_folder
from fedprivjax.experiment import inputs, names
from fedprivjax.experiment.inputs import read_inputs
from fedprivjax.experiment.jobs import ready_experiment
from fedprivjax.experiment.run import run_part, run_ready
from fedprivjax.sweeps.part import Part

LOSS = """
import jax.numpy as jnp
from flax import struct
from fedprivjax import Logistic
from halved import half

@struct.dataclass
class Half(Logistic):
    lipschitz, smoothness = Logistic.lipschitz, Logistic.smoothness

    def value(self, score, label):
        return half(super().value(score, label))

    def residual(self, score, label):
        return half(super().residual(score, label))
"""
HELPER = "def half(value):\n    return 0.5 * value\n"
SPEC = """
title = "people"
[problem]
dataset = "people.csv"
options = { target = "ill", bounds = { age = [0, 100], weight = [0, 100] }, test_fraction = 0.5 }
loss = "halving:Half"
partition = { kind = "iid" }
radius = 2.0
[participation]
machines = 6
per_round = 3
rounds = 2
[[protocol]]
METHOD
label = "ours"
[sweep]
mu = [1.0]
seeds = 1
"""
METHOD = 'name = "noisy_minibatch_sgd"\nsampler = "poisson"\nbatch = 2\nclip = 1.0'
RECORDS = 'privacy = { kind = "records", sampler = "poisson", batch = 2, clip = 1.0 }'
PAIR = f'name = "mine:Mine"\nstep_size = 0.1\n{RECORDS}'


NUMBER = (
    "import json\nfrom pathlib import Path\nNUMBER = json.loads((Path(__file__).parent / 'number.json').read_text())\n"
)
LEAF = f"""{NUMBER}
from flax import struct
from fedprivjax.protocols.noisy_sgd import SGD

@struct.dataclass
class Mine(SGD):
    weight: float = NUMBER
"""
SCHEDULE = f"""{NUMBER}
import dataclasses
import numpy as np
from fedprivjax import Participation, Schedule

@dataclasses.dataclass(frozen=True)
class Mine(Participation):
    machines: int
    per_round: int = 3

    def draw(self, rounds, rng):
        return Schedule(self.machines, np.array([[0, 1, 2], [2, 3, NUMBER]][:rounds]))
"""
RESULTS = {"ours": small_results()}


def write_files(place: Path) -> Path:
    rng = np.random.default_rng(0)
    rows = [f"{rng.integers(20, 90)},{rng.integers(40, 99)},{number % 2}" for number in range(48)]
    (place / "people.csv").write_text("\n".join(["age,weight,ill", *rows]))
    (place / "halving.py").write_text(LOSS)
    (place / "halved.py").write_text(HELPER)
    (place / "people.toml").write_text(SPEC.replace("METHOD", METHOD))
    return place


def prepared(place: Path, **changes):
    """Prepare the experiment as a new process would."""
    user_modules._load.cache_clear()
    for name in ("halving", "halved"):
        sys.modules.pop(name, None)
    return ready_experiment(experiment.load(place / "people.toml", changes))


def replace_in(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Files of an experiment, and results in "out", as if it had been run."""
    place = write_files(tmp_path_factory.mktemp("people"))
    made = prepared(place)
    results_folder.claim(place / "out", made.experiment, made.inputs)
    results_folder.save(RESULTS, place / "out", experiment=made.experiment, inputs=made.inputs)
    return place


@pytest.fixture(scope="module")
def ready(finished):
    return prepared(finished)


@pytest.fixture
def out(finished, tmp_path):
    """A copy of the finished results."""
    return Path(shutil.copytree(finished / "out", tmp_path / "out"))


@pytest.fixture
def place(finished, tmp_path, monkeypatch):
    """The finished experiment, whose files a test may change."""
    copy = tmp_path / finished.name
    shutil.copytree(finished, copy)
    replace_in(copy / "out" / "spec.toml", str(finished), str(copy))
    replace_in(copy / "out" / "inputs.json", str(finished), str(copy))
    monkeypatch.chdir(copy)
    return copy


def with_chunk(out: Path) -> Path:
    """Add a chunk, as if a kill had left it."""
    chunk = out / results_folder.CHUNKS / "chunk.npz"
    chunk.parent.mkdir(exist_ok=True)
    chunk.touch()
    return chunk


def unfinished(out: Path) -> None:
    (out / "results.nc").unlink()
    with_chunk(out)


def with_results(out: Path) -> None:
    assert (out / "results.nc").is_file()


UNFINISHED = "holds an unfinished run: add --resume"  # what a run that does not resume says first
CHANGED = r"got results of other code of {} \(it has changed\). Choose another folder"
CHANGES = {
    "a value": ("people.csv", ",1\n", ",0\n", r"got results of other data '\S+people\.csv' \(\w+\.label"),
    "the loss": ("halving.py", "half(super", "3 * half(super", CHANGED.format("loss 'halving:Half'")),
    "an import": ("halved.py", "0.5", "0.25", CHANGED.format("module 'halved'")),
}
RUNS = {
    "run": lambda ready, out: run_ready(ready, out),
    "resume": lambda ready, out: run_ready(ready, out, resume=True),
    "part": lambda ready, out: run_part(ready, out, Part(1, 2)),
}


@pytest.mark.parametrize("state", sparing([with_results, with_chunk, unfinished], [with_results]))
@pytest.mark.parametrize("change", list(CHANGES))
def test_results_of_other_data_or_code_are_refused_and_kept(place, change, state):
    file, old, new, message = CHANGES[change]
    replace_in(place / file, old, new)
    state(place / "out")
    before = {path: path.read_bytes() for path in (place / "out").rglob("*") if path.is_file()}
    ready = prepared(place)
    for name, run in RUNS.items():
        with pytest.raises(Refusal, match=UNFINISHED if name == "run" and state is not with_results else message):
            run(ready, place / "out")
    assert {path: path.read_bytes() for path in (place / "out").rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(
    ("module", "old", "new"),
    [
        (LEAF, METHOD, PAIR),
        pytest.param(SCHEDULE, "rounds = 2", 'rounds = 2\nkind = "mine:Mine"', marks=pytest.mark.slow),
    ],
    ids=["a leaf", "a schedule"],
)
def test_numbers_that_no_program_contains_are_inputs(tmp_path, monkeypatch, module, old, new):
    """Those that a module reads from a file, and which programs take as arguments."""
    place = write_files(tmp_path)
    monkeypatch.chdir(place)
    (place / "mine.py").write_text(module)
    replace_in(place / "people.toml", old, new)
    found = []
    for number in (4, 4, 5):
        (place / "number.json").write_text(str(number))
        sys.modules.pop("mine", None)
        found.append(prepared(place).inputs)
    assert found[0] == found[1]
    assert found[2].changes_from(found[0]) == ["code of protocol 'ours'"]


def test_modules_that_the_users_modules_import_are_their_code(tmp_path):
    """Also if no program contains their numbers: those of a schedule, or of a callback. Installed packages are not.

    The user's package has the name of a subpackage of this one.
    """
    files = {
        "scheme.py": "import numpy\nimport xarray as xr\nfrom experiment import cohorts\nONE = cohorts.ONE\n",
        "experiment/__init__.py": "TWO = 2\n",
        "experiment/cohorts.py": "from . import TWO\nfrom .deep.numbers import ONE\nimport scheme\n",
        "experiment/deep/numbers.py": "def two():\n    from .. import TWO\n    return TWO\nONE = 1\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)

    def digests():
        user_modules._load.cache_clear()
        for name in [name for name in sys.modules if name.startswith("experiment")]:
            del sys.modules[name]
        assert names.resolve("number", "scheme:ONE", {}, {"folder": tmp_path}) == 1
        return names.code_of({"options": ["scheme:ONE"]}, tmp_path)

    before = digests()
    modules = {f"module 'experiment{name}'": name for name in ("", ".cohorts", ".deep.numbers")}
    assert before.keys() == {"number 'scheme:ONE'", *modules}
    for module, name in modules.items():
        with (tmp_path / "experiment" / f"{name[1:].replace('.', '/') or '__init__'}.py").open("a") as file:
            file.write("OTHER = 1\n")
        after = digests()
        assert [key for key in before if after[key] != before[key]] == [module]
        before = after


def test_comments_and_layout_are_no_other_code(place):
    replace_in(place / "halving.py", "\n@struct", "\n# half of it\n\n\n@struct")
    chunk = with_chunk(place / "out")
    assert run_ready(prepared(place), place / "out", resume=True).keys() == {"ours"}
    assert not chunk.exists()


@pytest.fixture
def of_another_version(ready, monkeypatch):
    """The prepared experiment in a process with another version of the code."""
    monkeypatch.setattr(inputs, "code_version", lambda: "another")
    return replace(ready)


def test_finished_results_of_another_version_are_loaded_with_both_versions(of_another_version, out):
    before = (out / "inputs.json").read_bytes()
    for run in ("resume", "part"):
        with pytest.warns(
            UserWarning, match=r"holds results of fedprivjax \S+ \(code \w+\) .*by fedprivjax .*another\)"
        ):
            assert RUNS[run](of_another_version, out).keys() == {"ours"}
    assert (out / "inputs.json").read_bytes() == before


def test_an_unfinished_run_of_another_version_is_refused(of_another_version, out):
    unfinished(out)
    changed = r"resumed by the code that began it, and it has changed: .* \(code another\)"
    for run, message in (("run", UNFINISHED), ("resume", changed), ("part", changed)):
        with pytest.raises(Refusal, match=message):
            RUNS[run](of_another_version, out)
    assert (out / results_folder.CHUNKS / "chunk.npz").is_file()


def test_chunks_of_a_newer_version_are_not_those_of_the_results(of_another_version, out, monkeypatch):
    """A run was begun again by another version and stopped: it goes on, and its chunks are not removed."""
    (out / "inputs.json").write_text(of_another_version.inputs.text())
    chunk = with_chunk(out)
    monkeypatch.setattr(
        "fedprivjax.experiment.run._datasets", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt)
    )
    with pytest.raises(KeyboardInterrupt):
        run_ready(of_another_version, out, resume=True)
    assert chunk.is_file()


@pytest.mark.parametrize("name", sparing(["code", "jax", "fedprivjax"], ["code"]))
def test_results_of_another_version_than_their_inputs_are_not_those_of_the_run(out, name):
    """A run was begun again by another version, and killed before its first chunk."""
    assert results_folder.finished(out)
    found = json.loads((out / "inputs.json").read_text())
    found["versions"][name] = "another"
    (out / "inputs.json").write_text(json.dumps(found))
    assert not results_folder.finished(out)


@pytest.mark.parametrize("text", [None, "", "[]", "{}", '{"versions": 1}', "[" * 100_000])
def test_results_without_their_inputs_are_refused(ready, out, text):
    file = out / "inputs.json"
    file.unlink() if text is None else file.write_text(text)
    with pytest.raises(Refusal, match=r"must hold inputs\.json as it was written"):
        run_ready(ready, out, resume=True)


@pytest.mark.parametrize("field", ["data", "backend"])
def test_a_line_on_other_inputs_has_no_control_characters(ready, out, field):
    found = json.loads((out / "inputs.json").read_text())
    found |= {field: "\x1b[31m", "checksums": {"\x1b[31m": ["\x1b[31m"]}}
    found["versions"] |= {"jax": "\x1b[31m"}
    (out / "inputs.json").write_text(json.dumps(found))
    with pytest.raises(Refusal) as caught:
        run_ready(ready, out, resume=True)
    assert "\x1b" not in str(caught.value)
    assert r"\x1b[31m" in str(caught.value)


def test_a_run_that_keeps_no_chunks_replaces_results_of_other_data(place, monkeypatch):
    replace_in(place / "people.csv", ",1\n", ",0\n")
    monkeypatch.setattr("fedprivjax.experiment.run._datasets", lambda *_, **__: RESULTS)
    ready = prepared(place)
    run_ready(ready, place / "out", keep=False)
    assert read_inputs(place / "out" / "inputs.json") == ready.inputs


@pytest.mark.parametrize("renames", sparing([0, 1, 2, 3], [1, 2]))
def test_a_kill_while_results_are_replaced_leaves_none_of_other_data(place, monkeypatch, renames):
    """By a run that keeps no chunks, between any two renames: old results never stand beside the new inputs."""
    replace_in(place / "people.csv", ",1\n", ",0\n")
    changed, out, left, rename = prepared(place), place / "out", [renames], os.replace

    def replaced(*paths):
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        rename(*paths)

    monkeypatch.setattr("fedprivjax.atomic_write.os.replace", replaced)
    with pytest.raises(KeyboardInterrupt):
        results_folder.save(RESULTS, out, experiment=changed.experiment, inputs=changed.inputs)
    monkeypatch.undo()
    with pytest.raises(Refusal, match="got results of other data"):
        run_ready(changed, out, resume=True, keep=False)


def test_inputs_identify_no_seed(ready, finished):
    """Two runs of the same data and code, with other secret samples and noise, have the same inputs."""
    other = ready_experiment(experiment.load(finished / "people.toml", {"sweep.seeds": [2]})).inputs
    assert other.programs
    assert ready.inputs == other


def test_inputs_do_not_tell_the_number_of_records(place, ready):
    """Digests of programs and partitions, which depend on it, are not those of other data of equal size."""
    replace_in(place / "people.csv", ",1\n", ",0\n")
    other = prepared(place)
    table = other.jobs[0].problem.partition_table
    assert table is not None
    np.testing.assert_array_equal(table.rows, ready.jobs[0].problem.partition_table.rows)
    assert other.inputs.programs != ready.inputs.programs
    assert other.inputs.checksums["partition"] != ready.inputs.checksums["partition"]


@pytest.mark.slow
def test_other_pilot_data_are_refused(place):
    """Of `[tuning]`, before the runs on the chosen points, and with finished results."""
    source = SPEC[SPEC.index("dataset") : SPEC.index("loss")]
    tuning = f"[tuning.problem]\n{source.replace('people', 'pilot')}"
    spec = SPEC.replace("METHOD", f"{METHOD}\ngrid = {{ step_size = [0.1, 0.2] }}")
    (place / "people.toml").write_text(spec + tuning)
    shutil.copy(place / "people.csv", place / "pilot.csv")
    replace_in(place / "pilot.csv", ",1\n", ",0\n")
    ready, out = prepared(place), place / "tuned"
    assert ready.before is not None
    results_folder.claim(out / results_folder.CHOICE, ready.before.experiment, ready.before.inputs)
    shutil.copy(place / "out" / "results.nc", out / results_folder.CHOICE)
    results_folder.claim(out, ready.experiment, ready.inputs, shared=True)
    replace_in(place / "pilot.csv", ",0\n", ",1\n")
    changed = prepared(place)
    for run in RUNS.values():
        with pytest.raises(Refusal, match=r"\[tuning\]: .*got results of other data '\S+pilot\.csv' \(\w+\.label"):
            run(changed, out)
    assert json.loads((out / results_folder.CHOICE / "inputs.json").read_text())["data"] == str(place / "pilot.csv")
