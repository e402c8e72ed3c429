"""Python examples of README.md, the FAQ, a guide and the methods' pages run as printed, with the output below them."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [
    ROOT / "README.md",
    *(ROOT / "notebooks" / name for name in ("index.md", "faq.md", "logging.md", "custom_algorithm.md")),
    *sorted(ROOT.glob("notebooks/methods/*.md")),
]
EXAMPLE = re.compile(r"```python\n(.*?)```\n\n```text\n(.*?)```", re.DOTALL)
EXAMPLES = [
    pytest.param(code, output, id=f"{page.stem}-{index}")
    for page in PAGES
    for index, (code, output) in enumerate(EXAMPLE.findall(page.read_text(encoding="utf-8")))
]


@pytest.mark.slow
@pytest.mark.parametrize(("code", "output"), EXAMPLES)
def test_an_example_prints_what_is_below_it(code, output, tmp_path):
    shutil.copy(ROOT / "experiments/your-own/people.csv", tmp_path)
    command = [sys.executable, "-X", "utf8", "-c", code]
    ran = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", cwd=tmp_path, check=False)
    assert (ran.returncode, ran.stdout) == (0, output), ran.stderr
