"""The figures of a regression: interval coverage, PIT, prediction bands, predicted std against error."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from posterity.evaluation.report.charts import INK, LINE, SERIES, SHAPES, axis, layers, mark, svg
from posterity.evaluation.report.figures import PANELS, Figure, Panel, left_out
from posterity.evaluation.report.numbers import digits, grouped, interval, number, percent
from posterity.evaluation.report.record import Record, level_of, lines

__all__ = ["bands", "binomial_band", "coverage", "pit", "spread"]

_X, _Y = {"field": "x", "type": "quantitative"}, {"field": "y", "type": "quantitative"}
_Y2 = {"field": "y2"}
_CROSS = "M-1,-1L1,1M-1,1L1,-1"


def coverage(record: Record) -> Figure | None:
    """The share of targets inside intervals, against their level."""
    shown, out = record.shown("intervals", PANELS)
    panels, rows = [], []
    for position, entry in enumerate(shown):
        index = record.entries.index(entry)
        table = lines(entry.details["intervals"])
        values = [{"x": line["level"], **_numbers(line, y="coverage", low="low", high="high")} for line in table]
        rows += [
            [
                entry.label, percent(line["level"]), digits(number(line["coverage"])),
                interval(number(line["low"]), number(line["high"])), grouped(line["n"]),
                digits(number(line["width"])), digits(number(line["interval_score"])),
            ]
            for line in table
        ]  # fmt: skip
        points = [line for line in values if line["y"] is not None]
        span = {"x": _X, "y": {"field": "low", "type": "quantitative"}, "y2": {"field": "high"}}
        look = {"color": SERIES[index % 8]}
        parts = [
            _diagonal(0, 1),
            mark("line", points, **look, strokeWidth=1, opacity=0.6, encode={"x": _X, "y": _Y}),
            mark("rule", [line for line in points if None not in line.values()], **look, strokeWidth=1.5, encode=span),
            mark("point", points, **look, shape=SHAPES[index % 8], filled=True, size=40, opacity=1,
                 encode={"x": _X, "y": _Y}),
        ]  # fmt: skip
        across, up = {"values": [0, 0.5, 1]}, {"values": [0, 0.25, 0.5, 0.75, 1]}
        chart = layers(
            parts,
            {"scale": {"domain": [0, 1]}, "axis": axis("level", format="~%", **across)},
            {"scale": {"domain": [0, 1]}, "axis": axis("targets inside", format="~%", grid=True, **up)},
            height=235,
        )
        said = "; ".join(f"{percent(line['x'])} intervals hold {percent(line['y'])}" for line in points)
        panels.append(Panel(entry.label, svg(chart, f"coverage{position}", f"{entry.label}: {said}")))
    caption = "Below the diagonal intervals are too narrow, above it too wide; vertical lines are 95 % intervals."
    columns = ["method", "level", "coverage", "95 % interval", "rows", "mean width", "interval score"]
    return Figure(caption, panels, columns, rows, note=left_out(out), name="coverage") if panels else None


def pit(record: Record) -> Figure | None:
    """The histogram of F(y), with the band in which 95 % of a calibrated model's bars lie."""
    shown, out = record.shown("pit", PANELS)
    panels, rows = [], []
    for position, entry in enumerate(shown):
        table = lines(entry.details["pit"])
        n = sum(line["count"] for line in table)
        ends = [binomial_band(n, line["upper"] - line["lower"]) for line in table]
        rows += [
            [entry.label, interval(line["lower"], line["upper"]), grouped(line["count"]), f"{low}–{high}"]
            for line, (low, high) in zip(table, ends)
        ]
        outside = sum(not low <= line["count"] <= high for line, (low, high) in zip(table, ends))
        bars = [{"x": line["lower"], "x2": line["upper"], "y": 0, "y2": line["count"]} for line in table]
        band = [
            {"x": line["lower"], "x2": line["upper"], "y": low, "y2": high} for line, (low, high) in zip(table, ends)
        ]
        box = {"x": _X, "x2": {"field": "x2"}, "y": _Y, "y2": _Y2}
        colour = SERIES[record.entries.index(entry) % 8]
        parts = [
            mark("rect", bars, color=colour, opacity=0.75, xOffset=0.5, x2Offset=-0.5, encode=box),
            mark("rect", band, color=LINE, opacity=0.3, encode=box),
        ]
        chart = layers(
            parts,
            {"scale": {"domain": [0, 1]}, "axis": axis("F(y)", values=[0, 0.5, 1])},
            {"axis": axis("rows", grid=True, tickCount=4)},
            height=180,
        )
        note = f"{outside} of {len(table)} bars outside the band"
        label = f"PIT histogram of {entry.label}, {grouped(n)} rows: {note}"
        panels.append(Panel(entry.label, svg(chart, f"pit{position}", label), note=note))
    caption = (
        "F(y) is the probability that the prediction gave to less than the target: bars of a calibrated model are level "
        "and 19 of 20 end inside the grey band; high bars at both ends mean intervals that are too narrow, a hump in the "
        "middle too wide, a slope a shifted mean."
    )
    columns = ["method", "F(y)", "rows", "band"]
    return Figure(caption, panels, columns, rows, note=left_out(out), name="pit") if panels else None


def binomial_band(n: int, chance: float) -> tuple[int, int]:
    """The quantiles 0.025 and 0.975 of Binomial(n, chance): where the count of one bin is expected.

    >>> binomial_band(100, 0.5)
    (40, 60)
    """
    if not 0 < chance < 1:
        return (0, 0) if chance <= 0 else (n, n)
    total, low = 0.0, None
    for k in range(n + 1):
        logs = math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
        total += math.exp(logs + k * math.log(chance) + (n - k) * math.log1p(-chance))
        if low is None and total >= 0.025:
            low = k
        if total >= 0.975:
            return low or 0, k
    return low or 0, n


def bands(record: Record, ordered: bool) -> Figure | None:
    """Targets and intervals over the rows, in the order of the data or `ordered` by the predicted mean."""
    shown, out = record.shown("bands", 4)
    panels, rows = [], []
    for position, entry in enumerate(shown):
        table = lines(entry.details["bands"])
        table = sorted(table, key=lambda line: line["mean"]) if ordered else table
        level = level_of(table)
        values = []
        for place, line in enumerate(table):
            value = _numbers(line, target="target", mean="mean", lower="lower", upper="upper")
            values.append({"x": place if ordered else line["row"], **value})
        inside = [None not in v.values() and v["lower"] <= v["target"] <= v["upper"] for v in values]
        said = f"{sum(inside)} of {len(inside)} targets shown lie inside their {percent(level)} interval"
        if not ordered:
            rows += [
                [entry.label, grouped(line["row"])]
                + [digits(number(line[key])) for key in ("target", "mean", "lower", "upper")]
                for line in table
            ]
        colour = SERIES[record.entries.index(entry) % 8]
        wide, narrow = (
            svg(
                _bands(values, inside, colour, "rows by predicted mean" if ordered else "row", width),
                f"bands-{width}-{ordered:d}{position}",
                f"{entry.label}: {said}",
            )
            for width in (800, 330)
        )
        panels.append(Panel(entry.label, wide, narrow, said))
    caption = (
        "The band is the interval of the level named, the line the predicted mean; targets inside are small dots, targets "
        "outside crosses."
    )
    columns = ["method", "row", "target", "mean", "lower", "upper"] if not ordered else []
    name = f"bands{ordered:d}"
    return Figure(caption, panels, columns, rows, note=left_out(out), wide=True, name=name) if panels else None


def _bands(values: Sequence[Mapping[str, Any]], inside: Sequence[bool], colour: str, title: str, width: int) -> Any:
    def field(name: str) -> dict[str, str]:
        return {"field": name, "type": "quantitative"}

    hits = [value for value, within in zip(values, inside) if within]
    misses = [value for value, within in zip(values, inside) if not within and value["target"] is not None]
    at = {"x": _X, "y": field("target")}
    parts = [
        mark(
            "area", values, color=colour, opacity=0.25, encode={"x": _X, "y": field("lower"), "y2": {"field": "upper"}}
        ),
        mark("line", values, color=colour, strokeWidth=1.3, encode={"x": _X, "y": field("mean")}),
        mark("point", hits, color=INK, filled=True, size=9, opacity=0.8, encode=at),
        mark("point", misses, color=INK, shape=_CROSS, filled=False, strokeWidth=1.4, size=28, opacity=1, encode=at),
    ]
    return layers(
        parts,
        {"scale": {"zero": False, "nice": False}, "axis": axis(title, format="~d", labelFlush=True)},
        {"scale": {"zero": False}, "axis": axis("target", grid=True, tickCount=4)},
        height=200,
        width=width,
    )


def spread(record: Record) -> Figure | None:
    """The error found in bins of equal predicted std."""
    shown, out = record.shown("spread", PANELS)
    panels, rows = [], []
    for position, entry in enumerate(shown):
        index = record.entries.index(entry)
        table = [line for line in lines(entry.details["spread"]) if line["count"]]
        rows += [
            [entry.label, interval(number(line["lower"]), number(line["upper"])), grouped(line["count"])]
            + [digits(number(line["std"])), digits(number(line["rmse"]))]
            for line in table
        ]
        points = [_numbers(line, x="std", y="rmse") for line in table]
        points = [value for value in points if None not in value.values()]
        if not points:
            continue
        most = 1.05 * max(max(value["x"], value["y"]) for value in points) or 1.0
        look = {"color": SERIES[index % 8]}
        parts = [
            _diagonal(0, most),
            mark("line", points, **look, strokeWidth=1, opacity=0.6, encode={"x": _X, "y": _Y}),
            mark("point", points, **look, shape=SHAPES[index % 8], filled=True, size=40, opacity=1,
                 encode={"x": _X, "y": _Y}),
        ]  # fmt: skip
        scale = {"domain": [0, most], "nice": False}
        chart = layers(
            parts,
            {"scale": scale, "axis": axis("predicted std")},
            {"scale": scale, "axis": axis("RMSE found", grid=True)},
            height=235,
        )
        first, last = points[0], points[-1]
        label = (
            f"{entry.label}: RMSE {digits(first['y'])} where the predicted std is {digits(first['x'])}, "
            f"{digits(last['y'])} where it is {digits(last['x'])}"
        )
        panels.append(Panel(entry.label, svg(chart, f"spread{position}", label)))
    caption = (
        "Each point is a bin of rows of like predicted std: on the diagonal errors are as large as predicted, above it "
        "larger; a level line means that the std does not tell hard rows from easy ones."
    )
    columns = ["method", "std from–to", "rows", "mean std", "RMSE"]
    return Figure(caption, panels, columns, rows, note=left_out(out), name="spread") if panels else None


def _diagonal(low: float, high: float) -> dict[str, Any]:
    ends = [{"x": low, "y": low}, {"x": high, "y": high}]
    return mark("line", ends, color=LINE, strokeDash=[3, 3], strokeWidth=1, encode={"x": _X, "y": _Y})


def _numbers(line: Mapping[str, Any], **fields: str) -> dict[str, Any]:
    return {name: number(line.get(key)) for name, key in fields.items()}
