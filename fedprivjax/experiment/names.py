"""Names in experiment files: built-in objects by name, user-defined objects by import path, and the callback."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_choice
from fedprivjax.user_modules import cause, code_digests, module_of

_imported: dict[tuple[str, Path | None], tuple[str, ModuleType]] = {}  # role and module by import path and folder
_digests: dict[ModuleType, dict[str, str]] = {}  # of the code of a module, with key "", and of those that it imports


@dataclass(frozen=True)
class Unimported:
    """A method or a user-defined object of finished results, which is not made. Calling it raises Refusal.

    Attributes:
        name: its name or import path.
    """

    name: str

    def __call__(self, *_: Any, **__: Any) -> NoReturn:
        raise Refusal(
            f"settings must be loaded to run, got {self.name!r} of finished results. Load their spec.toml with "
            f"fedprivjax.experiment.load"
        )


def of_results(context: Mapping[str, Any] | None) -> bool:
    """Return True if a file is read as the settings of finished results: nothing is imported then."""
    return (context or {}).get("recorded") is not None


def resolve(what: str, name: str, known: Mapping[str, Any], context: Mapping[str, Any] | None = None) -> Any:
    """Return the object of a name.

    User-defined objects of finished results are not imported; the result is then `Unimported`.

    Args:
        what: role of the object in messages, such as "protocol".
        name: key of `known`, or "module:Name".
        known: built-in objects by name.
        context: arguments of `parse`: `folder`, the experiment file's, which is searched first for modules (the
            working directory is searched last), and `recorded`.

    Raises:
        Refusal: if the name or module is unknown (the nearest name is suggested), or the module cannot be imported.

    >>> resolve("number", "math:tau", {})
    6.283185307179586
    """
    if ":" not in name:
        require_choice(what, name, known)
        return known[name]
    if of_results(context):
        return Unimported(name)
    path, _, attribute = name.partition(":")
    folder = (context or {}).get("folder")
    module = module_of(what, path, folder)
    _imported[name, folder] = what, module
    if module not in _digests:
        _digests[module] = code_digests(module, folder)
    if attribute not in vars(module):
        here = [key for key, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__]
        require_choice(f"{what} in {path}", attribute, here)
    return vars(module)[attribute]


def code_of(settings: Any, folder: Path | None) -> dict[str, str]:
    """Return digests of the modules of all user-defined objects in settings, and of the modules that they import.

    Comments and layout do not matter. Installed packages are not included.

    Args:
        settings: settings in the form of a file, in which every import path has been resolved.
        folder: folder of the experiment file.

    Returns:
        Digests by role and import path of the object, or by name of the imported module.
    """
    if isinstance(settings, str):
        if (settings, folder) not in _imported:
            return {}
        what, module = _imported[settings, folder]
        found = _digests[module].items()
        return {f"module {name!r}" if name else f"{what} {settings!r}": each for name, each in found}
    entries = settings.values() if isinstance(settings, Mapping) else settings if isinstance(settings, list) else ()
    return {name: found for each in entries for name, found in code_of(each, folder).items()}


def taken_by(found: Any) -> frozenset[str]:
    """Return the names of the arguments of a user-defined class or function. Arguments of `**` have no name.

    >>> sorted(taken_by(lambda width, *, depth=1, **others: None)), sorted(taken_by(3))
    (['depth', 'width'], [])
    """
    if not (inspect.isclass(found) or inspect.isroutine(found)):
        return frozenset()
    try:
        known = inspect.signature(found).parameters.values()
    except ValueError:  # some functions of C extensions have no signature
        return frozenset()
    return frozenset(each.name for each in known if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY))


def made(what: str, path: str, found: Any, options: Mapping[str, Any], kind: type) -> Any:
    """Return the object that an experiment file names by an import path, such as `module:Class`.

    A class or function is called with `options`. Any other object is returned unchanged.

    Args:
        what: noun for the object in messages, such as "loss".
        path: import path, for messages.
        found: the imported class, function or object.
        options: keyword arguments from the file.
        kind: class of which the result must be an instance.

    Raises:
        Refusal: if options are unknown or missing, if an object that is not called has options, if the user's code
            raises an error, or if the result is not a `kind`.
    """
    if not (inspect.isclass(found) or inspect.isroutine(found)):
        if options:
            raise Refusal(f"{what} {path!r} takes no options, got {next(iter(options))!r}")
        one = found
    else:
        known = inspect.signature(found).parameters
        if all(each.kind is not each.VAR_KEYWORD for each in known.values()):
            for option in options:
                require_choice(f"option of {what} {path}", option, known)
        require_call(found, f"{what} {path!r} must be given its options in its table, got", **options)
        with named_errors(what, path):
            one = found(**options)
    if not isinstance(one, kind):
        raise Refusal(f"{what} {path!r} must be a {kind.__name__}, got {one!r}")
    return one


def require_call(found: Callable[..., Any], wanted: str, /, *values: Any, **options: Any) -> None:
    """Raise Refusal, a message `wanted` that ends with the reason, unless a callable takes these arguments.

    >>> require_call(len, "a length must have one argument, got", [1], [2])
    Traceback (most recent call last):
    fedprivjax.Refusal: a length must have one argument, got too many positional arguments
    """
    try:
        inspect.signature(found).bind(*values, **options)
    except TypeError as error:
        raise Refusal(f"{wanted} {error}") from None
    except ValueError:  # some functions of C extensions have no signature
        pass


@contextmanager
def named_errors(what: str, path: str) -> Iterator[None]:
    """Raise errors of a user-defined object's code in the block as a Refusal that names the object.

    Refusals, and errors of objects of this package, are raised unchanged.

    Args:
        what: noun for the object in messages, such as "loss".
        path: import path, or name of an object of this package.

    >>> with named_errors("loss", "mine:Loss"):
    ...     len(3)
    Traceback (most recent call last):
    fedprivjax.Refusal: loss 'mine:Loss' must be made without an error, got TypeError: object of type 'int' has no ...
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, Refusal) or ":" not in path:
            raise
        raise Refusal(f"{what} {path!r} must be made without an error, got {cause(error)}") from error


def object_of(
    what: str, given: Any, known: Mapping[str, Any], base: type, context: Mapping[str, Any] | None, wanted: str
) -> Any:
    """Return the object that a name, or a table of its `kind` and settings, describes.

    Args:
        what: word for the object in messages.
        given: name or table, as in the file.
        known, context: as in `resolve`.
        base: class of the object.
        wanted: as in `named`.
    """
    path, settings = named(given, wanted)
    return made(what, path, resolve(what, path, known, context), settings, base)


def named(given: Any, wanted: str) -> tuple[str, dict[str, Any]]:
    """Return the name and the settings of an object from its name, or a table of its `kind` and settings.

    Args:
        wanted: beginning of the message about anything else.

    >>> named({"kind": "adam", "b1": 0.9}, "server must be named")
    ('adam', {'b1': 0.9})
    """
    table = given if isinstance(given, Mapping) else {"kind": given}
    if not isinstance(table.get("kind"), str):
        raise Refusal(f"{wanted}, got {given!r}")
    return table["kind"], {str(key): value for key, value in table.items() if key != "kind"}


@dataclass(frozen=True)
class Callback:
    """A function (index, round, metrics) whose exceptions are raised as a Refusal that names it.

    Attributes:
        path: its import path.
        function: the imported function.
    """

    path: str
    function: Callable[[dict[str, Any], int, dict[str, float]], Any]

    def __call__(self, index: dict[str, Any], round: int, metrics: dict[str, float]) -> None:
        try:
            self.function(index, round, metrics)
        except Exception as error:
            how = "Finished chunks are stored, so a run into a folder goes on with --resume"
            raise Refusal(f"callback {self.path!r} must not raise an error, got {cause(error)}. {how}") from error


def callback_of(path: str, context: Mapping[str, Path | Any] | None) -> Callback:
    """Return the callback of a path "module:function".

    Raises:
        Refusal: if it cannot be imported, or cannot be called with (index, round, metrics).
    """
    wanted = f'callback {path!r} must be "module:function" of a function (index, round, metrics)'
    if ":" not in path:
        raise Refusal(f"{wanted}, got no colon")
    found = resolve("callback", path, {}, context)
    if not callable(found):
        raise Refusal(f"{wanted}, got {found!r}")
    require_call(found, f"{wanted}, got one with", {}, 0, {})
    return Callback(path, found)
