"""The page in a browser: nothing is fetched, nothing fails, the slider says what the record says."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.evaluation.report.records import Stub, classification, regression

from posterity.evaluation.report.numbers import percent
from posterity.evaluation.report.record import lines
from posterity.evaluation.report.report import write_report
from posterity.evaluation.report.selective import point_at, sentence

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytest.importorskip("jinja2", reason="the report needs posterity[report]")
pytest.importorskip("altair", reason="the report needs posterity[report]")
pytest.importorskip("vl_convert", reason="the report needs posterity[report]")

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
METHODS = {("map", "mean"): 1.9, ("a rather long name of a method, <b>&amp;</b>", "draws"): 1.0}


@pytest.fixture(scope="module")
def record() -> dict[str, Any]:
    record = classification(METHODS, n=941)
    for row in record["rows"]:
        for name in ("reliability_mass", "groups"):
            del row["details"][name]
    return record


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, record: dict[str, Any]) -> Path:
    folder = tmp_path_factory.mktemp("report")
    write_report(Stub(record), folder / "classes.html")
    write_report(Stub(regression({("mean-field", "draws"): 1.0}, n=503)), folder / "numbers.html")
    return folder


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if program is None:
        pytest.skip("there is no Chromium")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=FLAGS)
        yield browser
        browser.close()


class Visit:
    """A page with what went wrong on it."""

    def __init__(self, browser: Any, path: Path, width: int = 1400, **options: Any) -> None:
        self.context = browser.new_context(viewport={"width": width, "height": 900}, **options)
        self.page = self.context.new_page()
        self.page.set_default_timeout(5000)
        self.problems: list[str] = []
        self.page.on("console", lambda message: self.problems.append(message.text))
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("request", self._request)
        self.page.goto(path.as_uri())

    def _request(self, request: Any) -> None:
        if not request.url.startswith(("file:", "data:")):
            self.problems.append(request.url)

    @property
    def said(self) -> str:
        return str(self.page.locator("#selective-said").inner_text())

    def __enter__(self) -> Visit:
        return self

    def __exit__(self, *error: object) -> None:
        self.context.close()
        assert error[0] or not self.problems, self.problems


@pytest.fixture
def visit(browser: Any, folder: Path) -> Iterator[Visit]:
    with Visit(browser, folder / "classes.html") as visit:
        yield visit


def table(record: dict[str, Any], row: int) -> list[dict[str, Any]]:
    return lines(record["rows"][row]["details"]["risk_coverage"])


@pytest.mark.parametrize(
    ("width", "scheme"), [(360, "light"), (360, "dark"), (768, "light"), (1400, "light"), (1400, "dark")]
)
@pytest.mark.parametrize("name", ["classes", "numbers"])
def test_no_page_is_wider_than_its_window(browser: Any, folder: Path, name: str, width: int, scheme: str) -> None:
    with Visit(browser, folder / f"{name}.html", width, color_scheme=scheme) as visit:
        size = "[document.documentElement.scrollWidth, document.documentElement.clientWidth]"
        full, seen = visit.page.evaluate(size)
        assert full <= seen
        visit.page.evaluate("document.querySelectorAll('details').forEach((part) => { part.open = true; })")
        full, seen = visit.page.evaluate(size)
        assert full <= seen
        assert visit.page.locator("svg.chart").count() == {"classes": 13, "numbers": 7}[name]
        dark = visit.page.evaluate("getComputedStyle(document.body).backgroundColor") != "rgb(255, 255, 255)"
        assert dark == (scheme == "dark")


RATIOS = """() => {
  const light = (words) => {
    const parts = words.match(/[\\d.]+/g).map((part) => part / 255);
    const [r, g, b] = parts.map((part) => (part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (part) => {
    for (let at = part; at; at = at.parentElement) {
      const colour = getComputedStyle(at).backgroundColor;
      if (colour !== "rgba(0, 0, 0, 0)") return colour;
    }
  };
  const found = {};
  for (const part of document.querySelectorAll("main *, header *, nav *, footer *")) {
    const own = [...part.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
    if (!own || part.closest("select")) continue;
    const style = getComputedStyle(part);
    const text = part instanceof SVGElement ? style.fill : style.color;
    const pair = [light(text), light(behind(part))].sort((a, b) => b - a);
    found[`${part.tagName} ${text}`] = (pair[0] + 0.05) / (pair[1] + 0.05);
  }
  return found;
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_contrast(browser: Any, folder: Path, scheme: str) -> None:
    with Visit(browser, folder / "classes.html", color_scheme=scheme) as visit:
        ratios = visit.page.evaluate(RATIOS)
        assert len(ratios) > 10
        assert {name: ratio for name, ratio in ratios.items() if ratio < 4.5} == {}


def test_the_arrow_keys_move_the_numbers_and_the_marker(visit: Visit, record: dict[str, Any]) -> None:
    curve = table(record, 1)  # the calibrated method is chosen at first
    slider = visit.page.locator("#selective-threshold")
    at = point_at(curve, 0.01)
    assert at is not None
    assert slider.input_value() == str(at)
    here = visit.page.locator("svg.selective.wide .here")
    for key, step in [
        ("ArrowRight", 1),
        ("ArrowRight", 1),
        ("ArrowLeft", -1),
        ("Home", -at - 1),
        ("End", len(curve) - 1),
    ]:
        before = float(here.get_attribute("cx"))
        slider.press(key)
        at += step
        assert visit.said == sentence(curve, at)
        assert slider.get_attribute("aria-valuetext") == (
            f"{percent(curve[at]['coverage'])} answered, risk {percent(curve[at]['risk'])}"
        )
        assert (float(here.get_attribute("cx")) > before) == (step > 0)


def test_every_position_says_what_its_line_of_the_record_says(visit: Visit, record: dict[str, Any]) -> None:
    script = """() => {
      const slider = document.getElementById("selective-threshold");
      return Array.from({length: Number(slider.max) + 1}, (_, index) => {
        slider.value = index;
        slider.dispatchEvent(new Event("input"));
        return document.getElementById("selective-said").textContent;
      });
    }"""
    for row in range(len(METHODS)):
        visit.page.locator("#selective-method").select_option(index=row)
        curve = table(record, row)
        assert visit.page.evaluate(script) == [sentence(curve, index) for index in range(len(curve))]


def test_the_buttons_go_to_the_largest_coverage_within_the_risk(visit: Visit, record: dict[str, Any]) -> None:
    for row in (0, 1):
        visit.page.locator("#selective-method").select_option(index=row)
        curve = table(record, row)
        assert visit.page.locator("#selective-name").inner_text() == visit.page.locator("option").nth(row).inner_text()
        for risk in (0.005, 0.01, 0.05):
            visit.page.get_by_role("button", name=f"risk at most {percent(risk)}", exact=True).press("Enter")
            at = point_at(curve, risk)
            assert at is not None
            assert visit.said == sentence(curve, at)


def test_a_risk_out_of_reach_is_said(browser: Any, tmp_path: Path) -> None:
    record = classification({("map", "mean"): 1.9}, n=53)
    details = record["rows"][0]["details"]
    curve = {**details["risk_coverage"], "risk": [0.5 for _ in details["risk_coverage"]["risk"]]}
    record["rows"][0]["details"] = {"risk_coverage": curve}
    with Visit(browser, write_report(Stub(record), tmp_path / "page.html")) as visit:
        assert visit.page.locator("#selective-threshold").input_value() == str(len(curve["risk"]) - 1)
        visit.page.get_by_role("button", name="risk at most 5").click()
        assert "no threshold" in visit.said


def test_the_other_method_is_drawn(visit: Visit) -> None:
    oracle = visit.page.locator("svg.selective.wide .oracle").get_attribute("d")
    visit.page.locator("#selective-method").select_option(index=0)
    assert visit.page.locator("svg.selective.wide .chosen").get_attribute("data-entry") == "0"
    assert visit.page.locator("svg.selective.wide .oracle").get_attribute("d") not in (oracle, "")
    drawn = visit.page.locator("svg.selective.wide .area").get_attribute("d")
    visit.page.locator("#selective-method").select_option(index=1)
    assert visit.page.locator("svg.selective.wide .area").get_attribute("d") != drawn
    again = visit.page.locator("svg.selective.wide .oracle").get_attribute("d")
    numbers = [[float(part) for part in path.strip("M").replace("L", ",").split(",")] for path in (oracle, again)]
    assert numbers[0] == pytest.approx(numbers[1], abs=0.11)  # both are rounded to a tenth of a pixel


def test_it_is_read_without_a_script(browser: Any, folder: Path, record: dict[str, Any]) -> None:
    with Visit(browser, folder / "classes.html", java_script_enabled=False) as visit:
        curve = table(record, 1)
        assert visit.said == sentence(curve, point_at(curve, 0.01) or 0)
        assert not visit.page.locator("#selective-threshold").is_visible()
        assert visit.page.locator("svg.selective.wide").is_visible()


def test_it_prints(browser: Any, folder: Path) -> None:
    with Visit(browser, folder / "classes.html", 700, color_scheme="dark") as visit:
        visit.page.emulate_media(media="print", color_scheme="dark")
        assert visit.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        assert not visit.page.locator("#selective-threshold").is_visible()
        assert not visit.page.locator("details.data").first.is_visible()
        document = visit.page.pdf(format="A4")
        assert document.startswith(b"%PDF")
        assert len(document) > 30_000
        assert visit.page.locator("details.matters:not([open])").count() == 0


def test_the_first_tab_stop_skips_to_the_results(visit: Visit) -> None:
    visit.page.keyboard.press("Tab")
    assert visit.page.evaluate("document.activeElement.className") == "skip"
    visit.page.keyboard.press("Enter")
    assert visit.page.evaluate("document.activeElement.id") == "main"
