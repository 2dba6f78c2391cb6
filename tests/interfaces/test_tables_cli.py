"""Tables from the shell: what a person types, what they get, and how it ends when they are wrong."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

import posterity as po

pandas = pytest.importorskip("pandas")

ROWS = 211


def numbers(rows=ROWS, seed=0):
    """y = 1000 + 50 a + noise of std 20, a category that shifts it, a date, a boolean, holes."""
    random = np.random.default_rng(seed)
    a = random.normal(size=rows)
    colour = random.choice(["red", "green", "blue"], rows)
    return pandas.DataFrame(
        {
            "a": a,
            "colour": colour,
            "day": pandas.date_range("2024-01-01", periods=rows).strftime("%Y-%m-%d"),
            "open": random.random(rows) < 0.5,
            "gaps": np.where(random.random(rows) < 0.2, np.nan, random.normal(size=rows)),
            "same": 7,
            "copy": a,
            "y": 1000 + 50 * a + 30 * (colour == "red") + 20 * random.normal(size=rows),
        }
    )


def classes(rows=ROWS, seed=1):
    frame = numbers(rows, seed).drop(columns=["copy", "same", "day"])
    frame["y"] = np.where(frame["y"] > 1010, "high", "low")
    return frame


FAST = ("--epochs", 3, "--method", "map")


def test_a_table_is_fitted_predicted_and_evaluated(shell):
    numbers().to_csv("train.csv", index=False)
    code, out, err = shell("fit", "train.csv", "--epochs", 40, "--method", "deep-ensemble", "--out", "run")
    assert code == 0, err
    assert "interval" in out
    for said in ("target: column 'y'", "task: regression", "'same'", "'copy'", "127 train", "run/report.html"):
        assert said.replace("127 train", " train") in err, said
    assert {"posterity.json", "table.json", "evaluation.json", "report.html"} <= {p.name for p in Path("run").iterdir()}

    new = numbers(53, seed=3).drop(columns="y").sample(frac=1, random_state=0)
    new["extra"] = 1
    new.to_csv("new.csv", index=False)
    code, out, err = shell("predict", "run", "new.csv", "-o", "predictions.csv")
    assert code == 0, err
    assert out == ""
    assert "columns that the run does not need: " in err
    assert "extra" in err
    predictions = pandas.read_csv("predictions.csv")
    assert list(predictions) == ["mean", "std", "lower", "upper", "epistemic_std", "aleatoric_std"]
    assert len(predictions) == 53
    truth = 1000 + 50 * new["a"].to_numpy() + 30 * (new["colour"] == "red").to_numpy()
    assert np.abs(predictions["mean"] - truth).mean() < 20  # in units of the target, in the order of the file
    assert (predictions["lower"] < predictions["mean"]).all()

    numbers(83, seed=5).to_csv("test.csv", index=False)
    code, out, err = shell("evaluate", "run", "test.csv", "--group", "colour", "--json", "--out", "result")
    assert code == 0, err
    record = json.loads(out)
    assert record == json.loads(Path("result/evaluation.json").read_text())
    metrics = record["rows"][0]["metrics"]
    assert metrics["rmse"]["value"] < 40  # of a target with std 55; noise alone is 20
    assert metrics["interval_coverage"]["n"] == 83
    assert set(record["rows"][0]["details"]["groups"]["group"]) == {"red", "green", "blue"}
    assert record["settings"]["rows_trained_on"] == 0


def test_one_row_is_predicted_as_among_others(shell):
    numbers().to_csv("train.csv", index=False)
    shell("fit", "train.csv", *FAST)
    new = numbers(7, seed=3)
    new.to_csv("seven.csv", index=False)
    new.iloc[[3]].to_csv("one.csv", index=False)
    _, many, _ = shell("predict", "run", "seven.csv")
    _, one, _ = shell("predict", "run", "one.csv")
    assert one.splitlines()[0] == many.splitlines()[0]
    found, expected = ([float(v) for v in line.split(",")] for line in (one.splitlines()[1], many.splitlines()[4]))
    assert found == pytest.approx(expected, rel=1e-5)


@pytest.mark.filterwarnings("ignore:the temperature .* was fitted to predictions via 'draws'")
def test_classes_have_their_own_names(shell):
    classes().to_parquet("train.parquet")
    code, _, err = shell("fit", "train.parquet", "--epochs", 20, "--method", "mean-field")
    assert code == 0, err
    assert "task: classification" in err
    classes(31, seed=7).to_csv("new.csv", index=False)
    code, out, err = shell("predict", "run", "new.csv", "--json")
    rows = json.loads(out)["rows"]
    assert code == 0
    assert len(rows) == 31
    assert list(rows[0]) == ["label", "confidence", "p_high", "p_low", "entropy", "epistemic", "aleatoric"]
    for row in rows:
        assert row["label"] == max(("high", "low"), key=lambda name: row[f"p_{name}"])
        assert row["p_high"] + row["p_low"] == pytest.approx(1, abs=1e-6)
    strange = classes(17, seed=9)
    strange["a"] = 30.0
    strange.to_csv("strange.csv", index=False)
    code, out, err = shell("evaluate", "run", "new.csv", "--ood", "strange.csv", "--json", "--via", "draws,mean")
    assert code == 0, err
    record = json.loads(out)
    assert [row["via"] for row in record["rows"]] == ["draws", "mean"]
    assert record["rows"][0]["metrics"]["ood_auroc"]["n"] == 31 + 17
    (calibration,) = Path("run").glob("calibration*.json")
    assert json.loads(calibration.read_text())["temperature"] != 1


def test_rows_that_were_trained_on_are_counted(shell):
    numbers().to_csv("train.csv", index=False)
    shell("fit", "train.csv", *FAST, "--test", 0, "--validation", 0)
    code, _, err = shell("evaluate", "run", "train.csv")
    assert code == 0
    assert "211 of 211 rows have the features of rows that were trained on" in err


def test_a_split_column_groups_and_time(shell):
    frame = numbers()
    frame["part"] = ["train"] * 150 + ["validation"] * 20 + ["test"] * 41
    frame.to_csv("parts.csv", index=False)
    _, out, err = shell("fit", "parts.csv", *FAST, "--split-column", "part", "--json", "--target", "y")
    assert json.loads(out)["rows"][0]["metrics"]["rmse"]["n"] == 41, err
    rest = (*FAST, "--json", "--drop", "part", "--target", "y")
    _, out, _ = shell("fit", "parts.csv", *rest, "--time", "day", "--out", "late")
    late = json.loads(out)["rows"][0]["details"]["bands"]["target"]
    assert late == pytest.approx(frame["y"].iloc[-len(late) :].tolist(), rel=1e-6)
    _, out, err = shell("fit", "parts.csv", *rest, "--group", "colour", "--out", "whole")
    record = json.loads(out)
    assert len(set(record["rows"][0]["details"]["groups"]["group"])) == 1, err


def test_yaml_with_any_network(shell):
    numbers().to_csv("train.csv", index=False)
    Path("mynet.py").write_text(
        "from torch import nn\n"
        "class Net(nn.Module):\n"
        "    def __init__(self, inputs, outputs, width):\n"
        "        super().__init__()\n"
        "        self.layers = nn.Sequential(nn.Linear(inputs, width), nn.Tanh(), nn.Linear(width, outputs))\n"
        "    def forward(self, x):\n"
        "        return self.layers(x)\n"
    )
    Path("run.yaml").write_text(
        "data: train.csv\n"
        "target: y\n"
        "epochs: 2\n"
        "drop: [copy, same]\n"
        "network: {class_path: mynet.Net, init_args: {width: 5}}\n"
        "method:\n"
        "  class_path: posterity.Ensemble\n"
        "  init_args: {algorithm: {class_path: posterity.MAP, init_args: {learning_rate: 0.01}}, members: 2}\n"
    )
    code, _, err = shell("fit", "run.yaml", "--seed", 3)
    assert code == 0, err
    manifest = json.loads(Path("run/posterity.json").read_text())
    assert manifest["network"]["layers.0.weight"][0] == 5
    assert manifest["seed"] == 3
    assert manifest["method"] == "deep-ensemble"
    code, out, err = shell("predict", "run", "train.csv")
    assert code == 0, err
    assert len(out.splitlines()) == ROWS + 1


@pytest.mark.slow
def test_a_comparison_goes_on_where_it_was_killed(shell):
    numbers().to_csv("train.csv", index=False)
    call = ("compare", "train.csv", "--methods", "map,deep-ensemble,laplace", "--seeds", 2, "--epochs", 2, "--json")
    code, out, err = shell(*call)
    assert code == 0, err
    record = json.loads(out)
    assert [(row["method"], row["seed"]) for row in record["rows"]] == [
        (name, seed) for name in ("map", "deep-ensemble", "laplace") for seed in (0, 1)
    ]
    assert "map-0: 1 x 10 epochs" in err  # the budget of five members with two epochs each
    assert "deep-ensemble-1: 5 x 2 epochs" in err
    assert set(record["differences"]["baseline"]) == {"map"}
    before = {path: path.stat().st_mtime_ns for path in Path("comparison").rglob("posterior*.safetensors")}
    (Path("comparison") / "laplace-1" / "posterity.json").unlink()
    _, again, _ = shell(*call)
    after = {path: path.stat().st_mtime_ns for path in Path("comparison").rglob("posterior*.safetensors")}
    assert {path.parent.name for path in before if before[path] != after.get(path)} <= {"laplace-1"}
    assert json.loads(again)["rows"] == record["rows"]
    code, _, err = shell(*call, "--prior", 3)
    assert code == 2
    assert "another prior" in err


@pytest.mark.slow
def test_a_comparison_picks_each_methods_own_data_weight(shell):
    numbers().to_csv("train.csv", index=False)
    call = (
        "compare",
        "train.csv",
        "--methods",
        "map,ivon",
        "--seeds",
        1,
        "--epochs",
        5,
        "--data-weights",
        "1,100",
        "--json",
    )
    code, out, err = shell(*call)
    assert code == 0, err
    record = json.loads(out)
    assert record["settings"]["data_weight_grid"] == [1, 100]
    picked = record["settings"]["data_weight_picked"]
    extra = [f"{name}, data_weight 100" for name in ("map", "ivon") if picked[name] == 100]
    assert [row["method"] for row in record["rows"]] == ["map", "ivon", *extra]
    assert {path.name for path in Path("comparison").iterdir() if path.is_dir()} == {
        "map-0",
        "ivon-0",
        "map-w100-0",
        "ivon-w100-0",
    }
    assert "numbers such as 1,10,100" in ends_well(*shell(*call[:-2], "many"))


def test_doctor_lists_the_columns_that_a_fit_refuses(shell):
    frame = numbers()
    frame["note"] = [f"row {row} said something" for row in range(len(frame))]
    frame["place"] = [f"place {row // 2}" for row in range(len(frame))]
    frame.to_csv("data.csv", index=False)
    code, out, _ = shell("doctor", "data.csv", "--target", "y", "--json")
    (found,) = [each for each in json.loads(out)["findings"] if each["check"] == "columns"]
    assert (code, found["status"], found["values"]["columns"]) == (1, "fault", ["note", "place"])
    assert found["remedy"] == "--drop note --drop place"
    assert found["remedy"] in ends_well(*shell("fit", "data.csv", "--target", "y"))


def test_doctor_lists_what_is_wrong(shell):
    frame = numbers()
    frame["leak"] = 2 * frame["y"] + 1
    frame.to_csv("train.csv", index=False)
    code, out, err = shell("doctor", "train.csv", "--target", "y", "--json")
    findings = {each["check"]: each for each in json.loads(out)["findings"]}
    assert code == 0, err  # warnings: only a person knows whether a leak is one
    told = " ".join(each["message"] + each["remedy"] for each in findings.values() if each["status"] != "ok")
    for name in ("leak", "same", "copy"):
        assert name in told
    shell("fit", "train.csv", "--drop", "leak", "--epochs", 30, "--method", "mean-field", "--target", "y")
    numbers(83, seed=5).to_csv("test.csv", index=False)
    code, out, _ = shell("doctor", "run", "test.csv", "--json")
    found = {each["check"]: each for each in json.loads(out)["findings"]}
    wanted = {
        "epistemic spread",
        "noise",
        "N",
        "posterior against prior",
        "draws against the mean",
        "propagation",
        "training",
        "memory",
    }
    assert wanted | {"foreign columns", "rows trained on", "unseen values"} == set(found)
    assert found["N"]["values"]["N"] == found["N"]["values"]["expected"]
    code, out, _ = shell("doctor", "run", "test.csv")
    assert "epistemic" in out


# --- what ends in exit code 2 and one sentence


def _broken(kind):
    if kind == "empty":
        return b""
    if kind == "header only":
        return b"a,y\n"
    if kind == "one row":
        return b"a,y\n1,2\n"
    if kind == "one class":
        return b"a,y\n" + b"1,no\n2,no\n3,no\n" * 9
    if kind == "missing target":
        return b"a,y\n" + b"1,2.5\n2,\n3,1.5\n" * 9
    if kind == "infinite target":
        return b"a,y\n" + b"1,2.5\n2,inf\n3,1.5\n" * 9
    if kind == "infinite feature":
        return b"a,y\n" + b"1,2.5\n-inf,1.25\n3,1.5\n" * 9
    if kind == "free text":
        return b"note,y\n" + b"".join(b"words no %d,%d.5\n" % (i, i) for i in range(99))
    return bytes(np.random.default_rng(0).integers(0, 256, 5000, dtype=np.uint8))


BROKEN = ("empty", "header only", "one row", "one class", "missing target", "infinite target", "infinite feature",
          "free text", "random bytes")  # fmt: skip


def ends_well(code, out, err):
    """Exit code 2 and, at the end, one sentence for a person."""
    assert code == 2, err
    assert "Traceback" not in err + out
    assert out == ""
    sentences = [line for line in err.replace("\n", " ").split("posterity: ") if line]
    assert err.count("posterity: ") == 1, err
    return sentences[-1]


@pytest.mark.parametrize("kind", BROKEN)
def test_broken_tables(shell, kind):
    Path("data.csv").write_bytes(_broken(kind))
    told = ends_well(*shell("fit", "data.csv", *FAST))
    assert not Path("run").exists()
    assert len(told) < 500
    ends_well(*shell("compare", "data.csv", "--epochs", 1))
    assert not Path("comparison").exists()
    if kind in ("infinite feature", "free text"):
        code, out, _ = shell("doctor", "data.csv")
        assert (code, "fault" in out) == (1, True)
    else:
        ends_well(*shell("doctor", "data.csv"))


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (("absent.csv",), "absent.csv"),
        (("train.csv", "--target", "why"), "why"),
        (("train.csv", "--method", "ivo"), "did you mean ivon"),
        (("train.csv", "--network", "transformer"), "resmlp"),
        (("train.csv", "--network", "nowhere.Net"), "leads nowhere"),
        (("train.csv", "--likelihood", "gausian"), "gaussian"),
        (("train.csv", "--likelihood", "poisson"), ""),
        (("train.csv", "--drop", "z"), "z"),
        (("train.csv", "--test", 1.5), ""),
        (("train.csv", "--split-column", "colour"), "colour"),
        (("train.csv", "--epochs", 0), "epochs"),
        (("train.csv", "--prior", -1), "prior"),
        (("bad.yaml",), "did you mean method"),
        (("kind.yaml",), "epochs must be int"),
        (("text.yaml",), "keys and values"),
        (("nodata.yaml",), "data: table.csv"),
    ],
)
def test_what_cannot_be_fitted(shell, options, word):
    numbers().to_csv("train.csv", index=False)
    Path("bad.yaml").write_text("data: train.csv\nmethd: ivon\n")
    Path("kind.yaml").write_text("data: train.csv\nepochs: many\n")
    Path("text.yaml").write_text("- train.csv\n")
    Path("nodata.yaml").write_text("target: y\n")
    before = set(Path().rglob("*"))
    assert word in ends_well(*shell("fit", *options))
    assert set(Path().rglob("*")) == before


def test_runs_that_are_none(shell):
    numbers().to_csv("train.csv", index=False)
    Path("foreign").mkdir()
    Path("foreign/posterity.json").write_text("{}")
    Path("empty").mkdir()
    for folder in ("absent", "empty", "foreign", "train.csv"):
        for command in ("predict", "evaluate"):
            assert folder in ends_well(*shell(command, folder, "train.csv"))
    po.fit(torch.nn.Linear(1, 1), (torch.randn(7, 1), torch.randn(7)), "gaussian", epochs=1, out="bare", progress=False)
    assert "not fitted to a table" in ends_well(*shell("predict", "bare", "train.csv"))


def test_a_run_is_not_written_over(shell):
    numbers().to_csv("train.csv", index=False)
    shell("fit", "train.csv", *FAST)
    before = Path("run/posterity.json").read_bytes()
    assert "--resume" in ends_well(*shell("fit", "train.csv", *FAST))
    assert Path("run/posterity.json").read_bytes() == before
    code, _, err = shell("fit", "train.csv", *FAST, "--resume")
    assert code == 0, err


def test_tables_that_do_not_fit_the_run(shell):
    numbers().to_csv("train.csv", index=False)
    shell("fit", "train.csv", *FAST)
    numbers(7).drop(columns=["a", "gaps"]).to_csv("less.csv", index=False)
    told = ends_well(*shell("predict", "run", "less.csv", "-o", "predictions.csv"))
    assert "'a'" in told
    assert "'gaps'" in told
    assert not Path("predictions.csv").exists()
    numbers(7).drop(columns="y").to_csv("blind.csv", index=False)
    assert "'y'" in ends_well(*shell("evaluate", "run", "blind.csv"))
    assert "level" in ends_well(*shell("predict", "run", "train.csv", "--level", 90))
    assert "no such column" in ends_well(*shell("evaluate", "run", "train.csv", "--group", "hospital"))


def test_semicolons_and_a_byte_order_mark(shell):
    frame = numbers().drop(columns=["copy", "same"])
    text = frame.to_csv(index=False, sep=";", decimal=",")
    Path("train.csv").write_bytes(b"\xef\xbb\xbf" + text.encode())
    code, out, err = shell("fit", "train.csv", *FAST, "--json")
    assert code == 0, err
    targets = json.loads(out)["rows"][0]["details"]["bands"]["target"]
    assert all(min(abs(frame["y"] - t)) < 1e-3 for t in targets)
    assert not any(math.isnan(t) for t in targets)


def test_a_likelihood_says_what_the_task_is(shell):
    frame = numbers()
    frame["y"] = np.random.default_rng(3).poisson(np.exp(0.5 + 0.5 * frame["a"]))
    frame.to_csv("counts.csv", index=False)
    assert shell("fit", "counts.csv", "--epochs", 2, "--method", "map", "--likelihood", "poisson")[0] == 0
    _, out, _ = shell("predict", "run", "counts.csv")
    assert out.startswith("mean,std,lower,upper")
    assert "one for a regression" in ends_well(
        *shell("fit", "counts.csv", "--likelihood", "poisson", "--task", "classification", "--out", "other")
    )
    classes().to_csv("two.csv", index=False)
    code, _, err = shell(
        "fit", "two.csv", "--epochs", 2, "--method", "map", "--likelihood", "bernoulli", "--out", "two"
    )
    assert code == 0, err
    assert shell("predict", "two", "two.csv")[1].startswith("label,confidence,p_high,p_low")
    assert "no likelihood for tables" in ends_well(
        *shell("fit", "two.csv", "--likelihood", "multilabel", "--out", "three")
    )


def test_a_fault_is_named_by_the_row_of_the_file(shell):
    frame = numbers().astype({"a": object}).drop(columns="copy")
    frame.loc[60, "a"] = "n.v."
    frame.to_csv("train.csv", index=False)
    told = ends_well(*shell("fit", "train.csv", *FAST))
    assert "row 60" in told
    frame.loc[60, "a"], frame.loc[207, "a"] = 1.5, "n.v."
    frame.to_csv("train.csv", index=False)
    told = ends_well(*shell("fit", "train.csv", *FAST))
    assert "row 207" in told
    assert not Path("run").exists()


def test_a_far_offset_of_the_target_rounds_nothing_away(shell):
    frame = numbers()
    for name, offset in (("near", 0.0), ("far", 1e9)):
        frame.assign(y=frame["y"] + offset).to_csv(f"{name}.csv", index=False)
        code, _, err = shell("fit", f"{name}.csv", *FAST, "--out", name)
        assert code == 0, err
        shell("predict", name, f"{name}.csv", "-o", f"{name}-out.csv")
    near, far = (pandas.read_csv(f"{name}-out.csv") for name in ("near", "far"))
    # 1e9 of float64 has steps of 1e-7; the two fits see targets that differ by that
    for name in ("mean", "lower", "upper"):
        assert np.abs(far[name] - 1e9 - near[name]).max() < 0.5
    assert np.abs(far["std"] / near["std"] - 1).max() < 0.01


@pytest.mark.parametrize("option", [("--seed", -1), ("--split-seed", -1), ("--group", "y"), ("--time", "y")])
def test_options_that_cannot_be(shell, option):
    numbers().to_csv("train.csv", index=False)
    ends_well(*shell("fit", "train.csv", *FAST, "--target", "y", *option))
    assert not Path("run").exists()


def test_a_file_in_the_place_of_a_folder(shell):
    numbers().to_csv("train.csv", index=False)
    shell("fit", "train.csv", *FAST)
    Path("afile").write_text("here")
    for call in (("evaluate", "run", "train.csv"), ("compare", "train.csv"), ("fit", "train.csv", *FAST)):
        assert "afile" in ends_well(*shell(*call, "--out", "afile/run"))
    assert Path("afile").read_text() == "here"


def test_a_method_is_no_path(shell):
    numbers().to_csv("train.csv", index=False)
    Path("bad.yaml").write_text("data: train.csv\nmethods: {../x: map}\n")
    assert "'../x'" in ends_well(*shell("compare", "bad.yaml"))
    Path("init.yaml").write_text("data: train.csv\nnetwork: {class_path: torch.nn.Linear, init_args: 7}\n")
    assert "keys and values" in ends_well(*shell("fit", "init.yaml"))
    Path("small.yaml").write_text("data: train.csv\nprior: 1e-3\nepochs: 1\nmethod: map\n")
    code, _, err = shell("fit", "small.yaml")
    assert code == 0, err
