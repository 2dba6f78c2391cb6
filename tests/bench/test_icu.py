"""Stays in intensive care: how columns become inputs, who is in which part, and MIMIC-III's tables, generated here."""

import gzip
import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from posterity.bench import icu, low_rank_icu, mimic
from posterity.errors import DataError

needs_data = pytest.mark.skipif("POSTERITY_DATA" not in os.environ, reason="POSTERITY_DATA is not set")


# --- columns ----------------------------------------------------------------------------------------------------------


def test_columns_are_filled_with_the_median_flagged_and_standardised() -> None:
    nan = np.nan
    train = np.array([[1.0, 5.0, nan, 2.0], [2.0, 5.0, nan, nan], [6.0, 5.0, nan, 8.0]])
    columns = icu.Columns.fitted(train)
    assert columns.kept.tolist() == [0, 1, 3]  # the third was never measured
    assert columns.flagged.tolist() == [2]  # of the kept ones, the last
    found = columns(train)
    assert found.dtype == torch.float32
    # 1, 2, 6: mean 3, std sqrt(14/3); a constant column has std 1; 2, 5 (the median), 8: mean 5, std sqrt(6)
    expected = [
        [-2 / (14 / 3) ** 0.5, 0, -3 / 6**0.5, 0],
        [-1 / (14 / 3) ** 0.5, 0, 0, 1],
        [3 / (14 / 3) ** 0.5, 0, 3 / 6**0.5, 0],
    ]
    torch.testing.assert_close(found, torch.tensor(expected))
    new = columns(np.array([[1e6, nan, nan, nan]]))
    assert new.tolist() == [[icu.FAR, 0.0, 0.0, 1.0]]


def test_a_table_without_values_is_an_error() -> None:
    with pytest.raises(DataError, match="no column"):
        icu.Columns.fitted(np.full((3, 2), np.nan))


# --- the parts of the real sets ---------------------------------------------------------------------------------------


@needs_data
def test_physionet_leaves_the_cardiac_surgery_unit_out_of_everything() -> None:
    one, other = icu.physionet(0), icu.physionet(1)
    raw = icu._physionet()
    assert not set(icu.UNITS) & set(raw.features)
    assert len(one.foreign["csru"]) == (raw.unit == icu.CSRU).sum() == 1656
    first = ((raw.part == 0) & (raw.unit != icu.CSRU)).sum()
    assert len(one.train[0]) + len(one.validation[0]) == first
    assert len(one.test[0]) == ((raw.part == 1) & (raw.unit != icu.CSRU)).sum()
    assert not torch.equal(one.validation[1], other.validation[1])
    assert torch.equal(one.test[1], other.test[1])
    assert 0.1 < one.test[1].double().mean() < 0.2
    inputs = {x.shape[1] for x, _ in (one.train, one.validation, one.test, *one.shifted.values())}
    assert inputs == {one.foreign["csru"].shape[1]}
    assert one.train[0].abs().max() <= icu.FAR


@needs_data
def test_eicu_takes_every_hospital_once_for_the_test() -> None:
    """Which rows go where is `folds`; here the sizes that follow, of a part and of the part that it becomes with a seed."""
    each = [icu.eicu(seed) for seed in range(icu.FOLDS)]
    rows = {sum(len(y) for _, y in (stays.train, stays.validation, stays.test)) for stays in each}
    assert rows == {sum(len(stays.test[1]) for stays in each)}
    tests = [stays.test[1] for stays in each]
    validations = [stays.validation[1] for stays in each]
    assert all(torch.equal(tests[seed], validations[(seed + 1) % icu.FOLDS]) for seed in range(icu.FOLDS))
    assert len({len(y) for y in tests}) > 1  # else the line above says nothing
    assert not {name for name in icu.NUMBERS if name in ("apachescore", "apache_iva_pred", "hospitalid", "died")}


# --- MIMIC-III --------------------------------------------------------------------------------------------------------

ENTRY = "2150-03-01 12:00:00"


def _tables() -> dict[str, pd.DataFrame]:
    """Three stays of two adults and one of a newborn; the second stay of an admission is not the first's."""
    admissions = pd.DataFrame(
        {
            "HADM_ID": [11, 12, 13],
            "ADMISSION_TYPE": ["EMERGENCY", "ELECTIVE", "NEWBORN"],
            "HOSPITAL_EXPIRE_FLAG": [1, 0, 0],
        }
    )
    patients = pd.DataFrame(
        {
            "SUBJECT_ID": [1, 2, 3],
            "GENDER": ["M", "F", "F"],
            "DOB": ["2100-03-01 00:00:00", "1850-01-01 00:00:00", "2150-03-01 00:00:00"],
        }
    )
    stays = pd.DataFrame(
        {
            "SUBJECT_ID": [1, 1, 2, 3],
            "HADM_ID": [11, 11, 12, 13],
            "ICUSTAY_ID": [101, 102, 103, 104],
            "INTIME": [ENTRY, "2150-03-09 12:00:00", ENTRY, ENTRY],
        }
    )
    charted = [
        (101, 211, "2150-03-01 13:00:00", 80.0, 0),
        (101, 220045, "2150-03-01 15:00:00", 100.0, np.nan),
        (101, 211, "2150-03-01 14:00:00", 60.0, 0),
        (101, 211, "2150-03-01 16:00:00", 70.0, 1),  # marked as an error
        (101, 211, "2150-03-01 17:00:00", 9999.0, 0),  # a slip
        (101, 211, "2150-03-01 11:59:00", 30.0, 0),  # before entry
        (101, 211, "2150-03-03 12:00:00", 30.0, 0),  # after 48 hours
        (102, 211, "2150-03-09 13:00:00", 30.0, 0),  # the second stay of the admission
        (101, 678, "2150-03-01 13:00:00", 98.6, 0),  # Fahrenheit
        (101, 676, "2150-03-01 14:00:00", 38.0, 0),
        (101, 198, "2150-03-01 14:00:00", 7.0, 0),
        (103, 220739, "2150-03-01 14:00:00", 4.0, 0),
        (103, 220739, "2150-03-01 15:00:00", 2.0, 0),
        (103, 223900, "2150-03-01 14:00:00", 5.0, 0),
        (103, 223901, "2150-03-01 14:00:00", 6.0, 0),
        (104, 220739, "2150-03-01 14:00:00", 4.0, 0),  # not all three parts
        (101, 999, "2150-03-01 14:00:00", 1.0, 0),
    ]
    drawn = [
        (11, 50912, "2150-03-01 20:00:00", 2.0),
        (11, 50912, "2150-03-02 20:00:00", 3.0),
        (11, 50912, "2150-03-01 13:00:00", 1.0),
        (12, 50822, "2150-03-02 13:00:00", 4.5),
        (np.nan, 50912, "2150-03-01 13:00:00", 9.0),  # of no admission
        (13, 50813, "2150-03-02 13:00:00", np.nan),
    ]
    return {
        "ADMISSIONS": admissions,
        "PATIENTS": patients,
        "ICUSTAYS": stays,
        "CHARTEVENTS": pd.DataFrame(charted, columns=["ICUSTAY_ID", "ITEMID", "CHARTTIME", "VALUENUM", "ERROR"]),
        "LABEVENTS": pd.DataFrame(drawn, columns=["HADM_ID", "ITEMID", "CHARTTIME", "VALUENUM"]),
    }


def _written(folder: Path, tables: dict[str, pd.DataFrame], *, small: bool = False, zipped: bool = False) -> Path:
    for name, table in tables.items():
        shown = table.rename(columns=str.lower) if small else table
        text = shown.assign(extra="text").to_csv(index=False)
        path = folder / f"{name.lower() if small else name}.csv{'.gz' if zipped else ''}"
        path.write_bytes(gzip.compress(text.encode()) if zipped else text.encode())
    return folder


@pytest.mark.parametrize("block", [2, 7, 1000])
@pytest.mark.parametrize("small", [False, True])
def test_the_table_of_the_first_48_hours(tmp_path: Path, block: int, small: bool) -> None:
    """Whatever the blocks are cut at: every figure is counted by hand from `_tables`."""
    table = mimic.read_mimic(_written(tmp_path, _tables(), small=small, zipped=small), block=block)
    assert len(mimic.FEATURES) == 44
    assert table.x.shape == (3, 44)
    of = {name: table.x[:, i] for i, name in enumerate(mimic.FEATURES)}
    at = {stay: row for row, stay in enumerate(table.stay.tolist())}
    assert set(at) == {101, 103, 104}
    first, second, born = (at[stay] for stay in (101, 103, 104))
    assert table.died[[first, second, born]].tolist() == [1, 0, 0]
    assert table.newborn[[first, second, born]].tolist() == [False, False, True]
    assert of["Age"][[first, second, born]] == pytest.approx([50.0, 90.0, 0.0])
    assert of["Male"][[first, second, born]].tolist() == [1.0, 0.0, 0.0]
    assert of["Elective"][[first, second, born]].tolist() == [0.0, 1.0, 0.0]
    assert [of[f"HR_{s}"][first] for s in mimic.STATISTICS] == [80.0, 60.0, 100.0]
    assert [of[f"Temp_{s}"][first] for s in mimic.STATISTICS] == pytest.approx([37.5, 37.0, 38.0])
    assert of["GCS_lowest"][[first, second]].tolist() == [7.0, 13.0]
    assert np.isnan(of["GCS_lowest"][born])
    assert of["Creatinine_last"][first] == 3.0
    assert of["K_last"][second] == 4.5
    assert np.isnan(of["Lactate_last"]).all()
    assert np.isfinite(table.x[born]).sum() == 3


def test_a_missing_table_or_column_is_named(tmp_path: Path) -> None:
    tables = _tables()
    with pytest.raises(DataError, match=r"no ADMISSIONS\.csv or ADMISSIONS\.csv\.gz"):
        mimic.read_mimic(tmp_path)
    _written(tmp_path, {**tables, "LABEVENTS": tables["LABEVENTS"].drop(columns="VALUENUM")})
    with pytest.raises(DataError, match=r"LABEVENTS\.csv lacks the column VALUENUM"):
        mimic.read_mimic(tmp_path)
    _written(tmp_path, {**tables, "ADMISSIONS": tables["ADMISSIONS"].assign(HADM_ID=[21, 22, 23])})
    with pytest.raises(DataError, match="no line of ICUSTAYS"):
        mimic.read_mimic(tmp_path)


def test_stays_without_any_event_are_rows_of_nan(tmp_path: Path) -> None:
    tables = _tables()
    empty = {name: tables[name].iloc[:0] for name in ("CHARTEVENTS", "LABEVENTS")}
    table = mimic.read_mimic(_written(tmp_path, tables | empty))
    assert np.isfinite(table.x).sum() == 3 * 3  # age, sex, kind of admission


def _many(patients: int) -> dict[str, pd.DataFrame]:
    """One stay each, every seventh of a newborn; heart rates tell who dies."""
    ids, random = np.arange(1, patients + 1), np.random.default_rng(0)
    died = random.random(patients) < 0.4
    entry = pd.Timestamp(ENTRY)
    charted = [
        (100 + i, 211, entry + pd.Timedelta(hours=h), 70.0 + 50 * died[i - 1] + random.normal(), 0)
        for i in ids.tolist()
        for h in range(3)
    ]
    kinds = np.where(ids % 7 == 0, "NEWBORN", "EMERGENCY")
    return {
        **_tables(),
        "ADMISSIONS": pd.DataFrame({"HADM_ID": ids, "ADMISSION_TYPE": kinds, "HOSPITAL_EXPIRE_FLAG": died.astype(int)}),
        "PATIENTS": pd.DataFrame({"SUBJECT_ID": ids, "GENDER": "F", "DOB": "2100-03-01 00:00:00"}),
        "ICUSTAYS": pd.DataFrame({"SUBJECT_ID": ids, "HADM_ID": ids, "ICUSTAY_ID": 100 + ids, "INTIME": ENTRY}),
        "CHARTEVENTS": pd.DataFrame(charted, columns=["ICUSTAY_ID", "ITEMID", "CHARTTIME", "VALUENUM", "ERROR"]),
    }


def test_a_task_from_mimic_keeps_patients_apart_and_newborns_out(tmp_path: Path) -> None:
    stays = mimic.mimic(_written(tmp_path, _many(71)), seed=3)
    assert [len(y) for _, y in stays[:3]] == [42, 6, 13]  # of 61 adults: 70 % and 80 % rounded down
    assert len(stays.foreign["newborn"]) == 10
    assert not stays.shifted
    x, y = stays.test
    rate = x.std(0).argmax()  # the heart rate is the only column of adults that varies, three times
    assert torch.equal(x[:, rate] > 0, y == 1)
    with pytest.raises(DataError, match="ten at least"):
        mimic.mimic(_written(tmp_path, _tables()))


@pytest.mark.slow
def test_the_bench_takes_a_task_from_mimic(tmp_path: Path) -> None:
    rows = low_rank_icu.measured(mimic.mimic(_written(tmp_path, _many(141)), seed=1), quick=True)
    assert {row["data"] for row in rows} == {"mimic"}
    assert all("ood_auroc_entropy_newborn" in row for row in rows)
