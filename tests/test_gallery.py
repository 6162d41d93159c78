"""Every script of the gallery runs, and leaves its picture."""

import re
import subprocess
import sys
from pathlib import Path

import fresh
import pytest

GALLERY = Path(__file__).parent.parent / "examples/gallery"
SCRIPTS = sorted(path.stem for path in GALLERY.glob("*.py") if path.stem != "pictures")
SMALL = {"GALLERY_STEPS": "3", "GALLERY_WIDTH": "16"}


def started(name, out):
    # Devices are the scripts' own business.
    env = {"PATHWAYS_ADDRESS": "", "PATHWAYS_DEVICES": "", "GALLERY_OUT": str(out), **SMALL}
    return subprocess.Popen(
        [sys.executable, GALLERY / f"{name}.py"],
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
    done = fresh.finish(started(name, tmp_path / "out"))
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
