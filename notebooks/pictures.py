"""Directives for pictures of methods' and papers' pages, drawn when the site is built."""

import re
from collections import Counter
from html import escape
from pathlib import Path
from typing import ClassVar

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

import fedprivjax
from fedprivjax.layout.colours import colour, new_figure
from fedprivjax.layout.drawing import as_address

QUOTED = re.compile(r"(−?[\d.]+) ± ([\d.]+) \((−?[\d.]+)\)")  # measured ± interval (published)


def picture(figure, alt: str, width: str = "100%") -> nodes.raw:
    """Return a figure as an image with an alternative text."""
    image = f'<p><img src="{as_address(figure)}" alt="{escape(alt)}" style="width: {width}"></p>'
    return nodes.raw("", image, format="html")


class Frontier(SphinxDirective):
    """The panels of the experiment with most values of ε of a method on the leaderboard, by its name in files."""

    required_arguments = 1

    def run(self):
        (method,) = self.arguments
        board = fedprivjax.leaderboard()
        levels = {(row["experiment"], row["target_epsilon"]) for row in board.rows if row["protocol"] == method}
        ((experiment, _),) = Counter(name for name, _ in sorted(levels)).most_common(1)
        alt = f"Test metric against ε of the methods of {experiment}, among them {method}"
        part = board.of(experiment)
        commands = " and ".join(f"`{command}`" for command in dict.fromkeys(part.frame.command))
        text = f"{commands}, from the rows of the [leaderboard](/leaderboard.ipynb)."
        return [picture(part.plot(), alt, "36rem; max-width: 100%"), *self.parse_text_to_nodes(text)]


class Round(SphinxDirective):
    """A round of a method: one box for each party, as lines `party: what it does`. Boxes with noise are shaded."""

    has_content = True

    def run(self):
        steps = [line.split(": ", 1) for line in self.content]
        boxes = [
            f'<div{" class=noise" * ("noise" in does)}><b>{escape(party)}</b><br>{escape(does)}</div>'
            for party, does in steps
        ]
        alt = "A round. " + " Then ".join(f"{party}: {does}." for party, does in steps)
        arrow = "<span>→</span>"
        diagram = f'<div class="round" role="img" aria-label="{escape(alt)}">{arrow.join(boxes)}</div>'
        return [nodes.raw("", diagram, format="html")]


class Published(SphinxDirective):
    """Measured against published values: all cells "measured ± interval (published)" of the page's tables.

    The argument is the name of both axes, such as "test accuracy %". The option `by` says who published the values, if
    it is not the paper.
    """

    required_arguments = 1
    final_argument_whitespace = True
    option_spec: ClassVar = {"by": str}

    def run(self):
        cells = QUOTED.findall(Path(self.env.doc2path(self.env.docname)).read_text(encoding="utf-8"))
        measured, interval, published = ([float(cell[at].replace("−", "-")) for cell in cells] for at in range(3))
        figure = new_figure(4.4, 3.6, 1, 1)
        axis = figure.subplots()
        ends = [min(measured + published), max(measured + published)]
        axis.plot(ends, ends, linewidth=1, color="grey", label="equal")
        axis.errorbar(published, measured, interval, fmt="o", ms=4, label="a cell, with its 95% interval", color=colour(0))
        words, by = self.arguments[0], self.options.get("by", "published")
        axis.set(xlabel=f"{words}, {by}", ylabel=f"{words}, measured")
        axis.locator_params(nbins=6)
        axis.legend(fontsize="small")
        alt = f"Measured {words} against that {by}: {len(cells)} cells and the line of equal values"
        return [picture(figure, alt, "28rem; max-width: 100%")]


def setup(app):
    app.add_directive("frontier", Frontier)
    app.add_directive("round", Round)
    app.add_directive("published", Published)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
