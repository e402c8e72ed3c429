"""`[problem]`: its dataset, loss, model, constraint and features, each kind with its own keys, or a custom object.

A dataset is a built-in one, a table in a file, or a user-defined function by import path.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal
from weakref import WeakValueDictionary

import jax
import numpy as np
from flax import linen as nn
from pydantic import BeforeValidator, Field, ValidationInfo, model_validator

from fedprivjax import datasets
from fedprivjax.checks.refusal import Refusal
from fedprivjax.datasets import Dataset, Stream, by_machine, table
from fedprivjax.datasets.as_problem import described, from_dataset
from fedprivjax.datasets.preparation import is_table, prepared_by, read_columns
from fedprivjax.experiment.names import Imported, Unimported, made, of_results, resolve, unimported
from fedprivjax.experiment.section import OWN, THEORY, Reflected, sections
from fedprivjax.features import FeatureMap, as_maps
from fedprivjax.problem.build import general_problem
from fedprivjax.problem.checks import require_constraint
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


@dataclass(frozen=True)
class Source:
    """Source of an experiment's data.

    Attributes:
        name: name of a built-in dataset, full path of a table, or "module:function".
        function: user-defined function that returns the data, or None.
        folder: folder of the experiment file, searched first for tables and modules.
        needed: whether the data must exist. False for finished results: data are located when they are loaded, and
            user code is not run.
        test_examples: number of test examples to use of a built-in dataset, or None for all.
    """

    name: str
    function: Any = None
    folder: Path | None = field(default=None, compare=False)
    needed: bool = field(default=True, compare=False)
    test_examples: int | None = None
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
        """Return the options with full paths of files. Raise Refusal if the loader has no such option."""
        if not self.needed:
            return dict(given)
        if is_table(self.name):
            test = given.get("test")
            found = located(test, self.folder, "problem.options.test") if isinstance(test, str) else None
            return dict(given) if found is None else {**given, "test": str(found)}
        if self.function is not None:
            datasets.check_arguments(self.name, self.function, given)
        else:
            datasets.check_options(self.name, given)
        return dict(given)

    def check(self, options: Mapping[str, Any]) -> None:
        """Raise Refusal if a table's options and columns are inconsistent, before its rows are processed."""
        if self.needed and is_table(self.name):
            rest = {name: value for name, value in options.items() if name not in ("target", "test", "missing")}
            prepared_by(options.get("target"), rest, "target", "test", "missing")
            read_columns(self.name, options.get("missing", ()))

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
            return _shared(self.name, options, self.test_examples)
        data = self.function(**options)
        if not isinstance(data, Dataset | Stream | Problem):
            kinds = "a fedprivjax Dataset, Stream or Problem"
            raise Refusal(f"dataset {self.name!r} must return {kinds}, got {type(data).__name__}")
        return data

    @property
    def identity(self) -> tuple[str, int]:
        """Cache key of the source. It distinguishes functions of equal name from different folders."""
        return self.name, id(self.function)


def _shared(name: str, options: Mapping[str, Any], test_examples: int | None = None) -> Dataset | Stream:
    """Return a built-in dataset, shared by all experiments that use it, with at most `test_examples` test examples."""
    key = repr((name, sorted(options.items()), test_examples))
    found = _in_use.get(key)
    if found is None:
        found = datasets.load(name, **options)
        if isinstance(found, Dataset) and found.test_features is not None and found.test_labels is not None:
            fewer = slice(test_examples)
            found = replace(found, test_features=found.test_features[fewer], test_labels=found.test_labels[fewer])
        _in_use[key] = found
    return found


def located(name: str, folder: Path | None, key: str = "problem.dataset") -> Path:
    """Return the full path of a table's file, relative to the experiment file's folder or the working directory.

    Raises:
        Refusal: if the file is in neither folder.
    """
    places = [place for place in (folder, Path()) if place is not None]
    for place in places:
        if (place / name).is_file():
            return (place / name).resolve()
    searched = " or ".join(dict.fromkeys(str(place.resolve()) for place in places))
    raise Refusal(f"{key} must be a file, got {name!r}, which is not in {searched}")


class Smoothable(Reflected):
    """A loss, or its Moreau envelope.

    Attributes:
        smoothing: strength of the Moreau envelope; "theory" takes it from each protocol's own bound.
    """

    filled = ("classes", "label_bound")
    renamed = {"width": "huber_width", "scale": "loss_scale"}
    smoothing: Annotated[float, Field(gt=0)] | Literal["theory"] | None = None

    def plain(self, data: Dataset | Stream) -> LinearLoss:
        """Return the loss without smoothing, for this dataset's labels."""
        return self.made(classes=data.classes or 0, label_bound=data.label_bound)

    def make(self, data: Dataset | Stream) -> LinearLoss:
        """Return the loss for this dataset's labels, smoothed if the file gives a strength."""
        plain = self.plain(data)
        return plain if self.smoothing in (None, THEORY) else Moreau(plain, self.smoothing)


class OwnLoss(Imported, Smoothable):
    """A custom loss by import path: a `LinearLoss`, or a class or function that returns one.

    Attributes:
        loss_path: "module:name", in a module that is installed or next to the experiment file.
        loss_options: arguments of the class or function.
    """

    what, paths = "loss", {"found": "loss_path"}
    loss_path: str
    loss_options: dict[str, Any] = {}

    def plain(self, data):
        return self.imported(LinearLoss, self.loss_options)


def _widths(value: Any, info: ValidationInfo) -> Any:
    """Raise Refusal if `value` has integers but is not a list of layer widths. Other types are left to validation."""
    numbers = value if isinstance(value, list) else [value]
    if not all(isinstance(each, int) and not isinstance(each, bool) for each in numbers):
        return value
    if not isinstance(value, list) or min(value, default=1) < 1:
        wanted = f"problem.{info.field_name} must be a list of layer widths, each at least 1, got {value}"
        raise Refusal(f"{wanted}. Write {info.field_name} = [64], or leave model out for a linear predictor")
    return value


Widths = Annotated[list[int], BeforeValidator(_widths)]


class Model(Reflected):
    """A model in place of the linear predictor.

    Attributes:
        start_seed: seed of the first parameters.
        convolutions: computation of convolutions: "products" (slices and matrix products), "xla", or "auto" for
            products on a CPU.
        clipping: computation of clipped gradients, as in `general_problem`.
    """

    filled = ("scores", "parent", "name")
    types = {tuple[int, ...]: Widths}
    start_seed: int = Field(default=0, ge=0)
    convolutions: Convolutions = "auto"
    clipping: Clipping = "auto"

    def make(self) -> Any:
        """Return the flax module."""
        return self.made()

    def problem(self, data: Dataset | Stream, loss: LinearLoss | None, **options: Any) -> Problem:
        """Return the problem of fitting the model to a dataset. `options` are further arguments of `from_dataset`."""
        own = {"start_seed": self.start_seed, "convolutions": self.convolutions, "clipping": self.clipping}
        return from_dataset(data, loss, network=self.make(), **own, **options)


class OwnModel(Imported, Model):
    """A custom model by import path: a flax module, or a class or function that returns one.

    With `model_start`, it is a loss `(parameters, example) -> scalar` itself; an example is (features, label).

    Attributes:
        model_path: "module:name", in a module that is installed or next to the experiment file.
        model_options: arguments of the class or function.
        model_start: path of a function `(example) -> parameters`, called with an example of zeros.
        model_correct: path of a function `(parameters, example)` that returns 1.0 if the prediction is right.
    """

    what, paths = "model", {"found": "model_path", "start": "model_start", "correct": "model_correct"}
    model_path: str
    model_options: dict[str, Any] = {}
    model_start: str | None = None
    model_correct: str | None = None
    start: Any = Field(default=None, exclude=True, repr=False)
    correct: Any = Field(default=None, exclude=True, repr=False)

    @model_validator(mode="after")
    def _check(self):
        if self.model_start is None and self.model_correct is not None:
            raise Refusal(f"problem.model_correct must go with model_start, got {self.model_correct!r} alone")
        if self.model_start is not None and self.model_options:
            raise Refusal("problem.model_options must be left out with model_start: the model is the loss itself")
        return self

    def make(self):
        return made("model", self.model_path, self.found, self.model_options, nn.Module, "model_options")

    def problem(self, data, loss, **options):
        if self.start is None:
            return super().problem(data, loss, **options)
        if loss is not None or isinstance(data, Stream):
            wrong = "loss must be left out" if loss is not None else "dataset must be stored"
            raise Refusal(f"problem.{wrong} with model_start: the model is the loss of an example")
        pool = data.inputs(data.features), data.labels
        zeros = jax.tree.map(lambda leaf: np.zeros(leaf.shape[1:], leaf.dtype), pool)
        test = None
        if data.test_features is not None:
            test = data.inputs(data.test_features), data.test_labels
        if options["partition_table"] is None and data.machine_of is not None:
            options["partition_table"] = table(by_machine(data.machine_of))[0]
        options |= {"test": test, "correct": self.correct}
        options |= {"convolutions": self.convolutions, "clipping": self.clipping}
        problem = general_problem(self.found, pool, self.start(zeros), **options)
        return described(problem, data)


class Set(Reflected):
    """A constraint set over all parameters together."""

    filled = ("dimension",)

    def make(self) -> ConstraintSet:
        """Return the constraint set."""
        return self.made()

    @property
    def custom_sizes(self) -> tuple[str, ...]:
        """Names of a custom set's numbers, which can be swept."""
        return ()


class OwnSet(Imported, Set):
    """A custom set by import path: a subclass of `ConstraintSet`, or a function that returns one.

    Attributes:
        constraint_path: "module:name", in a module that is installed or next to the experiment file.
        constraint_options: arguments of the class or function. Lists become tuples.
    """

    what, paths = "constraint", {"found": "constraint_path"}
    constraint_path: str
    constraint_options: dict[str, Any] = {}

    def make(self):
        options = {name: tuple(v) if isinstance(v, list) else v for name, v in self.constraint_options.items()}
        given = self.imported(ConstraintSet, options)
        require_constraint(given)
        return given

    @property
    def custom_sizes(self):
        return self.make().sizes


if TYPE_CHECKING:
    LossSettings = Smoothable
    ModelSettings = Model
    ConstraintSettings = Set
else:
    LossSettings = sections(Smoothable, {**LOSSES, OWN: OwnLoss})
    ModelSettings = sections(Model, {**NETWORKS, OWN: OwnModel})
    ConstraintSettings = sections(Set, {**CONSTRAINTS, OWN: OwnSet})


def feature_maps(given: Any, context: Mapping[str, Any] | None = None) -> tuple[FeatureMap | Unimported, ...]:
    """Return the feature maps that a file names. If some are not imported, return only those, as `Unimported`.

    Args:
        given: one map or a list of them, each a name or a table with its `kind` and settings. A custom map has the name
            "module:name".
        context: arguments of `parse`, see `resolve`.

    >>> feature_maps(["pooling", {"kind": "unit_norm"}])
    (Pooling(size=2), UnitNorm())
    """
    found = [_own(each, context) for each in given] if isinstance(given, list) else _own(given, context)
    return tuple(unimported([found])) or as_maps(found)


def _own(given: Any, context: Mapping[str, Any] | None) -> Any:
    """Return the object of a custom map, and the settings of a built-in one unchanged."""
    table = {"kind": given} if isinstance(given, str) else given
    path = table.get("kind") if isinstance(table, Mapping) else None
    if not isinstance(path, str) or ":" not in path:
        return given
    found = resolve("feature map", path, {}, context)
    if isinstance(found, Unimported):
        return found
    options = {name: value for name, value in table.items() if name != "kind"}
    one = made("feature map", path, found, options, FeatureMap)
    if not isinstance(one, FeatureMap):
        raise Refusal(f"feature map {path!r} must be a fedprivjax FeatureMap, got {type(one).__name__}")
    return one
