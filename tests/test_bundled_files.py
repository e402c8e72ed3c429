"""A wheel's data files: the folder of bundled experiments is installed where `bundle` looks for it."""

import sysconfig
import tomllib
from pathlib import Path

from fedprivjax.experiment import read

ROOT = Path(__file__).parents[1]


def test_a_wheel_installs_the_experiments_where_they_are_looked_for(monkeypatch):
    """`.ci/packaging` builds the wheel, and compares its files with the folder's."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    shared = settings["tool"]["hatch"]["build"]["targets"]["wheel"]["shared-data"]
    monkeypatch.setattr(read, "__file__", "/elsewhere/fedprivjax/experiment/read.py")
    assert {Path(sysconfig.get_path("data"), target): ROOT / folder for folder, target in shared.items()} == {
        read.bundle(): ROOT / "experiments"
    }
