"""The page as text: it stands alone, escapes what it shows, and its numbers are the record's."""

from __future__ import annotations

import copy
import math
import random
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.evaluation.report.pages import Page, check, parse
from tests.evaluation.report.records import Stub, classification, classification_row, regression, undefined

from posterity.errors import StorageError
from posterity.evaluation.evaluation import Evaluation
from posterity.evaluation.report import charts
from posterity.evaluation.report.numbers import digits, percent
from posterity.evaluation.report.regression import binomial_band
from posterity.evaluation.report.report import render, write_report
from posterity.evaluation.report.selective import point_at

pytest.importorskip("jinja2", reason="the report needs posterity[report]")
pytest.importorskip("altair", reason="the report needs posterity[report]")
pytest.importorskip("vl_convert", reason="the report needs posterity[report]")

TWO = {("map", "mean"): 1.9, ("ivon", "draws"): 1.0}


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Charts without their marks: drawing takes nearly all of the time, and what is tested stands elsewhere."""
    drawing = (
        '<svg viewBox="0 0 30 20"><path clip-path="url(#clip0)" d="M0,0L1,1"/><clipPath id="clip0"></clipPath></svg>'
    )
    monkeypatch.setattr(charts, "_draw", lambda specification: drawing)


def page(record: dict[str, Any], title: str | None = None) -> Page:
    return Page(render(Stub(record), title))


@pytest.fixture(scope="module")
def classes() -> dict[str, Any]:
    return classification(TWO, n=1201)


@pytest.fixture(scope="module")
def text(classes: dict[str, Any]) -> str:
    return render(Stub(classes))


@pytest.fixture(scope="module")
def numbers() -> dict[str, Any]:
    return regression({("ivon", "draws"): 1.0})


@pytest.fixture(scope="module")
def numbers_text(numbers: dict[str, Any]) -> str:
    return render(Stub(numbers))


@pytest.mark.parametrize("kind", ["text", "numbers_text"])
def test_it_stands_alone(kind: str, request: pytest.FixtureRequest) -> None:
    text = request.getfixturevalue(kind)
    found = check(text)
    assert not re.search(r"https?:|[\"'(]//|@import|<link[^>]+stylesheet|url\(['\"]?(?!#)", text)
    for _, attrs, _ in found.elements:
        for name in ("src", "href", "action", "data", "poster", "srcset", "xlink:href"):
            assert (attrs.get(name) or "#").startswith(("#", "data:"))
    assert len(text.encode()) < 600_000
    assert found.all("html")[0][0]["lang"] == "en"


@pytest.mark.usefixtures("undrawn")
def test_its_sections_are_those_of_the_data(text: str, numbers_text: str, classes: dict[str, Any]) -> None:
    common = ["rows", "groups", "settings"]
    assert parse(text).sections == ["comparison", "differences", "calibration", "selective", "foreign", *common]
    assert parse(numbers_text).sections == ["comparison", "intervals", *common]
    bare = {"rows": [{key: value for key, value in row.items() if key != "details"} for row in classes["rows"]]}
    assert page(bare).sections == ["comparison"]
    for detail, section in [("reliability", "calibration"), ("risk_coverage", "selective"), ("ood", "foreign")]:
        row = {**classes["rows"][0], "details": {detail: classes["rows"][0]["details"][detail]}}
        assert page({"rows": [row]}).sections == ["comparison", section]
    listed = [attrs["href"] for attrs, _ in parse(text).all("a") if (attrs["href"] or "")[1:] in parse(text).sections]
    assert listed == [f"#{section}" for section in parse(text).sections]


def test_the_record_inside_is_the_record(text: str, classes: dict[str, Any]) -> None:
    assert parse(text).record == classes


@pytest.mark.parametrize("kind", [("text", "classes"), ("numbers_text", "numbers")], ids=["classes", "numbers"])
def test_its_numbers_are_those_of_the_record(kind: tuple[str, str], request: pytest.FixtureRequest) -> None:
    found, record = parse(request.getfixturevalue(kind[0])), request.getfixturevalue(kind[1])
    shown = Counter(float(attrs["value"] or "nan") for attrs, _ in found.all("data"))
    values = [metric["value"] for row in record["rows"] for metric in row["metrics"].values()]
    values += record.get("differences", {}).get("value", [])
    assert set(shown) == {float(value) for value in values if value is not None}
    for attrs, words in found.all("data"):  # at least two digits of every number, or a ten-thousandth
        value = float(attrs["value"] or "nan")
        said = float(words.replace("\u2212", "-").replace("\u202f", ""))
        assert math.isclose(said, value, rel_tol=0.05, abs_tol=6e-3)


@pytest.mark.usefixtures("undrawn")
def test_the_best_is_marked_in_words(text: str, classes: dict[str, Any]) -> None:
    best = min(row["metrics"]["nll"]["value"] for row in classes["rows"])
    assert re.search(rf'class="number best"><span class="mark">best</span> <data value="{re.escape(str(best))}">', text)
    cells = [words for attrs, words in parse(text).all("td") if "best" in (attrs.get("class") or "")]
    assert all(cell.strip().startswith("best") for cell in cells)
    equal = copy.deepcopy(classes)
    for row in equal["rows"]:
        row["metrics"] = {"accuracy": {"value": 0.75, "low": 0.7, "high": 0.8, "n": 97}}
    assert not [1 for attrs, _ in page(equal).all("td") if "best" in (attrs.get("class") or "")]


def test_an_undefined_value_is_a_dash_with_its_reason(text: str) -> None:
    found = parse(text)
    reasons = {attrs["id"]: words for attrs, words in found.all("li") if (attrs.get("id") or "").startswith("reason-")}
    assert reasons == {
        "reason-1": "no validation set picked the threshold",
        "reason-2": "mutual information is 0 for every row: one set of weights",
    }
    assert any(re.match(r"–\s*1", words.strip()) for _, words in found.all("td"))


def verdicts(record: dict[str, Any]) -> list[str]:
    return [words for attrs, words in page(record).all("span") if "verdict" in (attrs.get("class") or "")]


def lead(record: dict[str, Any]) -> str:
    return next(words for attrs, words in page(record).all("p") if attrs.get("class") == "lead")


def test_charts_are_valid_vega_lite(monkeypatch: pytest.MonkeyPatch) -> None:
    import altair

    drawn: list[dict[str, Any]] = []
    monkeypatch.setattr(charts, "_draw", lambda chart: drawn.append(chart) or '<svg viewBox="0 0 30 20"></svg>')
    first, second = (make({("ivon", "draws"): 1.0}, n=97)["rows"][0] for make in (classification, regression))
    render(Stub({"rows": [first, {**second, "method": "map"}]}))
    kinds = {tuple(layer["mark"]["type"] for layer in chart["layer"]): chart for chart in drawn}
    assert len(kinds) == 8
    for chart in kinds.values():
        altair.Chart.from_dict(chart)
        assert all(layer["data"]["values"] for layer in chart["layer"] if layer["mark"]["type"] != "point")


@pytest.mark.usefixtures("undrawn")
def test_the_headline_says_where_there_is_a_tie() -> None:
    def row(method: str, value: float, half: float) -> dict[str, Any]:
        metrics = {"nll": {"value": value, "low": value - half, "high": value + half, "n": 97}}
        return {"method": method, "via": "draws", "metrics": metrics}

    rows = [row("a", 0.5, 0.02), row("b", 0.6, 0.02)]
    assert "a has the lowest NLL (0.500" in lead({"rows": rows})
    assert "separate it from b." in lead({"rows": rows})
    assert "tie" not in lead({"rows": rows})
    assert "do not separate it from b: call it a tie" in lead({"rows": [row("a", 0.5, 0.1), row("b", 0.6, 0.1)]})

    def pair(low: float, high: float) -> dict[str, list[Any]]:
        keys = ("metric", "method", "via", "baseline", "baseline_via", "value", "low", "high", "n", "reason")
        values = ("nll", "b", "draws", "a", "draws", 0.1, low, high, 97, None)
        return {key: [value] for key, value in zip(keys, values)}

    # the paired difference decides, whatever the two intervals look like
    assert "tie" not in lead({"rows": [row("a", 0.5, 0.1), row("b", 0.6, 0.1)], "differences": pair(0.05, 0.15)})
    tie = {"rows": rows, "differences": pair(-0.05, 0.25)}
    assert "call it a tie" in lead(tie)
    assert verdicts(tie) == ["tie"]
    assert verdicts({"rows": rows, "differences": pair(0.05, 0.15)}) == ["worse"]


@pytest.mark.usefixtures("undrawn")
def test_seeds_are_averaged_and_said() -> None:
    rows = [{**classification_row("ivon", "draws", 1.0, n=211, seed=seed), "seed": seed} for seed in range(3)]
    del rows[0]["details"]
    found = page({"rows": rows})
    values = [row["metrics"]["nll"]["value"] for row in rows]
    assert sum(values) / 3 in [float(attrs["value"] or "nan") for attrs, _ in found.all("data")]
    said = " ".join(words for _, words in found.all("p"))
    assert "means over 3 seeds" in said
    assert f"seeds {digits(min(values))}–{digits(max(values))}" in said
    option = found.all("option")[0][0]
    assert option["data-row"] == "1", "details are those of the first seed that has them"
    unseeded = [{key: value for key, value in row.items() if key != "seed"} for row in rows]
    assert "ivon · draws (2)" in " ".join(words for _, words in page({"rows": unseeded}).all("th"))


HOSTILE = "</script><script>alert(1)</script>&\"'<b>é🦆\u2028{{ 7*7 }}"


def test_everything_is_escaped() -> None:
    record = classification({(HOSTILE, HOSTILE): 1.0, ("ivon", "draws"): 1.3}, n=113, about=True)
    del record["rows"][1]["details"], record["rows"][0]["details"]["reliability_mass"]
    first = record["rows"][0]["details"]
    first["extremes"]["about"] = [HOSTILE for _ in first["extremes"]["about"]]
    first["groups"]["by"] = [HOSTILE for _ in first["groups"]["by"]]
    first["ood"]["set"] = [HOSTILE if name == "noise" else name for name in first["ood"]["set"]]
    record["rows"][0]["metrics"][HOSTILE] = undefined(113, HOSTILE)
    record["settings"] = {HOSTILE: {HOSTILE: HOSTILE}, "data": HOSTILE}
    text = render(Stub(record), HOSTILE)
    found = check(text)
    assert len(found.all("script")) == 2
    assert not found.all("b", **{"class": "x"})
    assert found.record == record
    assert "<b>é" not in text
    assert not set(text.split('id="evaluation">')[1].split("</script>")[0]) & set("<>&\u2028")
    assert "49" not in found.all("title")[0][1]
    assert found.all("h1")[0][1] == found.all("title")[0][1] == HOSTILE
    assert any(words == HOSTILE for _, words in found.all("dd"))
    assert any((attrs.get("aria-label") or "").startswith(f"Reliability of {HOSTILE}") for attrs, _ in found.all("svg"))


def nothing(value: Any, random_: random.Random, share: float) -> Any:
    """The record with some of its numbers gone, as an evaluation writes what is undefined."""
    if isinstance(value, dict):
        return {key: nothing(part, random_, share) for key, part in value.items()}
    if isinstance(value, list):
        return [nothing(part, random_, share) for part in value]
    if isinstance(value, float) and random_.random() < share:
        return random_.choice([None, "Infinity", "-Infinity"])
    return value


@pytest.mark.parametrize("share", [0.1, 1.0])
@pytest.mark.parametrize("kind", ["classes", "numbers"])
def test_null_is_allowed_everywhere(kind: str, share: float, request: pytest.FixtureRequest) -> None:
    record = nothing({"rows": request.getfixturevalue(kind)["rows"][:1]}, random.Random(5), share)
    text = render(Stub(record))
    check(text)
    assert "nan" not in re.sub(r"\"[^\"]*\"", "", text.split('<script type="application/json"')[0]).lower().split()


def one(metrics: dict[str, Any]) -> dict[str, Any]:
    return {"rows": [{"method": "a", "via": "mean", "metrics": metrics, "details": {}}]}


@pytest.mark.parametrize(
    "record",
    [
        {"rows": []},
        {"rows": [], "settings": {}, "differences": {}},
        one({}),
        one({"nll": undefined(0, "no rows")}),
        {
            "rows": [
                {
                    "method": "a",
                    "via": "mean",
                    "metrics": {"my_metric": {"value": 3.0, "low": None, "high": None, "n": 1}},
                }
            ]
        },
        {
            "rows": [
                {
                    "method": "a",
                    "via": "mean",
                    "metrics": {"nll": {"value": "Infinity", "low": None, "high": None, "n": 7}},
                }
            ]
        },
        classification({("ivon", "draws"): 1.0}, n=1),
        classification({("ivon", "draws"): 1.0}, n=89, classes=1),
        regression({("ivon", "draws"): 1.0}, n=1),
    ],
    ids=["nothing", "empty", "no metrics", "no rows", "own metric", "infinite", "one row", "one class", "one number"],
)
@pytest.mark.usefixtures("undrawn")
def test_small_records(record: dict[str, Any]) -> None:
    check(render(Stub(record)))


@pytest.mark.usefixtures("undrawn")
def test_many_of_everything() -> None:
    methods = {(f"{'method-with-a-long-name-':<57}{index:03d}", "draws"): 0.6 + 0.05 * index for index in range(30)}
    record = classification(methods, n=500, classes=150)
    text = render(Stub(record))
    found = check(text)
    assert len(text.encode()) < 3_000_000
    assert len(found.all("option")) == 30
    assert "18 more methods are left out here" in text
    assert re.search(r"\d+ more groups are left out here", text)
    assert found.record["rows"][29]["details"]["risk_coverage"] == record["rows"][29]["details"]["risk_coverage"]


@pytest.mark.usefixtures("undrawn")
def test_a_group_is_marked_where_its_interval_misses_the_whole() -> None:
    row = classification_row("ivon", "draws", 1.0, n=211)
    row["metrics"] = {"accuracy": {"value": 0.8, "low": 0.7, "high": 0.9, "n": 211}}
    ends = {"worst": (0.5, 0.7), "level": (0.7, 0.85), "top": (0.85, 0.99)}
    row["details"] = {
        "groups": {
            "by": ["site"] * 3, "group": list(ends), "metric": ["accuracy"] * 3, "value": [0.6, 0.78, 0.9],
            "low": [low for low, _ in ends.values()], "high": [high for _, high in ends.values()],
            "n": [71, 70, 70], "reason": [None] * 3,
        }
    }  # fmt: skip
    found = page({"rows": [row]})
    rows = {words.strip().split("7")[0]: words for _, words in found.all("tr")}
    assert [mark for mark in ends if "worse" in rows[mark]] == ["worst"]
    assert [mark for mark in ends if "better" in rows[mark]] == ["top"]
    assert "2 of 3 intervals miss" in " ".join(words for _, words in found.all("p"))


def test_the_slider_can_be_read_without_a_script(text: str, classes: dict[str, Any]) -> None:
    found = parse(text)
    best = min(range(len(TWO)), key=lambda index: classes["rows"][index]["metrics"]["nll"]["value"])
    curve = classes["rows"][best]["details"]["risk_coverage"]
    at = max(index for index, risk in enumerate(curve["risk"]) if risk <= 0.01)
    said = found.all("output")[0][1]
    assert f"({percent(curve['coverage'][at])})" in said
    assert f"risk {percent(curve['risk'][at])}" in said
    assert point_at([{"risk": 0.0}, {"risk": 0.2}, {"risk": 0.04}, {"risk": 0.3}], 0.05) == 2
    assert point_at([{"risk": 0.4}], 0.05) is None


@pytest.mark.usefixtures("undrawn")
def test_pictures_become_png(text: str) -> None:
    images = parse(text).all("img")
    assert images
    for attrs, _ in images:
        assert (attrs["src"] or "").startswith("data:image/png;base64,")
        assert re.fullmatch(r"row \d+: predicted \d, labelled \d", attrs["alt"] or "")
    record = classification({("ivon", "draws"): 1.0}, n=97)
    pictures = record["rows"][0]["details"]["extremes"]["picture"]
    pictures[0], pictures[1] = {"shape": [8, 8], "data": "AAAA"}, None  # three bytes are no 8 x 8 picture
    assert len(page(record).all("img")) == len(pictures) - 2


def test_binomial_band_holds_95_percent() -> None:
    for n, chance in [(1, 0.05), (7, 0.05), (1513, 0.05), (100, 0.5)]:
        low, high = binomial_band(n, chance)
        inside = [math.comb(n, k) * chance**k * (1 - chance) ** (n - k) for k in range(low, high + 1)]
        assert sum(inside) >= 0.95 - 1e-9
        assert sum(inside[1:-1]) < 0.95 or high - low < 2


def test_the_file_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = {"rows": [{"method": "a", "via": "mean", "metrics": {}}]}
    path = write_report(Stub(record), tmp_path / "new" / "page.html", "A title")
    assert path == tmp_path / "new" / "page.html"
    assert [found.name for found in path.parent.iterdir()] == ["page.html"]
    assert Page(path.read_text(encoding="utf-8")).all("h1")[0][1] == "A title"
    with pytest.raises(StorageError, match="could not be written"):
        write_report(Stub(record), path / "below-a-file.html")
    for missing in ("jinja2", "altair", "vl_convert"):
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, missing, None)
            with pytest.raises(ImportError, match=r"posterity\[report\]"):
                render(Stub(record))


def test_the_methods_of_the_record_are_all_there(text: str) -> None:
    heads = {words for attrs, words in parse(text).all("th") if attrs.get("scope") == "row"}
    assert {method for method, _ in TWO} <= heads


@pytest.mark.usefixtures("undrawn")
def test_an_evaluation_is_its_record(classes: dict[str, Any]) -> None:
    evaluation = Evaluation.from_json(classes)
    found = check(render(evaluation))
    assert found.record == evaluation.to_json()
    assert "comparison" in found.sections
