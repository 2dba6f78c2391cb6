"""Tables from the shell on real data: no hand on them, and intervals that hold what they say."""

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pandas = pytest.importorskip("pandas")

DATA = os.environ.get("POSTERITY_DATA")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(DATA is None, reason="POSTERITY_DATA names no folder of real data"),
]

SETS = (
    "airfoil", "bikesharing_hour", "concrete", "energy", "ionosphere", "naval-propulsion-plant",
    "protein-tertiary-structure", "wine-quality-red", "yacht",
)  # fmt: skip


def posterity(*arguments, cwd):
    done = subprocess.run(
        [sys.executable, "-m", "posterity", *map(str, arguments)], capture_output=True, text=True, cwd=cwd, timeout=1800
    )
    assert done.returncode == 0, done.stderr
    return done


def write(name, folder):
    """Two files, a fifth of the rows in the second."""
    with np.load(Path(DATA) / "open" / "tabular" / f"uci_{name}.npz") as content:
        frame = pandas.DataFrame(content["X"], columns=[str(feature) for feature in content["features"]])
        frame["target"] = content["y"]
    test = np.random.default_rng(0).permutation(len(frame)) < len(frame) // 5
    frame[~test].to_csv(folder / "train.csv", index=False)
    frame[test].to_csv(folder / "test.csv", index=False)
    return int(test.sum())


@pytest.mark.parametrize("method", ["deep-ensemble", "ivon"])
@pytest.mark.parametrize("name", SETS)
def test_every_set_without_a_hand(name, method, tmp_path):
    rows = write(name, tmp_path)
    posterity("fit", "train.csv", "--test", 0, "--method", method, cwd=tmp_path)
    posterity("predict", "run", "test.csv", "-o", "predictions.csv", cwd=tmp_path)
    assert len(pandas.read_csv(tmp_path / "predictions.csv")) == rows
    told = posterity("evaluate", "run", "test.csv", "--json", cwd=tmp_path)
    metrics = json.loads(told.stdout)["rows"][0]["metrics"]
    assert (tmp_path / "run" / "report.html").exists()
    assert all(metric["value"] is not None for metric in metrics.values())
    if "interval_coverage" in metrics and rows >= 1000:
        assert 0.85 <= metrics["interval_coverage"]["value"] <= 0.97


def test_icu_stays_with_words_gaps_and_copies(tmp_path):
    source = Path(DATA) / "open" / "icu" / "eicu_demo_apache.csv.gz"
    drop = "admitdiagnosis,apache_iva_pred,patientunitstayid,hospitalid"
    posterity("fit", source, "--group", "uniquepid", "--drop", drop, "--method", "ivon", cwd=tmp_path)
    metrics = json.loads((tmp_path / "run" / "evaluation.json").read_text())["rows"][0]["metrics"]
    assert metrics["nll"]["value"] < 0.30  # 0.303 is the entropy of the 9.0 % who die


def test_a_million_rows_under_4_gb(tmp_path):
    random = np.random.default_rng(0)
    rows = 1_000_000
    frame = pandas.DataFrame(random.normal(size=(rows, 8)), columns=[f"x{i}" for i in range(8)])
    frame["letter"] = random.choice(list("abcd"), rows)
    frame["minute"] = pandas.date_range("2000-01-01", periods=rows, freq="min").strftime("%Y-%m-%d %H:%M")
    frame["gaps"] = np.where(random.random(rows) < 0.1, np.nan, random.normal(size=rows))
    frame["y"] = 3 * frame["x0"] + np.sin(2 * frame["x1"]) + (frame["letter"] == "a") + random.normal(size=rows)
    frame.to_csv(tmp_path / "train.csv", index=False)
    posterity("fit", "train.csv", "--method", "mean-field", "--epochs", 2, cwd=tmp_path)
    metrics = json.loads((tmp_path / "run" / "evaluation.json").read_text())["rows"][0]["metrics"]
    assert metrics["rmse"]["value"] == pytest.approx(1.0, abs=0.05)  # the noise
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss < 4 * 2**20  # KiB: the largest child so far
