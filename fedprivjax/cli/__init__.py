"""The command line: `fedprivjax list | run | report | reproduce | privacy | audit | plan | bench`."""

import os
import sys
import traceback
import warnings

from fedprivjax.checks.refusal import Refusal
from fedprivjax.cli import audit, bench, experiments, listing, plan
from fedprivjax.cli.console import TRACEBACK, app, err, out
from fedprivjax.cli.interrupts import Stopped, interrupted_again, leave
from fedprivjax.disk_cache import cache_folder

__all__ = ["app", "audit", "bench", "err", "experiments", "listing", "main", "out", "plan"]


def main() -> None:
    """Run the command line; a refusal is one line on stderr and exit status 2, with --traceback its whole traceback.

    A stop by the keyboard is one line that says how to go on, and exit status 130.
    """
    _keep_compiled()
    warnings.showwarning = _warned
    words = sys.argv[1:]
    try:
        with interrupted_again():
            app([word for word in words if word != TRACEBACK])  # before the command or after it
    except (Stopped, KeyboardInterrupt) as stop:
        err.print(str(stop) or "stopped", markup=False, highlight=False, soft_wrap=True)
        leave(130)
    except (Refusal, OSError) as error:  # any other exception is a bug, and shows its traceback
        if TRACEBACK in words:
            traceback.print_exc()
        else:
            kind = "" if isinstance(error, Refusal) else f"{type(error).__name__}: "
            err.print(f"{kind}{error}", markup=False, highlight=False, soft_wrap=True)
        raise SystemExit(2) from None


def _warned(message, category, filename, lineno, file=None, line=None) -> None:
    """A warning as one line, without the place in the code that gave it."""
    err.print(f"warning: {message}", markup=False, highlight=False, soft_wrap=True)


def _keep_compiled() -> None:
    """Let jax keep compiled programs between starts; it reads the environment when it is imported, later than this."""
    folder = cache_folder()
    if folder is not None:
        os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(folder / "compiled"))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.2")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # a program read back reports tuning hints as missing features
