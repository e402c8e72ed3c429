"""`[problem]`: its loss, model, constraint and features, each kind with its own keys, or a custom object."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from fedprivjax.datasets import Dataset, Stream
from fedprivjax.datasets.as_problem import from_dataset
from fedprivjax.experiment.names import Imported, object_of
from fedprivjax.experiment.section import OWN, THEORY, Reflected, sections
from fedprivjax.features import FeatureMap, as_maps
from fedprivjax.problem.constraints import CONSTRAINTS, ConstraintSet
from fedprivjax.problem.convolutions import Convolutions
from fedprivjax.problem.linear_loss import LinearLoss
from fedprivjax.problem.losses import LOSSES
from fedprivjax.problem.models import Clipping
from fedprivjax.problem.networks import NETWORKS
from fedprivjax.problem.problem import Problem
from fedprivjax.problem.smoothing import Moreau


class Smoothable(Reflected):
    """A loss, or its Moreau envelope.

    Attributes:
        smoothing: strength of the Moreau envelope; "theory" takes it from each protocol's own bound.
    """

    filled = ("classes", "label_bound")
    renamed = {"width": "huber_width", "scale": "loss_scale"}
    smoothing: Annotated[float, Field(gt=0)] | Literal["theory"] | None = None

    def make(self, data: Dataset | Stream) -> LinearLoss:
        """Return the loss for this dataset's labels, smoothed if the file gives a strength."""
        plain = self.made(classes=data.classes or 0, label_bound=data.label_bound)
        return plain if self.smoothing in (None, THEORY) else Moreau(plain, self.smoothing)


class OwnLoss(Imported, Smoothable):
    """A custom loss by import path: a `LinearLoss`, or a class or function that returns one.

    Attributes:
        loss_path: "module:name", in a module that is installed or next to the experiment file.
        loss_options: arguments of the class or function.
    """

    what, base = "loss", LinearLoss
    loss_path: str
    loss_options: dict[str, Any] = {}


class Model(Reflected):
    """A model in place of the linear predictor.

    Attributes:
        start_seed: seed of the first parameters.
        convolutions: computation of convolutions: "products" (slices and matrix products), "xla", or "auto" for
            products on a CPU.
        clipping: computation of clipped gradients, as in `general_problem`.
    """

    filled = ("scores", "tokens", "each", "parent", "name")
    types = {tuple[int, ...]: list[Annotated[int, Field(ge=1)]]}
    start_seed: int = Field(default=0, ge=0)
    convolutions: Convolutions = "auto"
    clipping: Clipping = "auto"

    def problem(self, data: Dataset | Stream, loss: LinearLoss | None, **options: Any) -> Problem:
        """Return the problem of fitting the model to a dataset. `options` are further arguments of `from_dataset`."""
        own = {"start_seed": self.start_seed, "convolutions": self.convolutions, "clipping": self.clipping}
        return from_dataset(data, loss, network=self.made(), **own, **options)


class OwnModel(Imported, Model):
    """A custom model by import path: a flax module, or a class or function that returns one.

    Attributes:
        model_path: "module:name", in a module that is installed or next to the experiment file.
        model_options: arguments of the class or function.
    """

    what, base = "model", object  # flax modules of either kind: `from_dataset` checks
    model_path: str
    model_options: dict[str, Any] = {}


class Set(Reflected):
    """A constraint set over all parameters together."""

    filled = ("dimension",)


class OwnSet(Imported, Set):
    """A custom set by import path: a subclass of `ConstraintSet`, or a function that returns one.

    Attributes:
        constraint_path: "module:name", in a module that is installed or next to the experiment file.
        constraint_options: arguments of the class or function.
    """

    what, base = "constraint", ConstraintSet
    constraint_path: str
    constraint_options: dict[str, Any] = {}


if TYPE_CHECKING:
    LossSettings = Smoothable
    ModelSettings = Model
    ConstraintSettings = Set
else:
    LossSettings = sections(Smoothable, {**LOSSES, OWN: OwnLoss})
    ModelSettings = sections(Model, {**NETWORKS, OWN: OwnModel})
    ConstraintSettings = sections(Set, {**CONSTRAINTS, OWN: OwnSet})


def feature_maps(given: Any, context: Mapping[str, Any] | None = None) -> tuple[FeatureMap, ...]:
    """Return the feature maps that a file names.

    Args:
        given: one map or a list of them, each a name or a table with its `kind` and settings. A custom map has the name
            "module:name".
        context: arguments of `parse`, see `resolve`.

    >>> feature_maps(["pooling", {"kind": "unit_norm"}])
    (Pooling(size=2), UnitNorm())
    """
    found = [_own(each, context) for each in given] if isinstance(given, list) else _own(given, context)
    return as_maps(found)


def _own(given: Any, context: Mapping[str, Any] | None) -> Any:
    """Return the object of a custom map, and the settings of a built-in one unchanged."""
    path = given.get("kind") if isinstance(given, Mapping) else given
    if not isinstance(path, str) or ":" not in path:
        return given
    return object_of("feature map", given, {}, FeatureMap, context, "a feature map must be a name")
