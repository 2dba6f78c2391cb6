"""`posterity export`: a run as an ONNX file."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import torch
import typer
from torch import Tensor

from posterity.errors import DataError
from posterity.interfaces.console import say, stdout
from posterity.interfaces.results import folder, write_json
from posterity.random import Random

if TYPE_CHECKING:
    import pandas

__all__ = ["export", "export_run"]

ROWS = 17  # of an example: the most that the file is checked at


def export(
    run: Annotated[Path, typer.Argument(help="The folder that fit wrote.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="The ONNX file.")],
    via: Annotated[str, typer.Option(help="propagation, mean or draws.")] = "propagation",
    draws: Annotated[
        int | None,
        typer.Option(help="Networks in the file via draws, points via propagation; as predict's unless given."),
    ] = None,
    example: Annotated[Path | None, typer.Option(help="Table to check the file on; made-up rows unless given.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON only; progress goes to stderr.")] = False,
) -> None:
    """Write a run as an ONNX file that takes the encoded features and says what predict says."""
    from posterity.interfaces.tables.read import read_table

    torch.set_num_threads(1)  # networks for tables are small: they lose more by a second thread than they gain
    frame = None
    if example is not None:
        frame = read_table(example)
        for line in frame.attrs.get("said", ()):
            say(line)
    about = export_run(run, output, via=via, draws=draws, example=frame)
    if as_json:
        write_json(about)
        return
    stdout.print(f"{output} written via {via}: says {', '.join(about['outputs'])}", markup=False, soft_wrap=True)
    stdout.print(
        f"takes x, float32 [rows, {len(about['columns'])}]: the features as the network sees them, encoded and scaled, in "
        "the order of `columns` in its metadata `posterity`",
        markup=False,
        soft_wrap=True,
    )
    stdout.print(f"ONNX Runtime differs from the network by {about['difference']:.1g} at most", markup=False)


def export_run(
    run: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    via: str = "propagation",
    draws: int | None = None,
    example: pandas.DataFrame | None = None,
) -> dict[str, Any]:
    """Write the file of a run that was fitted to a table; arguments as of the command.

    Returns:
        {"path", "via", "outputs", "difference", "columns"}: the names of the outputs, the largest difference from the
        network that ONNX Runtime showed, the names of the encoded features in their order.

    Raises:
        DataError: a path that is a folder, fewer than one draw, an example that cannot be read.
        StorageError, CompatibilityError, ImportError: as `po.load` and `BayesianModel.export`.
    """
    from posterity.interfaces.tables.run import TableModel

    target = Path(output)
    if target.is_dir():
        raise DataError(f"--output {target} is a folder: give the path of the file")
    if draws is not None and draws < 1:
        raise DataError(f"--draws must be at least 1, got {draws}")
    fitted = TableModel.load(run)
    rows = _made_up(fitted.columns.width) if example is None else _some(fitted.columns.encode(example))
    folder(target.parent)
    about = {"columns": list(fitted.columns.names), "target": fitted.target.name, "labels": fitted.target.labels}
    fitted.model.export(target, example=rows, via=via, draws=draws, about=about)
    told = _told(target)
    return {"path": str(target), **{name: told[name] for name in ("via", "outputs", "difference", "columns")}}


def _made_up(width: int) -> Tensor:
    """Rows of the scale that encoded features have."""
    return Random(0).fold("example").normal((ROWS, width))


def _some(rows: Tensor) -> Tensor:
    """The first rows, and at least two."""
    return rows[:ROWS] if len(rows) > 1 else rows.expand(2, -1).contiguous()


def _told(path: Path) -> dict[str, Any]:
    import onnx

    properties = onnx.load(str(path)).metadata_props
    return json.loads(next(one.value for one in properties if one.key == "posterity"))
