"""The ratios of times that a change of the code can lose, measured in one go and held to those of before.

    posterity bench all --quick                                     the ratios
    posterity bench all --quick --check                             what is worse than in benchmarks/baseline.json
    posterity bench all --quick --out benchmarks/baseline.json      the baseline anew, where they changed for a reason

They are cells of the cost benches at full size, those that take seconds: contestants take turns on one thread, and a ratio
is the median over the turns where the bench has it. A cell with a loss is measured once more before that counts.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from posterity.bench.bench import Row
from posterity.bench.profiled_methods import LARGE, SMALL_ONLY
from posterity.bench.registry import BENCHES
from posterity.bench.runner import environment, one_thread
from posterity.posterior.files import atomic_json, read_json

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["ALL", "BASELINE", "LOSS", "Ratio", "compare", "lost", "measure", "table"]

ALL = "all"  # what people type
BASELINE = Path("benchmarks/baseline.json")  # of the checkout that the command runs in
LOSS = 0.25  # more time than this, as a share, is a loss

Tell = Callable[[str], None]


class Ratio(NamedTuple):
    """Where a bench has ratios of times within one run.

    Args:
        cells: of the bench, at full size.
        fields: of their rows, the ratios.
        label: of their rows, who they are of; "" where the cell has one row.
        better: "less" for times over a yardstick's, "more" for speed-ups.
    """

    cells: tuple[str, ...]
    fields: tuple[str, ...]
    label: str = ""
    better: Literal["less", "more"] = "less"


# where Python takes the time, as on small networks, ratios of times follow what else the machine does; these do not
CALLS = "narrow_calls_times_adamw"
PAGED = "score-vi-low-rank"  # whose time follows how the system hands out pages: from 28 to 44 steps of AdamW

RATIOS: Mapping[str, tuple[Ratio, ...]] = {
    "step-profile": (
        Ratio(tuple(f"perceptron, {name}" for name in LARGE if name != PAGED), ("times_adamw", CALLS)),
        Ratio((f"perceptron, {PAGED}",), (CALLS,)),
        Ratio(tuple(f"small, {name}" for name in SMALL_ONLY), (CALLS,)),
    ),
    "carrier-cost": (Ratio(("linear",), ("ratio",)),),
    "chains-cost": (
        Ratio(("perceptron, K=8", "perceptron, K=32", "CNN 28x28, K=8"), ("median_speedup",), "path", "more"),
    ),
    "low-rank-cost": (
        Ratio(("linear 1024", "linear 512", "embedding"), ("median_times_dense",), "method"),
        Ratio(("training, lstm", "training, text"), ("times_ensemble",), "method"),
    ),
    "propagation-cost": (Ratio(("vit, batch 1", "resnet, batch 1"), ("times_mean",), "method"),),
}

# what is divided by
YARDSTICKS = {"dense", "loop", "ensemble", "mean"}

Place = tuple[str, str]  # a bench and one of its cells


def measure(tell: Tell, only: set[Place] | None = None, out: Path | None = None) -> dict[str, Any]:
    """The record of all ratios, or of those in some cells, also written to `out`; tells of each cell before it."""
    began, rows = time.perf_counter(), []
    for (bench, cell), ratio in _places():
        if only is None or (bench, cell) in only:
            tell(f"{bench}: {cell}")
            rows += _measured(bench, cell, ratio)
    record = {
        "bench": ALL,
        "command": f"posterity bench {ALL} --quick",
        "environment": environment(),
        "quick": True,
        "seconds": time.perf_counter() - began,
        "rows": rows,
    }
    if out is not None:
        atomic_json(out, record)
    return record


def _places() -> Iterator[tuple[Place, Ratio]]:
    for bench, ratios in RATIOS.items():
        for ratio in ratios:
            for cell in ratio.cells:
                yield (bench, cell), ratio


def _measured(bench: str, cell: str, ratio: Ratio) -> list[Row]:
    load = os.getloadavg()[0]
    with one_thread():
        found = BENCHES[bench].cells(False, False)[cell]()
    where = {"bench": bench, "cell": cell}
    return [
        {**where, "row": who, "field": field, "ratio": row[field], "better": ratio.better, "load": load}
        for row in found
        for field in ratio.fields
        if (who := row.get(ratio.label, "")) not in YARDSTICKS
    ]


def compare(tell: Tell, baseline: Path = BASELINE, out: Path | None = None) -> list[str]:
    """Measure, writing that to `out`, and say what is worse than in the baseline by more than `LOSS`, a line each.

    Raises:
        StorageError: there is no baseline, or it is no JSON.
    """
    before = read_json(baseline)
    now = environment()
    for key in ("cpu", "torch"):
        if before["environment"][key] != now[key]:
            tell(
                f"{baseline} is of {key} {before['environment'][key]}, and this is {now[key]}: ratios may differ by it"
            )
    record = measure(tell, out=out)
    failures = lost(record, before)
    if not failures:
        return []
    places = {(row["bench"], row["cell"]) for row in failures.values()}
    for line in failures:
        tell(f"{line}; measured once more")
    again = {_key(row): row for row in measure(tell, places)["rows"]}
    rows = [again.get(_key(row), row) for row in record["rows"]]
    left = lost({**record, "rows": rows}, before)
    return [f"{line}, and so before" if _key(row) in again else line for line, row in left.items()]


def lost(record: Mapping[str, Any], before: Mapping[str, Any]) -> dict[str, Row]:
    """The rows of a record that are worse than those of an earlier one, or in one of both only, by a line about each."""
    now, then = ({_key(row): row for row in one["rows"]} for one in (record, before))
    found = {}
    for key in sorted(now.keys() | then.keys()):
        row, name = now.get(key) or then[key], f"{key[0]}: " + ", ".join(filter(None, key[1:]))
        if key not in now or key not in then:
            where = "the baseline" if key in now else "what was measured"
            found[f"{name} is not in {where}; write the baseline anew: {record['command']} --out {BASELINE}"] = row
        elif (more := _more_time(row["ratio"], then[key]["ratio"], row["better"])) > LOSS:
            ratio, old = f"{row['ratio']:.3g}", f"{then[key]['ratio']:.3g}"
            found[f"{name} is {ratio}, and {old} in the baseline ({row['better']} is better): {more:.0%} worse"] = row
    return found


def _key(row: Row) -> tuple[str, ...]:
    return row["bench"], row["cell"], row["row"], row["field"]


def _more_time(ratio: float, before: float, better: str) -> float:
    """The share of time that was lost.

    >>> _more_time(1.5, 1.0, "less"), _more_time(4.0, 8.0, "more"), _more_time(0.5, 1.0, "less")
    (0.5, 1.0, -0.5)
    """
    return (ratio / before if better == "less" else before / ratio) - 1.0


def table(record: Mapping[str, Any]) -> Table:
    """The ratios for the terminal."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    out = Table(title=record["command"], box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    fields = ("bench", "cell", "row", "field", "ratio", "better")
    for field in fields:
        out.add_column(field, justify="right" if field == "ratio" else "left")
    for row in record["rows"]:
        out.add_row(*(f"{row[field]:.3g}" if field == "ratio" else row[field] for field in fields))
    return out
