"""Every measured figure of the pages with the command that gives it: `python website/claims.py` writes docs/evidence.md.

A passage (a paragraph, a list or a table, set off by blank lines) claims something where it holds a measured figure: a
number with decimals, in units, or of a range, outside of code and quotations. Its source is a command or a committed JSON
that the passage names, or else the nearest one in its section. A passage without a source is an error, unless `EXEMPT` says
why its numbers are not measured.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
DOCS, RESULTS = ROOT / "docs", ROOT / "benchmarks" / "results"
PAGE = DOCS / "evidence.md"
LONGEST = 200  # characters of a sentence that are shown

# Why the numbers of a section are not measured: by page and heading; "*" is any.
EXEMPT = {
    ("*", "Hyperparameters"): "defaults and ranges",
    ("*", "Words"): "definitions",
    ("commands.md", "*"): "written from the commands: their defaults",
    ("README.md", "posterity"): "names of digits",
    ("README.md", "Use"): "levels and examples that the page's own test runs",
    ("README.md", "Promises"): "tolerances of tests",
    ("chains.md", "Masses"): "floors: settings",
    ("chains.md", "Diagnostics"): "what to expect by design; nothing is gated by it",
    (
        "chains.md",
        "The optimizer's statistics as a posterior",
    ): "no bench: measured once, as the page of the method says",
    ("coming-from.md", "*"): "versions and defaults, ours and theirs",
    ("evaluation.md", "The metrics"): "levels of intervals",
    ("forecasting.md", "How forecasts are judged"): "shares of a split",
    ("images-and-text.md", "What is inferred"): "sizes of backbones",
    ("images-and-text.md", "What is out of scope"): "a threshold's default",
    ("low-rank.md", "Ranks"): "a definition",
    ("methods/fisher-vi.md", "When it fails"): "a setting",
    ("methods/ivon.md", "When it fails"): "settings",
    ("methods/optimizer-laplace.md", "When it fails"): "no bench: measured once, see Evidence there",
    ("methods/optimizer-laplace.md", "Evidence"): "no bench: measured once, and said so",
    ("scikit-learn.md", "What is decided unless you say otherwise"): "defaults",
    ("scikit-learn.md", "Keeping it"): "the tolerance of a test of scikit-learn",
    ("score-vi.md", "Starting from a fitted network"): "no bench: measured once, and said so",
    ("which-method.md", "All methods"): "counts that follow from the defaults",
    ("selective.md", "Answering selectively, and sets that hold the truth"): "levels, and an example of a text",
}

NUMBER = r"\d[\d,]*(?:\.\d+)?"
FIGURE = re.compile(
    rf"(?<![\w./-])[+-]?(?:\d+\.\d+(?:e-?\d+)?|\d+e-?\d+)(?![\w.]*\.\d)"  # a decimal number, but no version
    rf"|\b{NUMBER} ?(?:times|ms|s|seconds|minutes|hours|[KMGT]iB|nats|%)(?!\w)"
    rf"|\b{NUMBER} (?:to|of) {NUMBER}\b"
)
NO_FIGURE = re.compile(r"`[^`]*`|\"[^\"]*\"|arXiv [\d.]+|\]\([^)]*\)|<!--.*?-->", re.DOTALL)
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
EVIDENCE = re.compile(r"^<!-- evidence: .*?<!-- end -->", re.MULTILINE | re.DOTALL)
SOURCE = re.compile(
    r"posterity\s+bench\s+(?P<bench>[\w-]+)(?: --[\w-]+)*|(?:`|results/)(?P<other>[a-z]+-[a-z-]+)(?:`:|\.json)"
    r"|(?P<script>examples/\w+\.py)|(?P<test>tests/\w+(?:/\w+)*\.py)"
    r"|`(?P<command>(?:posterity (?:demo|compare)|make \w)[^`]*)`"
)


class Source(NamedTuple):
    """What a passage rests on: a command, and the name of the bench where it is one."""

    command: str
    bench: str | None = None


class Claim(NamedTuple):
    """A passage with a measured figure; `sources` is empty where its section names none."""

    page: Path
    heading: str
    said: str
    sources: tuple[Source, ...]


def pages() -> list[Path]:
    """The README and all pages."""
    return [ROOT / "README.md", *sorted(path for path in DOCS.rglob("*.md") if path != PAGE)]


def claims(page: Path) -> Iterator[Claim]:
    """The claims of a page, but for those that are exempt."""
    text = FENCE.sub(lambda fence: " ".join(_named(fence[0])), page.read_text("utf-8"))
    text = EVIDENCE.sub(lambda block: block[0].replace("\n\n", "\n"), text)
    for section in re.split(r"^(?=#{1,4} )", text, flags=re.M):
        heading = section.partition("\n")[0].lstrip("# ").strip()
        passages = re.split(r"\n[ \t]*\n|\n(?=[ \t]*- )", section.partition("\n")[2])
        if exempt(page, heading) is None:
            for index, passage in enumerate(passages):
                if FIGURE.search(NO_FIGURE.sub(" ", passage)):
                    yield Claim(page, heading, _said(passage), _nearest(passages, index))


def exempt(page: Path, heading: str) -> str | None:
    """Why the numbers of a section are not measured; None where they are."""
    name = where(page)
    for key in ((name, heading), (name, "*"), ("*", heading)):
        if key in EXEMPT:
            return EXEMPT[key]
    return None


def where(page: Path) -> str:
    """A page as it is called: README.md, or its path under docs/."""
    return str(page.relative_to(DOCS if page.is_relative_to(DOCS) else ROOT))


def _named(text: str) -> list[str]:
    """Scripts that a fenced text includes."""
    return [f"`{name}`" for name in re.findall(r"examples/\w+\.py", text)]


def _nearest(passages: list[str], index: int) -> tuple[Source, ...]:
    """Those of the passage itself, or of the nearest before it in the section, or after it."""
    for near in (index, *range(index - 1, -1, -1), *range(index + 1, len(passages))):
        if found := _sources(passages[near]):
            return found
    return ()


def _sources(passage: str) -> tuple[Source, ...]:
    found: dict[str, Source] = {}
    for match in SOURCE.finditer(passage):
        bench = match["bench"] or match["other"]
        if bench is not None and (RESULTS / f"{bench}.json").exists():
            command = " ".join(match[0].split()) if match["bench"] else f"posterity bench {bench}"
            found.setdefault(bench, Source(command, bench))
        elif match["script"]:
            found[match[0]] = Source(f"python {match['script']}")
        elif match["test"]:
            found[match[0]] = Source(f"pytest {match['test']}")
        elif match["command"]:
            found[match[0]] = Source(" ".join(match["command"].split()))
    return tuple(found.values())


def _said(passage: str) -> str:
    """The first sentence with a figure, or the head of a table, as one line without links."""
    lines = passage.strip().splitlines()
    if table := [line for line in lines if line.lstrip().startswith("|")]:
        columns = [cell.strip() for cell in table[0].strip().strip("|").split("|")]
        return "table: " + "; ".join(filter(None, (_plain(column) for column in columns)))
    sentences = re.split(r"(?<=[.;?])\s+(?=[A-Z*`(\[])", _plain(" ".join(lines)))
    said = next((one for one in sentences if FIGURE.search(NO_FIGURE.sub(" ", one))), sentences[0])
    if len(said) <= LONGEST:
        return said
    cut = said[:LONGEST].rpartition(" ")[0]
    return (cut.rpartition("`")[0] if cut.count("`") % 2 else cut).rstrip(" (") + " ..."


def _plain(text: str) -> str:
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", re.sub(r"<!--.*?-->", "", text))
    return " ".join(text.replace("**", "").replace("|", "\\|").split()).removeprefix("- ")


HEAD = """\
# Evidence

Every measured figure in these pages, with the command that gives it and the JSON of the run that is committed. The list is
made from the pages (`make docs`), and a test fails where a figure has no source. `make bench-check` holds the committed
figures to their limits, and the ratios of times of today's code to [baseline.json](../benchmarks/baseline.json).

How costs are measured: CPU time, one thread, contestants in turns within one run, so that what else the machine does meets
all of them; each JSON has the machine, the versions and the load. Tables marked `evidence` in a page's source are written
from the JSON by `website/evidence.py`.
"""
COLUMNS = ("| section | claim | command | JSON |", "|---|---|---|---|")


def page() -> str:
    """docs/evidence.md as the pages have it now."""
    parts = [HEAD]
    for path in pages():
        if found := list(claims(path)):
            rows = dict.fromkeys(
                f"| {_plain(one.heading)} | {one.said} | {_commands(one)} | {_files(one)} |" for one in found
            )
            name = where(path)
            title = f"[{name}]({name})" if path.is_relative_to(DOCS) else name  # the README is no page of the site
            parts.append("\n".join([f"## {title}\n", *COLUMNS, *rows, ""]))
    reasons = [
        f"- {name.replace('*', 'any page')}, {heading.replace('*', 'all of it')}: {reason}"
        for (name, heading), reason in EXEMPT.items()
    ]
    parts.append("## Numbers that are not measured\n\n" + "\n".join(reasons) + "\n")
    return "\n".join(parts)


def _commands(one: Claim) -> str:
    return "<br>".join(f"`{source.command}`" for source in one.sources)


def _files(one: Claim) -> str:
    names = [source.bench for source in one.sources if source.bench]
    return "<br>".join(f"[{name}.json](../benchmarks/results/{name}.json)" for name in names)


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
