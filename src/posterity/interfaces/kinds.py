"""What a run is fitted to, and the part of the package that does it: a table, or pictures and texts by a backbone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from posterity.errors import DataError
from posterity.interfaces.settings import Settings

__all__ = ["Kind", "kind_of", "kind_of_run", "loaded", "use_threads"]

_PRETRAINED = "pretrained.json"
_TASKS = {"image": "pictures", "text": "texts"}
_FOR_BACKBONES = ("text", "backbone", "adapt")


class Kind(NamedTuple):
    """
    Args:
        name: "table" or "pretrained".
        read: (settings, tell) to a frame.
        prepare: (frame, settings, tell) to what `fit` takes.
        fit: (prepared, out, resume=, tell=) to a fitted run.
        load: a folder to a fitted run.
        threads: of a fit and its predictions; None leaves it to torch.
    """

    name: str
    read: Callable[..., Any]
    prepare: Callable[..., Any]
    fit: Callable[..., Any]
    load: Callable[[Path], Any]
    threads: int | None


def kind_of(settings: Settings) -> Kind:
    """The kind that settings ask for. Raises DataError: options of both."""
    pictures = settings.task == "image" or (settings.data is not None and Path(settings.data).is_dir())
    if settings.task == "text" and settings.text is None:
        raise DataError("--task text needs --text COLUMN, the column that holds the texts")
    if pictures and settings.text is not None:
        raise DataError("--text is a column of a table, and these are pictures: leave one out")
    if pictures or settings.text is not None:
        wanted = "image" if pictures else "text"
        if settings.task not in (None, wanted, "classification"):
            raise DataError(f"--task {settings.task} is for tables: of {_TASKS[wanted]} classes are told")
        return _pretrained()
    if given := [name for name in _FOR_BACKBONES if getattr(settings, name) is not None]:
        raise DataError(f"--{given[0]} is for pictures (a folder) and texts (--text COLUMN), and this is a table")
    return _table()


def kind_of_run(folder: Path) -> Kind:
    """The kind of a run, by the record in its folder."""
    return _pretrained() if (folder / _PRETRAINED).exists() else _table()


def use_threads(kind: Kind) -> None:
    """Give torch as many threads as pay."""
    import torch

    if kind.threads is not None:
        torch.set_num_threads(kind.threads)


def loaded(folder: Path) -> Any:
    """A fitted run, of whatever kind. Raises StorageError: no run."""
    kind = kind_of_run(folder)
    use_threads(kind)
    return kind.load(folder)


def _table() -> Kind:
    from posterity.interfaces.tables.prepared import prepare
    from posterity.interfaces.tables.run import TableModel, fit_table, read

    # networks for tables are small: they lose more by a second thread than they gain
    return Kind("table", read, prepare, fit_table, TableModel.load, 1)


def _pretrained() -> Kind:
    from posterity.interfaces.pretrained.prepared import prepare, read
    from posterity.interfaces.pretrained.run import PretrainedModel, fit_pretrained

    return Kind("pretrained", read, prepare, fit_pretrained, PretrainedModel.load, None)
