"""One table of edge cases, every value worked out by hand: p of 0 and 1, ties, empty bins, 0, 1 and 2 rows, one class."""

import math

import pytest
import torch

from posterity.errors import DataError
from posterity.evaluation.calibration import confidence_gap, ece, reliability
from posterity.evaluation.classwise import Classwise
from posterity.evaluation.detection import aupr, auroc, fpr_at_tpr
from posterity.evaluation.intervals import interval_coverage, interval_score, pit_table, quantile_loss, spread_table
from posterity.evaluation.proper import accuracy, brier, crps, lppd, nll
from posterity.evaluation.selective import aurc, coverage_at_risk, excess_aurc
from posterity.evaluation.threshold import RISKS, answered_table, best_threshold, effective_reliability

NAN, INF = math.nan, math.inf
ALONE = "an interval needs at least two rows"
SAME = "every row has the same value"


def f(*values):
    return torch.tensor(values, dtype=torch.float64)


def t(*values):
    return torch.tensor(values, dtype=torch.int64)


def classes(probs, targets, bins=15):
    return Classwise.of(torch.tensor(probs, dtype=torch.float64).view(len(targets), -1), t(*targets), bins).ece()


# What softmax makes of a logit gap of 17.5 in float32: exactly 1 for the one and 2.5e-8 for the other.
SURE = torch.tensor([[17.5, 0.0], [17.5, 0.0]]).softmax(1)

# name, metric, value, low, high, n, reason; None: not part of the case
TABLE = [
    ("nll p=1", nll(f(0, 0)), 0, 0, 0, 2, None),
    ("nll p=0", nll(f(0.5, 0).log()), INF, NAN, NAN, 2, "1 of 2 rows infinite"),
    ("nll 0 rows", nll(f()), NAN, NAN, NAN, 0, "no rows"),
    ("nll 1 row", nll(f(-0.75)), 0.75, NAN, NAN, 1, ALONE),
    ("nll of 1/2 and 1/4", nll(f(0.5, 0.25).log()), 1.0397207708399179, None, None, 2, None),
    ("nll saturated", nll(SURE.log()[:, 0]), 0, 0, 0, 2, None),
    ("lppd p=1", lppd(f(0, 0)), 0, 0, 0, 2, None),
    ("lppd p=0", lppd(f(0.5, 0).log()), -INF, NAN, NAN, 2, "1 of 2 rows infinite"),
    ("lppd 0 rows", lppd(f()), NAN, NAN, NAN, 0, "no rows"),
    ("lppd 1 row", lppd(f(-0.75)), -0.75, NAN, NAN, 1, ALONE),
    ("accuracy 0 rows", accuracy(f()), NAN, NAN, NAN, 0, "no rows"),
    ("accuracy 1 row", accuracy(f(1)), 1, 0.025, 1, 1, None),
    ("accuracy 2 rows", accuracy(f(1, 0)), 0.5, 0.01257911709342505, 0.9874208829065749, 2, None),
    ("brier sure and right", brier(f(1, 0).view(1, 2), t(0)), 0, NAN, NAN, 1, ALONE),
    ("brier sure and wrong", brier(f(1, 0).view(1, 2), t(1)), 2, NAN, NAN, 1, ALONE),
    ("brier one class", brier(f(1, 1).view(2, 1), t(0, 0)), 0, 0, 0, 2, None),
    ("brier 0 rows", brier(f().view(0, 3), t()), NAN, NAN, NAN, 0, "no rows"),
    # p_other = exp(-17.5) / (1 + ...) = 2.5e-8, squared twice is nothing
    ("brier saturated", brier(SURE, t(0, 1)), 1, 0, 2, 2, None),
    ("ece 0 rows", ece(f(), f()), NAN, NAN, NAN, 0, "no rows"),
    ("ece 1 row", ece(f(0.75), f(1)), 0.25, NAN, NAN, 1, ALONE),
    ("ece p=0", ece(f(0, 0), f(0, 1)), 0.5, None, None, 2, None),
    ("ece p=1", ece(f(1, 1), f(0, 1)), 0.5, None, None, 2, None),
    ("ece 0.95 and 1 in one bin", ece(f(0.95, 1), f(1, 0), 10), 0.475, None, None, 2, None),
    ("ece 3 rows in 15 bins", ece(f(0.1, 0.5, 0.9), f(0, 1, 1)), 0.23333333333333334, None, None, 3, None),
    ("ece one tie", ece(f(0.75, 0.75, 0.75, 0.75), f(1, 0, 0, 0)), 0.5, None, None, 4, None),
    ("ece saturated", ece(SURE[:, 0], f(1, 0)), 0.5, None, None, 2, None),
    ("ece_mass 0 rows", ece(f(), f(), mass=True), NAN, NAN, NAN, 0, "no rows"),
    ("ece_mass 1 row", ece(f(0.75), f(1), mass=True), 0.25, NAN, NAN, 1, ALONE),
    ("ece_mass 3 rows in 15 bins", ece(f(0.1, 0.5, 0.9), f(0, 1, 1), mass=True), 0.23333333333333334, None, None, 3, None),
    # the tie of 0.6 stays whole: |1.8 - 2| / 4 + |0.8 - 1| / 4
    ("ece_mass tie", ece(f(0.6, 0.6, 0.6, 0.8), f(1, 1, 0, 1), 2, mass=True), 0.1, None, None, 4, None),
    # two bins of two rows: |0.2 - 1| / 4 + |1.9 - 1| / 4, where equal width has one of each alone
    ("ece_mass p=0, p=1", ece(f(0, 0.2, 0.9, 1), f(0, 1, 1, 0), 2, mass=True), 0.425, None, None, 4, None),
    ("ece_mass saturated", ece(SURE[:, 0], f(1, 0), mass=True), 0.5, None, None, 2, None),
    ("confidence_gap 1 row", confidence_gap(f(0.75), f(1)), -0.25, NAN, NAN, 1, ALONE),
    ("classwise 0 rows", Classwise.of(f().view(0, 3), t()).ece(), NAN, NAN, NAN, 0, "no rows"),
    ("classwise 1 row", classes([1, 0], [1]), 1, NAN, NAN, 1, ALONE),
    ("classwise one class", classes([1, 1, 1], [0, 0, 0]), NAN, NAN, NAN, 3, "one class"),
    ("classwise p of 0 and 1", classes([1, 0, 1, 0], [0, 1]), 0.5, None, None, 2, None),
    # either class: 0.1, 0.5 and 0.1 off, each row alone in its bin
    ("classwise 3 rows", classes([0.1, 0.9, 0.5, 0.5, 0.9, 0.1], [1, 1, 0]), 0.23333333333333334, None, None, 3, None),
    # class 0: 0.8 against 1/2 in one bin, 0.3; class 1: 0.2 against 1/2, 0.3; class 2: never seen, never said, 0
    ("classwise unseen class", classes([0.8, 0.2, 0, 0.8, 0.2, 0], [0, 1]), 0.2, None, None, 2, None),
    ("classwise saturated", Classwise.of(SURE, t(0, 1)).ece(), 0.5, None, None, 2, None),
    ("aurc 0 rows", aurc(f(), f()), NAN, NAN, NAN, 0, "no rows"),
    ("aurc 1 row wrong", aurc(f(0.3), f(0)), 1, None, 1, 1, None),
    ("aurc one tie", aurc(f(0.5, 0.5, 0.5, 0.5), f(1, 0, 0, 1)), 0.5, None, None, 4, None),
    ("aurc 2 rows", aurc(f(0.9, 0.1), f(0, 1)), 0.75, None, None, 2, None),
    ("aurc saturated", aurc(SURE[:, 0], f(0, 1)), 0.5, None, None, 2, None),
    ("excess 0 rows", excess_aurc(f(), f()), NAN, NAN, NAN, 0, "no rows"),
    # no error in n rows: H(e) at the bound e = 1 - 0.025^(1/n) of the error rate, at most log 2
    ("excess 1 row", excess_aurc(f(0.3), f(1)), 0, 0, 0.6931471805599453, 1, None),
    ("excess no error", excess_aurc(f(0.3, 0.2, 0.1), f(1, 1, 1)), 0, 0, 0.6931471805599453, 3, None),
    ("excess all wrong", excess_aurc(f(0.3, 0.2, 0.1), f(0, 0, 0)), 0, 0, 0.6931471805599453, 3, None),
    # e = 0.4096163972250034
    ("excess no error in 7", excess_aurc(torch.arange(7.0), torch.ones(7)), 0, 0, 0.6767186244204186, 7, None),
    ("excess perfect", excess_aurc(f(0.9, 0.8, 0.1), f(1, 1, 0)), 0, 0, None, 3, None),
    # 3/4 - 1/4
    ("excess 2 rows", excess_aurc(f(0.9, 0.1), f(0, 1)), 0.5, None, None, 2, None),
    # 1/2 - (1/3 + 2/4) / 4
    ("excess one tie", excess_aurc(f(0.5, 0.5, 0.5, 0.5), f(1, 0, 0, 1)), 0.2916666666666667, None, None, 4, None),
    ("coverage 0 rows", coverage_at_risk(f(), f()), NAN, NAN, NAN, 0, "no rows"),
    ("coverage 1 row", coverage_at_risk(f(0.5), f(1)), 1, NAN, NAN, 1, ALONE),
    ("coverage 2 rows", coverage_at_risk(f(0.9, 0.1), f(0, 1), 0.1), 0, 0, 1, 2, None),
    ("coverage none", coverage_at_risk(f(0.9, 0.1), f(0, 0)), 0, 0, 0, 2, None),
    # 1 error in 200 is a risk of 0.005, 1 in 100 of 0.01: neither may fail by a rounding
    ("coverage 0.005", coverage_at_risk(torch.arange(200.0), torch.arange(200) > 0, 0.005), 1, None, 1, 200, None),
    ("coverage 0.01", coverage_at_risk(torch.arange(200.0), torch.arange(200) != 100, 0.01), 1, None, 1, 200, None),
    ("coverage 0.0049", coverage_at_risk(torch.arange(200.0), torch.arange(200) > 0, 0.0049), 0.995, None, 1, 200, None),
    ("coverage tie", coverage_at_risk(f(0.9, 0.5, 0.5, 0.5), f(1, 1, 1, 0), 0.1), 0.25, None, None, 4, None),
    # risks 1, 1/2, 1/3, 1/4, 2/5: searched from the end
    ("coverage from the end", coverage_at_risk(f(5, 4, 3, 2, 1), f(0, 1, 1, 1, 0), 0.25), 0.8, None, None, 5, None),
    ("coverage saturated", coverage_at_risk(SURE[:, 0], f(1, 0), 0.4), 0, None, None, 2, None),
    ("reliable 0 rows", effective_reliability(f(), f(), 0.5), NAN, NAN, NAN, 0, "no rows"),
    # CP of 1 in 1 is [0.025, 1], of 0 in 1 [0, 0.975]: -(0.975 + 0.975), cut at -1
    ("reliable 1 row", effective_reliability(f(0.5), f(1), 0.5), 1, -0.95, 1, 1, None),
    ("reliable cost 1", effective_reliability(f(0.9, 0.8, 0.7, 0.6), f(1, 1, 0, 0), 0.7), 0.25, None, None, 4, None),
    ("reliable cost 10", effective_reliability(f(0.9, 0.8, 0.7, 0.6), f(1, 1, 0, 0), 0.7, 10), -2, None, None, 4, None),
    ("reliable tie", effective_reliability(f(0.9, 0.5, 0.5, 0.1), f(1, 1, 0, 0), 0.5), 0.25, None, None, 4, None),
    ("reliable nothing", effective_reliability(f(0.9, 0.8), f(1, 1), INF), 0, 0, 0, 2, None),
    ("reliable one class", effective_reliability(f(0.9, 0.8), f(0, 0), 0.5, 10), -10, -10, None, 2, None),
    # all answered, so that p and q move against each other: twice 0.987421 - 1/2
    ("reliable saturated", effective_reliability(SURE[:, 0], f(1, 0), 1.0), 0, -0.9748417658131499, None, 2, None),
    ("auroc one value", auroc(f(0, 0, 0), f(0)), NAN, NAN, NAN, 4, SAME),
    ("auroc 2 rows", auroc(f(0), f(1)), 1, None, 1, 2, None),
    ("auroc tie", auroc(f(0, 1), f(1, 2)), 0.875, None, None, 4, None),
    ("aupr one value", aupr(f(0, 0), f(0)), NAN, NAN, NAN, 3, SAME),
    # 2 rows of each: the exact interval of 2 in 2 begins at sqrt(0.025)
    ("aupr separated", aupr(f(2, 3), f(0, 1)), 1, 0.15811388300841897, 1, 4, None),
    ("aupr 2 rows", aupr(f(1), f(0)), 1, 0.025, 1, 2, None),
    ("aupr 2 rows upside down", aupr(f(0), f(1)), 0.5, None, None, 2, None),
    # 2: 1 of 1; 1: 2 of 3 in a tie
    ("aupr tie", aupr(f(1, 2), f(0, 1)), 0.8333333333333334, None, None, 4, None),
    # foreign 2 against 0, 1, 2: 1 of 2; familiar by the sign: 0: 1 of 1, -1: 2 of 2, -2: 3 of 4
    ("aupr out", aupr(f(2), f(0, 1, 2)), 0.5, None, None, 4, None),
    ("aupr in", aupr(-f(0, 1, 2), -f(2)), 0.9166666666666666, None, None, 4, None),
    ("aupr infinite", aupr(f(INF, 0), f(-INF, 0)), 0.8333333333333334, None, None, 4, None),
    ("fpr one value", fpr_at_tpr(f(1, 1), f(1)), NAN, NAN, NAN, 3, SAME),
    ("fpr 2 rows", fpr_at_tpr(f(0), f(1)), 0, 0, 1, 2, None),
    # 19 of 20 accept up to 18, where 1 of 4 foreign rows passes
    ("fpr 20 rows", fpr_at_tpr(torch.arange(20.0), f(18, 18.5, 19, 30)), 0.25, None, 1, 24, None),
    ("fpr tie", fpr_at_tpr(f(0, 1, 1, 1), f(1, 1, 2, 3), 0.5), 0.5, None, None, 8, None),
    # what accepts all of the population accepts these two: 1 - sqrt(1 - 0.0125) for 1 of 2, and no bound above
    ("fpr all of them", fpr_at_tpr(f(0, 5), f(1, 6), 1.0), 0.5, 0.006269654282410, 1, 4, None),
    ("interval 0 rows", interval_coverage(f(), f(), f()), NAN, NAN, NAN, 0, "no rows"),
    ("interval 1 row", interval_coverage(f(0), f(1), f(2)), 0, 0, 0.975, 1, None),
    ("interval at its ends", interval_coverage(f(0, 0), f(1, 1), f(0, 1)), 1, 0.15811388300841897, 1, 2, None),
    ("interval of no width", interval_coverage(f(1, 1), f(1, 1), f(1, 2)), 0.5, None, None, 2, None),
    ("interval_score 0 rows", interval_score(f(), f(), f()), NAN, NAN, NAN, 0, "no rows"),
    ("interval_score 1 row", interval_score(f(0), f(1), f(2), 0.8), 11, NAN, NAN, 1, ALONE),
    # 1 and 1 + 10 * 0.5
    ("interval_score", interval_score(f(0, 0), f(1, 1), f(1, -0.5), 0.8), 3.5, None, None, 2, None),
    ("quantile_loss 0 rows", quantile_loss(f(), f(), 0.9), NAN, NAN, NAN, 0, "no rows"),
    ("quantile_loss 1 row", quantile_loss(f(0), f(2), 0.75), 1.5, NAN, NAN, 1, ALONE),
    ("quantile_loss at it", quantile_loss(f(1, 1), f(1, 1), 0.9), 0, 0, 0, 2, None),
    ("quantile_loss", quantile_loss(f(0, 2), f(1, 0), 0.9), 0.55, None, None, 2, None),
    ("crps 0 rows", crps(f()), NAN, NAN, NAN, 0, "no rows"),
    ("crps 1 row", crps(f(0.5)), 0.5, NAN, NAN, 1, ALONE),
    ("crps 2 rows", crps(f(0, 1)), 0.5, 0, None, 2, None),
]  # fmt: skip


@pytest.mark.parametrize("row", TABLE, ids=[row[0] for row in TABLE])
def test_by_hand(row):
    _, metric, value, low, high, n, reason = row
    # sums of at most 200 float64, quantiles bisected to 1e-14; SURE is float32: 2.5e-8
    same = {"abs": 1e-7 if "saturated" in row[0] else 1e-12, "nan_ok": True}
    assert metric.value == pytest.approx(value, **same)
    assert (metric.n, metric.reason) == (n, reason)
    for bound, expected in ((metric.low, low), (metric.high, high)):
        assert expected is None or bound == pytest.approx(expected, **same)
    if reason is None:
        assert metric.low <= metric.value <= metric.high


def test_a_gap_of_17_saturates():
    assert SURE[0, 0] == 1
    assert 0 < SURE[0, 1] < 1e-7
    assert reliability(SURE[:, 0], f(1, 0)).count.tolist() == [0] * 14 + [2]
    # two gaps of 110: the probability of the other is exactly 0, and so is that of a row that is it
    assert torch.tensor([110.0, 0.0]).softmax(0)[1] == 0
    assert nll(torch.tensor([1.0, 0.0]).log()).value == INF


PROB_NAN = torch.tensor([[0.5, 0.5], [NAN, 0.5]])
OF_NAN = {
    "nll": lambda: nll(f(0, NAN)),
    "lppd": lambda: lppd(f(0, NAN)),
    "accuracy": lambda: accuracy(f(0, NAN)),
    "brier": lambda: brier(PROB_NAN, t(0, 1)),
    "ece": lambda: ece(f(0.5, NAN), f(0, 1)),
    "ece_mass": lambda: ece(f(0.5, NAN), f(0, 1), mass=True),
    "classwise": lambda: Classwise.of(PROB_NAN, t(0, 1)),
    "aurc": lambda: aurc(f(0.5, NAN), f(0, 1)),
    "excess_aurc": lambda: excess_aurc(f(0.5, NAN), f(0, 1)),
    "coverage_at_risk": lambda: coverage_at_risk(f(0.5, NAN), f(0, 1)),
    "effective_reliability": lambda: effective_reliability(f(0.5, NAN), f(0, 1), 0.5),
    "best_threshold": lambda: best_threshold(f(0.5, NAN), f(0, 1)),
    "answered_table": lambda: answered_table(f(0.5, NAN), f(0, 1)),
    "auroc": lambda: auroc(f(0, 1), f(0, NAN)),
    "aupr": lambda: aupr(f(0, NAN), f(0, 1)),
    "fpr_at_tpr": lambda: fpr_at_tpr(f(0, NAN), f(0, 1)),
    "interval_coverage": lambda: interval_coverage(f(0, NAN), f(1, 1), f(0, 0)),
    "interval_score": lambda: interval_score(f(0, 0), f(1, 1), f(0, NAN)),
    "quantile_loss": lambda: quantile_loss(f(0, NAN), f(1, 1), 0.5),
    "pit_table": lambda: pit_table(f(0, NAN)),
    "spread_table": lambda: spread_table(f(1, NAN), f(1, 1)),
    "crps": lambda: crps(f(0, NAN)),
}


@pytest.mark.parametrize("name", OF_NAN)
def test_nan_is_named_and_never_skipped(name):
    with pytest.raises(DataError, match=r"NaN in 1 row \(1\)"):
        OF_NAN[name]()


@pytest.mark.parametrize(
    ("confidence", "correct", "cost", "expected"),
    [
        ([0.9, 0.8, 0.7, 0.6], [1, 1, 0, 0], 1, 0.8),
        ([0.9, 0.8, 0.7, 0.6], [1, 1, 0, 0], 0, 0.6),  # nothing lost by answering: of equal gains the most answers
        ([0.9, 0.5, 0.5], [1, 1, 0], 1, 0.5),  # gains 1 and 1
        ([0.9, 0.5, 0.5], [1, 1, 0], 10, 0.9),  # a tie cannot be split: 1 or -8
        ([0.5, 0.5], [1, 0], 1, 0.5),  # as good as nothing
        ([0.5, 0.5], [1, 0], 1.5, INF),
        ([0.9, 0.8], [0, 0], 1, INF),
        ([0.9, 0.8], [0, 0], 0, 0.8),
        ([0.3], [1], 10, 0.3),
        # 0.1 * 3 is 0.30000000000000004: three errors at 0.1 and a third of a right one less would not be equal
        ([0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.05, 0.01, 0], [1, 1] + [0] * 10, 0.1, 0.8),
        ([0.9] + [0.8] * 11, [1] + [0] * 10 + [1], 0.1, 0.8),  # 1 and 1 + 1 - 10 * 0.1
    ],
)
def test_best_threshold(confidence, correct, cost, expected):
    assert best_threshold(f(*confidence), f(*correct), cost) == expected


def test_no_threshold_from_no_rows():
    with pytest.raises(DataError, match="no rows"):
        best_threshold(f(), f())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_pit_table(dtype):
    # 0 and 0.05 in the first bin, closed on the right; 0.5 in (0.45, 0.5]; 1 in the last
    table = pit_table(torch.tensor([0, 0.05, 0.5, 1.0], dtype=dtype))
    assert table["count"] == [2] + [0] * 8 + [1] + [0] * 9 + [1]
    assert table["lower"][:2] == [0, 0.05]
    assert table["upper"][-1] == 1
    assert pit_table(f())["count"] == [0] * 20


def test_spread_table():
    table = spread_table(f(1, 1, 1, 2, 3), f(4, 4, 1, 9, 16), bins=2)
    # row 2.5 is in the tie of 1, whose end 3 is the nearest
    assert table["count"] == [3, 2]
    assert (table["lower"], table["upper"]) == ([1, 1], [1, 3])
    assert table["std"] == pytest.approx([1, 2.5495097567963922])  # sqrt(6.5)
    assert table["rmse"] == pytest.approx([1.7320508075688772, 3.5355339059327378])  # sqrt(3), sqrt(12.5)
    assert spread_table(f(2), f(9)) == {"lower": [2], "upper": [2], "count": [1], "std": [2], "rmse": [3]}
    assert spread_table(f(), f()) == {"lower": [], "upper": [], "count": [], "std": [], "rmse": []}
    with pytest.raises(DataError, match=r"std is negative in 1 row \(1\)"):
        spread_table(f(1, -1), f(1, 1))


def test_answered_table():
    table = answered_table(f(0.9, 0.5, 0.5, 0.1), f(1, 1, 0, 0))
    assert table["threshold"] == [0.9, 0.5, 0.1]
    assert (table["answered"], table["errors"]) == ([1, 3, 4], [0, 1, 2])
    assert table["coverage"] == [0.25, 0.75, 1]
    assert table["risk"] == pytest.approx([0, 1 / 3, 0.5])
    assert table["oracle"] == pytest.approx([0, 1 / 3, 0.5])
    # exact: 0 of 1 up to 0.975; 1 of 3 from 1 - 0.975^(1/3)
    assert (table["low"][0], table["high"][0]) == pytest.approx((0, 0.975))
    assert table["low"][1] == pytest.approx(0.008403758659216722)
    assert answered_table(f(), f()) == {name: [] for name in table}
    assert answered_table(f(0.5), f(0))["oracle"] == [1]


@pytest.mark.parametrize("points", [1, 2, 7, 200])
def test_answered_table_of_many_rows(points):
    confidence = torch.arange(1009.0).flip(0) // 3  # 337 ties, the surest of one row
    table = answered_table(confidence, confidence > 100, points)
    assert len(table["answered"]) <= points + 3
    assert table["answered"][-1] == 1009
    assert all(a < b for a, b in zip(table["answered"], table["answered"][1:]))
    for answered, threshold, errors in zip(table["answered"], table["threshold"], table["errors"]):
        assert answered == int((confidence >= threshold).sum())
        assert errors == int(((confidence >= threshold) & (confidence <= 100)).sum())
    for risk in RISKS:  # what the metric says is a line of the table
        reached = [c for c, r in zip(table["coverage"], table["risk"]) if r <= risk]
        assert reached[-1] == coverage_at_risk(confidence, confidence > 100, risk).value
    # evenly spaced: no step is longer than n / points and a tie
    steps = [b - a for a, b in zip([0, *table["answered"]], table["answered"])]
    assert max(steps) <= 1009 / points + 3


def test_columns_of_the_diagram():
    columns = reliability(f(0.05, 0.95, 0.85), f(0, 1, 0), 4).columns()
    assert list(columns) == ["lower", "upper", "count", "confidence", "accuracy", "low", "high", "gap"]
    assert columns["count"] == [1, 0, 0, 2]
    assert columns["accuracy"] == pytest.approx([0, NAN, NAN, 0.5], nan_ok=True)
    assert columns["low"] == pytest.approx([0, NAN, NAN, 0.01257911709342505], nan_ok=True)
    assert columns["high"] == pytest.approx([0.975, NAN, NAN, 0.9874208829065749], nan_ok=True)
    assert columns["gap"] == pytest.approx([0.05, NAN, NAN, 0.4], nan_ok=True)
    assert reliability(f(), f(), 2).columns()["high"] == pytest.approx([NAN, NAN], nan_ok=True)


def test_edges_of_equal_mass():
    table = reliability(f(0.9, 0.2, 0.4, 0.4, 0.4, 1.0, 0.6), f(0, 1, 0, 0, 1, 1, 1), 3, mass=True)
    # rows 7/3 and 14/3: the nearest ends of ties are 1 (0.2) or 4 (0.4), and 5 (0.6)
    assert table.upper.tolist() == [0.2, 0.6, 1]
    assert table.lower.tolist() == [0, 0.2, 0.6]
    assert table.count.tolist() == [1, 4, 2]
    assert reliability(f(), f(), 5, mass=True).count.tolist() == [0]
    assert reliability(f(0, 0), f(1, 0), 5, mass=True).upper.tolist() == [1]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ece(f(0.5), f(1), 0, mass=True), "bins"),
        (lambda: Classwise.of(f(1).view(1, 1), t(0), 0), "bins"),
        (lambda: pit_table(f(0.5), 0), "bins"),
        (lambda: pit_table(f(1.5)), "outside"),
        (lambda: answered_table(f(0.5), f(1), 0), "points"),
        (lambda: effective_reliability(f(0.5), f(1), NAN), "threshold is NaN"),
        (lambda: effective_reliability(f(0.5), f(1), 0.5, -1), "cost"),
        (lambda: best_threshold(f(0.5), f(1), INF), "cost"),
        (lambda: aupr(f(), f(0)), "0 positive and 1 negative"),
        (lambda: fpr_at_tpr(f(0, 1), f()), "2 in-distribution and 0 out-of-distribution"),
        (lambda: fpr_at_tpr(f(0), f(1), 95), "tpr"),
    ],
)
def test_mistakes(call, message):
    with pytest.raises(DataError, match=message):
        call()
