"""Monte Carlo dropout on tables: a preset network is given dropout, a class of one's own is left as it is."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import posterity as po
from posterity.interfaces import cli
from posterity.interfaces.methods import METHODS
from posterity.interfaces.settings import build_network, network_for
from posterity.models.tabular import PRESETS, describe, mlp

pandas = pytest.importorskip("pandas")


def rates(network: nn.Module) -> list[float]:
    return [layer.p for layer in network.modules() if isinstance(layer, nn.Dropout)]


@pytest.mark.parametrize("preset", list(PRESETS))
def test_presets_drop_what_goes_into_all_layers_but_the_first(preset: str) -> None:
    plain, dropping = PRESETS[preset](3, 2), PRESETS[preset](3, 2, dropout=0.3)
    assert rates(plain) == []
    linears = sum(isinstance(layer, nn.Linear) for layer in dropping.modules())
    calls = []
    for layer in dropping.modules():
        if isinstance(layer, nn.Dropout):
            layer.register_forward_hook(lambda *call: calls.append(1))
    dropping(torch.ones(5, 3))
    assert len(calls) == max(linears - 1, 1)
    assert set(rates(dropping)) == {0.3}
    assert "dropout 0.3" in describe(dropping)
    assert describe(mlp(3, 2, width=7, dropout=0.3)) == "mlp 3-7-7-2, 100 weights, dropout 0.3"


def test_presets_have_dropout_for_mc_dropout_alone() -> None:
    for name, method in METHODS.items():
        found = rates(build_network(network_for("mlp", method()), 3, 2))
        assert len(found) == (2 if name == "mc-dropout" else 0)
    for named in ("nets.Mine", {"class_path": "nets.Mine"}):
        assert network_for(named, po.MCDropout()) == named


@pytest.mark.parametrize("network", ["mlp", "linear"])
def test_from_the_shell(
    network: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    a, b = random.normal(size=(2, 211))
    pandas.DataFrame({"a": a, "b": b, "y": 1000 + 50 * a + 20 * random.normal(size=211)}).to_csv("t.csv", index=False)

    def run(*arguments: str) -> str:
        monkeypatch.setattr("sys.argv", ["posterity", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        out, err = capsys.readouterr()
        assert not ended.value.code, err
        return out + err

    told = run("fit", "t.csv", "--method", "mc-dropout", "--network", network, "--epochs", "4", "--out", "run")
    assert "dropout 0.05" in told
    assert json.loads(Path("run/table.json").read_text())["network"]["init_args"] == {"dropout": 0.05}
    run("predict", "run", "t.csv", "-o", "said.csv")  # the network is built anew, with its dropout
    assert (pandas.read_csv("said.csv")["epistemic_std"] > 0.0).all()
