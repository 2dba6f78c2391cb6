"""A line on the terminal with the numbers that people watch; on stderr, so that stdout stays the caller's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

__all__ = ["Watch", "watching"]


class Watch:
    """Where the loop tells its progress; a silent one costs nothing."""

    def __init__(self, progress: Progress | None = None) -> None:
        self._progress = progress
        self._task = None if progress is None else progress.add_task("", total=1, numbers="")

    def stage(self, title: str, steps: int, done: int) -> None:
        if self._progress is not None and self._task is not None:
            self._progress.reset(self._task, description=title, total=steps, completed=done, numbers="")

    def step(self, done: int, **numbers: float) -> None:
        if self._progress is not None and self._task is not None:
            shown = "  ".join(f"{name} {value:.4g}" for name, value in numbers.items() if value)
            self._progress.update(self._task, completed=done, numbers=shown)

    def say(self, text: str) -> None:
        if self._progress is not None:
            self._progress.console.print(text, highlight=False)


@contextmanager
def watching(show: bool | None) -> Iterator[Watch]:
    """A `Watch` for the length of a fit; `show=None` shows it on a terminal only."""
    console = Console(stderr=True)
    if show is False or (show is None and not console.is_terminal):
        yield Watch()
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(24),
        TextColumn("{task.fields[numbers]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        yield Watch(progress)
