"""Saved is safe: round trips, and damage that is found and named. Kills are in test_kills.py."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import time
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import Tensor

from posterity.errors import StorageError
from posterity.posterior import files, storage
from posterity.posterior.files import atomic, atomic_json, read_json, sweep
from posterity.posterior.storage import (
    CHECKPOINT,
    MANIFEST,
    load_checkpoint,
    load_json,
    load_manifest,
    load_tree,
    prepare_folder,
    records,
    save_checkpoint,
    save_run,
)
from posterity.posterior.tensorfile import TensorFile, read_tensors, write_tensors

DEAD = 2**22 + 1  # above the largest process number that Linux gives


def tree_of(value: float) -> dict[str, Tensor]:
    return {"layer.weight": torch.full((5, 3), value), "layer.bias": torch.full((5,), value)}


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def flip(path: Path, index: int) -> None:
    content = bytearray(path.read_bytes())
    content[index] ^= 0x10
    path.write_bytes(content)


# Tensor files


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16])
def test_floats_round_trip_bit_for_bit(tmp_path: Path, dtype: torch.dtype) -> None:
    leaf = torch.tensor([0.0, -0.0, 1 / 3, float("inf"), float("nan"), 5e-8], dtype=dtype)
    write_tensors(tmp_path / "a", {"x": leaf})
    back = read_tensors(tmp_path / "a")[0]["x"]
    assert back.dtype == dtype
    assert back.view(torch.uint8).equal(leaf.view(torch.uint8))


@pytest.mark.parametrize(
    "dtype",
    [
        *(torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2, torch.complex64, torch.complex128, torch.bool),
        *(torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.uint16, torch.uint32, torch.uint64),
    ],
)
def test_every_other_dtype_round_trips(tmp_path: Path, dtype: torch.dtype) -> None:
    leaf = torch.arange(7).to(dtype)
    write_tensors(tmp_path / "a", {"odd": torch.ones(3, dtype=torch.bool), "x": leaf})
    back = read_tensors(tmp_path / "a")[0]["x"]
    assert back.dtype == dtype
    assert back.view(torch.uint8).equal(leaf.view(torch.uint8))


def test_order_shapes_metadata_and_odd_names_round_trip(tmp_path: Path) -> None:
    tree = {
        "z": torch.tensor(3, dtype=torch.int16),
        '空.β/☃ "quoted" \\ \n': torch.arange(3.0),
        "": torch.tensor(2.5, dtype=torch.float64),
        "empty": torch.empty(0, 3),
        "empty too": torch.empty(5, 0, dtype=torch.bool),
        "a": torch.nn.Parameter(torch.ones(7)),
    }
    write_tensors(tmp_path / "a", tree, {"note": "ünï \U0001f600"})
    back, metadata = read_tensors(tmp_path / "a")
    assert metadata == {"note": "ünï \U0001f600"}
    assert list(back) == list(tree)
    for name, leaf in tree.items():
        assert back[name].shape == leaf.shape
        assert back[name].dtype == leaf.dtype
        assert back[name].equal(leaf.detach())
        assert not back[name].requires_grad


def test_an_empty_tree_round_trips(tmp_path: Path) -> None:
    write_tensors(tmp_path / "a", {}, {"k": "v"})
    assert read_tensors(tmp_path / "a") == ({}, {"k": "v"})


def test_strided_and_lazy_tensors_are_stored_as_they_read(tmp_path: Path) -> None:
    base = torch.arange(35.0).reshape(5, 7)
    tree = {
        "transposed": base.t(),
        "step": base[::2, 1::3],
        "expanded": torch.tensor([1.0, 2.0, 3.0]).expand(11, 3),
        "conjugate": torch.complex(base, base).conj(),
        "plain": torch.complex(base, base),
        "negative": torch._neg_view(base),
    }
    write_tensors(tmp_path / "a", tree)
    back, _ = read_tensors(tmp_path / "a")
    for name, leaf in tree.items():
        assert back[name].equal(leaf), name


def test_a_view_writes_only_its_own_bytes(tmp_path: Path) -> None:
    buffer = torch.arange(1_000_003.0)
    write_tensors(tmp_path / "a", {"x": buffer[11:21], "y": buffer[16:26]})
    # 2 x 10 float32 and a header of a few hundred bytes; the buffer is 4 MB.
    assert (tmp_path / "a").stat().st_size < 1024
    back, _ = read_tensors(tmp_path / "a")
    assert back["x"].equal(buffer[11:21])
    assert back["y"].equal(buffer[16:26])
    assert back["x"].untyped_storage().nbytes() == 40


def test_ties_are_stored_once_and_come_back_as_one_tensor(tmp_path: Path) -> None:
    weight = torch.arange(1003.0)
    z = torch.tensor([1 + 2j])
    tree = {
        "embedding": weight,
        "head": weight.view(1003),
        "column": weight[:, None],
        "copy": weight.clone(),
        "z": z,
        "conj": z.conj(),
        "none": torch.empty(0),
        "nothing": torch.empty(0),
    }
    write_tensors(tmp_path / "a", tree)
    back, _ = read_tensors(tmp_path / "a")
    assert back["embedding"] is back["head"]
    distinct = ["embedding", "column", "copy", "z", "conj", "none", "nothing"]
    assert len({id(back[name]) for name in distinct}) == len(distinct)
    assert back["conj"].equal(z.conj())
    assert (tmp_path / "a").stat().st_size < 4 * 4 * 1003


def test_other_programs_read_the_file(tmp_path: Path) -> None:
    tree = {"odd": torch.ones(3, dtype=torch.bool), **tree_of(2.0), "half": torch.ones(7).half()}
    path = tmp_path / "a.safetensors"
    write_tensors(path, tree)
    back = safetensors.torch.load_file(path)
    assert set(back) == set(tree)
    assert all(back[name].equal(leaf) for name, leaf in tree.items())
    # Readers that map the file want every tensor at a multiple of its element size.
    content = path.read_bytes()
    size = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:size])
    assert all((size + header[name]["data_offsets"][0]) % leaf.element_size() == 0 for name, leaf in tree.items())


def test_loaded_tensors_do_not_depend_on_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a"
    write_tensors(path, {"x": torch.arange(100_003.0)})
    back = read_tensors(path)[0]["x"]
    back += 1
    with open(path, "r+b") as file:  # in place, as `cp` over it would
        file.write(bytes(path.stat().st_size))
    assert back.equal(torch.arange(100_003.0) + 1)


def test_files_are_as_readable_as_others(tmp_path: Path) -> None:
    write_tensors(tmp_path / "a", tree_of(1.0))
    (tmp_path / "b").write_text("")
    assert (tmp_path / "a").stat().st_mode == (tmp_path / "b").stat().st_mode


@pytest.mark.parametrize(
    ("tree", "word"),
    [
        ({"sparse": torch.eye(3).to_sparse()}, "sparse"),
        ({"ghost": torch.empty(3, device="meta")}, "ghost"),
        ({"number": 3.0}, "number"),
        ({"__metadata__": torch.ones(3)}, "__metadata__"),
        ({"\ud800": torch.ones(3)}, "Unicode"),
        ({3: torch.ones(3)}, "3"),
    ],
)
def test_what_cannot_be_stored_is_refused_and_nothing_is_touched(tmp_path: Path, tree: dict, word: str) -> None:
    write_tensors(tmp_path / "a", tree_of(1.0))
    with pytest.raises(StorageError, match=word):
        write_tensors(tmp_path / "a", tree)
    assert read_tensors(tmp_path / "a")[0]["layer.bias"].equal(torch.ones(5))
    assert names(tmp_path) == {"a"}


def test_every_flipped_byte_is_found(tmp_path: Path) -> None:
    path = tmp_path / "a"
    write_tensors(path, {"w": torch.arange(11.0), "tied": torch.ones(3)}, {"k": "v"})
    whole = path.read_bytes()
    for index in range(len(whole)):
        flip(path, index)
        with pytest.raises(StorageError, match=str(path)):
            read_tensors(path)
        path.write_bytes(whole)
    read_tensors(path)


def test_every_truncation_is_found(tmp_path: Path) -> None:
    path = tmp_path / "a"
    write_tensors(path, tree_of(1.0))
    whole = path.read_bytes()
    for size in [0, 1, 7, 8, 9, 20, 40, 100, len(whole) // 2, len(whole) - 1]:
        path.write_bytes(whole[:size])
        for check in (True, False):
            with pytest.raises(StorageError, match=f"{path} is truncated or corrupt"):
                read_tensors(path, check=check)
    path.write_bytes(whole + b"\0")
    with pytest.raises(StorageError, match=str(path)):
        read_tensors(path)


def test_foreign_tensor_files_are_named(tmp_path: Path) -> None:
    path = tmp_path / "a"
    safetensors.torch.save_file({"x": torch.ones(3)}, path)
    with pytest.raises(StorageError, match="not written by posterity"):
        read_tensors(path)
    path.write_bytes(pickle.dumps({"x": 1}))
    with pytest.raises(StorageError, match="truncated or corrupt"):
        read_tensors(path)
    with pytest.raises(StorageError, match="is missing"):
        read_tensors(tmp_path / "absent")
    with pytest.raises(StorageError, match="is a folder"):
        read_tensors(tmp_path)


def test_a_newer_tensor_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("posterity.posterior.tensorfile.FORMAT_VERSION", 2)
        write_tensors(tmp_path / "a", tree_of(1.0))
    with pytest.raises(StorageError, match="written by a newer posterity"):
        TensorFile(tmp_path / "a")


# Atomic writes


def test_a_full_disk_leaves_the_last_good_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tensors(tmp_path / "a", tree_of(1.0))

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(StorageError, match="No space left"):
            write_tensors(tmp_path / "a", tree_of(2.0))
    assert read_tensors(tmp_path / "a")[0]["layer.bias"].equal(torch.ones(5))
    assert names(tmp_path) == {"a"}


def test_only_dead_writers_temporaries_are_swept(tmp_path: Path) -> None:
    host = files._HOST
    stale = [f".a.safetensors.{DEAD}.{host}01234567.tmp", f".b.{os.getpid()}.{host}01234567.tmp"]
    aged = [f".d.{DEAD}.elsewhere.tmp", f".e.{os.getppid()}.{host}01234567.tmp"]
    # A live writer's, a recent one of another host, and what is nobody's temporary.
    kept = [
        f".c.{os.getppid()}.{host}89abcdef.tmp",
        f".c.{DEAD}.elsewhere.tmp",
        ".mine.tmp",
        "x.1.2.tmp",
        "a.safetensors",
    ]
    for name in (*stale, *aged, *kept):
        (tmp_path / name).write_text("")
    for name in aged:
        os.utime(tmp_path / name, (time.time() - 90_000,) * 2)  # over a day of 86 400 s
    with atomic(tmp_path / "new") as file:
        (mine,) = names(tmp_path) - {*stale, *aged, *kept}
        sweep(tmp_path)  # as another thread's write would
        assert mine in names(tmp_path)
        file.write(b"whole")
    assert names(tmp_path) == {*kept, "new"}
    assert (tmp_path / "new").read_bytes() == b"whole"


def test_json_is_strict(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    content = {"t": (1, 2), "n": np.float32(0.5), "i": np.int64(2**40), "z": torch.tensor(True), "é": None, "f": 0.1}
    atomic_json(path, content)
    assert read_json(path) == {"t": [1, 2], "n": 0.5, "i": 2**40, "z": True, "é": None, "f": 0.1}
    for bad, where in [({"a": [{"b": float("nan")}]}, r"a\[0\]\.b"), ({1: 2}, "key 1"), ({"a": {3}}, "a is")]:
        with pytest.raises(StorageError, match=where):
            atomic_json(path, bad)
    atomic_json(path, [float("-inf"), np.float64("nan"), 1.5], null=True)
    assert read_json(path) == [None, None, 1.5]
    for text in ["", '{"a": 1', '{"a": NaN}', "\udc80", "[" * 100_000]:
        path.write_bytes(text.encode(errors="surrogateescape"))
        with pytest.raises(StorageError, match=f"{path} is truncated or corrupt"):
            read_json(path)


# Runs


def save_simple(folder: Path, value: float) -> None:
    trees = {"posterior": tree_of(value), "network": {"scale": torch.tensor(value)}}
    save_run(folder, {"method": "map", "seed": int(value)}, trees, {"calibration": {"t": value}})


def assert_simple(folder: Path, value: float) -> None:
    assert load_manifest(folder)["seed"] == int(value)
    assert load_tree(folder, "posterior")["layer.weight"].equal(torch.full((5, 3), value))
    assert load_tree(folder, "network")["scale"].item() == value
    assert load_json(folder, "calibration") == {"t": value}


def test_a_fresh_run_has_the_canonical_names(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "run"
    save_simple(folder, 1.0)
    assert names(folder) == {MANIFEST, "posterior.safetensors", "network.safetensors", "calibration.json"}
    manifest = json.loads((folder / MANIFEST).read_text())
    assert manifest["format_version"] == 1
    assert manifest["library"] == "posterity"
    assert manifest["method"] == "map"
    entry = manifest["files"]["posterior"]
    content = (folder / entry["file"]).read_bytes()
    assert entry["bytes"] == len(content)
    assert entry["sha256"] == hashlib.sha256(content).hexdigest()
    assert_simple(folder, 1.0)


def test_saving_over_a_run_leaves_one_run(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    save_checkpoint(tmp_path, tree_of(0.0), {})
    for value in (1.0, 2.0, 3.0, 4.0):
        save_simple(tmp_path, value)
        assert_simple(tmp_path, value)
        assert names(tmp_path) == {MANIFEST, CHECKPOINT, "notes.txt", *(r.file for r in records(tmp_path).values())}
    save_run(tmp_path, load_manifest(tmp_path), {"network": {}}, keep=["posterior"])
    assert load_tree(tmp_path, "posterior")["layer.bias"].equal(torch.full((5,), 4.0))
    assert set(records(tmp_path)) == {"posterior", "network"}
    assert load_manifest(tmp_path)["seed"] == 4


def test_a_name_that_looks_like_a_second_slot_is_its_own(tmp_path: Path) -> None:
    for value in (1.0, 2.0, 3.0):
        save_run(tmp_path, {}, {"a": tree_of(value), "a-1": tree_of(-value)})
        assert load_tree(tmp_path, "a")["layer.bias"][0] == value
        assert load_tree(tmp_path, "a-1")["layer.bias"][0] == -value


@pytest.mark.parametrize("name", ["posterity", "checkpoint", "../up", "a/b", "", ".hidden"])
def test_names_that_would_leave_or_break_the_folder_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(StorageError, match="reserved"):
        save_run(tmp_path, {}, {name: tree_of(1.0)})
    assert names(tmp_path) == set()


def test_a_manifest_that_json_cannot_hold_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"hyperparameters\.rate is not finite"):
        save_run(tmp_path, {"hyperparameters": {"rate": float("inf")}}, {"posterior": tree_of(1.0)})
    with pytest.raises(StorageError, match="no 'posterior' to keep"):
        save_run(tmp_path, {}, keep=["posterior"])
    assert names(tmp_path) == set()


def test_flipped_bytes_of_a_run_are_found_or_harmless(tmp_path: Path) -> None:
    save_simple(tmp_path, 1.0)
    for path in sorted(tmp_path.iterdir()):
        whole = path.read_bytes()
        for index in range(0, len(whole), 1 if path.name == MANIFEST else 7):
            flip(path, index)
            found = None
            try:
                assert_simple(tmp_path, 1.0)
            except StorageError as error:
                found = str(error)
            harmless = path.name == MANIFEST and whole[index : index + 1].isspace()
            assert harmless if found is None else path.name in found, f"byte {index} of {path.name}: {found}"
            path.write_bytes(whole)
    assert_simple(tmp_path, 1.0)


def test_truncated_and_missing_files_of_a_run_are_named(tmp_path: Path) -> None:
    save_simple(tmp_path, 1.0)
    path = tmp_path / "posterior.safetensors"
    whole = path.read_bytes()
    for size in (0, 8, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(StorageError, match=rf"posterior\.safetensors is truncated: {size} bytes"):
            load_tree(tmp_path, "posterior", check=False)
    path.write_bytes(whole + b"0")
    with pytest.raises(StorageError, match=r"posterior\.safetensors is not the file that was saved"):
        load_tree(tmp_path, "posterior")
    path.unlink()
    with pytest.raises(StorageError, match=r"posterior\.safetensors is missing"):
        load_tree(tmp_path, "posterior")
    with pytest.raises(StorageError, match=r"no 'draws'; it has posterior, network, calibration"):
        load_tree(tmp_path, "draws")
    for size in (0, 1, 100):
        (tmp_path / MANIFEST).write_bytes((tmp_path / MANIFEST).read_bytes()[:size])
        with pytest.raises(StorageError, match=r"posterity\.json is truncated or corrupt"):
            load_manifest(tmp_path)


def test_the_hash_is_skipped_on_request_only(tmp_path: Path) -> None:
    save_simple(tmp_path, 1.0)
    flip(tmp_path / "posterior.safetensors", -1)
    assert not load_tree(tmp_path, "posterior", check=False)["layer.bias"].equal(torch.ones(5))
    with pytest.raises(StorageError, match=r"posterior\.safetensors is corrupt"):
        load_tree(tmp_path, "posterior")


def test_a_file_of_another_run_is_found(tmp_path: Path) -> None:
    save_simple(tmp_path / "a", 1.0)
    save_simple(tmp_path / "b", 2.0)
    os.replace(tmp_path / "b" / "posterior.safetensors", tmp_path / "a" / "posterior.safetensors")
    with pytest.raises(StorageError, match="is corrupt"):
        load_tree(tmp_path / "a", "posterior")


def test_no_run_and_foreign_folders_are_named_and_not_written_over(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="is not there"):
        load_manifest(tmp_path / "absent")
    with pytest.raises(StorageError, match=r"it has no posterity\.json"):
        load_manifest(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="a file, not a run folder"):
        load_manifest(tmp_path / "file")
    with pytest.raises(StorageError, match="cannot be made"):
        prepare_folder(tmp_path / "file")
    for content in ([1], {}, {"library": "other", "format_version": 1}):
        (tmp_path / MANIFEST).write_text(json.dumps(content))
        for use in (lambda: load_manifest(tmp_path), lambda: save_simple(tmp_path, 1.0)):
            with pytest.raises(StorageError, match="not written by posterity"):
                use()
    assert names(tmp_path) == {MANIFEST, "file"}


def test_a_newer_run_is_named_and_not_written_over(tmp_path: Path) -> None:
    (tmp_path / MANIFEST).write_text(json.dumps({"library": "posterity", "format_version": 2, "files": [1]}))
    uses = (lambda: load_manifest(tmp_path), lambda: save_simple(tmp_path, 1.0), lambda: prepare_folder(tmp_path))
    for use in uses:
        with pytest.raises(StorageError, match="written by a newer posterity"):
            use()


def test_a_manifest_cannot_point_outside_its_folder(tmp_path: Path) -> None:
    folder, outside = tmp_path / "run", tmp_path / "precious"
    outside.write_text("mine")
    entry = {"file": "../precious", "sha256": "", "bytes": 4}
    # The way a hostile manifest would be made: with the library itself, so that its own hash is right.
    save_simple(folder, 1.0)
    content = load_manifest(folder) | {"files": {"posterior": entry}}
    content["sha256"] = storage._digest(content)
    (folder / MANIFEST).write_text(json.dumps(content))
    for use in (lambda: load_tree(folder, "posterior"), lambda: save_simple(folder, 2.0)):
        with pytest.raises(StorageError, match="outside the folder"):
            use()
    assert outside.read_text() == "mine"


# Checkpoints


def test_a_checkpoint_is_one_file_with_its_counters(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=f"{CHECKPOINT} is missing"):
        load_checkpoint(tmp_path)
    for step in range(3):
        save_checkpoint(tmp_path, tree_of(step), {"step": step, "rate": np.float64(0.1)})
    tree, meta = load_checkpoint(tmp_path)
    assert meta == {"step": 2, "rate": 0.1}
    assert tree["layer.bias"].equal(torch.full((5,), 2.0))
    assert names(tmp_path) == {CHECKPOINT}
    write_tensors(tmp_path / CHECKPOINT, tree)
    with pytest.raises(StorageError, match="not a checkpoint"):
        load_checkpoint(tmp_path)
