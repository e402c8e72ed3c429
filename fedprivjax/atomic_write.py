"""Atomic file writes: a file is either complete under its name or absent.

Content is written to a temporary file in the same folder, flushed to disk, and renamed. Processes may share a folder.
Readers never see an incomplete file, and a full disk changes nothing. Temporary files of killed processes are removed
after a day.
"""

import os
import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from time import monotonic, sleep, time
from typing import Any, BinaryIO

Content = bytes | str | Callable[[BinaryIO], Any]

PART = ".part"
ABANDONED = 24 * 3600.0  # seconds since its last write after which a temporary file is removed
EMPTY = 0.3  # largest number of seconds to wait for the content of an empty file
ATTEMPTS = 3  # another process may remove the folder meanwhile


def write_atomically(path: Path, content: Content, *, follow: bool = False) -> None:
    """Write one file as in `write_together`.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     write_atomically(Path(folder, "new", "file"), "text")
    ...     Path(folder, "new", "file").read_text()
    'text'
    """
    write_together({path: content}, follow=follow)


def create_atomically(path: Path, content: Content) -> bool:
    """Write one file unless it exists, and return True if it was written. One of several processes writes it.

    On file systems without hard links, such as exFAT, the file is empty for a moment. False is returned after that.

    Raises:
        OSError: if the file cannot be written. `filename` is its path.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     [create_atomically(Path(folder, "file"), text) for text in ("one", "two")], Path(folder, "file").read_text()
    ([True, False], 'one')
    """
    if path.exists():
        _wait_for_content(path)
        return False
    written = path.with_name(f".{os.getpid()}-{secrets.token_hex(8)}{PART}")
    try:
        write_atomically(written, content)
        _move_new(written, path)
    except FileExistsError:
        _wait_for_content(path)
        return False
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        with suppress(OSError):
            written.unlink()
    return True


def _move_new(written: Path, path: Path) -> None:
    """Move a file to a name that does not exist yet.

    Raises:
        FileExistsError: if the name exists.
    """
    try:
        os.link(written, path)
        return
    except FileExistsError:
        raise
    except OSError:  # no hard links: an empty file reserves the name
        path.open("xb").close()
    try:
        os.replace(written, path)
    except OSError:
        with suppress(OSError):
            path.unlink()
        raise


def _wait_for_content(path: Path) -> None:
    """Wait while a file is empty, which another process may be about to replace."""
    deadline = monotonic() + EMPTY
    with suppress(OSError):
        while path.stat().st_size == 0 and monotonic() < deadline:
            sleep(EMPTY / 50)


def write_together(files: Mapping[Path, Content], *, follow: bool = False) -> None:
    """Write files and create their folders. No file is replaced before all contents are on disk.

    A link, a pipe or a device under a file's name is replaced, so that a folder from elsewhere cannot direct the
    content to another file.

    Args:
        files: content by path, in the order of replacement: bytes, text in UTF-8, or a function that writes to a
            binary file and may be called again.
        follow: True for paths that the user has named, such as /dev/stdout. Links, pipes and devices are then written
            directly.

    Raises:
        OSError: if a file cannot be written. `filename` is its path. No file has changed, unless a rename fails after
            the first file.
    """
    special = {path: content for path, content in files.items() if follow and _special(path)}
    regular = {path: content for path, content in files.items() if path not in special}
    for attempt in range(1, ATTEMPTS + 1):
        try:
            _replace(regular)
            break
        except FileNotFoundError:
            if attempt == ATTEMPTS:
                raise
    for path, content in special.items():
        with path.open("wb") as file:
            _fill(file, content)


def _replace(files: Mapping[Path, Content]) -> None:
    parts: dict[Path, Path] = {}
    path = Path()
    try:
        for path, content in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            _remove_abandoned(path.parent)
            parts[path] = path.with_name(f".{os.getpid()}-{secrets.token_hex(8)}{PART}")
            with parts[path].open("xb") as file:
                _fill(file, content)
                file.flush()
                os.fsync(file.fileno())
        for path, part in parts.items():
            os.replace(part, path)
    except OSError as error:
        if error.errno is None:
            raise OSError(f"cannot write {path}: {error}") from error
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        for part in parts.values():
            with suppress(OSError):
                part.unlink()
    for folder in {path.parent for path in files}:
        _sync(folder)


def _fill(file: BinaryIO, content: Content) -> None:
    if callable(content):
        content(file)
    else:
        file.write(content.encode() if isinstance(content, str) else content)


def _special(path: Path) -> bool:
    """Return True if the path is a link, or exists and is neither a regular file nor a folder."""
    return os.path.islink(path) or (os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path))


def _sync(folder: Path) -> None:
    """Flush the folder's directory entries to disk, on systems where folders can be opened."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@cache
def _remove_abandoned(folder: Path) -> None:
    """Remove temporary files of killed processes from a folder, once per process."""
    with suppress(OSError):
        for part in folder.glob(f".*{PART}"):
            if time() - part.stat().st_mtime > ABANDONED:
                part.unlink(missing_ok=True)
