"""The fenced blocks of the pages, and which of them tests run.

Each block names its language. Blocks of Python, shell, C and Go are run by tests, and one of TOML is read as settings,
unless a comment on the line before, which a rendered page does not show, says why not:

    <!-- not run: takes hours -->
    <!-- not run (pip install, make test): they install things -->      only the lines that begin so
"""

import dataclasses
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
LANGUAGES = {"c", "go", "python", "sh", "text", "toml"}


@dataclasses.dataclass
class Block:
    """A fenced block: its page, the line of its fence, its language, and the text to run."""

    page: str
    line: int
    language: str
    text: str
    why: str  # why it is not run, or ""

    def __str__(self):
        return f"{self.page}:{self.line}"


def blocks(page: str) -> list[Block]:
    """Returns the blocks of a page, in order."""
    text = (ROOT / page).read_text(encoding="utf-8")
    found = []
    marker = r"(?:^<!-- not run(?: \((?P<lines>[^)]*)\))?: (?P<why>.+) -->\n)?"
    for match in re.finditer(marker + r"^ *```(?P<language>.*)\n(?P<text>(?:.*\n)*?) *```$", text, re.M):
        lines, why = match["lines"], match["why"] or ""
        shown = match["text"]
        if lines:
            left_out = tuple(re.split(", *", lines))
            kept = [line for line in shown.splitlines(keepends=True) if not line.startswith(left_out)]
            left = [start for start in left_out if not any(line.startswith(start) for line in shown.splitlines())]
            assert not left, f"{page}: no line of the block begins with {left}"
            shown, why = "".join(kept), ""
        line = text.count("\n", 0, match.start("language")) + 1
        found.append(Block(page, line, match["language"], shown, why))
    return found


def pages() -> list[str]:
    """Returns the pages that people write; generated ones contain no scripts."""
    patterns = ("*.md", "docs/**/*.md", "examples/**/*.md")
    found = sorted(path.relative_to(ROOT).as_posix() for pattern in patterns for path in ROOT.glob(pattern))
    return [page for page in found if "Code generated" not in (ROOT / page).read_text(encoding="utf-8")[:200]]


def to_run(language: str) -> dict[str, list[Block]]:
    """Returns the blocks of a language that tests run, by page."""
    found = {page: [b for b in blocks(page) if b.language == language and not b.why] for page in pages()}
    return {page: some for page, some in found.items() if some}


def scripts(language: str = "python") -> dict[str, str]:
    """Returns the scripts of the pages by position: a block that begins with an import begins one, others continue."""
    found = {}
    for some in to_run(language).values():
        for block in some:
            if block.text.startswith("import ") or block is some[0]:
                script = str(block)
                found[script] = ""
            found[script] += block.text
    return found
