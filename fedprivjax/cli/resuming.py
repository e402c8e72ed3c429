"""Messages after a stop or on a full disk: how many runs are saved, and the command that resumes."""

import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedprivjax.checks.refusal import Refusal
from fedprivjax.cli.console import Stopped


def noting(runs: list[int], on_progress):
    """Return a progress callback that also stores the numbers of finished runs and of all runs."""

    def noted(finished: int, total: int) -> None:
        runs[:] = finished, total
        on_progress(finished, total)

    return noted


@contextmanager
def resumable(folder: Path, *, keep: bool = True) -> Iterator[list[int]]:
    """Turn a stop or a failed write into a message on how to resume. The value is set to (finished runs, all runs)."""
    runs = [0, 0]
    try:
        yield runs
    except KeyboardInterrupt:
        raise Stopped(f"stopped: {_how_to_go_on(folder, runs[0] if keep else 0, runs[1])}") from None
    except OSError as error:
        if not _of_writing(error, folder):
            raise
        how = _how_to_go_on(folder, runs[0] if keep else 0, runs[1])
        raise Refusal(f"{error.filename or folder} must be writable, got {error.strerror or error}: {how}") from error


def _of_writing(error: OSError, folder: Path) -> bool:
    """Return False if an error is about data that cannot be read: a Refusal, or a file outside the results folder."""
    if isinstance(error, Refusal):
        return False
    return error.filename is None or Path(error.filename).absolute().is_relative_to(folder.absolute())


def _how_to_go_on(folder: Path, runs: int, total: int) -> str:
    """Return a line with the number of saved runs, and the command that resumes or restarts."""
    words = sys.argv[1:]
    if not runs:
        done = f"no chunk of {total} runs was finished" if total else "nothing ran yet"
        return f"{done}, so nothing is saved. Start again with fedprivjax {shlex.join(words)}"
    words = words if "--resume" in words else [*words, "--resume"]
    return f"{runs} of {total} runs are saved in {folder}. Resume with fedprivjax {shlex.join(words)}"
