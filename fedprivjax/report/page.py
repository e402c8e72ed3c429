"""Results as one self-contained HTML page: tables, plots, guarantees and their limits, settings, provenance."""

import re
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup, escape
from matplotlib.figure import Figure
from pydantic import BaseModel, Field

from fedprivjax.atomic_write import write_atomically
from fedprivjax.bounded_read import json_from
from fedprivjax.checks.printable import printable
from fedprivjax.experiment.results import Results
from fedprivjax.layout.drawing import SAFE, as_address, stack_panels
from fedprivjax.layout.text_table import html_table
from fedprivjax.layout.wording import grouped, points_of
from fedprivjax.privacy.guarantee import LARGE_EPSILON, PrivacyGuarantee
from fedprivjax.privacy.paragraph import PRNG
from fedprivjax.report import display
from fedprivjax.report.remarks import attributes, is_large, names_in
from fedprivjax.report.summary import Summary

PAGE, RUN_FIGURES = "report.html", "run_figures.json"
LEADS = ("_against_epsilon", "_over_grid")  # ends of the names of plots at the top of the page, the first of each
LONG = 24  # largest number of rows of a table that is open
LEAST, MOST = 59, 115  # smallest and largest pixels per inch of a plot; below the smallest it is scrolled, not shrunk
ADDRESS = rf"^data:image/svg\+xml,[\w%.~{re.escape(SAFE)}-]*$"  # no quotes, no tags
NARROW = "^$|" + ADDRESS.replace(re.escape(" "), "")  # a srcset ends an address at a space
WIDE, FIGURES = 5_000_000, 8  # largest number of characters of an address, and of figures of a run


class Drawn(BaseModel):
    """A figure as the page shows it.

    Attributes:
        name: title.
        address, narrow: `data:` URLs of the figure and, for a phone, of its stacked panels, or "" without these.
        least, most: smallest and largest width in pixels.
    """

    name: str
    address: str = Field(pattern=ADDRESS, max_length=WIDE)
    narrow: str = Field(pattern=NARROW, max_length=WIDE)
    least: int = Field(ge=1, le=10_000)
    most: int = Field(ge=1, le=10_000)


class RunFigures(BaseModel):
    """Name and figures of one run, and the date of its results: the content of `run_figures.json`."""

    run: str = ""
    figures: list[Drawn] = Field(default=[], max_length=FIGURES)
    date: str | None = None


NONE = RunFigures()


def write_page(
    this: Summary, results: Results, plots: Mapping[str, Figure], of_run: tuple[str, Mapping[str, Figure]] | None = None
) -> Path:
    """Write `report.html` into the results folder, and return its path.

    Args:
        plots: figures of all runs, by name.
        of_run: name and figures of one run, which are written to the folder, too, or None for those that it holds.
    """
    file, kept, shown = results.folder / PAGE, results.folder / RUN_FIGURES, NONE
    date = results.provenance.get("date")
    if of_run is not None:
        shown = RunFigures(run=of_run[0], figures=as_drawn(of_run[1]), date=date)
        write_atomically(kept, shown.model_dump_json())
    else:
        with suppress(OSError, ValueError):  # missing or damaged: the page has none
            shown = RunFigures.model_validate(json_from(kept, follow=False))
        shown = shown if shown.date == date else NONE  # figures of other results
    write_atomically(file, page(this, results, plots, shown))
    return file


def page(this: Summary, results: Results, plots: Mapping[str, Figure], of_run: RunFigures = NONE) -> str:
    """Return the page as HTML. User-defined text is escaped, and so are its control characters."""
    tables = display.tables(this)
    drawn = dict(zip(plots, as_drawn(plots), strict=True))
    leads = [next((name for name in drawn if name.endswith(end)), None) for end in LEADS]
    return _template().render(
        title=this.title or str(results.folder),
        notes=this.notes,
        tables=[(sheet.title, Markup(html_table(sheet, caption=False)), len(sheet.rows)) for sheet in tables.sheets],
        long=LONG,
        remarks=[line for line in tables.notes if line != this.notes],
        leads=[drawn.pop(name) for name in leads if name is not None],
        plots=[*drawn.values(), *of_run.figures],
        run=of_run.run,
        guarantees={label: guarantee_texts(data) for label, data in this.best.items()},
        not_covered=not_covered(this.best, drawn="partition" in plots),
        settings=without_empty_sections(results.settings),
        origin=_rows(results.provenance),
    )


def guarantee_texts(data: xr.Dataset) -> dict[str, str]:
    """Return the distinct guarantees of a protocol's configurations as text, each with the points at which it holds.

    An axis on which no guarantee depends is named once per point, as "any clip".
    """
    read = {text: PrivacyGuarantee.from_json(text).paragraph() for text in set(np.ravel(data["guarantee"]).tolist())}
    texts = xr.apply_ufunc(read.get, data["guarantee"], vectorize=True, output_dtypes=[object])
    free = [str(name) for name in texts.dims if texts.sizes[name] > 1 and (texts == texts.isel({name: 0})).all()]
    texts = texts.isel(dict.fromkeys(free, 0))
    found = []
    for point in points_of({str(name): texts[name].values.tolist() for name in texts.dims}):
        words = [*(f"{name} = {value:g}" for name, value in point.items()), *(f"any {name}" for name in free)]
        found.append((texts.sel(point).item(), ", ".join(words)))
    return {text: "; ".join(points) for text, points in grouped(found).items()}


def not_covered(best: Mapping[str, xr.Dataset], *, drawn: bool = False) -> list[str]:
    """Return the limits of the guarantees on the page, one sentence each.

    Args:
        drawn: whether the page has a plot of the partition.
    """
    chosen = [f"{label}: {data.attrs['selected']}" for label, data in best.items() if "selected" in data.attrs]
    private = names_in(best, "non_private_metrics")
    large = [label for label, data in best.items() if is_large(data)]
    none = [label for label, data in best.items() if np.isinf(data["realised_epsilon"]).any()]
    return [
        "Hyper-parameters that are chosen from these results, and the preparation of the data.",
        *chosen,
        *(f"Computed from private records: {text}." for text in attributes(best, "non_private_data")),
        *["The plot of the partition, which counts private records and labels."] * drawn,
        *([f"Metrics computed on private data: {', '.join(private)}."] if private else []),
        *([f"ε > {LARGE_EPSILON:g} protects little by itself: {'; '.join(large)}."] if large else []),
        *(f"Warning: {text}." for text in attributes(best, "delta_warning")),
        *([f"Runs without privacy: {'; '.join(none)}."] if none else []),
        "The composition of several runs on the same data: each guarantee is for one run.",
        "The checksums of the data, below and in `inputs.json`, which are computed from private data.",
        PRNG,
    ]


def without_empty_sections(settings: str) -> str:
    """Return the text of an experiment file without the headers of tables that have no keys.

    >>> without_empty_sections("[protocol.grid]\\n\\n[sweep]\\nseeds = 5\\n\\n[evaluation.at]\\n")
    '[sweep]\\nseeds = 5\\n'
    """
    kept = re.sub(r"^\[[^\[\]\n]+\]\n+(?=\[|\Z)", "", settings, flags=re.MULTILINE)
    return re.sub(r"\n+\Z", "\n", kept)


def as_drawn(figures: Mapping[str, Figure]) -> list[Drawn]:
    """Return figures for the page. Their panels are stacked in the end, as a phone shows them."""
    found = []
    for name, figure in figures.items():
        inches, wide = figure.get_figwidth(), as_address(figure)
        narrow = as_address(figure).replace(" ", "%20") if stack_panels(figure) else ""  # a srcset has no spaces
        sizes = {"least": round(LEAST * inches), "most": round(MOST * inches)}
        found.append(Drawn(name=name.replace("_", " "), address=wide, narrow=narrow, **sizes))
    return found


def _rows(provenance: Mapping[str, Any], above: str = "") -> list[tuple[str, str]]:
    """Return names and values as text, with the path as the name of a nested value."""
    rows: list[tuple[str, str]] = []
    for name, value in provenance.items():
        if isinstance(value, Mapping):
            rows += _rows(value, f"{above}{name} ")
        else:
            rows.append((above + name, ", ".join(map(str, value)) if isinstance(value, list) else str(value)))
    return rows


@cache
def _template() -> Template:
    loader = PackageLoader("fedprivjax.report", "")
    options: dict[str, Any] = {"autoescape": True, "undefined": StrictUndefined, "trim_blocks": True}
    environment = Environment(loader=loader, finalize=_printable, **options)
    environment.filters["prose"] = _prose
    return environment.get_template("page.html")


def _prose(text: str) -> Markup:
    """Return escaped text, with what is in backticks as code."""
    return Markup(re.sub("`([^`]+)`", r"<code>\1</code>", str(escape(printable(text)))))


def _printable(value: Any) -> Any:
    """Return text as in `printable`. Tables are so already."""
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value
