"""Progress of long work with the time left: a bar in a terminal, a line in a notebook, lines in a file."""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Column
from rich.text import Text

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import called
from fedprivjax.engine.hosts import is_first

OnProgress = Callable[[int, int], Any]
AT_ONCE = 0.02  # seconds: a first report within this time is of cached results and not used for the estimate
LONGEST_PAUSE = 0.01  # seconds
EVERY = 10.0  # seconds between lines in a file or a pipe
BAR = 20  # characters, for a line of at most 80 columns


class Pace:
    """Estimate of the time left, from reports of the finished work.

    The first report alone includes the time to compile. Later estimates measure from the first report on.

    >>> pace = Pace(now=0.0)
    >>> pace.left(2, 10, now=8.0), pace.left(4, 10, now=10.0)
    (32.0, 6.0)
    """

    def __init__(self, now: float):
        self.start: tuple[int, float] = 0, now  # cached work, and when it was reported
        self.first: tuple[int, float] | None = None

    def left(self, done: int, total: int, now: float) -> float | None:
        """Return the estimated time left in seconds, or None before a usable report."""
        before, since = self.first or self.start
        if self.first is None and now - since < AT_ONCE:
            self.start = done, now
            return None
        self.first = self.first or (done, now)
        return (now - since) / max(done - before, 1) * (total - done)


def shown(seconds: float | None) -> str:
    """Return a time left as text, empty for None.

    >>> shown(7.2), shown(75), shown(7322), shown(None)
    ('0:07 left', '1:15 left', '2:02:02 left', '')
    """
    if seconds is None:
        return ""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02} left" if hours else f"{minutes}:{rest:02} left"


def computed(values: Any) -> bool:
    """Return True if a device has computed all arrays of a pytree. Host arrays are computed."""
    return all(leaf.is_ready() for leaf in jax.tree.leaves(values) if hasattr(leaf, "is_ready"))


def wait(values: Any) -> None:
    """Wait until a device has computed the arrays. Keyboard interrupts are handled while waiting."""
    pause = 1e-4
    while not computed(values):
        time.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)


@contextmanager
def progress_callback(progress: Any, title: str, unit: str) -> Iterator[OnProgress | None]:
    """Yield the progress callback for a `progress` argument: None if it is None or False, a bar if True, or itself.

    Raises:
        Refusal: `progress` is neither a bool, None nor a callable.
    """
    if progress is None or progress is False:
        yield None
    elif (progress is True or callable(progress)) and not is_first():
        yield lambda done, total: None  # not None, because programs with and without progress differ
    elif progress is True:
        with bar(title, unit, last=True) as on_progress:
            yield on_progress
    elif callable(progress):
        yield progress
    else:
        raise Refusal(f"progress must be True, or a callable (done, total), got {called(progress)}")


def shifted(on_progress: OnProgress | None, before: int, total: int) -> OnProgress | None:
    """Return the progress callback of a part that starts after `before` of the `total` work, or None."""
    return None if on_progress is None else lambda done, _: on_progress(before + done, total)


@contextmanager
def step_callback(progress: Any, title: str) -> Iterator[Callable[[str, int, int], None] | None]:
    """Yield a function (step, number, total) that displays host work, or None unless `progress` is True."""
    if progress is not True or not is_first():
        yield None
        return
    with status_line(title) as say:
        yield lambda step, number, total: say(f"{title}: {step} ({number} of {total})")


@contextmanager
def status_line(first: str, console: Console | None = None) -> Iterator[Callable[[str], None]]:
    """Yield a function that displays the current step, given as text, on one changing line.

    In a terminal the line is erased at the end. For output to a file, see `lines`.
    """
    console = Console(stderr=True) if console is None else console
    if console.is_jupyter:
        show = _in_notebook()
        yield lambda text: show(text, 0, 0)
    elif console.is_terminal:
        with console.status(_cropped(first)) as line:
            yield lambda text: line.update(_cropped(text))
    else:
        with lines(first) as say:
            yield say


def _cropped(text: str) -> Text:
    """Return text that is cropped to one line."""
    return Text(text, no_wrap=True, overflow="ellipsis")


@contextmanager
def bar(title: str, unit: str, console: Console | None = None, *, last: bool = False) -> Iterator[OnProgress]:
    """Yield a function (done, total) that displays the progress, with the time left from the first report on.

    Args:
        last: True to print the report of finished work too, if stderr is not a terminal.
    """
    console = Console(stderr=True) if console is None else console
    if console.is_jupyter:
        yield _line(title, unit, _in_notebook())
    elif console.is_terminal:
        name = Column(no_wrap=True, overflow="ellipsis", ratio=1)
        columns = (TextColumn("{task.description}", table_column=name), BarColumn(BAR), MofNCompleteColumn())
        columns = (*columns, TextColumn(unit), TextColumn("{task.fields[left]}"))
        with Progress(*columns, console=console, transient=True, expand=True) as shown_bar:
            task, pace = shown_bar.add_task(title, total=None, left=""), Pace(time.monotonic())

            def tell(done: int, total: int) -> None:
                left = shown(pace.left(done, total, time.monotonic()))
                shown_bar.update(task, completed=done, total=total, left=left, refresh=True)

            yield tell
    else:
        with lines() as say:

            def show(line: str, done: int, total: int) -> None:
                say("" if done >= total else line)
                if last and done >= total:
                    print(line, file=sys.stderr, flush=True)

            yield _line(title, unit, show)


def _line(title: str, unit: str, show: Callable[[str, int, int], None]) -> OnProgress:
    pace = Pace(time.monotonic())

    def tell(done: int, total: int) -> None:
        left = shown(pace.left(done, total, time.monotonic())) if done < total else ""
        show(f"{title}: {done} of {total} {unit}" + (f", {left}" if left else ""), done, total)

    return tell


def _in_notebook() -> Callable[[str, int, int], None]:
    """Return a function that displays one changing line in a notebook."""
    from IPython.display import display  # pyright: ignore[reportMissingImports]  # a notebook has it

    handles: list[Any] = []

    def show(line: str, done: int, total: int) -> None:
        text = {"text/plain": line}
        if handles:
            handles[0].update(text, raw=True)
        else:
            handles.append(display(text, raw=True, display_id=True))

    return show


@contextmanager
def lines(first: str = "", every: float | None = None) -> Iterator[Callable[[str], None]]:
    """Yield a function that takes the current state as text. The latest is printed to stderr every 10 seconds.

    Work that ends earlier prints nothing.

    Args:
        first: state before the first call.
        every: seconds between lines; None is `EVERY`.
    """
    state, ended = [first], threading.Event()

    def print_now_and_then() -> None:
        while not ended.wait(EVERY if every is None else every):
            if state[0]:
                print(state[0], file=sys.stderr, flush=True)

    def say(text: str) -> None:
        state[0] = text

    thread = threading.Thread(target=print_now_and_then, daemon=True)
    thread.start()
    try:
        yield say
    finally:
        ended.set()
        thread.join()
