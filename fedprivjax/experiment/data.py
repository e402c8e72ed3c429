"""`[problem] dataset`: a set of the package's, a table in a file, or a function of one's own by import path."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from fedprivjax import datasets
from fedprivjax.checks.refusal import Refusal
from fedprivjax.datasets import Dataset, Stream
from fedprivjax.datasets.preparation import prepared_by
from fedprivjax.datasets.reading import is_table, read_columns
from fedprivjax.experiment.names import Unimported, of_results, resolve
from fedprivjax.problem.problem import Problem

Data = Dataset | Stream | Problem
_alive: WeakValueDictionary[str, Dataset | Stream] = WeakValueDictionary()  # sets of the package's: experiments share


@dataclass(frozen=True)
class Source:
    """Where an experiment's data come from.

    Attributes:
        name: of a set of the package's, a table's path in full, or "module:function".
        function: of one's own, or None.
        folder: the experiment file's, where tables and modules are looked for first.
        needed: whether they must be there; else they are looked for when they are loaded, and user code is not run.
        tested: so many of the examples for testing, where they are the package's; None is all.
    """

    name: str
    function: Any = None
    folder: Path | None = field(default=None, compare=False)
    needed: bool = field(default=True, compare=False)
    tested: int | None = None
    _loaded: list[tuple[dict[str, Any], Data]] = field(default_factory=list, compare=False, repr=False)

    @classmethod
    def of(cls, name: str, context: Mapping[str, Any] | None = None) -> "Source":
        """The source that a file names; `context` as for `resolve`."""
        folder = (context or {}).get("folder")
        if of_results(context):
            return cls(name, folder=folder, needed=False)
        if is_table(name):
            return cls(str(located(name, folder)), folder=folder)
        if ":" not in name:
            return cls(name, folder=folder)
        function = resolve("dataset", name, {}, context)
        if not callable(function):
            raise Refusal(f"dataset {name!r} must be a function that returns a data set, got {function!r}")
        return cls(name, function, folder)

    def options(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The options as the loader takes them, refused where it has none such."""
        if not self.needed:
            return dict(given)
        if is_table(self.name):
            second = (
                {"test": str(located(given["test"], self.folder, "problem.options.test"))}
                if isinstance(given.get("test"), str)
                else {}
            )
            return {**given, **second}
        if self.function is not None:
            datasets.check_arguments(self.name, self.function, given)
        else:
            datasets.check_options(self.name, given)
        return dict(given)

    def check(self, options: Mapping[str, Any]) -> None:
        """Refuse a table's options and columns that do not fit, before anything is made of its rows."""
        if self.needed and is_table(self.name):
            rest = {name: value for name, value in options.items() if name not in ("target", "test", "missing")}
            prepared_by(options.get("target"), rest, "target", "test", "missing")
            read_columns(self.name, options.get("missing", ()))

    def load(self, options: Mapping[str, Any]) -> Data:
        """The data; those that were asked for last are kept, for a run looks at them several times.

        Raises:
            Refusal: they are not there, or are no data.
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
            return _shared(self.name, options, self.tested)
        data = partial(self.function, **options)()
        if not isinstance(data, Dataset | Stream | Problem):
            kinds = "a fedprivjax Dataset, Stream or Problem"
            raise Refusal(f"dataset {self.name!r} must return {kinds}, got {type(data).__name__}")
        return data

    @property
    def identity(self) -> tuple[str, int]:
        """What tells it from others: two folders may each have a function of one name."""
        return self.name, id(self.function)


def _shared(name: str, options: Mapping[str, Any], tested: int | None = None) -> Dataset | Stream:
    """A set of the package's, loaded once for all experiments that hold it; with so many for testing."""
    key = repr((name, sorted(options.items()), tested))
    found = _alive.get(key)
    if found is None:
        found = _alive[key] = _with_tested(datasets.load(name, **options), tested)
    return found


def _with_tested(data: Dataset | Stream, most: int | None) -> Dataset | Stream:
    if most is None or not isinstance(data, Dataset) or data.test_features is None or data.test_labels is None:
        return data
    return replace(data, test_features=data.test_features[:most], test_labels=data.test_labels[:most])


def located(name: str, folder: Path | None, key: str = "problem.dataset") -> Path:
    """A table's file: beside the experiment file, or else below the working directory.

    Raises:
        Refusal: it is in neither.
    """
    places = [place for place in (folder, Path()) if place is not None]
    for place in places:
        if (place / name).is_file():
            return (place / name).resolve()
    words = " or ".join(dict.fromkeys(str(place.resolve()) for place in places))
    raise Refusal(f"{key} must be a file, got {name!r}, which is not in {words}")
