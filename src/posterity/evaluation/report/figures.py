"""A figure of the page, and the one that compares methods: values with their intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from posterity.evaluation.report.charts import INK, LINE, SERIES, SHAPES, Drawing, axis, layers, mark, svg
from posterity.evaluation.report.names import describe
from posterity.evaluation.report.numbers import digits, interval, number
from posterity.evaluation.report.record import Record

__all__ = ["PANELS", "Figure", "Panel", "dots", "left_out", "point"]

PANELS = 12  # of one figure; the record holds all


@dataclass(frozen=True)
class Panel:
    """One plot with its heading; `narrow` stands in for `drawing` on a small screen."""

    title: str
    drawing: Drawing
    narrow: Drawing | None = None
    note: str = ""


@dataclass(frozen=True)
class Figure:
    """Plots that are read the same way.

    Args:
        caption: how to read it, one plain sentence.
        columns, rows: the data behind it, one table for all panels.
        legend: (index of the series or -1 for the familiar rows, name).
        note: what was left out.
        wide: panels take the whole width.
    """

    caption: str
    panels: Sequence[Panel]
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[Any]] = ()
    legend: Sequence[tuple[int, str]] = field(default=())
    note: str = ""
    wide: bool = False
    name: str = ""


def left_out(count: int, what: str = "method") -> str:
    """What a figure that shows only some of them says."""
    if not count:
        return ""
    return f"{count} more {what}{'s are' if count > 1 else ' is'} left out here; evaluation.json holds all."


def dots(record: Record, names: Sequence[str]) -> Figure | None:
    """Values and intervals of all entries, one panel per metric."""
    panels = []
    names_of = [short(entry.label) for entry in record.entries]
    if len(set(names_of)) < len(names_of):
        names_of = [f"{index + 1} {short(entry.label, 15)}" for index, entry in enumerate(record.entries)]
    for position, name in enumerate(names):
        known = [
            (index, entry, entry.metrics[name])
            for index, entry in enumerate(record.entries)
            if name in entry.metrics and entry.metrics[name].value is not None
        ]
        if not known:
            continue
        meaning = describe(name, record.foreign)
        arrow = {1: "higher is better", -1: "lower is better"}.get(
            meaning.better, "" if meaning.target is None else f"nominal {meaning.target:g}"
        )
        values = [
            {"name": names_of[index], "value": found.value, "low": number(found.low), "high": number(found.high)}
            for index, _, found in known
        ]
        x, y = {"field": "value", "type": "quantitative"}, {"field": "name", "type": "nominal"}
        parts = [
            mark(
                "rule",
                [line for line in values if line["low"] is not None and line["high"] is not None],
                color=LINE,
                strokeWidth=1.5,
                encode={"x": {"field": "low", "type": "quantitative"}, "x2": {"field": "high"}, "y": y},
            )
        ]
        if meaning.target is not None:
            rule = {"x": {"field": "value", "type": "quantitative"}}
            parts.append(mark("rule", [{"value": meaning.target}], color=LINE, strokeDash=[3, 3], encode=rule))
        for (index, _, _), line in zip(known, values):
            parts.append(mark("point", [line], **point(index, len(record.entries)), encode={"x": x, "y": y}))
        chart = layers(
            parts,
            {
                "scale": {"domain": _span(values, meaning.target), "nice": False},
                "axis": axis(None, grid=True, format="~g", tickCount=3),
            },
            {
                "sort": None,
                "scale": {"domain": [line["name"] for line in values]},
                "axis": axis(None, labelLimit=160, labelColor=INK, grid=False),
            },
            height=32 + 21 * len(values),
        )
        said = "; ".join(
            f"{entry.label} {digits(found.value)}"
            + (f", interval {interval(found.low, found.high)}" if found.low is not None else "")
            for _, entry, found in known
        )
        drawing = svg(chart, f"dots{position}", f"{meaning.label}, {arrow}: {said}")
        panels.append(Panel(meaning.label, drawing, note=arrow))
    lines = "are 95\u202f% intervals over seeds" if record.seeds > 1 else "are 95\u202f% intervals"
    caption = f"Marks are values, the lines through them {lines}."
    return Figure(caption, panels, name="dots") if panels else None


def short(label: str, most: int = 18) -> str:
    """A label of at most `most` characters, its beginning and its end.

    >>> short("deep-ensemble-of-five · draws")
    'deep-ense…· draws'
    """
    return label if len(label) <= most else f"{label[: most // 2].rstrip()}…{label[1 + most // 2 - most :].lstrip()}"


def _span(values: Sequence[dict[str, Any]], target: float | None) -> list[float]:
    ends = [line[key] for line in values for key in ("value", "low", "high")] + [target]
    known = [end for end in ends if end is not None and math.isfinite(end)] or [0.0]
    margin = 0.05 * (max(known) - min(known)) or 0.05 * abs(known[0]) or 0.5
    return [min(known) - margin, max(known) + margin]


def point(index: int, entries: int) -> dict[str, Any]:
    """How the point of an entry looks: its own colour and shape, as long as there are eight of them."""
    own = entries <= len(SERIES)
    look = {"shape": SHAPES[index], "color": SERIES[index]} if own else {"shape": "circle", "color": SERIES[0]}
    return {**look, "filled": True, "size": 48, "opacity": 1}
