"""What docs/guides/go.md shows runs: its commands in a module of the reader's own, and its Go, on a cluster."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pages
import pytest
from processes import Cluster
from test_docs import checkout, run_shell  # noqa: F401 (a fixture)


@pytest.fixture(scope="module")
def address():
    with Cluster(workers=2, devices=2) as cluster:
        yield cluster.address


@pytest.fixture(scope="module")
def go():
    """What a shell needs to run Go without cgo, with the modules and the cache of the user who runs the tests.

    The page says that none is needed; make test has compiled the packages in this way before.
    """
    go = os.environ.get("GO") or shutil.which("go") or shutil.which("go", path="/usr/local/go/bin")
    if go is None:
        pytest.skip("no go on this machine")
    had = subprocess.run([go, "env", "GOCACHE", "GOMODCACHE"], capture_output=True, text=True, check=True).stdout
    path = os.pathsep.join([str(Path(sys.executable).parent), str(Path(go).parent), os.environ["PATH"]])
    return {"PATH": path, "CGO_ENABLED": "0", **dict(zip(("GOCACHE", "GOMODCACHE"), had.split(), strict=True))}


def commands(word):
    """The block of the page whose commands have a word."""
    (block,) = (block for block in pages.to_run("sh")["docs/guides/go.md"] if word in block.text)
    return block.text


def test_the_page_runs_in_a_module_of_its_own(address, go, checkout):  # noqa: F811
    program = (pages.ROOT / "tests/clients/page.go.txt").read_text(encoding="utf-8")
    for i, block in enumerate(pages.to_run("go")["docs/guides/go.md"]):
        assert program.count(f"// BLOCK {i}\n") == 1, f"{block} has no place in the program"
        program = program.replace(f"// BLOCK {i}\n", block.text)
    module = checkout / "mine"
    module.mkdir()
    (module / "main.go").write_text(program)
    text = f"go mod init example.com/mine\n{commands('go mod')}./mine"
    env = {"OPENPATHWAYS": str(pages.ROOT), "PATHWAYS_ADDRESS": address}
    said = run_shell(text, checkout, module, **go | env)
    assert said.endswith("ok\n"), said


def test_the_example_of_the_page_prints_its_total(go, checkout):  # noqa: F811
    assert "total" in run_shell(commands("go run"), checkout, pages.ROOT, **go)
