"""Pictures or texts made ready for a fit: read, their classes found, shared out, the backbone chosen."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from posterity.errors import DataError
from posterity.interfaces.pretrained.backbones import Backbone, backbone
from posterity.interfaces.pretrained.pictures import CLASS, PART
from posterity.interfaces.pretrained.source import Source
from posterity.interfaces.pretrained.tokens import Tokens, length_for
from posterity.interfaces.settings import Settings
from posterity.interfaces.tables.split import Split, split
from posterity.interfaces.tables.target import Target
from posterity.interfaces.tables.words import listed, plural

if TYPE_CHECKING:
    from pandas import DataFrame

__all__ = ["Prepared", "prepare", "read"]

_UNUSED = ("drop", "network", "likelihood", "time")  # what tables alone are told


@dataclass(frozen=True)
class Prepared:
    """All that a fit needs, checked before anything is written."""

    settings: Settings
    source: Source
    frame: DataFrame
    target: Target
    parts: Split
    backbone: Backbone

    @property
    def groups(self) -> list[str]:
        """Columns to evaluate by."""
        return [self.settings.group] if self.settings.group else []

    def labels(self, rows: np.ndarray[Any, Any]) -> Any:
        """The classes of some rows."""
        return self.target.read(self.frame.iloc[rows])


def source_of(settings: Settings) -> Source:
    """Texts where a column is named, else pictures."""
    return Source("image") if settings.text is None else Source("text", settings.text)


def read(settings: Settings, tell: Callable[[str], None]) -> DataFrame:
    """The pictures or the table that settings name. Raises DataError: as `Source.read`."""
    assert settings.data is not None
    return source_of(settings).read(Path(settings.data), tell)


def prepare(frame: DataFrame, settings: Settings, tell: Callable[[str], None] = lambda line: None) -> Prepared:
    """Find the classes, share out the rows, load the backbone; `tell` hears what was decided.

    Raises:
        DataError: whatever is wrong with the rows, or a backbone that is not there.
        CompatibilityError: a backbone for other rows.
    """
    for name in _UNUSED:
        if getattr(settings, name) != getattr(Settings(), name):
            raise DataError(f"--{name} is for tables: pictures and texts are seen by a backbone")
    source = source_of(settings)
    rows = source.rows(frame)
    target = _target(frame, settings, tell)
    parts = _parts(frame, target, settings, tell)
    found = backbone(source.kind, settings.backbone)
    if isinstance(found.reader, Tokens):
        found = _for_texts(found, [rows[row] for row in parts.train], tell)
    tell(f"backbone: {found.name}, features of width {found.width}")
    _say_doubles(source, rows, parts, tell)
    return Prepared(settings, source, frame, target, parts, found)


def _target(frame: DataFrame, settings: Settings, tell: Callable[[str], None]) -> Target:
    if settings.text is not None:
        target, said = Target.guess(frame.drop(columns=[settings.text]), settings.target, "classification")
        for line in said:
            tell(line)
        return target
    if settings.target not in (None, CLASS):
        raise DataError(f"--target {settings.target} is for tables: the class of a picture is the folder it is in")
    if CLASS not in frame.columns:
        raise DataError("these pictures have no classes: put each into a folder named after its class")
    counts = frame[CLASS].value_counts()
    if len(counts) < 2:
        raise DataError(f"there is one class only, {counts.index[0]!r}: there is nothing to tell apart")
    if alone := sorted(counts.index[counts == 1]):
        raise DataError(f"one picture is no class: {listed(alone)} hold one each; give more, or take the folders out")
    tell(f"{plural(len(frame), 'picture')} of {len(counts)} classes, {counts.min():,} to {counts.max():,} of each")
    return Target(CLASS, "classification", tuple(sorted(map(str, counts.index))))


def _parts(frame: DataFrame, target: Target, settings: Settings, tell: Callable[[str], None]) -> Split:
    column, test = settings.split_column, settings.test
    if column is None and PART in frame.columns and settings.text is None:
        column = PART
        if not frame[PART].str.lower().str.startswith("test").any():
            test = 0.0
            tell("no folder is named test: posterity evaluate measures the run on other pictures")
    parts = split(
        frame, target, validation=settings.validation, test=test, column=column, group=settings.group,
        seed=settings.split_seed,
    )  # fmt: skip
    for line in parts.said:
        tell(line)
    return parts


def _for_texts(found: Backbone, texts: list[str], tell: Callable[[str], None]) -> Backbone:
    """With the length that the training texts need."""
    reader = found.reader
    assert isinstance(reader, Tokens)
    counts = reader.counts(texts)
    length = length_for(counts, reader.length)
    if cut := int((counts > length).sum()):
        tell(f"texts are cut after {length} tokens: {cut:,} of {plural(len(texts), 'training text')} are longer")
    return dataclasses.replace(found, reader=Tokens(reader.tokenizer, length))


def _say_doubles(source: Source, rows: list[str], parts: Split, tell: Callable[[str], None]) -> None:
    train, test = (source.keys([rows[row] for row in part]) for part in (parts.train, parts.test))
    if doubles := int(torch.isin(test, train).sum()):
        tell(f"warning: {doubles:,} of {plural(len(test), 'test row')} are training rows too: the figures flatter")
