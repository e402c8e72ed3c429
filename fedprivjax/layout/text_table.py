"""A table as columns of text, for terminals of any width, notebooks, HTML pages and data frames."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from html import escape
from io import StringIO
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Any, Literal

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions
from rich.table import Table
from rich.text import Text

from fedprivjax.checks.printable import printable

if TYPE_CHECKING:  # importing pandas takes a third of a second
    import pandas as pd

PLAIN_WIDTH = 120  # width in characters of output without a terminal, if $COLUMNS is unset
BORDER = 3  # characters between columns of a table: a line and two blanks

Justify = Literal["left", "right"]


@dataclass
class Column:
    """A column with its header and cells. Numbers are aligned right, text left."""

    header: str
    justify: Justify
    cells: list[str] = field(default_factory=list)

    @property
    def natural(self) -> int:
        """Width in characters without line breaks."""
        return max(map(cell_len, (self.header, *self.cells)))

    @property
    def least(self) -> int:
        """Smallest width in characters if text is broken between words. Numbers are never broken."""
        words = self.header.split()
        words += self.cells if self.justify == "right" else [word for cell in self.cells for word in cell.split()]
        return max(map(cell_len, words), default=1)


@dataclass
class Sheet:
    """A table. If it is too wide, columns with one value in all rows become a line above it.

    If it is still too wide, it is split into several, each starting with the first `keys` columns.

    Control characters of titles, headers and cells, such as those of a label from elsewhere, become escapes (`\\x1b`).

    >>> sheet = Sheet("accuracy")
    >>> sheet.add_columns("mu", "ours")
    >>> sheet.add_row("1", "0.5 ± 0.1")
    >>> [column.header for column in sheet.columns], sheet.rows
    (['mu', 'ours'], [['1', '0.5 ± 0.1']])
    """

    title: str
    keys: int = 1
    columns: list[Column] = field(default_factory=list)
    sections: set[int] = field(default_factory=set)

    def __post_init__(self):
        self.title = printable(self.title)

    def add_columns(self, *headers: str, justify: Justify = "right") -> None:
        """Add columns. All columns must be added before the first row."""
        self.columns += [Column(printable(header), justify) for header in headers]

    def add_row(self, *cells: str) -> None:
        """Add a row, with one cell per column."""
        for column, cell in zip(self.columns, cells, strict=True):
            column.cells.append(printable(cell))

    def add_section(self) -> None:
        """Add a line under the rows so far."""
        self.sections.add(len(self.rows))

    @property
    def rows(self) -> list[list[str]]:
        """Cells of each row."""
        return [list(cells) for cells in zip(*(column.cells for column in self.columns), strict=True)]

    @property
    def frame(self) -> "pd.DataFrame":
        """Data frame of the cells as text, with the headers as columns. Control characters are escaped."""
        import pandas as pd

        return pd.DataFrame(self.rows, columns=[column.header for column in self.columns])

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text | Table]:
        """Yield the titles and tables that fit the console's width."""
        width = options.max_width
        constant = self._constant(width)
        groups = list(self._groups(width, constant))
        for place, columns in enumerate(groups):
            part = f" ({place + 1} of {len(groups)})" if len(groups) > 1 else ""
            yield Text(self.title + part, style="italic")
            if constant and not place:
                yield Text("all rows: " + "; ".join(f"{column.header} {column.cells[0]}" for column in constant))
            table = Table()
            for column, size in zip(columns, _widths(columns, width), strict=True):
                table.add_column(Text(column.header), justify=column.justify, width=size, overflow="fold")
            for row, cells in enumerate(zip(*(column.cells for column in columns), strict=True), start=1):
                table.add_row(*map(Text, cells), end_section=row in self.sections)
            yield table

    def __str__(self) -> str:
        return plain(self)

    def _repr_html_(self) -> str:
        return html_table(self)

    def _constant(self, width: int) -> list[Column]:
        """Return the columns with one value in all rows, if the table is too wide and other columns name its rows."""
        if len(self.rows) < 2 or _total([column.natural for column in self.columns]) <= width:
            return []
        constant = [column for column in self.columns if column.cells[0] and len(set(column.cells)) == 1]
        if not any(column not in constant for column in self.columns[: self.keys]):
            return []
        here = [column for column in self.columns if column not in constant]
        if any(column not in self.columns[: self.keys] for column in here):
            return constant
        for column in self.columns[self.keys :]:  # all are constant: those that fit stay, so that the table has numbers
            if _total([each.least for each in (*here, column)]) <= width:
                here.append(column)
        return [column for column in constant if column not in here]

    def _groups(self, width: int, constant: list[Column]) -> Iterator[list[Column]]:
        """Yield the columns of each table: the key columns, and as many others as fit, without the constant ones."""
        keys, others = (
            [column for column in columns if column not in constant]
            for columns in (self.columns[: self.keys], self.columns[self.keys :])
        )
        here = list(keys)
        for column in others:
            if len(here) > len(keys) and _total([c.least for c in (*here, column)]) > width:
                yield here
                here = list(keys)
            here.append(column)
        yield here


def usual_width() -> int:
    """Return the width in characters: $COLUMNS, or the terminal's, or `PLAIN_WIDTH`."""
    return get_terminal_size((PLAIN_WIDTH, 24)).columns


def plain(renderable: Any, width: int | None = None) -> str:
    """Return a renderable as plain text, by default as wide as the terminal."""
    console = Console(width=width or usual_width(), file=StringIO(), color_system=None, force_jupyter=False)
    console.print(renderable)
    text = printable(console.file.getvalue())  # type: ignore[attr-defined]
    return "\n".join(line.rstrip() for line in text.splitlines())


def html_table(sheet: Sheet, *, caption: bool = True) -> str:
    """Return a sheet as an HTML table. All text is escaped, and ends of sections have a class."""
    head = "".join(f'<th scope="col" class="{c.justify}">{escape(c.header)}</th>' for c in sheet.columns)
    lines = []
    for number, row in enumerate(sheet.rows, start=1):
        cells = "".join(f'<td class="{c.justify}">{escape(x)}</td>' for c, x in zip(sheet.columns, row, strict=True))
        mark = ' class="section"' if number in sheet.sections else ""
        lines.append(f"<tr{mark}>{cells}</tr>")
    titles = [f"<caption>{escape(sheet.title)}</caption>"] if caption else []
    parts = (*titles, f"<thead><tr>{head}</tr></thead>", "<tbody>", *lines)
    return "\n".join(("<table>", *parts, "</tbody>", "</table>"))


def _total(widths: list[int]) -> int:
    return sum(widths) + BORDER * len(widths) + 1


def _widths(columns: list[Column], width: int) -> list[int]:
    """Return the widths of columns: the natural ones if all fit, else the smallest plus an equal part of the rest."""
    natural, sizes = [c.natural for c in columns], [c.least for c in columns]
    spare = width - _total(sizes)
    while spare > 0 and sizes != natural:
        for place in range(len(sizes)):
            if spare > 0 and sizes[place] < natural[place]:
                sizes[place] += 1
                spare -= 1
    return sizes
