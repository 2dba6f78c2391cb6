"""What a run from the shell was told: options, or a YAML file with the same names.

    data: visits.csv
    target: sepsis
    network: {class_path: mynet.Net, init_args: {width: 64}}
    method: {class_path: posterity.IVON, init_args: {learning_rate: 0.1}}

A class path is imported from the folder that the command runs in, or from what is installed. A network's class gets
`inputs` and `outputs`, the widths of the table, where it takes arguments of these names (or `in_features` and
`out_features`) that `init_args` leaves out.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

import posterity as po
from posterity.errors import CompatibilityError, DataError
from posterity.interfaces.methods import DROPOUT, METHODS, hint, method_named
from posterity.models.tabular import PRESETS

__all__ = ["Settings", "build_method", "build_network", "network_for", "read_yaml"]

Named = str | Mapping[str, Any]  # a name, or {"class_path": ..., "init_args": {...}}

_WIDTHS = {"inputs": 0, "in_features": 0, "outputs": 1, "out_features": 1}


@dataclass(frozen=True)
class Settings:
    """Everything that `fit` and `compare` can be told; the names are those of the options and of the YAML keys.

    Args:
        data: path of the table, or of the folder of pictures.
        target, task: guessed, and said, unless given.
        drop: columns to leave out.
        validation, test: shares of the rows.
        split_column, group, time: columns that split (see `tables.split`).
        split_seed: of the split.
        network: "linear", "mlp", "resmlp" or a class.
        likelihood: "categorical" or "gaussian" by the task, unless given.
        method: a name (see `methods`) or a class; a deep ensemble unless given.
        rank: of the method, where it has one (low-rank, swag, score-vi-low-rank).
        methods: of a comparison: names, or name -> class.
        seeds: of a comparison, how many.
        prior: of the normal prior: the std of a weight is this over the root of its fan-in.
        data_weight: every row counts so many times.
        data_weights: of a comparison: the grid that each method's own weight is picked from, on validation rows; these fits
            are further rows of the table.
        epochs: per member; by the number of rows unless given.
        batch_size: by the number of rows unless given.
        calibrate: fit a temperature on the validation rows; of a table wherever there are 30, unless given.
        seed: of the fit and its predictions.
        text: column that holds texts, for a pretrained network to read.
        backbone: of pictures and texts: a known name or a local folder; by the kind unless given.
        adapt: what is inferred of it: "head", "last-blocks" or "low-rank".
        false_alarms: the rate at which what belongs may be called out of scope.
    """

    data: str | None = None
    target: str | None = None
    task: str | None = None
    drop: tuple[str, ...] = ()
    validation: float = 0.15
    test: float = 0.2
    split_column: str | None = None
    group: str | None = None
    time: str | None = None
    split_seed: int = 0
    network: Named = "mlp"
    likelihood: str | None = None
    method: Named | None = None
    rank: int | None = None
    methods: tuple[str, ...] | Mapping[str, Named] = tuple(METHODS)
    seeds: int = 3
    prior: float = 2.0
    data_weight: float = 1.0
    data_weights: tuple[float, ...] = ()
    epochs: int | None = None
    batch_size: int | None = None
    calibrate: bool | None = None
    seed: int = 0
    text: str | None = None
    backbone: str | None = None
    adapt: str | None = None
    false_alarms: float = 0.05

    def __post_init__(self) -> None:
        for name in ("validation", "test", "prior", "data_weight", "false_alarms"):
            if isinstance(value := getattr(self, name), str):  # YAML reads 1e-3, without a point, as text
                object.__setattr__(self, name, _numbers(name, value)[0])
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            kinds = _KINDS.get(field.name, (str,))
            if value is not None and (not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds)):
                wanted = " or ".join(kind.__name__ for kind in kinds)
                raise DataError(f"{field.name} must be {wanted}, got {value!r}")
        for name in ("drop", "methods"):
            value = getattr(self, name)
            if not isinstance(value, Mapping):
                parts = [
                    part for each in ([value] if isinstance(value, str) else value) for part in str(each).split(",")
                ]
                object.__setattr__(self, name, tuple(part.strip() for part in parts if part.strip()))
        object.__setattr__(self, "data_weights", _numbers("data_weights", self.data_weights))
        for name in ("seed", "split_seed"):
            if getattr(self, name) < 0:
                raise DataError(f"{name} must be a whole number of at least 0, got {getattr(self, name)}")
        for name, named in self.methods.items() if isinstance(self.methods, Mapping) else ():
            if not re.fullmatch(r"\w[\w.+-]*", str(name)):
                raise DataError(
                    f"a method is called by letters, digits, '-', '+', '.' and '_' (a folder is), got {name!r}"
                )
            if not isinstance(named, str | Mapping):
                raise DataError(f"method {name!r} must be a name or a class, got {named!r}")
        if not 0 < self.false_alarms < 1:
            raise DataError(f"false_alarms is a share of rows in (0, 1), got {self.false_alarms:g}")
        for name in ("prior", "data_weight", "epochs", "batch_size", "seeds", "rank"):
            if (value := getattr(self, name)) is not None and not value > 0:
                raise DataError(f"{name} must be above 0, got {value}")

    def updated(self, **options: Any) -> Settings:
        """With the options that were given (not None) in place of what stands here."""
        return dataclasses.replace(self, **{name: value for name, value in options.items() if value is not None})


_KINDS: dict[str, tuple[type, ...]] = {
    "drop": (str, list, tuple), "methods": (str, list, tuple, dict), "network": (str, dict), "method": (str, dict),
    "data_weights": (str, float, int, list, tuple),
    "validation": (float, int), "test": (float, int), "prior": (float, int), "data_weight": (float, int),
    "split_seed": (int,), "seeds": (int,), "epochs": (int,), "rank": (int,), "batch_size": (int,), "seed": (int,),
    "calibrate": (bool,), "false_alarms": (float, int),
}  # fmt: skip


def _numbers(name: str, value: Any) -> tuple[float, ...]:
    """Numbers above 0 from a list, or a text with commas."""
    parts = value.split(",") if isinstance(value, str) else value if isinstance(value, list | tuple) else [value]
    try:
        found = tuple(float(part) for part in parts)
    except (TypeError, ValueError) as error:
        raise DataError(f"{name} must be numbers such as 1,10,100, got {value!r}") from error
    if any(not each > 0 for each in found):
        raise DataError(f"{name} must be above 0, got {value!r}")
    return found


def read_yaml(path: str | os.PathLike[str]) -> Settings:
    """The settings in a YAML file; a relative `data` is relative to it.

    Raises:
        DataError: absent, not YAML, an unknown key, a value of the wrong kind.
        ImportError: PyYAML is not installed.
    """
    try:
        import yaml
    except ImportError as error:
        raise ImportError("a YAML file needs PyYAML: pip install 'posterity[tables]'") from error
    path = Path(path)
    try:
        content = yaml.safe_load(path.read_text("utf-8"))
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise DataError(f"{path} is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        raise DataError(f"{path} must hold keys and values such as 'data: table.csv'")
    known = [field.name for field in dataclasses.fields(Settings)]
    for key in content:
        if key not in known:
            raise DataError(f"{path} has the unknown key {key!r}: {hint(str(key), known)}Keys are {', '.join(known)}")
    try:
        settings = Settings(**content)
    except DataError as error:
        raise DataError(f"{path}: {error}") from error
    if settings.data is not None:
        settings = dataclasses.replace(settings, data=str(path.parent / settings.data))
    return settings


def build_method(named: Named, rank: int | None = None) -> po.Algorithm:
    """The algorithm of a name or a class path, with another rank where one is given.

    Raises CompatibilityError: no such name or class, arguments that it does not take, no algorithm, or one without rank.
    """
    method = method_named(named) if isinstance(named, str) and "." not in named else _build(named, {})
    if not isinstance(method, po.Algorithm):
        raise CompatibilityError(f"{_path(named)} is not an algorithm such as posterity.IVON")
    if rank is None:
        return method
    if not hasattr(method, "rank"):
        raise CompatibilityError(f"{method.name} has no rank: --rank is of low-rank, swag and score-vi-low-rank")
    changed: dict[str, Any] = {"rank": rank}
    return dataclasses.replace(method, **changed)


def network_for(network: Named, method: po.Algorithm) -> Named:
    """The network that a method is given where a preset is asked for: Monte Carlo dropout needs one with dropout."""
    if isinstance(method, po.MCDropout) and isinstance(network, str) and network in PRESETS:
        return {"class_path": f"posterity.models.tabular.{network}", "init_args": {"dropout": DROPOUT}}
    return network


def build_network(named: Named, inputs: int, outputs: int) -> nn.Module:
    """The network of a preset's name or a class path, for so many inputs and outputs. Raises as `build_method`.

    A run folder keeps the path, and may come from anywhere: nothing is made but torch modules.
    """
    if isinstance(named, str) and "." not in named:
        if named not in PRESETS:
            raise CompatibilityError(
                f"no network is called {named!r}: there are {', '.join(PRESETS)}, or give class_path in a YAML file"
            )
        return PRESETS[named](inputs, outputs)
    network = _build(named, {name: (inputs, outputs)[place] for name, place in _WIDTHS.items()}, _is_network)
    if not isinstance(network, nn.Module):
        raise CompatibilityError(f"{_path(named)} is not a torch.nn.Module")
    return network


def _path(named: Named) -> str:
    return named if isinstance(named, str) else str(named.get("class_path"))


def _is_network(kind: Any) -> bool:
    own = getattr(kind, "__module__", None) or ""
    return (isinstance(kind, type) and issubclass(kind, nn.Module)) or own.startswith("posterity.models.")


def _build(named: Named, offered: Mapping[str, Any], allowed: Callable[[Any], bool] = callable) -> Any:
    arguments: dict[str, Any] = {}
    if not isinstance(named, str):
        if unknown := set(named) - {"class_path", "init_args"}:
            raise CompatibilityError(f"a class is {{class_path, init_args}}: {', '.join(sorted(unknown))} is neither")
        given = named.get("init_args") or {}
        if not isinstance(given, Mapping):
            raise CompatibilityError(f"init_args are keys and values, got {given!r}")
        arguments = dict(given)
    path = _path(named)
    module, _, name = path.rpartition(".")
    if (here := os.getcwd()) not in sys.path:
        sys.path.insert(0, here)
    try:
        kind = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise CompatibilityError(f"the class path {path!r} leads nowhere: {error}") from error
    if not allowed(kind):
        raise CompatibilityError(f"{path} is not a class of torch.nn.Module")
    arguments = {key: _nested(value, allowed) for key, value in arguments.items()}
    try:
        takes = inspect.signature(kind).parameters
        arguments = {**{key: value for key, value in offered.items() if key in takes}, **arguments}
        return kind(**arguments)
    except Exception as error:  # whatever somebody's class raises
        raise CompatibilityError(f"{path} cannot be made with {arguments}: {error!r}") from error


def _nested(value: Any, allowed: Callable[[Any], bool]) -> Any:
    """An argument that is a class itself, as `base: {class_path: posterity.MAP}`."""
    return _build(value, {}, allowed) if isinstance(value, Mapping) and "class_path" in value else value
