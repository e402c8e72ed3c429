"""The README's map: every room is on it, and a room imports only rooms that stand above it."""

import ast
import re
from pathlib import Path

import pytest

import fedprivjax

PACKAGE = Path(fedprivjax.__file__).parent
README = Path(__file__).parents[1].joinpath("README.md").read_text(encoding="utf-8")
MAP = re.search(r"^    fedprivjax/\n((?:      .*\n)+)", README, re.MULTILINE)
assert MAP is not None
ROOMS = re.findall(r"^      (\w+)(?:/|\.py) ", MAP.group(1), re.MULTILINE)


def rooms_imported(path: Path) -> set[str]:
    """The package's rooms that a file imports, wherever in it; docstrings' examples do not count."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module == "fedprivjax":
            names |= {f"fedprivjax.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module or "")
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return {name.split(".")[1] for name in names if name.startswith("fedprivjax.")}


def test_the_map_lists_every_room_and_no_other():
    folders = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    files = {path.stem for path in PACKAGE.glob("*.py")} - {"__init__"}
    assert set(ROOMS) == folders | files
    assert len(set(ROOMS)) == len(ROOMS)


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_rooms_above_it(room):
    allowed = set(ROOMS[: ROOMS.index(room) + 1])
    for path in [*PACKAGE.joinpath(room).rglob("*.py"), *PACKAGE.glob(f"{room}.py")]:
        assert rooms_imported(path) <= allowed, path.name


@pytest.mark.parametrize("room", ["privacy", "theory"])
def test_rooms_of_the_host_trace_nothing(room):
    for path in PACKAGE.joinpath(room).rglob("*.py"):
        assert not re.search(r"^\s*(?:import|from) jax\b", path.read_text(encoding="utf-8"), re.MULTILINE), path.name
