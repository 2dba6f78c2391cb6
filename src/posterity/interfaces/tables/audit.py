"""`audit`: what is wrong with a table before anything is trained on it, and the option that helps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from posterity.evaluation.finding import Finding
from posterity.interfaces.tables.columns import Columns
from posterity.interfaces.tables.facts import Facts
from posterity.interfaces.tables.leaks import FEWEST, ROWS, class_leak, number_leak, pair_leaks
from posterity.interfaces.tables.split import Split
from posterity.interfaces.tables.target import Target
from posterity.interfaces.tables.words import listed, option, plural

if TYPE_CHECKING:
    from pandas import DataFrame

__all__ = ["audit"]

_FEW = 5  # rows of a class in the test, below which its metrics are noise
_LARGE = 1e6  # mean or std
_DOMINANT = 0.5  # of a column's variance from one row
_TAILS = 10.0  # excess kurtosis; that of a Laplace distribution is 3, of a t with 5 degrees of freedom 6
_SKEW = 2.0  # that of an exponential distribution
_GAPS = 0.5  # share of missing values that is worth a warning


def audit(
    frame: DataFrame, target: Target, split: Split | None = None, columns: Columns | None = None
) -> list[Finding]:
    """Look at a table; one finding per check, "ok" where nothing was found. Nothing is changed, nothing raised.

    Args:
        target: what is predicted.
        split: the rows' parts; without it, the checks of the split are skipped.
        columns: the encoder in use: only the columns that it needs are looked at. Without it, all but the target (and those
            that the split says are no features).

    Tables of more than 100,000 rows are looked at in as many rows, drawn with a fixed seed, where features are compared with
    the target; all other checks read every row.
    """
    facts = Facts.of(frame, target, split, columns)
    return [finding for check in _CHECKS for finding in check(facts)]


def _readable(facts: Facts) -> Iterator[Finding]:
    bad = facts.unreadable
    if facts.target_error:
        yield Finding(
            "target", "fault", facts.target_error, "correct the rows, or name another column with --target NAME"
        )
    if bad:
        yield Finding(
            "columns", "fault", "; ".join(bad.values()), _drops(bad), {"columns": list(bad)}
        )  # fmt: skip
    else:
        yield Finding(
            "columns", "ok", f"{plural(len(facts.kinds), 'column')} can be read", "", {"columns": len(facts.kinds)}
        )


def _infinite(facts: Facts) -> Iterator[Finding]:
    counts = {name: count for name, count in facts.infinite.items() if count}
    if not counts:
        yield Finding("infinite values", "ok", "no column holds infinity")
        return
    found = ", ".join(f"{name!r} in {plural(count, 'row')}" for name, count in counts.items())
    remedy = f"leave these values empty, or leave the columns out with {_drops(counts)}"
    yield Finding("infinite values", "fault", f"infinity in column {found}", remedy, {"rows": counts})


def _missing(facts: Facts) -> Iterator[Finding]:
    shares = {name: float(share) for name, share in facts.missing.items() if share}
    if not shares:
        yield Finding("missing values", "ok", "no value of a feature is missing", "", {"share": {}})
        return
    worst = sorted(shares, key=lambda name: -shares[name])
    found = ", ".join(f"{name!r} {100 * shares[name]:.3g} %" for name in worst[:5])
    message = f"values are missing in {plural(len(shares), 'column')} ({found}); they are filled in and flagged"
    mostly = [name for name in worst if shares[name] > _GAPS]
    remedy = f"leave out the columns that are mostly empty with {_drops(mostly)}" if mostly else ""
    yield Finding("missing values", "warning" if mostly else "ok", message, remedy, {"share": shares})


def _constant(facts: Facts) -> Iterator[Finding]:
    names = facts.constant
    if names:
        message = f"{plural(len(names), 'column')} of one value: {listed(names)}"
        yield Finding("constant columns", "warning", message, _drops(names), {"columns": names})
    else:
        yield Finding("constant columns", "ok", "every column varies", "", {"columns": []})


def _duplicates(facts: Facts) -> Iterator[Finding]:
    pairs = facts.duplicates
    if pairs:
        found = ", ".join(f"{name!r} = {other!r}" for name, other in pairs.items())
        yield Finding(
            "duplicate columns", "warning", f"columns of the same values: {found}", _drops(pairs), {"pairs": pairs}
        )
    else:
        yield Finding("duplicate columns", "ok", "no two columns hold the same", "", {"pairs": {}})


def _identifiers(facts: Facts) -> Iterator[Finding]:
    names = []
    for name, values in facts.numbers.items():
        whole = len(values) >= FEWEST and bool(np.isfinite(values).all()) and bool((values == np.round(values)).all())
        if whole and bool((values[1:] > values[:-1]).all() or (values[1:] < values[:-1]).all()):
            names.append(name)
    if names:
        message = (
            f"{plural(len(names), 'column')} of whole numbers in the order of the rows: {listed(names)}; a network would "
            "learn the order of the file"
        )
        yield Finding("row numbers", "warning", message, _drops(names), {"columns": names})
    else:
        yield Finding("row numbers", "ok", "no column numbers the rows", "", {"columns": []})


def _scales(facts: Facts) -> Iterator[Finding]:
    large: dict[str, dict[str, float]] = {}
    for name, values in facts.numbers.items():
        filled = values[np.isfinite(values)]
        size = float(np.abs(filled).max(initial=0)) or 1.0
        mean, std = float((filled / size).mean()) * size, float((filled / size).std()) * size
        if max(abs(mean), std) > _LARGE:
            large[name] = {"mean": mean, "std": std}
    found = f"{plural(len(large), 'column')} of large numbers ({listed(large, 5)})" if large else "no large numbers"
    yield Finding("scales", "ok", f"{found}; every number is standardised", "", {"columns": large})


def _dominant(facts: Facts) -> Iterator[Finding]:
    found: dict[str, Any] = {}
    for name, values in facts.numbers.items():
        filled = np.flatnonzero(np.isfinite(values))
        if len(filled) < 10:
            continue
        scaled = values[filled] / (float(np.abs(values[filled]).max()) or 1.0)
        squares = (scaled - np.median(scaled)) ** 2
        row = int(squares.argmax())
        if squares.sum() > 0 and squares[row] > _DOMINANT * squares.sum():
            share = float(squares[row] / squares.sum())
            found[name] = {"row": int(filled[row]), "value": float(values[filled[row]]), "share": share}
    if not found:
        yield Finding(
            "dominating values", "ok", "no single value makes up most of a column's spread", "", {"columns": {}}
        )
        return
    text = ", ".join(
        f"{name!r} (row {each['row']}, counted from 0: {each['value']:g}, {100 * each['share']:.0f} % of the spread)"
        for name, each in found.items()
    )
    remedy = f"check the value: a unit, or a code for missing (-999)? Leave it empty, or use {_drops(found)}"
    yield Finding("dominating values", "warning", f"one value dominates column {text}", remedy, {"columns": found})


def _leaks(facts: Facts) -> Iterator[Finding]:
    y = facts.y
    if y is None or len(y) < FEWEST:
        yield Finding("leaking columns", "skipped", f"fewer than {FEWEST} rows with a target: chance may do the same")
        return
    rng = np.random.default_rng(0)
    # in a random order, so that ties in a feature do not keep the order of the file
    rows = rng.permutation(len(y))[:ROWS]
    drawn = f" (looked at {ROWS:,} rows, drawn with a fixed seed)" if len(y) > ROWS else ""
    leak_of = class_leak if facts.labels is not None else number_leak
    found: dict[str, str] = {}
    values: dict[str, float] = {}
    for name in facts.kinds:
        x, categorical = facts.values(name, rows)
        filled = ~np.isnan(x)
        if filled.mean() > 0.5 and (leak := leak_of(x[filled], y[rows][filled], categorical)):
            found[name], values[name] = leak.how, leak.value
    pairs = []
    if facts.labels is None:
        complete = {name: column[rows] for name, column in facts.numbers.items() if np.isfinite(column).all()}
        pairs = pair_leaks({name: column for name, column in complete.items() if name not in found}, y[rows])
    sums = [f"{one!r} {sign} {other!r} = {facts.target.name!r} in every row" for one, sign, other in pairs]
    alone = [f"column {name!r} {how}" for name, how in found.items()]
    if not alone and not sums:
        yield Finding(
            "leaking columns", "ok", f"no column gives the target away{drawn}", "", {"columns": {}, "sums": []}
        )
        return
    # one line per column: in a - b = y both are named, and the shorter of the two ways out is to drop both
    names = [*found, *dict.fromkeys(name for one, _, other in pairs for name in (one, other))]
    yield Finding(
        "leaking columns", "fault" if sums or any(how.startswith("equals") for how in found.values()) else "warning",
        "; ".join([*alone, *sums]) + drawn,
        f"if this is not known at the time of the prediction, leave it out with {_drops(names)}",
        {"columns": values, "sums": [list(pair) for pair in pairs]},
    )  # fmt: skip


def _classes(facts: Facts) -> Iterator[Finding]:
    if facts.labels is None or facts.y is None:
        return
    if facts.split is None:
        yield Finding("classes", "skipped", "the rows are not split yet")
        return
    parts = {"train": facts.split.train, "validation": facts.split.validation, "test": facts.split.test}
    counts = {
        part: np.bincount(facts.y[rows], minlength=len(facts.labels)) for part, rows in parts.items() if len(rows)
    }
    absent = {part: [label for label, count in zip(facts.labels, each) if not count] for part, each in counts.items()}
    few = [label for label, count in zip(facts.labels, counts.get("test", [])) if 0 < count < _FEW]
    problems = [f"no row of class {listed(labels)} in {part}" for part, labels in absent.items() if labels]
    problems += [f"fewer than {_FEW} test rows of class {listed(few)}"] if few else []
    values = {part: dict(zip(map(str, facts.labels), each.tolist())) for part, each in counts.items()}
    if problems:
        status: Any = "fault" if absent.get("train") else "warning"
        remedy = (
            "give more rows of them, merge classes, or split in another way (--group, --split-column, --split-seed)"
        )
        yield Finding("classes", status, "; ".join(problems), remedy, {"rows": values})
    else:
        yield Finding("classes", "ok", f"all {len(facts.labels)} classes are in every part", "", {"rows": values})


def _repeated(facts: Facts) -> Iterator[Finding]:
    if facts.split is None or not len(facts.split.test) or not facts.kinds:
        yield Finding("rows in train and test", "skipped", "there are no test rows")
        return
    hashes = facts.hashes()
    inside = np.isin(hashes[facts.split.test], hashes[facts.split.train])
    share = float(inside.mean())
    values = {"rows": int(inside.sum()), "share": share}
    if not inside.any():
        yield Finding("rows in train and test", "ok", "no test row has the features of a training row", "", values)
        return
    message = (
        f"{plural(int(inside.sum()), 'test row')} of {len(inside):,} ({100 * share:.3g} %) have exactly the features of a "
        "training row: the test flatters what learns by heart"
    )
    remedy = "remove repeated rows, or keep what belongs together in one part with --group NAME"
    yield Finding("rows in train and test", "warning" if share > 0.01 else "ok", message, remedy, values)


def _tails(facts: Facts) -> Iterator[Finding]:
    if facts.labels is not None or facts.y is None:
        return
    y = facts.y / (float(np.abs(facts.y).max()) or 1.0)
    if len(y) < FEWEST or np.ptp(y) == 0:
        yield Finding("tails of the target", "skipped", f"fewer than {FEWEST} rows, or one value")
        return
    z = (y - y.mean()) / y.std()
    skew, kurtosis = float((z**3).mean()), float((z**4).mean()) - 3
    values = {"skew": skew, "excess_kurtosis": kurtosis, "positive": bool((y > 0).all())}
    numbers = f"skew {skew:.3g}, excess kurtosis {kurtosis:.3g}"
    if values["positive"] and skew > _SKEW:
        message = f"the target is positive with a long tail ({numbers}): normal errors fit it badly"
        yield Finding("tails of the target", "warning", message, "predict its logarithm: add a column of it", values)
    elif kurtosis > _TAILS:
        message = f"the target has heavy tails ({numbers}): few rows will rule the fit"
        yield Finding("tails of the target", "warning", message, "use --likelihood student-t", values)
    else:
        yield Finding("tails of the target", "ok", f"the target has no heavy tails ({numbers})", "", values)


_CHECKS = (
    _readable, _infinite, _missing, _constant, _duplicates, _identifiers, _scales, _dominant,
    _leaks, _classes, _repeated, _tails,
)  # fmt: skip


def _drops(names: Any) -> str:
    return " ".join(option("--drop", name) for name in names)
