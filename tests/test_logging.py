"""Examples of the page on logging: what they leave on disk, and that tuning compiles once."""

import json
import re
import struct
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[1] / "notebooks/logging.md"
pytestmark = pytest.mark.slow
COUNT = """
import json
import jax
import optuna
compiled, trials = [], []
jax.monitoring.register_event_duration_secs_listener(
    lambda name, seconds, **_: compiled.append(name) if "backend_compile" in name else None
)
told = optuna.Study.tell
def tell(study, trial, value):
    trials.append(len(compiled))
    return told(study, trial, value)
optuna.Study.tell = tell
"""


def example(heading: str) -> str:
    """Code under a heading of the page."""
    section = PAGE.read_text(encoding="utf-8").partition(f"## {heading}\n")[2]
    found = re.search(r"```python\n(.*?)```", section, re.DOTALL)
    assert found is not None
    return found[1]


def printed(code: str, folder: Path) -> str:
    """What a program prints that runs in a folder."""
    command = [sys.executable, "-X", "utf8", "-c", code]
    ran = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", cwd=folder, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def scalars(folder: Path) -> list[tuple[str, int, float]]:
    """Tags, steps and values in the event files of a folder."""
    from tensorboardX.proto.event_pb2 import Event

    found = []
    for file in sorted(folder.glob("events*")):
        content, place = file.read_bytes(), 0
        while place < len(content):
            (size,) = struct.unpack("<Q", content[place : place + 8])
            event = Event.FromString(content[place + 12 : place + 12 + size])
            found += [(value.tag, event.step, value.simple_value) for value in event.summary.value]
            place += 12 + size + 4
    return found


def test_tensorboard_gets_every_metric_of_every_evaluation(tmp_path):
    code = example("TensorBoard") + "import json\nprint(json.dumps([run.rounds.tolist(), sorted(run.metrics)]))\n"
    code += "print(json.dumps(run.metrics['test_accuracy'].tolist()))\n"
    _, shape, accuracies = printed(code, tmp_path).splitlines()
    (rounds, names), found = json.loads(shape), scalars(tmp_path / "runs/dp_mu2")
    assert sorted((tag, step) for tag, step, _ in found) == [(name, done) for name in names for done in rounds]
    assert [value for tag, _, value in found if tag == "test_accuracy"] == json.loads(accuracies)


def test_every_run_of_a_sweep_has_its_folder(tmp_path):
    printed(example("A sweep"), tmp_path)
    folders = sorted((tmp_path / "runs").iterdir())
    assert [folder.name for folder in folders] == [f"mu={mu},seed={seed}" for mu in (2.0, 8.0) for seed in (0, 1)]
    for folder in folders:
        steps = sorted(step for tag, step, _ in scalars(folder) if tag == "test_accuracy")
        assert steps == [24, 48, 71]


def test_trials_of_optuna_compile_nothing_after_the_first(tmp_path):
    code = COUNT + example("Tuning with Optuna") + "print(json.dumps(trials))\n"
    compiled = json.loads(printed(code, tmp_path).splitlines()[-1])
    assert len(compiled) == 20
    assert compiled[0] > 0
    assert compiled == [compiled[0]] * 20
