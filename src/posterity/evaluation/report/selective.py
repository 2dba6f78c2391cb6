"""Risk against coverage: one drawing by hand, because the slider has to know where its points are."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from posterity.evaluation.report.charts import DASHES, Drawing
from posterity.evaluation.report.guarantee import point
from posterity.evaluation.report.numbers import grouped, near_one, number, percent, percents
from posterity.evaluation.report.record import Entry, Record, lines
from posterity.evaluation.threshold import RISKS

__all__ = ["Selective", "point_at", "selective", "sentence"]

_LEFT, _RIGHT, _TOP, _BOTTOM = 50, 14, 10, 44


@dataclass(frozen=True)
class Choice:
    """An entry of the slider: where its curve is in the record, where the slider starts, what it says there."""

    label: str
    row: int
    start: int
    last: int
    sentence: str


@dataclass(frozen=True)
class Selective:
    """All that the section shows.

    Args:
        wide, narrow: the drawing for both sizes of screen.
        choices: the entries, in the record's order.
        chosen: the position of the first one that is shown.
        columns, rows: the coverage that each risk allows.
        curve: lines of every curve, thinned to about 20.
    """

    wide: Drawing
    narrow: Drawing
    choices: Sequence[Choice]
    chosen: int
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    curve: Sequence[Sequence[str]]
    coloured: bool
    risks: Sequence[tuple[float, str]]


def point_at(curve: Sequence[Mapping[str, Any]], risk: float) -> int | None:
    """The last line, the one of the largest coverage, whose risk is at most `risk`; None if there is none."""
    within = [
        index for index, line in enumerate(curve) if (found := number(line["risk"])) is not None and found <= risk
    ]
    return within[-1] if within else None


def sentence(curve: Sequence[Mapping[str, Any]], index: int) -> str:
    """What the slider says at a line."""
    line, n = curve[index], curve[-1]["answered"]
    return (
        f"answers {grouped(line['answered'])} of {grouped(n)} rows ({percent(number(line['coverage']))}), of which "
        f"{grouped(line['errors'])} {'is' if line['errors'] == 1 else 'are'} wrong: risk {percent(number(line['risk']))}, "
        f"95\u202f% interval {percents(number(line['low']), number(line['high']))}; "
        f"threshold: confidence ≥ {near_one(number(line['threshold']))}"
    )


def selective(record: Record) -> Selective | None:
    """The section of selective answers, or None where no entry has a curve."""
    entries = [entry for entry in record.entries if lines(entry.details.get("risk_coverage"))]
    if not entries:
        return None
    curves = [lines(entry.details["risk_coverage"]) for entry in entries]
    choices, rows, thinned = [], [], []
    for entry, curve in zip(entries, curves):
        last = len(curve) - 1
        found = [point_at(curve, risk) for risk in RISKS]
        start = _start(curve)
        choices.append(Choice(entry.label, entry.row, start, last, sentence(curve, start)))
        rows.append([entry.label, *(_allowed(curve, index) for index in found), percent(number(curve[-1]["risk"]))])
        steps = range(0, last + 1, max(1, (last + 1) // 20))
        thinned += [_line(entry, curve[index]) for index in dict.fromkeys([*steps, last])]
    chosen = entries.index(record.best) if record.best in entries else 0
    wide = _drawing(entries, curves, chosen, 720, 380, "wide")
    narrow = _drawing(entries, curves, chosen, 330, 300, "narrow")
    columns = ["method", *(f"risk ≤ {percent(risk)}" for risk in RISKS), "risk of answering everything"]
    risks = [(risk, percent(risk)) for risk in RISKS]
    return Selective(wide, narrow, choices, chosen, columns, rows, thinned, len(entries) <= 8, risks)


def _allowed(curve: Sequence[Mapping[str, Any]], index: int | None) -> str:
    if index is None:
        return "no threshold"
    return f"{percent(number(curve[index]['coverage']))}, from {near_one(number(curve[index]['threshold']))}"


def _line(entry: Entry, line: Mapping[str, Any]) -> list[str]:
    risk = [percent(number(line["risk"])), percents(number(line["low"]), number(line["high"]))]
    oracle = percent(number(line.get("oracle")))
    counts = [grouped(line["answered"]), percent(number(line["coverage"])), grouped(line["errors"])]
    return [entry.label, near_one(number(line["threshold"])), *counts, *risk, oracle]


def _drawing(
    entries: Sequence[Entry],
    curves: Sequence[Sequence[Mapping[str, Any]]],
    chosen: int,
    width: int,
    height: int,
    name: str,
) -> Drawing:
    wide, high = width - _LEFT - _RIGHT, height - _TOP - _BOTTOM
    risks = [number(line["risk"]) or 0.0 for curve in curves for line in curve if line["coverage"] >= 0.05]
    step = _step(1.02 * max(risks, default=0.0))
    most = step * max(1, math.ceil(1.02 * max(risks, default=0.0) / step))

    def spot(line: Mapping[str, Any], key: str) -> str:
        return f"{_LEFT + wide * line['coverage']:.1f},{_TOP + high * (1 - (number(line[key]) or 0.0) / most):.1f}"

    def path(curve: Sequence[Mapping[str, Any]], key: str) -> str:
        return "M" + "L".join(spot(line, key) for line in curve)

    parts = [_axes(width, height, wide, high, most, step)]
    parts.append(
        f'<clipPath id="risk-{name}"><rect x="{_LEFT}" y="{_TOP - 2}" width="{wide + 7}" height="{high + 4}"/>'
    )
    parts.append(f'</clipPath><g clip-path="url(#risk-{name})" fill="none">')
    few = len(entries) <= 8
    own = curves[chosen]
    spread = [line for line in own if number(line["low"]) is not None and number(line["high"]) is not None]
    area = f"{path(spread, 'high')}L{path(spread[::-1], 'low')[1:]}Z" if spread else ""
    last = spot(own[-1], "risk").split(",")[1]
    oracle = path(own, "oracle") if number(own[-1].get("oracle")) is not None else ""
    parts.append(f'<path class="area" style="--own:{_colour(chosen, few)}" d="{area}"/>')
    parts.append(f'<path class="random" d="M{_LEFT},{last}h{wide}"/><path class="oracle" d="{oracle}"/>')
    for position, curve in enumerate(curves):
        style = f"--own:{_colour(position, few)};--dash:{','.join(map(str, DASHES[position % 8])) or 'none'}"
        state = f"curve{' chosen' if position == chosen else ''}{' own' if few else ''}"
        parts.append(f'<path class="{state}" data-entry="{position}" style="{style}" d="{path(curve, "risk")}"/>')
    parts += [_guaranteed(found, wide, high, most) for entry in entries if (found := point(entry))]
    start = curves[chosen][_start(curves[chosen])]
    x, y = spot(start, "risk").split(",")
    parts.append(f'</g><path class="drop" d="M{x},{y}V{_TOP + high}"/><circle class="here" cx="{x}" cy="{y}" r="5.5"/>')
    said = "; ".join(
        f"{entry.label}: {percent(number(curve[-1]['risk']))} wrong if everything is answered"
        for entry, curve in zip(entries, curves)
    )
    scale = f'data-left="{_LEFT}" data-top="{_TOP}" data-wide="{wide}" data-high="{high}" data-most="{most!r}"'
    head = f'<svg class="chart selective {name}" role="img" aria-label="Risk against coverage. {html.escape(said)}"'
    return Drawing(f'{head} viewBox="0 0 {width} {height}" style="--natural:{width}px" {scale}>{"".join(parts)}</svg>')


def _guaranteed(found: Mapping[str, float], wide: int, high: int, most: float) -> str:
    """The point at the guaranteed threshold, with its interval."""
    x = _LEFT + wide * found["coverage"]
    low, y, top = (_TOP + high * (1 - min(found[name], most) / most) for name in ("low", "risk", "high"))
    line = f'<path class="kept" d="M{x:.1f},{low:.1f}V{top:.1f}"/>'
    return f'{line}<path class="kept filled" d="M{x:.1f},{y - 6:.1f}l6,6l-6,6l-6,-6Z"/>'


def _colour(position: int, few: bool) -> str:
    return f"var(--series-{position if few else 0})"


def _start(curve: Sequence[Mapping[str, Any]]) -> int:
    found = [point_at(curve, risk) for risk in RISKS[1:]]
    return next((index for index in found if index is not None), len(curve) - 1)


def _step(most: float) -> float:
    """The distance of the grid's lines: 1, 2 or 5 times a power of ten, three to six of them up to `most`."""
    steps = [factor * 10.0**power for power in range(-5, 1) for factor in (1, 2, 5)]
    return next((step for step in steps if most <= 5 * step), 1.0) if most > 0 else 0.01


def _axes(width: int, height: int, wide: int, high: int, most: float, step: float) -> str:
    parts = []
    for tick in range(round(most / step) + 1):
        y = _TOP + high * (1 - tick * step / most)
        parts.append(f'<path class="grid" d="M{_LEFT},{y:.1f}h{wide}"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{percent(round(tick * step, 9))}</text>')
    for tick in range(6):
        x = _LEFT + wide * tick / 5
        parts.append(f'<text x="{x:.1f}" y="{_TOP + high + 18}" text-anchor="middle">{percent(tick / 5)}</text>')
    parts.append(f'<text x="{_LEFT + wide / 2:.1f}" y="{height - 6}" text-anchor="middle">rows answered</text>')
    middle = _TOP + high / 2
    parts.append(
        f'<text transform="translate(11,{middle:.1f}) rotate(-90)" text-anchor="middle">wrong among them</text>'
    )
    return "".join(parts)
