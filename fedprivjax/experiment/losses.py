"""`[problem] loss`: each kind with its own keys."""

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from fedprivjax.datasets import Dataset, Stream
from fedprivjax.experiment.reflection import Reflected, sections
from fedprivjax.experiment.section import OWN, THEORY
from fedprivjax.experiment.user_objects import Imported
from fedprivjax.problem.losses import LOSSES, LinearLoss
from fedprivjax.problem.smoothing import Moreau


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


if TYPE_CHECKING:
    LossSettings = Smoothable
else:
    LossSettings = sections(Smoothable, {**LOSSES, OWN: OwnLoss})
