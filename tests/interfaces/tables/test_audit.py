"""Each fault of a table is found by its check, with its numbers and an option; a clean table is called clean."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from posterity.evaluation.finding import Finding
from posterity.interfaces.tables.audit import audit
from posterity.interfaces.tables.columns import Columns
from posterity.interfaces.tables.leaks import class_leak, number_leak, pair_leaks, spearman
from posterity.interfaces.tables.split import Split, split
from posterity.interfaces.tables.target import Target

ROWS = 701
NUMBER = Target("y", "regression")


def clean(seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    a, b = rng.normal(size=(2, ROWS))
    kind = rng.choice(["p", "q", "r"], ROWS)
    return pd.DataFrame({"a": a, "b": b, "kind": kind, "y": a - b + rng.normal(size=ROWS)})


def found(frame: pd.DataFrame, target: Target = NUMBER, **options: Any) -> dict[str, Finding]:
    findings = audit(frame, target, **options)
    assert len({finding.check for finding in findings}) == len(findings)
    return {finding.check: finding for finding in findings}


def test_a_clean_table() -> None:
    frame = clean()
    findings = found(frame, split=split(frame, NUMBER))
    assert {finding.status for finding in findings.values()} == {"ok"}
    assert findings["columns"].message == "3 columns can be read"
    classes = frame.assign(y=(frame["y"] > 0).astype(int))
    target, _ = Target.guess(classes)
    findings = found(classes, target, split=split(classes, target))
    assert {finding.status for finding in findings.values()} == {"ok"}
    assert sum(map(sum, (part.values() for part in findings["classes"].values["rows"].values()))) == ROWS


def test_without_a_split_its_checks_are_skipped() -> None:
    skipped = [check for check, finding in found(clean()).items() if finding.status == "skipped"]
    assert skipped == ["rows in train and test"]


def test_columns_that_tell_nothing_or_the_same() -> None:
    findings = found(clean().assign(one=3, a2=lambda frame: frame["a"], kind2=lambda frame: frame["kind"]))
    assert findings["constant columns"].status == "warning"
    assert findings["constant columns"].remedy == "--drop one"
    assert findings["duplicate columns"].values == {"pairs": {"a2": "a", "kind2": "kind"}}
    assert findings["duplicate columns"].remedy == "--drop a2 --drop kind2"


def test_missing_infinite_and_unreadable_values() -> None:
    frame = clean().assign(note=[f"note {row}" for row in range(ROWS)])
    frame.loc[:6, "a"] = np.nan
    frame.loc[:599, "kind"] = None
    frame.loc[3, "b"] = np.inf
    findings = found(frame)
    assert findings["missing values"].status == "warning"
    assert findings["missing values"].values["share"] == {"a": 7 / ROWS, "kind": 600 / ROWS}
    assert "'kind' 85.6 %, 'a' 0.999 %" in findings["missing values"].message
    assert findings["missing values"].remedy.endswith("--drop kind")
    assert findings["infinite values"].status == "fault"
    assert findings["infinite values"].values == {"rows": {"b": 1}}
    assert findings["columns"].status == "fault"
    assert findings["columns"].remedy == "--drop note"


def test_a_target_that_cannot_be_read() -> None:
    frame = clean()
    frame.loc[5, "y"] = np.nan
    findings = found(frame)
    assert findings["target"].status == "fault"
    assert "row 5" in findings["target"].message
    assert findings["leaking columns"].status == "skipped"


def test_row_numbers() -> None:
    findings = found(clean().assign(id=np.arange(ROWS) * 3 + 7, down=-np.arange(ROWS)))
    assert findings["row numbers"].values == {"columns": ["id", "down"]}
    assert findings["row numbers"].remedy == "--drop id --drop down"
    shuffled = np.random.default_rng(0).permutation(ROWS)
    assert found(clean().assign(id=shuffled))["row numbers"].status == "ok"


def test_one_value_that_dominates() -> None:
    frame = clean()
    frame.loc[17, "b"] = -99999.0
    finding = found(frame)["dominating values"]
    assert finding.status == "warning"
    assert finding.values["columns"]["b"]["row"] == 17
    assert finding.values["columns"]["b"]["value"] == -99999.0
    assert "row 17" in finding.message


def test_numbers_at_the_edge_of_floats_are_no_trouble() -> None:
    frame = clean().assign(a=[1.7e308, -1.7e308] * 350 + [0], b=lambda table: 1e308 * table["b"] / 5)
    assert found(frame)["leaking columns"].status == "ok"
    frame["y"] = 1e307 * frame["y"]
    assert found(frame, split=split(frame))["leaking columns"].status == "ok"


def test_large_numbers_are_said_and_fine() -> None:
    finding = found(clean().assign(a=lambda frame: 1e300 * frame["a"]))["scales"]
    assert finding.status == "ok"
    assert list(finding.values["columns"]) == ["a"]
    assert finding.values["columns"]["a"]["std"] == pytest.approx(1e300, rel=0.2)  # 701 normal values: 1 +- 0.03


@pytest.mark.parametrize(
    ("make", "how"),
    [
        (lambda y: y, "equals the target"),
        (lambda y: np.exp(-y), "orders the rows"),
        (lambda y: np.round(y, 3), "orders the rows"),
        (lambda y: np.where(np.arange(len(y)) % 2, np.arcsin(y), np.pi - np.arcsin(y)), "explains"),  # y = sin(x)
    ],
)
def test_a_column_that_gives_a_number_away(make: Any, how: str) -> None:
    rng = np.random.default_rng(0)
    y = rng.uniform(-1, 1, 5003)
    leak = number_leak(make(y), y, categorical=False)
    assert leak is not None
    assert how in leak.how
    assert number_leak(y + 0.1 * rng.normal(size=len(y)), y, categorical=False) is None
    assert number_leak(y[:49], y[:49], categorical=False) is None


def test_a_category_that_gives_a_number_away() -> None:
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 7, 503).astype(float)
    assert number_leak(codes, np.array([3.0, 1, 4, 1.5, 9, 2, 6])[codes.astype(int)], categorical=True) is not None
    assert number_leak(codes, rng.normal(size=503), categorical=True) is None
    assert number_leak(np.arange(503.0), rng.normal(size=503), categorical=True) is None  # one row per value


def test_spearman_is_that_of_scipy() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 9, 101).astype(float), rng.normal(size=101)
    assert spearman(x, y + x) == pytest.approx(stats.spearmanr(x, y + x).statistic, abs=1e-12)
    assert np.isnan(spearman(np.ones(5), np.arange(5.0)))


def test_a_column_that_gives_the_class_away() -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 601)
    assert class_leak(labels * 10.0, labels, categorical=True) is not None
    assert class_leak(labels + rng.uniform(0, 0.9, 601), labels, categorical=False) is not None  # thresholds
    assert class_leak(labels + rng.uniform(0, 1.3, 601), labels, categorical=False) is None
    assert class_leak(rng.normal(size=601), labels, categorical=False) is None
    assert class_leak(np.arange(601.0), labels, categorical=True) is None  # one row per value says nothing
    rare = (np.arange(5003) == 7).astype(np.int64)
    assert class_leak(rng.normal(size=5003), rare, categorical=False) is None  # any column is right in 99.98 %
    assert class_leak(rng.integers(0, 3, 5003).astype(float), rare, categorical=True) is None


def test_sums_and_differences() -> None:
    rng = np.random.default_rng(0)
    a, b, c = rng.integers(0, 50, (3, 211)).astype(float)
    assert pair_leaks({"a": a, "c": c, "b": b}, a + b) == [("a", "+", "b")]
    assert pair_leaks({"a": a, "c": c, "b": b}, b - a) == [("b", "-", "a")]
    assert pair_leaks({"a": a, "c": c, "b": b}, a + b + (np.arange(211) == 200)) == []
    frame = pd.DataFrame({"casual": a, "registered": b, "other": c, "cnt": a + b})
    finding = found(frame, Target("cnt", "regression"))["leaking columns"]
    assert finding.status == "fault"
    assert finding.message == "'casual' + 'registered' = 'cnt' in every row"
    assert finding.remedy.endswith("--drop casual --drop registered")


def test_classes_in_the_parts() -> None:
    frame = clean().assign(y=["a"] * 600 + ["b"] * 98 + ["c"] * 3)
    target = Target("y", "classification", ("a", "b", "c"))
    finding = found(frame, target, split=split(frame, target))["classes"]
    assert finding.status == "warning"
    assert finding.message == "fewer than 5 test rows of class 'c'"
    rows = np.arange(ROWS)
    cut = Split(rows[:500], rows[500:600], rows[600:])
    finding = found(frame, target, split=cut)["classes"]
    assert finding.status == "fault"
    assert "no row of class 'b', 'c' in train" in finding.message
    assert finding.values["rows"]["test"] == {"a": 0, "b": 98, "c": 3}


def test_rows_that_are_in_train_and_test() -> None:
    frame = clean()
    doubled = pd.concat([frame, frame.iloc[:101]], ignore_index=True)
    rows = np.arange(len(doubled))
    finding = found(doubled, split=Split(rows[:501], rows[501:601], rows[601:]))["rows in train and test"]
    assert finding.values == {"rows": 101, "share": 101 / 201}
    assert "50.2 %" in finding.message
    assert "--group" in finding.remedy


def test_tails_of_the_target() -> None:
    rng = np.random.default_rng(0)
    frame = clean()
    long = found(frame.assign(y=np.exp(1.5 * rng.normal(size=ROWS))))["tails of the target"]
    assert "logarithm" in long.remedy
    heavy = found(frame.assign(y=rng.standard_t(1.5, ROWS)))["tails of the target"]
    assert "--likelihood student-t" in heavy.remedy
    assert heavy.values["excess_kurtosis"] > 10


def test_only_the_columns_in_use_are_looked_at() -> None:
    frame = clean().assign(leak=lambda table: table["y"], group=np.arange(ROWS) // 3)
    columns = Columns.learn(frame, leave_out=["y", "group"], drop=["leak"])
    assert found(frame)["leaking columns"].status == "fault"
    assert found(frame, columns=columns)["leaking columns"].status == "ok"
    frame["group"] = frame["y"]
    assert "'group'" in found(frame)["leaking columns"].message
    by_group = split(frame, group="group")
    assert "'group'" not in found(frame, split=by_group)["leaking columns"].message


def test_long_tables_are_looked_at_in_part() -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.normal(size=100_003)}).assign(y=lambda table: table["a"])
    finding = found(frame)["leaking columns"]
    assert finding.message == (
        "column 'a' equals the target in every row (looked at 100,000 rows, drawn with a fixed seed)"
    )


def test_real_tables() -> None:
    folder = os.environ.get("POSTERITY_DATA")
    if not folder:
        pytest.skip("POSTERITY_DATA names no folder with the UCI tables")

    def uci(name: str) -> tuple[pd.DataFrame, Any]:
        data = np.load(Path(folder) / "open" / "tabular" / f"uci_{name}.npz")
        return pd.DataFrame(data["X"], columns=data["features"]).assign(target=data["y"]), data

    frame, data = uci("bikesharing_hour")
    frame = frame.assign(casual=data["casual"], registered=data["registered"])
    target, _ = Target.guess(frame, name="target")
    assert target.task == "regression"
    assert target.whole
    assert found(frame, target)["leaking columns"].values["sums"] == [["casual", "+", "registered"]]
    frame, _ = uci("wine-quality-red")
    target, said = Target.guess(frame)
    assert target.task == "classification"
    assert "--task regression" in said[-1]
    assert found(frame, target, split=split(frame, target))["rows in train and test"].values["share"] > 0.15
    frame, _ = uci("naval-propulsion-plant")
    assert found(frame, Target("target", "regression"))["constant columns"].values == {"columns": ["T1", "P1"]}
