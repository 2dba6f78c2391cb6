"""The fan chart: what was observed last, the mean ahead, and the intervals of half and of nine tenths around it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from posterity.evaluation.report.charts import GRID, INK, LINE, PAPER, axis, layers, mark, needed
from posterity.interfaces.forecast.run import Forecast
from posterity.posterior.files import atomic

__all__ = ["write_fan"]

_COLOURS = {INK: "#1c2024", LINE: "#6b7280", GRID: "#e5e7eb", PAPER: "#ffffff"}  # a file of its own has no theme
_FAN, _MOST, _WIDTH, _HEIGHT = "#2563a8", 8, 720, 220


def write_fan(result: Forecast, path: str | os.PathLike[str]) -> Path:
    """An SVG with a panel per series, of the first eight.

    Raises ImportError naming the extra.
    """
    altair, vl_convert = needed()
    panels = [_panel(result, index) for index in range(min(len(result.data.table.series), _MOST))]
    config = {**panels[0].pop("config"), "background": "#ffffff", "font": "sans-serif"}
    for panel in panels:
        panel.pop("config", None)
        panel.pop("autosize", None)
    specification = altair.Chart.from_dict({"vconcat": panels, "config": config}, validate=False)
    version = ".".join(altair.SCHEMA_VERSION.lstrip("v").split(".")[:2])
    drawing = str(vl_convert.vegalite_to_svg(specification.to_dict(validate=False), vl_version=version))
    for placeholder, colour in _COLOURS.items():
        drawing = drawing.replace(placeholder, colour)
    with atomic(Path(path)) as file:
        file.write(drawing.encode())
    return Path(path)


def _panel(result: Forecast, index: int) -> dict[str, Any]:
    data = result.data
    one, grid, horizon = data.table.series[index], data.table.grid, data.shape.horizon
    times = len(one.y)
    back = min(times, max(data.shape.lookback, 3 * horizon))
    stamps = _axis_times(grid.stamps(one.first + grid.step * np.arange(times - back, times + horizon)))
    seen = [{"x": x, "y": float(y)} for x, y in zip(stamps[:back], one.y[-back:])]
    rows = result.frame.iloc[index * horizon : (index + 1) * horizon]
    ahead = [{"x": x, **row} for x, row in zip(stamps[back:], rows.drop(columns="time").to_dict("records"))]
    kind = "quantitative" if grid.unit == "number" else "temporal"
    x = {"field": "x", "type": kind}

    def band(level: str, opacity: float) -> dict[str, Any]:
        values = [{"x": row["x"], "low": row[f"lower_{level}"], "high": row[f"upper_{level}"]} for row in ahead]
        span = {"x": x, "y": {"field": "low", "type": "quantitative"}, "y2": {"field": "high"}}
        return mark("area" if horizon > 1 else "bar", values, color=_FAN, opacity=opacity, encode=span)

    line = {"x": x, "y": {"field": "y", "type": "quantitative"}}
    means = [{"x": row["x"], "y": row["mean"]} for row in ahead]
    parts = [
        band("0.9", 0.2),
        band("0.5", 0.35),
        mark("line", seen, color=_COLOURS[INK], strokeWidth=1.2, encode=line),
        mark("line" if horizon > 1 else "point", means, color=_FAN, strokeWidth=1.6, encode=line),
    ]
    y = {"scale": {"zero": False}, "axis": axis(data.table.target, grid=True)}
    chart = layers(parts, {"axis": axis(None)}, y, _HEIGHT, _WIDTH)
    note = "intervals of 50 % and 90 %"
    return {**chart, "title": {"text": f"{one.name}: {note}" if one.name else note, "anchor": "start", "fontSize": 12}}


def _axis_times(stamps: Any) -> list[Any]:
    """Numbers as they are; dates as texts that mean UTC nowhere, so that a chart shows the clock of the table."""
    if stamps.dtype.kind != "M":
        return list(map(int, stamps))
    return [str(text) for text in stamps.astype("datetime64[s]")]
