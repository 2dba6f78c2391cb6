"""Backbones in local folders as `save_pretrained` writes them: encoders of texts, and networks that see pictures.

Features are the mean over the tokens of a text; of a picture what the network itself pools: the first token, or the mean
over the places. The last block can be inferred too where the network's layout is one of those below; a network of another
layout gives its features whole.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from posterity.errors import CompatibilityError, DataError
from posterity.interfaces.pretrained.backbones import Backbone, Tail, frozen, standard
from posterity.interfaces.pretrained.pixels import Pixels
from posterity.interfaces.pretrained.tokens import Tokens

__all__ = ["image_encoder", "text_encoder"]

TEXT_BLOCKS = 2  # of a text encoder that are inferred; of a picture's network it is the last one
_BLOCKS = ("encoder.layer", "layers", "encoder.stages")  # where a network keeps them; of stages, the blocks of the last
_STILL = (
    "hidden_dropout_prob", "attention_probs_dropout_prob", "dropout", "attention_dropout", "drop_path_rate",
    "activation_dropout", "classifier_dropout",
)  # fmt: skip


def text_encoder(folder: Path, told: Mapping[str, Any] | None = None) -> Backbone:
    """An encoder of texts with its tokeniser.

    Raises:
        DataError: a folder without a network or a tokeniser; CompatibilityError: a network that does not encode texts.
        ImportError: transformers is not installed.
    """
    model = _model(folder)
    tokenizer = _tokenizer(folder)
    most = min(int(tokenizer.model_max_length), int(getattr(model.config, "max_position_embeddings", 512)))
    if model.main_input_name != "input_ids" or getattr(model.config, "is_encoder_decoder", False):
        raise CompatibilityError(f"--backbone {folder} is no encoder of texts: its network is {type(model).__name__}")
    reader = Tokens(tokenizer, most if told is None else int(told["length"]))
    width = int(model.config.hidden_size)
    if _place(model) != "encoder.layer":
        return Backbone(str(folder.resolve()), _WholeText(model), None, width, reader)
    return Backbone(str(folder.resolve()), _BelowText(model), _TextTail(model), width, reader)


def image_encoder(folder: Path, told: Mapping[str, Any] | None = None) -> Backbone:
    """A network that sees pictures, with the preprocessing of its preprocessor_config.json.

    Raises: as `text_encoder`.
    """
    model = _model(folder)
    if model.main_input_name != "pixel_values":
        raise CompatibilityError(f"--backbone {folder} sees no pictures: its network is {type(model).__name__}")
    if told is None:
        path = folder / "preprocessor_config.json"
        if not path.exists():
            raise DataError(f"{path} is not there: it says how pictures are made ready (save the image processor too)")
        pixels = Pixels.from_processor(json.loads(path.read_text("utf-8")))
    else:
        pixels = Pixels.from_json(told)
    with torch.no_grad():
        width = int(_pooled(model(pixel_values=torch.zeros(1, 3, *pixels.size)).last_hidden_state).shape[1])
    if _place(model) is None:
        return Backbone(str(folder.resolve()), _WholePicture(model), None, width, pixels)
    return Backbone(str(folder.resolve()), _BelowPicture(model), _PictureTail(model), width, pixels)


def _model(folder: Path) -> Any:
    """The network of a folder, without dropout and batch statistics."""
    transformers = _transformers()
    from transformers.utils import logging as bar

    shown = bar.is_progress_bar_enabled()
    bar.disable_progress_bar()
    try:
        config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
        still = {name: 0.0 for name in _STILL if isinstance(getattr(config, name, None), float)}
        model = transformers.AutoModel.from_pretrained(
            folder, local_files_only=True, attn_implementation="eager", dtype=torch.float32, **still
        )
    except (OSError, ValueError, KeyError) as error:
        raise DataError(
            f"--backbone {folder} holds no network that transformers reads: {' '.join(str(error).split())[:200]}"
        ) from error
    finally:
        if shown:
            bar.enable_progress_bar()
    return frozen(model)


def _tokenizer(folder: Path) -> Any:
    try:
        return _transformers().AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"--backbone {folder} holds no tokeniser: save it into the folder too") from error


def _transformers() -> Any:
    try:
        import transformers
    except ImportError as error:
        raise ImportError("this backbone needs transformers: pip install 'posterity[backbones]'") from error
    return transformers


def _place(model: Any) -> str | None:
    """Where the blocks of a network are."""
    for place in _BLOCKS:
        try:
            found = _at(model, place)
        except AttributeError:
            continue
        if isinstance(found, nn.ModuleList) and len(found) > 1:
            return place
    return None


def _cut(model: Any, count: int) -> tuple[Any, list[nn.Module]]:
    """A copy of the network without its last blocks and what comes after them, and those blocks."""
    place = _place(model)
    assert place is not None
    body = copy.deepcopy(model)
    path, _, name = place.rpartition(".")
    holder = _at(body, path) if path else body
    blocks = getattr(holder, name)
    if name == "stages":
        holder, name = blocks[-1], "layers"
        blocks, count = holder.layers, 1
    count = min(count, len(blocks) - 1) or 1
    last = list(blocks[-count:])
    setattr(holder, name, type(blocks)(list(blocks)[:-count]) if isinstance(blocks, nn.ModuleList) else blocks[:-count])
    for after in ("layernorm", "pooler"):
        if getattr(body, after, None) is not None:
            setattr(body, after, nn.Identity() if after == "layernorm" else None)
    return body, last


def _at(model: Any, place: str) -> Any:
    """The part of a network at a dotted name."""
    for step in place.split("."):
        model = getattr(model, step)
    return model


def _first(output: Any) -> Tensor:
    """The states that a block gives, which some versions of transformers wrap in a tuple."""
    return output[0] if isinstance(output, tuple) else output


# Texts


def _mean(states: Tensor, there: Tensor) -> Tensor:
    own = there.unsqueeze(-1).to(states.dtype)
    return standard((states * own).sum(1) / own.sum(1))


class _WholeText(nn.Module):
    """Tokens to features."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor, there: Tensor) -> tuple[Tensor, ...]:
        return (_mean(self.model(input_ids=ids, attention_mask=there).last_hidden_state, there),)


class _BelowText(nn.Module):
    """Tokens to the states below the last blocks and which tokens are there."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model, _ = _cut(model, TEXT_BLOCKS)

    def forward(self, ids: Tensor, there: Tensor) -> tuple[Tensor, ...]:
        return self.model(input_ids=ids, attention_mask=there).last_hidden_state, there


class _TextTail(Tail):
    """The last blocks, the mean over the tokens."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(_cut(model, TEXT_BLOCKS)[1])

    def forward(self, states: Tensor, there: Tensor) -> Tensor:
        absent = (1 - there.to(states.dtype)) * torch.finfo(states.dtype).min
        for block in self.blocks:
            states = _first(block(states, attention_mask=absent[:, None, None]))
        return _mean(states, there)


# Pictures


def _pooled(states: Tensor) -> Tensor:
    """[rows, tokens, width] by their first token, [rows, width, h, w] by their mean."""
    return states[:, 0] if states.ndim == 3 else states.mean((2, 3))


class _WholePicture(nn.Module):
    """Pixels to features."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixels: Tensor) -> tuple[Tensor, ...]:
        return (standard(_pooled(self.model(pixel_values=pixels).last_hidden_state)),)


class _BelowPicture(nn.Module):
    """Pixels to the states below the last block."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.embed = model.embeddings if hasattr(model, "embeddings") else model.embedder
        self.blocks = _at(_cut(model, 1)[0], _place(model) or "")

    def forward(self, pixels: Tensor) -> tuple[Tensor, ...]:
        states = _first(self.embed(pixels))
        for block in self.blocks:
            states = _first(block(states))
        return (states,)


class _PictureTail(Tail):
    """The last block, the network's norm where it has one, and its pooling."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(_cut(model, 1)[1])
        self.norm = getattr(model, "layernorm", None) or nn.Identity()

    def forward(self, states: Tensor) -> Tensor:
        for block in self.blocks:
            states = _first(block(states))
        return standard(_pooled(self.norm(states)) if states.ndim == 3 else self.norm(_pooled(states)))
