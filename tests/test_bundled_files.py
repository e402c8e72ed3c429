"""Files beside the package: bundled experiments are where `bundle` looks for them, the changelog has its version."""

import re
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


def test_the_changelog_begins_with_the_version_of_the_package():
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.findall(r"^## (\S+)", text, re.MULTILINE)[0] == version
