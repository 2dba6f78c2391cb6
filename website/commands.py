"""The page of the command line, from the commands themselves: `python website/commands.py` writes it anew."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer.main

from posterity.interfaces.cli import app

PAGE = Path(__file__).parents[1] / "docs" / "commands.md"

_HEAD = """# The command line

Results go to stdout, progress and errors to stderr; `--json` prints JSON only. Exit code 0: done; 1: a check failed, or an
internal fault; 2: bad input or usage.
"""


def page() -> str:
    """The whole of docs/commands.md."""
    commands: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    return "\n".join([_HEAD, *(_section(name, command) for name, command in commands.items())])


def _section(name: str, command: Any) -> str:
    arguments = [each for each in command.params if not each.opts[0].startswith("-")]
    options = [each for each in command.params if each.opts[0].startswith("-")]
    usage = " ".join(each.name.upper() if each.required else f"[{each.name.upper()}]" for each in arguments)
    rows = [f"| `{each.name.upper()}` | {_said(each)} |" for each in arguments]
    rows += [f"| `{'`, `'.join((*each.opts, *each.secondary_opts))}` | {_said(each)} |" for each in options]
    table = "\n".join(["| argument or option | |", "|---|---|", *rows])
    return f"## {name}\n\n`posterity {name}{' ' * bool(usage)}{usage}`\n\n{command.help}\n\n{table}\n"


def _said(parameter: Any) -> str:
    """Its help, with the default where it has one."""
    default = parameter.default
    shown = default is not None and not isinstance(default, bool) and str(default) != ""
    return f"{parameter.help or ''}{f' Default: {default}.' if shown else ''}".strip().replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
