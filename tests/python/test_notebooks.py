"""Every notebook of the examples runs in a kernel of its own, prints nothing alarming, and is kept with pictures."""

import tempfile

import pytest

nbformat = pytest.importorskip("nbformat")
pytest.importorskip("nbclient")

from run_notebooks import NOTEBOOKS, run  # noqa: E402

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


def odd(notebook):
    """What a reader should not see: files that IPython makes up for cells, and streams in pieces."""
    for cell in notebook.cells:
        outputs = cell.get("outputs", ())
        streams = [output.name for output in outputs if output.output_type == "stream"]
        if len(streams) != len(set(streams)):
            yield f"{streams} of {cell.id}"
        if "ipykernel" in str(outputs):
            yield f"a file of ipykernel in {cell.id}"


@pytest.mark.parametrize("name", PICTURES)
@pytest.mark.filterwarnings("default")  # of the packages that drive kernels
def test_notebook(name, tmp_path, monkeypatch):
    directory = tempfile.TemporaryDirectory(prefix="pw-")  # of a cluster; short, since paths of sockets are
    monkeypatch.setenv("XDG_RUNTIME_DIR", directory.name)
    monkeypatch.delenv("PYTEST_CURRENT_TEST", raising=False)  # with it a kernel does not show what C code prints
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    with directory:
        notebook = run(name, tmp_path)
    assert not alarming(notebook) and not list(odd(notebook))
    assert len(pictures(notebook)) == PICTURES[name]


def test_notebooks_are_kept_as_they_run():
    assert {path.stem for path in NOTEBOOKS.glob("*.ipynb")} == set(PICTURES)
    for name, count in PICTURES.items():
        notebook = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
        nbformat.validate(notebook)
        assert not alarming(notebook) and not list(odd(notebook)) and len(pictures(notebook)) == count, name
        assert "/home/" not in str(notebook), f"{name} shows somebody's home directory"
