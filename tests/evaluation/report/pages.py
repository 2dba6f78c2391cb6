"""A page as the tests read it, and what holds for every page."""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter
from functools import lru_cache
from html.parser import HTMLParser
from typing import Any

from posterity.evaluation.report.charts import GRID, INK, LINE, PAPER, SERIES

VOID = {"area", "base", "br", "col", "hr", "img", "input", "link", "meta", "wbr"}


class Page(HTMLParser):
    """Its elements with their attributes and their text, and whether every element is closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None], list[str]]] = []
        self.errors: list[str] = []
        self._inside: list[list[str]] = []
        self.feed(text)
        self.close()
        self.errors += [f"<{tag}> is not closed" for tag in self.open]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        text: list[str] = []
        self.elements.append((tag, dict(attrs), text))
        if len(dict(attrs)) < len(attrs):
            self.errors.append(f"<{tag}> has an attribute twice")
        if tag not in VOID:
            self.open.append(tag)
            self._inside.append(text)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs), []))

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open[-1] != tag:
            self.errors.append(f"</{tag}> at {self.getpos()} closes {self.open[-1:]}")
        else:
            self.open.pop()
            self._inside.pop()

    def handle_data(self, data: str) -> None:
        for text in self._inside:
            text.append(data)

    def all(self, tag: str, **attributes: str) -> list[tuple[dict[str, str | None], str]]:
        """Attributes and text of all elements of a kind that have these attributes."""
        return [
            (attrs, "".join(text))
            for name, attrs, text in self.elements
            if name == tag and all(attrs.get(key) == value for key, value in attributes.items())
        ]

    @property
    def record(self) -> dict[str, Any]:
        return json.loads(self.all("script", id="evaluation")[0][1])

    @property
    def sections(self) -> list[str | None]:
        return [attrs["id"] for attrs, _ in self.all("section") if "id" in attrs]


parse = lru_cache(Page)


def check(text: str) -> Page:
    """What holds for every page: closed elements, ids that are one of a kind and exist, names for what is not text."""
    found = parse(text)
    assert not found.errors
    ids = Counter(attrs["id"] for _, attrs, _ in found.elements if "id" in attrs)
    assert ids.most_common(1)[0][1] == 1, ids.most_common(3)
    for _, attrs, _ in found.elements:
        link = attrs.get("href") or ""
        assert not link.startswith("#") or link[1:] in ids
    assert set(re.findall(r"url\(#([\w-]+)\)", text)) <= set(ids)
    assert all(attrs.get("alt") for attrs, _ in found.all("img"))
    assert all(attrs.get("scope") in ("col", "row") for attrs, _ in found.all("th"))
    assert all(attrs.get("aria-label") or attrs.get("aria-hidden") for attrs, _ in found.all("svg"))
    assert len(found.all("h1")) == len(found.all("main")) == len(found.all("title")) == 1
    levels = [int(tag[1]) for tag, _, _ in found.elements if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))
    for colour in (INK, LINE, GRID, PAPER, *SERIES):
        assert colour not in text, "a placeholder of a colour was left in a chart"
    return found
