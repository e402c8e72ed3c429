import io

import pytest
from rich.cells import cell_len
from rich.console import Console

from fedprivjax.layout.text_table import Sheet, html_table, plain


def wide(count=6, keys=2):
    sheet = Sheet("accuracy of all that there is", keys=keys)
    sheet.add_columns("mu", "target ε", *(f"a rather long label {number}" for number in range(count)))
    for row in range(3):
        sheet.add_row(str(row), f"{row}.5 !", *(f"{10 * row + number}.25 ± 0.10" for number in range(count)))
    return sheet


@pytest.mark.parametrize("width", [40, 60, 80, 120, 300])
def test_nothing_is_lost_or_broken_at_any_width(width):
    sheet = wide()
    lines = plain(sheet, width).splitlines()
    assert max(map(cell_len, lines)) <= width
    text = "\n".join(lines)
    for row in sheet.rows:
        for cell in row[2:]:
            assert text.count(f" {cell} ") == 1
    tables = text.count("┏")
    assert text.count("2.5 !") == tables  # the keys stand in each
    assert tables == {40: 6, 60: 2, 80: 2, 120: 1, 300: 1}[width]


def test_constant_columns_of_a_wide_table_become_one_line():
    sheet = wide(3)
    sheet.add_columns("kind", "δ")
    for column, cell in zip(sheet.columns[-2:], ("explicit", "1e-05"), strict=True):
        column.cells += [cell] * 3
    lines = plain(sheet, 60).splitlines()
    assert lines[1] == "all rows: kind explicit; δ 1e-05"
    assert sum("explicit" in line for line in lines) == 1
    assert plain(sheet, 200).count("explicit") == 3  # it fits
    only = Sheet("a", keys=2)
    only.add_columns("protocol", "setting", justify="left")
    only.add_columns("ε", "a number of many words and its unit")
    for label in "xy":
        only.add_row(f"protocol {label}", "epsilon 1", "2.5", "1" * 30)
    assert plain(only, 40).count("2.5") == 2  # a table of names only has no number
    alone = Sheet("a")
    alone.add_columns("one", "two")
    for _ in range(2):
        alone.add_row("x" * 10, "y" * 10)
    assert "all rows" not in plain(alone, 20)  # nothing else would name the rows


def test_words_are_broken_between_words_only_and_too_long_ones_at_the_edge():
    sheet = Sheet("")
    sheet.add_columns("said", justify="left")
    sheet.add_columns("n")
    sheet.add_row("one two three four", "1")
    lines = plain(sheet, 16).splitlines()
    assert [word for line in lines[4:-1] for word in line.strip("│ ").replace("1", "").strip("│ ").split()] == (
        ["one", "two", "three", "four"]
    )
    sheet.add_row("x" * 50, "2")
    assert "".join(plain(sheet, 30).split()).count("x") == 50


def test_markup_of_users_is_text():
    sheet = Sheet("[red]title[/red]")
    sheet.add_columns("[bold]label", justify="left")
    sheet.add_row("[/] <b>cell</b>")
    shown = plain(sheet)
    assert all(words in shown for words in ("[red]title[/red]", "[bold]label", "[/] <b>cell</b>"))
    page = html_table(sheet)
    assert "<b>" not in page
    assert "&lt;b&gt;cell&lt;/b&gt;" in page
    assert sheet._repr_html_() == page


def test_a_frame_and_the_screen_have_the_same_cells():
    sheet = wide(2)
    assert sheet.frame.columns.tolist() == [column.header for column in sheet.columns]
    assert sheet.frame.values.tolist() == sheet.rows
    assert str(sheet) == plain(sheet)
    console = Console(width=100, file=io.StringIO())
    console.print(sheet)
    assert sheet.rows[0][2] in console.file.getvalue()


def test_rows_need_a_cell_for_each_column():
    with pytest.raises(ValueError, match="zip"):
        wide().add_row("1")


def test_the_text_is_the_same_in_a_notebook(monkeypatch):
    sheet = Sheet("accuracy")
    sheet.add_columns("mu")
    sheet.add_row("1")
    expected = str(sheet)
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    assert str(sheet) == expected
    assert "accuracy" in expected
