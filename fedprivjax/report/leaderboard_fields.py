"""Fields of a leaderboard row, and the conditions for a row to enter."""

from collections.abc import Mapping
from math import isfinite
from typing import Any

from fedprivjax.privacy.terms import RELATIONS, TRUST
from fedprivjax.report.plots import TOLERANCE
from fedprivjax.sweeps.results import INTERVAL

Row = dict[str, Any]
TEXT, NUMBER, WHOLE = (str,), (int, float), (int,)
OPTIONAL_TEXT, OPTIONAL_NUMBER = (str, type(None)), (int, float, type(None))
FIELDS: dict[str, tuple[type, ...]] = {
    "experiment": TEXT,
    "federation": TEXT,
    "setting": (dict,),
    "metric": TEXT,
    "better": TEXT,
    "target_epsilon": OPTIONAL_NUMBER,
    "method": TEXT,
    "protocol": TEXT,
    "epsilon": NUMBER,
    "delta": NUMBER,
    "unit": TEXT,
    "relation": TEXT,
    "trust": TEXT,
    "theorem": TEXT,
    "proved": (bool,),
    "mean": NUMBER,
    "half_width": NUMBER,
    "seeds": WHOLE,
    "diverged": WHOLE,
    "rounds": NUMBER,
    "gradients_per_record": OPTIONAL_NUMBER,
    "sent_bytes": NUMBER,
    "tuned": (str,),
    "not_covered": (str,),
    "version": TEXT,
    "commit": OPTIONAL_TEXT,
    "date": TEXT,
    "command": TEXT,
}
MAY_BE_EMPTY = ("tuned", "not_covered")
CHOICES = {"better": ("higher", "lower"), "trust": tuple(TRUST)}
NAMES = {str: "text", float: "a number", int: "an integer", bool: "true or false", dict: "an object"}


def faults(row: Any) -> list[str]:
    """Return a line for each reason why a row cannot enter the leaderboard. An acceptable row has none.

    >>> faults({"seeds": 2})[0]
    'experiment must be given, got none'
    """
    if not isinstance(row, Mapping):
        return [f"row must be an object, got {row!r}"]
    if row.get("diverged"):  # explains a mean that is not finite, so it comes alone
        return [f"runs must not diverge, got {row['diverged']} of {row.get('seeds')} diverged"]
    found = [_fault(name, row[name]) for name in FIELDS if name in row]
    found = [f"{name} must be given, got none" for name in FIELDS if name not in row] + [each for each in found if each]
    found += [f"{name} must be a known field, got {row[name]!r}" for name in row if name not in FIELDS]
    return found or _limits(dict(row))


def _fault(name: str, value: Any) -> str:
    """Return why a field's value is not acceptable, or ""."""
    types = FIELDS[name]
    if name == "epsilon" and value is None:
        return "epsilon must be the realised ε of a private method, got none"
    if name == "half_width" and value is None:
        return f"seeds must be at least {INTERVAL} for an interval, got fewer"
    wrong = not isinstance(value, types) or (isinstance(value, bool) and bool not in types)
    if wrong or (isinstance(value, float) and not isfinite(value)):
        wanted = NAMES[float] if float in types else NAMES[types[0]]
        return f"{name} must be {wanted}, got {value!r}"
    if isinstance(value, str) and not value.strip() and name not in MAY_BE_EMPTY:
        return f"{name} must not be empty, got {value!r}"
    if name == "relation" and isinstance(value, str):
        return (
            "" if value.partition(" (")[0] in RELATIONS else f"relation must be one of {list(RELATIONS)}, got {value!r}"
        )
    if name in CHOICES and value not in CHOICES[name]:
        return f"{name} must be one of {list(CHOICES[name])}, got {value!r}"
    return ""


def _limits(row: Row) -> list[str]:
    """Return the faults of numbers whose fields are acceptable one by one."""
    target = row["target_epsilon"]
    conditions = {
        f"seeds must be at least {INTERVAL}, got {row['seeds']}": row["seeds"] >= INTERVAL,
        f"epsilon must be positive, got {row['epsilon']}": row["epsilon"] > 0,
        f"delta must be in (0, 1), got {row['delta']}": 0 < row["delta"] < 1,
        f"half_width must be at least 0, got {row['half_width']}": row["half_width"] >= 0,
        f"rounds must be positive, got {row['rounds']}": row["rounds"] > 0,
        f"sent_bytes must be at least 0, got {row['sent_bytes']}": row["sent_bytes"] >= 0,
        f"setting must hold numbers, got {row['setting']}": all(isinstance(v, NUMBER) for v in row["setting"].values()),
    }
    if target is not None:
        within = row["epsilon"] <= (1 + TOLERANCE) * target
        conditions[f"epsilon must be at most its target {target:g}, up to {TOLERANCE:.0%}, got {row['epsilon']}"] = (
            within
        )
    return [text for text, holds in conditions.items() if not holds]
