"""The documentation site: guides, which run while it is built, and a reference from the package's docstrings.

    sphinx-build -W --keep-going -j auto notebooks build/site

Warnings are errors, names that lead nowhere among them. Nothing is fetched: where other projects' names stand on their
pages is listed in `inventories/`.
"""

import importlib
import inspect
import json
import os
import re
import sys
from collections.abc import Mapping
from functools import cache
from importlib.metadata import version as version_of
from importlib.util import find_spec
from pathlib import Path

import numpy.typing
import typer
from docutils import nodes
from sphinx import addnodes
from sphinx.util.docutils import SphinxDirective
from sphinx.util.fileutil import copy_asset
from typer.cli import get_docs_for_click


class ArrayLike:
    """What NumPy makes an array of, by its name: in a signature, the union that it stands for takes three lines."""

    __module__ = "numpy.typing"


numpy.typing.ArrayLike = ArrayLike  # before the package takes it from there

import fedprivjax  # noqa: E402
from fedprivjax.cli import app as command_line  # noqa: E402
from fedprivjax.cli import listing  # noqa: E402
from fedprivjax.cli.settings_help import REQUIRED, UNSET, settings_of  # noqa: E402
from fedprivjax.problem.program import compile_quickly  # noqa: E402

sys.path.insert(0, os.path.dirname(__file__))

from addresses import Addresses  # noqa: E402

project = "fedprivjax"
copyright = "the authors of fedprivjax"
version = release = version_of("fedprivjax")
extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.intersphinx",
    "sphinx.ext.viewcode",
    "sphinx.ext.mathjax",
    "myst_nb",
    "pictures",
]
html_theme = "furo"
html_title = f"fedprivjax {release}"
html_copy_source = False
mathjax_path = "mathjax/tex-chtml.js"
html_static_path = ["site.css"]
html_css_files = ["site.css"]
copybutton_selector = ":not(.output) > div.highlight > pre"
nitpicky = True
default_role = "ours"

nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_timeout = 600
nb_merge_streams = True
nb_render_markdown_format = "myst"  # outputs may have tables
myst_enable_extensions = ["dollarmath", "deflist"]
os.environ["PYDEVD_DISABLE_FILE_VALIDATION"] = "1"  # a kernel's warning about debuggers is no output of a guide
compile_quickly()  # guides compile much and run little
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")  # in their kernels

autodoc_typehints_format = "short"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_custom_sections = [("Source", "notes_style"), ("Attributes", "params_style")]
python_maximum_signature_line_length = 90

SITES = {
    "python": "https://docs.python.org/3/",
    "numpy": "https://numpy.org/doc/stable/",
    "jax": "https://docs.jax.dev/en/latest/",
    "flax": "https://flax-linen.readthedocs.io/en/latest/",
    "optax": "https://optax.readthedocs.io/en/latest/",
    "xarray": "https://docs.xarray.dev/en/stable/",
}
intersphinx_mapping = {name: (site, f"inventories/{name}.inv") for name, site in SITES.items()}

PUBLIC_ELSEWHERE = {  # by where it is defined
    "flax.linen.module.Module": "flax.linen.Module",
    "jax._src.mesh.Mesh": "jax.sharding.Mesh",
    "jax.jaxlib._jax.Array": "jax.Array",
    "optax._src.base.GradientTransformation": "optax.GradientTransformation",
    "numpy.random._generator.Generator": "numpy.random.Generator",
    "numpy.random.bit_generator.SeedSequence": "numpy.random.SeedSequence",
    "xarray.core.dataarray.DataArray": "xarray.DataArray",
    "xarray.core.dataset.Dataset": "xarray.Dataset",
    "xr.DataArray": "xarray.DataArray",  # in annotations of modules that do not import it
    "xr.Dataset": "xarray.Dataset",
}
nitpick_ignore = [  # not documented anywhere
    ("py:class", "dict[~collections.abc.Hashable"),  # cut in two by Sphinx
    ("py:class", "collections.abc.Mapping[str"),
    ("py:obj", "typing.Literal['tanh'"),
    ("py:class", "dp_accounting.dp_event.DpEvent"),
    ("py:class", "flax.core.scope.Scope"),
    ("py:class", "flax.linen.module._Sentinel"),
    ("py:class", "fedprivjax.datasets.partition.Parts"),  # a list, whose extra attribute is not for users
    ("py:class", "matplotlib.figure.Figure"),  # of projects that are not among the inventories
    ("py:class", "pandas.DataFrame"),
]
PAPERS = (".theory.cheu", ".theory.lowy_razaviyayn", ".theory.tran_cutkosky")
CLASS_PAGES = Path(__file__).parent / "reference" / "classes"
CLASS = re.compile(r"^\.\. autoclass:: (\S+)\n((?:   .*\n)*)", re.MULTILINE)
MODULES = ("", ".datasets", ".noise", ".noise.factors", ".planner", ".privacy", ".testing", ".theory", *PAPERS)


@cache
def public() -> dict[str, str]:
    """Where every public object stands, by its public place and by the place where it is defined."""
    places = {}
    for module in (importlib.import_module(f"fedprivjax{suffix}") for suffix in MODULES):
        for name in module.__all__:
            value, place = getattr(module, name), f"{module.__name__}.{name}"
            if not inspect.ismodule(value):
                places.setdefault(place, place)
                places.setdefault(f"{getattr(value, '__module__', '')}.{name}", place)
    return places


@cache
def by_word() -> dict[str, str]:
    """Words that mean a public object wherever they stand: names of the package itself, and of classes."""
    words = {}
    for place in public().values():
        module, _, name = place.rpartition(".")
        if module == "fedprivjax" or (name[0].isupper() and not name.isupper()):
            words.setdefault(name, place)
    return words


def exists(target: str) -> bool:
    """Whether a full name is that of something in the package, public or not."""
    module, *rest = target.split(".")
    if module != "fedprivjax":
        return False
    value = fedprivjax
    for name in rest:
        module = f"{module}.{name}"
        try:
            value = getattr(value, name)
        except AttributeError:
            try:
                value = importlib.import_module(module)
            except ImportError:
                return False
    return True


def in_backticks(name, rawtext, text, lineno, inliner, options=None, content=()):
    """What stands in single backticks: a link where it is a public name, code as it is elsewhere."""
    literal = nodes.literal(text, text)
    head, _, member = text.partition(".")
    target = public().get(text) or by_word().get(head, "") + (f".{member}" if member else "")
    if not exists(target):
        return [literal], []
    link = addnodes.pending_xref("", literal, refdomain="py", reftype="ours", reftarget=target, refexplicit=True)
    link["refdoc"] = inliner.document.settings.env.docname
    return [link], []


def by_public_name(app, env, node, contnode):
    """A link to what is documented by its public name; an object of the package that is not public stays unlinked."""
    if node.get("refdomain") != "py":
        return None
    target = node["reftarget"] = PUBLIC_ELSEWHERE.get(node["reftarget"], node["reftarget"])
    place = public().get(target, target)
    found = env.domains["py"].resolve_xref(env, node["refdoc"], app.builder, "obj", place, node, contnode)
    if found is not None:
        return found
    return contnode if node["reftype"] == "ours" or exists(target) or "." not in target else None


def described(app, what, name, value, options, lines):
    """Data are described by what they hold, in the place of their type's docstring."""
    if what != "data":
        return
    lines.clear()
    if isinstance(value, Mapping):
        for key, entry in value.items():
            words = getattr(entry, "help", None) or (entry.__doc__ if callable(entry) else str(entry))
            lines += [f"``{key}``", f"    {' '.join(words.split())}", ""]
    elif isinstance(value, tuple | list):
        lines += [f"* {' '.join(str(entry).split())}" for entry in value]


def readable(app, what, name, value, options, lines):
    """What reads well as text but means something else as markup: a plural after a name, a letter and a full stop."""
    for at, line in enumerate(lines):
        line = re.sub(r"(`[\w.]+`)([a-z])", r"\1\\ \2", line)
        lines[at] = re.sub(r"^(\s*[\w, ]+: )(\w\.(?: |$))", r"\1\\\2", line)


def whole_text(app, what, name, value, options, lines):
    """A property's text as it is: Napoleon would take what stands before its first colon for a type."""
    if what == "property":
        lines.insert(0, "")


def functions_by_name(app, what, name, value, options, signature, returned):
    """Functions that are defaults are shown by their names: a signature with `<function f>` is none to Sphinx."""
    return signature and (re.sub(r"<function ([\w.]+)>", r"\1", signature), returned)


def class_pages(app):
    """Write a page for every class that a page of the reference lists, except for the theories' classes."""
    CLASS_PAGES.mkdir(exist_ok=True)
    for listed in CLASS_PAGES.parent.glob("*.rst"):
        for place, options in classes_of(listed.stem, listed.read_text(encoding="utf-8")):
            title = place.removeprefix("fedprivjax.")
            page, text = CLASS_PAGES / f"{title}.rst", f"{title}\n{'=' * len(title)}\n\n.. autoclass:: {place}\n{options}"
            if not page.exists() or page.read_text(encoding="utf-8") != text:
                page.write_text(text, encoding="utf-8")


def classes_of(name, text):
    """The classes that have pages, of a page of the reference: full names and options."""
    return [] if name.startswith("theory") else CLASS.findall(text)


def as_tables(app, docname, source):
    """Neighbouring classes of the reference are shown as a table of names and summaries that leads to their pages."""
    folder, _, name = docname.rpartition("/")
    if folder == "reference" and classes_of(name, source[0]):
        source[0] = re.sub(rf"(?:{CLASS.pattern}\n*)+", table_of, source[0] + "\n", flags=re.MULTILINE)


def table_of(found):
    """The table of the classes of a matched text."""
    rows, pages = [".. list-table::", "   :widths: 30 70", ""], [".. toctree::", "   :hidden:", ""]
    for place, _ in CLASS.findall(found[0]):
        module, _, name = place.rpartition(".")
        described = inspect.getdoc(getattr(importlib.import_module(module), name)) or ""
        summary, title = [described.partition("\n")[0]], place.removeprefix("fedprivjax.")
        readable(app=None, what="class", name=name, value=None, options=None, lines=summary)
        rows += [f"   * - :py:obj:`{title} <{place}>`", f"     - {summary[0]}"]
        pages.append(f"   {title} <classes/{title}>")
    return "\n".join([*rows, "", *pages, "", ""])


def skipped(app, what, name, value, skip, options):
    """Skip the method `replace`, which flax adds to every class."""
    return True if name == "replace" and getattr(value, "__module__", "") == "flax.struct" else None


def guides_apart(app, env, docnames):
    """Two processes read two halves of the pages, each with half of the guides, which take nearly all of the time."""
    docnames[:] = docnames[::2] + docnames[1::2]


def opened_in_colab(app, docname, source):
    """A guide begins with a link that opens it in Colab, once the repository has an address."""
    link = Addresses.of_project().colab(docname)
    if link and app.env.doc2path(docname, base=False).endswith(".ipynb"):
        notebook = json.loads(source[0])
        notebook["cells"].insert(1, {"cell_type": "markdown", "id": "colab", "metadata": {}, "source": [link]})
        source[0] = json.dumps(notebook)


def formulas_offline(app, exception):
    """Copy the script and fonts of MathJax into the site, without the files that only its menu needs."""
    if exception is None and app.builder.format == "html":
        package = Path(*find_spec("sphinx-mathjax-offline").submodule_search_locations, "static", "mathjax")
        for part, folder in (("tex-chtml.js", ""), ("output/chtml/fonts", "output/chtml/fonts")):
            copy_asset(package / part, Path(app.outdir, "_static", "mathjax", folder))


class CommandLine(SphinxDirective):
    """Every command with its options, as the program itself describes them."""

    def run(self):
        command = typer.main.get_command(command_line)
        text = get_docs_for_click(obj=command, ctx=typer.Context(command), name="fedprivjax")
        text = re.sub(r"(`[^`]*`)|<", lambda found: found[1] or "\\<", text.partition("\n")[2])
        text = re.sub(r"(`[^`]*`)|(--[a-z][a-z-]*)", lambda found: found[1] or f"`{found[2]}`", text)
        return self.parse_text_to_nodes(text, allow_section_headings=True)


class Settings(SphinxDirective):
    """The keys of a section of experiment files, or of a group of kinds, as `fedprivjax list` describes them.

    The argument is a section's heading, such as `[sweep]`, or the title of a group, such as `losses`.
    """

    required_arguments = 1
    final_argument_whitespace = True

    def run(self):
        (name,) = self.arguments
        if name in listing.sections():
            return self.parse_text_to_nodes(key_table({"": listing.sections()[name]}))
        entries = listing.groups()[name]
        rows = [(f"`{entry}`", text) for entry, (text, _) in entries.items()]
        described = any(text for _, text in rows)
        kinds = markdown(("name", "description"), rows) if described else ", ".join(name for name, _ in rows) + "."
        keys = key_table({entry: thing for entry, (_, thing) in entries.items()})
        if not keys:
            return self.parse_text_to_nodes(kinds)
        summary = nodes.raw("", f"<details><summary>Keys of {name}</summary>", format="html")
        end = nodes.raw("", "</details>", format="html")
        return [*self.parse_text_to_nodes(kinds), summary, *self.parse_text_to_nodes(keys), end]


def key_table(things):
    """A table of keys: with several things, those that have the key are named."""
    several = [name for name, thing in things.items() if thing is not None]
    settings = {}  # names of the things that have a setting
    for name in several:
        for setting in settings_of(things[name]):
            settings.setdefault(setting, []).append(name)
    rows = []
    for setting, names in settings.items():
        default = setting.default if setting.default in (REQUIRED, UNSET) else f"`{setting.default or chr(34) * 2}`"
        having = "all" if names == several else ", ".join(f"`{name}`" for name in names)
        rows.append((f"`{setting.name}`", *([having] if len(several) > 1 else []), setting.kind, default, setting.help))
    heads = ("key", *(["of"] if len(several) > 1 else []), "type", "default", "meaning")
    return markdown(heads, rows) if rows else ""


def markdown(heads, rows):
    """A table in Markdown."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def setup(app):
    app.add_role("ours", in_backticks)
    app.connect("build-finished", formulas_offline)
    app.add_directive("command-line", CommandLine)
    app.add_directive("settings", Settings)
    app.connect("builder-inited", class_pages)
    app.connect("source-read", as_tables)
    app.connect("autodoc-process-signature", functions_by_name)
    app.connect("autodoc-skip-member", skipped)
    app.connect("env-before-read-docs", guides_apart)
    app.connect("source-read", opened_in_colab)
    app.connect("missing-reference", by_public_name, priority=400)  # before intersphinx
    app.connect("autodoc-process-docstring", readable, priority=400)  # before napoleon
    app.connect("autodoc-process-docstring", whole_text, priority=400)
    app.connect("autodoc-process-docstring", described)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
