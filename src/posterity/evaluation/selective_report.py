"""What a selective classifier answers, and how well, a line per group of rows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from posterity.evaluation.by_group import GroupTable, groups_of
from posterity.evaluation.metric import clopper_pearson
from posterity.evaluation.risk_control import Guarantee, allowed_errors, plural, upper_bound
from posterity.evaluation.rows import Rows

__all__ = ["COLUMNS", "selective_report"]

COLUMNS = ("by", "group", "n", "answered", "coverage", "errors", "risk", "low", "high", "upper", "guaranteed", "note")


def selective_report(
    rows: Rows,
    answered: Tensor,
    found: Guarantee,
    groups: Mapping[str, Any],
    labels: tuple[Any, ...],
    calibrating: bool,
) -> GroupTable:
    """The table of `SelectiveClassifier.report`.

    Args:
        rows: with correct, target and predicted; answered: [rows] bool.
        found: the guarantee for all rows together.
        groups, labels: as in `groups_of`.
        calibrating: whether the rows are those that chose the threshold: then no group has a bound of its own.
    """
    parts = list(groups_of(rows, groups, labels))
    shared = 1 - (1 - found.confidence) / max(1, len(parts) - 1)
    columns: dict[str, list[Any]] = {name: [] for name in COLUMNS}
    for by, group, index in parts:
        count, wrong = int(answered[index].sum()), int((answered[index] & ~rows["correct"][index]).sum())
        low, high = clopper_pearson(wrong, count) if count else (math.nan, math.nan)
        if by == "all":
            upper, holds = (found.upper if found.holds else math.nan), found.holds
            note = _told(found, low)
        elif calibrating:
            upper, holds, note = math.nan, False, "the threshold was chosen on these rows: report() others"
        else:
            upper, note = upper_bound(wrong, count, shared), _missing(count, wrong, found.max_risk, shared)
            holds = not note
        line = (
            by, group, len(index), count, count / len(index) if len(index) else math.nan, wrong,
            wrong / count if count else math.nan, low, high, upper, holds, note,
        )  # fmt: skip
        for name, value in zip(COLUMNS, line):
            columns[name].append(value)
    return GroupTable(columns)


def _told(found: Guarantee, low: float) -> str:
    """Why nothing is answered, or where rows speak against the guarantee; else ""."""
    if not found.holds:
        return str(found)
    if low > found.max_risk:
        return "more errors than guaranteed: the distribution of these rows is not that of the calibration"
    return ""


def _missing(answered: int, errors: int, max_risk: float, confidence: float) -> str:
    """Why a group alone has no guarantee; "" where it has one."""
    allowed = allowed_errors(answered, max_risk, confidence)
    if errors <= allowed:
        return ""
    if allowed < 0:
        return f"no guarantee alone: {answered:,} answered rows are too few, even without an error"
    return f"no guarantee alone: {plural(errors, 'error')} in {answered:,} answered rows, {allowed:,} allowed"
