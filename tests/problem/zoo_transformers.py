"""Tiny random transformers of Hugging Face, in the zoo's form: dict batches with their target inside."""

from __future__ import annotations

import torch
import transformers
from torch import Tensor, nn

from .zoo import CLASSES, OF_TOKENS, ROWS, TIED, TOKENS, VOCABULARY, animal, labels, words

_SIZES = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 12}


def _text(last: int = TOKENS) -> dict[str, Tensor]:
    mask = torch.ones(ROWS, TOKENS, dtype=torch.long)
    mask[0, last:] = 0
    return {"input_ids": words().clamp(min=1), "attention_mask": mask}


def _bert() -> transformers.BertConfig:
    return transformers.BertConfig(vocab_size=VOCABULARY, max_position_embeddings=TOKENS, num_labels=CLASSES, **_SIZES)


def _gpt2() -> transformers.GPT2Config:
    return transformers.GPT2Config(
        vocab_size=VOCABULARY, n_positions=TOKENS, n_embd=8, n_layer=2, n_head=2, num_labels=CLASSES, pad_token_id=0,
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip


@animal("categorical", CLASSES, target="labels")
def bert() -> tuple:
    return transformers.BertForSequenceClassification(_bert()), _text(last=2), labels()


class _Encoding(nn.Module):
    """A trunk of Hugging Face inside of another module, with a head of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = transformers.BertModel(_bert(), add_pooling_layer=False)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, **inputs: Tensor) -> Tensor:
        return self.head(self.trunk(**inputs).last_hidden_state[:, 0])


@animal("categorical", CLASSES, target="labels")
def bert_inside() -> tuple:
    return _Encoding(), transformers.BatchEncoding(_text()), labels()


@animal("tokens", TOKENS, VOCABULARY, target="labels", laplace=TIED)
def gpt2() -> tuple:
    x = _text()
    return transformers.GPT2LMHeadModel(_gpt2()), x, x["input_ids"].masked_fill(x["attention_mask"] == 0, -100)


@animal("tokens", TOKENS, VOCABULARY, target="labels", laplace=OF_TOKENS)
def gpt2_untied() -> tuple:
    config = _gpt2()
    config.tie_word_embeddings = False
    x = _text()
    return transformers.GPT2LMHeadModel(config), x, x["input_ids"]


@animal("categorical", CLASSES, target="labels")
def gpt2_classifier() -> tuple:
    """The head sees every token; the last one that is not padding counts."""
    x = _text(last=3)
    x["input_ids"][x["attention_mask"] == 0] = 0
    return transformers.GPT2ForSequenceClassification(_gpt2()), x, labels()


@animal("categorical", CLASSES, target="labels")
def vit() -> tuple:
    config = transformers.ViTConfig(image_size=8, patch_size=4, num_channels=1, num_labels=CLASSES, **_SIZES)
    return transformers.ViTForImageClassification(config), {"pixel_values": torch.randn(ROWS, 1, 8, 8)}, labels()
