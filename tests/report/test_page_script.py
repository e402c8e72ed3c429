"""Tables of `report.html` are sorted and filtered by its script, and figures switched without one, in a browser."""

import re

import pytest
from browser import CHROMIUM, Browser
from jinja2 import Environment, PackageLoader

from fedprivjax.layout.text_table import Sheet, html_table

FOUND = "const heads = document.querySelectorAll('th'), field = document.querySelector('.filter')"
ACTIONS = {
    "sort": "heads[1].click()",
    "sort_back": "heads[1].click(); heads[1].click()",
    "filter": "field.value = 'clip=1, 0.9'; field.dispatchEvent(new Event('input'))",
}
ROWS = """[...document.querySelectorAll('tr')]
    .filter(row => row.querySelector('td') && !row.hidden)
    .map(row => [...row.querySelectorAll('td')].map(cell => cell.textContent).join(' '))"""
SHOWN = {  # rows after each action: a ditto mark is the value above it
    "sort": ["1 0.9 ± 0.1", "2 0.8", "2 > 0.7", "1 0.6", "1 0.5", "10 –"],
    "sort_back": ["10 –", "1 0.5", "1 0.6", "2 > 0.7", "2 0.8", "1 0.9 ± 0.1"],
    "filter": ["1 0.9 ± 0.1"],
}


@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
@pytest.mark.parametrize("action", ACTIONS)
def test_tables_are_sorted_and_filtered(action, tmp_path):
    sheet = Sheet("accuracy")
    sheet.add_columns("clip", "ours")
    for row in (["1", "0.5"], ["″", "0.9 ± 0.1"], ["2", "0.8"], ["″", "> 0.7"], ["10", "–"], ["1", "0.6"]):
        sheet.add_row(*row)
    source, *_ = PackageLoader("fedprivjax.report", "").get_source(Environment(), "page.html")
    (script,) = re.findall(r"<script>.*?</script>", source, re.DOTALL)
    page = tmp_path / "page.html"
    text = f"<meta charset='utf-8'><div class='sortable'>{html_table(sheet)}</div>{script}"
    page.write_text(text, encoding="utf-8")
    with Browser(str(CHROMIUM)) as browser:
        browser.open(page)
        assert browser.value(f"{FOUND}; {ACTIONS[action]}; {ROWS}") == SHOWN[action]


@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
def test_a_button_shows_its_figure_alone(tmp_path):
    source, *_ = PackageLoader("fedprivjax.report", "").get_source(Environment(), "page.html")
    (style,) = re.findall(r"<style>.*?</style>", source, re.DOTALL)
    button = "<input type=radio name=plot id={0}><label for={0}>{0}</label> <figure>{0}</figure>"
    plots = "".join(map(button.format, "ab"))
    page = tmp_path / "page.html"
    page.write_text(f"{style}<fieldset class=switch>{plots}</fieldset>", encoding="utf-8")
    seen = "[...document.querySelectorAll('figure')].filter(one => one.offsetHeight).map(one => one.textContent)"
    with Browser(str(CHROMIUM)) as browser:
        browser.open(page)
        for name in "aba":
            assert browser.value(f"document.querySelector('label[for={name}]').click(); {seen}") == [name]
