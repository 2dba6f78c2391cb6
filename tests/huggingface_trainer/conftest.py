"""Tiny networks of transformers made from their configurations, rows for them, and a Trainer of a driven algorithm."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainingArguments,
)

SIZE = {"vocab_size": 20, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}


def _bert(**config: Any) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        still = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
        return BertForSequenceClassification(BertConfig(**SIZE, **{**still, "num_labels": 2, **config}))


def _llama(**config: Any) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return LlamaForCausalLM(LlamaConfig(**SIZE, num_key_value_heads=2, max_position_embeddings=16, **config))


class _Rows(torch.utils.data.Dataset):
    """Sentences of six tokens; the label says whether the first is among the lower half."""

    def __init__(self, n: int = 24, tokens: bool = False) -> None:
        generator = torch.Generator().manual_seed(1)
        self.ids = torch.randint(0, 20, (n, 6), generator=generator)
        self.labels = self.ids.clone() if tokens else (self.ids[:, 0] < 10).long()

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.ids[i], "attention_mask": torch.ones(6, dtype=torch.long), "labels": self.labels[i]}


@pytest.fixture
def bert() -> Callable[..., nn.Module]:
    return _bert


@pytest.fixture
def llama() -> Callable[..., nn.Module]:
    return _llama


@pytest.fixture
def sentences() -> Callable[..., torch.utils.data.Dataset]:
    return _Rows


@pytest.fixture
def trainer(tmp_path: Path) -> Callable[..., Trainer]:
    """A Trainer of a driven algorithm that reads the rows in order."""

    def build(
        driven: Any, rows: Any = None, callbacks: tuple[Any, ...] = (), held_out: Any = None, **args: Any
    ) -> Trainer:
        settings = {
            "output_dir": str(tmp_path / "trainer"), "num_train_epochs": 2, "per_device_train_batch_size": 8,
            "train_sampling_strategy": "sequential", "max_grad_norm": 0.0, "report_to": [], "use_cpu": True,
            "save_strategy": "no", "disable_tqdm": True, "dataloader_pin_memory": False,
        }  # fmt: skip
        return Trainer(
            driven.network, TrainingArguments(**{**settings, **args}), train_dataset=rows or _Rows(), eval_dataset=held_out,
            optimizers=driven.optimizers, callbacks=[driven.callback, *callbacks], compute_loss_func=driven.loss,
        )  # fmt: skip

    return build
