"""Python examples of README.md and of pages run as printed, with the output below them."""

import re
import shutil
import sys
import warnings
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [
    ROOT / "README.md",
    *(
        ROOT / "notebooks" / name
        for name in (
            "index.md",
            "faq.md",
            "logging.md",
            "custom_algorithm.md",
            "adversaries.md",
            "mechanisms.md",
            "topology.md",
            "federations.md",
            "personal.md",
            "python_interface.md",
            "recipes.md",
            "sharp_edges.md",
        )
    ),
    *sorted(ROOT.glob("notebooks/methods/*.md")),
]
EXAMPLE = re.compile(r"```python\n((?:(?!```).)*)```\n\n```text\n(.*?)```", re.DOTALL)
LONG = ("mechanisms-1",)  # run longer than they compile
EXAMPLES = [
    pytest.param(code, output, id=name, marks=[pytest.mark.optimised] if name in LONG else [])
    for page in PAGES
    for index, (code, output) in enumerate(EXAMPLE.findall(page.read_text(encoding="utf-8")))
    for name in [f"{page.stem}-{index}"]
]


@pytest.mark.slow
@pytest.mark.parametrize(("code", "output"), EXAMPLES)
def test_an_example_prints_what_is_below_it(code, output, tmp_path, monkeypatch, capsys):
    """Examples run in this process, which has imported the package, each as a program of its own."""
    shutil.copy(ROOT / "experiments/your-own/people.csv", tmp_path)
    monkeypatch.chdir(tmp_path)
    program = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", program)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec(compile(code, "<example>", "exec"), program.__dict__)
    assert capsys.readouterr().out == output
