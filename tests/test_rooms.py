"""The map of the architecture page: it lists every subpackage, and a subpackage imports only those listed above it."""

import ast
import re
from pathlib import Path

import pytest

import fedprivjax

PACKAGE = Path(fedprivjax.__file__).parent
PAGE = Path(__file__).parents[1].joinpath("notebooks/contributing.md").read_text(encoding="utf-8")
MAP = re.search(r"^    fedprivjax/\n((?:      .*\n)+)", PAGE, re.MULTILINE)
assert MAP is not None
SUBPACKAGES = re.findall(r"^      (\w+)(?:/|\.py) ", MAP.group(1), re.MULTILINE)


def described() -> dict[str, str]:
    """The map's description of every subpackage, by name."""
    parts = re.split(r"^      (?=\w)", MAP.group(1), flags=re.MULTILINE) if MAP else []
    return {re.split(r"\W", part)[0]: part for part in parts if part}


def imported(path: Path) -> set[str]:
    """Subpackages that a file imports, anywhere in it. Examples in docstrings do not count."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module == "fedprivjax":
            names |= {f"fedprivjax.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module or "")
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return {name.split(".")[1] for name in names if name.startswith("fedprivjax.")}


def test_the_map_lists_every_subpackage_and_no_other():
    folders = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    files = {path.stem for path in PACKAGE.glob("*.py")} - {"__init__"}
    assert set(SUBPACKAGES) == folders | files
    assert len(set(SUBPACKAGES)) == len(SUBPACKAGES)


def test_every_file_that_the_map_names_exists():
    for subpackage, text in described().items():
        for name in re.findall(r"\b\w+\.py\b", text):
            assert [*PACKAGE.glob(f"{subpackage}/**/{name}"), *PACKAGE.glob(name)], f"{subpackage}: {name}"


def test_every_path_that_the_page_names_exists():
    root = PACKAGE.parent
    for name in re.findall(r"`((?:fedprivjax|notebooks|tests|experiments)/[\w/.]*)`", PAGE):
        assert root.joinpath(name).exists(), name


@pytest.mark.parametrize("subpackage", SUBPACKAGES)
def test_a_subpackage_imports_only_those_above_it(subpackage):
    allowed = set(SUBPACKAGES[: SUBPACKAGES.index(subpackage) + 1])
    for path in [*PACKAGE.joinpath(subpackage).rglob("*.py"), *PACKAGE.glob(f"{subpackage}.py")]:
        assert imported(path) <= allowed, path.name


@pytest.mark.parametrize("subpackage", ["privacy", "theory"])
def test_subpackages_of_the_host_trace_nothing(subpackage):
    for path in PACKAGE.joinpath(subpackage).rglob("*.py"):
        assert not re.search(r"^\s*(?:import|from) jax\b", path.read_text(encoding="utf-8"), re.MULTILINE), path.name
