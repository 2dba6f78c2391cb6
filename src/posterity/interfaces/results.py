"""What a command leaves behind: a table or JSON on stdout, evaluation.json and report.html in a folder."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posterity.errors import StorageError
from posterity.interfaces.console import say, stdout
from posterity.interfaces.ranks import own

if TYPE_CHECKING:
    from posterity.evaluation.evaluation import Evaluation
    from posterity.evaluation.finding import Finding

__all__ = ["drawn", "folder", "listed", "report", "show", "write_json"]


def show(result: Evaluation, out: Path, as_json: bool, title: str) -> None:
    """evaluation.json and report.html in `out`, the table or the JSON on stdout."""
    result.settings["command"] = shlex.join(["posterity", *sys.argv[1:]])
    out = own(out)
    record = result.to_json(folder(out) / "evaluation.json")
    if as_json:
        write_json(record)
    else:
        stdout.print(result.table())
    say(f"{out / 'evaluation.json'} written")
    report(result, out / "report.html", title)


def folder(path: Path) -> Path:
    """A folder to write to, made where there is none. Raises StorageError."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"the folder {path} cannot be made: {error.strerror}") from error
    return path


def report(result: Evaluation, path: Path, title: str) -> None:
    """Write the report where its extra is installed, and say where it is."""
    drawn("report", lambda: result.report(path, title), path)


def drawn(what: str, write: Callable[[], Any], path: Path) -> None:
    """Write what needs the report extra where that is installed, and say where it is, or that it is not there."""
    try:
        write()
    except ImportError as error:
        if "posterity[report]" not in str(error):
            raise
        say(f"no {what}: {error}")
        return
    say(f"{what}: {path.resolve().as_uri()}")


def listed(findings: Sequence[Finding]) -> Any:
    """Findings as a table for the terminal."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table as Lines
    from rich.text import Text

    styles = {"ok": "green", "warning": "yellow", "fault": "red", "skipped": "dim"}
    lines = Lines(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in ("", "check", "found", "way out"):
        lines.add_column(name)
    for finding in findings:
        lines.add_row(
            Text(finding.status, style=styles[finding.status]),
            Text(finding.check),
            Text(finding.message),
            Text(finding.remedy),
        )
    return lines


def write_json(record: Any) -> None:
    """JSON on stdout, and nothing else there."""
    sys.stdout.write(json.dumps(record, indent=2, default=str) + "\n")
