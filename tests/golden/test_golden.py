"""Old runs load forever: folders as each format wrote them, with what was predicted then.

`python tests/golden/test_golden.py` writes the folders that are missing; those that are there are never written again.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import posterity as po
from posterity.bench.safety.forge import put_manifest
from posterity.bench.safety.runs import KINDS, data, inputs, network
from posterity.posterior import files, migrations
from posterity.posterior.storage import FORMAT_VERSION, load_manifest

GOLDEN = Path(__file__).parent


def write(name: str) -> None:
    folder = GOLDEN / f"format-{FORMAT_VERSION}" / name
    model = po.fit(network(name), data(), "categorical", KINDS[name], epochs=3, batch_size=10, seed=0, progress=False)
    model.temperature = 1.25
    model.save(folder)
    said = model.predict(inputs()[:6]).probs.double().tolist()
    (folder / "predicted.json").write_text(json.dumps([[round(p, 9) for p in row] for row in said]) + "\n", "utf-8")


FOLDERS = sorted(path.parent for path in GOLDEN.glob("format-*/*/predicted.json"))


def test_every_kind_of_posterior_of_this_format_is_there() -> None:
    assert {path.name for path in FOLDERS if path.parent.name == f"format-{FORMAT_VERSION}"} == set(KINDS)


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_it_predicts_what_it_did(folder: Path) -> None:
    model = po.load(folder, network(folder.name)())
    wanted = torch.tensor(json.loads((folder / "predicted.json").read_text("utf-8")), dtype=torch.float64)
    assert model.temperature == 1.25
    assert (model.predict(inputs()[:6]).probs.double() - wanted).abs().max() < 1e-6


def test_every_format_has_its_folders_and_a_step_to_the_next() -> None:
    assert {path.parent.name for path in FOLDERS} == {f"format-{version}" for version in range(1, FORMAT_VERSION + 1)}
    assert set(migrations.STEPS) == set(range(1, FORMAT_VERSION))


@pytest.mark.parametrize("name", ["map", "sghmc"])
def test_an_old_format_goes_through_every_step(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As if there were two formats more: one called the network otherwise, the next kept it under `about`."""
    folder = GOLDEN / "format-1" / name
    wanted = po.load(folder, network(name)()).predict(inputs()[:6]).probs

    def renamed(manifest: dict[str, Any]) -> dict[str, Any]:
        return {**{key: value for key, value in manifest.items() if key != "network"}, "weights": manifest["network"]}

    def restored(manifest: dict[str, Any]) -> dict[str, Any]:
        assert manifest["format_version"] == 2
        return {**manifest, "network": manifest["weights"]}

    for module in (files, migrations):
        monkeypatch.setattr(module, "FORMAT_VERSION", 3)
    monkeypatch.setattr(migrations, "STEPS", {1: renamed, 2: restored})
    shutil.copytree(folder, tmp_path / "run")
    found = po.load(tmp_path / "run", network(name)())
    assert found.predict(inputs()[:6]).probs.equal(wanted)
    assert load_manifest(folder)["format_version"] == 3
    assert {p.name: p.read_bytes() for p in (tmp_path / "run").iterdir()} == {
        p.name: p.read_bytes() for p in folder.iterdir()
    }, "loading an old run rewrites nothing"


@pytest.mark.parametrize("version", [FORMAT_VERSION + 1, 2**63])
def test_a_format_to_come_is_refused_with_the_way_out(version: int, tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / f"format-{FORMAT_VERSION}" / "map", tmp_path / "run")
    put_manifest(tmp_path / "run", lambda manifest: manifest.update(format_version=version))
    with pytest.raises(
        po.StorageError, match=rf"posterity\.json was written by a newer posterity.*{version}.*update posterity"
    ):
        po.load(tmp_path / "run", network("map")())


if __name__ == "__main__":
    for each in KINDS:
        if not (GOLDEN / f"format-{FORMAT_VERSION}" / each).exists():
            write(each)
