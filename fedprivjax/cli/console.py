"""Shared parts of all commands: consoles, common options, progress, Ctrl-C, and jobs of several processes.

Ctrl-C prints one line with the command that resumes, and ends with exit status 130. The processes of a job compute one
run together: `fedprivjax run --distributed`.
"""

import json
import os
import sys
import traceback
from _thread import interrupt_main
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib.metadata import version
from inspect import cleandoc
from pathlib import Path
from threading import Timer
from typing import Annotated, Any

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from typer.core import TyperGroup

from fedprivjax.atomic_write import write_atomically
from fedprivjax.bounded_read import Unreadable, toml_value
from fedprivjax.checks.printable import printable
from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import condition, require_choice
from fedprivjax.layout.text_table import usual_width

TRACEBACK = "--traceback"
UsageError: Any = typer.BadParameter.__base__  # of click, which typer contains or imports
on_screen = sys.stdout is not None and sys.stdout.isatty()  # it is None if a process starts with it closed
Spec = Annotated[str, typer.Argument(help="a TOML file, or the name of a bundled experiment")]
Change = Annotated[
    list[str] | None, typer.Option("--set", help="section.key=value in TOML, or protocol=@FILE; repeatable")
]
Resume = Annotated[bool, typer.Option("--resume", help="resume a stopped run")]
Out = Annotated[Path | None, typer.Option("--out", help="results folder (default: results/<name>)")]
LOST = ("by peer", "Gloo", "NCCL")  # in jax's errors after the end of another process
COMMANDS = ("run", "report", "list", "plan", "privacy", "audit", "reproduce", "leaderboard", "bench", "vectors")
ENDED = "another process of the job has ended. The same command resumes from the finished chunks"


def in_folder(param: typer.CallbackParam, file: Path | None) -> Path | None:
    """Return the file of an option, or raise Refusal if its folder does not exist."""
    if file is not None and not file.parent.is_dir():
        raise Refusal(f"{param.opts[0]} must be in a folder that exists, got {file}")
    return file


Json = Annotated[
    Path | None, typer.Option("--json", callback=in_folder, help="also write the results to this JSON file")
]


class Stopped(Exception):
    """Raised on Ctrl-C, with the line to print."""


class StoppableCommands(TyperGroup):
    """Commands in the order of use that raise `Stopped` on Ctrl-C, which typer would otherwise handle silently.

    Unknown commands, unknown options and invalid values raise Refusal, whose message is one line. The lines of each
    paragraph of a docstring are joined in help, which typer does for the first paragraph only.
    """

    def get_command(self, ctx, cmd_name):
        command = super().get_command(ctx, cmd_name)
        if command is not None and command.help:
            paragraphs = cleandoc(command.help).split("\n\n")
            command.help = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
        return command

    def list_commands(self, ctx):
        return sorted(super().list_commands(ctx), key=COMMANDS.index)

    def resolve_command(self, ctx, args):
        require_choice("command", args[0], self.list_commands(ctx))
        return super().resolve_command(ctx, args)

    def parse_args(self, ctx, args):
        if not args:
            return super().parse_args(ctx, args)  # which prints the help
        try:
            return super().parse_args(ctx, args)
        except UsageError as error:
            raise Refusal(self._usage(error, None)) from None

    def invoke(self, ctx):
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise Stopped("stopped") from None
        except UsageError as error:
            raise Refusal(self._usage(error, ctx.invoked_subcommand)) from None

    def _usage(self, error, command: str | None) -> str:
        """Return the error of a command's options as one line, with the value, or the commands that have the option."""
        from pydantic import ValidationError

        if isinstance(error.__cause__, ValidationError):  # of an option's value
            first = error.__cause__.errors()[0]
            return f"{error.param.opts[0]} must {condition(first['msg'])}, got {first['input']!r}"
        option = getattr(error, "option_name", None)
        owners = [name for name, each in self.commands.items() if any(option in one.opts for one in each.params)]
        elsewhere = f"It is an option of {', '.join(owners)}. " if owners and command not in owners else ""
        shown = "fedprivjax --help" if command is None else f"fedprivjax {command} --help"
        return f"{error.format_message().rstrip('.')}. {elsewhere}See {shown}"


def leave(status: int) -> None:
    """End the process at once, since a program that still runs in another thread would crash a normal shutdown."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


@contextmanager
def interrupted_again() -> Iterator[None]:
    """Interrupt again a moment later if Ctrl-C arrives in code that cannot raise, such as a JAX callback."""
    before = sys.unraisablehook

    def report(unraisable) -> None:
        if issubclass(unraisable.exc_type, KeyboardInterrupt):
            Timer(0.1, interrupt_main).start()
        else:
            before(unraisable)

    sys.unraisablehook = report
    try:
        yield
    finally:
        sys.unraisablehook = before


class PrintableConsole(Console):
    """A console that prints control characters of any text as escapes."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        """Yield the segments of a renderable, as `Console.render`, with printable text."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(printable(segment.text), segment.style)

    def say(self, text: object) -> None:
        """Print a text as it is, in one line."""
        self.print(text, markup=False, highlight=False, soft_wrap=True)

    def say_wrapped(self, text: object) -> None:
        """Print a text as it is, broken between words in a terminal, and in one line elsewhere."""
        self.print(text, markup=False, highlight=False, soft_wrap=not self.is_terminal)


out = PrintableConsole(width=None if on_screen else usual_width())
err = PrintableConsole(stderr=True)


app = typer.Typer(
    help="Differentially private federated optimisation, simulated.",
    cls=StoppableCommands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        out.print(f"fedprivjax {version('fedprivjax')}", highlight=False)
        raise typer.Exit


@app.callback()
def everywhere(
    traceback: Annotated[bool, typer.Option(TRACEBACK, help="show the traceback of invalid input")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="show the version, and exit")
    ] = False,
) -> None:
    """Differentially private federated optimisation, simulated."""


def load(spec: str, change: list[str] | None):
    from fedprivjax import experiment

    with status_line(f"reading {spec}"):
        return experiment.load(spec, changes_of(change or ()))


def changes_of(change: Iterable[str]) -> dict[str, Any]:
    """Return the values of `--set` by dotted key, with `protocol=@FILE` replaced by the entries of the file.

    These entries replace the experiment's methods and their expected numbers. Without a grid among them, there is no
    tuning either.
    """
    changes = dict(parse_change(text) for text in change)
    given = changes.get("protocol")
    if not (isinstance(given, str) and given.startswith("@")):
        return changes
    protocols = _protocols_of(Path(given.removeprefix("@")))
    untuned = {} if any(one.get("grid") for one in protocols) else {"tuning": None}
    return {**changes, "protocol": protocols, "expected": None, **untuned}


def _protocols_of(file: Path) -> list[dict[str, Any]]:
    """Return the `[[protocol]]` entries of a TOML file, or raise Refusal if it has none."""
    from fedprivjax.experiment.read import read_toml

    if not file.is_file():
        raise Refusal(f"protocol file must exist, got {str(file)!r}. Write protocol=@FILE")
    found = read_toml(file).get("protocol")
    if not isinstance(found, list) or not found or not all(isinstance(one, dict) for one in found):
        raise Refusal(f"{file} must have [[protocol]] entries, got none. Write them as in an experiment file")
    return found


def parse_change(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise Refusal(f"--set must be section.key=value, got {text!r}")
    try:
        return key.strip(), toml_value(f"value = {value}")["value"]
    except Unreadable:
        return key.strip(), value  # a bare word is a string


def write_json(value: Any, file: Path | None) -> None:
    """Write a value as JSON, unless the file is None."""
    if file is not None:
        write_atomically(file, json.dumps(value, indent=1, ensure_ascii=False), follow=True)


def progress(title: str, unit: str = "runs") -> AbstractContextManager[Callable[[int, int], Any]]:
    """Show a progress bar with the remaining time, or a line every 10 seconds if stderr is not a terminal."""
    from fedprivjax.engine.progress import bar

    return nullcontext(lambda done, total: None) if out.quiet else bar(title, unit, err)


def status_line(what: str) -> AbstractContextManager[Callable[[str], None]]:
    """Show the current step, erased at the end, or a line every 10 seconds if stderr is not a terminal."""
    from fedprivjax.engine import progress

    return nullcontext(lambda text: None) if out.quiet else progress.status_line(what, err)


def each(jobs: Iterable[Any], what: str, say: Callable[[str], None]) -> Iterator[Any]:
    """Yield the jobs, and show the text `what` with each job's label."""
    every = list(jobs)
    for number, job in enumerate(every, 1):
        say(f"{what} {job.label} ({number} of {len(every)})")
        yield job


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
    from fedprivjax.engine import hosts

    return not hosts.is_first() and hosts.is_at_all_hosts(error)


def end_job(error: BaseException, status: int) -> None:
    """End this process at once if the others wait for it, so that they end too.

    A normal end would wait until they have ended, and is right if all processes have raised the error.

    Args:
        status: exit status; 1 if the error is not printed yet. The end of another process is printed as one line.
    """
    if not several_hosts():
        return
    from fedprivjax.engine.hosts import is_at_all_hosts

    if is_at_all_hosts(error):
        return
    if status == 1 and any(word in str(error) for word in LOST):
        first = str(error).splitlines()[0]
        err.say(f"{ENDED}: {first}")
    elif status == 1:
        traceback.print_exception(error)
    leave(status)


def leave_out(option: str, others: dict[str, Any]) -> None:
    """Raise Refusal if another option was given."""
    for other, given in others.items():
        if given:
            raise Refusal(f"--{other.replace('_', '-')} must be left out with --{option}, got {given}. Leave it out")
