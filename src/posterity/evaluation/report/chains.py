"""The section on chains: what they suffer from, a table of them, and their training NLL and temperature over the steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from posterity.evaluation.report.charts import DASHES, LINE, SERIES, axis, layers, mark, svg
from posterity.evaluation.report.figures import Figure, Panel, left_out
from posterity.evaluation.report.numbers import digits, fixed, grouped, interval, number, percent
from posterity.evaluation.report.record import Entry, Record, lines

__all__ = ["Chains", "chains", "kinetic", "trace"]

_X, _Y = {"field": "x", "type": "quantitative"}, {"field": "y", "type": "quantitative"}
_PANELS = 4
_BAND = (0.9, 1.1)  # of the temperature asked for

_COLUMNS = {  # heading, what stands under it, decimals
    "lppd": ("LPPD", "alone, nats", None),
    "start_nll": ("NLL, start", "training, nats", None),
    "chain_nll": ("NLL, later", "training, nats", None),
    "rhat_median": ("R\u2011hat", "median", 2),
    "rhat_95": ("R\u2011hat", "95 %", 2),
    "rhat_share": ("below 1.1", "share", None),
    "ess": ("ESS", "median", 1),
    "ess_per_1000_gradients": ("ESS per 1000", "gradients", 1),
    "kinetic_temperature": ("kinetic", "temperature", 2),
    "effective_temperature": ("effective", "temperature", 2),
    "step_size": ("step size", "", None),
    "stable_limit": ("limit by", "stability", None),
    "noise_limit": ("limit by", "noise", None),
}


@dataclass(frozen=True)
class Chains:
    """What is said of the chains of one entry.

    Args:
        findings: (message, remedy) of what is wrong; `fine` names the checks that found nothing.
        sentences: what the ensemble gains, what is known beside.
        columns: (heading, unit); rows: one per chain, texts.
    """

    entry: str
    findings: Sequence[tuple[str, str, str]]
    fine: str
    sentences: Sequence[str]
    columns: Sequence[tuple[str, str]]
    rows: Sequence[Sequence[str]]


def chains(entry: Entry) -> Chains | None:
    """The table of an entry's chains and the findings on them."""
    table = lines(entry.details.get("chains"))
    if not table:
        return None
    found = lines(entry.details.get("chain_findings"))
    wrong = [
        (line["check"], _sentence(line["message"]), _sentence(line.get("remedy") or ""))
        for line in found
        if line["status"] in ("warning", "fault")
    ]
    fine = [line["check"] for line in found if line["status"] == "ok"]
    shown = [key for key in _COLUMNS if any(number(line.get(key)) is not None for line in table)]
    rows = [
        [str(line["member"])]
        + [percent(number(line[key])) if key == "rhat_share" else _text(key, number(line[key])) for key in shown]
        for line in table
    ]
    columns = [("chain", ""), *(_COLUMNS[key][:2] for key in shown)]
    return Chains(entry.label, wrong, ", ".join(fine), _sentences(entry), columns, rows)


def trace(record: Record) -> Figure | None:
    """The training NLL of every chain over its steps."""
    caption = (
        "Each line is the training NLL of one chain. Draws are taken right of the dashed line, where a line should be "
        "level: one that still falls wants a longer warm-up, one that rises a smaller step size."
    )
    return _figure(record, "nll", "training NLL, nats", caption)


def kinetic(record: Record) -> Figure | None:
    """The kinetic temperature of every chain over its steps."""
    caption = (
        "The mean of p²/M over the weights, the energy of motion: inside the grey band it is within 10 % of the temperature "
        "asked for. A chain above the band runs hot and spreads more than the posterior, one below it spreads less. "
        "The axis fits what follows the dashed line, where draws are taken."
    )
    return _figure(record, "kinetic", "kinetic temperature", caption)


def _sentences(entry: Entry) -> list[str]:
    found = {line["name"]: line for line in lines(entry.details.get("chain_numbers"))}
    values = {name: number(line["value"]) for name, line in found.items()}
    said = []
    if (lppd := values.get("lppd")) is not None:
        gain = found.get("gain", {})
        low, high, value = (number(gain.get(key)) for key in ("low", "high", "value"))
        more = f", {digits(value)} nats above a chain alone on average" if value is not None else ""
        ends = f" (95\u202f% interval {interval(low, high)})" if value is not None and low is not None else ""
        count = len(lines(entry.details["chains"]))
        draws = number(lines(entry.details["chains"])[0].get("draws")) or 0
        who = f"{count} chains of {grouped(draws)} draws together reach" if count > 1 else "One chain reaches"
        said.append(f"{who} LPPD {digits(lppd)} on {grouped(found['lppd']['n'])} rows{more}{ends}.")
    if (between := values.get("between_rhat")) is not None:
        said.append(
            f"R-hat between chains is {digits(between)}, no fault by itself: chains of an ensemble stay in their own modes."
        )
    if (weights := values.get("weight_rhat")) is not None:
        said.append(f"R-hat of single weights is {digits(weights)}, which says little about predictions.")
    if (similar := values.get("mass_similarity")) is not None:
        said.append(f"Log masses of two members correlate by {digits(similar)}.")
    return said


def _figure(record: Record, column: str, title: str, caption: str) -> Figure | None:
    shown, out = record.shown("trace", _PANELS)
    panels, rows, legend = [], [], {}
    members = sorted({int(line["member"]) for entry in shown for line in lines(entry.details["trace"])})
    for position, entry in enumerate(shown):
        table = lines(entry.details["trace"])
        kept = {int(line["member"]) for line in lines(entry.details.get("chains"))}
        own = sorted({int(line["member"]) for line in table})
        lost = [member for member in own if member not in kept]
        for member in own if len(members) <= len(SERIES) else []:
            legend[member] = f"chain {member}" + (", lost" if len(shown) == 1 and member in lost else "")
        values = [{"x": line["step"], "y": number(line.get(column)), "member": int(line["member"])} for line in table]
        note = f"{len(kept)} of {len(own)} chains kept" + (f"; lost: {', '.join(map(str, lost))}" if lost else "")
        last = {member: [v["y"] for v in values if v["member"] == member and v["y"] is not None] for member in own}
        said = "; ".join(f"chain {member} ends at {digits(found[-1])}" for member, found in last.items() if found)
        about = {line["name"]: number(line["value"]) for line in lines(entry.details.get("chain_numbers"))}
        wide, narrow = (
            svg(
                _chart(values, kept, members, about, title, column == "kinetic", width),
                f"{column}-{width}-{position}",
                f"{title} of {entry.label}: {said}",
            )
            for width in (800, 330)
        )
        panels.append(Panel(entry.label, wide, narrow, note))
        at = {(v["x"], v["member"]): v["y"] for v in values}
        steps = list(dict.fromkeys(v["x"] for v in values))
        rows += [[entry.label, grouped(s)] + [digits(at.get((s, member))) for member in members] for s in steps]
    names = [(members.index(member), words) for member, words in sorted(legend.items())]
    if any("lost" in panel.note for panel in panels):
        caption += " Axes fit the chains that were kept; a lost one may leave the plot."
    columns = ["method", "step", *(f"chain {member}" for member in members)]
    name = f"chains-{column}"
    return Figure(caption, panels, columns, rows, names, left_out(out), wide=True, name=name) if panels else None


def _chart(
    values: Sequence[Mapping[str, Any]],
    kept: set[int],
    members: Sequence[int],
    about: Mapping[str, float | None],
    title: str,
    banded: bool,
    width: int,
) -> Any:
    asked = about.get("temperature") or 1.0
    band = [asked * end for end in _BAND]
    warmup = about.get("warmup") or 0
    whole = [v for v in values if v["y"] is not None and (v["member"] in kept or not kept)]
    late = [v for v in whole if v["x"] >= warmup] if banded else whole  # the rush of the start would hide the band
    judged = [v["y"] for v in late or whole]
    ends = [*(judged or [0.0, 1.0]), *([0.85 * asked, 1.15 * asked] if banded else [])]
    margin = 0.04 * (max(ends) - min(ends)) or 0.5
    domain = [min(ends) - margin, max(ends) + margin]
    first, last = (end((v["x"] for v in values), default=0) for end in (min, max))
    parts = []
    if banded:
        box = {"x": _X, "x2": {"field": "x2"}, "y": _Y, "y2": {"field": "y2"}}
        area = [{"x": first, "x2": last, "y": band[0], "y2": band[1]}]
        parts.append(mark("rect", area, color=LINE, opacity=0.18, encode=box))
    for place, member in enumerate(members):
        own = [v for v in values if v["member"] == member]
        if len(members) <= len(SERIES):
            look = {"color": SERIES[place], "strokeDash": DASHES[place] or [1, 0], "strokeWidth": 1.5}
        else:
            look = {"color": SERIES[0] if member in kept else SERIES[1], "strokeWidth": 0.9, "opacity": 0.7}
        parts.append(mark("line", own, **look, clip=True, encode={"x": _X, "y": _Y}))
    if warmup:
        parts.append(mark("rule", [{"x": warmup}], color=LINE, strokeDash=[3, 3], strokeWidth=1, encode={"x": _X}))
    return layers(
        parts,
        {"scale": {"domain": [first, last], "nice": False}, "axis": axis("gradient step", format="~s")},
        {"scale": {"domain": domain, "nice": False, "zero": False}, "axis": axis(title, grid=True, tickCount=4)},
        height=200,
        width=width,
    )


def _text(key: str, value: float | None) -> str:
    decimals = _COLUMNS[key][2]
    return digits(value) if decimals is None or value is None else fixed(value, decimals)


def _sentence(text: str) -> str:
    text = text.strip()
    return text[:1].upper() + text[1:] + ("" if not text or text.endswith(".") else ".")
