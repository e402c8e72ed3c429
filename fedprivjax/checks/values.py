"""Validation of single values and of keyword arguments, shared by the whole package."""

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import MISSING, fields
from functools import wraps
from math import inf, log10
from types import FunctionType
from typing import Any, ParamSpec, TypeVar

import numpy as np

from fedprivjax.checks.printable import is_hidden
from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.suggestions import unknown

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")
LIST = 10  # largest number of choices that a message lists; with more, it names the nearest
NAMED = 80  # characters of a text in a message
FLOAT32 = float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max)  # sizes that are not 0 or infinite
NUMBERS = ("mu", "noise_std", "step_size", "step_scale")  # settings of a protocol that take a single number


def require_real(name: str, value: Any) -> None:
    """Raise Refusal for a complex number, or an array of complex numbers. Any other value passes.

    >>> require_real("noise_std", 1j)
    Traceback (most recent call last):
    fedprivjax.Refusal: noise_std must be a real number, got 1j. Use its real part
    """
    if isinstance(value, complex) or getattr(getattr(value, "dtype", None), "kind", "") == "c":
        raise Refusal(f"{name} must be a real number, got {value}. Use its real part")


def require_positive(name: str, value: Any, *, optional: bool = False, infinite: bool = False) -> None:
    """Raise Refusal unless a concrete number is positive and not NaN. Traced values pass.

    >>> require_positive("step_size", -1.0)
    Traceback (most recent call last):
    fedprivjax.Refusal: step_size must be positive, got -1.0
    """
    if optional and value is None:
        return
    require_real(name, value)
    if isinstance(value, bool | np.bool_ | str | bytes | list | tuple | dict | FunctionType) or value is None:
        given = called(value) if isinstance(value, FunctionType) else unquoted(value)
        raise Refusal(f"{name} must be a positive number, got {given}")
    if not isinstance(value, int | float | np.number):
        return  # a tracer, an array or a placeholder of a tree transformation
    if not value > 0:
        raise Refusal(f"{name} must be positive, got {value}")
    if value == inf and not infinite:
        raise Refusal(f"{name} must be finite, got {value}")
    require_float32(name, value)


def as_float(name: str, value: Any) -> float:
    """Return a real number as a float. Raise Refusal for any other value, such as a text or an array of several.

    >>> as_float("epsilon", "1")
    Traceback (most recent call last):
    fedprivjax.Refusal: epsilon must be a number, got '1'. Remove the quotes
    """
    require_real(name, value)
    if isinstance(value, str | bytes) or value is None or np.ndim(value):
        raise Refusal(f"{name} must be a number, got {unquoted(value)}")
    try:
        return float(value)
    except OverflowError as error:
        raise Refusal(f"{name} must be at most 1.8e+308, as float64 holds, got {short(value)}") from error


def require_float32(name: str, value: Any) -> None:
    """Raise Refusal if a concrete finite number is 0 or infinite in float32, in which programs compute, and is not 0.

    >>> require_float32("step_size", 1e-50)
    Traceback (most recent call last):
    fedprivjax.Refusal: step_size must be between 1.18e-38 and 3.4e+38, as float32 holds, got 1e-50
    """
    low, high = FLOAT32
    if value and abs(value) < inf and not low <= abs(value) <= high:
        raise Refusal(f"{name} must be between {low:.3g} and {high:.3g}, as float32 holds, got {short(value)}")


def short(value: Any) -> str:
    """Return a number as text. A long integer is shortened to its power of ten.

    >>> short(10**30), short(0.25)
    ('about 10^30', '0.25')
    """
    return f"about 10^{round(log10(abs(value)))}" if isinstance(value, int) and abs(value) > 10**18 else str(value)


def require_printable(name: str, text: str, *, breaks: bool = True) -> None:
    r"""Raise Refusal if a text has control or invisible characters. Line breaks are allowed if `breaks`.

    >>> require_printable("title", "red \x1b[31m")
    Traceback (most recent call last):
    fedprivjax.Refusal: title must have no control or invisible characters, got 'red \x1b[31m'. Leave out '\x1b'
    """
    for each in text:
        if is_hidden(each) or (each == "\n" and not breaks):
            raise Refusal(
                f"{name} must have no control or invisible characters, got {text[:NAMED]!r}. Leave out {each!r}"
            )


def require_flag(name: str, value: Any) -> None:
    """Raise Refusal unless the value is True or False.

    >>> require_flag("cancel", "false")
    Traceback (most recent call last):
    fedprivjax.Refusal: cancel must be true or false, got 'false'
    """
    if not isinstance(value, bool | np.bool_):
        raise Refusal(f"{name} must be true or false, got {value!r}")


def require_at_least(name: str, value: int, least: int, remedy: str = "") -> None:
    """Raise Refusal unless the value is an integer of at least `least`. The message ends with the remedy.

    >>> require_at_least("rounds", 0, 1)
    Traceback (most recent call last):
    fedprivjax.Refusal: rounds must be at least 1, got 0
    """
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise Refusal(f"{name} must be an integer, got {unquoted(value)}")
    if value < least:
        raise Refusal(f"{name} must be at least {least}, got {value}" + (f". {remedy}" if remedy else ""))


def require_choice(name: str, value: Any, choices: Iterable[str], *, listed: int = LIST) -> None:
    """Raise Refusal unless the value is one of `choices`. The message names the nearest or the equivalent choice.

    If there are more than `listed` choices, it names the three nearest.

    >>> require_choice("trust", "sever", ["server", "none"])
    Traceback (most recent call last):
    fedprivjax.Refusal: unknown trust 'sever', did you mean 'server'? (known: server, none)
    >>> require_choice("letter", "bb", "abcdefghijkl")
    Traceback (most recent call last):
    fedprivjax.Refusal: unknown letter 'bb', did you mean 'b'?
    >>> require_choice("key", "lr", ["clip", "step_size"])
    Traceback (most recent call last):
    fedprivjax.Refusal: unknown key 'lr', did you mean 'step_size'?
    """
    known = list(dict.fromkeys(choices))
    if not np.ndim(value) and value in known:
        return
    raise Refusal(unknown(name, value, known, listed))


def require_keywords(name: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Raise Refusal unless all given keywords are known. The message names the nearest one, and lists all.

    >>> require_keywords("DPMu2", ["stepsize"], ["mu", "step_size"])
    Traceback (most recent call last):
    fedprivjax.Refusal: unknown setting of DPMu2 'stepsize', did you mean 'step_size'? (known: mu, step_size)
    """
    every = list(known)
    for word in given:
        require_choice(f"setting of {name}", word, every, listed=len(every))


def of_table(name: str, table: Mapping[str, Any], kinds: Mapping[str, Callable[..., Any]]) -> Any:
    """Return the object that a table of its kind and settings describes, as in an experiment file.

    Args:
        name: setting that holds the table, for messages.
        kinds: dataclasses by kind.

    Raises:
        Refusal: unless the table has a known kind, known keys, and all fields without defaults.
    """
    settings = {key: value for key, value in table.items() if key != "kind"}
    kind = table.get("kind", "")
    require_choice(f"kind of {name}", kind, kinds)
    known: Any = fields(kinds[kind])  # type: ignore[arg-type]
    for key in settings:
        require_choice(f"key of {name} {kind!r}", key, [one.name for one in known] or ["kind"])
    for one in known:
        if one.default is MISSING and one.name not in settings:
            raise Refusal(f"{one.name} must be given with {name} of kind {kind!r}, got none")
    return kinds[kind](**settings)


def require_items(name: str, value: Any) -> list[Any]:
    """Return the items of a list, a tuple or an array. Raise Refusal for a single value.

    >>> require_items("sizes", 5)
    Traceback (most recent call last):
    fedprivjax.Refusal: sizes must be a list, got 5. Write [5]
    """
    if isinstance(value, str) or not isinstance(value, Iterable) or getattr(value, "shape", None) == ():
        raise Refusal(f"{name} must be a list, got {value!r}" + (f". Write [{value!r}]" if value is not None else ""))
    return list(value)


def require_one(name: str, value: Any) -> None:
    """Raise Refusal if several values are given for a setting that takes one number.

    >>> require_one("mu", [1.0, 2.0])
    Traceback (most recent call last):
    fedprivjax.Refusal: mu must be one number, got [1., 2.]: a sweep takes several, as over={"mu": [...]}
    """
    if isinstance(value, list | tuple) or np.ndim(value):
        listed = isinstance(value, list | tuple)
        several = np.array2string(np.asarray(value), separator=", ", threshold=6) if listed else called(value)
        raise Refusal(f'{name} must be one number, got {several}: a sweep takes several, as over={{"{name}": [...]}}')


def condition(message: str) -> str:
    """Return the condition in pydantic's message "Input should …", in the words of other messages.

    >>> condition("Input should be greater than or equal to 3")
    'be at least 3'
    """
    text = re.sub(r"^\w+ should ", "", message).replace("a valid integer", "an integer").replace("a valid ", "a ")
    return text.replace("greater than or equal to", "at least").replace("less than or equal to", "at most")


def unquoted(value: Any) -> str:
    """Return a value as text for a message. For a quoted number, the text also says to remove the quotes.

    >>> unquoted([1]), unquoted("0"), unquoted("many")
    ('[1]', "'0'. Remove the quotes", "'many'")
    """
    if isinstance(value, str):
        with suppress(ValueError):
            float(value)
            return f"{value!r}. Remove the quotes"
    return repr(value)


def called(value: Any) -> str:
    """Return the description of a value of the wrong type for a message: short values themselves, else the type.

    >>> called("softmax"), called(10), called(int), called(np.zeros((2, 3)))
    ("'softmax'", '10', 'the class int', 'an array of shape (2, 3)')
    """
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if value is None or isinstance(value, str | bool | int | float | np.number):
        return repr(value)[:80]
    if getattr(value, "shape", None) is not None and hasattr(value, "dtype"):
        return f"an array of shape {tuple(value.shape)}"
    kind = type(value).__name__
    return f"{'an' if kind[0] in 'AEIOaeio' else 'a'} {kind}"


def require_between(name: str, value: Any, low: float, high: float) -> None:
    """Raise Refusal unless the value is a number strictly between two bounds. NaN is rejected.

    >>> require_between("delta", 2.0, 0, 1)
    Traceback (most recent call last):
    fedprivjax.Refusal: delta must be between 0 and 1, got 2.0
    """
    require_real(name, value)
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | float | np.number) or not low < value < high:
        given = unquoted(value) if isinstance(value, str) else value
        raise Refusal(f"{name} must be between {low} and {high}, got {given}")


def require_number(name: str, value: Any) -> None:
    """Raise Refusal unless the value is a concrete number.

    >>> require_number("noise_std", "1")
    Traceback (most recent call last):
    fedprivjax.Refusal: noise_std must be a number, got '1'. Remove the quotes
    """
    require_real(name, value)
    if isinstance(value, bool) or not isinstance(value, int | float | np.number):
        raise Refusal(f"{name} must be a number, got {unquoted(value)}")


def require_fraction(name: str, value: Any) -> None:
    """Raise Refusal unless the value is a number from 0 to 1.

    >>> require_fraction("outliers", 1.5)
    Traceback (most recent call last):
    fedprivjax.Refusal: outliers must lie in 0..1, got 1.5
    """
    require_number(name, value)
    if not 0 <= value <= 1:
        raise Refusal(f"{name} must lie in 0..1, got {value}")


def require_probability(name: str, value: Any) -> float:
    """Return a probability above 0 and at most 1 as a float. Raise Refusal for any other value.

    >>> require_probability("rate", 1)
    1.0
    """
    require_real(name, value)
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | float | np.number) or not 0 < value <= 1:
        raise Refusal(f"{name} must be a probability above 0 and at most 1, got {value!r}")
    return float(value)


def known_keywords(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Return the function with a check of its keywords. Editors and `help` show the original signature.

    >>> @known_keywords
    ... def walk(start, *, rounds=1):
    ...     return start + rounds
    >>> walk(1, rounds=2), str(inspect.signature(walk))
    (3, '(start, *, rounds=1)')
    >>> walk(1, round=2)
    Traceback (most recent call last):
    fedprivjax.Refusal: unknown setting of walk 'round', did you mean 'rounds'? (known: start, rounds)
    """
    known = tuple(inspect.signature(function).parameters)

    @wraps(function)
    def checked(*args: Parameters.args, **options: Parameters.kwargs) -> Result:
        require_keywords(function.__name__, options, known)
        return function(*args, **options)

    return checked
