"""One folder, read by transformers as a network and by this library as a posterior."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

import posterity as po
from posterity.huggingface import bayesian, load, save


def test_a_saved_run_comes_back_as_both(trainer: Any, tmp_path: Path, bert: Any, sentences: Any) -> None:
    driven = bayesian(bert(), po.IVON())
    trainer(driven).train()
    driven.save(tmp_path / "run")
    model, rows = load(tmp_path / "run"), sentences(8)
    batch = {"input_ids": rows.ids, "attention_mask": torch.ones_like(rows.ids)}
    assert model.predict(batch).probs.equal(driven.model().predict(batch).probs)
    plain = AutoModelForSequenceClassification.from_pretrained(tmp_path / "run")
    mean = driven.model().posterior.mean()
    assert all(leaf.equal(mean[name]) for name, leaf in plain.named_parameters())


def test_calibration_is_kept(trainer: Any, tmp_path: Path, bert: Any, sentences: Any) -> None:
    driven = bayesian(bert(), po.IVON())
    trainer(driven).train()
    model = driven.model().calibrate(DataLoader(sentences(16), batch_size=8))
    save(model, tmp_path / "run")
    assert load(tmp_path / "run").temperature == model.temperature != 1.0


def test_tied_embeddings_stay_tied(tmp_path: Path, llama: Any, sentences: Any) -> None:
    rows = DataLoader(sentences(tokens=True), batch_size=8)
    model = po.fit(
        llama(tie_word_embeddings=True), rows, "tokens", po.IVON(), target="labels", output="logits", steps=2
    )
    save(model, tmp_path / "run")
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "run")
    assert plain.lm_head.weight is plain.model.embed_tokens.weight
    assert plain.lm_head.weight.equal(model.posterior.mean()["model.embed_tokens.weight"])
    assert load(tmp_path / "run").predict({"input_ids": rows.dataset.ids}).probs.isfinite().all()


def test_what_is_no_network_of_transformers(tmp_path: Path) -> None:
    model = po.fit(lambda: nn.Linear(2, 2), (torch.randn(8, 2), torch.tensor([0, 1] * 4)), method=po.IVON(), steps=1)
    with pytest.raises(po.CompatibilityError, match="save_pretrained"):
        save(model, tmp_path / "run")
    model.save(tmp_path / "run")
    with pytest.raises(po.StorageError, match=r"config\.json"):
        load(tmp_path / "run")
