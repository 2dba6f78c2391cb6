"""What could not be written, or is not what was written: the run before it is whole, and the error says what to do."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest
import torch

from posterity.bench.safety.runs import fingerprint, fitted, loaded
from posterity.errors import StorageError
from posterity.posterior import files
from posterity.posterior.files import atomic_json, read_json
from posterity.posterior.shards import ShardWriter
from posterity.posterior.storage import load_checkpoint, records, save_checkpoint


def test_draws_of_another_run_are_not_gone_on_after(tmp_path: Path) -> None:
    """Both files are whole and sealed; only the checkpoint can tell whose draws it counts."""
    digests = {}
    for name, value in (("mine", 1.0), ("other", 2.0)):
        writer = ShardWriter(tmp_path / name, per_shard_bytes=12)  # two full shards and an open one
        for index in range(5):
            writer.append({"w": torch.full((3,), value + index), "n": torch.tensor(index)})
        writer.flush()
        digests[name] = writer.digest
        assert (
            ShardWriter(tmp_path / name, per_shard_bytes=12, resume_from=5, digest=writer.digest).digest
            == writer.digest
        )
    for shard in sorted((tmp_path / "mine").iterdir()):
        shutil.copytree(tmp_path / "mine", tmp_path / "mixed", dirs_exist_ok=True)
        shutil.copy(tmp_path / "other" / shard.name, tmp_path / "mixed" / shard.name)
        with pytest.raises(StorageError, match=r"other draws in draws-\*\.safetensors than the 5"):
            ShardWriter(tmp_path / "mixed", per_shard_bytes=12, resume_from=5, digest=digests["mine"])


def test_a_save_that_fails_leaves_the_run_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk is full at each of the files in turn."""
    old, new = fitted("deep-ensemble"), fitted("deep-ensemble", seed=1)
    old.save(tmp_path)
    (tmp_path / "posterior-1.safetensors").write_text("somebody's own")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    left, sync = 0, os.fsync

    def full(descriptor: int) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    for failed in range(len(records(tmp_path)) + 1):
        left = 2 * failed  # of each file and of its folder
        with pytest.raises(StorageError, match="No space left on device; free some space and save again"):
            new.save(tmp_path)
        assert loaded(tmp_path, "deep-ensemble") == fingerprint(old)
        assert {path.name for path in tmp_path.iterdir()} <= before.keys()
        if failed == 0:  # later, a file is written in that place
            assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    left = 1000
    new.save(tmp_path)
    assert loaded(tmp_path, "deep-ensemble") == fingerprint(new)


def test_a_full_disk_says_what_to_do_of_a_checkpoint_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_checkpoint(tmp_path, {"a": torch.ones(3)}, {"step": 1})

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(
        StorageError, match=r"checkpoint\.safetensors could not be written, and is as it was.*free some space"
    ):
        save_checkpoint(tmp_path, {"a": torch.zeros(3)}, {"step": 2})
    assert load_checkpoint(tmp_path)[1] == {"step": 1}
    assert os.listdir(tmp_path) == ["checkpoint.safetensors"]


def test_json_that_could_not_be_read_again_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "JSON_LIMIT", 100)
    with pytest.raises(StorageError, match="over 100"):
        atomic_json(tmp_path / "long.json", list(range(100)))
    (tmp_path / "long.json").write_text("[" + "1," * 100 + "1]")
    with pytest.raises(StorageError, match=r"long\.json .* over 100"):
        read_json(tmp_path / "long.json")
