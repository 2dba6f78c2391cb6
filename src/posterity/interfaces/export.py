"""`posterity export`: a run as an ONNX file."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import torch
import typer

from posterity.errors import DataError
from posterity.interfaces.console import say, stdout
from posterity.interfaces.results import folder, write_json

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
    example: Annotated[Path | None, typer.Option(help="Rows to check the file on; made-up ones unless given.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON only; progress goes to stderr.")] = False,
) -> None:
    """Write a run as an ONNX file that takes what the network sees (features, pixels, tokens) and says what predict says."""
    about = export_run(run, output, via=via, draws=draws, example=example)
    if as_json:
        write_json(about)
        return
    stdout.print(f"{output} written via {via}: says {', '.join(about['outputs'])}", markup=False, soft_wrap=True)
    stdout.print(f"takes {about['takes']}", markup=False, soft_wrap=True)
    stdout.print(f"ONNX Runtime differs from the network by {about['difference']:.1g} at most", markup=False)


def export_run(
    run: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    via: str = "propagation",
    draws: int | None = None,
    example: Path | pandas.DataFrame | None = None,
) -> dict[str, Any]:
    """Write the file of a run; arguments as of the command, an example also as a frame.

    Returns:
        {"path", "via", "outputs", "difference", "takes"}: the names of the outputs, the largest difference from the
        network that ONNX Runtime showed, what the file takes; of a table also "columns", the names of the encoded features
        in their order.

    Raises:
        DataError: a path that is a folder, fewer than one draw, an example that cannot be read.
        StorageError, CompatibilityError, ImportError: as `po.load` and `BayesianModel.export`.
    """
    from posterity.interfaces.kinds import loaded

    target = Path(output)
    if target.is_dir():
        raise DataError(f"--output {target} is a folder: give the path of the file")
    if draws is not None and draws < 1:
        raise DataError(f"--draws must be at least 1, got {draws}")
    fitted = loaded(Path(run))
    frame = fitted.read(example, say) if isinstance(example, Path) else example
    model, rows, about = fitted.exported(None if frame is None else frame.iloc[:ROWS])
    folder(target.parent)
    model.export(target, example=_two(rows), via=via, draws=draws, about=about)
    told = _told(target)
    return {"path": str(target), **{name: told[name] for name in _TOLD if name in told}}


_TOLD = ("via", "outputs", "difference", "takes", "columns")


def _two(rows: Any) -> Any:
    """Inputs of two rows at least."""
    if isinstance(rows, tuple):
        return tuple(map(_two, rows))
    return rows if len(rows) > 1 else torch.cat([rows, rows])


def _told(path: Path) -> dict[str, Any]:
    import onnx

    properties = onnx.load(str(path)).metadata_props
    return json.loads(next(one.value for one in properties if one.key == "posterity"))
