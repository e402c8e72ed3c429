"""The documentation site: every public name has an entry in the reference, and every page is in a table of contents."""

import importlib
import inspect
import re
from collections import Counter
from pathlib import Path

import pytest

PAGES = Path(__file__).parents[1] / "notebooks"
SUBPACKAGES = [
    "",
    ".datasets",
    ".features",
    ".noise",
    ".noise.factors",
    ".planner",
    ".privacy",
    ".privacy.gdp",
    ".testing",
    ".theory",
]
PAPERS = [".theory.cheu", ".theory.lowy_razaviyayn", ".theory.tran_cutkosky"]
DIRECTIVE = re.compile(r"^\.\. auto(?:class|function|data):: (\S+)$", re.MULTILINE)
ENTRIES = Counter(name for page in PAGES.glob("reference/*.rst") for name in DIRECTIVE.findall(page.read_text()))


def public_names(module) -> list[str]:
    """What a module offers, by full name, without modules."""
    own = [name for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__]
    names = getattr(module, "__all__", [name for name in own if not name.startswith("_")])
    return [f"{module.__name__}.{name}" for name in names if not inspect.ismodule(getattr(module, name))]


@pytest.mark.parametrize("subpackage", [*SUBPACKAGES, *PAPERS])
def test_no_public_name_is_without_an_entry(subpackage):
    module = importlib.import_module(f"fedprivjax{subpackage}")
    names = public_names(module)
    entries = {inspect_place(entry) for entry in ENTRIES}
    assert names
    assert [name for name in names if inspect_place(name) not in entries] == []


def inspect_place(name: str) -> int:
    """The object that a full name leads to: some have two names, and one entry."""
    module, _, last = name.rpartition(".")
    return id(getattr(importlib.import_module(module), last))


def test_no_name_has_two_entries():
    assert [name for name, count in ENTRIES.items() if count > 1] == []


def test_every_page_is_in_one_table_of_contents():
    pages = {path.relative_to(PAGES).with_suffix("").as_posix() for path in PAGES.rglob("*.*") if is_page(path)}
    assert Counter(listed()) == Counter(pages - {"index"})


def listed() -> list[str]:
    """Names of the pages in the tables of contents of all Markdown pages."""
    names = []
    for page in PAGES.rglob("*.md"):
        folder = page.parent.relative_to(PAGES)
        for tree in re.findall(r"```{toctree}\n(.*?)```", page.read_text(), re.DOTALL):
            names += [(folder / line).as_posix() for line in tree.splitlines() if re.fullmatch(r"\w[\w/]*", line)]
    return names


def is_page(path: Path) -> bool:
    built = path.parent.name == "classes"  # of the reference, written while the site is built
    return path.suffix in (".md", ".rst", ".ipynb") and not built and not path.parent.name.startswith(".")


@pytest.mark.parametrize("page", [PAGES.parent / "README.md", *sorted(PAGES.rglob("*.md"))], ids=lambda page: page.stem)
def test_code_on_a_page_is_at_most_88_columns_wide(page):
    """Ruff checks notebooks, see `notebooks/ruff.toml`."""
    blocks = re.findall(r"^```(?:python|{code-cell})[^\n]*\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    assert [line for block in blocks for line in block.splitlines() if len(line) > 88] == []


@pytest.mark.parametrize(
    "page", [page for page in PAGES.glob("[mp]*/*.md") if page.stem != "index"], ids=lambda page: page.stem
)
def test_a_page_of_a_method_or_paper_has_a_picture_and_of_a_paper_its_citation(page):
    text = page.read_text()
    assert re.search(r"^```{(?:frontier|round|published|image)}", text, re.MULTILINE)
    if page.parent.name == "papers":
        (number,) = set(re.findall(r"arxiv\.org/abs/([\d.]+)", text))
        assert f"https://doi.org/10.48550/arXiv.{number}" in text
        assert f"eprint    = {{{number}}}" in text


@pytest.mark.parametrize("page", sorted(PAGES.rglob("*.md")), ids=lambda page: page.relative_to(PAGES).as_posix())
def test_a_label_with_the_words_of_a_heading_stands_above_it(page):
    text = page.read_text()
    headings = {re.sub(r"\W+", "-", words.lower()) for words in re.findall(r"^#+ (.+)$", text, re.MULTILINE)}
    labels = re.findall(r"^\(([\w-]+)\)=\n+(?:#+ )?(.*)$", text, re.MULTILINE)
    assert [(label, words) for label, words in labels if label in headings - {re.sub(r"\W+", "-", words.lower())}] == []


@pytest.mark.slow  # continuous integration runs slow tests with the extra "docs", which has docutils
def test_every_formula_is_understood():
    latex2mathml = pytest.importorskip("docutils.utils.math.latex2mathml")
    formulas = []
    for page in PAGES.rglob("*.md"):
        prose = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
        formulas += re.findall(r"\$\$(.+?)\$\$", prose, re.DOTALL) + re.findall(r"(?<!\$)\$([^$\n]+)\$(?!\$)", prose)
    assert len(formulas) > 20
    for formula in formulas:
        assert latex2mathml.tex2mathml(formula)


def test_every_attempt_on_a_guarantee_is_a_test():
    page = (PAGES / "how_a_guarantee_is_kept.md").read_text(encoding="utf-8")
    table = page.split("| attempt | result | test |")[1].split("\n\n")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]
    assert len(rows) > 40
    for _, result, test in rows:
        assert re.match(r"bound holds|refused|printed", result), result
        file, _, name = test.strip("`").partition("::")
        assert f"\ndef {name}(" in (PAGES.parent / "tests" / file).read_text(encoding="utf-8"), test
