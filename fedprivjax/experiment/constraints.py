"""`[problem]`'s constraint sets: each kind with its own keys."""

from abc import abstractmethod
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationInfo, model_validator

from fedprivjax.checks.refusal import Refusal
from fedprivjax.experiment.section import OWN, Settings, summaries
from fedprivjax.experiment.user_objects import made, resolved
from fedprivjax.problem import constraints
from fedprivjax.problem.checks import require_constraint


class Set(Settings):
    """A constraint set over all parameters together."""

    @abstractmethod
    def make(self) -> constraints.ConstraintSet:
        """The set."""

    @property
    def own_sizes(self) -> tuple[str, ...]:
        """Numbers that may be swept beside those of the package's sets."""
        return ()


class Ball(Set):
    """Euclidean ball of a `radius` about zero.

    Attributes:
        radius: largest Euclidean norm of the parameters.
    """

    kind: Literal["ball"] = "ball"
    radius: float

    def make(self):
        return constraints.Ball(self.radius)


class Box(Set):
    """All parameters between `low` and `high`, each.

    Attributes:
        low: smallest value of each parameter.
        high: largest value of each parameter.
    """

    kind: Literal["box"] = "box"
    low: float
    high: float

    def make(self):
        return constraints.Box(self.low, self.high)


class Simplex(Set):
    """Parameters that are at least zero and add up to `scale`.

    Attributes:
        scale: sum of the parameters.
    """

    kind: Literal["simplex"] = "simplex"
    scale: float = 1.0

    def make(self):
        return constraints.Simplex(self.scale)


class L1Ball(Set):
    """Parameters whose absolute values add up to `radius` at most.

    Attributes:
        radius: largest sum of absolute values.
    """

    kind: Literal["l1_ball"] = "l1_ball"
    radius: float

    def make(self):
        return constraints.L1Ball(self.radius)


class OwnSet(Set):
    """A custom set by import path: a subclass of `ConstraintSet`, or a function that returns one.

    Attributes:
        constraint_path: "module:name", from beside the experiment file or installed.
        constraint_options: arguments of the class or function. Lists become tuples.
    """

    kind: Literal["module:name"] = OWN
    constraint_path: str
    constraint_options: dict[str, Any] = {}
    found: Any = Field(default=None, exclude=True, repr=False)

    @model_validator(mode="before")
    @classmethod
    def _resolve(cls, raw: Any, info: ValidationInfo) -> Any:
        return resolved("constraint", raw, info)

    def make(self):
        options = {name: tuple(v) if isinstance(v, list) else v for name, v in self.constraint_options.items()}
        given = made("constraint", self.constraint_path, self.found, options, constraints.ConstraintSet)
        if not isinstance(given, constraints.ConstraintSet):
            raise Refusal(f"constraint {self.constraint_path!r} must be a fedprivjax.ConstraintSet, got {given!r}")
        require_constraint(given)
        return given

    @property
    def own_sizes(self):
        return self.make().sizes


ConstraintSettings = Annotated[Ball | Box | Simplex | L1Ball | OwnSet, Field(discriminator="kind")]
CONSTRAINTS = summaries(ConstraintSettings)
