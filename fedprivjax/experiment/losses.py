"""`[problem]`'s losses: each kind with its own keys, and the loss that it makes of a data set's labels."""

from abc import abstractmethod
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationInfo, model_validator

from fedprivjax.checks.refusal import Refusal
from fedprivjax.datasets import Dataset, Stream
from fedprivjax.experiment.section import OWN, THEORY, Settings, summaries
from fedprivjax.experiment.user_objects import made, resolved
from fedprivjax.problem import losses
from fedprivjax.problem.losses import LinearLoss
from fedprivjax.problem.smoothing import Moreau


class Smoothable(Settings):
    """A loss, or its Moreau envelope.

    Attributes:
        smoothing: strength of the Moreau envelope; "theory" takes it from each protocol's own bound.
    """

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
    """Binary cross-entropy, labels 0 and 1, scores clipped to `score_bound` if given, linear predictor.

    Attributes:
        score_bound: largest absolute score, or None for no limit.
    """

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
    """Quantile regression at `quantile`, linear predictor.

    Attributes:
        quantile: level of the quantile, between 0 and 1.
    """

    kind: Literal["pinball"] = "pinball"
    quantile: float

    def plain(self, data):
        return losses.Pinball(self.quantile)


class Huber(Smoothable):
    """Squared within `huber_width` and linear beyond, linear predictor.

    Attributes:
        huber_width: largest absolute error at which the loss is squared.
    """

    kind: Literal["huber"] = "huber"
    huber_width: float

    def plain(self, data):
        return losses.Huber(self.huber_width)


class GemanMcClure(Smoothable):
    """Robust regression, smooth and not convex: flat beyond some `loss_scale`s, linear predictor.

    Attributes:
        loss_scale: error at which the loss is half its limit.
    """

    kind: Literal["geman_mcclure"] = "geman_mcclure"
    loss_scale: float

    def plain(self, data):
        return losses.GemanMcClure(self.loss_scale)


class Tukey(Smoothable):
    """Robust regression, smooth and not convex: Tukey's biweight, flat beyond `loss_scale`, linear predictor.

    Attributes:
        loss_scale: absolute error from which the loss is constant.
    """

    kind: Literal["tukey"] = "tukey"
    loss_scale: float

    def plain(self, data):
        return losses.Tukey(self.loss_scale)


class OwnLoss(Smoothable):
    """A custom loss by import path: a `LinearLoss`, or a class or function that returns one.

    Attributes:
        loss_path: "module:name", from beside the experiment file or installed.
        loss_options: arguments of the class or function.
    """

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
LOSSES = summaries(LossSettings)
