"""Every measured figure in the pages has a source, and docs/evidence.md lists them."""

import re
from pathlib import Path

import claims
import pytest

from posterity.bench.registry import BENCHES


def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> list[claims.Claim]:
    """The claims of a page of one section."""
    monkeypatch.setattr(claims, "DOCS", tmp_path)
    page = tmp_path / "page.md"
    page.write_text(f"# Speed\n\n{text}\n")
    return list(claims.claims(page))


@pytest.mark.parametrize("page", claims.pages(), ids=claims.where)
def test_every_figure_has_a_source(page: Path) -> None:
    lost = [(one.heading, one.said) for one in claims.claims(page) if not one.sources]
    assert not lost, "name the command that gives these, or say in website/claims.py why they are not measured"


@pytest.mark.parametrize("page", claims.pages(), ids=claims.where)
def test_every_bench_that_a_page_names_exists_and_is_committed(page: Path) -> None:
    for name in re.findall(r"posterity\s+bench\s+([a-z][\w-]+)", page.read_text("utf-8")):
        assert name == "all" or name in BENCHES, name
        assert name == "all" or (claims.RESULTS / f"{name}.json").exists(), name


def test_the_list_is_that_of_the_pages() -> None:
    assert claims.PAGE.read_text("utf-8") == claims.page(), "make docs"


def test_every_exemption_is_of_a_section_that_exists() -> None:
    for name, heading in claims.EXEMPT:
        pages = [page for page in claims.pages() if name in ("*", claims.where(page))]
        headings = {
            line.lstrip("# ") for page in pages for line in page.read_text("utf-8").splitlines() if line[:1] == "#"
        }
        assert pages, name
        assert heading == "*" or heading in headings, (name, heading)


@pytest.mark.parametrize(
    "text",
    [
        "A step takes 1.12 times AdamW's.",
        "It takes 8 seconds.",
        "KL below 1e-9 everywhere.",
        "Between 3 to 5 of them are lost.",
        "40 % of the gain is lost.",
        "| method | NLL |\n|---|---|\n| MAP | 0.47 |",
    ],
)
def test_a_figure_without_a_source_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    (found,) = written(tmp_path, monkeypatch, text)
    assert found.sources == ()


@pytest.mark.parametrize(
    "text",
    [
        "Five members, one pass.",
        "`po.MAP(learning_rate=0.1)` is what it says.",
        "See arXiv 2602.05873, and [a page](1.5.md).",
        'An error says "2.0 GiB are too many".',
        "```\nit took 3.2 s\n```",
    ],
)
def test_what_is_no_measured_figure_needs_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    assert written(tmp_path, monkeypatch, text) == []


@pytest.mark.parametrize(
    ("text", "command", "bench"),
    [
        ("It takes 1.1 times (`posterity bench forecast --peers`).", "posterity bench forecast --peers", "forecast"),
        ("From `posterity bench forecast`:\n\n| | x |\n|---|---|\n| a | 1.5 |", "posterity bench forecast", "forecast"),
        ("Rows of `benchmarks/results/score-gaussian.json`: 1.5.", "posterity bench score-gaussian", "score-gaussian"),
        ("It holds to 1e-6 (`tests/inference/test_score.py`).", "pytest tests/inference/test_score.py", None),
        ("```python\nexamples/gate.py\n```\n\nIt has 0.88.", "python examples/gate.py", None),
        ("The digits have 0.98 in `posterity demo`.", "posterity demo", None),
    ],
)  # fmt: skip
def test_the_source_is_the_nearest_in_the_section(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, command: str, bench: str | None
) -> None:
    *_, last = written(tmp_path, monkeypatch, text)
    assert claims.Source(command, bench) in last.sources


def test_a_source_of_another_section_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "`posterity bench training-cost` has 1.5.\n\n## Other\n\nIt takes 2.5 times as long."
    first, second = written(tmp_path, monkeypatch, text)
    assert first.sources
    assert not second.sources
