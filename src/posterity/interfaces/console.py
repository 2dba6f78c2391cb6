"""Where the command line speaks: results to stdout, progress and errors to stderr."""

from __future__ import annotations

from rich.console import Console

__all__ = ["say", "stderr", "stdout"]

stdout = Console(highlight=False)
stderr = Console(stderr=True, highlight=False)


def say(line: str) -> None:
    """A line for the person at the terminal, as it is: brackets in a column's name are no markup."""
    stderr.print(line, markup=False, soft_wrap=True)
