"""Whatever is in a folder, loading it ends in one of the library's errors or in a model: nothing else, and nothing runs.

`posterity bench safety` tries thousands of such folders; here are those that hypothesis finds, and one of every kind.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

import posterity as po
from posterity.bench.safety.cases import PATHS, TEXTS
from posterity.bench.safety.forge import HEADERS, edits, header_of, put, put_header, put_manifest
from posterity.bench.safety.runs import fingerprint, fitted, loaded
from posterity.bench.worker import peak, resident
from posterity.errors import PosterityError, StorageError
from posterity.posterior.files import read_json
from posterity.posterior.storage import MANIFEST, load_checkpoint
from posterity.posterior.tensorfile import TensorFile, read_tensors

GOLDEN = Path(__file__).parents[1] / "golden" / "format-1"
KINDS = ("map", "sghmc", "score-vi-flow", "low-rank-change", "laplace-kronecker")
SLOW = 5.0  # seconds: a load of these takes a hundredth of one
LARGE = 64 * 2**20  # bytes: these runs have a few thousand

TRIES = settings(max_examples=50)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that every example makes anew."""
    return tmp_path_factory.mktemp("hostile") / "run"


@pytest.fixture(scope="module")
def wanted() -> dict[str, str]:
    return {kind: loaded(GOLDEN / kind, kind) for kind in KINDS}


def fresh(place: Path, kind: str) -> Path:
    shutil.rmtree(place, ignore_errors=True)
    return shutil.copytree(GOLDEN / kind, place, ignore=shutil.ignore_patterns("predicted.json"))


def files_of(kind: str) -> list[str]:
    return sorted(path.name for path in (GOLDEN / kind).iterdir() if path.name != "predicted.json")


@contextmanager
def bounded() -> Iterator[None]:
    """Soon, and in little memory."""
    measured = Path("/proc/self/clear_refs")
    if measured.exists():
        measured.write_text("5")  # the peak is what is there now
    before, began = resident() if measured.exists() else 0, time.monotonic()
    yield
    assert time.monotonic() - began < SLOW
    assert not measured.exists() or peak() - before < LARGE


def opened(folder: Path, kind: str) -> str | None:
    """The fingerprint of the run; None where it is refused."""
    with bounded():
        try:
            return loaded(folder, kind)
        except PosterityError:
            return None


# By accident: hashes are wrong


@st.composite
def broken(draw: st.DrawFn) -> tuple[str, str, bytes]:
    """A kind of run, one of its files, and other bytes for it: any, or its own with a part replaced."""
    kind = draw(st.sampled_from(KINDS))
    name = draw(st.sampled_from(files_of(kind)))
    if draw(st.booleans()):
        return kind, name, draw(st.binary(max_size=500))
    whole = (GOLDEN / kind / name).read_bytes()
    start, end = sorted(draw(st.tuples(*[st.integers(0, len(whole))] * 2)))
    return kind, name, whole[:start] + draw(st.binary(max_size=20)) + whole[end:]


@TRIES
@given(broken())
def test_other_bytes_are_refused_or_the_same(place: Path, wanted: dict[str, str], case: tuple[str, str, bytes]) -> None:
    kind, name, content = case
    (fresh(place, kind) / name).write_bytes(content)
    assert opened(place, kind) in (None, wanted[kind])


@TRIES
@given(st.binary(max_size=300), st.booleans())
def test_any_bytes_are_no_tensors_and_no_checkpoint(place: Path, content: bytes, headed: bool) -> None:
    fresh(place, "map")
    path = place / "checkpoint.safetensors"
    path.write_bytes((len(content).to_bytes(8, "little") if headed else b"") + content)
    for read in (lambda: read_tensors(path), lambda: TensorFile(path, check=False), lambda: load_checkpoint(place)):
        with bounded(), pytest.raises(StorageError, match="checkpoint"):
            read()


# On purpose: hashes are right

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@TRIES
@given(st.sampled_from(KINDS), st.integers(0, 10_000), JSON)
@example("map", 0, 1e308)
def test_any_value_in_a_signed_manifest_is_refused_or_loaded(place: Path, kind: str, which: int, value: Any) -> None:
    content = json.loads((GOLDEN / kind / MANIFEST).read_text())
    changes = [change for _, change in edits(content, {"value": value})]
    put_manifest(fresh(place, kind), changes[which % len(changes)])
    opened(place, kind)


@pytest.mark.parametrize("name", HEADERS)
@pytest.mark.parametrize(("kind", "file"), [("map", "posterior.safetensors"), ("sghmc", "draws-00000.safetensors")])
def test_a_header_that_lies_is_refused(place: Path, name: str, kind: str, file: str) -> None:
    forged = HEADERS[name](*header_of(fresh(place, kind) / file))
    put_header(place, file, *forged)
    same = kind == "sghmc" and name == "dtype F16"  # what these draws are
    assert (opened(place, kind) is None) != same


@pytest.mark.parametrize("path", [*PATHS, "/absolute/kept"], ids=lambda path: repr(path)[:20])
def test_a_name_that_leads_out_is_refused_and_nothing_there_is_touched(place: Path, path: Any) -> None:
    outside = place.parent / "outside"
    outside.mkdir(exist_ok=True)
    (outside / "kept").write_text("mine")
    put_manifest(fresh(place, "map"), lambda manifest: manifest["files"]["posterior"].update(file=path))
    assert opened(place, "map") is None
    with suppress(StorageError):
        fitted("map").save(place)
    assert (outside / "kept").read_text() == "mine"


@pytest.mark.parametrize("name", TEXTS)
def test_what_json_must_not_be_is_refused(place: Path, name: str) -> None:
    """Two of them are JSON, and no temperature."""
    put(fresh(place, "map"), "calibration.json", f'{{"temperature": {TEXTS[name]}}}'.encode())
    assert opened(place, "map") is None
    expected = (
        nullcontext() if name in ("nested 900 times", "a lone surrogate") else pytest.raises(StorageError, match="JSON")
    )
    with bounded(), expected:
        read_json(place / "calibration.json")


@pytest.mark.parametrize("name", [MANIFEST, "posterior.safetensors", "calibration.json"])
@pytest.mark.parametrize("kind", ["pipe", "folder", "zeros without end", "2^40 bytes", "nothing", "itself"])
def test_what_is_no_file_is_refused(place: Path, name: str, kind: str) -> None:
    path = fresh(place, "map") / name
    if kind == "2^40 bytes":
        os.truncate(path, 2**40)
    else:
        path.unlink()
        link: Callable[[str], None] = path.symlink_to
        {"pipe": lambda: os.mkfifo(path), "folder": path.mkdir, "zeros without end": lambda: link("/dev/zero"),
         "nothing": lambda: link("nowhere"), "itself": lambda: link(name)}[kind]()  # fmt: skip
    assert opened(place, "map") is None


def test_a_link_to_the_same_bytes_is_read_and_never_written_through(place: Path, wanted: dict[str, str]) -> None:
    """Caches keep the files elsewhere and link them."""
    store = place.parent / "store"
    fresh(place, "map")
    shutil.rmtree(store, ignore_errors=True)
    shutil.copytree(place, store)
    for path in store.iterdir():
        (place / path.name).unlink()
        (place / path.name).symlink_to(path)
    assert opened(place, "map") == wanted["map"]
    before = {path.name: path.read_bytes() for path in store.iterdir()}
    model = fitted("map", seed=1)
    model.save(place)
    assert loaded(place, "map") == fingerprint(model)
    assert {path.name: path.read_bytes() for path in store.iterdir()} == before


class Canary:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("name", files_of("sghmc"))
@pytest.mark.parametrize("format", ["pickle", "torch"])
def test_no_code_runs_in_any_file(place: Path, name: str, format: str) -> None:
    canary = place.parent / "canary"
    fresh(place, "sghmc")
    held = io.BytesIO()
    (pickle.dump if format == "pickle" else torch.save)(Canary(canary), held)
    put(place, name, held.getvalue()) if name != MANIFEST else (place / name).write_bytes(held.getvalue())
    assert opened(place, "sghmc") is None
    assert not canary.exists()
    pickle.loads(pickle.dumps(Canary(canary)))  # it would have been made
    canary.unlink()


@pytest.mark.parametrize("shape", [{"hidden": [2**20, 2**20]}, {"transforms": 2**40}, {"dim": 2**30}, {"bins": 2**40}])
def test_a_flow_is_not_built_larger_than_its_parameters(place: Path, shape: dict[str, Any]) -> None:
    put_manifest(fresh(place, "score-vi-flow"), lambda m: m["posterior"]["meta"]["shape"].update(shape))
    assert opened(place, "score-vi-flow") is None


@pytest.mark.parametrize("draws", ["5", "1000000000000", "-1", "0"])
def test_a_shard_holds_the_draws_that_it_names(place: Path, draws: str) -> None:
    header, data = header_of(fresh(place, "sghmc") / "draws-00000.safetensors")
    header["__metadata__"]["draws"] = draws
    put_header(place, "draws-00000.safetensors", json.dumps(header, separators=(",", ":")).encode(), data)
    assert opened(place, "sghmc") is None


# Where a table was fitted


@pytest.mark.parametrize(
    "named",
    [
        {"class_path": "os.system", "init_args": {"command": "touch canary"}},
        {"class_path": "subprocess.Popen", "init_args": {"args": ["touch", "canary"]}},
        {"class_path": "torch.nn.Sequential", "init_args": {"arg": {"class_path": "pathlib.Path", "init_args": {}}}},
        "builtins.exit",
    ],
)
def test_the_network_of_a_table_is_made_of_torch_modules_only(
    named: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from posterity.interfaces.settings import build_network

    monkeypatch.chdir(tmp_path)
    with pytest.raises(po.CompatibilityError, match="is not a class of torch.nn.Module"):
        build_network(named, 3, 2)
    assert not list(tmp_path.iterdir())
