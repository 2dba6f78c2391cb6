"""`posterity certify`: a bound for a run from the shell, from the table that was fitted."""

import json

import numpy as np
import pytest

pandas = pytest.importorskip("pandas")

ROWS = 1009


def table(rows=211, seed=0):
    random = np.random.default_rng(seed)
    a, b = random.normal(size=(2, rows))
    return pandas.DataFrame({"a": a, "b": b, "y": np.where(a + b + 0.3 * random.normal(size=rows) > 0, "yes", "no")})


FIT = ("--method", "mean-field", "--epochs", 10, "--network", "linear")


def test_a_run_is_certified_by_the_table_it_was_fitted_to(shell):
    frame = table(ROWS)
    frame.to_csv("all.csv", index=False)
    assert shell("fit", "all.csv", *FIT, "--out", "run")[0] == 0
    code, out, err = shell("certify", "run", "all.csv", "--json")
    assert code == 0, err
    record = json.loads(out)
    assert record["rows"] == pytest.approx(0.65 * ROWS, abs=3)
    assert f"{record['rows']:,} of 1,009 rows were trained on" in err
    assert record["gibbs_error"] < record["bound"] <= record["mcallester"]
    assert record["verdict"] == "informative"
    assert record["draws"] == 200
    assert any("learned on these rows" in line for line in record["reservations"])
    # in another order, with a target of another name
    frame.sample(frac=1, random_state=1).rename(columns={"y": "label"}).to_csv("other.csv", index=False)
    code, out, err = shell("certify", "run", "other.csv", "--json", "--target", "label")
    assert code == 0, err
    assert json.loads(out) == record
    code, out, err = shell("certify", "run", "all.csv", "--delta", 0.2, "--draws", 50)
    assert code == 0, err
    for said in (
        "informative",
        "KL(q || p), nats",
        "by 50 draws",
        "0.8",
        "assumed: the rows are independent",
        "but: the",
    ):
        assert said in out, said


def test_rows_that_repeat_are_told_apart_by_the_split(shell):
    frame = table().round(0)
    frame.to_csv("all.csv", index=False)
    shell("fit", "all.csv", *FIT, "--out", "run")
    code, out, err = shell("certify", "run", "all.csv", "--json")
    assert code == 0, err
    rows = json.loads(out)["rows"]
    assert rows == pytest.approx(0.65 * 211, abs=2)
    assert f"{rows} of 211 rows were trained on" in err


def test_other_rows_are_refused(shell):
    table().to_csv("all.csv", index=False)
    shell("fit", "all.csv", *FIT, "--out", "run")
    table(101, seed=3).to_csv("new.csv", index=False)
    code, out, err = shell("certify", "run", "new.csv")
    assert (code, out) == (2, "")
    assert "0 of 101 rows have features of the" in err
    table().iloc[:190].to_csv("part.csv", index=False)
    code, _, err = shell("certify", "run", "part.csv")
    assert code == 2
    assert "give the table that was fitted" in err
    code, _, err = shell("certify", "run", "all.csv", "--target", "z")
    assert code == 2
    assert "'z' is no column; there are a, b, y" in err
    code, _, err = shell("certify", "run", "all.csv", "--delta", 1)
    assert code == 2
    assert "delta is a probability" in err


def test_a_prior_has_to_come_from_other_rows(shell):
    frame = table()
    frame.iloc[:101].to_csv("mine.csv", index=False)
    frame.iloc[101:].to_csv("theirs.csv", index=False)
    whole = ("--test", 0, "--validation", 0)
    shell("fit", "mine.csv", *FIT, *whole, "--out", "mine")
    shell("fit", "theirs.csv", *FIT, *whole, "--out", "theirs")
    code, out, err = shell("certify", "mine", "mine.csv", "--json", "--prior-run", "theirs")
    assert code == 0, err
    record = json.loads(out)
    assert (record["rows"], record["center"]) == (101, "held-out")
    own = json.loads(shell("certify", "mine", "mine.csv", "--json")[1])
    assert record["kl"] != own["kl"]
    assert record["gibbs_error"] == own["gibbs_error"]
    code, _, err = shell("certify", "mine", "mine.csv", "--prior-run", "mine")
    assert code == 2
    assert "101 of 101 rows are among those that mine was trained on" in err


def test_what_has_no_certificate_is_one_line(shell):
    frame = table()
    frame.to_csv("all.csv", index=False)
    shell("fit", "all.csv", "--method", "map", "--epochs", 1, "--out", "point")
    code, out, err = shell("certify", "point", "all.csv")
    assert (code, out) == (2, "")
    assert "a point posterior is a finite set of weights" in err
    frame.assign(y=frame["a"] + frame["b"]).to_csv("numbers.csv", index=False)
    shell("fit", "numbers.csv", *FIT, "--out", "regression")
    code, _, err = shell("certify", "regression", "numbers.csv")
    assert code == 2
    assert "the gaussian likelihood has none" in err
    code, _, err = shell("certify", "nothing", "all.csv")
    assert code == 2
    assert "holds no run" in err
