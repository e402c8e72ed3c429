"""Check that a custom adversary changes nothing but its rows and texts, from which its guarantee follows."""

from collections.abc import Iterable
from inspect import get_annotations

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.restated import of_package

TEXTS = "name", "sees"
FREE = *TEXTS, "rows"  # what a custom adversary may define of its base


def require_rows_only(cls: type, base: type, own: Iterable[str] = ()) -> None:
    """Raise Refusal for a custom class that changes more of its base, itself or by another parent, than `FREE`.

    Args:
        base: class of adversaries that are known by their rows.
        own: names that an object of the class has itself.
    """
    custom = [one for one in cls.__mro__ if one is not object and not of_package(one)]
    fixed = {name for name in dir(base) if not name.startswith("__")}
    changed = {name: one for one in custom for name in vars(one) if name not in FREE}
    changed |= {name: one for one in custom for name in get_annotations(one) if name not in TEXTS}  # fields
    changed |= {name: cls for name in own if name not in TEXTS}
    wrong = sorted(fixed & changed.keys())
    if wrong or not issubclass(cls, base):
        remedy = f"Define name, sees and rows(machines) in a {base.__name__}"
        got = f"{wrong[0]} of {changed[wrong[0]].__name__}" if wrong else f"the base {cls.__bases__[0].__name__}"
        raise Refusal(f"an adversary must be known by its rows, from which its guarantee follows, got {got}. {remedy}")
