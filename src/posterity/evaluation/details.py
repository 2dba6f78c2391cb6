"""The tables behind the plots: what a report draws, and what the JSON holds.

A detail is {column: [values]}, every column of one length. Number, plot and JSON come from it.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from posterity.errors import DataError
from posterity.evaluation.calibration import reliability
from posterity.evaluation.intervals import pit_table, share, spread_table
from posterity.evaluation.metric import mean_interval
from posterity.evaluation.metrics import MEASURES
from posterity.evaluation.rows import Rows, suffix
from posterity.evaluation.selective import answered_table
from posterity.problem.data import take

__all__ = ["Detail", "Show", "classification_details", "regression_details", "shown_by"]

Detail = dict[str, list[Any]]
Show = Callable[[int], Any]  # row -> a picture [h, w] or [h, w, 3] or [channels, h, w], a text, or both

_BINS = 30  # of a histogram
_BAND_ROWS = 200
_EXTREMES = 10


def classification_details(
    rows: Rows, foreign: Mapping[str, Rows], labels: Sequence[Any], show: Show | None = None, bins: int = 15
) -> dict[str, Detail]:
    """reliability, reliability_mass, risk_coverage, ood (with foreign sets), extremes; {} for rows of several positions.

    Args:
        rows: fed with labelled predictions.
        foreign: name -> rows of a foreign set.
        labels: of the classes, in order.
        show: what a row looks like.
        bins: of the reliability tables.
    """
    details: dict[str, Detail] = {}
    if "correct" in rows and len(rows):
        top = rows["confidence"], rows["correct"]
        details = {
            "reliability": reliability(*top, bins).columns(),
            "reliability_mass": reliability(*top, bins, mass=True).columns(),
            "risk_coverage": answered_table(*top),
            "extremes": _sure_rows(rows, labels, show),
        }
    if foreign and len(rows):
        details["ood"] = _histograms({"test": rows, **foreign})
    return details


def regression_details(rows: Rows, levels: Sequence[float], show: Show | None = None) -> dict[str, Detail]:
    """intervals, pit, bands, spread, extremes, in units of the target; of the first output where there are several.

    Args: as of `classification_details`.
    """
    if not len(rows) or not levels:
        return {}
    details = {"intervals": _intervals(rows, levels)}
    if "pit" in rows:
        details["pit"] = pit_table(rows["pit"])
        details["spread"] = spread_table(rows["variance"].sqrt(), rows["squared_error"])
    spaced = torch.linspace(0, len(rows) - 1, min(_BAND_ROWS, len(rows)), dtype=torch.float64).round().long()
    details["bands"] = _picked(rows, spaced, ("row", "target", "mean", "lower", "upper"))
    details["extremes"] = _narrow_rows(rows, show)
    for table in (details["bands"], details["extremes"]):
        table["level"] = [levels[0]] * len(table["row"])  # of lower and upper
    return details


def shown_by(show: Any, data: Any) -> Show | None:
    """What a row looks like, from `show=` of `evaluate`; inputs that are pictures show themselves."""
    if show is not None:
        return show if callable(show) else lambda row: take(show, row)
    if isinstance(data, tuple | list) and len(data) == 2 and not isinstance(data, DataLoader | Dataset):
        inputs = data[0]
        if isinstance(inputs, torch.Tensor) and inputs.ndim == 4 and inputs.shape[1] in (1, 3):
            return lambda row: inputs[row]
    return None


def _intervals(rows: Rows, levels: Sequence[float]) -> Detail:
    names = ("level", "coverage", "low", "high", "n", "width", "interval_score")
    table: Detail = {name: [] for name in names}
    for level in sorted(levels):
        held = share(rows[f"covered{suffix(level)}"])
        width, loss = (mean_interval(rows[f"{name}{suffix(level)}"]).value for name in ("width", "interval_score"))
        for name, value in zip(names, (level, held.value, held.low, held.high, held.n, width, loss)):
            table[name].append(value)
    return table


def _histograms(sets: Mapping[str, Rows]) -> Detail:
    """Counts of each measure in bins that all sets share, from the least value to the largest."""
    table: Detail = {name: [] for name in ("set", "measure", "lower", "upper", "count")}
    for measure in MEASURES.values():
        if any(measure not in rows for rows in sets.values()):
            continue
        values = {name: rows[measure].double() for name, rows in sets.items()}
        low = min(column.min().item() for column in values.values())
        high = max(column.max().item() for column in values.values())
        if high <= low:  # a point posterior's mutual information
            continue
        edges = torch.linspace(low, high, _BINS + 1, dtype=torch.float64)
        for name, column in values.items():
            count = torch.bincount(torch.bucketize(column, edges[1:-1]), minlength=_BINS)
            table["set"] += [name] * _BINS
            table["measure"] += [measure] * _BINS
            table["lower"] += edges[:-1].tolist()
            table["upper"] += edges[1:].tolist()
            table["count"] += count.tolist()
    return table


def _sure_rows(rows: Rows, labels: Sequence[Any], show: Show | None) -> Detail:
    which, index = _ends(rows["confidence"], descending=True)
    wrong = (~rows["correct"].bool()).nonzero().flatten()
    wrong = wrong[rows["confidence"][wrong].argsort(descending=True, stable=True)][:_EXTREMES]
    which, index = which + ["wrong"] * len(wrong), torch.cat([index, wrong])
    table = _picked(rows, index, ("row", "confidence", "entropy", "epistemic", "correct"))
    names = [str(label) for label in labels]
    for column, source in (("label", "predicted"), ("target", "target")):
        table[column] = [names[i] for i in rows[source][index].tolist()]
    return {"which": which, **table, **_shown(table["row"], show)}


def _narrow_rows(rows: Rows, show: Show | None) -> Detail:
    spread = rows["variance"].sqrt() if "variance" in rows else rows["upper"] - rows["lower"]
    which, index = _ends(spread, descending=False)
    table = _picked(rows, index, ("row", "target", "mean", "lower", "upper"))
    table["std"] = spread[index].tolist() if "variance" in rows else [None] * len(index)
    table["error"] = (rows["mean"] - rows["target"])[index].tolist()
    return {"which": which, **table, **_shown(table["row"], show)}


def _ends(measure: Tensor, descending: bool) -> tuple[list[str], Tensor]:
    """The surest rows and the least sure ones, those first."""
    order = measure.argsort(descending=descending, stable=True)
    each = min(_EXTREMES, len(order) // 2)
    if each == 0:
        return ["most"] * len(order), order
    return ["most"] * each + ["least"] * each, torch.cat([order[:each], order[-each:].flip(0)])


def _picked(rows: Rows, index: Tensor, names: Sequence[str]) -> Detail:
    return {name: rows[name][index].tolist() for name in names}


def _shown(where: Sequence[int], show: Show | None) -> Detail:
    shown = [_about_and_picture(show(row)) if show else (None, None) for row in where]
    return {"about": [about for about, _ in shown], "picture": [picture for _, picture in shown]}


def _about_and_picture(shown: Any) -> tuple[str | None, dict[str, Any] | None]:
    if isinstance(shown, tuple):
        about, picture = shown
        return str(about), _picture(picture)
    return (shown, None) if isinstance(shown, str) else (None, _picture(shown))


def _picture(values: Any) -> dict[str, Any]:
    """Pixels as bytes: uint8 as they are, other numbers stretched from the picture's least to its largest."""
    pixels = torch.as_tensor(values).detach().cpu()
    first, last = (pixels.shape[axis] in (1, 3) if pixels.ndim == 3 else False for axis in (0, -1))
    if first and (isinstance(values, Tensor) or not last):  # a tensor's channels stand first, an array's last
        pixels = pixels.movedim(0, 2)
    if pixels.ndim == 3 and pixels.shape[2] == 1:
        pixels = pixels[:, :, 0]
    if pixels.ndim not in (2, 3) or (pixels.ndim == 3 and pixels.shape[2] != 3):
        raise DataError(f"a picture is [height, width] or [height, width, 3], got {list(pixels.shape)}")
    if pixels.dtype != torch.uint8:
        pixels = pixels.double()
        low, high = pixels.min(), pixels.max()
        pixels = ((pixels - low) / (high - low).clamp_min(1e-12) * 255).round().to(torch.uint8)
    data = base64.b64encode(pixels.contiguous().numpy().tobytes()).decode("ascii")
    return {"shape": list(pixels.shape), "data": data}
