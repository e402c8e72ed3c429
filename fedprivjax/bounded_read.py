"""Readers of files that may come from elsewhere. They run no code, and time and memory are bounded by a file's size.

Parsers of the standard library and of NumPy trust what a file declares: a nesting depth, a number of bytes, the size of
an integer. These readers compare all of it with limits first.
"""

import json
import os
import re
import stat
import tomllib
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

MIB = 2**20
JSON_BYTES, TOML_BYTES = 256 * MIB, 4 * MIB  # largest files
DEPTH = 100  # of nested containers
KEY_PARTS = 32  # of a dotted key of TOML
EXPANSION, SLACK = 100, 64 * MIB  # declared bytes must be at most EXPANSION times the file and SLACK
MEMBERS = 100_000  # of an archive
HEADER_CHARACTERS = 10_000  # of an array, a limit of NumPy
KINDS = "biufcSUVmM"  # of arrays: no objects
TOKEN = re.compile(
    r'"""(?:[^"\\]|\\.|"{1,2}(?!"))*+(?:"{3,5}|\Z)'
    r"|'''(?:[^']|'{1,2}(?!'))*+(?:'{3,5}|\Z)"
    r'|"(?:[^"\\\n]|\\.)*+"?'
    r"|'[^'\n]*+'?"
    r"|#[^\n]*+"
    r"|[\[\]{}.,=\n]",
    re.DOTALL,
)


class Unreadable(ValueError):
    """The content of a file cannot be read within the limits. The message is one line."""


def allowed_bytes(size: int) -> int:
    """Return the largest number of bytes that a file of this size may declare."""
    return EXPANSION * size + SLACK


@contextmanager
def unreadable() -> Iterator[None]:
    """Turn any exception of a parser in the block into Unreadable: damaged files cause exceptions of all kinds."""
    try:
        yield
    except Unreadable:
        raise
    except Exception as error:
        raise Unreadable(" ".join(str(error).split()) or type(error).__name__) from error


@contextmanager
def opened(path: Path, *, follow: bool = True) -> Iterator[BinaryIO]:
    """Open a regular file for reading.

    Args:
        follow: whether the file may be a link, as one that the user has named.

    Raises:
        Unreadable: if it is a folder, a pipe or a device, or a link that is not followed.
        OSError: if it cannot be opened.
    """
    if not follow and path.is_symlink():
        raise Unreadable("it is a link")
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    descriptor = os.open(path, flags if follow else flags | getattr(os, "O_NOFOLLOW", 0))
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise Unreadable("it is not a regular file")
        yield file


def text_of(path: Path, limit: int, *, follow: bool = True) -> str:
    """Return the text of a file in UTF-8.

    Raises:
        Unreadable: if it is longer than `limit` bytes or not in UTF-8, and as in `opened`.
        OSError: if it cannot be read.
    """
    with opened(path, follow=follow) as file:
        if os.fstat(file.fileno()).st_size > limit:
            raise Unreadable(f"it is larger than {limit} bytes")
        content = file.read(limit)
    with unreadable():
        return content.decode("utf-8")


def json_from(path: Path, *, follow: bool = True) -> Any:
    """Return the value of a JSON file. Exceptions are those of `text_of` and `json_value`."""
    return json_value(text_of(path, JSON_BYTES, follow=follow))


def json_value(text: str) -> Any:
    """Return the value of a JSON text.

    Raises:
        Unreadable: if the text is not JSON, is nested too deeply, or has an integer of more than 64 bits.

    >>> json_value("[" * 10**5)
    Traceback (most recent call last):
    fedprivjax.bounded_read.Unreadable: it is nested more than 100 deep
    """
    with unreadable():
        try:
            value = json.loads(text, parse_int=_integer)
        except RecursionError:
            raise _too_deep() from None
    _require_shallow(value)
    return value


def toml_value(text: str) -> dict[str, Any]:
    """Return the tables of a TOML text.

    Raises:
        Unreadable: if the text is not TOML, is too long, is nested too deeply, or has an integer of more than 64 bits.

    >>> toml_value("a" + ".a" * 50_000 + " = 1")
    Traceback (most recent call last):
    fedprivjax.bounded_read.Unreadable: it has a key of more than 32 parts
    """
    if len(text) > TOML_BYTES:
        raise Unreadable(f"it is longer than {TOML_BYTES} characters")
    _require_short_keys(text)
    with unreadable():
        found = tomllib.loads(text.removeprefix("\ufeff"))
    _require_shallow(found)
    return found


def arrays_from(path: Path, *, follow: bool = True) -> dict[str, np.ndarray]:
    """Return the arrays of an `.npz` archive by name.

    Raises:
        Unreadable: if it is not an archive of plain arrays, or declares more bytes than `allowed_bytes`.
        OSError: if it cannot be opened.
    """
    with opened(path, follow=follow) as file, unreadable(), zipfile.ZipFile(file) as archive:
        members = archive.infolist()
        _require_plain(members, allowed_bytes(os.fstat(file.fileno()).st_size))
        found = {}
        for member in members:
            _require_declared(archive, member)
            with archive.open(member) as content:
                found[member.filename.removesuffix(".npy")] = np.lib.format.read_array(content, allow_pickle=False)
    return found


def _integer(text: str) -> int:
    """Return an integer of at most 64 bits."""
    value = int(text) if len(text) <= 20 else 2**64
    if abs(value) >= 2**63:
        raise Unreadable("it has an integer of more than 64 bits")
    return value


def _too_deep() -> Unreadable:
    return Unreadable(f"it is nested more than {DEPTH} deep")


def _require_shallow(value: Any) -> None:
    """Raise Unreadable if lists and mappings are nested more than `DEPTH` deep, or an integer has more than 64 bits."""
    level: list[Any] = [[value]]
    for _ in range(DEPTH + 1):
        parts = [each for one in level for each in (one.values() if isinstance(one, Mapping) else one)]
        if any(isinstance(each, int) and abs(each) >= 2**63 for each in parts):
            raise Unreadable("it has an integer of more than 64 bits")
        level = [each for each in parts if isinstance(each, dict | list)]
        if not level:
            return
    raise _too_deep()


def _require_short_keys(text: str) -> None:
    """Raise Unreadable if keys of a TOML text have too many parts, or brackets are nested too deeply."""
    dots, depth = 0, 0
    for token in TOKEN.finditer(text):
        match token.group()[0]:
            case ".":
                dots += 1
            case "[" | "{":
                depth += 1
            case "]" | "}":
                depth -= 1
            case "\n" | "," | "=":
                dots = 0
        if dots >= KEY_PARTS:
            raise Unreadable(f"it has a key of more than {KEY_PARTS} parts")
        if depth > DEPTH:
            raise _too_deep()


def _require_plain(members: list[zipfile.ZipInfo], limit: int) -> None:
    """Raise Unreadable unless an archive's members are arrays with distinct names that declare few bytes."""
    if len(members) > MEMBERS:
        raise Unreadable(f"it has more than {MEMBERS} members")
    names = [member.filename for member in members]
    if wrong := next((name for name in names if not name.endswith(".npy")), None):
        raise Unreadable(f"{wrong!r} is not an array")
    if len(set(names)) < len(names):
        raise Unreadable("two members have one name")
    if any(member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) for member in members):
        raise Unreadable("it is compressed by another method than deflate")
    if sum(member.file_size for member in members) > limit:
        raise Unreadable(f"it declares more than the allowed {limit} bytes")


def _require_declared(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> None:
    """Raise Unreadable unless a member is a plain array of exactly the bytes that its header declares."""
    with archive.open(member) as content:
        version = np.lib.format.read_magic(content)
        read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}[version]
        shape, _, dtype = read(content, max_header_size=HEADER_CHARACTERS)
        rest = member.file_size - content.tell()
    plain = dtype.kind in KINDS and dtype.fields is None and dtype.subdtype is None and dtype.itemsize > 0
    if not plain or min(shape, default=0) < 0 or prod(shape) * dtype.itemsize != rest:
        raise Unreadable(f"{member.filename!r} is not an array of the size that it declares")
