"""`posterity export`: a file that says what `posterity predict` says, of what the network sees; else one sentence."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from posterity.interfaces.tables.run import TableModel

pandas = pytest.importorskip("pandas")

ROWS = 101


@pytest.fixture
def run(shell):
    """A run of classes: a number, a category, a column with gaps."""
    random = np.random.default_rng(0)
    a, gaps = random.normal(size=(2, ROWS))
    frame = pandas.DataFrame({
        "a": 70 + 10 * a, "kind": random.choice(["x", "z", "w"], ROWS),
        "gaps": np.where(random.random(ROWS) < 0.2, np.nan, gaps), "y": np.where(a > 0, "yes", "no"),
    })  # fmt: skip
    frame.to_csv("all.csv", index=False)
    code, _, err = shell("fit", "all.csv", "--method", "ivon", "--epochs", 3, "--out", "run")
    assert code == 0, err
    return frame


@pytest.mark.slow  # torch's exporter takes half a minute to load
def test_the_file_says_what_predict_says_of_the_encoded_features(shell, run):
    onnx = pytest.importorskip("onnx", reason="the onnx extra is not installed")
    onnxruntime = pytest.importorskip("onnxruntime", reason="the onnx extra is not installed")
    run.iloc[[3]].to_csv("one.csv", index=False)
    for options, file in ((("--via", "propagation"), "m.onnx"), (("--via", "draws", "--draws", 3, "--example", "one.csv"),
                          "new/d.onnx")):  # fmt: skip
        before = set(Path().rglob("*"))
        code, out, err = shell("export", "run", "-o", file, *options, "--json")
        assert code == 0, err
        told = json.loads(out)
        assert set(told) == {"path", "via", "outputs", "difference", "columns", "takes"}
        assert (told["path"], told["via"], told["outputs"]) == (file, options[1], ["probs", "entropy", "epistemic"])
        assert 0 <= told["difference"] <= 1e-5
        assert {path for path in set(Path().rglob("*")) - before if path.is_file()} == {Path(file)}

        fitted = TableModel.load("run")
        assert told["columns"] == list(fitted.columns.names)
        kwargs = {"via": options[1], "draws": 3 if options[1] == "draws" else None}
        wanted = fitted.predict(run, **kwargs)
        session = onnxruntime.InferenceSession(file)
        probs, entropy, epistemic = session.run(None, {"x": fitted.columns.encode(run).numpy()})
        for found, name in ((probs[:, 1], "p_yes"), (entropy, "entropy"), (epistemic, "epistemic")):
            np.testing.assert_allclose(found, wanted[name], rtol=0, atol=2e-5)
        (meta,) = [one.value for one in onnx.load(file).metadata_props if one.key == "posterity"]
        about = json.loads(meta)
        assert about["columns"] == told["columns"]
        assert (about["target"], about["labels"]) == ("y", ["no", "yes"])

    code, out, err = shell("export", "run", "-o", "m.onnx", "--via", "mean")
    assert code == 0, err
    assert f"[rows, {len(about['columns'])}]" in out
    assert "encoded" in out
    assert "probs, entropy, epistemic" in out


def test_what_cannot_be_exported_is_one_sentence_and_leaves_nothing(shell, run):
    Path("folder").mkdir()
    pandas.DataFrame({"a": [1.0, 2.0]}).to_csv("less.csv", index=False)
    before = set(Path().rglob("*"))
    for arguments, words in (
        (("run", "-o", "m.onnx", "--via", "magic"), "via must be 'propagation', 'mean' or 'draws', got 'magic'"),
        (("run", "-o", "m.onnx", "--draws", 0), "--draws must be at least 1, got 0"),
        (("run", "-o", "folder"), "folder is a folder"),
        (("run", "-o", "m.onnx", "--example", "less.csv"), "'kind'"),
        (("run", "-o", "m.onnx", "--example", "absent.csv"), "absent.csv"),
        (("folder", "-o", "m.onnx"), "folder holds no run"),
    ):
        code, out, err = shell("export", *arguments)
        assert (code, out) == (2, ""), arguments
        assert words in err
        assert err.count("posterity: ") == 1
        assert "Traceback" not in err
    assert set(Path().rglob("*")) == before
