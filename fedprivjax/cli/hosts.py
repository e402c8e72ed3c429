"""One run over the processes of a job: `fedprivjax run --distributed`."""

import sys
import traceback

from fedprivjax.checks.refusal import Refusal
from fedprivjax.cli.console import err, leave, out

LOST = ("by peer", "Gloo", "NCCL")  # in jax's errors after the end of another process
ENDED = "another process of the job has ended. The same command resumes from the finished chunks"


def join_job() -> None:
    """Connect this process to the others of its job, which jax detects. Only the first prints.

    Must be called before anything is computed.

    Raises:
        Refusal: if jax detects no job.
    """
    import jax

    try:
        jax.distributed.initialize()
    except (ValueError, TypeError) as error:
        remedy = "Start it with srun or mpirun, or in a Kubernetes job"
        raise Refusal(f"--distributed must be used in a job that jax detects, got none: {error} {remedy}") from error
    out.quiet = jax.process_index() > 0


def several_hosts() -> bool:
    """Return True if this process computes together with others."""
    jax = sys.modules.get("jax")
    return jax is not None and jax.distributed.is_initialized() and jax.process_count() > 1


def reported_elsewhere(error: BaseException | None) -> bool:
    """Return True if the first process of the job reports the error, and this is another process."""
    if not several_hosts():
        return False
    from fedprivjax.engine.hosts import is_first

    return not is_first() and _at_all_hosts(error)


def end_job(error: BaseException, status: int) -> None:
    """End this process at once if the others wait for it, so that they end too.

    A normal end would wait until they have ended, and is right if all processes have raised the error.

    Args:
        status: exit status; 1 if the error is not printed yet. The end of another process is printed as one line.
    """
    if not several_hosts() or _at_all_hosts(error):
        return
    if status == 1 and any(word in str(error) for word in LOST):
        first = str(error).splitlines()[0]
        err.say(f"{ENDED}: {first}")
    elif status == 1:
        traceback.print_exception(error)
    leave(status)


def _at_all_hosts(error: BaseException | None) -> bool:
    """Return True if an error or its cause was raised in all processes."""
    while error is not None:
        if getattr(error, "at_all_hosts", False):
            return True
        error = error.__cause__
    return False
