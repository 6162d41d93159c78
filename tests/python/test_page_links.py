"""Every link of a page leads somewhere, to a file of the tree and to a heading of it; and pages have short lines."""

import re
from pathlib import Path

import pages
import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for path in [*ROOT.glob("*.md"), *(p for top in ("docs", "examples", "tests") for p in ROOT.glob(f"{top}/**/*.md"))]
)


def anchors(page):
    """The names that headings of a page have in links to them."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    headings = re.findall(r"^#+ (.*)$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    path = ROOT / page
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", path.read_text(encoding="utf-8")):
        name, _, anchor = link.partition("#")
        if re.match(r"[a-z]+:", link):
            continue
        target = (path.parent / name) if name else path
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert not broken


MEASURED = {"docs/paper/README.md"}  # written by a benchmark


@pytest.mark.parametrize("page", sorted({*pages.pages()} - MEASURED))
def test_lines_have_120_columns_at_most(page):
    """What a program prints, and rows of tables, are as long as they are."""
    text = re.sub(r"^```text\n.*?^```$", "", (ROOT / page).read_text(encoding="utf-8"), flags=re.M | re.S)
    assert not [line for line in text.splitlines() if len(line) > 120 and not line.startswith("|")]


def test_issue_templates_name_no_address():
    """The repository is not published yet, so an absolute address leads nowhere."""
    for template in (ROOT / ".github").rglob("*.yml"):
        assert "://" not in template.read_text(encoding="utf-8"), template
