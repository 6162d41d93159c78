"""Every notebook of the examples runs in a kernel of its own, prints nothing alarming, and is kept as it runs."""

import re
import tempfile

import pytest
from conftest import THOROUGH

nbformat = pytest.importorskip("nbformat")
pytest.importorskip("nbclient")

from run_notebooks import ASKED_FOR, NOTEBOOKS, run_all  # noqa: E402

pytestmark = pytest.mark.filterwarnings("default")  # of the packages that drive kernels

# How many pictures each shows.
PICTURES = {"first_steps": 4, "cluster": 3, "programs": 7, "mpmd": 4, "grpo": 2, "sharing": 1, "sharing_class": 1}

# Phases in which clients keep all processors busy are shorter here than a reader's, whose picture they make.
SHORTER = {
    "sharing": {"watched(work, 8)": "watched(work, 3)", "watched(time.sleep, 8)": "watched(time.sleep, 3)"},
    "sharing_class": {"watched(work, 30)": "watched(work, 14)"},
}

# What differs from run to run in what cells print, and what stands for it here.
VARIES = [
    (r"/\S*?/pathways/", "DIRECTORY/"),  # of the cluster
    (r"\d{8}T\d{6}\.\d+Z", "TIME"),
    (r"\bcluster [0-9a-f]+:", "cluster ID:"),
    (r"\S+:\d+: \d+ arrays?, ", "HOST:PROCESS: ARRAYS, "),
    (r"\bgang \d+", "gang NUMBER"),
    (r"NamedSharding\(.*\)", "SHARDING"),  # JAX words it
    # A lost worker is told of by the controller, by the part of a gang that was to meet it, by the collective that
    # waits for it, or by the read of an array: whichever is first.
    (r"a part of this computation is lost: ", ""),
    (r"\ball-reduce \d+: ", ""),
    (r"(\n +\S+: \d+ runs? on [^\n]*)+", "\\n  PROGRAMS"),  # in the order of the time that they took
    (r"(, |\n)[\d.]+ \w+ of (its host: \w+|its host|hosts)", ""),  # which worker has memory of its host, and for what
    (r" \[(jit_step|reading an array), on [^\]\n]*\]", ""),
    (r"\b\d+(\.\d*)?(e[-+]?\d+)? ?(ns|µs|us|ms|s)\b", "DURATION"),
    (r"\b\d+(\.\d*)? ?([KMGT]i?)?B\b", "SIZE"),
    (r"\d+\.\d+", "FRACTION"),
]


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


def stable(text):
    """A text without what differs from run to run."""
    for pattern, name in VARIES:
        text = re.sub(pattern, name, text)
    return text


def texts(notebook):
    """What each cell says: its source, what it printed and returned, and the titles in its pictures, in any order."""
    for cell in notebook.cells:
        yield cell.id, cell.source
        for output in cell.get("outputs", ()):
            data = output.get("data", {})
            yield cell.id, stable(output.get("text", "") + data.get("text/plain", ""))
            titles = re.findall("<title>(.*?)</title>", data.get("image/svg+xml", ""), re.DOTALL)
            yield cell.id, sorted({stable(title) for title in titles})


def kept(name):
    """The notebook as it is stored."""
    return nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)


@pytest.fixture(scope="module", params=sorted(set(PICTURES) - set(ASKED_FOR.values())))
def ran(request, tmp_path_factory):
    """A notebook as it has run, and the one that it asks for, by name."""
    folder = tmp_path_factory.mktemp(request.param)
    directory = tempfile.TemporaryDirectory(prefix="pw-")  # of a cluster; short, since paths of sockets are
    with directory, pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", directory.name)
        patch.delenv("PYTEST_CURRENT_TEST", raising=False)  # with it a kernel does not show what C code prints
        patch.setenv("IPYTHONDIR", str(folder / "ipython"))
        return run_all(request.param, folder, {} if THOROUGH else SHORTER)


def test_a_notebook_runs_without_alarms(ran):
    for name, notebook in ran.items():
        assert not alarming(notebook) and not list(odd(notebook)), name
        assert len(pictures(notebook)) == PICTURES[name], name


def test_notebooks_are_kept_as_they_run(ran):
    for name, notebook in ran.items():
        stored = kept(name)
        nbformat.validate(stored)
        assert not alarming(stored) and not list(odd(stored)) and len(pictures(stored)) == PICTURES[name], name
        assert "/home/" not in str(stored), f"{name} shows somebody's home directory"
        assert list(texts(stored)) == list(texts(notebook)), f"{name} is of another version; run `make notebooks`"


def test_every_notebook_is_tested():
    assert {path.stem for path in NOTEBOOKS.glob("*.ipynb")} == set(PICTURES)
