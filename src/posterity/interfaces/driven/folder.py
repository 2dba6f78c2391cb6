"""A folder that transformers reads as a network and this library as a posterior.

`config.json` and `model.safetensors` hold the mean weights as `save_pretrained` writes them; `posterity.json` and the files
that it names are a run as any other.
"""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import nn

from posterity.errors import CompatibilityError, StorageError
from posterity.model import BayesianModel
from posterity.model import load as load_run
from posterity.posterior.storage import load_manifest
from posterity.tree import Tree

__all__ = ["load", "save"]


def save(model: BayesianModel, folder: str | os.PathLike[str]) -> None:
    """Write a fitted transformers network: `from_pretrained(folder)` reads its mean weights, `load(folder)` the posterior.

    Raises:
        CompatibilityError: the network has no `save_pretrained`, or the posterior no mean (an ensemble).
        StorageError: the folder holds something foreign, or the disk is full.
    """
    network = model.problem.network.module
    if not hasattr(network, "save_pretrained"):
        raise CompatibilityError(
            f"{type(network).__name__} has no save_pretrained: use model.save(folder) and po.load(folder, network)"
        )
    network.save_pretrained(folder, state_dict=_state(network, model.posterior.mean()))  # type: ignore[operator]
    model.save(folder)


def load(folder: str | os.PathLike[str], *, device: torch.device | str | None = None) -> BayesianModel:
    """The posterior that `save` wrote, with the network that its `config.json` describes.

    Raises:
        StorageError: not such a folder, truncated, corrupt, or newer than this library.
        ImportError: transformers is not installed.
    """
    try:
        import transformers
    except ImportError as error:
        raise ImportError("load needs transformers: pip install 'posterity[huggingface]'") from error
    manifest = load_manifest(folder)
    if not os.path.exists(os.path.join(folder, "config.json")):
        raise StorageError(f"{folder} has no config.json: it was not written by posterity.huggingface.save")
    config = transformers.AutoConfig.from_pretrained(folder)
    names = config.architectures or []
    kind = getattr(transformers, names[0], None) if names else None
    if kind is None:
        raise StorageError(
            f"{folder}/config.json names no network of transformers ({names}): build it, and use po.load(folder, network)"
        )
    return load_run(folder, kind.from_pretrained(folder), output=manifest.get("output"), device=device)


def _state(network: nn.Module, mean: Tree) -> dict[str, Any]:
    """The network's state dict with the mean weights in place, tied names sharing them."""
    state = network.state_dict()
    first = {id(parameter): name for name, parameter in network.named_parameters()}
    for name, parameter in network.named_parameters(remove_duplicate=False):
        if (own := first[id(parameter)]) in mean:
            state[name] = mean[own]
    return state
