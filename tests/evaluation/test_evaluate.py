"""`evaluate` and `compare`: models, other people's predictions, groups, details and paired differences."""

import base64
import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import posterity as po
from posterity.errors import CompatibilityError, DataError, ShapeError
from posterity.evaluation.details import classification_details, regression_details
from posterity.evaluation.rows import LEVELS, Rows

ROWS, CLASSES = 77, 5


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.fixture(scope="module")
def probs():
    return (2 * torch.randn(ROWS, CLASSES, generator=generator())).softmax(-1)


@pytest.fixture(scope="module")
def labels():
    return torch.randint(CLASSES, (ROWS,), generator=generator(1))


@pytest.fixture(scope="module")
def regression():
    x = torch.linspace(-2, 2, 121)[:, None]
    y = 100 + 20 * x[:, 0] + 3 * torch.randn(121, generator=generator(2))
    model = po.fit(lambda: nn.Linear(1, 1), (x, y), "gaussian", po.DeepEnsemble(3), epochs=3, seed=0, progress=False)
    return model, x, y


@pytest.fixture(scope="module")
def classifier(labels):
    x = torch.randn(ROWS, 1, 4, 3, generator=generator(3))
    return po.fit(
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(12, CLASSES)),
        (x, labels),
        method=po.MeanFieldVI(),
        epochs=2,
        seed=0,
        progress=False,
    ), x


def value(result, name, row=0):
    return result.rows[row]["metrics"][name].value


# --- bare predictions


def test_probabilities_are_enough(probs, labels):
    result = po.evaluate(probs, labels)
    chosen = probs[torch.arange(ROWS), labels].double()
    assert result.rows[0]["method"] == "given"
    assert value(result, "nll") == pytest.approx(-chosen.log().mean().item(), rel=1e-6)
    assert value(result, "accuracy") == pytest.approx((probs.argmax(1) == labels).double().mean().item())
    assert po.evaluate(probs.numpy(), labels.tolist()).to_json() == result.to_json()


def test_probabilities_of_draws_are_mixed(labels):
    draws = torch.randn(11, ROWS, CLASSES, generator=generator(5)).softmax(-1)
    mixed = po.evaluate(draws, labels, ood={"flat": torch.full((11, 7, CLASSES), 1 / CLASSES)})
    assert value(mixed, "nll") == pytest.approx(value(po.evaluate(draws.mean(0), labels), "nll"), rel=1e-6)
    assert value(mixed, "ood_auroc_epistemic") == 0  # draws that agree know more than those that do not


def test_frames_of_predictions(probs, labels):
    pandas = pytest.importorskip("pandas")
    names = ["e", "d", "c", "b", "a"]  # columns name their classes, in any order
    frame = pandas.DataFrame({f"p_{name}": probs[:, i] for i, name in enumerate(names)})
    named = np.array(names)[labels]
    result = po.evaluate(frame, named, groups=pandas.Series(named, name="letter"))
    assert value(result, "nll") == pytest.approx(value(po.evaluate(probs, labels), "nll"))
    groups = result.rows[0]["details"]["groups"]
    assert set(groups["by"]) == {"letter", "class"}
    by_letter = [line[1:] for line in zip(*groups.values()) if line[0] == "letter"]
    by_class = [line[1:] for line in zip(*groups.values()) if line[0] == "class"]
    assert by_letter == by_class
    numbers = pandas.DataFrame({"mean": [0.0, 1.0, 2.0], "std": [1.0, 2.0, 3.0], "lower": -9.0, "upper": 9.0})
    assert value(po.evaluate(numbers, [0.0, 1.0, 2.0]), "rmse") == 0


def test_normal_predictions(regression):
    model, x, y = regression
    pred = model.predict(x)
    moments = po.evaluate({"mean": pred.mean, "std": pred.std}, y)
    for name in ("rmse", "crps", "interval_width"):  # a mixture of three that nearly agree is nearly normal
        assert value(moments, name) == pytest.approx(value(po.evaluate(model, (x, y)), name), rel=0.05)
    z = (y.double() - pred.mean.double()) / pred.std.double()
    exact = (0.5 * z.square() + pred.std.double().log() + 0.5 * math.log(2 * math.pi)).mean().item()
    assert value(moments, "nll") == pytest.approx(exact, rel=1e-6)


def test_intervals_alone_leave_the_density_undefined():
    given = {"mean": torch.zeros(7), "lower": torch.full((7,), -2.0), "upper": torch.full((7,), 1.0)}
    result = po.evaluate(given, torch.arange(-3.0, 4.0), levels=(0.8,))
    metrics = result.rows[0]["metrics"]
    assert metrics["interval_coverage_0.8"].value == pytest.approx(4 / 7)
    assert metrics["interval_score_0.8"].value == pytest.approx(3 + 10 * (1 + 1 + 2) / 7)
    assert math.isnan(metrics["nll"].value)
    assert metrics["nll"].reason == "no density was predicted, only intervals"
    assert {"intervals", "bands", "extremes"} == set(result.rows[0]["details"])
    with pytest.raises(DataError, match=r"level 0\.9: say levels=\(0\.9,\)"):
        po.evaluate(given, torch.zeros(7))


@pytest.mark.parametrize(
    ("given", "error", "match"),
    [
        (torch.full((3, 5), 0.3), DataError, r"add up to 1; one row's add up to 1\.5"),
        (torch.tensor([[0.5, math.nan]] * 3), DataError, "NaN"),
        (torch.tensor([[2.0, -1.0]] * 3), DataError, "logits or percents"),
        (torch.rand(3), ShapeError, "give both columns"),
        ({"mean": torch.zeros(3)}, DataError, "says nothing of its spread"),
        ({"mean": torch.zeros(3), "std": torch.zeros(3)}, DataError, "must be positive"),
        ({"mean": torch.zeros(3), "std": torch.ones(4)}, ShapeError, "differ"),
        ({"mean": torch.zeros(3), "std": torch.tensor([1.0, math.inf, 1.0])}, DataError, "std holds NaN or infinity"),
        ({"location": torch.zeros(3)}, DataError, "the columns are location"),
        ("probs.csv", DataError, "neither a fitted model nor predictions: str"),
    ],
)
def test_predictions_that_cannot_be_read(given, error, match):
    with pytest.raises(error, match=match):
        po.evaluate(given, torch.zeros(3, dtype=torch.int64))


def test_targets_that_are_words_need_labels(probs, labels):
    words = np.array(["a", "b", "c", "d", "e"])[labels]
    with pytest.raises(DataError, match="which column"):
        po.evaluate(probs, words)
    found = po.evaluate(probs, words, labels=["a", "b", "c", "d", "e"])
    assert value(found, "nll") == pytest.approx(value(po.evaluate(probs, labels), "nll"))


def test_bad_rows_of_probabilities_are_named(probs, labels):
    bad = probs.clone()
    bad[3, 1] = math.nan
    with pytest.raises(DataError, match=r"NaN in 1 row \(3\)"):
        po.evaluate(bad, labels)
    with pytest.raises(DataError, match="between 0 and 1, got 90"):
        po.evaluate({"mean": [0.0, 1.0], "std": [1.0, 1.0]}, [0.0, 1.0], levels=(90,))


def test_options_of_a_model_do_not_go_with_predictions(probs, labels):
    with pytest.raises(CompatibilityError, match="predictions are made already"):
        po.evaluate(probs, labels, draws=7)


# --- thresholds, groups, details


def test_the_threshold_is_picked_on_validation_rows():
    sure = torch.tensor([[0.9, 0.1]] * 4 + [[0.6, 0.4]] * 3)
    right, wrong = torch.zeros(7, dtype=torch.int64), torch.tensor([0, 0, 0, 0, 1, 1, 0])
    result = po.evaluate(sure, right, validation=(sure, wrong))
    # on validation the less sure rows are wrong in 2 of 3: answering them pays 1 - 2 c < 0
    assert value(result, "effective_reliability_1") == pytest.approx(4 / 7)
    assert value(result, "effective_reliability_10") == pytest.approx(4 / 7)
    assert "effective_reliability_1" not in po.evaluate(sure, right).rows[0]["metrics"]


def test_groups_hold_what_their_rows_give(regression):
    model, x, y = regression
    side = np.where(x[:, 0].numpy() < 0.3, "left", "right")
    result = po.evaluate(model, (x, y), groups={"side": side, "odd": np.arange(121) % 2})
    table = result.rows[0]["details"]["groups"]
    lines = {line[:3]: line[3:] for line in zip(*table.values())}
    assert set(table["by"]) == {"side", "odd"}
    left = torch.from_numpy(side == "left")
    alone = po.evaluate(model, (x[left], y[left])).rows[0]["metrics"]
    for name in ("rmse", "nll", "crps", "interval_coverage", "interval_width"):
        assert lines["side", "left", name][:4] == pytest.approx(tuple(alone[name])[:4], rel=1e-6)
    assert lines["odd", "1", "rmse"][3] == 60
    with pytest.raises(ShapeError, match="one value for each of the 121 rows"):
        po.evaluate(model, (x, y), groups=side[:7])


def test_rows_left_out_do_not_shift_the_groups(probs, labels):
    void = labels.clone()
    void[:7] = -100
    groups = np.array(["a"] * 7 + ["b"] * 70)
    table = po.evaluate(probs, void, groups=groups).rows[0]["details"]["groups"]
    assert {line[1] for line in zip(*table.values()) if line[0] == "group"} == {"b"}


def test_missing_and_mixed_groups_have_a_name(probs, labels):
    groups = np.array([None, 3.0, math.nan, "x"] * 19 + ["x"], dtype=object)
    table = po.evaluate(probs, labels, groups=groups).rows[0]["details"]["groups"]
    assert {line[1] for line in zip(*table.values()) if line[0] == "group"} == {"missing", "3", "x"}


def test_a_shuffled_loader_cannot_have_groups(classifier, labels):
    model, x = classifier
    loader = DataLoader(TensorDataset(x, labels), batch_size=7, shuffle=True)
    with pytest.raises(DataError, match="the loader shuffles"):
        po.evaluate(model, loader, groups=np.zeros(ROWS))


def test_details_tell_what_the_metrics_tell(classifier, labels):
    model, x = classifier
    row = po.evaluate(model, (x, labels), ood={"big": 9 * x[:11]}).rows[0]
    table, metrics = row["details"], row["metrics"]
    assert sum(table["reliability"]["count"]) == ROWS
    shift = [n * gap for n, gap in zip(table["reliability"]["count"], table["reliability"]["gap"]) if n]
    assert sum(map(abs, shift)) / ROWS == pytest.approx(metrics["ece"].value)
    assert table["risk_coverage"]["answered"][-1] == ROWS
    assert table["risk_coverage"]["risk"][-1] == pytest.approx(1 - metrics["accuracy"].value)
    counts = zip(table["ood"]["set"], table["ood"]["measure"], table["ood"]["count"])
    assert sum(n for name, measure, n in counts if (name, measure) == ("big", "entropy")) == 11


def test_labels_of_a_foreign_set_are_ignored(classifier, labels):
    model, x = classifier
    plain, labelled = (
        po.evaluate(model, (x, labels), ood={"big": foreign}).rows[0]["metrics"]["ood_auroc"]
        for foreign in (9 * x[:11], (9 * x[:11], labels[:11]))
    )
    assert labelled == plain


def test_each_group_has_its_reliability(classifier, labels):
    model, x = classifier
    ward = np.where(np.arange(ROWS) < 20, "a", "b")
    table = po.evaluate(model, (x, labels), groups={"ward": ward}).rows[0]["details"]["group_reliability"]
    assert list(dict.fromkeys(zip(table["by"], table["group"]))) == [
        ("ward", "b"),
        ("ward", "a"),
    ]  # the larger one first
    alone = po.evaluate(model, (x[:20], labels[:20]), groups={"ward": ward[:20]}).rows[0]["details"][
        "group_reliability"
    ]
    places = [index for index, group in enumerate(table["group"]) if group == "a"]
    assert [table["count"][index] for index in places] == alone["count"]


def test_bands_say_of_which_level_they_are():
    said, y = {"mean": np.zeros(9), "std": np.ones(9)}, np.linspace(-1.0, 1.0, 9)
    details = po.evaluate(said, y, levels=(0.5, 0.8)).rows[0]["details"]
    assert details["bands"]["level"] == [0.5] * 9
    assert details["bands"]["upper"] == pytest.approx([0.6745] * 9, abs=1e-3)
    assert set(details["extremes"]["level"]) == {0.5}


def test_pictures_show_themselves(classifier, labels):
    model, x = classifier
    extremes = po.evaluate(model, (x, labels)).rows[0]["details"]["extremes"]
    wrong = len(extremes["which"]) - 20
    assert extremes["which"] == ["most"] * 10 + ["least"] * 10 + ["wrong"] * wrong
    assert not any(extremes["correct"][20:])
    assert (
        extremes["confidence"][0]
        >= extremes["confidence"][9]
        >= extremes["confidence"][19]
        >= extremes["confidence"][10]
    )
    picture = extremes["picture"][0]
    assert picture["shape"] == [4, 3]
    pixels = np.frombuffer(base64.b64decode(picture["data"]), np.uint8).reshape(4, 3)
    own = x[extremes["row"][0], 0]
    assert np.abs(pixels / 255 - ((own - own.min()) / (own.max() - own.min())).numpy()).max() < 1 / 255


def test_rows_can_be_shown_as_text_or_both(probs, labels):
    texts = po.evaluate(probs, labels, show=lambda row: f"row {row}").rows[0]["details"]["extremes"]
    assert texts["about"] == [f"row {row}" for row in texts["row"]]
    both = po.evaluate(probs, labels, show=lambda row: ("t", np.zeros((3, 2), np.uint8))).rows[0]["details"]["extremes"]
    assert both["about"][0] == "t"
    assert both["picture"][0]["shape"] == [3, 2]
    with pytest.raises(DataError, match="a picture is"):
        po.evaluate(probs, labels, show=lambda row: np.zeros(7))


def test_details_of_a_regression(regression):
    model, x, y = regression
    row = po.evaluate(model, (x, y)).rows[0]
    details, metrics = row["details"], row["metrics"]
    assert details["intervals"]["level"] == sorted(LEVELS)
    assert details["intervals"]["coverage"][2] == metrics["interval_coverage"].value
    assert details["intervals"]["interval_score"][0] == metrics["interval_score_0.5"].value
    assert sum(details["pit"]["count"]) == sum(details["spread"]["count"]) == 121
    assert details["bands"]["row"] == list(range(121))
    assert set(map(len, details["bands"].values())) == {121}
    extremes = details["extremes"]
    assert extremes["std"][0] <= extremes["std"][9] <= extremes["std"][19] <= extremes["std"][10]
    assert extremes["error"] == pytest.approx([m - t for m, t in zip(extremes["mean"], extremes["target"])], abs=1e-3)


def test_the_pit_of_counts_is_uniform():
    rate = torch.full((4001, 1), math.log(0.7))
    likelihood = po.Poisson()
    counts = torch.poisson(rate.exp()[:, 0], generator=generator(7))
    from posterity.prediction.predictive import PoissonMixture

    rows = Rows()
    rows.feed(PoissonMixture(likelihood, 1, "mean", rate[:, 0][None]), counts)
    assert rows["pit"].mean().item() == pytest.approx(0.5, abs=4 / math.sqrt(12 * 4001))
    below = (rows["pit"] < 0.25).double().mean().item()
    assert below == pytest.approx(0.25, abs=4 * math.sqrt(0.25 * 0.75 / 4001))


def test_few_rows_have_few_details():
    rows = Rows()
    assert classification_details(rows, {}, ()) == {}
    assert regression_details(rows, LEVELS) == {}
    one = po.evaluate(torch.tensor([[0.25, 0.75]]), torch.tensor([1])).rows[0]["details"]
    assert one["extremes"]["which"] == ["most"]
    assert one["risk_coverage"]["answered"] == [1]


# --- comparisons


def test_differences_are_paired(labels):
    noise = torch.randn(ROWS, CLASSES, generator=generator(11))
    base = noise.clone()
    base[torch.arange(ROWS), labels] += 1
    better = base.clone()
    better[torch.arange(ROWS), labels] += 0.05
    result = po.compare({"base": base.softmax(-1), "better": better.softmax(-1)}, labels)
    lines = {line[0]: dict(zip(result.differences, line)) for line in zip(*result.differences.values())}
    assert lines["nll"]["method"] == "better"
    assert lines["nll"]["baseline"] == "base"
    assert lines["nll"]["value"] == pytest.approx(value(result, "nll", 1) - value(result, "nll", 0))
    assert lines["nll"]["high"] < 0  # the pairs tell what the two intervals alone do not
    assert result.rows[1]["metrics"]["nll"].high > value(result, "nll", 0)
    assert result.differences["n"] == [ROWS] * len(lines)
    for name in ("accuracy", "brier", "ece", "aurc"):
        assert lines[name]["value"] == pytest.approx(value(result, name, 1) - value(result, name, 0), abs=1e-12)


def test_seeds_of_a_method_are_a_row_each(regression):
    model, x, y = regression
    other = po.fit(lambda: nn.Linear(1, 1), (x, y), "gaussian", epochs=2, seed=7, progress=False)
    result = po.compare({"ensemble": [model, model], "map": iter([other])}, (x, y), baseline="map")
    assert [(row["method"], row["seed"]) for row in result.rows] == [("ensemble", 0), ("ensemble", 0), ("map", 7)]
    assert ["details" in row for row in result.rows] == [True, False, True]
    assert set(result.differences["baseline"]) == {"map"}
    assert set(result.differences["metric"]) == {"nll", "rmse", "crps", "interval_score", "interval_width"}


def test_comparisons_that_cannot_be(probs, labels):
    with pytest.raises(DataError, match="no models"):
        po.compare({}, labels)
    with pytest.raises(DataError, match="'c' is not among the models: a, b"):
        po.compare({"a": probs, "b": probs}, labels, baseline="c")
