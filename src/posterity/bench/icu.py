"""Stays in intensive care as tables, ready for a network: who dies in hospital, from the first two days.

PhysioNet 2012 (8000 stays of four units in one hospital), the demonstration sets of MIMIC-III and of eICU, all found
through POSTERITY_DATA. What a network sees of a column are its standardised value and, where training rows lack it, a flag;
medians, means and stds are those of the training rows. `mimic.py` reads a whole MIMIC-III.
"""

from __future__ import annotations

import csv
import gzip
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from posterity.bench.data import data_folder
from posterity.errors import DataError

__all__ = ["Columns", "Labelled", "Stays", "eicu", "folds", "physionet"]

Labelled = tuple[Tensor, Tensor]  # [rows, inputs] float32, [rows] int64

FAR = 8.0  # stds from the mean where a value is cut: one wrong unit is not to outweigh a row
UNITS = ("CCU", "CSRU", "SICU")  # columns that name the unit
CSRU = 2  # in `icutype`
FOLDS = 5  # of hospitals


class Stays(NamedTuple):
    """One task.

    Args:
        train, validation, test: of the familiar population.
        foreign: inputs of a population that was left out everywhere, by name.
        shifted: labelled rows of another origin, by name.
    """

    train: Labelled
    validation: Labelled
    test: Labelled
    foreign: dict[str, Tensor]
    shifted: dict[str, Labelled]


class Columns(NamedTuple):
    """How raw columns become inputs; fitted on training rows.

    Args:
        kept: [k] positions of the columns with a value in training.
        flagged: [m] positions in `kept` of those that training rows lack at times.
        median, mean, std: [k].
    """

    kept: np.ndarray
    flagged: np.ndarray
    median: np.ndarray
    mean: np.ndarray
    std: np.ndarray

    @classmethod
    def fitted(cls, x: np.ndarray) -> Columns:
        """From raw training rows [n, columns], NaN = not measured.

        Raises:
            DataError: no column has a value.
        """
        missing = np.isnan(x)
        kept = np.flatnonzero(~missing.all(0))
        if not len(kept):
            raise DataError("no column of the training rows has a value")
        x, missing = x[:, kept], missing[:, kept]
        median = np.nanmedian(x, 0)
        filled = np.where(missing, median, x)
        std = filled.std(0)
        return cls(kept, np.flatnonzero(missing.any(0)), median, filled.mean(0), np.where(std > 0, std, 1.0))

    def __call__(self, x: np.ndarray) -> Tensor:
        """[n, columns] to [n, k + m] float32: standardised values, then flags."""
        x = x[:, self.kept]
        missing = np.isnan(x)
        values = (np.where(missing, self.median, x) - self.mean) / self.std
        flags = missing[:, self.flagged]
        return torch.from_numpy(np.hstack([values.clip(-FAR, FAR), flags]).astype(np.float32))


@cache
def physionet(seed: int) -> Stays:
    """Set a for training (4/5) and validation (1/5, by seed), set b for the test, without the cardiac surgery unit.

    Its stays (CSRU, of both sets) are the foreign ones: planned operations, in intensive care for what was done to them
    rather than for what befell them, with a third of the mortality of the others. As newborns in the paper, they are what
    a model of the critically ill knows nothing of; and they take fewer deaths out of training than any other unit. Columns
    that name the unit are left out. Shifted: the demonstration set of MIMIC-III, of which every patient died in the end.
    """
    raw = _physionet()
    surgery = raw.unit == CSRU
    first = np.flatnonzero((raw.part == 0) & ~surgery)
    first = np.random.default_rng(seed).permutation(first)
    held = len(first) // 5
    validation, train = np.sort(first[:held]), np.sort(first[held:])
    test = np.flatnonzero((raw.part == 1) & ~surgery)
    columns = Columns.fitted(raw.x[train])

    def rows(index: np.ndarray) -> Labelled:
        return columns(raw.x[index]), torch.from_numpy(raw.y[index])

    x, y = _mimic_demo(raw.features)
    shifted = {"mimic": (columns(x), torch.from_numpy(y))}
    return Stays(rows(train), rows(validation), rows(test), {"csru": columns(raw.x[surgery])}, shifted)


class _PhysioNet(NamedTuple):
    x: np.ndarray  # [8000, columns] float64
    y: np.ndarray  # [8000] int64
    unit: np.ndarray
    part: np.ndarray  # 0: set a, 1: set b
    features: tuple[str, ...]


@cache
def _physionet() -> _PhysioNet:
    name = "physionet2012_features.npz"
    with np.load(data_folder("open/icu", name) / name, allow_pickle=False) as content:
        features = content["features"].tolist()
        kept = [i for i, feature in enumerate(features) if feature not in UNITS]
        x = content["X"][:, kept].astype(np.float64)
        names = tuple(features[i] for i in kept)
        return _PhysioNet(x, content["y"].astype(np.int64), content["icutype"], content["part"], names)


def _mimic_demo(features: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Its rows under the names of PhysioNet's columns; NaN where it lacks one."""
    rows = [row for row in _csv("mimic3_demo_48h.csv.gz") if row["first_careunit"] != "CSRU"]
    x = np.array([[_number(row.get(feature, "")) for feature in features] for row in rows])
    return x, np.array([int(float(row["died"])) for row in rows])


NUMBERS = (
    "age", "admissionheight", "admissionweight", "intubated", "vent", "dialysis", "urine", "wbc", "temperature",
    "respiratoryrate", "sodium", "heartrate", "meanbp", "ph", "hematocrit", "creatinine", "albumin", "pao2", "pco2", "bun",
    "glucose", "bilirubin", "fio2", "eyes", "motor", "verbal", "meds", "aids", "hepaticfailure", "lymphoma",
    "metastaticcancer", "leukemia", "immunosuppression", "cirrhosis", "electivesurgery", "diabetes", "thrombolytics",
    "ventday1", "readmit",
)  # fmt: skip


@cache
def eicu(seed: int) -> Stays:
    """First days in 186 hospitals: a fifth of the hospitals for the test, a fifth for validation, by seed.

    A patient is where the first of their stays is. Neither unit, region, hospital, ethnicity, diagnosis, nor a severity
    score is an input.
    """
    rows = [row for row in _csv("eicu_demo_apache.csv.gz") if row["died"]]
    fold = folds([row["uniquepid"] for row in rows], [int(row["hospitalid"]) for row in rows], seed)
    x = np.array([[*(_number(row[name]) for name in NUMBERS), _male(row["gender"])] for row in rows])
    y = torch.tensor([int(float(row["died"])) for row in rows])
    columns = Columns.fitted(x[fold > 1])

    def part(index: np.ndarray) -> Labelled:
        return columns(x[index]), y[torch.from_numpy(index)]

    return Stays(part(fold > 1), part(fold == 1), part(fold == 0), {}, {})


def folds(patients: Sequence[str], hospitals: Sequence[int], seed: int) -> np.ndarray:
    """[rows] in 0..4: all stays of a patient go with the hospital of the first; seed + 1 moves every hospital on by one.

    >>> folds(["a", "b", "a"], [4, 5, 7], seed=0).tolist(), folds(["a", "b", "a"], [4, 5, 7], seed=1).tolist()
    ([4, 0, 4], [0, 1, 0])
    """
    first: dict[str, int] = {}
    for patient, hospital in zip(patients, hospitals):
        first.setdefault(patient, hospital)
    return (np.array([first[patient] for patient in patients]) + seed) % FOLDS


def _male(gender: str) -> float:
    return {"Male": 1.0, "Female": 0.0}.get(gender, np.nan)


def _csv(name: str) -> list[dict[str, str]]:
    with gzip.open(data_folder("open/icu", name) / name, "rt", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _number(text: str) -> float:
    return float(text) if text else np.nan
