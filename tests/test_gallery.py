"""Every script of the examples runs and writes its picture."""

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
    """Starts a script, which asks for its number of devices itself: on this machine, or on the given cluster."""
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


def run_script(name, out, **said):
    """Runs a small version of a script of the gallery, and checks that it writes its picture."""
    if name == "parquet":
        pytest.importorskip("pyarrow")
    path = str(GALLERY / f"{name}.py")
    script = f"import runpy, sys\nsys.path[0] = {str(GALLERY)!r}\nrunpy.run_path({path!r}, None, '__main__')"
    env = {"PATHWAYS_ADDRESS": "", "PATHWAYS_DEVICES": "", "GALLERY_OUT": str(out), **SMALL, **said}
    done = fresh.run(script, backend=None, env=env, imports=False)
    written = re.findall(r"\S+\.(?:png|svg)", done.stdout)
    assert str(out / f"{name}.png") in written
    for path in map(Path, written):
        assert path.read_bytes().startswith(b"\x89PNG" if path.suffix == ".png" else b"<svg")


@pytest.mark.embedded("tests/cluster/test_scripts.py runs the scripts on a cluster")
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_of_the_gallery_runs(name, tmp_path):
    run_script(name, tmp_path / "out")


@pytest.mark.embedded("tests/cluster/test_scripts.py runs the scripts on a cluster")
@pytest.mark.parametrize("name", ["figure_two", "parameter_server"])
def test_script_without_matplotlib_does_all_but_its_picture(name, tmp_path):
    (tmp_path / "matplotlib.py").write_text("raise ModuleNotFoundError(\"No module named 'matplotlib'\")")
    script = started(GALLERY / f"{name}.py", GALLERY_OUT=str(tmp_path), PYTHONPATH=str(tmp_path), **SMALL)
    done = fresh.finish(script)
    *work, last = done.stdout.splitlines()
    assert work and last.endswith("matplotlib is not installed; run: pip install matplotlib")
    assert (done.returncode, done.stderr) == (0, "")


def test_the_readme_shows_each_script():
    text = (GALLERY / "README.md").read_text(encoding="utf-8")
    notebooks = set(re.findall(r"\(\.\./notebooks/(\w+)\.ipynb\)", text))
    assert set(re.findall(r"\((\w+)\.py\)", text)) == set(SCRIPTS)
    assert set(re.findall(r"\((\w+)\.png\)", text)) == {*SCRIPTS, *notebooks}
    for name in SCRIPTS:
        assert (GALLERY / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        script = (GALLERY / f"{name}.py").read_text(encoding="utf-8")
        assert script.startswith("# %% [markdown]\n# # ")
        assert script.count("plt = pictures.pyplot()\n") == 1 and "import matplotlib" not in script


def run_demo(out, **said):
    small = ("--steps", "96", "--layers", "1", "--width", "32", "--context", "32")
    done = fresh.finish(started(EXAMPLES / "train_transformer.py", *small, "--out", str(out), **said))
    assert done.returncode == 0, f"stdout:\n{done.stdout}\nstderr:\n{done.stderr}"
    for part in ("Pathways: loss", "stock JAX: loss", "tokens/s", "of stock JAX's speed", "The model writes:"):
        assert part in done.stdout, done.stdout
    for picture in ("loss.png", "trace.png"):
        assert (out / picture).read_bytes().startswith(b"\x89PNG")
    assert json.loads((out / "trace.json").read_text())["traceEvents"]


@pytest.mark.embedded("tests/cluster/test_scripts.py runs the scripts on a cluster")
def test_the_demo_ends_well(tmp_path):
    run_demo(tmp_path)


def run_quickstart(**said):
    done = fresh.finish(started(EXAMPLES / "quickstart.py", **said))
    assert done.returncode == 0 and done.stdout.endswith("[28.]\n"), f"{done.stdout}\n{done.stderr}"


@pytest.mark.embedded("tests/cluster/test_scripts.py runs the scripts on a cluster")
def test_the_quickstart_prints_its_sum():
    run_quickstart()
