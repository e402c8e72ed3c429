"""Addresses of the project, and everything that follows from them: badges, links, the lines that install the package.

They stand in one table of `pyproject.toml`, and are empty until the project has them. After a change of the table,

    python notebooks/addresses.py

writes the parts of README.md, CITATION.cff and pyproject.toml that follow. With `--absolute`, it also makes the links
of the README absolute, for a page elsewhere, such as PyPI's. The site takes its links from here, too.
"""

import re
import sys
import tomllib
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PART = re.compile(
    r"(?P<first>[^\n]*from addresses: (?P<name>\w+)[^\n]*\n).*?(?P<last>[^\n]*end of addresses)", re.DOTALL
)
LINK = re.compile(r"(?P<image>!?)\[(?P<text>[^\]]*)\]\((?P<target>(?!https?://|#)[^)]+)\)")


class Addresses(NamedTuple):
    """Addresses of the project, each empty until it exists.

    Attributes:
        repository: such as "https://github.com/OWNER/fedprivjax".
        documentation: folder of the site's versions, such as "https://OWNER.github.io/fedprivjax".
        package: name on PyPI.
    """

    repository: str = ""
    documentation: str = ""
    package: str = ""

    @classmethod
    def of_project(cls) -> "Addresses":
        """Return the addresses in `pyproject.toml`."""
        return cls(**tomllib.loads(ROOT.joinpath("pyproject.toml").read_text())["tool"]["fedprivjax"]["addresses"])

    @property
    def parts(self) -> dict[str, list[str]]:
        """Lines that follow from the addresses, by the name of the part of a file where they stand."""
        repository, site, package = self
        badges = [
            f"[![CI]({repository}/actions/workflows/ci.yml/badge.svg)]({repository}/actions)" if repository else "",
            f"[![PyPI](https://img.shields.io/pypi/v/{package})](https://pypi.org/project/{package})"
            if package
            else "",
            f"[Documentation]({site}/latest)" if site else "",
        ]
        install = [
            f"    pip install {package}" if package else "",
            f"    git clone {repository} && cd {repository.rpartition('/')[2]}" if repository else "",
        ]
        urls = {"Repository": repository, "Documentation": site, "Issues": f"{repository}/issues" if repository else ""}
        return {
            "badges": filled(badges),
            "install": filled(install),
            "urls": [f'{name} = "{url}"' for name, url in urls.items() if url],
            "citation": filled(
                [f"repository-code: {repository}" if repository else "", f"url: {site}" if site else ""]
            ),
        }

    def written(self, text: str) -> str:
        """Return a file's text with the parts that follow from the addresses."""
        return PART.sub(
            lambda part: part["first"] + "".join(f"{line}\n" for line in self.parts[part["name"]]) + part["last"], text
        )

    def absolute(self, text: str) -> str:
        """Return a page's text with absolute links to the files of the repository, if it has an address."""
        if not self.repository:
            return text
        raw = self.repository.replace("//github.com/", "//raw.githubusercontent.com/")

        def link(found: re.Match[str]) -> str:
            place = f"{raw}/main" if found["image"] else f"{self.repository}/blob/main"
            return f"{found['image']}[{found['text']}]({place}/{found['target']})"

        return LINK.sub(link, text)

    def colab(self, notebook: str) -> str:
        """Return a link that opens a notebook of the site in Colab, in Markdown, or nothing without a repository."""
        if not self.repository:
            return ""
        path = self.repository.partition("github.com/")[2]
        return f"[Open in Colab](https://colab.research.google.com/github/{path}/blob/main/notebooks/{notebook}.ipynb)"


def filled(lines: list[str]) -> list[str]:
    """Return the lines that are not empty."""
    return [line for line in lines if line]


if __name__ == "__main__":
    known = Addresses.of_project()
    for name in ("README.md", "CITATION.cff", "pyproject.toml"):
        path = ROOT / name
        path.write_text(known.written(path.read_text()))
    if "--absolute" in sys.argv:
        ROOT.joinpath("README.md").write_text(known.absolute(ROOT.joinpath("README.md").read_text()))
