"""Every script of the examples runs, and leaves its picture."""

import json
import re
import subprocess
import sys
from pathlib import Path

import fresh
import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
GALLERY = EXAMPLES / "gallery"
SCRIPTS = sorted(path.stem for path in GALLERY.glob("*.py") if path.stem != "pictures")
SMALL = {"GALLERY_STEPS": "3", "GALLERY_WIDTH": "16"}


def started(script, *arguments, **said):
    # Devices are the scripts' own business.
    env = {"PATHWAYS_ADDRESS": "", "PATHWAYS_DEVICES": "", **said}
    return subprocess.Popen(
        [sys.executable, script, *arguments],
        env=fresh.environment(env=env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@pytest.mark.embedded("the scripts make devices of their own")
@pytest.mark.parametrize("name", SCRIPTS)
def test_script(name, tmp_path):
    if name == "parquet":
        pytest.importorskip("pyarrow")
    done = fresh.finish(started(GALLERY / f"{name}.py", GALLERY_OUT=str(tmp_path / "out"), **SMALL))
    assert done.returncode == 0, f"stdout:\n{done.stdout}\nstderr:\n{done.stderr}"
    written = re.findall(r"\S+\.(?:png|svg)", done.stdout)
    assert str(tmp_path / "out" / f"{name}.png") in written
    for path in map(Path, written):
        assert path.read_bytes().startswith(b"\x89PNG" if path.suffix == ".png" else b"<svg")


def test_the_readme_shows_each_script():
    text = (GALLERY / "README.md").read_text(encoding="utf-8")
    assert set(re.findall(r"\((\w+)\.py\)", text)) == set(re.findall(r"\((\w+)\.png\)", text)) == set(SCRIPTS)
    for name in SCRIPTS:
        assert (GALLERY / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert (GALLERY / f"{name}.py").read_text(encoding="utf-8").startswith("# %% [markdown]\n# # ")


@pytest.mark.embedded("the scripts make devices of their own")
def test_demo(tmp_path):
    small = ("--steps", "96", "--layers", "1", "--width", "32", "--context", "32")
    done = fresh.finish(started(EXAMPLES / "train_transformer.py", *small, "--out", str(tmp_path)))
    assert done.returncode == 0, f"stdout:\n{done.stdout}\nstderr:\n{done.stderr}"
    for part in ("Pathways: loss", "stock JAX: loss", "tokens/s", "of stock JAX's speed", "The model writes:"):
        assert part in done.stdout, done.stdout
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"]


@pytest.mark.embedded("the scripts make devices of their own")
def test_quickstart():
    done = fresh.finish(started(EXAMPLES / "quickstart.py"))
    assert done.returncode == 0 and done.stdout.endswith("[28.]\n"), f"{done.stdout}\n{done.stderr}"
