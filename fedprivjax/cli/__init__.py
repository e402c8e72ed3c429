"""The command line: `fedprivjax list | run | report | reproduce | privacy | audit | plan | leaderboard | …`."""

import io
import logging
import os
import sys
import traceback
import warnings

from fedprivjax.checks.refusal import Refusal
from fedprivjax.cli import audit, bench, console, experiments, listing, plan, vectors
from fedprivjax.cli.console import TRACEBACK, app, end_job, err, out, reported_elsewhere

__all__ = ["app", "audit", "bench", "err", "experiments", "listing", "main", "out", "plan", "vectors"]

warned: set[str] = set()  # texts of the warnings that are printed


def main() -> None:
    """Run the command line.

    A Refusal prints one line on stderr, or with --traceback the traceback, and exits with status 2. Ctrl-C prints one
    line with the command that resumes, and exits with status 130.
    """
    _print_everything()
    _show_log()
    warned.clear()
    warnings.showwarning = _warned
    words = sys.argv[1:]
    try:
        with console.interrupted_again():
            app([word for word in words if word != TRACEBACK])  # allowed before and after the command
    except (console.Stopped, KeyboardInterrupt) as stop:
        print(str(stop) or "stopped", file=sys.stderr)
        console.leave(130)
    except (Refusal, OSError) as error:  # any other exception is a bug and prints its traceback
        if TRACEBACK in words:
            traceback.print_exc()
        elif not reported_elsewhere(error):
            kind = "" if isinstance(error, Refusal) else f"{type(error).__name__}: "
            err.say(f"{kind}{error}")
        _drop_unprinted()
        end_job(error, 2)
        raise SystemExit(2) from None
    except Exception as error:
        end_job(error, 1)
        raise


def _drop_unprinted() -> None:
    """Discard text that stdout cannot take, such as on a full disk, so that it is not printed again at the end."""
    if sys.stdout is None:
        return
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _print_everything() -> None:
    """Print characters that an output cannot encode as escapes, such as μ in ASCII, instead of ending the command."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _warned(message, category, filename, lineno, file=None, line=None) -> None:
    """Print a warning as one line, without its position in the code, and only once."""
    if str(message) not in warned:
        warned.add(str(message))
        err.say(f"warning: {message}")


class _OnStderr(logging.Handler):
    """Handler that prints messages as lines on stderr."""

    def emit(self, record: logging.LogRecord) -> None:
        err.say(self.format(record))


def _show_log() -> None:
    """Print the package's log, such as the memory of a sweep's chunks on an accelerator."""
    log = logging.getLogger("fedprivjax")
    log.setLevel(logging.INFO)
    log.handlers = [_OnStderr()]
