"""Saved is safe: a process killed at any moment leaves the whole old run, or the whole new one.

The test runs this file as a child, which imports torch once, forks the writers, and kills them.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from posterity.errors import StorageError
from posterity.posterior.shards import ShardWriter, load_draws
from posterity.posterior.storage import (
    MANIFEST,
    load_checkpoint,
    load_json,
    load_manifest,
    load_tree,
    records,
    save_checkpoint,
    save_run,
)

KILLED = 9


@pytest.mark.skipif(not hasattr(os, "fork"), reason="kills forked children")
def test_a_kill_at_any_moment_leaves_a_whole_run(tmp_path: Path) -> None:
    command = [sys.executable, __file__, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["saved-over", "first-save", "resumed", "checkpoints", "runs"]


def draws_of(value: int) -> int:
    return 3 - value % 2  # so that one run has a shard more than the next


def save(folder: Path, value: int, size: int = 3) -> None:
    writer = ShardWriter(folder, per_shard_bytes=2 * size * 2)  # two float16 draws
    for _ in range(draws_of(value)):
        writer.append({"w": torch.full((size,), float(value))})
    trees = {"posterior": {"w": torch.full((size,), float(value))}, "network": {"b": torch.full((size,), float(value))}}
    save_run(folder, {"value": value}, trees, {"calibration": value}, writer.close())


def check(folder: Path) -> int:
    """The value of the run in `folder`, after every file of it was found to hold that value."""
    value: int = load_manifest(folder)["value"]
    assert bool((load_tree(folder, "posterior")["w"] == value).all())
    assert bool((load_tree(folder, "network")["b"] == value).all())
    assert load_json(folder, "calibration") == value
    assert [draw["w"].unique().tolist() for draw in load_draws(folder)] == [[value]] * draws_of(value)
    return value


def dies(event: int, folder: Path, work: Callable[[], None]) -> bool:
    """Run `work` in a child that dies just before operation number `event` on a file of `folder`; whether it died."""
    pid = os.fork()
    if pid == 0:
        count = 0

        def hook(name: str, arguments: tuple[Any, ...]) -> None:
            nonlocal count
            if name in ("open", "os.rename", "os.remove", "os.mkdir") and str(folder) in str(arguments[0]):
                count += 1
                if count > event:
                    os._exit(KILLED)

        sys.addaudithook(hook)
        work()
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert code in (0, KILLED), code
    return code == KILLED


def saved_over(root: Path) -> None:
    """Killed before each file operation of a save over a run, whose files use the second names."""
    save(root / "old", 1)
    save(root / "old", 2)
    event, seen, died = 0, [], True
    while died:
        folder = root / f"over{event}"
        shutil.copytree(root / "old", folder)
        died = dies(event, folder, lambda folder=folder: save(folder, 3))  # type: ignore[misc]
        seen.append(check(folder))
        save(folder, 4)
        assert check(folder) == 4
        assert {path.name for path in folder.iterdir()} == {MANIFEST, *(r.file for r in records(folder).values())}
        event += 1
    assert seen == sorted(seen), seen
    assert set(seen) == {2, 3}, seen


def first_save(root: Path) -> None:
    """Killed before each file operation of a first save: no run, or the whole run."""
    event, whole, died = 0, 0, True
    while died:
        folder = root / f"first{event}"
        died = dies(event, folder, lambda folder=folder: save(folder, 1))  # type: ignore[misc]
        if died and not (folder / MANIFEST).exists():
            with pytest.raises(StorageError, match=r"not there|has no posterity\.json"):
                load_manifest(folder)
        else:
            whole += check(folder)
        event += 1
    assert whole >= 1


def resumed(root: Path) -> None:
    """Draws that a checkpoint counts survive every kill of the writer that goes on after them."""

    def draw(index: int) -> dict[str, torch.Tensor]:
        return {"w": torch.tensor([float(index), 70_000.0 if index == 3 else 0.0])}

    def go_on(folder: Path, start: int) -> None:
        writer = ShardWriter(folder, per_shard_bytes=12, resume_from=start)  # 4 bytes a draw, 8 where it overflows
        for index in range(start, 7):
            writer.append(draw(index))
            if index % 3 == 1:
                writer.flush()
                save_checkpoint(folder, {}, {"draws": len(writer)})
        save_run(folder, {}, shards=writer.close())

    go_on(root / "whole", 0)
    expected = {path.name: path.read_bytes() for path in (root / "whole").iterdir()}
    event, died = 0, True
    while died:
        folder = root / f"resumed{event}"
        died = dies(event, folder, lambda folder=folder: go_on(folder, 0))  # type: ignore[misc]
        if not (folder / MANIFEST).exists():
            has = (folder / "checkpoint.safetensors").exists()
            go_on(folder, load_checkpoint(folder)[1]["draws"] if has else 0)
        assert {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix != ".tmp"} == expected
        event += 1


def random_moments(folder: Path, work: Callable[[int], None], check: Callable[[], int], rounds: int = 10) -> None:
    """SIGKILL a child that saves in a loop, at random moments; what was saved only ever goes on."""
    chance = random.Random(0)
    started = time.monotonic()
    work(0)
    pace = time.monotonic() - started
    reached = 0
    for _ in range(rounds):
        pid = os.fork()
        if pid == 0:
            step = reached
            while True:
                step += 1
                work(step)
        time.sleep(pace * chance.uniform(1.0, 5.0))  # the next few saves, however busy the machine is
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        step = check()
        assert step >= reached, (step, reached)
        reached = step
    assert reached > 0
    work(reached + 1)
    assert not [path for path in folder.iterdir() if path.suffix == ".tmp"]


def checkpoints(root: Path) -> None:
    folder, size = root / "checkpoints", 300_007

    def work(step: int) -> None:
        tensors = {"a": torch.full((size,), float(step)), "b": torch.full((3,), float(step))}
        save_checkpoint(folder, tensors, {"step": step})

    def consistent() -> int:
        tree, meta = load_checkpoint(folder)
        assert all(bool((leaf == meta["step"]).all()) for leaf in tree.values()), meta
        step: int = meta["step"]
        return step

    random_moments(folder, work, consistent)


def runs(root: Path) -> None:
    random_moments(root / "runs", lambda step: save(root / "runs", step, 50_021), lambda: check(root / "runs"))


if __name__ == "__main__":
    torch.set_num_threads(1)  # a forked child must find no pool of threads that it does not have
    for scenario in (saved_over, first_save, resumed, checkpoints, runs):
        started = time.monotonic()
        scenario(Path(sys.argv[1]))
        sys.stdout.write(scenario.__name__.replace("_", "-") + "\n")
        sys.stderr.write(f"{scenario.__name__}: {time.monotonic() - started:.1f} s\n")
