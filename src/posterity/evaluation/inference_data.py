"""Chains as arviz reads them: InferenceData for arviz 0.x, a DataTree for 1.x."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from posterity.evaluation.details import Detail

if TYPE_CHECKING:
    from posterity.evaluation.chains import ChainDiagnostics

__all__ = ["inference_data"]

_DIMS = ("chain", "draw", "point", "class")


def inference_data(found: ChainDiagnostics) -> Any:
    """See `ChainDiagnostics.to_arviz`."""
    try:
        with warnings.catch_warnings():  # 0.x announces the changes of 1.x, which are provided for here
            warnings.simplefilter("ignore")
            import arviz
            import xarray
    except ImportError as error:
        raise ImportError("to_arviz() needs arviz: pip install 'posterity[arviz]'") from error
    outputs = found.outputs
    draws = outputs.log_prob.shape[1]
    coords = {"chain": found.table["member"], "draw": np.arange(draws), "point": outputs.points}
    if outputs.labels:
        coords["class"] = list(outputs.labels)
    groups = {
        "posterior": {name: values.numpy() for name, values in outputs.outputs.items()},
        "log_likelihood": {"y": outputs.log_prob.numpy()},
        "sample_stats": _stats(found.trace, found.table, found.steps, draws),
    }
    sets: dict[str, Any] = {
        name: xarray.Dataset(_variables(values), _coords(values, coords)) for name, values in groups.items()
    }
    return xarray.DataTree.from_dict(sets) if int(arviz.__version__.split(".")[0]) >= 1 else arviz.InferenceData(**sets)


def _variables(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: (_DIMS[: array.ndim], array) for name, array in values.items()}


def _coords(values: Mapping[str, Any], coords: Mapping[str, Any]) -> dict[str, Any]:
    most = max(array.ndim for array in values.values())
    return {name: coords[name] for name in _DIMS[:most]}


def _stats(trace: Detail, table: Detail, steps: Mapping[str, int], draws: int) -> dict[str, Any]:
    """[chain, draw] each; the NLL and kinetic temperature only where the trace was recorded at every draw's step."""
    members = table["member"]
    found = {"step_size": np.repeat(np.array(table["step_size"], dtype=float)[:, None], draws, 1)}
    at = {(step, member): i for i, (step, member) in enumerate(zip(trace["step"], trace["member"]))}
    wanted = [steps.get("warmup", 0) + steps.get("thin", 1) * (s + 1) for s in range(draws)]
    if steps and all((step, member) in at for member in members for step in wanted):
        for name, column in (("nll", "nll"), ("kinetic_temperature", "kinetic")):
            rows = [[trace[column][at[step, member]] for step in wanted] for member in members]
            found[name] = np.array(rows, dtype=float)
    return found
