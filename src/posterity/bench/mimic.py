"""MIMIC-III as a table: the first 48 hours of a stay, and whether the patient dies in hospital.

For who holds the credentialed data: a folder with ADMISSIONS, PATIENTS, ICUSTAYS, CHARTEVENTS and LABEVENTS, each .csv or
.csv.gz as PhysioNet ships them. A row is the first stay of an admission; newborns are the foreign population. 44 columns:

    Age, Male, Elective
    mean, lowest and highest of seven vital signs
    the lowest score of the Glasgow coma scale (the sum of its lowest parts where only these are charted)
    the last of nineteen laboratory values

Toure and Stephens (2026) have 44 features too and do not list theirs. The two event tables are read in blocks of lines, of
which a summary is kept.

    low_rank_icu.measured(mimic.mimic("mimic-iii"), seed=0)        the rows of the bench on these data
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from posterity.bench.icu import Columns, Labelled, Stays
from posterity.errors import DataError

if TYPE_CHECKING:
    import pandas

__all__ = ["FEATURES", "Table", "mimic", "read_mimic"]

BLOCK = 2_000_000  # lines of an event table at a time
OLDEST = 90.0  # years: beyond 89 MIMIC hides the age behind some 300


class _Signal(NamedTuple):
    items: tuple[int, ...]
    low: float  # values outside are slips of the pen
    high: float


VITALS = {
    "HR": _Signal((211, 220045), 1, 350),
    "SysBP": _Signal((51, 442, 455, 6701, 220179, 220050), 1, 400),
    "DiasBP": _Signal((8368, 8440, 8441, 8555, 220180, 220051), 1, 300),
    "MAP": _Signal((456, 52, 6702, 443, 220052, 220181, 225312), 1, 300),
    "RespRate": _Signal((615, 618, 220210, 224690), 1, 90),
    "Temp": _Signal((676, 223762, 678, 223761), 20, 45),  # degrees Celsius, once converted
    "SpO2": _Signal((646, 220277), 1, 100),
}
FAHRENHEIT = (678, 223761)
COMA = {
    "GCS": _Signal((198,), 3, 15),
    "GCSEye": _Signal((220739,), 1, 4),
    "GCSVerbal": _Signal((223900,), 1, 5),
    "GCSMotor": _Signal((223901,), 1, 6),
}
LABS = {
    "Albumin": _Signal((50862,), 0.1, 10),
    "Bilirubin": _Signal((50885,), 0, 150),
    "BUN": _Signal((51006,), 0, 300),
    "Chloride": _Signal((50902, 50806), 50, 175),
    "Creatinine": _Signal((50912,), 0, 150),
    "Glucose": _Signal((50931, 50809), 1, 2000),
    "HCO3": _Signal((50882,), 0, 100),
    "HCT": _Signal((51221, 50810), 0, 100),
    "Hemoglobin": _Signal((51222, 50811), 0, 50),
    "INR": _Signal((51237,), 0, 50),
    "K": _Signal((50971, 50822), 0, 30),
    "Lactate": _Signal((50813,), 0, 50),
    "Mg": _Signal((50960,), 0, 60),
    "Na": _Signal((50983, 50824), 50, 250),
    "PaCO2": _Signal((50818,), 0, 200),
    "PaO2": _Signal((50821,), 0, 800),
    "pH": _Signal((50820,), 6, 8),
    "Platelets": _Signal((51265,), 0, 10000),
    "WBC": _Signal((51301, 51300), 0, 1000),
}
STATISTICS = ("mean", "lowest", "highest")
FEATURES = (
    "Age", "Male", "Elective", *(f"{name}_{statistic}" for name in VITALS for statistic in STATISTICS), "GCS_lowest",
    *(f"{name}_last" for name in LABS),
)  # fmt: skip

_STAYS = {
    "ADMISSIONS": ("HADM_ID", "ADMISSION_TYPE", "HOSPITAL_EXPIRE_FLAG"),
    "PATIENTS": ("SUBJECT_ID", "GENDER", "DOB"),
    "ICUSTAYS": ("SUBJECT_ID", "HADM_ID", "ICUSTAY_ID", "INTIME"),
}
_CHARTED = ("ICUSTAY_ID", "ITEMID", "CHARTTIME", "VALUENUM", "ERROR")
_DRAWN = ("HADM_ID", "ITEMID", "CHARTTIME", "VALUENUM")


class Table(NamedTuple):
    """Args:
    x: [stays, 44] float64, NaN = not measured.
    died: [stays] int64, 1 = in hospital.
    newborn: [stays] bool.
    subject, stay: [stays] numbers of the patient and of the stay.
    """

    x: np.ndarray
    died: np.ndarray
    newborn: np.ndarray
    subject: np.ndarray
    stay: np.ndarray


def mimic(folder: str | PathLike[str], seed: int = 0) -> Stays:
    """A task as `icu.physionet` gives it: patients 70/10/20 by seed, newborns as the foreign set.

    Raises: as `read_mimic`, and DataError where no adult is there.
    """
    table = read_mimic(folder)
    adult = np.flatnonzero(~table.newborn)
    patients = np.unique(table.subject[adult])
    if len(patients) < 10:
        raise DataError(
            f"{folder} holds {len(patients)} patients that are no newborns; ten at least are needed to split them"
        )
    order = np.random.default_rng(seed).permutation(patients)
    groups = np.split(order, [int(0.7 * len(order)), int(0.8 * len(order))])
    parts = [adult[np.isin(table.subject[adult], group)] for group in groups]
    columns = Columns.fitted(table.x[parts[0]])

    def rows(index: np.ndarray) -> Labelled:
        return columns(table.x[index]), torch.from_numpy(table.died[index])

    foreign = {"newborn": columns(table.x[table.newborn])} if table.newborn.any() else {}
    return Stays(rows(parts[0]), rows(parts[1]), rows(parts[2]), foreign, {})


def read_mimic(folder: str | PathLike[str], *, hours: float = 48.0, block: int = BLOCK) -> Table:
    """The table of the first `hours` of every stay.

    Args:
        folder: with the five tables; names and columns in capitals or small letters.
        block: lines of an event table in memory at a time.

    Raises:
        DataError: a table or a column is missing, or no stay has an admission and a patient.
        ImportError: without pandas (`pip install 'posterity[tables]'`).
    """
    paths = {name: _path(Path(folder), name) for name in (*_STAYS, "CHARTEVENTS", "LABEVENTS")}
    stays = _stays({name: _whole(paths[name], columns) for name, columns in _STAYS.items()}, Path(folder))
    charted = _summary(_read(paths["CHARTEVENTS"], _CHARTED, block), stays, VITALS | COMA, "ICUSTAY_ID", hours)
    drawn = _summary(_read(paths["LABEVENTS"], _DRAWN, block), stays, LABS, "HADM_ID", hours)
    columns = [stays["AGE"], stays["MALE"], stays["ELECTIVE"]]
    for name in VITALS:
        columns += [_of(charted, name, statistic, len(stays)) for statistic in STATISTICS]
    parts = sum(_of(charted, name, "lowest", len(stays)) for name in COMA if name != "GCS")
    whole = _of(charted, "GCS", "lowest", len(stays))
    columns += [np.where(np.isnan(whole), parts, whole)]
    columns += [_of(drawn, name, "last", len(stays)) for name in LABS]
    x = np.stack([np.asarray(column, dtype=np.float64) for column in columns], 1)
    ids = (stays[name].to_numpy() for name in ("DIED", "NEWBORN", "SUBJECT_ID", "ICUSTAY_ID"))
    return Table(x, *ids)


def _pandas() -> Any:
    try:
        import pandas
    except ImportError as error:
        raise ImportError("MIMIC-III is read with pandas: pip install 'posterity[tables]'") from error
    return pandas


def _path(folder: Path, name: str) -> Path:
    for stem in (name, name.lower()):
        for ending in (".csv", ".csv.gz"):
            if (folder / f"{stem}{ending}").is_file():
                return folder / f"{stem}{ending}"
    raise DataError(f"{folder} has no {name}.csv or {name}.csv.gz: give the folder that holds MIMIC-III's tables")


def _read(path: Path, columns: Sequence[str], block: int | None) -> Iterator[pandas.DataFrame]:
    """These columns in blocks of lines, or whole; their names in capitals."""
    pandas = _pandas()
    there = {str(name).upper(): name for name in pandas.read_csv(path, nrows=0).columns}
    if missing := [name for name in columns if name not in there]:
        raise DataError(f"{path} lacks the column {missing[0]}: it is not MIMIC-III's table of that name")
    wanted = [there[name] for name in columns]
    found = pandas.read_csv(path, usecols=wanted, chunksize=block, low_memory=False)
    for part in found if block is not None else [found]:
        yield part.rename(columns=str.upper)


def _whole(path: Path, columns: Sequence[str]) -> pandas.DataFrame:
    return next(_read(path, columns, None))


def _stays(tables: Mapping[str, pandas.DataFrame], folder: Path) -> pandas.DataFrame:
    """A line per admission, its first stay, with what is known on entry."""
    pandas = _pandas()
    stays = tables["ICUSTAYS"].assign(INTIME=lambda t: pandas.to_datetime(t["INTIME"])).dropna()
    stays = stays.sort_values(["INTIME", "ICUSTAY_ID"]).drop_duplicates("HADM_ID")
    stays = stays.merge(tables["ADMISSIONS"], on="HADM_ID").merge(tables["PATIENTS"], on="SUBJECT_ID")
    if stays.empty:
        raise DataError(f"in {folder} no line of ICUSTAYS has its admission in ADMISSIONS and its patient in PATIENTS")
    born = pandas.to_datetime(stays["DOB"])
    # years by the calendar: the 300 years of the oldest do not fit into a difference of nanoseconds
    years = stays["INTIME"].dt.year - born.dt.year + (stays["INTIME"].dt.day_of_year - born.dt.day_of_year) / 365.25
    return stays.assign(
        AGE=years.clip(0.0, OLDEST),
        MALE=stays["GENDER"].map({"M": 1.0, "F": 0.0}),
        ELECTIVE=(stays["ADMISSION_TYPE"] == "ELECTIVE").astype(float),
        NEWBORN=stays["ADMISSION_TYPE"] == "NEWBORN",
        DIED=stays["HOSPITAL_EXPIRE_FLAG"].astype("int64"),
    ).reset_index(drop=True)


def _summary(
    blocks: Iterator[pandas.DataFrame], stays: pandas.DataFrame, signals: Mapping[str, _Signal], key: str, hours: float
) -> pandas.DataFrame:
    """By line of `stays` and signal: count, sum, lowest, highest, and the last value with its hour."""
    pandas = _pandas()
    items = pandas.DataFrame(
        [(item, name, signal.low, signal.high) for name, signal in signals.items() for item in signal.items],
        columns=["ITEMID", "name", "low", "high"],
    )
    entry = stays[[key, "INTIME"]].assign(row=stays.index)
    parts = [part for block in blocks if len(part := _part(block, entry, items, key, hours))]
    if not parts:
        return pandas.DataFrame(columns=["row", "name"])
    return _combined(pandas.concat(parts)).assign(mean=lambda t: t["sum"] / t["count"])


def _part(
    block: pandas.DataFrame, entry: pandas.DataFrame, items: pandas.DataFrame, key: str, hours: float
) -> pandas.DataFrame:
    pandas = _pandas()
    known = block["ITEMID"].isin(items["ITEMID"]) & block["VALUENUM"].notna() & block[key].notna()
    if "ERROR" in block:
        known &= block["ERROR"].fillna(0) != 1
    events = block[known].astype({key: "int64", "VALUENUM": "float64"}).merge(items, on="ITEMID").merge(entry, on=key)
    if events.empty:
        return events
    hour = (pandas.to_datetime(events["CHARTTIME"]) - events["INTIME"]).dt.total_seconds() / 3600
    value = events["VALUENUM"]
    value = value.where(~events["ITEMID"].isin(FAHRENHEIT), (value - 32) / 1.8)
    columns = {"row": events["row"], "name": events["name"], "hour": hour, "last": value}
    kept = (hour >= 0) & (hour < hours) & (value >= events["low"]) & (value <= events["high"])
    found = pandas.DataFrame(columns)[kept]
    return _combined(found.assign(count=1, sum=found["last"], lowest=found["last"], highest=found["last"]))


def _combined(parts: pandas.DataFrame) -> pandas.DataFrame:
    """A line per row and signal; of two values of one hour the later line's is the last."""
    parts = parts.sort_values("hour", kind="stable")
    how = {"count": "sum", "sum": "sum", "lowest": "min", "highest": "max", "last": "last", "hour": "last"}
    return parts.groupby(["row", "name"], as_index=False).agg(how)


def _of(summary: pandas.DataFrame, name: str, statistic: str, rows: int) -> np.ndarray:
    """[rows]; NaN where nothing was measured."""
    out = np.full(rows, np.nan)
    own = summary[summary["name"] == name]
    if len(own):
        out[own["row"].to_numpy()] = own[statistic].to_numpy()
    return out
