"""Charts as inline SVG whose colours are variables of the page, drawn once when the page is written.

Altair has no colours that change with the theme: charts are drawn in placeholders, and the placeholders become variables.
"""

from __future__ import annotations

import html
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

__all__ = [
    "DASHES",
    "GRID",
    "INK",
    "LINE",
    "PAPER",
    "SERIES",
    "SHAPES",
    "Drawing",
    "axis",
    "layers",
    "mark",
    "needed",
    "svg",
]

_VARIABLES = {"ink": "#0a0c01", "line": "#0a0c02", "grid": "#0a0c03", "paper": "#0a0c04"}
INK, LINE, GRID, PAPER = _VARIABLES.values()
SERIES = [f"#0a0b0{index}" for index in range(8)]
_VARIABLES |= {f"series-{index}": colour for index, colour in enumerate(SERIES)}
_NAMES = {colour: f"var(--{name})" for name, colour in _VARIABLES.items()}
SHAPES = ["circle", "square", "diamond", "triangle-up", "cross", "triangle-down", "triangle-right", "triangle-left"]
DASHES = [[], [6, 3], [2, 2], [8, 3, 2, 3], [4, 4], [10, 4], [1, 3], [6, 2, 1, 2, 1, 2]]

_AXIS = {
    "labelColor": LINE,
    "titleColor": LINE,
    "titleFontWeight": "normal",
    "titleFontSize": 11,
    "labelFontSize": 11,
    "labelPadding": 5,
    "gridColor": GRID,
    "domainColor": LINE,
    "domain": False,
    "ticks": False,
    "titlePadding": 7,
    "tickCount": 5,
}
_CONFIG = {
    "aria": False,
    "background": "transparent",
    "font": "system-ui",
    "padding": 3,
    "view": {"stroke": None},
    "axis": _AXIS,
    "axisX": {"grid": False, "domain": True},
    "legend": {"disable": True},
}

WIDTH = 250  # of one panel in pixels, axes and labels included


class Drawing(str):
    """An SVG element, safe to stand in the page as it is."""

    def __html__(self) -> str:
        return self


def needed() -> tuple[Any, Any]:
    """Altair and vl_convert. Raises ImportError naming the extra."""
    try:
        import altair
        import vl_convert
    except ImportError as error:
        raise ImportError(
            "the report needs altair, vl-convert-python and jinja2: pip install 'posterity[report]'"
        ) from error
    return altair, vl_convert


def axis(title: str | None, **options: Any) -> dict[str, Any]:
    """An axis as Vega-Lite has it."""
    return {"title": title, **options}


def mark(kind: str, values: Iterable[Mapping[str, Any]], **parts: Any) -> dict[str, Any]:
    """A layer: a kind of mark, its rows, `encode=` its channels, and whatever else the mark has.

    Rows that lack a number, or have an infinite one, in a channel are left out: they have no place in the plot.
    """
    encode = parts.pop("encode", {})
    fields = [channel["field"] for channel in encode.values()]
    shown = [row for row in values if not any(_nowhere(row[field]) for field in fields)]
    return {"mark": {"type": kind, **parts}, "encoding": encode, "data": {"values": shown}}


def _nowhere(value: Any) -> bool:
    return value is None or (isinstance(value, float) and not math.isfinite(value))


def layers(
    parts: Sequence[Mapping[str, Any]], x: Mapping[str, Any], y: Mapping[str, Any], height: int, width: int = WIDTH
) -> dict[str, Any]:
    """A chart of layers that share their axes; x and y are the scale and axis of the first layer's channels."""
    first = {**parts[0], "encoding": {**parts[0]["encoding"]}}
    for channel, options in (("x", x), ("y", y)):
        first["encoding"][channel] = {**first["encoding"].get(channel, {}), **options}
    fit = {"type": "fit", "contains": "padding"}
    return {"layer": [first, *parts[1:]], "width": width, "height": height, "autosize": fit, "config": _CONFIG}


def svg(chart: dict[str, Any], identity: str, label: str) -> Drawing:
    """The chart as an element of the page.

    Args:
        identity: of this chart in the page, so that the names of its clips are its own.
        label: what a person who does not see it is told.
    """
    return Drawing(_inline(_draw(chart), identity, label))


def _draw(chart: dict[str, Any]) -> str:
    altair, vl_convert = needed()
    specification = altair.Chart.from_dict(chart, validate=False).to_dict(validate=False)
    version = ".".join(altair.SCHEMA_VERSION.lstrip("v").split(".")[:2])
    return str(vl_convert.vegalite_to_svg(specification, vl_version=version))


def _inline(drawing: str, identity: str, label: str) -> str:
    size = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', drawing)
    width, height = size.groups() if size else (str(WIDTH), str(WIDTH))
    body = re.sub(r"<[^>]+>", lambda tag: _tag(tag[0], identity), drawing[drawing.index(">") + 1 :])
    body = re.sub(r'<path[^>]* d=""[^>]*/>|<path d="M[\d.]+,[\d.]+h0v0h0Z"/>', "", body)
    body = _CIRCLE.sub(r'<circle cx="\1" cy="\2" r="\3"', body)
    body = re.sub(r"<g>((?:<(?:path|circle|line|text)\b[^>]*/?>(?:[^<]*</text>)?){2,})</g>", _shared, body)
    head = f'<svg class="chart" role="img" aria-label="{html.escape(label)}" viewBox="0 0 {width} {height}"'
    return f'{head} style="--natural:{width}px">{body}'


_CIRCLE = re.compile(
    r'<path transform="translate\(([^,]+),([^)]+)\)" d="M([\d.]+),0A\3,\3,0,1,1,-\3,0A\3,\3,0,1,1,\3,0"'
)
_COMMON = re.compile(r' (?:fill|stroke|stroke-width|stroke-dasharray|font-size|font-weight|text-anchor)="[^"]*"')


def _tag(tag: str, identity: str) -> str:
    """A tag with a tenth of a pixel, the page's colours and names of its own."""
    tag = re.sub(r' (?:aria-[a-z]+|role|pointer-events|font-family|class)="[^"]*"| opacity="1"', "", tag)
    tag = re.sub(r"\d+\.\d\d+", lambda found: f"{float(found[0]):.1f}".removesuffix(".0"), tag)
    tag = re.sub(r'(id="|url\(#)([\w-]+)', rf"\1{identity}-\2", tag)
    return re.sub(r"#0a0[bc]0\d", lambda found: _NAMES[found[0]], tag)


def _shared(group: re.Match[str]) -> str:
    """A group of marks with what they all share said once."""
    marks = re.findall(r"<(?:path|circle|line|text)\b[^>]*>", group[1])
    common = [part for part in dict.fromkeys(_COMMON.findall(marks[0])) if all(part in one for one in marks)]
    body = re.sub(r"<[^>]+>", lambda tag: _without(tag[0], common), group[1])
    return f"<g{''.join(common)}>{body}</g>"


def _without(tag: str, parts: Sequence[str]) -> str:
    for part in parts:
        tag = tag.replace(part, "")
    return tag
