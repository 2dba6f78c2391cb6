"""Rows fed in blocks, the metrics by name, and the result object."""

import json
import math
import sys
import time
from dataclasses import dataclass

import pytest
import torch
from rich.console import Console

from posterity.errors import CompatibilityError, DataError, ShapeError, StorageError
from posterity.evaluation.calibration import ece
from posterity.evaluation.detection import aupr, auroc, fpr_at_tpr
from posterity.evaluation.evaluation import Evaluation
from posterity.evaluation.metric import Metric
from posterity.evaluation.metrics import classification_metrics, direction, regression_metrics
from posterity.evaluation.rows import Rows
from posterity.evaluation.selective import aurc
from posterity.prediction.predictive import reducer
from posterity.problem.likelihoods import Tokens


@dataclass
class Classes:
    """Class probabilities [rows, classes] and what follows from them, computed once so that a slice is a slice."""

    log_probs: torch.Tensor
    probs: torch.Tensor
    entropy: torch.Tensor
    epistemic: torch.Tensor

    @classmethod
    def of(cls, logits):
        """The mixture of draws, from logits [draw, row, class]."""
        draws = logits.softmax(-1)
        probs = draws.mean(0)
        entropy = torch.special.entr(probs).sum(-1)
        expected = torch.special.entr(draws).sum(-1).mean(0)
        return cls(probs.log(), probs, entropy, entropy - expected if len(logits) > 1 else torch.zeros_like(entropy))

    @property
    def confidence(self):
        return self.probs.amax(-1)

    def log_prob(self, targets):
        return self.log_probs.gather(1, targets[:, None])[:, 0]

    def __getitem__(self, rows):
        return Classes(self.log_probs[rows], self.probs[rows], self.entropy[rows], self.epistemic[rows])


@dataclass
class Normals:
    """Independent normals, [rows] or [rows, outputs]."""

    mean: torch.Tensor
    std: torch.Tensor

    def log_prob(self, y):
        density = torch.distributions.Normal(self.mean, self.std).log_prob(y)
        return density if density.ndim == 1 else density.sum(1)

    def crps(self, y):
        z = (y - self.mean) / self.std
        density = torch.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)
        return self.std * (z * (2 * torch.special.ndtr(z) - 1) + 2 * density - 1 / math.sqrt(math.pi))

    def cdf(self, y):
        return torch.special.ndtr((y - self.mean) / self.std)

    def quantile(self, q):
        return self.mean + self.std * torch.special.ndtri(torch.tensor(q))

    def interval(self, level):
        return self.quantile((1 - level) / 2), self.quantile((1 + level) / 2)


FAMILIAR = [
    "nll", "accuracy", "brier", "ece", "aurc", "lppd", "ece_mass", "ece_classwise", "confidence_gap", "excess_aurc",
]  # fmt: skip


def logits(rows, seed=0, draws=11):
    return 2 * torch.randn(draws, rows, 5, generator=torch.Generator().manual_seed(seed))


def classes(rows, seed=0, draws=11):
    targets = torch.randint(5, (rows,), generator=torch.Generator().manual_seed(seed + 1))
    return Classes.of(logits(rows, seed, draws)), targets


def assert_same(metrics, expected):
    """Equal but for the order of float64 sums over at most 37 rows and 5 classes."""
    assert list(metrics) == list(expected)
    for name, metric in metrics.items():
        assert metric[:3] == pytest.approx(expected[name][:3], rel=1e-12, nan_ok=True)
        assert metric[3:] == expected[name][3:]


def evaluation(method="map", **metrics):
    return Evaluation([{"method": method, "via": "mean", "metrics": metrics}])


def rendered(table):
    console = Console(width=160, color_system="standard", force_terminal=True)
    with console.capture() as capture:
        console.print(table)
    return capture.get()


# --- metrics by name


def test_classification_by_hand():
    probs = torch.tensor([[0.5, 0.5, 0.0], [0.0, 0.25, 0.75], [0.0, 0.0, 1.0]])
    metrics = classification_metrics(Classes.of(probs.log()[None]), torch.tensor([0, 1, 2]))
    assert list(metrics) == [*FAMILIAR, "coverage_at_risk_0.005", "coverage_at_risk_0.01", "coverage_at_risk_0.05"]
    assert metrics["nll"].value == pytest.approx((math.log(2) + math.log(4)) / 3)
    assert metrics["accuracy"].value == pytest.approx(2 / 3)
    assert metrics["brier"].value == pytest.approx((0.5 + 2 * 0.75**2) / 3)
    assert metrics["ece"].value == pytest.approx((0.5 + 0.75) / 3)
    # surest first: right, wrong, right: risks 0, 1/2, 1/3
    assert metrics["aurc"].value == pytest.approx((1 / 2 + 1 / 3) / 3)
    assert metrics["excess_aurc"].value == pytest.approx((1 / 2 + 1 / 3) / 3 - 1 / 9)  # the error last: risks 0, 0, 1/3
    assert metrics["confidence_gap"].value == pytest.approx((0.5 + 0.75 + 1) / 3 - 2 / 3)
    assert metrics["lppd"].value == -metrics["nll"].value
    assert metrics["coverage_at_risk_0.05"].value == pytest.approx(1 / 3)
    # each class apart, in bins of 1/15: |0 - 0| + |0.5 - 1| / 3; the same; and (0.75 + 0) / 3: right, but for class 1
    assert metrics["ece_classwise"].value == pytest.approx((0.5 / 3 + (0.5 + 0.75) / 3 + 0.75 / 3) / 3)
    assert {metric.n for metric in metrics.values()} == {3}


def test_foreign_sets_are_named_and_turned_the_right_way():
    pred, targets = classes(37)
    unsure, sure = Classes.of(logits(37) / 10), Classes.of(50 * logits(37)[:1].expand(11, -1, -1))
    metrics = classification_metrics(pred, targets, ood={"letters": unsure, "patches": sure})
    names = [name for name in metrics if name.startswith("ood_")]
    measures = ("", "_epistemic", "_confidence")
    assert names == [
        f"ood_{name}{measure}{behind}"
        for behind in ("", "_patches") for measure in measures for name in ("auroc", "aupr_out", "aupr_in", "fpr95")
    ]  # fmt: skip
    assert metrics["ood_auroc"].value > 0.9 > 0.1 > metrics["ood_auroc_patches"].value
    assert metrics["ood_auroc"] == auroc(pred.entropy, unsure.entropy)
    assert metrics["ood_auroc_epistemic_patches"] == auroc(pred.epistemic, sure.epistemic)
    assert metrics["ood_auroc_confidence"] == auroc(1 - pred.confidence.double(), 1 - unsure.confidence.double())
    assert metrics["ood_aupr_out"] == aupr(unsure.entropy, pred.entropy)
    assert metrics["ood_aupr_in"] == aupr(-pred.entropy, -unsure.entropy)
    assert metrics["ood_fpr95"] == fpr_at_tpr(pred.entropy, unsure.entropy)
    assert {metrics[name].n for name in names} == {74}


def test_a_point_prediction_has_no_epistemic_detection():
    (pred, targets), (foreign, _) = classes(7, draws=1), classes(3, seed=5, draws=1)
    metric = classification_metrics(pred, targets, ood={"letters": foreign})["ood_auroc_epistemic"]
    assert math.isnan(metric.value)
    assert metric.reason == "every row has the same value"


def test_a_foreign_set_must_not_take_the_name_of_another_metric():
    pred, targets = classes(7)
    with pytest.raises(DataError, match="epistemic"):
        classification_metrics(pred, targets, ood={"letters": pred, "epistemic": pred})


def test_no_rows_are_undefined_and_no_foreign_rows_an_error():
    empty = Classes.of(torch.zeros(11, 0, 5))
    metrics = classification_metrics(empty, torch.zeros(0, dtype=torch.int64))
    assert all(math.isnan(metric.value) and metric.reason == "no rows" for metric in metrics.values())
    assert len(metrics) == len(FAMILIAR) + 3
    pred, targets = classes(7)
    with pytest.raises(DataError, match="7 in-distribution and 0"):
        classification_metrics(pred, targets, ood={"letters": empty})
    with pytest.raises(DataError, match="nothing was fed"):
        classification_metrics(Rows())


def test_regression_by_hand():
    y = torch.tensor([0.0, 2.0, -4.0])
    metrics = regression_metrics(Normals(torch.zeros(3), torch.full((3,), 2.0)), y, levels=(0.9, 0.5))
    levels = [
        f"{name}{behind}"
        for behind in ("", "_0.5")
        for name in ("interval_coverage", "interval_width", "interval_score")
    ]
    assert list(metrics) == ["nll", "rmse", "crps", *levels, "lppd", "quantile_loss"]
    assert metrics["nll"].value == pytest.approx(math.log(2) + math.log(2 * math.pi) / 2 + (0 + 1 + 4) / 6)
    assert metrics["rmse"].value == pytest.approx(math.sqrt(20 / 3))
    # the central intervals of N(0, 2^2): +-3.29 and +-1.349
    assert metrics["interval_coverage"].value == pytest.approx(2 / 3)
    assert metrics["interval_width"].value == pytest.approx(2 * 2 * 1.6448536, rel=1e-6)
    assert metrics["interval_coverage_0.5"].value == pytest.approx(1 / 3)
    assert metrics["interval_width_0.5"].value == pytest.approx(2 * 2 * 0.6744898, rel=1e-6)
    # outside by 4 - 3.29 once, times 2 / 0.1
    assert metrics["interval_score"].value == pytest.approx(4 * 1.6448536 + 20 * (4 - 2 * 1.6448536) / 3, rel=1e-5)
    # pinball: 0.05 (y + 3.29) above the 0.05 quantile, 0.95 (-3.29 - y) below it, and so on for the others
    loss = 0.0
    for q, z in ((0.5, 0.0), (0.05, -1.6448536), (0.95, 1.6448536), (0.25, -0.6744898), (0.75, 0.6744898)):
        loss += sum(max(q * (each - 2 * z), (q - 1) * (each - 2 * z)) for each in (0.0, 2.0, -4.0)) / 15
    assert metrics["quantile_loss"].value == pytest.approx(loss, rel=1e-6)


def test_regression_of_several_outputs_counts_rows():
    mean, std, y = torch.zeros(7, 3), torch.ones(7, 3), torch.arange(21.0).reshape(7, 3) / 5
    metrics = regression_metrics(Normals(mean, std), y)
    one = [regression_metrics(Normals(mean[:, i], std[:, i]), y[:, i]) for i in range(3)]
    assert {metric.n for metric in metrics.values()} == {7}
    assert metrics["nll"].value == pytest.approx(sum(m["nll"].value for m in one))
    for name in ("crps", "interval_coverage", "interval_width"):
        assert metrics[name].value == pytest.approx(sum(m[name].value for m in one) / 3)
    assert metrics["rmse"].value ** 2 == pytest.approx(sum(m["rmse"].value ** 2 for m in one) / 3)


def test_regression_scales_with_the_units():
    y = torch.linspace(-2, 3, 7)
    plain = regression_metrics(Normals(torch.zeros(7), torch.ones(7)), y)
    scaled = regression_metrics(Normals(torch.full((7,), 1000.0), torch.full((7,), 10.0)), 1000 + 10 * y)
    # float32 targets near 1000 are rounded to 2^-15, that is 3e-6 of their std
    for name in ("rmse", "crps", "interval_width"):
        assert scaled[name].value == pytest.approx(10 * plain[name].value, rel=1e-5)
    assert scaled["nll"].value == pytest.approx(plain["nll"].value + math.log(10), rel=1e-5)
    assert scaled["interval_coverage"] == plain["interval_coverage"]


def test_targets_are_aligned_but_never_broadcast():
    pred = Normals(torch.zeros(7), torch.ones(7))
    assert regression_metrics(pred, torch.ones(7, 1)) == regression_metrics(pred, torch.ones(7))
    with pytest.raises(ShapeError):
        regression_metrics(pred, torch.ones(3))
    with pytest.raises(DataError, match="NaN"):
        regression_metrics(pred, torch.full((7,), math.nan))
    with pytest.raises(DataError, match="without its targets"):
        regression_metrics(pred)


# --- rows


@pytest.mark.parametrize("size", [1, 3, 7, 100])
def test_blocks_do_not_change_a_metric(size):
    (pred, targets), (foreign, _) = classes(37), classes(11, seed=3)
    rows, outside = Rows(), Rows()
    for start in range(0, 37, size):
        rows.feed(pred[start : start + size], targets[start : start + size])
    for start in range(0, 11, size):
        outside.feed(foreign[start : start + size])
    assert len(rows) == 37
    expected = classification_metrics(pred, targets, ood={"a": foreign})
    assert_same(classification_metrics(rows, ood={"a": outside}), expected)


def test_rows_of_two_ranks_add_up():
    pred, targets = classes(37)
    first, second = Rows(), Rows()
    first.feed(pred[:11], targets[:11])
    second.feed(pred[11:], targets[11:])
    assert_same(classification_metrics(first + second), classification_metrics(pred, targets))
    assert len(first) == 11
    assert_same(classification_metrics(first + Rows()), classification_metrics(first))


def test_rows_keep_a_few_numbers_per_row_only():
    rows = Rows()
    for seed in range(3):
        rows.feed(*classes(7, seed))
    kept = sum(rows[name].numel() * rows[name].element_size() for name in rows)
    assert kept <= 41 * 21
    assert {name: tuple(rows[name].shape) for name in rows} == dict.fromkeys(rows, (21,))


def test_a_hundred_thousand_rows_are_fast():
    (pred, targets), (foreign, _) = classes(100_003, draws=2), classes(100_003, seed=5, draws=2)
    start = time.process_time()
    classification_metrics(pred, targets, ood={"letters": foreign})
    # 2 s, most of it for three coverages at a risk; 1000 replicates with a sort each would take minutes
    assert time.process_time() - start < 10


def test_rows_feed_the_single_metrics():
    pred, targets = classes(37)
    rows = Rows()
    rows.feed(pred, targets)
    metrics = classification_metrics(rows, bins=5)
    assert metrics["ece"] == ece(rows["confidence"], rows["correct"], bins=5)
    assert metrics["aurc"] == aurc(rows["confidence"], rows["correct"])


def test_a_label_that_does_not_count_leaves_its_row_out():
    pred, targets = classes(7)
    pred.canonical = lambda labels: labels
    pred.log_prob = lambda labels: pred.log_probs.gather(1, labels.clamp(min=0)[:, None])[:, 0]
    expected = classification_metrics(pred[2:], targets[2:])
    targets[:2] = -100
    assert_same(classification_metrics(pred, targets), expected)


def test_the_label_is_that_of_the_logs_where_probabilities_are_equal():
    # exp(-2e-9) and exp(-1e-9) are both 1.0 in float32
    log_probs = torch.tensor([[-2e-9, -1e-9]])
    pred = Classes(log_probs, log_probs.exp(), torch.zeros(1), torch.zeros(1))
    assert pred.probs.tolist() == [[1, 1]]
    assert classification_metrics(pred, torch.tensor([1]))["accuracy"].value == 1


def test_mistakes_with_rows():
    pred, targets = classes(7)
    rows = Rows()
    rows.feed(pred, targets)
    with pytest.raises(DataError, match="does not continue"):
        rows.feed(pred)
    with pytest.raises(DataError, match="leave the targets out"):
        classification_metrics(rows, targets)
    numbers = Rows()
    numbers.feed(Normals(torch.zeros(7), torch.ones(7)), torch.zeros(7))
    with pytest.raises(DataError, match="no covered_0.6"):
        regression_metrics(numbers, levels=(0.6,))
    with pytest.raises(ShapeError, match="all of one length"):
        Rows().add({"a": torch.zeros(7), "b": torch.zeros(3)})
    with pytest.raises(ShapeError, match="one class per row"):
        Rows().feed(pred, targets[:3])
    with pytest.raises(DataError, match=r"0\.\.4, got 0\.\.5"):
        Rows().feed(pred, torch.tensor([0, 1, 2, 3, 4, 5, 0]))
    pred.probs[2] = math.nan
    with pytest.raises(DataError, match=r"probs is NaN in 1 row \(2\)"):
        Rows().feed(pred, targets)


def test_a_row_of_tokens_counts_once():
    draw = torch.randn(7, 4, 5, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([[0, 1, 2, 3]] * 6 + [[-100] * 4])
    labels[0, 3] = -100
    reduced = reducer(Tokens())
    reduced.add(draw)
    rows = Rows()
    rows.feed(reduced.result(), labels)
    assert len(rows) == 6  # the last row has no token that counts
    chosen = draw[0, :2].log_softmax(-1)  # positions 0 and 1 say what tokens 1 and 2 are; token 3 is ignored
    assert rows["log_prob"][0].item() == pytest.approx((chosen[0, 1] + chosen[1, 2]).item(), abs=1e-6)
    hits = (chosen.argmax(-1) == torch.tensor([1, 2])).double().mean().item()
    assert rows["hits"][0].item() == pytest.approx(hits)
    metrics = classification_metrics(rows)
    assert metrics.keys() == {"nll", "accuracy", "lppd"}
    assert metrics["nll"].n == 6
    assert metrics["nll"].value == pytest.approx(-rows["log_prob"].double().mean().item())


# --- the result


def test_json_has_exactly_the_documented_shape(tmp_path):
    result = evaluation(nll=Metric(0.5, 0.4, 0.6, 7), ood_auroc_epistemic=Metric.undefined(10, "one value"))
    expected = {
        "rows": [
            {
                "method": "map",
                "via": "mean",
                "metrics": {
                    "nll": {"value": 0.5, "low": 0.4, "high": 0.6, "n": 7},
                    "ood_auroc_epistemic": {"value": None, "low": None, "high": None, "n": 10, "reason": "one value"},
                },
            }
        ]
    }
    path = tmp_path / "evaluation.json"
    assert result.to_json(path) == expected
    assert result.to_json() == expected
    assert json.loads(path.read_text("utf-8"), parse_constant=pytest.fail) == expected
    assert [file.name for file in tmp_path.iterdir()] == ["evaluation.json"]
    assert Evaluation.from_json(path).to_json() == expected
    assert Evaluation.from_json(expected).to_json() == expected


def test_settings_come_back_and_are_left_out_when_empty():
    result = Evaluation(evaluation(nll=Metric(1.0, 0.0, 2.0, 3)).rows, {"bins": 15, "levels": (0.9, 0.5)})
    record = result.to_json()
    assert record["settings"] == {"bins": 15, "levels": [0.9, 0.5]}
    assert Evaluation.from_json(record).to_json() == record
    assert "settings" not in evaluation().to_json()


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "evaluation.json"
    evaluation(nll=Metric(1.0, 0.0, 2.0, 3)).to_json(path)
    before = path.read_bytes()
    with pytest.raises(StorageError, match="object"):
        Evaluation([], {"object": object()}).to_json(path)
    assert path.read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"rows": [{}]}', '{"rows": [{"method": "a", "via": "b"}]}'])
def test_files_that_are_no_evaluation_are_named(tmp_path, text):
    path = tmp_path / "broken.json"
    path.write_text(text)
    with pytest.raises(StorageError, match=r"broken\.json"):
        Evaluation.from_json(path)


def test_evaluations_add_up():
    first, second = evaluation("map", nll=Metric(1.0, 0.0, 2.0, 3)), evaluation("ivon", rmse=Metric(1.0, 0.0, 2.0, 3))
    both = first + second
    assert [row["method"] for row in both.rows] == ["map", "ivon"]
    assert len(first.rows) == 1
    settings = (Evaluation([], {"bins": 15}) + Evaluation([], {"level": 0.9})).settings
    assert settings == {"bins": 15, "level": 0.9}
    with pytest.raises(CompatibilityError, match="bins"):
        Evaluation([], {"bins": 15}) + Evaluation([], {"bins": 10})


def test_seeds_are_one_line_of_a_table():
    rows = [
        {"method": "map", "via": "mean", "seed": seed, "metrics": {"nll": Metric(value, 0.0, 9.0, 7)}}
        for seed, value in ((3, 1.0), (5, 2.0), (7, 6.0))
    ]
    rows[1]["details"] = {"pit": {"count": [1]}}
    result = Evaluation(rows, {"data": "x"})
    (row,) = result.over_seeds().rows
    # std sqrt(7), t of 2 degrees of freedom 4.302653
    half = 4.302653 * math.sqrt(7 / 3)
    assert row["metrics"]["nll"][:4] == pytest.approx((3.0, 3.0 - half, 3.0 + half, 3), rel=1e-6)
    assert row["details"] == {"pit": {"count": [1]}}
    assert rendered(result.table()).count("map") == 1
    assert Evaluation.from_json(result.to_json()) == result
    pytest.importorskip("pandas")
    assert result.to_frame()["seed"].tolist() == [3, 5, 7]


def test_a_seed_without_a_value_leaves_the_mean_undefined():
    rows = [
        {"method": "map", "via": "mean", "seed": seed, "metrics": {"ood_auroc": metric}}
        for seed, metric in enumerate([Metric(0.5, 0.4, 0.6, 7), Metric.undefined(7, "every row has the same value")])
    ]
    (row,) = Evaluation(rows).over_seeds().rows
    assert math.isnan(row["metrics"]["ood_auroc"].value)
    assert row["metrics"]["ood_auroc"].reason == "every row has the same value"


@pytest.mark.parametrize(
    ("name", "sign"),
    [("accuracy", 1), ("nll", -1), ("ece_mass", -1), ("excess_aurc", -1), ("coverage_at_risk_0.01", 1), ("lppd", 1),
     ("effective_reliability_10", 1), ("ood_fpr95_noise", -1), ("ood_aupr_in_confidence", 1), ("confidence_gap", 0),
     ("interval_coverage_0.5", 0), ("interval_width", 0), ("interval_score_0.5", -1)],
)  # fmt: skip
def test_which_way_is_better(name, sign):
    assert direction(name) == sign


def test_frame_is_tidy():
    pandas = pytest.importorskip("pandas")
    frame = evaluation(nll=Metric(0.5, 0.4, 0.6, 7), aurc=Metric.undefined(0, "no rows")).to_frame()
    assert list(frame.columns) == ["method", "via", "metric", "value", "low", "high", "n", "reason"]
    assert frame.loc[0].tolist()[:7] == ["map", "mean", "nll", 0.5, 0.4, 0.6, 7]
    assert math.isnan(frame.loc[1, "value"])
    assert frame.loc[1, "reason"] == "no rows"
    wide = frame.pivot(index=["method", "via"], columns="metric", values="value")
    assert wide.loc[("map", "mean"), "nll"] == 0.5
    assert isinstance(Evaluation().to_frame(), pandas.DataFrame)


def test_frame_without_pandas_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match=r"posterity\[tables\]"):
        evaluation().to_frame()


def test_table_shows_the_best_in_bold_and_the_reasons():
    better = evaluation("better[x]", nll=Metric(0.25, 0.2, 0.3, 7), accuracy=Metric(0.75, 0.5, 1.0, 7))
    worse = evaluation("worse", nll=Metric(0.5, 0.4, 0.6, 7), ood_auroc=Metric.undefined(9, "every row has one value"))
    text = rendered((better + worse).table())
    assert "better[x]" in text
    assert "\x1b[1m0.2500\x1b[0m" in text
    assert "0.5000" in text
    assert "\x1b[1m0.5000" not in text
    assert "\x1b[1m0.7500" not in text  # the only accuracy
    assert "±0.0500" in text
    assert "ood_auroc: every row has one value (worse" in " ".join(text.split())
    assert text.index("accuracy") < text.index("nll")


def test_table_of_widths_has_no_best():
    both = evaluation(interval_width=Metric(1.0, 0.9, 1.1, 7)) + evaluation(interval_width=Metric(2.0, 1.9, 2.1, 7))
    assert "\x1b[1m1.000" not in rendered(both.table())
    assert "1.000" in rendered(both.table())
