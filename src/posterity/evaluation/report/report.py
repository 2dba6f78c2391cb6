"""An evaluation as one HTML file: no network, no framework, the record inside."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posterity.evaluation.report.charts import DASHES
from posterity.evaluation.report.numbers import grouped
from posterity.posterior.files import atomic

if TYPE_CHECKING:
    from posterity.evaluation.evaluation import Evaluation

__all__ = ["render", "write_report"]

_MOST_LINES = 600  # of the table behind a figure
_MOST_RECORD = 1_500_000  # characters of the record that the page carries whole


def write_report(evaluation: Evaluation, path: str | os.PathLike[str], title: str | None = None) -> Path:
    """Write the page, whole or not at all.

    Args:
        path: of the HTML file.
        title: its headline; "Evaluation of" the methods unless given.

    Raises ImportError without altair, vl-convert-python and jinja2, StorageError if it cannot be written.
    """
    page = render(evaluation, title).encode()
    with atomic(Path(path)) as file:
        file.write(page)
    return Path(path)


def render(evaluation: Evaluation, title: str | None = None) -> str:
    """The page as text; every number in it is one of `evaluation.to_json()`. Raises ImportError as `write_report`."""
    try:
        import altair  # noqa: F401
        import vl_convert  # noqa: F401
        from jinja2 import Environment, FunctionLoader, StrictUndefined
    except ImportError as error:
        raise ImportError(
            "the report needs altair, vl-convert-python and jinja2: pip install 'posterity[report]'"
        ) from error
    from posterity.evaluation.report.content import content

    record = evaluation.to_json()
    environment = Environment(
        loader=FunctionLoader(_source), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["grouped"] = grouped
    shown = content(record, title)
    environment.globals |= {"dashes": DASHES, "seeds": shown["seeds"], "most_lines": _MOST_LINES}
    page = environment.get_template("page.html.jinja")
    carried, whole = _carried(record)
    return page.render(
        **shown,
        style=_source("page.css"),
        script=_source("page.js"),
        record=carried,
        whole=whole,
        version=_version(),
    )


def _source(name: str) -> str:
    return files("posterity.evaluation.report").joinpath(name).read_text(encoding="utf-8")


def _version() -> str:
    try:
        return version("posterity")
    except PackageNotFoundError:
        return "(not installed)"


def _carried(record: Mapping[str, Any]) -> tuple[str, bool]:
    """The record as JSON for a script element, and whether it is all there: a long one keeps only what the page reads."""
    text = _escaped(record)
    if len(text) <= _MOST_RECORD:
        return text, True
    rows = [
        {**row, "details": {name: table for name, table in row.get("details", {}).items() if name == "risk_coverage"}}
        for row in record["rows"]
    ]
    return _escaped({**record, "rows": rows}), False


def _escaped(record: Mapping[str, Any]) -> str:
    """JSON in which no character can end the element or be read as HTML."""
    text = json.dumps(record, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text
