"""Reliability diagrams: accuracy against confidence, bin by bin."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from posterity.evaluation.report.charts import LINE, PAPER, SERIES, SHAPES, axis, layers, mark, svg
from posterity.evaluation.report.figures import PANELS, Figure, Panel, left_out
from posterity.evaluation.report.numbers import digits, grouped, interval, number
from posterity.evaluation.report.record import Found, Record, lines

__all__ = ["reliability", "reliability_by_group"]


def reliability(record: Record, detail: str, name: str) -> Figure | None:
    """Accuracy against confidence, bins with their intervals and counts."""
    shown, out = record.shown(detail, PANELS)
    if not shown:
        return None
    panels, rows = [], []
    for position, entry in enumerate(shown):
        bins = lines(entry.details[detail])
        rows += [[entry.label, *_bin(line)] for line in bins]
        gap = entry.metrics.get("confidence_gap")
        ece = entry.metrics.get("ece_mass" if detail == "reliability_mass" else "ece")
        found = [f"ECE {digits(ece.value)}" if ece else "", _lean(gap) if gap else ""]
        note = ", ".join(filter(None, found))
        panels.append(_panel(entry.label, bins, record.entries.index(entry), note, f"{name}{position}"))
    return Figure(_CAPTION, panels, ["method", *_COLUMNS], rows, note=left_out(out), name=name)


def reliability_by_group(record: Record) -> list[tuple[str, Figure]]:
    """Heading and figure for each grouping of the best entry: accuracy against confidence in its largest groups."""
    entry = record.best
    table = lines(entry.details.get("group_reliability"))
    metrics = [line for line in lines(entry.details.get("groups")) if line["metric"] == "confidence_gap"]
    gaps = {(line["by"], line["group"]): _found(line) for line in metrics}
    figures = []
    for number_, by in enumerate(dict.fromkeys(line["by"] for line in table)):
        panels, rows = [], []
        for position, group in enumerate(dict.fromkeys(line["group"] for line in table if line["by"] == by)):
            bins = [line for line in table if (line["by"], line["group"]) == (by, group)]
            rows += [[group, *_bin(line)] for line in bins]
            gap = gaps.get((by, group))
            note = _lean(gap) if gap else ""
            panels.append(_panel(group, bins, record.entries.index(entry), note, f"group{number_}-{position}"))
        note = left_out(sum(name == by for name, _ in gaps) - len(panels), "group")
        figure = Figure(_CAPTION, panels, [by, *_COLUMNS], rows, note=note, name=f"reliability-group{number_}")
        figures.append((f"Reliability by {by}, {entry.label}", figure))
    return figures


_CAPTION = (
    "Below the diagonal a method is surer than it is right, above it is less sure than it could be; vertical lines "
    "are 95 % intervals of the accuracy, bars count the rows of each bin, and empty bins stay blank."
)
_COLUMNS = ["bin", "rows", "confidence", "accuracy", "95 % interval", "gap"]


def _panel(title: str, bins: Sequence[Mapping[str, Any]], index: int, note: str, name: str) -> Panel:
    filled = [line for line in bins if line.get("count")]
    said = "; ".join(
        f"confidence {digits(number(line['confidence']))}, accuracy {digits(number(line['accuracy']))},"
        f" {grouped(line['count'])} rows"
        for line in filled
        if number(line["accuracy"]) is not None
    )
    return Panel(title, svg(_reliability(filled, index), name, f"Reliability of {title}. {note}. {said}"), note=note)


def _found(line: Mapping[str, Any]) -> Found:
    return Found(number(line["value"]), number(line["low"]), number(line["high"]), int(line["n"]))


def _lean(gap: Found) -> str:
    if gap.value is None:
        return ""
    if gap.low is not None and gap.high is not None and gap.low <= 0 <= gap.high:
        return "confidence agrees with accuracy"
    return f"{'over' if gap.value > 0 else 'under'}-confident by {digits(abs(100 * gap.value))} points"


def _bin(line: Mapping[str, Any]) -> list[str]:
    said = [digits(number(line[key])) for key in ("confidence", "accuracy")]
    ends = interval(number(line["lower"]), number(line["upper"]))
    found = interval(number(line["low"]), number(line["high"]))
    return [ends, grouped(line["count"]), *said, found, digits(number(line.get("gap")))]


_FLOOR = -0.24  # of the strip with the counts, under the accuracy axis


def _reliability(bins: Sequence[Mapping[str, Any]], index: int) -> Any:
    most = max((line["count"] for line in bins), default=1)
    top = _FLOOR + 0.16
    bars = [
        {"x": line["lower"], "x2": line["upper"], "y": _FLOOR, "y2": _FLOOR + (top - _FLOOR) * line["count"] / most}
        for line in bins
    ]
    points = [
        {key: number(line[key]) for key in ("confidence", "accuracy", "low", "high")}
        for line in bins
        if number(line["accuracy"]) is not None
    ]
    x, y = {"field": "x", "type": "quantitative"}, {"field": "y", "type": "quantitative"}
    at, right = {"field": "confidence", "type": "quantitative"}, {"field": "accuracy", "type": "quantitative"}
    span = {"y": {"field": "low", "type": "quantitative"}, "y2": {"field": "high"}}
    with_span = [line for line in points if line["low"] is not None and line["high"] is not None]
    colour = SERIES[index % len(SERIES)]
    parts = [
        mark("line", [{"x": 0, "y": 0}, {"x": 1, "y": 1}], color=LINE, strokeDash=[3, 3], strokeWidth=1,
             encode={"x": x, "y": y}),
        mark("rect", bars, color=LINE, opacity=0.55, stroke=PAPER, strokeWidth=1,
             encode={"x": x, "x2": {"field": "x2"}, "y": y, "y2": {"field": "y2"}}),
        mark("rule", [{"y": _FLOOR}], color=LINE, strokeWidth=1, encode={"y": y}),
        mark("text", [{"x": 0, "y": top, "words": f"{grouped(most)} rows in the largest bin"}], color=LINE, align="left",
             fontSize=10.5, dx=2, dy=-2, encode={"x": x, "y": y, "text": {"field": "words"}}),
        mark("line", points, color=colour, strokeWidth=1, opacity=0.6, encode={"x": at, "y": right}),
        mark("rule", with_span, color=colour, strokeWidth=1.5, encode={"x": at, **span}),
        mark("point", points, color=colour, shape=SHAPES[index % len(SHAPES)], filled=True, size=36, opacity=1,
             encode={"x": at, "y": right}),
    ]  # fmt: skip
    ticks = {"values": [0, 0.2, 0.4, 0.6, 0.8, 1], "format": ".1~f", "labelOverlap": False, "tickCount": 6}
    return layers(
        parts,
        {"scale": {"domain": [0, 1]}, "axis": axis("confidence", **ticks, domain=False)},
        {"scale": {"domain": [_FLOOR, 1], "nice": False}, "axis": axis("accuracy", **ticks, grid=True)},
        height=275,
    )
