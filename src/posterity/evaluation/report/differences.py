"""The figure of the paired differences: dots with intervals around the baseline's zero."""

from __future__ import annotations

from typing import Any

from posterity.evaluation.report.charts import INK, LINE, SERIES, axis, layers, mark, svg
from posterity.evaluation.report.figures import Figure, Panel, short
from posterity.evaluation.report.names import describe
from posterity.evaluation.report.numbers import digits, interval, number
from posterity.evaluation.report.record import Record
from posterity.evaluation.report.summary import verdict

__all__ = ["difference_dots"]

_METRICS = ("nll", "accuracy", "brier", "rmse", "crps", "interval_coverage")
_MOST = 4


def difference_dots(record: Record) -> Figure | None:
    """One panel per main metric, where all differences are from one baseline; None elsewhere, or for one method."""
    if len({(line["baseline"], line["baseline_via"]) for line in record.differences}) != 1:
        return None
    labels = {(entry.method, entry.via): entry.label for entry in reversed(record.entries)}
    panels = []
    for name in [name for name in _METRICS if name in {line["metric"] for line in record.differences}][:_MOST]:
        values: list[dict[str, Any]] = []
        for line in record.differences:
            ends = {key: number(line[key]) for key in ("value", "low", "high")}
            if line["metric"] == name and None not in ends.values():
                values.append({"label": labels.get((line["method"], line["via"]), str(line["method"])), **ends})
        if len(values) > 1:
            panels.append(_panel(name, values, record))
    caption = "A line that crosses the dashed 0 is a tie: these rows do not separate the method from the baseline."
    return Figure(caption, panels, name="differences") if panels else None


def _panel(name: str, values: list[dict[str, Any]], record: Record) -> Panel:
    meaning = describe(name, record.foreign)
    for index, line in enumerate(values):
        line["name"] = f"{index + 1} {short(line['label'], 15)}"
        line["word"] = verdict(line["value"], line["low"], line["high"], meaning.better)
    y = {"field": "name", "type": "nominal"}
    span = {"x": {"field": "low", "type": "quantitative"}, "x2": {"field": "high"}, "y": y}
    at = {"x": {"field": "value", "type": "quantitative"}, "y": y}
    told = [line for line in values if line["word"] != "tie"]
    ties = [line for line in values if line["word"] == "tie"]
    parts = [
        mark("rule", values, color=LINE, strokeWidth=1.5, encode=span),
        mark(
            "rule",
            [{"zero": 0}],
            color=LINE,
            strokeDash=[3, 3],
            encode={"x": {"field": "zero", "type": "quantitative"}},
        ),
        mark("point", told, color=SERIES[0], filled=True, size=48, opacity=1, encode=at),
        mark("point", ties, color=SERIES[0], filled=False, size=48, opacity=1, encode=at),
    ]
    chart = layers(
        parts,
        {"axis": axis(None, grid=True, format="~g", tickCount=3)},
        {"sort": None, "scale": {"domain": [line["name"] for line in values]},
         "axis": axis(None, labelLimit=160, labelColor=INK, grid=False)},
        height=32 + 21 * len(values),
    )  # fmt: skip
    said = "; ".join(
        f"{line['label']} {digits(line['value'])}, interval {interval(line['low'], line['high'])}, {line['word']}"
        for line in values
    )
    better = {1: "right of 0 is better", -1: "left of 0 is better"}.get(meaning.better, "")
    return Panel(meaning.label, svg(chart, f"differences-{name}", f"{meaning.label}, {better}: {said}"), note=better)
