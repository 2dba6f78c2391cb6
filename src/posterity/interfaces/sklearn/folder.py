"""The folder of an estimator: the run of its model, and `estimator.json`; and the same folder as bytes, for pickle.

`estimator.json` holds the class, the parameters, the columns and the target as JSON, and the hash of the run's manifest: a
save that was killed between the two is noticed. Algorithms, schedules and priors are stored as the names of their classes,
which must be classes of this library, with their fields; other objects cannot be stored and are asked for by `load`.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import tempfile
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from torch import nn

import posterity as po
from posterity.errors import CompatibilityError, StorageError
from posterity.interfaces.tables.columns import Columns
from posterity.posterior.draws import Streamed
from posterity.posterior.files import atomic_json, read_json, refuse_newer
from posterity.posterior.storage import load_manifest

__all__ = ["ESTIMATOR", "load", "packed", "save", "unpacked"]

ESTIMATOR = "estimator.json"
_CLASS, _ABSENT = "posterity", {"absent": True}

Kind = TypeVar("Kind", bound=Any)


def save(estimator: Any, folder: str | os.PathLike[str]) -> None:
    """Write the model, then what the estimator knows beside it."""
    folder = Path(folder)
    estimator.model_.save(folder)
    params = {name: _stored(value) for name, value in estimator.get_params(deep=False).items()}
    names = getattr(estimator, "feature_names_in_", None)
    content = {
        "format_version": 1,
        "estimator": type(estimator).__name__,
        "run": load_manifest(folder)["sha256"],
        "params": params,
        "columns": estimator.columns_.to_json(),
        "features": {"count": int(estimator.n_features_in_), "names": None if names is None else list(names)},
        "facts": estimator._facts(),
    }
    atomic_json(folder / ESTIMATOR, content)


def load(kind: type[Kind], folder: str | os.PathLike[str], params: Mapping[str, Any]) -> Kind:
    """An estimator of class `kind` with its model."""
    folder = Path(folder)
    manifest = load_manifest(folder)
    path = folder / ESTIMATOR
    if not path.exists():
        raise StorageError(f"{folder} is a run without {ESTIMATOR}: no estimator was saved there; use po.load")
    content = read_json(path)
    refuse_newer(path, content.get("format_version") if isinstance(content, dict) else None)
    if content.get("estimator") != kind.__name__:
        raise StorageError(
            f"{folder} holds a {content.get('estimator')}, not a {kind.__name__}: load it by its own class"
        )
    if content.get("run") != manifest["sha256"]:
        raise StorageError(
            f"{path} belongs to another run than the one beside it: its save was interrupted; save it again"
        )
    try:
        stored, names = content["params"], content["features"]["names"]
        needed = [name for name, value in stored.items() if value == _ABSENT and name not in params]
        if needed:
            raise CompatibilityError(
                f"{folder} holds tensors and JSON, and {needed[0]}= was an object of your own: load(folder, "
                f"{', '.join(f'{name}=...' for name in needed)})"
            )
        found = {name: _restored(value) for name, value in stored.items() if name not in params}
        estimator = kind(**found, **params)
        estimator.columns_ = Columns.from_json(content["columns"])
        estimator.n_features_in_ = int(content["features"]["count"])
        if names is not None:
            estimator.feature_names_in_ = np.array(names, dtype=object)
        estimator._take(content["facts"])
    except (KeyError, TypeError, AttributeError) as error:
        raise StorageError(f"{path} is not what save writes: {error!r}") from error
    estimator.model_ = po.load(folder, estimator._module())
    return estimator


def packed(model: po.BayesianModel) -> dict[str, bytes]:
    """The files of a saved model."""
    with tempfile.TemporaryDirectory() as folder:
        model.save(folder)
        return {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir())}


def unpacked(files: Mapping[str, bytes], module: nn.Module) -> po.BayesianModel:
    """The model of these files. Draws that are read one by one keep their files as long as they live."""
    folder = tempfile.mkdtemp()
    try:
        for name, content in files.items():
            (Path(folder) / Path(name).name).write_bytes(content)
        model = po.load(folder, module)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    if isinstance(model.posterior, Streamed):
        weakref.finalize(model.posterior, shutil.rmtree, folder, ignore_errors=True)
    else:
        shutil.rmtree(folder, ignore_errors=True)
    return model


def _stored(value: Any) -> Any:
    """A parameter as JSON; `_ABSENT` where there is no word for it."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.bool_ | np.integer | np.floating):
        return value.item()
    if isinstance(value, np.random.RandomState):
        return None  # the seed that it gave is in the run
    if isinstance(value, list | tuple):
        parts = [_stored(part) for part in value]
        return _ABSENT if _ABSENT in parts else {"list": parts}
    if isinstance(value, Mapping):
        pairs = [[_stored(key), _stored(part)] for key, part in value.items()]
        return _ABSENT if any(_ABSENT in pair for pair in pairs) else {"pairs": pairs}
    name = type(value).__name__
    if dataclasses.is_dataclass(value) and _known().get(name) is type(value):
        fields = {field.name: _stored(getattr(value, field.name)) for field in dataclasses.fields(value) if field.init}
        return _ABSENT if _ABSENT in fields.values() else {_CLASS: name, "fields": fields}
    return _ABSENT


def _restored(value: Any) -> Any:
    """The inverse of `_stored`; only dataclasses of this library are made."""
    if not isinstance(value, dict):
        return value
    if "list" in value:
        return tuple(_restored(part) for part in value["list"])
    if "pairs" in value:
        return {_restored(key): _restored(part) for key, part in value["pairs"]}
    if (name := value[_CLASS]) not in _known():
        raise StorageError(f"no algorithm or prior of posterity is called {name!r}: it was saved by another version")
    return _known()[name](**{key: _restored(part) for key, part in value["fields"].items()})


def _known() -> dict[str, type]:
    """The classes that may be named in a folder: dataclasses of this library, which do nothing but hold their fields."""
    found = [getattr(po, name) for name in po.__all__]
    waiting: list[type] = [po.Algorithm, po.Prior]
    while waiting:
        below: list[type] = waiting.pop().__subclasses__()
        found, waiting = [*found, *below], [*waiting, *below]
    own = [each for each in found if isinstance(each, type) and each.__module__.startswith(f"{po.__name__}.")]
    return {each.__name__: each for each in own if dataclasses.is_dataclass(each)}
