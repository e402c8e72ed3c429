"""Files about the project, which no user needs: versions and dependencies agree, and workflows are safe."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads(ROOT.joinpath("pyproject.toml").read_text())["project"]
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


@pytest.mark.parametrize("path", sorted(ROOT.glob(".github/ISSUE_TEMPLATE/*.yml")), ids=lambda path: path.stem)
def test_a_template_asks_for_all_that_it_needs(path):
    template = yaml.safe_load(path.read_text())
    if path.stem != "config":
        assert {"name", "description", "labels", "body"} <= set(template)
        assert all(field["validations"]["required"] for field in template["body"])
