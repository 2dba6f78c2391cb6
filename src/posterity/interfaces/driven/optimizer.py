"""What a loop of torch takes for an optimizer and its schedule; the algorithm stands behind both."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

if TYPE_CHECKING:
    from posterity.interfaces.driven.driven import Driven

__all__ = ["DrivenOptimizer", "OwnSchedule"]

_KEY = "posterity"


class DrivenOptimizer(Optimizer):
    """`step()` gives the gradients on the parameters to the algorithm and leaves its point (the mean weights) in them.

    Its `state_dict` holds the algorithm's state, in tensors and plain values. `lr` in its groups is the algorithm's learning
    rate, for those who watch it; to write there changes nothing.
    """

    # A GradScaler then leaves it to `step` to undo its scale (`grad_scale`) and to skip what is not finite.
    _step_supports_amp_scaling = True

    def __init__(self, driven: Driven, parameters: list[nn.Parameter]) -> None:
        self._driven = driven
        super().__init__(parameters, {"lr": 0.0})

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step of the algorithm. A closure runs at its draw; where it fails the mean weights are back in the module.

        Raises:
            CompatibilityError: no loss went through `driven.loss`, or no draw was in the weights.
            NonFiniteError: the loss or its gradient was not finite ten steps in a row.
        """
        loss = None
        if closure is not None:
            self._driven.draw()
            try:
                with torch.enable_grad():
                    loss = closure()
            except BaseException:
                self._driven.give_up()
                raise
        scale = getattr(self, "grad_scale", None)
        self._driven.step(1.0 if scale is None else float(scale))
        return loss

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), _KEY: self._driven.position()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from there at the next `begin`.

        Raises:
            StorageError: the state of another optimizer.
        """
        self._driven.resume(state_dict.get(_KEY))
        super().load_state_dict({name: value for name, value in state_dict.items() if name != _KEY})


class OwnSchedule(LRScheduler):
    """Tells the learning rate of the last step, which is the algorithm's own; changes nothing."""

    def get_lr(self) -> list[float | Tensor]:
        return [group["lr"] for group in self.optimizer.param_groups]

    def get_last_lr(self) -> list[float | Tensor]:
        return self.get_lr()
