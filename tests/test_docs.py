"""The code on the pages runs as it is: Python, shell, C and Go."""

import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

import fresh
import pages
import pathways
import pytest

SCRIPTS = pages.scripts()
# docs/guides/go.md's commands need a Go module: tests/cluster/test_go_page.py runs them.
SHELL = [page for page in pages.to_run("sh") if page != "docs/guides/go.md"]
C_PAGE = "docs/guides/c-api.md"
COMMAND = [sys.executable, "-m", "pathways_command"]


def test_each_block_is_run_or_says_why_not():
    """A language says what runs a block; what only shows something has no line that could be a command."""
    for page in pages.pages():
        for block in pages.blocks(page):
            assert block.language in pages.LANGUAGES, f"{block}: expected one of {sorted(pages.LANGUAGES)}"
            commands = re.findall(r"^(?:\$ |\w+\$ |(?:pathways|pip|python\d?|make|go|export) ).*", block.text, re.M)
            assert block.language != "text" or not commands, f"{block} is text, and has commands: {commands}"
    assert set(pages.to_run("c")) == {C_PAGE}  # below
    assert set(pages.to_run("go")) == {"docs/guides/go.md"}  # tests/cluster/test_go_page.py


def run_script(place, address=""):
    """Runs a script of a page, on this machine's devices or a cluster's, and checks the output that it states."""
    script = SCRIPTS[place]
    for module in set(re.findall(r"^import (\w+)", script, re.M)):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is not installed")
    env = {"PATHWAYS_ADDRESS": address, "PATHWAYS_DEVICES": ""}
    done = fresh.run(script, backend=None, env=env, imports=False)
    for said in re.findall(r"print\(.*# (\[.*)$", script, re.M):  # what stands behind it is what it prints
        assert said in done.stdout.splitlines(), f"the page says {said}, and it printed:\n{done.stdout}"


@pytest.mark.embedded("tests/cluster/test_scripts.py runs the pages on a cluster")
@pytest.mark.parametrize("place", SCRIPTS)
def test_what_a_page_shows_runs(place, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # where pictures go
    run_script(place)


@pytest.fixture
def checkout():
    """A directory as a reader of the pages has it: a checkout, with the program of the page about C."""
    # Names of unix sockets are short, so pytest's directories will not do.
    folder = Path(tempfile.mkdtemp(prefix="pw", dir="/tmp"))
    for name in ("examples", "tests"):
        (folder / name).symlink_to(pages.ROOT / name)
    (folder / "program.c").write_text(pages.to_run("c")[C_PAGE][0].text)
    (folder / "home").mkdir()
    yield folder
    shutil.rmtree(folder)


def run_shell(text, folder, cwd=None, **more):
    """Runs commands in a checkout, in a shell that ends at the first that fails, and ends what they left running."""
    env = fresh.environment(
        env={
            "GALLERY_STEPS": "3",
            "HOME": str(folder / "home"),
            "RUSTUP_HOME": os.environ.get("RUSTUP_HOME", str(Path.home() / ".rustup")),
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
            "PATHWAYS_ADDRESS": "",
            "PATHWAYS_DEVICES": "",
            "PATHWAYS_DIR": str(folder / "clusters"),
            "PATHWAYS_PLUGIN": fresh.plugin_path(),
            "TF_CPP_MIN_LOG_LEVEL": "3",
            **more,
        }
    )
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    shell = subprocess.Popen(
        ["bash", "-euo", "pipefail", "-c", text], cwd=cwd or folder, env=env, start_new_session=True, **pipes
    )
    try:
        out, _ = shell.communicate(timeout=fresh.HANG_SECONDS)
        assert shell.returncode == 0, f"exit {shell.returncode} of\n{text}\n{out}"
    finally:
        if shell.poll() is None:
            os.killpg(shell.pid, signal.SIGKILL)
            shell.communicate()
        if (folder / "clusters/default/processes.json").exists():
            subprocess.run([*COMMAND, "down"], env=env, stdout=subprocess.DEVNULL, check=True)
    return out


@pytest.mark.embedded("the commands start clusters of their own")
@pytest.mark.parametrize("page", SHELL)
def test_commands_of_a_page_run(page, checkout):
    """The blocks of a page are one shell's, as for who reads it from top to bottom."""
    tools = {"gcc", "pkg-config", "rustc"}
    kept = []
    for block in pages.to_run("sh")[page]:
        lacks = [tool for tool in tools if re.search(rf"\b{tool}\b", block.text) and shutil.which(tool) is None]
        kept += [] if lacks else [block.text]
    run_shell("".join(kept), checkout)


@pytest.mark.embedded("starts no devices")
def test_settings_of_a_page_are_options():
    (page,) = pages.to_run("toml")
    known = subprocess.run([*COMMAND, "options"], capture_output=True, text=True, check=True).stdout
    for block in pages.to_run("toml")[page]:
        settings = tomllib.loads(block.text)
        assert settings and set(settings) <= set(re.findall(r"^--([\w-]+)", known, re.M)), block


@pytest.mark.embedded("opens sessions of its own")
@pytest.mark.parametrize("address", ["", "local:2x2"])
def test_c_of_the_page_runs(address, tmp_path):
    """The first block of the page is a whole program; tests/clients/page.c has a function around the other one."""
    if shutil.which("gcc") is None:
        pytest.skip("no gcc on this machine")
    program, play = (block.text for block in pages.to_run("c")[C_PAGE])
    (tmp_path / "program.c").write_text(program.replace('.address = ""', f'.address = "{address}"'))
    (tmp_path / "play.inc").write_text(re.sub(r"^(pathways_\w+\(.*?\));", r"OK(\1);", play, flags=re.M))
    package = Path(pathways.__file__).parent
    clients = pages.ROOT / "tests/clients"
    flags = ("-std=gnu11", "-g", "-Wall", "-Wextra", "-Werror", f"-I{package}/include", f"-I{clients}", f"-I{tmp_path}")
    link = (f"-L{package}", "-lpathways", f"-Wl,-rpath,{package}")
    env = fresh.environment(env={"PATHWAYS_PLUGIN": fresh.plugin_path(), "PATHWAYS_DEVICES": ""})
    for source, said in ((tmp_path / "program.c", "2 4 6 8\n"), (clients / "page.c", "ok\n")):
        binary = tmp_path / source.stem
        subprocess.run(["gcc", *flags, source, "-o", binary, *link], check=True)
        done = subprocess.run([binary, address], env=env, capture_output=True, text=True, timeout=600)
        assert (done.returncode, done.stdout) == (0, said), done.stderr
