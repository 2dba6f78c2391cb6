"""The pages: every link leads somewhere, every name of the library that they use exists."""

import json
import re
from pathlib import Path

import commands
import evidence
import promises
import pytest

import posterity as po

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted(DOCS.rglob("*.md"))]


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
    shown = {
        name
        for page in DOCS.glob("api/*.md")
        for name in re.findall(r"^::: posterity\.(\S+)", page.read_text("utf-8"), re.M)
    }
    for name in po.__all__:
        assert (getattr(po, name).__doc__ or "").strip(), name
        assert name in shown, f"no page under docs/api has {name}"


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=lambda page: str(page.relative_to(DOCS)))
def test_evidence_is_what_the_benches_found(page: Path) -> None:
    text = page.read_text("utf-8")
    assert evidence.filled(text, len(page.relative_to(DOCS).parts) - 1) == text, "make docs"


def test_the_page_of_the_command_line_is_what_the_commands_say() -> None:
    assert commands.PAGE.read_text("utf-8") == commands.page(), "make docs"


def test_the_table_of_promises_is_that_of_the_contract() -> None:
    text = promises.PAGE.read_text("utf-8")
    assert promises.filled(text) == text, "make docs"


def test_every_page_is_on_the_site() -> None:
    menu = (ROOT / "zensical.toml").read_text("utf-8")
    assert set(re.findall(r'"([\w/-]+\.md)"', menu)) == {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")}


def test_the_readme_has_the_committed_figures() -> None:
    rows = json.loads((ROOT / "benchmarks" / "results" / "training-cost.json").read_text("utf-8"))["rows"]
    figures = {(row["contestant"], row["cell"]): row.get("copies", row.get("times_adamw")) for row in rows}
    shown = {"po.MAP": "map", "po.MeanFieldVI": "mean_field", "po.IVON": "ivon"}
    cells = ("time, 5.9M weights, B=256", "time, 5.9M weights, B=32", "time, 26k weights, B=64", "memory")
    readme = (ROOT / "README.md").read_text("utf-8")
    for name, contestant in shown.items():
        found = re.search(rf"\| `{re.escape(name)}` \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|", readme)
        assert found, name
        for digits, cell in zip(found.groups(), cells):
            places = len(digits.partition(".")[2])
            assert float(digits) == pytest.approx(figures[contestant, cell], abs=0.51 * 10**-places), (name, cell)
