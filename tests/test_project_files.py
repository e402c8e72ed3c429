"""Files about the project, which no user needs: versions and dependencies agree, and workflows are safe."""

import importlib.util
import json
import re
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads(ROOT.joinpath("pyproject.toml").read_text())["project"]
DUMMY = {
    "repository": "https://github.com/someone/fedprivjax",
    "documentation": "https://someone.github.io/fedprivjax",
    "package": "fedprivjax-of-someone",
}
WORKFLOWS = sorted(ROOT.glob(".github/workflows/*.yml"))


def test_versions_agree():
    citation, recipe = (
        yaml.safe_load(ROOT.joinpath(name).read_text()) for name in ("CITATION.cff", ".conda/meta.yaml")
    )
    assert citation["version"] == recipe["package"]["version"] == PROJECT["version"]
    assert citation["license"] == recipe["about"]["license"] == PROJECT["license"]
    assert f"version = {{{PROJECT['version']}}}" in ROOT.joinpath("README.md").read_text()


def test_the_conda_recipe_has_the_dependencies_of_the_package():
    needed = yaml.safe_load(ROOT.joinpath(".conda/meta.yaml").read_text())["requirements"]["run"]
    assert [each.replace(" ", "") for each in needed] == [
        f"python{PROJECT['requires-python']}",
        *PROJECT["dependencies"],
    ]


@pytest.fixture(scope="module")
def addresses():
    """The module from which all addresses of the project come."""
    spec = importlib.util.spec_from_file_location("addresses", ROOT / "notebooks/addresses.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["README.md", "CITATION.cff", "pyproject.toml"])
def test_files_have_the_addresses_of_the_table(addresses, name):
    text = ROOT.joinpath(name).read_text()
    known = addresses.Addresses.of_project()
    assert known.written(text) == text
    written = addresses.Addresses(**DUMMY).written(text)
    assert known.written(written) == text
    added = set(written.splitlines()) - set(text.splitlines())
    assert added
    assert all(any(value in line for value in DUMMY.values()) for line in added)


def test_the_installation_begins_with_the_package_and_the_clone(addresses):
    lines = addresses.Addresses(**DUMMY).written(ROOT.joinpath("README.md").read_text()).splitlines()
    assert "    pip install fedprivjax-of-someone" in lines
    assert "    git clone https://github.com/someone/fedprivjax && cd fedprivjax" in lines


def test_links_of_a_page_elsewhere_are_absolute(addresses):
    text = "[a](notebooks/a.md) ![b](b.png) [c](https://x.org) [d](#e)"
    assert addresses.Addresses().absolute(text) == text
    blob, raw = (
        "https://github.com/someone/fedprivjax/blob/main",
        "https://raw.githubusercontent.com/someone/fedprivjax",
    )
    expected = f"[a]({blob}/notebooks/a.md) ![b]({raw}/main/b.png) [c](https://x.org) [d](#e)"
    assert addresses.Addresses(**DUMMY).absolute(text) == expected


def test_a_guide_opens_in_colab_once_there_is_a_repository(addresses):
    assert addresses.Addresses().colab("01_first_run") == ""
    link = addresses.Addresses(**DUMMY).colab("01_first_run")
    assert "colab.research.google.com/github/someone/fedprivjax/blob/main/notebooks/01_first_run.ipynb" in link
    assert json.loads(ROOT.joinpath("notebooks/01_first_run.ipynb").read_text())["cells"][0]["cell_type"] == "markdown"


@pytest.mark.parametrize("path", WORKFLOWS, ids=[path.stem for path in WORKFLOWS])
def test_a_workflow_may_read_and_runs_what_was_reviewed(path):
    workflow = yaml.safe_load(path.read_text())
    assert workflow["permissions"] == {"contents": "read"}
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    for step in steps:
        if "uses" in step:
            assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", step["uses"])
        assert "${{" not in step.get("run", "")  # an expression in a script would run what a branch is called
    checkouts = [step for step in steps if step.get("uses", "").startswith("actions/checkout@")]
    assert all(step["with"]["persist-credentials"] is False for step in checkouts)


def test_the_paper_cites_what_its_bibliography_has():
    paper, bibliography = (ROOT.joinpath(f".joss/paper.{kind}").read_text() for kind in ("md", "bib"))
    cited = set(re.findall(r"@(\w+)", paper.partition("---\n\n")[2]))
    assert cited == set(re.findall(r"^@\w+{(\w+),", bibliography, re.MULTILINE))
    assert ROOT.joinpath(".joss", re.findall(r"\]\(([^)]+\.png)\)", paper)[0]).is_file()


@pytest.mark.parametrize("path", sorted(ROOT.glob(".github/ISSUE_TEMPLATE/*.yml")), ids=lambda path: path.stem)
def test_a_template_asks_for_all_that_it_needs(path):
    template = yaml.safe_load(path.read_text())
    if path.stem != "config":
        assert {"name", "description", "labels", "body"} <= set(template)
        assert all(field["validations"]["required"] for field in template["body"])
