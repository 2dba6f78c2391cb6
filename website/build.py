"""Build the site into build/site: `python website/build.py`. A warning is an error.

A page may link to a file of the repository outside of docs/; the site has a copy of it under files/.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCS, SITE = ROOT / "docs", ROOT / "build" / "site"

_LINK = re.compile(r'(?<=href=")(?:\.\./)+[^"#?]+')


def main() -> None:
    """Pages, then what they link to."""
    shutil.rmtree(SITE, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "zensical", "build", "--strict", "--clean"], cwd=ROOT, check=True)
    for page in SITE.rglob("*.html"):
        text = page.read_text("utf-8")
        page.write_text(_LINK.sub(partial(_led, page), text), "utf-8")


def _led(page: Path, link: re.Match[str]) -> str:
    """Where a link of a page leads: as written, or to the copy of a file from outside of docs/."""
    target = link[0]
    place = page.relative_to(SITE).parent
    source = (DOCS / place / target).resolve()
    if source.is_relative_to(DOCS) or not source.is_file():
        return target
    copy = SITE / "files" / source.relative_to(ROOT)
    copy.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, copy)
    return os.path.relpath(copy, page.parent)


if __name__ == "__main__":
    main()
