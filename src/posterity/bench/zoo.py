"""Networks as their authors wrote them: small configurations with fresh weights, of which no line is changed.

Pictures are 16 or 32 pixels wide, texts are nine tokens of ninety, sequences are four steps of five numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from posterity.problem.likelihoods import Categorical, Gaussian
from posterity.problem.likelihoods.base import Likelihood
from posterity.random import Random

__all__ = ["FRESH", "ROWS", "Specimen"]

ROWS = 16
CLASSES, TOKENS, WORDS, WIDTH = 4, 9, 90, 32

SIZES = {"hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 2 * WIDTH}
PATCHES = {"image_size": 16, "patch_size": 4}
LABELS = {"num_labels": CLASSES}


class Specimen(NamedTuple):
    """One network and what it reads.

    Args:
        inputs: a tensor, or a tuple or dict of them, of some rows.
        output: which of its outputs the likelihood reads, as `fit` takes it.
    """

    module: nn.Module
    inputs: Any
    output: Any = None
    likelihood: Likelihood = Categorical()


def _numbers(*shape: int) -> Tensor:
    return Random(1).fold("inputs").normal((ROWS, *shape))


def _words() -> Tensor:
    return torch.randint(2, WORDS, (ROWS, TOKENS), generator=torch.Generator().manual_seed(1))


def _read() -> dict[str, Tensor]:
    """Tokens of which the last two of every other row are padding."""
    words, there = _words(), torch.ones(ROWS, TOKENS, dtype=torch.long)
    there[::2, -2:] = 0
    return {"input_ids": words, "attention_mask": there}


def _from_config(name: str, config: str, inputs: Callable[[], Any], output: Any = "logits", **options: Any) -> Specimen:
    try:
        import transformers
    except ImportError as error:
        raise ImportError(
            "the networks of this bench need transformers: pip install 'posterity[huggingface]'"
        ) from error
    torch.manual_seed(0)
    return Specimen(getattr(transformers, name)(getattr(transformers, config)(**options)), inputs(), output)


def _last(outputs: Any) -> Tensor:
    """The logits of the next token."""
    return outputs.logits[:, -1]


def _numeric(made: Specimen) -> Specimen:
    return made._replace(likelihood=Gaussian(std=1.0))


def _encoder() -> Specimen:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, batch_first=True, activation="gelu")
    return _numeric(Specimen(nn.TransformerEncoder(layer, 2), _numbers(TOKENS, WIDTH), lambda states: states[:, 0]))


def _attention() -> Specimen:
    torch.manual_seed(0)
    module, x = nn.MultiheadAttention(WIDTH, 4, batch_first=True), _numbers(TOKENS, WIDTH)
    return _numeric(Specimen(module, (x, x, x), lambda outputs: outputs[0][:, 0]))


def _recurrent(kind: type[nn.LSTM] | type[nn.GRU]) -> Specimen:
    torch.manual_seed(0)
    module = kind(5, 16, batch_first=True)
    return _numeric(Specimen(module, _numbers(4, 5), lambda outputs: outputs[0][:, -1]))


_small, _large = partial(_numbers, 3, 16, 16), partial(_numbers, 3, 32, 32)

FRESH: Mapping[str, Callable[[], Specimen]] = {
    "ViT": partial(_from_config, "ViTForImageClassification", "ViTConfig", _small, **SIZES, **PATCHES, **LABELS),
    "BEiT": partial(_from_config, "BeitForImageClassification", "BeitConfig", _small, **SIZES, **PATCHES, **LABELS),
    "DeiT": partial(_from_config, "DeiTForImageClassification", "DeiTConfig", _small, **SIZES, **PATCHES, **LABELS),
    "Swin": partial(
        _from_config, "SwinForImageClassification", "SwinConfig", _small,
        image_size=16, patch_size=2, embed_dim=16, depths=[2, 1], num_heads=[2, 4], window_size=4, **LABELS,
    ),
    "ConvNeXt": partial(
        _from_config, "ConvNextForImageClassification", "ConvNextConfig", _large,
        hidden_sizes=[8, 16], depths=[1, 1], num_stages=2, **LABELS,
    ),
    "ResNet": partial(
        _from_config, "ResNetForImageClassification", "ResNetConfig", _large,
        embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic", **LABELS,
    ),
    "MobileNetV2": partial(
        _from_config, "MobileNetV2ForImageClassification", "MobileNetV2Config", _large,
        image_size=32, depth_multiplier=0.25, **LABELS,
    ),
    "BERT": partial(
        _from_config, "BertForSequenceClassification", "BertConfig", _read, **SIZES, vocab_size=WORDS, **LABELS
    ),
    "DistilBERT": partial(
        _from_config, "DistilBertForSequenceClassification", "DistilBertConfig", _read,
        dim=WIDTH, n_layers=2, n_heads=4, hidden_dim=2 * WIDTH, vocab_size=WORDS, **LABELS,
    ),
    "T5 encoder": lambda: _numeric(
        _from_config(
            "T5EncoderModel", "T5Config", _read, lambda outputs: outputs.last_hidden_state[:, 0],
            d_model=WIDTH, d_kv=8, d_ff=2 * WIDTH, num_layers=2, num_heads=4, vocab_size=WORDS,
        )
    ),
    "ViLT": partial(
        _from_config, "ViltForQuestionAnswering", "ViltConfig", lambda: {**_read(), "pixel_values": _small()},
        **SIZES, **PATCHES, **LABELS, vocab_size=WORDS, max_position_embeddings=16,
    ),
    "GPT-2": partial(
        _from_config, "GPT2LMHeadModel", "GPT2Config", lambda: {"input_ids": _words()}, _last,
        n_embd=WIDTH, n_layer=2, n_head=4, vocab_size=WORDS, use_cache=False,
    ),
    "Llama": partial(
        _from_config, "LlamaForCausalLM", "LlamaConfig", lambda: {"input_ids": _words()}, _last,
        **SIZES, vocab_size=WORDS, num_key_value_heads=2, use_cache=False,
    ),
    "nn.TransformerEncoder": _encoder,
    "nn.MultiheadAttention": _attention,
    "nn.LSTM": partial(_recurrent, nn.LSTM),
    "nn.GRU": partial(_recurrent, nn.GRU),
}  # fmt: skip
