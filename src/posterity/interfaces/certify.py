"""`posterity certify`: what the error of a run on new rows does not exceed, and what that takes for true."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import torch
import typer

from posterity.errors import DataError
from posterity.evaluation.certificate import Certificate
from posterity.evaluation.certificate import certify as certify_rows
from posterity.interfaces.console import say, stdout
from posterity.interfaces.results import write_json

if TYPE_CHECKING:
    import pandas

    from posterity.interfaces.tables.run import TableModel

__all__ = ["certificate_of", "certify"]

_SCALED = (
    "the categories of the columns and their scaling were learned on these rows, before the network saw them; the bound "
    "does not count that"
)


def certify(
    run: Annotated[Path, typer.Argument(help="The folder that fit wrote.")],
    data: Annotated[Path, typer.Argument(help="The table of the fit, or its training rows; CSV or Parquet.")],
    target: Annotated[str | None, typer.Option(help="Column of the target, where it has another name now.")] = None,
    delta: Annotated[float, typer.Option(help="The probability that the bound is wrong.")] = 0.05,
    draws: Annotated[int, typer.Option(help="Draws of the weights; more make the bound tighter.")] = 200,
    prior_run: Annotated[Path | None, typer.Option(help="A run on other rows, to centre the prior at.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON only; progress goes to stderr.")] = False,
) -> None:
    """Bound the error on new rows from the rows of the fit alone (PAC-Bayes); classification only."""
    from posterity.interfaces.tables.read import read_table

    torch.set_num_threads(1)  # networks for tables are small: they lose more by a second thread than they gain
    frame = read_table(data, say)
    found = certificate_of(run, frame, target=target, delta=delta, draws=draws, prior_run=prior_run)
    if as_json:
        write_json(found.to_json())
        return
    stdout.print(_table(found))
    for line in found.assumptions:
        stdout.print(f"assumed: {line}", markup=False, soft_wrap=True)
    for line in found.reservations:
        stdout.print(f"but: {line}", markup=False, soft_wrap=True)


def certificate_of(
    run: str | os.PathLike[str],
    frame: pandas.DataFrame,
    *,
    target: str | None = None,
    delta: float = 0.05,
    draws: int = 200,
    prior_run: str | os.PathLike[str] | None = None,
) -> Certificate:
    """The certificate of a run that was fitted to a table; arguments as of the command.

    Args:
        frame: the table of the fit, or its training rows in any order; other rows are left out.

    Raises:
        DataError: rows that are not those of the fit; a prior that was fitted to them.
        StorageError, CompatibilityError: as `po.load` and `po.certify`.
    """
    from posterity.interfaces.tables.run import TableModel

    fitted = TableModel.load(run)
    if target is not None and target != fitted.target.name:
        if target not in frame.columns:
            raise DataError(f"--target {target!r} is no column; there are {', '.join(map(str, frame.columns))}")
        name = fitted.target.name
        frame = frame.drop(columns=[name], errors="ignore").rename(columns={target: name})
    if fitted.target.task == "classification":
        frame = _trained_on(fitted, Path(run), frame)
    reservations = [_SCALED]
    prior = None
    if prior_run is not None:
        other = TableModel.load(prior_run)
        seen = other.trained_among(frame)
        if seen > 0.01 * len(frame):
            raise DataError(
                f"{seen:,} of {len(frame):,} rows are among those that {prior_run} was trained on: a prior has to come from "
                "other rows"
            )
        if seen:
            reservations.append(f"{seen:,} rows have the features of rows that the prior was trained on")
        prior = other.model
    found = certify_rows(fitted.model, fitted.labelled(frame), delta=delta, draws=draws, prior=prior)
    return replace(found, reservations=(*found.reservations, *reservations))


def _trained_on(fitted: TableModel, run: Path, frame: pandas.DataFrame) -> pandas.DataFrame:
    """The rows of a table that the run was trained on: by their features, or where these repeat by the split of the fit."""
    from posterity.interfaces.tables.run import row_keys

    keys = row_keys(fitted.columns.encode(frame))
    among = torch.isin(keys, fitted.trained_on)
    if keys[among].sort().values.equal(fitted.trained_on.sort().values):
        return _said(frame, frame[among.numpy()])
    again = _split_again(fitted, run, frame)
    if again is not None and keys[torch.from_numpy(again)].equal(fitted.trained_on):
        return _said(frame, frame.iloc[again])
    raise DataError(
        f"the bound holds for the rows of the fit only: {int(among.sum()):,} of {len(frame):,} rows have features of the "
        f"{len(fitted.trained_on):,} that {run} was trained on; give the table that was fitted, as it was"
    )


def _split_again(fitted: TableModel, run: Path, frame: pandas.DataFrame) -> Any:
    """The training rows of the recorded split, or None where the table cannot be split like that."""
    from posterity.interfaces.tables.run import TABLE
    from posterity.interfaces.tables.split import split
    from posterity.posterior.files import read_json

    told = read_json(run / TABLE)["settings"]
    try:
        return split(
            frame, fitted.target, validation=told["validation"], test=told["test"], column=told["split_column"],
            group=told["group"], time=told["time"], seed=told["split_seed"],
        ).train  # fmt: skip
    except DataError:
        return None


def _said(frame: pandas.DataFrame, rows: pandas.DataFrame) -> pandas.DataFrame:
    if len(rows) < len(frame):
        say(f"{len(rows):,} of {len(frame):,} rows were trained on: the bound is computed from these")
    return rows


def _table(found: Certificate) -> Any:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    style = {"informative": "green", "vacuous": "red"}.get(found.verdict, "yellow")
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("certificate")
    table.add_column("", justify="right")
    lines = [
        ("error on new rows, at most", f"{found.bound:.4f}"),
        ("  with endless draws", f"{found.limit:.4f}"),
        ("  in McAllester's form", f"{found.mcallester:.4f}"),
        ("guessing the majority", f"{found.majority_error:.4f}"),
        ("error of a draw on these rows", f"{found.gibbs_error:.4f}"),
        (f"  at most, by {found.draws:,} draws", f"{found.gibbs_bound:.4f}"),
        ("KL(q || p), nats", f"{found.kl:,.1f}"),
        ("rows", f"{found.rows:,}"),
        ("weights", f"{found.weights:,}"),
        ("numbers of the posterior", f"{found.parameters:,}"),
        ("holds with probability", f"{1 - found.delta:g}"),
        ("prior centred at", found.center),
    ]
    table.add_row("verdict", Text(found.verdict, style=style))
    for name, value in lines:
        table.add_row(name, value)
    return table
