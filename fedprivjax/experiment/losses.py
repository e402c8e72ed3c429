"""`[problem]`'s losses: each kind with its own keys, and the loss that it makes of a data set's labels."""

import inspect
from abc import abstractmethod
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationInfo, model_validator

from fedprivjax.checks.refusal import Refusal
from fedprivjax.datasets import Dataset, Stream
from fedprivjax.experiment.own import made, resolved
from fedprivjax.experiment.section import OWN, THEORY, Settings, kinds
from fedprivjax.problem import losses
from fedprivjax.problem.losses import LinearLoss
from fedprivjax.problem.smoothing import Moreau


class Smoothable(Settings):
    """A loss, or with `smoothing` its Moreau envelope of that strength; "theory" leaves it to a protocol's bound."""

    smoothing: Annotated[float, Field(gt=0)] | Literal["theory"] | None = None

    @abstractmethod
    def plain(self, data: Dataset | Stream) -> LinearLoss:
        """The loss before smoothing."""

    def make(self, data: Dataset | Stream) -> LinearLoss:
        """The loss for this data set."""
        plain = self.plain(data)
        return plain if self.smoothing in (None, THEORY) else Moreau(plain, self.smoothing)


class Softmax(Smoothable):
    """Cross-entropy of a softmax over classes, linear predictor."""

    kind: Literal["softmax"] = "softmax"

    def plain(self, data):
        return losses.Softmax(data.classes or 0)


class Logistic(Smoothable):
    """Binary cross-entropy, labels 0 and 1, scores clipped to `score_bound` if given, linear predictor."""

    kind: Literal["logistic"] = "logistic"
    score_bound: float | None = None

    def plain(self, data):
        return losses.Logistic(self.score_bound)


class Squared(Smoothable):
    """Half the squared error, linear predictor."""

    kind: Literal["squared"] = "squared"

    def plain(self, data):
        return losses.Squared(data.label_bound)


class Hinge(Smoothable):
    """Hinge loss, labels 0 and 1, linear predictor."""

    kind: Literal["hinge"] = "hinge"

    def plain(self, data):
        return losses.Hinge()


class Absolute(Smoothable):
    """Absolute error, linear predictor."""

    kind: Literal["absolute"] = "absolute"

    def plain(self, data):
        return losses.Absolute()


class Pinball(Smoothable):
    """Quantile regression at `quantile`, linear predictor."""

    kind: Literal["pinball"] = "pinball"
    quantile: float

    def plain(self, data):
        return losses.Pinball(self.quantile)


class Huber(Smoothable):
    """Squared within `huber_width` and linear beyond, linear predictor."""

    kind: Literal["huber"] = "huber"
    huber_width: float

    def plain(self, data):
        return losses.Huber(self.huber_width)


class GemanMcClure(Smoothable):
    """Robust regression, smooth and not convex: flat beyond some `loss_scale`s, linear predictor."""

    kind: Literal["geman_mcclure"] = "geman_mcclure"
    loss_scale: float

    def plain(self, data):
        return losses.GemanMcClure(self.loss_scale)


class Tukey(Smoothable):
    """Robust regression, smooth and not convex: Tukey's biweight, flat beyond `loss_scale`, linear predictor."""

    kind: Literal["tukey"] = "tukey"
    loss_scale: float

    def plain(self, data):
        return losses.Tukey(self.loss_scale)


class OwnLoss(Smoothable):
    """A loss of your own by import path: a `LinearLoss`, or a class or function that gives one of `loss_options`."""

    kind: Literal["module:name"] = OWN
    loss_path: str
    loss_options: dict[str, Any] = {}
    found: Any = Field(default=None, exclude=True, repr=False)

    @model_validator(mode="before")
    @classmethod
    def _resolve(cls, raw: Any, info: ValidationInfo) -> Any:
        return resolved("loss", raw, info)

    def plain(self, data):
        loss = made("loss", self.loss_path, self.found, self.loss_options, LinearLoss)
        if not isinstance(loss, LinearLoss):
            raise Refusal(f"loss {self.loss_path!r} must be a fedprivjax.LinearLoss, got {loss!r}")
        return loss


LossSettings = Annotated[
    Softmax | Logistic | Squared | Hinge | Absolute | Pinball | Huber | GemanMcClure | Tukey | OwnLoss,
    Field(discriminator="kind"),
]
LOSSES = {kind: inspect.getdoc(model) or "" for kind, model in kinds(LossSettings).items()}
