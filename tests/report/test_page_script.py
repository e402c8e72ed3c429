"""The script of `report.html` sorts and filters tables, in a browser."""

import re
import subprocess

import pytest
from jinja2 import Environment, PackageLoader

from fedprivjax.report.text_table import Sheet, html_table

ACTIONS = {
    "sort": "heads[1].click()",
    "sort_back": "heads[1].click(); heads[1].click()",
    "filter": "field.value = 'clip=1, 0.9'; field.dispatchEvent(new Event('input'))",
}
SHOWN = {  # rows of each action: a ditto mark is the value above it
    "sort": ["1 0.9 ± 0.1", "2 0.8", "2 > 0.7", "1 0.6", "1 0.5", "10 –"],
    "sort_back": ["10 –", "1 0.5", "1 0.6", "2 > 0.7", "2 0.8", "1 0.9 ± 0.1"],
    "filter": ["1 0.9 ± 0.1"],
}


@pytest.mark.browser
@pytest.mark.parametrize("action", ACTIONS)
def test_tables_are_sorted_and_filtered(action, tmp_path):
    sheet = Sheet("accuracy")
    sheet.add_columns("clip", "ours")
    for row in (["1", "0.5"], ["″", "0.9 ± 0.1"], ["2", "0.8"], ["″", "> 0.7"], ["10", "–"], ["1", "0.6"]):
        sheet.add_row(*row)
    source, *_ = PackageLoader("fedprivjax.report", "").get_source(Environment(), "page.html")
    (script,) = re.findall(r"<script>.*?</script>", source, re.DOTALL)
    found = "const heads = document.querySelectorAll('th'), field = document.querySelector('.filter')"
    after = f"<script>{found}; {ACTIONS[action]}"
    page = tmp_path / "page.html"
    page.write_text(
        f"<meta charset='utf-8'><div class='sortable'>{html_table(sheet)}</div>{script}{after}</script>",
        encoding="utf-8",
    )
    command = ["chromium", "--headless=new", "--no-sandbox", "--disable-gpu", "--dump-dom", page.as_uri()]
    found = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    rows = [row for row in re.findall(r"<tr.*?</tr>", found, re.DOTALL) if "<td" in row and "hidden" not in row]
    assert [" ".join(re.findall(r"<td[^>]*>(.*?)</td>", row)) for row in rows] == [
        row.replace(">", "&gt;") for row in SHOWN[action]
    ]
