"""Every notebook of the examples runs in a kernel of its own, prints nothing alarming, and is kept with pictures."""

import os
import sys
import tempfile
from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")

NOTEBOOKS = Path(__file__).parent.parent.parent / "examples" / "notebooks"
HANG_SECONDS = 300  # a cell that takes so long hangs
# How many pictures each shows.
PICTURES = {"first_steps": 4, "cluster": 4, "programs": 6}


def pictures(notebook):
    """The pictures in what cells have put out."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    return [kind for output in outputs for kind in output.get("data", ()) if kind in ("image/png", "image/svg+xml")]


def alarming(notebook):
    """What cells have written to standard error, and errors."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    return [o for o in outputs if o.output_type == "error" or (o.output_type == "stream" and o.name == "stderr")]


@pytest.mark.parametrize("name", PICTURES)
@pytest.mark.filterwarnings("default")  # of the packages that drive kernels
def test_notebook(name, tmp_path, monkeypatch):
    run = tempfile.TemporaryDirectory(prefix="pw-")  # of a cluster; short, since paths of sockets are
    monkeypatch.setenv("XDG_RUNTIME_DIR", run.name)
    # Devices are the notebooks' own business; their shell commands are those of this installation.
    for variable in ("PATHWAYS_ADDRESS", "PATHWAYS_DEVICES", "JAX_PLATFORMS", "XLA_FLAGS"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("PYTEST_CURRENT_TEST", raising=False)  # with it a kernel does not show what C code prints
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    notebook = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
    for cell in notebook.cells:
        cell.pop("outputs", None) if cell.cell_type != "code" else cell.update(outputs=[])
    client = nbclient.NotebookClient(
        notebook, timeout=HANG_SECONDS, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    )
    with run:
        client.execute()
    assert not alarming(notebook)
    assert len(pictures(notebook)) == PICTURES[name]


def test_notebooks_are_kept_as_they_run():
    assert {path.stem for path in NOTEBOOKS.glob("*.ipynb")} == set(PICTURES)
    for name, count in PICTURES.items():
        notebook = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
        nbformat.validate(notebook)
        assert not alarming(notebook) and len(pictures(notebook)) == count, name
