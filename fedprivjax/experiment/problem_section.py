"""`[problem]`: its data, and its loss, model, constraint and features, each of a kind with its keys or custom."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal
from weakref import WeakValueDictionary

from pydantic import Field

from fedprivjax import datasets
from fedprivjax.checks.refusal import Refusal
from fedprivjax.datasets import Dataset, Stream
from fedprivjax.datasets.as_problem import from_dataset
from fedprivjax.datasets.preparation import is_table, prepared_by, read_columns
from fedprivjax.experiment.names import Unimported, named_errors, object_of, of_results, resolve
from fedprivjax.experiment.section import THEORY, Reflected, sections
from fedprivjax.features import MAPS, FeatureMap
from fedprivjax.problem.constraints import CONSTRAINTS, ConstraintSet
from fedprivjax.problem.convolutions import Convolutions
from fedprivjax.problem.linear_loss import LinearLoss
from fedprivjax.problem.losses import LOSSES
from fedprivjax.problem.models import Clipping
from fedprivjax.problem.networks import NETWORKS
from fedprivjax.problem.problem import Problem
from fedprivjax.problem.smoothing import Moreau

Data = Dataset | Stream | Problem
_in_use: WeakValueDictionary[str, Dataset | Stream] = WeakValueDictionary()  # built-in datasets, shared by experiments


# ---- data


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
        with named_errors("dataset", self.name):
            data = self.function(**options)
        if not isinstance(data, Dataset | Stream | Problem):
            kinds = "a fedprivjax Dataset, Stream or Problem"
            raise Refusal(f"dataset {self.name!r} must return {kinds}, got {type(data).__name__}")
        return data


def _shared(name: str, options: Mapping[str, Any]) -> Dataset | Stream:
    """Return a built-in dataset, shared by all experiments that use it."""
    key = repr((name, sorted(options.items())))
    found = _in_use.get(key)
    if found is None:
        found = _in_use[key] = datasets.load(name, **options)
    return found


def located(name: str, folder: Path | None, key: str = "problem.dataset", *, folders: bool = False) -> Path:
    """Return the full path of a file, relative to the experiment file's folder or the working directory.

    At the start of a path, `~/` is the user's home.

    Args:
        folders: True if it may be a folder, too.

    Raises:
        Refusal: if it is in neither place.
    """
    places = [place for place in (folder, Path()) if place is not None]
    path = Path(name).expanduser() if name.startswith("~/") else Path(name)
    for place in places:
        if (place / path).is_file() or (folders and (place / path).is_dir()):
            return (place / path).resolve()
    searched = " or ".join(dict.fromkeys(str(place.resolve()) for place in places if not path.is_absolute()))
    where = f"is not in {searched}" if searched else "does not exist"
    raise Refusal(f"{key} must be a file{' or a folder' * folders}, got {str(path)!r}, which {where}")


# ---- loss, model, constraint set and feature maps


class Smoothable(Reflected):
    """A loss, or its Moreau envelope.

    Attributes:
        smoothing: strength of the Moreau envelope: larger is closer to the loss, smaller is smoother; "theory" takes it
            from each protocol's own bound.
    """

    what, place, base = "loss", "problem.loss", LinearLoss
    filled = ("classes", "label_bound")
    smoothing: Annotated[float, Field(gt=0)] | Literal["theory"] | None = None

    def make(self, data: Dataset | Stream) -> LinearLoss:
        """Return the loss for this dataset's labels, smoothed if the file gives a strength."""
        plain = self.made(classes=data.classes or 0, label_bound=data.label_bound)
        return plain if self.smoothing in (None, THEORY) else Moreau(plain, self.smoothing)


class Model(Reflected):
    """A model in place of the linear predictor.

    Attributes:
        start_seed: seed of the first parameters.
        convolutions: computation of convolutions: "products" (slices and matrix products), "xla", or "auto" for
            products on a CPU.
        clipping: computation of clipped gradients, as in `general_problem`.
    """

    what, place, base = "model", "problem.model", object  # flax modules of either kind: `from_dataset` checks
    filled = ("scores", "tokens", "each", "parent", "name")
    start_seed: int = Field(default=0, ge=0)
    convolutions: Convolutions = "auto"
    clipping: Clipping = "auto"

    def problem(self, data: Dataset | Stream, loss: LinearLoss | None, **options: Any) -> Problem:
        """Return the problem of fitting the model to a dataset. `options` are further arguments of `from_dataset`."""
        own = {"start_seed": self.start_seed, "convolutions": self.convolutions, "clipping": self.clipping}
        return from_dataset(data, loss, network=self.made(), **own, **options)


class Set(Reflected):
    """A constraint set over all parameters together."""

    what, place, base = "constraint", "problem.constraint", ConstraintSet
    filled = ("dimension",)


if TYPE_CHECKING:
    LossSettings = Smoothable
    ModelSettings = Model
    ConstraintSettings = Set
else:
    LossSettings = sections(Smoothable, LOSSES)
    ModelSettings = sections(Model, NETWORKS)
    ConstraintSettings = sections(Set, CONSTRAINTS)


def feature_maps(given: Any, context: Mapping[str, Any] | None = None) -> tuple[FeatureMap, ...]:
    """Return the feature maps that a file names.

    Args:
        given: one map or a list of them, each a name or a table with its `kind` and settings. A custom map has the name
            "module:name".
        context: arguments of `parse`, see `resolve`.

    >>> feature_maps(["pooling", {"kind": "unit_norm"}])
    (Pooling(size=2), UnitNorm())
    """
    wanted = "a feature map must be a name, or a table with its name as kind"
    each = given if isinstance(given, list) else [given]
    return tuple(object_of("feature map", one, MAPS, FeatureMap, context, wanted) for one in each)
