"""Networks for tables: `[rows, inputs]` in, `[rows, outputs]` out.

    linear    W x + b
    mlp       W_d relu(... relu(W_1 x + b_1) ...) + b_d
    resmlp    h <- h + V relu(U norm(h)) in each block, then W norm(h) + b

Every likelihood takes `[rows, outputs]`: 1 output for "gaussian" and "student-t" (`[rows]` and `[rows, 1]` mean the same to
them), 2 for "heteroscedastic" (mean, log std), one per class for "categorical". There is no batch normalisation: a row's
answer does not depend on the rows beside it. There is no dropout unless it is asked for, as Monte Carlo dropout does: then
what goes into every linear layer but the first is dropped at that rate, and the inputs of a network with one layer.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor, nn

from posterity.errors import DataError

__all__ = ["PRESETS", "ResidualBlock", "describe", "linear", "mlp", "resmlp"]


def linear(inputs: int, outputs: int, dropout: float = 0.0) -> nn.Module:
    """W x + b."""
    _check(inputs, outputs)
    return nn.Sequential(*_dropout(dropout), nn.Linear(inputs, outputs))


def mlp(inputs: int, outputs: int, width: int = 64, depth: int = 2, dropout: float = 0.0) -> nn.Module:
    """`depth` hidden layers of `width` rectified units.

    Raises DataError unless all are at least 1.
    """
    _check(inputs, outputs, width, depth)
    sizes = [inputs, *[width] * depth]
    layers: list[nn.Module] = []
    for before, after in pairwise(sizes):
        layers += [nn.Linear(before, after), nn.ReLU(), *_dropout(dropout)]
    return nn.Sequential(*layers, nn.Linear(sizes[-1], outputs))


class ResidualBlock(nn.Module):
    """h + V relu(U norm(h)), norm over the units of a row, U to twice the width."""

    def __init__(self, width: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.widen = nn.Linear(width, 2 * width)
        self.narrow = nn.Linear(2 * width, width)
        self.drop = nn.Sequential(*_dropout(dropout))

    def forward(self, h: Tensor) -> Tensor:
        """[rows, width] to [rows, width]."""
        return h + self.narrow(self.drop(torch.relu(self.widen(self.drop(self.norm(h))))))


def resmlp(inputs: int, outputs: int, width: int = 64, blocks: int = 2, dropout: float = 0.0) -> nn.Module:
    """A residual network of `blocks` pre-norm blocks.

    Raises DataError unless all are at least 1.
    """
    _check(inputs, outputs, width, blocks)
    body = [ResidualBlock(width, dropout) for _ in range(blocks)]
    last = [nn.LayerNorm(width), *_dropout(dropout), nn.Linear(width, outputs)]
    return nn.Sequential(nn.Linear(inputs, width), *body, *last)


def _dropout(rate: float) -> list[nn.Module]:
    return [nn.Dropout(rate)] if rate > 0.0 else []


PRESETS: dict[str, Callable[..., nn.Module]] = {"linear": linear, "mlp": mlp, "resmlp": resmlp}


def describe(module: nn.Module) -> str:
    """Its preset's name, the widths of its layers, and how many numbers can be trained.

    >>> describe(mlp(13, 1))
    'mlp 13-64-64-1, 5,121 weights'
    """
    layers = [layer for layer in module.modules() if isinstance(layer, nn.Linear)]
    blocks = sum(isinstance(layer, ResidualBlock) for layer in module.modules())
    weights = f"{sum(weight.numel() for weight in module.parameters() if weight.requires_grad):,} weights"
    rates = [layer.p for layer in module.modules() if isinstance(layer, nn.Dropout)]
    weights += f", dropout {rates[0]:g}" if rates else ""
    plain = all(isinstance(layer, nn.Sequential | nn.Linear | nn.ReLU | nn.Dropout) for layer in module.modules())
    if not layers or not (plain or blocks):
        return f"{type(module).__name__}, {weights}"
    if blocks:
        width = layers[0].out_features
        return f"resmlp {layers[0].in_features}-{width}x{blocks}-{layers[-1].out_features}, {weights}"
    widths = "-".join(str(width) for width in [layers[0].in_features, *(layer.out_features for layer in layers)])
    return f"{'linear' if len(layers) == 1 else 'mlp'} {widths}, {weights}"


def _check(*sizes: int) -> None:
    if min(sizes) < 1:
        raise DataError(f"a network needs at least 1 input, output, unit and layer, got {sizes}")
