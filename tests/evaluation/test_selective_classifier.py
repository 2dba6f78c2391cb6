"""Selective answers: the rule is kept, each deferral has its reason, and a changed model is refused."""

import json
import math

import pandas
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import posterity as po
from posterity.errors import CompatibilityError, DataError, PosterityWarning, ShapeError, StorageError
from posterity.evaluation.risk_control import control_risk, upper_bound
from posterity.evaluation.selective_classifier import SelectiveClassifier

NAMES = ("dull", "keen", "odd")


def rows(n, seed):
    """Three classes in a space of five dimensions; a row of the third is often taken for one of the second."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 5, generator=generator)
    logits = torch.stack([torch.zeros(n), 7 * x[:, 0] + x[:, 3], 7 * x[:, 0] - 1 + 2 * x[:, 1]], 1)
    y = torch.multinomial(logits.softmax(1), 1, generator=generator)[:, 0]
    return x, [NAMES[k] for k in y]


@pytest.fixture(scope="module")
def fitted():
    network = nn.Sequential(nn.Linear(5, 11), nn.Tanh(), nn.Linear(11, 3))
    return po.fit(
        network,
        rows(1201, 0),
        po.Categorical(NAMES),
        po.IVON(learning_rate=0.5),
        epochs=6,
        batch_size=150,
        progress=False,
        seed=0,
    )


@pytest.fixture
def model(fitted):
    """The fit, as it was: what a test changes is put back."""
    yield fitted
    fitted.temperature, fitted.propagation = 1.0, po.Propagation()


@pytest.fixture(scope="module")
def held():
    return rows(1409, 1)


@pytest.fixture(scope="module")
def new():
    return rows(1511, 2)


def test_the_threshold_is_that_of_risk_control(model, held):
    chosen = SelectiveClassifier(model, 0.05).calibrate(held)
    pred = model.predict(held[0])
    correct = torch.tensor([one == other for one, other in zip(pred.label, held[1])])
    assert chosen.guarantee == control_risk(pred.confidence, correct, 0.05)
    assert chosen.guarantee.holds
    assert 0.3 < chosen.threshold < 1


@pytest.mark.parametrize(("by", "sign"), [("confidence", 1), ("entropy", -1), ("epistemic", -1)])
def test_answers_follow_the_threshold(model, held, new, by, sign):
    chosen = SelectiveClassifier(model, 0.08, by=by).calibrate(held)
    answers, pred = chosen.predict(new[0]), model.predict(new[0])
    inside = sign * getattr(pred, by).double() >= sign * chosen.threshold
    assert 0 < answers.coverage < 1
    assert torch.equal(answers.answered, inside)
    assert [bool(reason) for reason in answers.reason] == (~inside).tolist()
    assert list(answers.label) == list(pred.label)
    row = int((~inside).nonzero()[0])
    assert answers.reason[row].startswith(f"not sure enough: {by} ")
    value, relation, threshold = answers.reason[row].split()[-(3 if by == "confidence" else 4) :][:3]
    assert relation == ("<" if by == "confidence" else ">")
    assert sign * float(value) < sign * float(threshold)
    assert float(value) == pytest.approx(getattr(pred, by)[row].item(), rel=0.06)


def test_a_reason_has_as_many_digits_as_it_takes(model, held):
    chosen = SelectiveClassifier(model, 0.05).calibrate(held)
    pred = model.predict(held[0])
    below = pred.confidence.double() < chosen.threshold
    nearest = int(torch.where(below, pred.confidence.double(), -1).argmax())
    value, _, threshold = chosen.predict(held[0]).reason[nearest].split()[-3:]
    assert float(value) < float(threshold)  # 0.9 < 0.9 would say nothing


def test_a_loader_and_blocks_give_the_same(model, held, new):
    x, names = held[0][:503], held[1][:503]
    chosen = SelectiveClassifier(model, 0.15).calibrate((x, names))
    again = SelectiveClassifier(model, 0.15).calibrate(DataLoader(list(zip(x, names)), batch_size=101))
    assert chosen.guarantee.holds
    assert again.guarantee.answered == chosen.guarantee.answered
    assert again.guarantee.errors == chosen.guarantee.errors
    inputs = DataLoader(TensorDataset(new[0]), batch_size=97)
    assert torch.equal(again.predict(inputs).answered, chosen.predict(new[0]).answered)


def test_foreign_rows_are_deferred_as_such(model, held, new):
    chosen = SelectiveClassifier(model, 0.08, foreign=0.05, foreign_by="entropy").calibrate(held)
    pred = model.predict(held[0])
    # at most 5 % of familiar rows: the ceil(0.95 * 1410)-th smallest of 1409
    assert int((pred.entropy > chosen.foreign_above).sum()) == 1409 - math.ceil(0.95 * 1410)
    assert chosen.guarantee.rows == math.ceil(0.95 * 1410) - 1
    answers = chosen.predict(new[0])
    foreign = model.predict(new[0]).entropy.double() > chosen.foreign_above
    assert foreign.any()
    assert {reason.split(":")[0] for reason, far in zip(answers.reason, foreign) if far} == {"foreign"}
    assert not any(reason.startswith("foreign") for reason, far in zip(answers.reason, foreign) if not far)
    assert not answers.answered[foreign].any()


def test_foreign_needs_rows_and_a_measure(model, held):
    few = (held[0][:57], held[1][:57])
    with pytest.raises(DataError, match="needs at least 99 rows, got 57"):
        SelectiveClassifier(model, foreign=0.01).calibrate(few)
    with pytest.raises(DataError, match="epistemic is 0 in every calibration row"):
        SelectiveClassifier(model, foreign=0.01, via="mean").calibrate(held)


def test_nothing_is_answered_without_a_guarantee(model, held, new):
    few = (held[0][:120], held[1][:120])
    chosen = SelectiveClassifier(model)
    with pytest.warns(PosterityWarning, match="149 rows without an error are needed; every row is deferred"):
        chosen.calibrate(few)
    answers = chosen.predict(new[0])
    assert answers.coverage == 0
    assert set(answers.reason) == {f"nothing is guaranteed: {chosen.guarantee}"}
    table = chosen.report(new)
    assert (table["guaranteed"][0], table["answered"][0], table["note"][0]) == (False, 0, str(chosen.guarantee))
    assert math.isnan(table["risk"][0])


def test_the_report_pools_no_group(model, held, new):
    chosen = SelectiveClassifier(model, 0.08).calibrate(held)
    ward = ["north"] * 1000 + ["south"] * 500 + [None] * 11
    table = chosen.report(new, groups={"ward": ward})
    assert list(zip(table["by"], table["group"]))[:4] == [
        ("all", "all"),
        ("ward", "missing"),
        ("ward", "north"),
        ("ward", "south"),
    ]
    assert table["by"][4:] == ["class"] * 3 + ["predicted"] * 3
    answers = chosen.predict(new[0])
    wrong = torch.tensor([one != other for one, other in zip(answers.label, new[1])])
    north = slice(0, 1000)
    line = next(line for line in table.lines() if line["group"] == "north")
    assert line["n"] == 1000
    assert line["answered"] == int(answers.answered[north].sum())
    assert line["errors"] == int((answers.answered & wrong)[north].sum())
    # nine groups share the 5 %
    assert line["upper"] == upper_bound(line["errors"], line["answered"], 1 - 0.05 / 9)
    for line in table.lines():
        if line["by"] != "all":
            assert line["guaranteed"] == (line["upper"] <= 0.08) == (line["note"] == "")
    few = table["note"][1]
    assert few == f"no guarantee alone: {table['answered'][1]} answered rows are too few, even without an error"
    by_class = [line for line in table.lines() if line["by"] == "class"]
    assert sum(line["n"] for line in by_class) == 1511
    assert sum(line["errors"] for line in by_class) == table["errors"][0]
    assert "north" in str(table)
    assert len(table.to_frame()) == len(table) == 10


def test_the_calibration_rows_bound_no_group(model, held):
    chosen = SelectiveClassifier(model, 0.08).calibrate(held, groups=pandas.Series(range(1409), name="half") % 2)
    table = chosen.report()
    assert table["by"][:3] == ["all", "half", "half"]
    assert table["guaranteed"] == [True] + [False] * 8
    assert table["upper"][0] == chosen.guarantee.upper <= 0.08
    assert (table["answered"][0], table["errors"][0]) == (chosen.guarantee.answered, chosen.guarantee.errors)
    with pytest.raises(DataError, match="calibrate"):
        chosen.report(groups=[0] * 1409)


def test_rows_of_another_distribution_are_noticed(model, held, new):
    chosen = SelectiveClassifier(model, 0.08).calibrate(held)
    assert chosen.report(new)["note"][0] == ""
    turned = (-new[0], new[1])
    assert "not that of the calibration" in chosen.report(turned)["note"][0]


def test_groups_go_with_rows_in_order(model, held):
    with pytest.raises(ShapeError, match="one value for each"):
        SelectiveClassifier(model, 0.08).calibrate(held, groups=[1, 2])
    shuffled = DataLoader([(x, name) for x, name in zip(*held)], batch_size=64, shuffle=True)
    with pytest.raises(DataError, match="shuffles"):
        SelectiveClassifier(model, 0.08).calibrate(shuffled, groups=[0] * 1409)


def test_an_evaluation_has_the_guarantee_and_what_is_answered(model, held, new, tmp_path):
    triage = SelectiveClassifier(model, 0.2, 0.9).calibrate(held)
    x, y = new
    groups = ["ab"[k % 2] for k in range(len(y))]
    result = triage.evaluate(new, groups=groups)
    (row,) = result.rows
    plain = po.evaluate(model, new).rows[0]
    assert row["metrics"]["nll"] == plain["metrics"]["nll"]
    details = row["details"]
    assert details["guarantee"]["said"] == [str(triage.guarantee)]
    assert details["guarantee"]["threshold"] == [triage.threshold]
    assert details["answered"] == triage.report(new, groups).columns
    assert po.Evaluation.from_json(result.to_json(tmp_path / "e.json")).rows[0]["details"]["answered"]["n"][0] == len(y)


def test_it_is_kept_as_json(model, held, new, tmp_path):
    chosen = SelectiveClassifier(model, 0.08, foreign=0.05, draws=7).calibrate(held)
    path = tmp_path / "selective.json"
    record = chosen.to_json(path)
    assert json.loads(path.read_text()) == json.loads(json.dumps(record))
    again = SelectiveClassifier.from_json(path, model)
    assert again.guarantee == chosen.guarantee
    assert again.predict(new[0]).reason == chosen.predict(new[0]).reason
    assert repr(again.report()) == repr(chosen.report())
    for wrong in ({}, {**record, "kind": "conformal"}, {**record, "guarantee": {}}):
        with pytest.raises(StorageError, match="selective"):
            SelectiveClassifier.from_json(wrong, model)
    with pytest.raises(StorageError):
        SelectiveClassifier.from_json(tmp_path / "nothing.json", model)


def test_a_changed_model_is_refused(model, held, new):
    chosen = SelectiveClassifier(model, 0.08).calibrate(held)
    record = chosen.to_json()
    model.propagation = po.Propagation(po.Rules(activations="slope"))  # does not touch draws
    assert chosen.predict(new[0]).coverage > 0
    model.temperature = 1.5
    with pytest.raises(CompatibilityError, match=r"temperature.*it was 1.0 and is 1.5.*calibrate again"):
        chosen.predict(new[0])
    with pytest.raises(CompatibilityError, match="temperature"):
        SelectiveClassifier.from_json(record, model)
    model.temperature = 1.0
    propagated = SelectiveClassifier(model, 0.08, via="propagation").calibrate(held)
    model.propagation = po.Propagation()
    with pytest.raises(CompatibilityError, match="the propagation of the model changed"):
        propagated.report(new)
    few = (held[0][:53], held[1][:53])
    network = nn.Sequential(nn.Linear(5, 11), nn.Tanh(), nn.Linear(11, 3))
    other = po.fit(network, few, po.Categorical(NAMES), po.IVON(), epochs=1, progress=False, seed=0)
    with pytest.raises(CompatibilityError, match="the weights of the model changed"):
        SelectiveClassifier.from_json(record, other)


def test_a_loaded_run_is_the_same_model(model, held, new, tmp_path):
    chosen = SelectiveClassifier(model, 0.08).calibrate(held)
    model.save(tmp_path / "run")
    network = nn.Sequential(nn.Linear(5, 11), nn.Tanh(), nn.Linear(11, 3))
    again = SelectiveClassifier.from_json(chosen.to_json(), po.load(tmp_path / "run", network))
    assert again.predict(new[0]).reason == chosen.predict(new[0]).reason


def test_what_it_is_not_for(model, held, new):
    with pytest.raises(CompatibilityError, match="not calibrated"):
        SelectiveClassifier(model).predict(new[0])
    with pytest.raises(CompatibilityError, match="not calibrated"):
        SelectiveClassifier(model).to_json()
    for options, words in (
        ({"by": "sureness"}, "by must be one of"),
        ({"foreign": 5}, "fraction"),
        ({"max_risk": 2}, "frac"),
    ):
        with pytest.raises(DataError, match=words):
            SelectiveClassifier(model, **options)
    with pytest.raises(DataError, match="makes no predictions"):
        SelectiveClassifier(nn.Linear(2, 2))
    x = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
    line = po.fit(nn.Linear(3, 1), (x, x[:, 0]), "gaussian", po.MAP(), epochs=1, progress=False)
    with pytest.raises(CompatibilityError, match="one class per row"):
        SelectiveClassifier(line).calibrate((x, x[:, 0]))


def test_an_estimator_with_labels_of_its_own():
    estimators = pytest.importorskip("posterity.interfaces.sklearn")
    x, names = rows(500, 5)
    frame, y = pandas.DataFrame(x.numpy(), columns=list("abcde")), pandas.Series(names).to_numpy() == "dull"
    estimator = estimators.PosterityClassifier("map", network="linear", epochs=8, batch_size=50, random_state=0)
    with pytest.raises(DataError, match="was not fitted"):
        SelectiveClassifier(estimator)
    estimator.fit(frame[:200], y[:200])
    held = frame[200:]
    chosen = SelectiveClassifier(estimator, 0.3).calibrate((held, y[200:]))
    answers = chosen.predict(held)
    assert answers.label.dtype == bool
    assert (answers.label == estimator.predict(held)).all()
    wrong = (answers.label != y[200:]) & answers.answered.numpy()
    assert (chosen.guarantee.answered, chosen.guarantee.errors) == (int(answers.answered.sum()), int(wrong.sum()))
    assert chosen.report()["group"] == ["all", "False", "True", "False", "True"]
    assert answers.to_frame()["label"].tolist() == answers.label.tolist()
    with pytest.raises(CompatibilityError, match="set them there"):
        SelectiveClassifier(estimator, draws=3)
    with pytest.raises(DataError, match="does not know: 'new'"):
        chosen.report((held, ["new"] * len(held)))
    with pytest.raises(DataError, match="pair"):
        chosen.report(held)


@pytest.mark.slow
def test_the_risk_of_a_model_is_as_promised(model):
    """400 calibrations of 500 rows; the risk of what is answered is counted on 60,000 rows, to 0.001."""
    inputs, names = rows(60_000, 11)
    pred = model.predict(inputs)
    correct = torch.tensor([one == other for one, other in zip(pred.label, names)])
    exceeded = answers = 0
    for seed in range(400):
        chosen = SelectiveClassifier(model, 0.1)
        chosen.calibrate(rows(500, 1000 + seed))
        inside = pred.confidence.double() >= chosen.threshold
        answers += chosen.guarantee.holds
        exceeded += bool(inside.any()) and (~correct[inside]).double().mean().item() > 0.1 + 0.001
    assert answers > 300
    assert exceeded / 400 <= 0.05 + 2 * math.sqrt(0.05 * 0.95 / 400)
