"""A wheel's data files: every bundled experiment and every file of reference vectors is listed in pyproject.toml."""

import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
BUNDLED = ("*.toml", "*.npz", "*.csv", "vectors/*")


def test_every_bundled_file_is_listed():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    listed = settings["tool"]["setuptools"]["data-files"]
    found = {}
    for target, patterns in listed.items():
        for pattern in patterns:
            for path in ROOT.glob(pattern):
                found[path] = target
    files = {path for pattern in BUNDLED for path in (ROOT / "experiments").rglob(pattern) if path.is_file()}
    files = {path for path in files if "__pycache__" not in path.parts}
    assert sorted(files - set(found)) == []
    for path in files:
        assert found[path] == f"share/fedprivjax/{path.parent.relative_to(ROOT)}"
