"""Draws on the disk: what fp16 keeps, what comes back, what is missing, what a resumed stream goes on with."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from posterity.errors import ShapeError, StorageError
from posterity.posterior.shards import ShardReader, ShardWriter, compact, load_draws
from posterity.posterior.storage import records, save_run
from posterity.posterior.tensorfile import TensorFile
from posterity.random import Random

DRAWS = 11


def draw(index: int) -> dict[str, Tensor]:
    random = Random(0).fold("draw").fold(index)
    return {
        "weight": random.fold("weight").normal((5, 3)),
        "bias": random.fold("bias").normal((5,)).double(),
        "likelihood.log_std": random.fold("log_std").normal(()),
        "buffer.steps": torch.tensor(2**24 + 1 + index),  # a float32 cannot hold it
        "buffer.none": torch.empty(0, 7),
    }


BYTES = (15 + 5 + 1) * 2 + 8  # of one stored draw


def written(folder: Path, draws: int = DRAWS, per_shard: int = 4) -> ShardReader:
    writer = ShardWriter(folder, per_shard_bytes=per_shard * BYTES)
    for index in range(draws):
        writer.append(draw(index))
    assert len(writer) == draws
    return ShardReader(folder, writer.close())


def assert_same(got: dict[str, Tensor], index: int) -> None:
    expected = draw(index)
    assert list(got) == list(expected)
    for name, leaf in expected.items():
        assert got[name].shape == leaf.shape
        assert got[name].dtype == (torch.float32 if leaf.is_floating_point() else leaf.dtype)
        if leaf.is_floating_point():
            # float16 has 11 binary digits: half a unit in the last is 2^-11 of a value.
            tolerance = 2**-11 * leaf.abs().max() if leaf.numel() else 0.0
            assert bool(((got[name] - leaf).abs() <= tolerance).all())
        else:
            assert got[name].equal(leaf)


def test_draws_come_back_in_order_and_by_index(tmp_path: Path) -> None:
    reader = written(tmp_path)
    assert len(reader) == DRAWS
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"draws-0000{k}.safetensors" for k in range(3)]
    for index, got in enumerate(reader):
        assert_same(got, index)
    assert index == DRAWS - 1
    for index in (10, 0, 7, 3, 4):
        assert_same(reader[index], index)
    assert_same(reader[-1], 10)
    for outside in (11, -12):
        with pytest.raises(IndexError, match="of 11"):
            reader[outside]


def test_a_draw_is_a_copy(tmp_path: Path) -> None:
    reader = written(tmp_path)
    assert reader[0]["weight"].untyped_storage().nbytes() == 15 * 4
    reader[0]["weight"].zero_()
    reader[0]["buffer.steps"].zero_()
    assert_same(reader[0], 0)


def test_the_writer_keeps_no_view_of_what_it_was_given(tmp_path: Path) -> None:
    writer = ShardWriter(tmp_path)
    members = {"w": torch.full((3, 7), 70_000.0), "n": torch.arange(3), "h": torch.ones(3, 5).half()}
    writer.extend(members)
    for leaf in members.values():
        leaf.zero_()
    reader = ShardReader(tmp_path, writer.close())
    for index, got in enumerate(reader):
        assert got["w"].equal(torch.full((7,), 70_000.0))
        assert got["n"].item() == index
        assert got["h"].equal(torch.ones(5))


def test_members_are_draws(tmp_path: Path) -> None:
    writer = ShardWriter(tmp_path, per_shard_bytes=5)
    writer.extend({"w": torch.arange(33.0).reshape(11, 3)})
    reader = ShardReader(tmp_path, writer.close())
    assert torch.stack([each["w"] for each in reader]).equal(torch.arange(33.0).reshape(11, 3))
    for bad in ({}, {"w": torch.tensor(1.0)}, {"w": torch.ones(3), "v": torch.ones(5)}):
        with pytest.raises(ShapeError, match="one leading axis"):
            writer.extend(bad)


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ([65504.0, -1.0], torch.float16),
        ([65504.1, 1.0], torch.float32),
        ([-7e4, 1.0], torch.float32),
        ([float("inf"), 1.0], torch.float32),
        ([float("nan"), 1.0], torch.float32),
        ([0.0, 0.0], torch.float16),
        ([2.0**-14, 1e-9], torch.float16),  # the smallest normal number: the largest value keeps its 11 digits
        ([1.1e-6, 3e-7], torch.float32),  # subnormal: float16 would keep 1.07e-6 and 2.98e-7
        ([1e-12, 0.0], torch.float32),  # float16 would make it 0
        ([1.0, 1e-9], torch.float16),
    ],
)
def test_float16_where_it_keeps_the_values(values: list[float], dtype: torch.dtype) -> None:
    leaf = torch.tensor(values)
    kept = compact(leaf)
    assert kept.dtype == dtype
    if dtype == torch.float32:
        assert kept.view(torch.uint8).equal(leaf.view(torch.uint8))
    else:
        assert bool(((kept.float() - leaf).abs() <= 2**-11 * leaf.abs().max()).all())


def test_one_overflow_moves_its_own_tensor_only(tmp_path: Path) -> None:
    writer = ShardWriter(tmp_path)
    values = torch.tensor([1 / 3, 1e5, 2 / 3])
    writer.extend({"large": values, "small": values.clamp(max=1.0)})
    files = writer.close()
    file = TensorFile(tmp_path / files["draws-00000"].file)
    assert file._handle.get_tensor("large").dtype == torch.float32
    assert file._handle.get_tensor("small").dtype == torch.float16
    assert ShardReader(tmp_path, files)[1]["large"].item() == 1e5


def test_a_draw_that_does_not_fit_is_named(tmp_path: Path) -> None:
    writer = ShardWriter(tmp_path, per_shard_bytes=1)
    writer.append({"w": torch.ones(3), "n": torch.tensor(1)})
    for bad, word in [
        ({"w": torch.ones(5), "n": torch.tensor(1)}, r"w was floating \(3,\) and is floating \(5,\)"),
        ({"w": torch.ones(3)}, "n was int64|n was torch.int64"),
        ({"w": torch.ones(3), "n": torch.tensor(1), "m": torch.tensor(1)}, "m was not there"),
        ({"w": torch.ones(3), "n": torch.tensor(True)}, "n was torch.int64"),
    ]:
        with pytest.raises(ShapeError, match=word):
            writer.append(bad)
    writer.append({"n": torch.tensor(2), "w": torch.ones(3).double()})
    reader = ShardReader(tmp_path, writer.close())
    assert [list(each) for each in reader] == [["w", "n"], ["w", "n"]]


def test_what_comes_after_a_flush_is_written_too(tmp_path: Path) -> None:
    writer = ShardWriter(tmp_path)
    for index in range(3):
        writer.append({"n": torch.tensor(index)})
        writer.flush()
        writer.flush()
    writer.append({"n": torch.tensor(3)})
    assert writer.close() == writer.close()
    assert [each["n"].item() for each in ShardReader(tmp_path, writer.close())] == [0, 1, 2, 3]


def test_no_draws_and_draws_without_tensors(tmp_path: Path) -> None:
    writer = ShardWriter(tmp_path)
    assert writer.close() == {}
    assert list(ShardReader(tmp_path, {})) == []
    writer.append({})
    writer.append({})
    assert list(ShardReader(tmp_path, writer.close())) == [{}, {}]


def test_complex_draws_keep_their_kind(tmp_path: Path) -> None:
    writer = ShardWriter(tmp_path)
    values = torch.complex(torch.arange(3.0), torch.ones(3)).to(torch.complex128)
    writer.extend({"z": values, "flag": torch.tensor([True, False, True])})
    reader = ShardReader(tmp_path, writer.close())
    assert torch.stack([each["z"] for each in reader]).equal(values)


# Damage


def test_a_missing_truncated_or_corrupt_shard_is_named(tmp_path: Path) -> None:
    reader = written(tmp_path)
    files = dict(zip([f"draws-0000{k}" for k in range(3)], reader._files))
    path = tmp_path / "draws-00001.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    with pytest.raises(StorageError, match=r"draws-00001\.safetensors is truncated"):
        ShardReader(tmp_path, files)
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    reader = ShardReader(tmp_path, files)
    assert_same(reader[0], 0)
    for _ in range(2):
        with pytest.raises(StorageError, match=r"draws-00001\.safetensors is corrupt"):
            reader[5]
    assert_same(reader[9], 9)
    ShardReader(tmp_path, files, check=False)[5]
    path.unlink()
    with pytest.raises(StorageError, match=r"draws-00001\.safetensors is missing"):
        ShardReader(tmp_path, files)
    del files["draws-00001"]
    with pytest.raises(StorageError, match="begins at draw 8, where draw 4 was to come"):
        ShardReader(tmp_path, files)


def test_a_shard_that_vanishes_later_is_named(tmp_path: Path) -> None:
    reader = written(tmp_path)
    (tmp_path / "draws-00002.safetensors").unlink()
    with pytest.raises(StorageError, match="draws-00002"):
        list(reader)


# Runs


def test_a_new_stream_spares_the_shards_of_the_run(tmp_path: Path) -> None:
    def fill(value: float, draws: int) -> ShardWriter:
        writer = ShardWriter(tmp_path, per_shard_bytes=3 * 2 * 2)
        writer.extend({"w": torch.full((draws, 3), value)})
        return writer

    for value in (1.0, 2.0, 3.0):
        abandoned = fill(-1.0, 7)
        abandoned.flush()
        if value > 1:
            assert [each["w"][0].item() for each in load_draws(tmp_path)] == [value - 1] * 5
        save_run(tmp_path, {}, shards=fill(value, 5).close())
        assert [each["w"][0].item() for each in load_draws(tmp_path)] == [value] * 5
        assert sorted(records(tmp_path)) == ["draws-00000", "draws-00001", "draws-00002"]
        assert {path.name for path in tmp_path.glob("*.safetensors")} == {r.file for r in records(tmp_path).values()}
    save_run(tmp_path, {}, {"network": {}}, keep=["draws"])
    assert len(load_draws(tmp_path)) == 5
    save_run(tmp_path, {})
    with pytest.raises(StorageError, match="no 'draws'"):
        load_draws(tmp_path)
    assert list(tmp_path.glob("*.safetensors")) == []
    gone = fill(4.0, 5).close()
    (tmp_path / gone["draws-00001"].file).unlink()
    with pytest.raises(StorageError, match=gone["draws-00001"].file):
        save_run(tmp_path, {}, shards=gone)


# Resuming


@pytest.mark.parametrize("count", range(DRAWS + 1))
@pytest.mark.parametrize("flushed", [True, False])
def test_a_resumed_stream_ends_in_the_same_bytes(tmp_path: Path, count: int, flushed: bool) -> None:
    def with_overflow(index: int) -> dict[str, Tensor]:
        return {**draw(index), "large": torch.tensor(1e5 if index in (2, 7) else 1 / 3)}

    limit = 4 * (BYTES + 2)
    whole = ShardWriter(tmp_path / "whole", per_shard_bytes=limit)
    cut = ShardWriter(tmp_path / "cut", per_shard_bytes=limit)
    for index in range(DRAWS):
        whole.append(with_overflow(index))
        cut.append(with_overflow(index))
        if flushed and index == count - 1:
            cut.flush()
    cut.flush()
    for number in (count, count):  # killed twice
        again = ShardWriter(tmp_path / "cut", per_shard_bytes=limit, resume_from=number)
        assert len(again) == count
    for index in range(count, DRAWS):
        again.append(with_overflow(index))
    assert again.close() == whole.close()
    for path in (tmp_path / "whole").iterdir():
        assert path.read_bytes() == (tmp_path / "cut" / path.name).read_bytes()
    assert len(list((tmp_path / "cut").iterdir())) == len(list((tmp_path / "whole").iterdir()))


def test_another_shard_size_loses_nothing(tmp_path: Path) -> None:
    for before, after in [(4, 3), (3, 4), (100, 1)]:
        written(tmp_path, DRAWS, before)
        writer = ShardWriter(tmp_path, per_shard_bytes=after * BYTES, resume_from=7)
        for index in range(7, 13):
            writer.append(draw(index))
        reader = ShardReader(tmp_path, writer.close())
        assert len(reader) == 13
        for index, got in enumerate(reader):
            assert_same(got, index)


def test_what_cannot_be_resumed_is_named_and_kept(tmp_path: Path) -> None:
    written(tmp_path)
    with pytest.raises(
        StorageError, match=r"holds 11 draws of the 12 to go on after: draws-00002\.safetensors ends there"
    ):
        ShardWriter(tmp_path, resume_from=12)
    path = tmp_path / "draws-00001.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(StorageError, match=r"draws-00001\.safetensors is corrupt"):
        ShardWriter(tmp_path, resume_from=7)
    path.write_bytes((tmp_path / "draws-00002.safetensors").read_bytes())
    with pytest.raises(StorageError, match=r"draws-00001\.safetensors begins at draw 8, where draw 4 was to come"):
        ShardWriter(tmp_path, resume_from=7)
    path.unlink()
    with pytest.raises(
        StorageError, match=r"holds 4 draws of the 7 to go on after: draws-00001\.safetensors is missing"
    ):
        ShardWriter(tmp_path, resume_from=7)
    assert (tmp_path / "draws-00002.safetensors").exists()
    writer = ShardWriter(tmp_path, resume_from=4)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["draws-00000.safetensors"]
    with pytest.raises(ShapeError, match="weight was"):
        writer.append({})
