"""Modules of users: their import by name, also from the folder of an experiment file, and digests of their code."""

import ast
import sys
import sysconfig
import traceback
from functools import cache
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

from fedprivjax.checks.refusal import Refusal
from fedprivjax.disk_cache import digest

STANDARD = sysconfig.get_path("stdlib")
INSTALLED = {"site-packages", "dist-packages"}  # folders of packages that are no code of the user


def module_of(what: str, name: str, folder: Path | None) -> ModuleType:
    """Return a module by its name, from the folder, the installed packages or the working directory.

    Args:
        what: role of the module's object in messages, such as "loss".
        name: name of the module, such as "my_module".
        folder: folder of an experiment file, or None.

    Raises:
        Refusal: if there is no such module, or its import raises an error.
    """
    try:
        if folder is not None and _file(name, folder).is_file():
            return _load(name, _file(name, folder), str(folder.resolve()))
        return import_module(name)
    except Exception as error:
        own = isinstance(error, ModuleNotFoundError) and (name == error.name or name.startswith(f"{error.name}."))
        if own and _file(name, Path()).is_file():
            return module_of(what, name, Path())
        if own or not name.strip("."):
            places = "must be installed, next to the experiment file, or in the working directory"
            raise Refusal(f"{what} module {name!r} {places}") from None
        raise Refusal(f"{what} module {name!r} must be importable, got {cause(error)}") from error


def code_digests(module: ModuleType, folder: Path | None) -> dict[str, str]:
    """Return digests of a module's code, with key "", and of the user's modules that it or they import, by name."""
    own = getattr(module, "__file__", None)  # a module that is built into Python has no file
    files, found = {"": Path(own or "")}, {}
    packages = {"": module.__package__ or ""}
    while files:
        name, file = files.popitem()
        content = file.read_bytes() if file.is_file() else b""
        tree = ast.parse(content) if file.suffix == ".py" else None
        found[name] = digest(content if tree is None else ast.unparse(tree))
        package = packages.get(name, name if file.stem == "__init__" else name.rpartition(".")[0])
        for each in () if tree is None else _imports(tree, package):
            if each not in found and (imported := _user_file(each, folder)) not in (None, own):
                files[each] = Path(imported)
    return found


def cause(error: Exception) -> str:
    """Return an exception as one line of text: type, message, and where it was raised.

    >>> cause(ValueError("no"))
    'ValueError: no'
    """
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    where = "" if isinstance(error, SyntaxError) else where  # its text has the place
    return f"{type(error).__name__}: {' '.join(str(error).split())}{where}"


def _imports(tree: ast.AST, package: str) -> set[str]:
    """Return names of everything that a module imports, and of the packages around it."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom):
            around = package.split(".")[: max(0, len(package.split(".")) - node.level + 1)] if node.level else []
            base = ".".join([*around, *filter(None, [node.module])])
            names |= {base, *(f"{base}.{each.name}" for each in node.names)}
    return {name.rsplit(".", up)[0] for name in names for up in range(name.count(".") + 1)} - {""}


def _user_file(name: str, folder: Path | None) -> str | None:
    """Return the file of an imported module, or None if it is no module or belongs to an installed package."""
    file = getattr(sys.modules.get(name), "__file__", None)
    if file is None and folder is not None and name not in sys.modules and _file(name, folder).is_file():
        file = str(_file(name, folder))  # imported when a function is called
    own = name.partition(".")[0] != __package__
    installed = file is None or INSTALLED & set(Path(file).parts) or Path(file).is_relative_to(STANDARD)
    return file if own and not installed else None


def _file(name: str, folder: Path) -> Path:
    return folder.resolve() / (name.replace(".", "/") + ".py")


@cache
def _load(name: str, path: Path, folder: str) -> ModuleType:
    """Import a module from its file, bypassing `sys.modules`: two folders may have modules of equal name."""
    spec = spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules.setdefault(name, module)  # dataclasses look up their module there
    sys.path.insert(0, folder)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        if sys.modules.get(name) is module:
            del sys.modules[name]
        raise
    finally:
        sys.path.remove(folder)
    return module
