"""Records as an evaluation gives them, simulated: methods that are calibrated and methods that are too sure."""

from __future__ import annotations

import base64
import math
import zlib
from typing import Any

import numpy as np

from posterity.evaluation.evaluation import Evaluation

BINS = 15


class Stub(Evaluation):
    """An evaluation whose record is given; the page reads nothing else."""

    record: dict[str, Any]

    def __init__(self, record: dict[str, Any]) -> None:
        object.__setattr__(self, "record", record)

    def to_json(self, path: Any = None) -> dict[str, Any]:
        return self.record


def metric(value: float, half: float, n: int, lowest: float = -math.inf, highest: float = math.inf) -> dict[str, Any]:
    return {"value": value, "low": max(value - half, lowest), "high": min(value + half, highest), "n": n}


def undefined(n: int, reason: str) -> dict[str, Any]:
    return {"value": None, "low": None, "high": None, "n": n, "reason": reason}


def wilson(k: np.ndarray, n: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    z, share = 1.96, k / n
    centre = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z * np.sqrt(share * (1 - share) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    return centre - half, centre + half


def mean(values: np.ndarray, lowest: float = -math.inf, highest: float = math.inf) -> dict[str, Any]:
    return metric(
        float(values.mean()), 1.96 * float(values.std()) / math.sqrt(len(values)), len(values), lowest, highest
    )


def probabilities(
    rng: np.random.Generator, own: np.random.Generator, n: int, classes: int, sharp: float
) -> tuple[np.ndarray, np.ndarray]:
    """Predicted probabilities and labels drawn from flatter ones, the more so the larger `sharp` is: over-confidence."""
    logits = rng.normal(size=(n, classes)) * rng.gamma(4.0, 1.6, size=(n, 1))
    true = np.exp(logits - logits.max(1, keepdims=True))
    true /= true.sum(1, keepdims=True)
    labels = (true.cumsum(1) > rng.random((n, 1))).argmax(1)
    logits = logits + own.normal(size=logits.shape) * 0.9 * abs(sharp - 0.9)
    said = np.exp(sharp * (logits - logits.max(1, keepdims=True)))
    return said / said.sum(1, keepdims=True), labels


def reliability(confidence: np.ndarray, correct: np.ndarray, edges: np.ndarray) -> dict[str, list[Any]]:
    place = np.clip(np.searchsorted(edges, confidence, side="left") - 1, 0, len(edges) - 2)
    table: dict[str, list[Any]] = {
        key: [] for key in ("lower", "upper", "count", "confidence", "accuracy", "low", "high", "gap")
    }
    for index in range(len(edges) - 1):
        inside = place == index
        count = int(inside.sum())
        row: list[Any] = [float(edges[index]), float(edges[index + 1]), count]
        if count:
            sure, right = float(confidence[inside].mean()), float(correct[inside].mean())
            low, high = wilson(np.array(correct[inside].sum()), np.array(count))
            row += [sure, right, float(low), float(high), sure - right]
        else:
            row += [None] * 5
        for key, value in zip(table, row):
            table[key].append(value)
    return table


def risk_coverage(confidence: np.ndarray, correct: np.ndarray) -> dict[str, list[Any]]:
    order = np.argsort(-confidence, kind="stable")
    n = len(order)
    ends = np.unique(np.linspace(1, n, min(n, 200)).round().astype(int))
    wrong = np.cumsum(~correct[order])[ends - 1]
    low, high = wilson(wrong, ends)
    oracle = np.maximum(0, ends - int(correct.sum())) / ends
    columns = {
        "threshold": confidence[order][ends - 1], "answered": ends, "coverage": ends / n, "errors": wrong,
        "risk": wrong / ends, "low": low.clip(0), "high": high, "oracle": oracle,
    }  # fmt: skip
    return {key: column.tolist() for key, column in columns.items()}


def entropy(probs: np.ndarray) -> np.ndarray:
    return -(probs * np.log(probs.clip(1e-30))).sum(1)


def ood_table(measures: dict[str, dict[str, np.ndarray]]) -> dict[str, list[Any]]:
    table: dict[str, list[Any]] = {key: [] for key in ("set", "measure", "lower", "upper", "count")}
    for measure, sets in measures.items():
        edges = np.linspace(0, max(float(values.max()) for values in sets.values()), 31)
        for name, values in sets.items():
            for lower, upper, count in zip(edges[:-1], edges[1:], np.histogram(values, edges)[0]):
                for key, value in zip(table, (name, measure, float(lower), float(upper), int(count))):
                    table[key].append(value)
    return table


def auroc(inside: np.ndarray, outside: np.ndarray) -> float:
    ranks = np.concatenate([inside, outside]).argsort().argsort()[len(inside) :] + 1
    return float((ranks.sum() - len(outside) * (len(outside) + 1) / 2) / (len(inside) * len(outside)))


def picture(rng: np.random.Generator, colour: bool = False) -> dict[str, Any]:
    grid = np.hypot(*np.mgrid[-3.5:4.5, -3.5:4.5]) - rng.uniform(1.5, 3)
    pixels = (255 * np.exp(-(grid**2))).astype(np.uint8)
    pixels = np.stack([pixels, pixels[::-1], pixels.T], -1) if colour else pixels
    return {"shape": list(pixels.shape), "data": base64.b64encode(pixels.tobytes()).decode()}


def groups(columns: dict[str, np.ndarray], metrics: dict[str, np.ndarray]) -> dict[str, list[Any]]:
    table: dict[str, list[Any]] = {key: [] for key in ("by", "group", "metric", "value", "low", "high", "n", "reason")}
    for by, values in columns.items():
        for group in sorted(set(values.tolist())):
            inside = values == group
            for name, rows in metrics.items():
                found = mean(rows[inside].astype(float))
                row = (by, str(group), name, found["value"], found["low"], found["high"], found["n"], None)
                for key, value in zip(table, row):
                    table[key].append(value)
    return table


def extremes(
    rng: np.random.Generator, probs: np.ndarray, labels: np.ndarray, about: bool, pictures: bool, each: int = 8
) -> dict[str, list[Any]]:
    order = np.argsort(-probs.max(1))
    keys = ("which", "row", "label", "target", "confidence", "entropy", "epistemic", "correct", "about", "picture")
    table: dict[str, list[Any]] = {key: [] for key in keys}
    for which, rows in (("most", order[:each]), ("least", order[::-1][:each])):
        for row in rows.tolist():
            said = int(probs[row].argmax())
            values = (
                which, row, said, int(labels[row]), float(probs[row].max()), float(entropy(probs[row : row + 1])[0]),
                float(rng.uniform(0, 0.1)), said == int(labels[row]),
                f"temp={rng.normal():.2f}, season={rng.integers(1, 5)}" if about else None,
                picture(rng) if pictures else None,
            )  # fmt: skip
            for key, value in zip(keys, values):
                table[key].append(value)
    return table


METHODS = {
    ("map", "mean"): 1.9,
    ("ivon", "mean"): 1.35,
    ("ivon", "draws"): 1.05,
    ("deep-ensemble", "draws"): 1.0,
}


def classification_row(
    method: str, via: str, sharp: float, n: int = 1680, classes: int = 10, seed: int = 0, about: bool = False
) -> dict[str, Any]:
    rng = np.random.default_rng(seed)  # one seed, the same rows: methods are paired
    own = np.random.default_rng(zlib.crc32(f"{method} {via} {seed}".encode()))
    probs, labels = probabilities(rng, own, n, classes, sharp)
    confidence, correct = probs.max(1), probs.argmax(1) == labels
    logs = -np.log(probs[np.arange(n), labels].clip(1e-12))
    width = reliability(confidence, correct, np.linspace(0, 1, BINS + 1))
    mass = (
        reliability(confidence, correct, np.unique(np.quantile(confidence, np.linspace(0, 1, BINS + 1))))
        if n > 1
        else width
    )
    counts, gaps = np.array(width["count"]), np.array([gap or 0.0 for gap in width["gap"]])
    ece = float((counts * np.abs(gaps)).sum() / n)
    curve = risk_coverage(confidence, correct)
    risk = np.cumsum(~correct[np.argsort(-confidence, kind="stable")]) / np.arange(1, n + 1)
    brier = ((probs - np.eye(classes)[labels]) ** 2).sum(1)
    foreign = {
        "fashion": rng.beta(4.2, 2.5 * sharp, size=931) * math.log(max(classes, 2)),
        "noise": rng.beta(9, 3.2 * sharp, size=701) * math.log(max(classes, 2)),
    }
    measures = {
        "entropy": {"test": entropy(probs), **foreign},
        "confidence": {"test": 1 - confidence, "fashion": foreign["fashion"] / 3, "noise": foreign["noise"] / 3},
    }
    if via == "draws":
        spread = rng.gamma(1.2, 0.04, n)
        measures["epistemic"] = {"test": spread, "fashion": rng.gamma(3, 0.08, 931), "noise": rng.gamma(4, 0.06, 701)}
    metrics = {
        "nll": mean(logs, 0.0), "lppd": mean(-logs), "accuracy": mean(correct.astype(float), 0.0, 1.0),
        "brier": mean(brier, 0.0, 2.0), "ece": metric(ece, 0.008, n, 0.0, 1.0),
        "ece_mass": metric(ece * 1.05, 0.009, n, 0.0),
        "ece_classwise": metric(ece / 4, 0.003, n, 0.0), "confidence_gap": mean(confidence - correct),
        "aurc": metric(float(risk.mean()), 0.004, n, 0.0), "excess_aurc": metric(float(risk.mean()) / 2, 0.003, n, 0.0),
    }  # fmt: skip
    for level in ("0.005", "0.01", "0.05"):
        within = [c for c, r in zip(curve["coverage"], curve["risk"]) if r <= float(level)]
        metrics[f"coverage_at_risk_{level}"] = metric(max(within, default=0.0), 0.04, n, 0.0, 1.0)
    metrics["effective_reliability_10"] = undefined(n, "no validation set picked the threshold")
    for name, sets in measures.items():
        for position, place in enumerate(("fashion", "noise")):
            end = ("" if name == "entropy" else f"_{name}") + (f"_{place}" if position else "")
            found = auroc(sets["test"], sets[place])
            metrics[f"ood_auroc{end}"] = metric(found, 0.012, n + len(sets[place]), 0.0, 1.0)
            metrics[f"ood_aupr_out{end}"] = metric(found * 0.93, 0.015, n + len(sets[place]), 0.0, 1.0)
            metrics[f"ood_fpr95{end}"] = metric(1 - found, 0.03, n + len(sets[place]), 0.0, 1.0)
    if "epistemic" not in measures:
        reason = "mutual information is 0 for every row: one set of weights"
        metrics["ood_auroc_epistemic"] = undefined(n, reason)
    season = rng.integers(0, 4, n)
    details = {
        "reliability": width, "reliability_mass": mass, "risk_coverage": curve, "ood": ood_table(measures),
        "groups": groups(
            {"season": np.array(["spring", "summer", "autumn", "winter"])[season], "class": labels},
            {"nll": logs, "accuracy": correct},
        ),
        "extremes": extremes(rng, probs, labels, about, pictures=not about),
    }  # fmt: skip
    return {"method": method, "via": via, "metrics": metrics, "details": details}


SETTINGS = {
    "data": "digits, test split", "bins": BINS, "level": 0.95, "seed": 3,
    "fit": {"N": 6720, "data_weight": 1.0, "temperature": 1.08, "epochs": 40, "prior": {"kind": "normal", "std": 0.31}},
    "versions": {"posterity": "0.1.0", "torch": "2.13.0", "python": "3.11.2"},
    "command": "posterity evaluate runs/ivon runs/deep-ensemble --data digits --ood fashion",
}  # fmt: skip


def classification(methods: dict[tuple[str, str], float] | None = None, **options: Any) -> dict[str, Any]:
    methods = METHODS if methods is None else methods
    rows = [classification_row(method, via, sharp, **options) for (method, via), sharp in methods.items()]
    pairs: dict[str, list[Any]] = {
        key: []
        for key in ("metric", "method", "via", "baseline", "baseline_via", "value", "low", "high", "n", "reason")
    }
    for name in ("nll", "accuracy", "brier"):
        for row in rows[1:] if len(rows) > 1 else []:
            here, there = row["metrics"][name], rows[0]["metrics"][name]
            value, half = here["value"] - there["value"], 0.3 * (here["high"] - here["low"]) + 0.002
            line = (
                name,
                row["method"],
                row["via"],
                rows[0]["method"],
                rows[0]["via"],
                value,
                value - half,
                value + half,
            )
            for key, one in zip(pairs, (*line, here["n"], None)):
                pairs[key].append(one)
    return {"rows": rows, "settings": SETTINGS, **({"differences": pairs} if pairs["metric"] else {})}


def regression_row(method: str, via: str, sharp: float, n: int = 1513, seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    t = np.linspace(0, 9, n)
    mu = 220 + 60 * np.sin(2.1 * t) + 12 * t
    true = 9 + 7 * (1 + np.sin(1.3 * t))
    y = mu + true * rng.normal(size=n)
    mu = mu + 4 * abs(1 - sharp) * np.sin(5 * t + len(method))
    std = true / sharp
    z = (y - mu) / std
    cdf = np.array([0.5 * math.erfc(-value / math.sqrt(2)) for value in z])
    logs = 0.5 * z**2 + np.log(std) + 0.5 * math.log(2 * math.pi)
    crps = std * (z * (2 * cdf - 1) + 2 * np.exp(-0.5 * z**2) / math.sqrt(2 * math.pi) - 1 / math.sqrt(math.pi))
    intervals: dict[str, list[Any]] = {
        key: [] for key in ("level", "coverage", "low", "high", "n", "width", "interval_score")
    }
    metrics = {
        "nll": mean(logs),
        "lppd": mean(-logs),
        "rmse": metric(float(np.sqrt(((y - mu) ** 2).mean())), 0.7, n),
        "crps": mean(crps),
    }
    metrics["quantile_loss"] = mean(crps / 2)
    for level, quantile in ((0.5, 0.6745), (0.8, 1.2816), (0.9, 1.6449), (0.95, 1.96)):
        inside = np.abs(z) <= quantile
        low, high = wilson(np.array(inside.sum()), np.array(n))
        width = 2 * quantile * std
        miss = np.maximum(0, np.abs(y - mu) - quantile * std)
        found = width + 2 / (1 - level) * miss
        row = (level, float(inside.mean()), float(low), float(high), n, float(width.mean()), float(found.mean()))
        for key, value in zip(intervals, row):
            intervals[key].append(value)
        end = "" if level == 0.9 else f"_{level}"
        metrics[f"interval_coverage{end}"] = {"value": row[1], "low": row[2], "high": row[3], "n": n}
        metrics[f"interval_width{end}"], metrics[f"interval_score{end}"] = mean(width), mean(found)
    edges = np.linspace(0, 1, 21)
    pit = {"lower": edges[:-1].tolist(), "upper": edges[1:].tolist(), "count": np.histogram(cdf, edges)[0].tolist()}
    some = np.unique(np.linspace(0, n - 1, min(n, 200)).round().astype(int))
    bands = {
        "row": some, "target": y[some], "mean": mu[some],
        "lower": (mu - 1.6449 * std)[some], "upper": (mu + 1.6449 * std)[some],
    }  # fmt: skip
    tenths = np.array_split(np.argsort(std), 10) if n >= 10 else [np.arange(n)]
    spread = {
        "lower": [float(std[i].min()) for i in tenths], "upper": [float(std[i].max()) for i in tenths],
        "count": [len(i) for i in tenths], "std": [float(np.sqrt((std[i] ** 2).mean())) for i in tenths],
        "rmse": [float(np.sqrt(((y - mu)[i] ** 2).mean())) for i in tenths],
    }  # fmt: skip
    order = np.argsort(std)
    rows = [("most", i) for i in order[:6].tolist()] + [("least", i) for i in order[::-1][:6].tolist()]
    extremes = {
        "which": [which for which, _ in rows], "row": [i for _, i in rows], "target": [float(y[i]) for _, i in rows],
        "mean": [float(mu[i]) for _, i in rows], "std": [float(std[i]) for _, i in rows],
        "lower": [float(mu[i] - 1.6449 * std[i]) for _, i in rows],
        "upper": [float(mu[i] + 1.6449 * std[i]) for _, i in rows],
        "error": [float(mu[i] - y[i]) for _, i in rows], "about": [f"store={i % 7}, week={i // 7}" for _, i in rows],
        "picture": [None for _ in rows],
    }  # fmt: skip
    table = groups({"store": np.arange(n) % 7}, {"crps": crps, "nll": logs})
    details = {
        "intervals": intervals, "pit": pit, "bands": {key: column.tolist() for key, column in bands.items()},
        "spread": spread, "groups": table, "extremes": extremes,
    }  # fmt: skip
    return {"method": method, "via": via, "metrics": metrics, "details": details}


def regression(methods: dict[tuple[str, str], float] | None = None, **options: Any) -> dict[str, Any]:
    methods = (
        {("mean-field", "draws"): 1.0, ("map", "mean"): 1.7, ("laplace", "draws"): 0.75} if methods is None else methods
    )
    rows = [regression_row(method, via, sharp, **options) for (method, via), sharp in methods.items()]
    return {"rows": rows, "settings": {**SETTINGS, "data": "demand of seven stores, last year"}}
