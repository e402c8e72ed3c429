"""No text of a file or an argument reaches a terminal as control characters, or fills a message."""

import io
import warnings
from time import perf_counter

import pytest
from rich.table import Table

from fedprivjax import Refusal
from fedprivjax.checks.printable import LINE, LINES, is_hidden, message_text, printable
from fedprivjax.checks.refusal import warn, within
from fedprivjax.checks.values import require_printable
from fedprivjax.cli.console import PrintableConsole
from fedprivjax.experiment.results import UnknownLabel
from fedprivjax.layout.text_table import Sheet
from fedprivjax.report.frame import latex

HOSTILE = "\x1b[31m\x07\r\x9b2J\u202egnp\u2066\u200b\ufeff\u2028\U000e0041\udc80"
ESCAPED = r"\x1b[31m\x07\r\x9b2J\u202egnp\u2066\u200b\ufeff\u2028\U000e0041\udc80"


def test_control_and_invisible_characters_become_escapes():
    assert printable(HOSTILE) == ESCAPED
    assert printable(ESCAPED) == ESCAPED
    kept = "μ²\n– ε ≥ 1, 中文, naïve\u00a0é, é"
    assert printable(kept) == kept


@pytest.mark.parametrize("kind", [Refusal, UnknownLabel])
def test_messages_have_no_control_characters(kind):
    with pytest.raises(Refusal) as caught, within(f"[[protocol]] {HOSTILE}"):
        raise kind(f"title must be short, got {HOSTILE}")
    assert str(caught.value) == f"[[protocol]] {ESCAPED}: title must be short, got {ESCAPED}"
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        warn(HOSTILE)
    assert str(said[0].message) == ESCAPED


@pytest.mark.parametrize(
    "value",
    [
        "'" + "a b" * 10**5 + "'",
        '"' + "a b" * 10**5 + '"',
        "a" * 10**6,
        str([1] * 10**5),
        "(" * 10**5,
        "{'a': 1}" * 999,
    ],
)
def test_messages_have_at_most_200_characters_of_a_value(value):
    start = perf_counter()
    found = message_text(f"title must be short, got {value}. Shorten it")
    assert perf_counter() - start < 1
    assert found.startswith(f"title must be short, got {value[:150]}")
    assert len(found) < 260


def test_long_messages_without_long_values_are_whole():
    prose = "the machine's records must be 'many', got 5 of 'few'. " * 10
    assert message_text(prose) == prose
    assert message_text("\n".join([prose] * LINES)) == "\n".join([prose] * LINES)
    assert message_text("\n".join("ab" * 999)).splitlines()[LINES:] == ["and 1978 more lines"]
    assert len(message_text("a b " * 10**4)) == LINE


def test_texts_that_are_written_are_refused():
    require_printable("notes", "one\ntwo")
    for text in (HOSTILE, *filter(is_hidden, HOSTILE)):
        with pytest.raises(Refusal, match=r"^notes must have no control or invisible characters, got '[^\n]+$"):
            require_printable("notes", text)
    with pytest.raises(Refusal, match="title must have no control"):
        require_printable("title", "one\ntwo", breaks=False)


def test_tables_and_frames_are_escaped():
    sheet = Sheet(HOSTILE)
    sheet.add_columns(HOSTILE, "mean")
    sheet.add_row(HOSTILE, "1")
    assert (sheet.title, sheet.frame.columns[0], sheet.frame.iloc[0, 0]) == (ESCAPED, ESCAPED, ESCAPED)
    for text in (str(sheet), sheet._repr_html_(), latex(HOSTILE)):
        assert not any(map(is_hidden, text))


def test_the_console_prints_escapes_and_its_own_colours():
    console = PrintableConsole(file=io.StringIO(), force_terminal=True, width=300, color_system="standard")
    table = Table(HOSTILE)
    table.add_row(HOSTILE)
    for each in (HOSTILE, table):
        console.print(each, markup=False, highlight=False, style="bold")
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert ESCAPED.replace(r"\x07\r", "") in text  # rich removes both
    assert "\x1b[1m" in text
    assert not any(map(is_hidden, text.replace("\x1b[1m", "").replace("\x1b[0m", "").replace("\x1b[1;1m", "")))
