"""How far long work is, and how long it will take: a bar in a terminal, a line in a notebook, lines in a file."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import called

Told = Callable[[int, int], Any]
AT_ONCE = 0.02  # seconds: what comes so soon at first was taken from disk, and says nothing of the rest
LONGEST_PAUSE = 0.05  # seconds
LINES = 10  # of a whole piece of work, where each report would be a line


class Pace:
    """How long the rest takes, from reports of what is done: from the first on, and without that where there are more,
    for the first includes compiling.

    >>> pace = Pace(now=0.0)
    >>> pace.left(2, 10, now=8.0), pace.left(4, 10, now=10.0)
    (32.0, 6.0)
    """

    def __init__(self, now: float):
        self.began, self.kept = now, 0
        self.first: tuple[int, float] | None = None

    def left(self, done: int, total: int, now: float) -> float | None:
        """Seconds, or None where nothing tells."""
        if self.first is None:
            if now - self.began < AT_ONCE:
                self.kept, self.began = done, now
                return None
            self.first = done, now
            return (now - self.began) / max(done - self.kept, 1) * (total - done)
        before, since = self.first
        return (now - since) / max(done - before, 1) * (total - done)


def shown(seconds: float | None) -> str:
    """A time in words.

    >>> shown(7.2), shown(75), shown(7322), shown(None)
    ('0:07 left', '1:15 left', '2:02:02 left', '')
    """
    if seconds is None:
        return ""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02} left" if hours else f"{minutes}:{rest:02} left"


def wait(values: Any) -> None:
    """Wait for arrays that a device works at; in between, a stop by the keyboard is heard."""
    pause = 1e-4
    while not all(leaf.is_ready() for leaf in jax.tree.leaves(values)):
        time.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)


@contextmanager
def telling(progress: Any, title: str, unit: str) -> Iterator[Told | None]:
    """What a run's or a sweep's `progress` stands for: None or False is silent, True shows it, a callable is called.

    Raises:
        Refusal: none of these.
    """
    if progress is None or progress is False:
        yield None
    elif progress is True:
        with bar(title, unit) as told:
            yield told
    elif callable(progress):
        yield progress
    else:
        raise Refusal(f"progress must be True, or a callable (done, total), got {called(progress)}")


@contextmanager
def bar(title: str, unit: str, console: Console | None = None) -> Iterator[Told]:
    """A function (done, total) that shows how far the work is, with the time left from the first report on."""
    console = Console(stderr=True) if console is None else console
    if console.is_jupyter:
        yield _line(title, unit, _in_notebook())
    elif console.is_terminal:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn(unit))
        with Progress(*columns, TextColumn("{task.fields[left]}"), console=console, transient=True) as shown_bar:
            task, pace = shown_bar.add_task(title, total=None, left=""), Pace(time.monotonic())

            def tell(done: int, total: int) -> None:
                left = shown(pace.left(done, total, time.monotonic()))
                shown_bar.update(task, completed=done, total=total, left=left, refresh=True)

            yield tell
    else:
        yield _line(title, unit, _now_and_then())


def _line(title: str, unit: str, show: Callable[[str, int, int], None]) -> Told:
    pace = Pace(time.monotonic())

    def tell(done: int, total: int) -> None:
        left = shown(pace.left(done, total, time.monotonic())) if done < total else ""
        show(f"{title}: {done} of {total} {unit}" + (f", {left}" if left else ""), done, total)

    return tell


def _in_notebook() -> Callable[[str, int, int], None]:
    """One line that changes."""
    from IPython.display import display  # pyright: ignore[reportMissingImports]  # a notebook has it

    handles: list[Any] = []

    def show(line: str, done: int, total: int) -> None:
        text = {"text/plain": line}
        if handles:
            handles[0].update(text, raw=True)
        else:
            handles.append(display(text, raw=True, display_id=True))

    return show


def _now_and_then() -> Callable[[str, int, int], None]:
    """A line now and then, on stderr."""
    said = -1.0

    def show(line: str, done: int, total: int) -> None:
        nonlocal said
        if said < 0 or done >= total or done - said >= total / LINES:
            said = done
            print(line, file=sys.stderr, flush=True)

    return show
