"""The data of `[problem]`: a built-in dataset, a table in a file, or a user-defined function by import path."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from fedprivjax import datasets
from fedprivjax.checks.refusal import Refusal
from fedprivjax.datasets import Dataset, Stream
from fedprivjax.datasets.preparation import is_table, prepared_by, read_columns
from fedprivjax.experiment.names import Unimported, of_results, resolve
from fedprivjax.problem.problem import Problem

Data = Dataset | Stream | Problem
_in_use: WeakValueDictionary[str, Dataset | Stream] = WeakValueDictionary()  # built-in datasets, shared by experiments


@dataclass(frozen=True)
class Source:
    """Source of an experiment's data.

    Attributes:
        name: name of a built-in dataset, full path of a table, or "module:function".
        function: user-defined function that returns the data, or None.
        folder: folder of the experiment file, searched first for tables and modules.
        needed: whether the data must exist. False for finished results: data are located when they are loaded, and
            user code is not run.
    """

    name: str
    function: Any = None
    folder: Path | None = field(default=None, compare=False)
    needed: bool = field(default=True, compare=False)
    _loaded: list[tuple[dict[str, Any], Data]] = field(default_factory=list, compare=False, repr=False)

    @classmethod
    def of(cls, name: str, context: Mapping[str, Any] | None = None) -> "Source":
        """Return the source that a file names, with `context` as in `resolve`."""
        folder = (context or {}).get("folder")
        if of_results(context):
            return cls(name, folder=folder, needed=False)
        if is_table(name):
            return cls(str(located(name, folder)), folder=folder)
        if ":" not in name:
            return cls(name, folder=folder)
        function = resolve("dataset", name, {}, context)
        if not callable(function):
            raise Refusal(f"dataset {name!r} must be a function that returns a dataset, got {function!r}")
        return cls(name, function, folder)

    def options(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options with full paths of files.

        Raises:
            Refusal: if the loader has no such option, or a table's options and columns are inconsistent.
        """
        found = dict(given)
        if not self.needed:
            return found
        if is_table(self.name):
            if isinstance(found.get("test"), str):
                found["test"] = str(located(found["test"], self.folder, "problem.options.test"))
            rest = {name: value for name, value in found.items() if name not in ("target", "test", "missing")}
            prepared_by(found.get("target"), rest, "target", "test", "missing")
            read_columns(self.name, found.get("missing", ()))
        elif self.function is not None:
            datasets.check_arguments(self.name, self.function, found)
        else:
            datasets.check_options(self.name, found)
            for key in datasets.files_of(self.name, found):
                found[key] = str(located(found[key], self.folder, f"problem.options.{key}", folders=True))
        return found

    def load(self, options: Mapping[str, Any]) -> Data:
        """Return the data for these options. The last result is cached.

        Raises:
            Refusal: if the data do not exist or have the wrong type.
        """
        if not self._loaded or self._loaded[0][0] != options:
            self._loaded[:] = [(dict(options), self._load(options))]
        return self._loaded[0][1]

    def _load(self, options: Mapping[str, Any]) -> Data:
        if not self.needed:
            if ":" in self.name and not is_table(self.name):
                Unimported(self.name)()
            found = Source.of(self.name, {"folder": self.folder})
            return found.load(found.options(options))
        if is_table(self.name):
            return datasets.read_table(self.name, **options)
        if self.function is None:
            return _shared(self.name, options)
        data = self.function(**options)
        if not isinstance(data, Dataset | Stream | Problem):
            kinds = "a fedprivjax Dataset, Stream or Problem"
            raise Refusal(f"dataset {self.name!r} must return {kinds}, got {type(data).__name__}")
        return data

    @property
    def identity(self) -> tuple[str, int]:
        """Cache key of the source. It distinguishes functions of equal name from different folders."""
        return self.name, id(self.function)


def _shared(name: str, options: Mapping[str, Any]) -> Dataset | Stream:
    """Return a built-in dataset, shared by all experiments that use it."""
    key = repr((name, sorted(options.items())))
    found = _in_use.get(key)
    if found is None:
        found = _in_use[key] = datasets.load(name, **options)
    return found


def located(name: str, folder: Path | None, key: str = "problem.dataset", *, folders: bool = False) -> Path:
    """Return the full path of a file, relative to the experiment file's folder or the working directory.

    Args:
        folders: True if it may be a folder, too.

    Raises:
        Refusal: if it is in neither place.
    """
    places = [place for place in (folder, Path()) if place is not None]
    for place in places:
        if (place / name).is_file() or (folders and (place / name).is_dir()):
            return (place / name).resolve()
    searched = " or ".join(dict.fromkeys(str(place.resolve()) for place in places))
    raise Refusal(f"{key} must be a file{' or a folder' * folders}, got {name!r}, which is not in {searched}")
