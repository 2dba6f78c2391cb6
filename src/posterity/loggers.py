"""A fit's epochs and an evaluation's metrics in TensorBoard and MLflow.

    from posterity.loggers import TensorBoard

    with TensorBoard("runs/first") as log:
        model = po.fit(net, data, callbacks=[log])
        log.evaluation(po.evaluate(model, test))

Names are <stage>/<number> for epochs, at the stage's step, and <method>/<via>/<metric> for evaluations.
"""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any

from posterity.evaluation.evaluation import Evaluation

__all__ = ["Logger", "MLflow", "TensorBoard"]


class Logger(ABC):
    """Called with each epoch's line of the history; `write` says where numbers go. Undefined ones are left out."""

    @abstractmethod
    def write(self, numbers: Mapping[str, float], step: int) -> None:
        """Finite numbers by name."""

    def __call__(self, line: Mapping[str, Any]) -> None:
        """One epoch: what `po.fit(callbacks=[...])` calls."""
        named = {f"{line['stage']}/{name}": value for name, value in line.items() if name not in ("stage", "step")}
        self.write(_finite(named), int(line["step"]))

    def history(self, lines: Iterable[Mapping[str, Any]]) -> None:
        """All epochs of a model that was fitted before: `model.history`."""
        for line in lines:
            self(line)

    def evaluation(self, result: Evaluation, step: int = 0) -> None:
        """The value of every metric."""
        for row in result.rows:
            where = f"{row['method']}/{row['via']}"
            named = {f"{where}/{name}": metric.value for name, metric in row["metrics"].items()}
            self.write(_finite(named), step)


class TensorBoard(Logger):
    """Event files in a folder.

    Args:
        folder: what `tensorboard --logdir` is given.

    Raises:
        ImportError: no tensorboard.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ImportError("TensorBoard needs tensorboard: pip install tensorboard") from error
        self._writer = SummaryWriter(os.fspath(folder))

    def write(self, numbers: Mapping[str, float], step: int) -> None:
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        """Close the file."""
        self._writer.close()

    def __enter__(self) -> TensorBoard:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class MLflow(Logger):
    """The run that is active in mlflow; one is begun where there is none.

    Raises:
        ImportError: no mlflow.
    """

    def __init__(self) -> None:
        try:
            import mlflow
        except ImportError as error:
            raise ImportError("MLflow needs mlflow: pip install mlflow, or mlflow-skinny") from error
        self._mlflow = mlflow

    def write(self, numbers: Mapping[str, float], step: int) -> None:
        self._mlflow.log_metrics(dict(numbers), step=step)


def _finite(named: Mapping[str, Any]) -> dict[str, float]:
    return {name: float(value) for name, value in named.items() if math.isfinite(value)}
