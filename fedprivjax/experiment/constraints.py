"""`[problem] constraint`: each kind of constraint set with its own keys."""

from typing import TYPE_CHECKING, Any

from fedprivjax.experiment.reflection import Reflected, sections
from fedprivjax.experiment.section import OWN
from fedprivjax.experiment.user_objects import Imported
from fedprivjax.problem.checks import require_constraint
from fedprivjax.problem.constraints import CONSTRAINTS, ConstraintSet


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
    ConstraintSettings = Set
else:
    ConstraintSettings = sections(Set, {**CONSTRAINTS, OWN: OwnSet})
