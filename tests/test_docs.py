"""The pages: every link leads somewhere, every name of the library that they use exists."""

import re
from pathlib import Path

import pytest

import posterity as po

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text("utf-8")):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_names_exist(page: Path) -> None:
    for name in re.findall(r"\bpo\.([A-Za-z]\w*)", page.read_text("utf-8")):
        assert hasattr(po, name), name
    for name in re.findall(r"`((?:src/posterity|tests|benchmarks|docs)/[\w./-]+)`", page.read_text("utf-8")):
        assert (ROOT / name).exists(), name


def test_every_public_name_is_documented() -> None:
    for name in po.__all__:
        assert (getattr(po, name).__doc__ or "").strip(), name
