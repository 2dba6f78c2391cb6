"""The section on forecasts: interval coverage and CRPS by the step ahead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from posterity.evaluation.report.charts import DASHES, LINE, SERIES, axis, layers, mark, svg
from posterity.evaluation.report.figures import PANELS, Figure, Panel, left_out
from posterity.evaluation.report.numbers import digits, grouped, interval, number, percent
from posterity.evaluation.report.record import Record, lines

__all__ = ["by_step"]

_LEVELS = (0.5, 0.9)
_X, _Y = {"field": "x", "type": "quantitative"}, {"field": "y", "type": "quantitative"}
_SPAN = {"x": _X, "y": {"field": "low", "type": "quantitative"}, "y2": {"field": "high"}}
_COLUMNS = ["method", "step ahead", "forecasts", "independent", "50 % coverage", "90 % coverage", "95 % interval"]
_COLUMNS += ["90 % width", "CRPS", "naive CRPS"]


def by_step(record: Record) -> list[tuple[str, Figure]]:
    """Heading and figure: the coverage found at each step ahead, and the CRPS beside that of the naive forecast."""
    shown, out = record.shown("horizons", PANELS)
    if not shown:
        return []
    rows, held, errors = [], [], []
    for position, entry in enumerate(shown):
        table = [line for line in lines(entry.details["horizons"]) if line["n"]]
        rows += [_row(entry.label, line) for line in table]
        label = f"Coverage of {entry.label} by step ahead: {_said(table, 'coverage_0.9', percent)}"
        held.append(Panel(entry.label, svg(_coverage(table), f"steps{position}", label), note=_outside(table)))
        ours, naive = (_said(table, name, digits) for name in ("crps", "crps_naive"))
        label = f"CRPS of {entry.label} by step ahead: {ours}; naive: {naive}"
        errors.append(Panel(entry.label, svg(_crps(table), f"crps{position}", label), note=_ahead(table)))
    coverage = Figure(
        "Dashed lines are the levels. Below them intervals are too narrow; vertical lines are 95 % intervals of the 90 % "
        "coverage, which count only forecasts that share no targets.",
        held, _COLUMNS, rows, [(0, "50 % intervals"), (1, "90 % intervals")], left_out(out), name="horizon-coverage",
    )  # fmt: skip
    crps = Figure(
        "Lower is better. Where its line lies at or above the naive one, the forecast adds nothing to it.",
        errors, legend=[(0, "this forecast"), (1, "naive forecast")], note=left_out(out), name="horizon-crps",
    )  # fmt: skip
    return [("Coverage by step ahead", coverage), ("CRPS by step ahead", crps)]


def _row(label: str, line: Mapping[str, Any]) -> list[str]:
    ends = interval(number(line["low_0.9"]), number(line["high_0.9"]))
    held = [percent(number(line[f"coverage_{level}"])) for level in _LEVELS]
    sizes = [digits(number(line[name])) for name in ("width_0.9", "crps", "crps_naive")]
    return [label, grouped(line["step"]), grouped(line["n"]), grouped(line["independent"]), *held, ends, *sizes]


def _said(table: Sequence[Mapping[str, Any]], name: str, words: Any) -> str:
    ends = [table[0], table[-1]] if len(table) > 1 else table
    return ", ".join(f"step {line['step']} {words(number(line[name]))}" for line in ends)


def _outside(table: Sequence[Mapping[str, Any]]) -> str:
    ends = [(number(line["low_0.9"]), number(line["high_0.9"])) for line in table]
    missed = sum(low is not None and high is not None and not low <= 0.9 <= high for low, high in ends)
    return f"{missed} of {len(table)} intervals miss 90\u202f%"


def _ahead(table: Sequence[Mapping[str, Any]]) -> str:
    pairs = [(number(line["crps"]), number(line["crps_naive"])) for line in table]
    lower = sum(ours is not None and naive is not None and ours < naive for ours, naive in pairs)
    return f"lower than the naive one at {lower} of {len(table)} steps"


def _line(table: Sequence[Mapping[str, Any]], name: str, index: int) -> list[dict[str, Any]]:
    values = [{"x": line["step"], "y": number(line[name])} for line in table]
    look = {"color": SERIES[index], "strokeWidth": 1.8, "strokeDash": DASHES[index] or [1, 0]}
    points = mark("point", values, color=SERIES[index], filled=True, size=18, opacity=1, encode={"x": _X, "y": _Y})
    return [mark("line", values, **look, encode={"x": _X, "y": _Y}), points]


def _coverage(table: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    spans = [{"x": v["step"], "low": number(v["low_0.9"]), "high": number(v["high_0.9"])} for v in table]
    levels = [{"y": level} for level in _LEVELS]
    parts = [
        mark("rule", levels, color=LINE, strokeDash=[3, 3], encode={"y": _Y}),
        mark("rule", spans, color=SERIES[1], strokeWidth=1, opacity=0.7, encode=_SPAN),
        *_line(table, "coverage_0.5", 0),
        *_line(table, "coverage_0.9", 1),
    ]
    up = {"values": [0, 0.25, 0.5, 0.75, 1]}
    return layers(parts[1:] + parts[:1], _steps(), _up([0, 1], "targets inside", format="~%", **up), 220, 330)


def _crps(table: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    parts = [*_line(table, "crps", 0), *_line(table, "crps_naive", 1)]
    return layers(parts, _steps(), {"axis": axis("CRPS, target units", grid=True, tickCount=4)}, 220, 330)


def _steps() -> dict[str, Any]:
    return {"scale": {"zero": False}, "axis": axis("step ahead", format="~d", tickMinStep=1)}


def _up(domain: list[float], title: str, **options: Any) -> dict[str, Any]:
    return {"scale": {"domain": domain}, "axis": axis(title, grid=True, **options)}
