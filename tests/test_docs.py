"""What the pages show in Python runs as it stands."""

import re
from pathlib import Path

import fresh
import pytest

ROOT = Path(__file__).parent.parent
PAGES = [
    "README.md",
    "docs/pipelines.md",
    "docs/profiling.md",
    "docs/programs.md",
    "docs/recovery.md",
    "docs/reshard.md",
    "docs/slices.md",
]


def scripts(page):
    """The Python of a page: a block that begins with an import begins a script, others go on with the one before."""
    found = []
    for block in re.findall(r"^```python\n(.*?)^```$", (ROOT / page).read_text(encoding="utf-8"), re.M | re.S):
        if block.startswith("import "):
            found.append(block)
        else:
            found[-1] += block
    return found


def run_page(page, address=""):
    """Runs the scripts of a page, on this machine's devices or a cluster's, and checks what they say they print."""
    assert scripts(page)
    for script in scripts(page):
        done = fresh.run(script, door=None, env={"PATHWAYS_ADDRESS": address, "PATHWAYS_DEVICES": ""})
        for said in re.findall(r"print\(.*# (\[.*)$", script, re.M):  # what stands behind it is what it prints
            assert said in done.stdout.splitlines(), f"the page says {said}, and it printed:\n{done.stdout}"


@pytest.mark.embedded("tests/cluster/test_scripts.py runs the pages on a cluster")
@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_shows_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # where pictures go
    run_page(page)
