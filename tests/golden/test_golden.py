"""Old runs load forever: folders as each format wrote them, with what was predicted then.

`python tests/golden/test_golden.py` writes the folders that are missing; those that are there are never written again.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import posterity as po
from posterity.posterior.storage import FORMAT_VERSION

GOLDEN = Path(__file__).parent
SHORT = {"members": 2, "warmup": 5, "draws_per_chain": 2, "thin": 2}
METHODS: dict[str, po.Algorithm] = {
    "map": po.MAP(),
    "deep-ensemble": po.DeepEnsemble(2),
    "mean-field": po.MeanFieldVI(),
    "mean-field-ensemble": po.Ensemble(po.MeanFieldVI(), 2),
    "score-vi-dense": po.ScoreVI("dense"),
    "score-vi-low-rank": po.ScoreVI("low-rank-plus-diagonal", rank=2),
    "score-vi-mixture": po.ScoreVI("mixture", components=2, draws=4),
    "score-vi-flow": po.ScoreVI("flow", transforms=1, hidden=(3,), bins=3, draws=3, over="last-layer"),
    "laplace": po.LastLayerLaplace(),
    "laplace-kronecker": po.LastLayerLaplace(structure="kronecker"),
    "sghmc": po.SGHMC(**SHORT),
    "swag": po.SWAG(),
    "low-rank": po.LowRankVI(rank={"0.weight": 1, "*": "normal"}),
    "low-rank-change": po.LowRankVI(rank={"0.weight": 1, "*": "normal"}, change=True),
    "rank-one": po.RankOneVI(),
    "mc-dropout": po.MCDropout(),
}


def network(name: str) -> Callable[[], nn.Module]:
    dropout = [nn.Dropout(0.2)] if name == "mc-dropout" else []
    return lambda: nn.Sequential(nn.Linear(3, 5), nn.Tanh(), *dropout, nn.Linear(5, 2))


def inputs() -> Tensor:
    return po.Random(0).normal((30, 3))


def write(name: str) -> None:
    folder = GOLDEN / f"format-{FORMAT_VERSION}" / name
    x = inputs()
    y = (x[:, 0] > 0).long()
    model = po.fit(network(name), (x, y), "categorical", METHODS[name], epochs=3, batch_size=10, seed=0, progress=False)
    model.temperature = 1.25
    model.save(folder)
    said = model.predict(x[:6]).probs.double().tolist()
    (folder / "predicted.json").write_text(json.dumps([[round(p, 9) for p in row] for row in said]) + "\n", "utf-8")


FOLDERS = sorted(path.parent for path in GOLDEN.glob("format-*/*/predicted.json"))


def test_every_kind_of_posterior_of_this_format_is_there() -> None:
    assert {path.name for path in FOLDERS if path.parent.name == f"format-{FORMAT_VERSION}"} == set(METHODS)


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_it_predicts_what_it_did(folder: Path) -> None:
    model = po.load(folder, network(folder.name)())
    wanted = torch.tensor(json.loads((folder / "predicted.json").read_text("utf-8")), dtype=torch.float64)
    assert model.temperature == 1.25
    assert (model.predict(inputs()[:6]).probs.double() - wanted).abs().max() < 1e-6


if __name__ == "__main__":
    for each in METHODS:
        if not (GOLDEN / f"format-{FORMAT_VERSION}" / each).exists():
            write(each)
