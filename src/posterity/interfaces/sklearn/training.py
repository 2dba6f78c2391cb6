"""From the parameters of an estimator to a fit: its method, its network, its rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import posterity as po
from posterity.errors import CompatibilityError, DataError
from posterity.interfaces.console import say
from posterity.interfaces.methods import hint, method_named
from posterity.interfaces.settings import Settings, build_network, network_for
from posterity.interfaces.sklearn.rows import encoded, speaking_python
from posterity.interfaces.tables.columns import Columns
from posterity.interfaces.tables.prepared import Prepared
from posterity.interfaces.tables.split import Split, split
from posterity.interfaces.tables.target import Target
from posterity.interfaces.tables.words import pandas
from posterity.models.tabular import PRESETS
from posterity.random import Random

if TYPE_CHECKING:
    from pandas import DataFrame

__all__ = ["Rows", "method_of", "module_of", "prepared", "trained"]


@dataclass(frozen=True, eq=False)
class Rows:
    """What is fitted: a frame of features, a target for each of its rows, a weight for each or None."""

    frame: DataFrame
    y: NDArray[Any]
    weight: NDArray[np.float64] | None


def method_of(method: Any) -> po.Algorithm:
    """The algorithm of a name, or itself. Raises CompatibilityError: neither."""
    if isinstance(method, str):
        return method_named(method)
    if not isinstance(method, po.Algorithm):
        raise CompatibilityError(
            f"method must be a name such as 'ivon' or an algorithm such as po.IVON(), got {method!r}"
        )
    return method


def module_of(network: Any, method: po.Algorithm, inputs: int, outputs: int) -> nn.Module | Callable[[], nn.Module]:
    """What `po.fit` takes as a network: the module that was given, or a function that builds one for these widths.

    Raises CompatibilityError: an unknown preset, or something else.
    """
    if isinstance(network, nn.Module):
        return network
    if isinstance(network, str):
        if network not in PRESETS:
            raise CompatibilityError(
                f"no network is called {network!r}: {hint(network, PRESETS)}there are {', '.join(PRESETS)}; or give a "
                "module, or a function of inputs and outputs that builds one"
            )
        named = network_for(network, method)
        return lambda: build_network(named, inputs, outputs)
    if not callable(network):
        raise CompatibilityError(
            f"network must be one of {', '.join(PRESETS)}, a torch.nn.Module, or a function of inputs and outputs that "
            f"builds one, got {network!r}"
        )

    def built() -> nn.Module:
        module = network(inputs, outputs)
        if not isinstance(module, nn.Module):
            raise CompatibilityError(f"network={network!r} built {type(module).__name__}, which is no torch.nn.Module")
        return module

    return built


def prepared(
    rows: Rows, task: str, labels: tuple[Any, ...] | None, settings: Settings, columns: Columns | None
) -> Prepared:
    """Rows split into those that train and those that are held out, encoded by what the first teach (or by `columns`).

    Raises DataError: columns that cannot be used; too few rows for the share that is held out.
    """
    if settings.calibrate and not settings.validation:
        raise DataError("a temperature is fitted on held-out rows: calibrate=True needs validation above 0")
    target = Target("y", "classification" if task == "classification" else "regression", labels)
    if settings.validation > 0:
        names = pandas().DataFrame({"y": rows.y})
        parts = split(names, target, validation=settings.validation, test=0.0, seed=settings.seed)
    else:
        none = np.zeros(0, dtype=np.int64)
        parts = Split(np.arange(len(rows.y)), none, none)
    if columns is None:
        with speaking_python():
            try:
                columns = Columns.learn(rows.frame.iloc[parts.train])
            except DataError:
                Columns.learn(rows.frame)  # the same fault, with the rows of all that was given
                raise
    return Prepared(settings, rows.frame, target, parts, columns, encoded(columns, rows.frame), rows.y)


def trained(
    made: Prepared,
    weight: NDArray[np.float64] | None,
    network: Any,
    method: po.Algorithm,
    likelihood: po.Likelihood,
    prior: Any,
    *,
    class_weight: Any = None,
    start: po.BayesianModel | None = None,
    via: str | None = None,
    draws: int | None = None,
    verbose: int = 0,
) -> po.BayesianModel:
    """Fit, and fit the temperature to the rows held out where there are enough.

    Args:
        start: a fitted model to go on from.
        via, draws: how the temperature sees predictions.

    Raises: as `po.fit`.
    """
    module = module_of(network, method, made.columns.width, made.outputs)
    if isinstance(module, nn.Module):
        _check_width(module, made)
    train = made.parts.train
    held = made.encoded(made.parts.validation) if len(made.parts.validation) else None
    options: dict[str, Any] = {
        "prior": made.prior if isinstance(prior, int | float) else prior,
        "epochs": made.epochs, "batch_size": made.batch_size, "data_weight": float(made.settings.data_weight),
        "sample_weight": None if weight is None else torch.from_numpy(weight[train]).float(),
        "class_weight": class_weight, "validation": held, "seed": made.settings.seed,
        "progress": bool(verbose),
    }  # fmt: skip
    if verbose:
        for line in made.columns.said:
            say(line)
    data = made.encoded(train)
    plan = po.Plan(1, 1, 1)
    if start is not None and len(method.stages_from_start(plan)) < len(method.stages(plan)):
        # such a method takes a start for trained: it is trained on these rows first
        start = po.fit(module, data, likelihood, method.stages(plan)[0][0], start=start, **options)
    model = po.fit(module, data, likelihood, method, start=start, **options)
    if made.calibrates and held is not None:
        _calibrate(model, held, via, draws, verbose)
    return model


def _calibrate(
    model: po.BayesianModel, held: tuple[Tensor, Any], via: str | None, draws: int | None, verbose: int
) -> None:
    try:
        model.calibrate(held, via=via, draws=draws)
    except DataError as error:  # such as one class only among the rows held out
        if verbose:
            say(f"no temperature was fitted: {error}")


def _check_width(module: nn.Module, made: Prepared) -> None:
    """One forward of a module that was built without knowing how many inputs the columns become."""
    try:
        with torch.no_grad(), Random(0).fold("probe").forked(data=True):
            state = module.training
            module.eval()
            try:
                module(made.inputs[:2])
            finally:
                module.train(state)
    except RuntimeError as error:
        names = made.columns.names
        shown = ", ".join(names[:10]) + (", ..." if len(names) > 10 else "")
        raise CompatibilityError(
            f"the network does not take the {len(names)} inputs that the columns become ({shown}): {error}; a function of "
            "inputs and outputs that builds it always fits"
        ) from error
