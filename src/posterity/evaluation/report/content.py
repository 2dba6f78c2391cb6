"""What each section of the page shows; a section is there only where its data are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from posterity.evaluation.report import chains, regression
from posterity.evaluation.report.differences import difference_dots
from posterity.evaluation.report.figures import Figure, dots
from posterity.evaluation.report.foreign import foreign
from posterity.evaluation.report.guarantee import guaranteed
from posterity.evaluation.report.horizons import by_step
from posterity.evaluation.report.names import CHARTED, MEASURES
from posterity.evaluation.report.numbers import grouped
from posterity.evaluation.report.record import Record, read
from posterity.evaluation.report.reliability import reliability, reliability_by_group
from posterity.evaluation.report.sections import comparison, differences, extremes, groups
from posterity.evaluation.report.selective import selective
from posterity.evaluation.report.summary import summary

__all__ = ["content"]

_MOST = 6  # entries whose groups and single rows are shown


def content(record: Mapping[str, Any], title: str | None) -> dict[str, Any]:
    """The names that the template uses, from a record as `Evaluation.to_json` gives it."""
    read_record = read(record)
    entries = read_record.entries
    sections = [
        ("comparison", "Methods compared" if len(entries) > 1 else "Metrics", _comparison(read_record)),
        ("differences", "Paired differences", differences(read_record)),
        ("calibration", "Calibration", _calibration(read_record)),
        ("guarantee", "Guaranteed risk", guaranteed(read_record)),
        ("selective", "Selective answers", selective(read_record)),
        ("foreign", "Foreign data", _foreign(read_record)),
        ("intervals", "Prediction intervals", _regression(read_record)),
        ("horizons", "By step ahead", by_step(read_record)),
        ("chains", "Chains", _chains(read_record)),
        ("rows", "Most and least certain rows", _each(read_record, extremes)),
        ("groups", "Groups", _each(read_record, groups)),
        ("settings", "Settings", _settings(read_record)),
    ]
    there = [(name, heading, found) for name, heading, found in sections if found]
    return {
        "title": title or _title(read_record),
        "summary": summary(read_record),
        "about": _about(read_record),
        "entries": entries,
        "seeds": read_record.seeds,
        "difference_figure": difference_dots(read_record),
        "group_figures": reliability_by_group(read_record) if entries else [],
        "sections": [(name, heading) for name, heading, _ in there],
        **{name: None for name, _, _ in sections},
        **{name: found for name, _, found in there},
    }


def _title(record: Record) -> str:
    methods = list(dict.fromkeys(entry.method for entry in record.entries))
    if len(methods) > 4:
        return f"Evaluation of {len(methods)} methods"
    return "Evaluation of " + ", ".join(methods) if methods else "Evaluation"


def _about(record: Record) -> list[tuple[str, str]]:
    """What was evaluated, in a line: data, rows, methods, seeds."""
    data = record.settings.get("data")
    found = [("data", data if isinstance(data, str) else _short(data))] if data else []
    rows = [
        entry.metrics[name].n
        for entry in record.entries
        for name in ("nll", "accuracy", "rmse")
        if name in entry.metrics
    ]
    if rows:
        found.append(("rows", grouped(max(rows))))
    if (methods := len({entry.method for entry in record.entries})) > 1:
        found.append(("methods", grouped(methods)))
    return [*found, ("seeds", grouped(record.seeds))] if record.seeds > 1 else found


def _short(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_short(part)}" for key, part in value.items())
    if isinstance(value, list):
        return ", ".join(map(_short, value[:20])) + (f", … ({grouped(len(value))} in all)" if len(value) > 20 else "")
    if value is None or isinstance(value, bool):
        return {None: "–", True: "yes", False: "no"}[value]
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _comparison(record: Record) -> dict[str, Any] | None:
    if not record.entries or not record.metrics:
        return None
    charted = [name for name in CHARTED if name in record.metrics]
    figure = dots(record, charted[:4]) if len(record.entries) > 1 else None
    return {"table": comparison(record), "figure": figure, "vias": len({entry.via for entry in record.entries}) > 1}


def _calibration(record: Record) -> dict[str, Figure | None] | None:
    figure, mass = reliability(record, "reliability", "width"), reliability(record, "reliability_mass", "mass")
    return {"figure": figure or mass, "mass": mass if figure else None} if figure or mass else None


def _foreign(record: Record) -> list[tuple[str, Figure]]:
    found = [(words, foreign(record, measure)) for measure, words in MEASURES.items()]
    return [(words, figure) for words, figure in found if figure]


def _regression(record: Record) -> list[tuple[str, Figure, bool]]:
    """Heading, figure, and whether it is open at first."""
    found = [
        ("Coverage of intervals", regression.coverage(record), True),
        ("PIT histogram", regression.pit(record), True),
        ("Predicted std and error", regression.spread(record), True),
        ("Prediction bands", regression.bands(record, ordered=False), True),
        ("Prediction bands, rows sorted by predicted mean", regression.bands(record, ordered=True), False),
    ]
    return [(heading, figure, open_) for heading, figure, open_ in found if figure]


def _chains(record: Record) -> dict[str, Any] | None:
    """The tables of all entries with chains, those of the lowest NLL first, and the two figures."""
    tables = _each(record, chains.chains)
    return (
        {**tables, "figures": [("Training NLL", chains.trace(record)), ("Kinetic temperature", chains.kinetic(record))]}
        if tables
        else None
    )


def _each(record: Record, show: Any) -> dict[str, Any] | None:
    """What `show` finds: first for the best entry that has it, then for the others."""
    entries = sorted(record.entries, key=lambda entry: entry is not record.best)
    found = [one for entry in entries if (one := show(entry))]
    return {"first": found[0], "others": found[1:_MOST], "left_out": max(0, len(found) - _MOST)} if found else None


def _settings(record: Record) -> dict[str, Any] | None:
    """The command, to be copied, and all other settings as pairs."""
    pairs = [(key, _nested(value)) for key, value in record.settings.items() if key != "command"]
    return {"command": record.settings.get("command"), "pairs": pairs} if record.settings else None


def _nested(value: Any) -> Any:
    """Mappings and lists of mappings as lists of pairs, all else as text."""
    if isinstance(value, Mapping) and value:
        return [(key, _nested(part)) for key, part in value.items()]
    if isinstance(value, list) and any(isinstance(part, Mapping) for part in value):
        return [(str(index), _nested(part)) for index, part in enumerate(value)]
    return _short(value)
