"""Reports of each kind pass the rules of axe-core in a browser, and show what an auditor and a planner look for."""

from __future__ import annotations

import copy
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.evaluation.report.pages import Page, check
from tests.evaluation.report.records import Stub, classification, regression

from posterity.evaluation.report.report import render, write_report
from posterity.evaluation.selective_report import COLUMNS

pytest.importorskip("jinja2", reason="the report needs posterity[report]")
pytest.importorskip("altair", reason="the report needs posterity[report]")
pytest.importorskip("vl_convert", reason="the report needs posterity[report]")

TWO = {("map", "mean"): 1.9, ("ivon", "draws"): 1.0, ("laplace", "draws"): 1.2}


def selective(holds: bool = True) -> dict[str, Any]:
    record = copy.deepcopy(classification(TWO, n=300))
    said = "risk <= 0.05 guaranteed" if holds else "risk <= 0.05 cannot be guaranteed"
    found = {"max_risk": 0.05, "confidence": 0.95, "holds": holds, "said": said, "by": "confidence", "threshold": 0.7}
    shares = (0.625, 0.02, 0.01, 0.05, 0.049)
    answered = [
        ("all", "all", 320, 200, shares[0], 4, *shares[1:], holds, "" if holds else said),
        ("ward", "north", 160, 100, shares[0], 2, *shares[1:], False, "no guarantee alone: 2 errors"),
    ]
    record["rows"][0]["details"]["guarantee"] = {name: [value] for name, value in found.items()}
    record["rows"][0]["details"]["answered"] = dict(zip(COLUMNS, map(list, zip(*answered))))
    return record


def forecast() -> dict[str, Any]:
    record = regression({("ivon", "draws"): 1.0}, n=300)
    columns = {
        "step": [1, 2, 3], "n": [90, 90, 0], "independent": [30, 30, 0], "coverage_0.5": [0.5, 0.4, None],
        "coverage_0.9": [0.9, 0.6, None], "low_0.9": [0.73, 0.41, None], "high_0.9": [0.98, 0.77, None],
        "width_0.9": [2.0, 3.0, None], "crps": [0.5, 0.8, None], "crps_naive": [0.6, 0.7, None],
    }  # fmt: skip
    record["rows"][0]["details"]["horizons"] = columns
    return record


@pytest.mark.parametrize("make", [forecast, lambda: selective(holds=False)], ids=["steps", "refused"])
def test_axe_finds_no_fault(make: Any, tmp_path: Path) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed")
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("there is no Chromium")
    path = write_report(Stub(make()), tmp_path / "page.html")
    with playwright.sync_playwright() as started:
        page = started.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"]).new_page()
        page.goto(path.as_uri())
        page.evaluate("document.querySelectorAll('details').forEach((part) => { part.open = true; })")
        violations = axe.Axe().run(page).response["violations"]
    assert [(one["id"], one["nodes"][0]["html"]) for one in violations] == []


def test_the_steps_ahead_show_what_the_record_says() -> None:
    found = check(render(Stub(forecast())))
    assert "horizons" in found.sections
    notes = " ".join(words for _, words in found.all("span"))
    assert "1 of 2 intervals miss 90\u202f%" in notes
    assert "lower than the naive one at 1 of 2 steps" in notes


def test_a_guarantee_is_said_with_its_point_and_its_groups() -> None:
    found: Page = check(render(Stub(selective())))
    box = next(words for attrs, words in found.all("div") if attrs.get("class") == "promise")
    assert "answers 200 (62.5\u202f%), of which 4 are wrong: risk 2\u202f%" in box
    assert len([1 for attrs, _ in found.all("path") if attrs.get("class") == "kept"]) == 2  # wide and narrow
    assert any("no guarantee alone: 2 errors" in words for _, words in found.all("td"))


def test_what_cannot_be_guaranteed_stands_in_a_box_of_its_own() -> None:
    found = check(render(Stub(selective(holds=False))))
    box = next(words for attrs, words in found.all("div") if attrs.get("class") == "promise none")
    assert "cannot be guaranteed" in box
    assert not [1 for attrs, _ in found.all("path") if attrs.get("class") == "kept filled"]
