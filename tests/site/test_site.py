"""The built site in a browser: no page overflows, cuts or overlaps text, or has too little contrast.

    .venv/bin/pytest -m site

`$FEDPRIVJAX_SITE` names the folder of the site. Default: `build/site`.
"""

import os
import re
from pathlib import Path

import pytest
from browser import CHROMIUM, THEMES, WIDTHS, Browser

ROOT = Path(__file__).parents[2]
SITE = Path(os.environ.get("FEDPRIVJAX_SITE", ROOT / "build" / "site"))
NOT_OURS = re.compile(r"_static|_modules/(?!index|fedprivjax)")  # such as the source of a decorator of Python
PAGES = [page.relative_to(SITE).as_posix() for page in sorted(SITE.rglob("*.html"))]
PAGES = [page for page in PAGES if not NOT_OURS.match(page)]
FAULTS = Path(__file__).with_name("page_faults.js").read_text(encoding="utf-8")
MOST_HEIGHT = 12_000  # pixels
LEAST_CONTRAST = 4.5  # of text to its background

pytestmark = pytest.mark.site


@pytest.fixture(scope="module")
def browser():
    if CHROMIUM is None:
        pytest.skip("needs Chromium")
    with Browser(CHROMIUM) as one:
        yield one


def faults(browser: Browser, page: Path) -> list[str]:
    """Faults of a page in every width and theme."""
    browser.open(page)
    found = []
    for width in WIDTHS:
        for theme in THEMES:
            browser.show(width, theme)
            found += [f"{width} {theme} {line}" for line in browser.value(f"{FAULTS}({MOST_HEIGHT}, {LEAST_CONTRAST})")]
    return found


@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_readable(browser, page):
    assert faults(browser, SITE / page) == []


SEARCHES = {
    "FedAvg": "methods/fedavg",
    "FedProx": "methods/fedavg",
    "DP-SGD": "methods/noisy_minibatch_sgd",
    "DP-FTRL": "mechanisms",
    "client-level": "guarantees",
    "user-level": "guarantees",
    "add or remove": "guarantees",
    "GPU": "10_on_a_gpu",
    "Slurm": "clusters",
    "CIFAR": "faq",
    "LSTM": "recipes",
    "transformer": "faq",
    "secure aggregation": "adversaries",
    "compression": "methods/fedavg",
    "personalization": "personal",
    "asynchronous": "topology",
    "how to cite": "faq",
    "license": "faq",
    "BibTeX": "faq",
    "W&B": "logging",
    "checkpoint": "faq",
    "memory": "faq",
}


def test_a_search_finds_its_page_first(browser):
    browser.open(SITE / "search.html")
    first = "(word => Search._performSearch(...Search._parseQuery(word)).pop()[0])"
    assert {word: browser.value(f"{first}({word!r})") for word in SEARCHES} == SEARCHES


FAULTY = """<!doctype html><html lang="en"><body style="margin: 0; font: 16px sans-serif"><article>
<p style="color: #777; background: #eee">pale</p>
<div style="width: 5em; overflow: hidden; white-space: nowrap">a line that its box cuts</div>
<p>under</p><p style="margin-top: -32px">over</p>
<mjx-container><mjx-c style="display: block; height: 40px; width: 40px"></mjx-c></mjx-container>
<p style="margin-top: -20px">text on a formula</p>
<pre style="overflow-x: auto; width: 5em">a line that scrolls</pre>
<img src="missing.png">
<div style="width: 1500px; height: 12000px">wide and tall</div>
</article></body></html>"""


def test_every_kind_of_fault_is_found(browser, tmp_path):
    page = tmp_path / "page.html"
    page.write_text(FAULTY)
    found = [line.split(": ")[0] for line in faults(browser, page) if line.startswith("1280 light")]
    kinds = [line.rpartition(" ")[2] for line in found]
    assert sorted(kinds) == ["alt", "contrast", "cut", "image", "overflow", "overlap", "overlap", "tall"]


def test_a_sound_page_has_no_faults(browser, tmp_path):
    page = tmp_path / "page.html"
    page.write_text('<!doctype html><html lang="en"><body><article><p>Text.</p><pre>code</pre></article></body></html>')
    assert faults(browser, page) == []
