"""Histograms of a measure of uncertainty over familiar rows and over foreign sets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from posterity.evaluation.report.charts import DASHES, LINE, SERIES, axis, layers, mark, svg
from posterity.evaluation.report.figures import PANELS, Figure, Panel, left_out
from posterity.evaluation.report.names import MEASURES
from posterity.evaluation.report.numbers import digits, grouped, interval, number, percent
from posterity.evaluation.report.record import Entry, Record, lines

__all__ = ["foreign"]


def foreign(record: Record, measure: str) -> Figure | None:
    """Histograms of a measure over familiar rows and over each foreign set."""
    shown, _ = record.shown("ood", len(record.entries))
    having = [entry for entry in shown if any(line["measure"] == measure for line in lines(entry.details["ood"]))]
    ranked, out = having[:PANELS], len(having) - len(having[:PANELS])
    if not ranked:
        return None
    sets = record.foreign
    panels, rows = [], []
    suffix = "" if measure == "entropy" else f"_{measure}"
    sizes: dict[str, int] = {}
    bins = [line for entry in ranked for line in lines(entry.details["ood"]) if line["measure"] == measure]
    ends = (min(line["lower"] for line in bins), max(line["upper"] for line in bins))
    for position, entry in enumerate(ranked):
        table = [line for line in lines(entry.details["ood"]) if line["measure"] == measure]
        sizes = sizes or {name: sum(line["count"] for line in table if line["set"] == name) for name in ["test", *sets]}
        rows += [
            [entry.label, line["set"], interval(number(line["lower"]), number(line["upper"])), grouped(line["count"])]
            for line in table
        ]
        said = [
            f"{place} " + " / ".join(digits(found.value) for _, found in metrics)
            for number_, place in enumerate(sets)
            if (metrics := _detection(entry, suffix + (f"_{place}" if number_ else "")))
        ]
        what = MEASURES.get(measure, measure)
        label = f"{what} of familiar and foreign rows, {entry.label}. AUROC, AUPR, FPR95: {'; '.join(said)}"
        chart = _histograms(table, sets, what, ends)
        panels.append(Panel(entry.label, svg(chart, f"ood-{measure}{position}", label), note="\n".join(said)))
    familiar = sizes.get("test", 0)
    balance = ", ".join(
        f"{grouped(size)} rows of {name} ({percent(size / (size + familiar))} of both together)"
        for name, size in sizes.items()
        if name != "test" and size
    )
    caption = (
        "The further the outlines of a foreign set stand to the right of the grey area, the better its rows are told from "
        f"familiar ones; heights are shares of each set: {grouped(familiar)} familiar rows, {balance}. Above each plot, for "
        "each set: AUROC / AUPR / FPR95."
    )
    legend = [(-1, "familiar rows"), *((index % 8, name) for index, name in enumerate(sets))]
    columns = ["method", "set", "bin", "rows"]
    return Figure(caption, panels, columns, rows, legend, left_out(out), name=f"ood-{measure}")


def _detection(entry: Entry, suffix: str) -> list[tuple[str, Any]]:
    words = {"ood_auroc": "AUROC", "ood_aupr_out": "AUPR", "ood_fpr95": "FPR95"}
    return [(said, entry.metrics[key + suffix]) for key, said in words.items() if key + suffix in entry.metrics]


def _histograms(table: Sequence[Mapping[str, Any]], sets: Sequence[str], title: str, ends: tuple[float, float]) -> Any:
    x, y = {"field": "x", "type": "quantitative"}, {"field": "y", "type": "quantitative"}
    parts = [
        mark("area", _steps(table, "test"), color=LINE, opacity=0.3, interpolate="step-after", encode={"x": x, "y": y})
    ]
    for index, name in enumerate(sets):
        look = {"color": SERIES[index % 8], "strokeDash": DASHES[index % 8] or [1, 0], "strokeWidth": 1.8}
        parts.append(
            mark("line", _steps(table, name), **look, interpolate="step-after", clip=True, encode={"x": x, "y": y})
        )
    return layers(
        parts,
        {"scale": {"domain": list(ends), "nice": False}, "axis": axis(title)},
        {"axis": axis("share of the rows", format="~%", tickCount=4, grid=True)},
        height=185,
    )


def _steps(table: Sequence[Mapping[str, Any]], name: str) -> list[dict[str, float]]:
    bins = [line for line in table if line["set"] == name]
    total = sum(line["count"] for line in bins) or 1
    outline = [{"x": line["lower"], "y": line["count"] / total} for line in bins]
    return [*outline, {"x": bins[-1]["upper"], "y": outline[-1]["y"]}] if bins else []
