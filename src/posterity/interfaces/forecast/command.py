"""`posterity forecast`: series in a table to intervals in units, a fan chart, and how good they are by horizon."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from posterity.interfaces.console import say, stdout
from posterity.interfaces.results import drawn, folder, report, write_json

if TYPE_CHECKING:
    from posterity.interfaces.forecast.run import Forecast

__all__ = ["forecast"]

_SHOWN = 24  # lines of a table on the terminal


def forecast(
    data: Annotated[Path, typer.Argument(help="CSV or Parquet, the rows of each series in the order of time.")],
    time: Annotated[str, typer.Option(help="Column of dates or whole numbers.")],
    target: Annotated[str, typer.Option(help="Column of numbers to forecast.")],
    horizon: Annotated[int, typer.Option(help="How many times to forecast.")] = 24,
    lookback: Annotated[
        int | None, typer.Option(help="Times that a forecast sees; twice the horizon or a season.")
    ] = None,
    series: Annotated[str | None, typer.Option(help="Column that says which series a row belongs to.")] = None,
    known: Annotated[
        list[str] | None, typer.Option(help="Column known ahead; repeat it, or give several by commas.")
    ] = None,
    method: Annotated[
        str, typer.Option(help="As of fit: map, deep-ensemble, advi, score-vi, ivon, ...")
    ] = "deep-ensemble",
    network: Annotated[str, typer.Option(help="koopa, dlinear or lstm.")] = "koopa",
    season: Annotated[
        int | None, typer.Option(help="Of the naive forecast, in times; by the step of the series.")
    ] = None,
    log: Annotated[bool, typer.Option("--log", help="Of a positive target: intervals above 0.")] = False,
    calendar: Annotated[bool, typer.Option(help="Hour, week-day and time of the year as known columns.")] = True,
    test: Annotated[float, typer.Option(help="Share of the times, the last, that forecasts are judged by.")] = 0.2,
    validation: Annotated[float, typer.Option(help="Share of the times before those, that pick snapshots.")] = 0.15,
    epochs: Annotated[int | None, typer.Option(help="Per member; by the number of windows unless given.")] = None,
    seed: Annotated[int, typer.Option(help="Of the fit and its predictions.")] = 0,
    out: Annotated[Path, typer.Option("-o", "--output", help="Folder of the run.")] = Path("forecast"),
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON only; progress goes to stderr.")] = False,
) -> None:
    """Forecast one or several series with intervals, judged against the seasonal naive forecast."""
    import torch

    from posterity.interfaces.forecast.run import Options
    from posterity.interfaces.forecast.run import forecast as run
    from posterity.interfaces.forecast.series import read_series
    from posterity.interfaces.tables.read import read_table, write_table

    torch.set_num_threads(1)  # networks this small lose more by a second thread than they gain
    options = Options(
        horizon, lookback, season, method, network, calendar, test, validation, epochs, seed, log
    )  # before anything is read
    frame = read_table(data, say)
    columns = [name.strip() for each in known or [] for name in each.split(",")]
    found = run(read_series(frame, time, target, series, columns), options, out, tell=say)
    write_table(found.frame, folder(out) / "forecast.csv")
    found.evaluation.settings.update({"data": str(data), "command": _command()})
    record = found.evaluation.to_json(out / "evaluation.json")
    if as_json:
        ahead = json.loads(found.frame.to_json(orient="records", double_precision=15))
        write_json({"forecast": ahead, "evaluation": record})
    else:
        _show(found, target)
    say(f"{out / 'forecast.csv'} and {out / 'evaluation.json'} written")
    _fan(found, out / "fan.svg")
    report(found.evaluation, out / "report.html", f"How sure are forecasts of {target}?")


def _command() -> str:
    import sys

    return " ".join(["posterity", *sys.argv[1:]])


def _show(found: Forecast, target: str) -> None:
    levels = [f"{end}_{level}" for level in ("0.5", "0.9") for end in ("lower", "upper")]
    names = [name for name in ("time", "series", "mean", "std", *levels) if name in found.frame]
    rows = [[row[name] for name in names] for row in found.frame.to_dict("records")]
    stdout.print(_lines(f"{target}, the next {found.data.shape.horizon}", names, rows))
    horizons = found.horizons
    shown = [name for name in horizons if name not in ("independent", "low_0.9", "high_0.9")]
    rows = [list(line) for line in zip(*(horizons[name] for name in shown))]
    stdout.print(_lines("test part, by steps ahead", shown, rows))
    stdout.print(found.evaluation.table(("rmse", "crps", "nll", "interval_coverage", "interval_width")))


def _lines(title: str, names: Sequence[str], rows: Sequence[Sequence[Any]]) -> Any:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    more = len(rows) - _SHOWN
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.caption = f"and {more:,} more in the files" if more > 0 else None
    for name in names:
        table.add_column(name.replace("_", "\n"), justify="left" if name in ("time", "series") else "right")
    for row in rows[:_SHOWN]:
        table.add_row(*(f"{value:.4g}" if isinstance(value, float) else str(value) for value in row))
    return table


def _fan(found: Forecast, path: Path) -> None:
    def write() -> None:
        from posterity.interfaces.forecast.fan import write_fan

        write_fan(found, path)

    drawn("fan chart", write, path)
