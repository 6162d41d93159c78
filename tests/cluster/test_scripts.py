"""Every script of the README, the pages and the examples runs on a cluster as it runs on the devices of one machine,
and so does every notebook that starts no cluster of its own.

`make test` runs here those of the README, the one about lost workers, one of the gallery, a notebook, and a model of
each kind; and the others on one machine alone.
"""

from pathlib import Path

import pytest
import test_docs
import test_gallery
import test_models
from processes import Cluster

AGAIN = pytest.mark.again("one machine runs it: tests/test_docs.py, tests/test_gallery.py; two workers what it calls")
NOTEBOOKS = ("first_steps", "mpmd", "programs")
ABOUT_CLUSTERS = ("README.md", "docs/guides/recovery.md")


def some(names, chosen):
    """Returns parameters, of which make test takes those that begin with one of the chosen names."""
    return [pytest.param(name, marks=() if name.startswith(chosen) else AGAIN) for name in names]


@pytest.fixture(scope="module")
def address():
    with Cluster(workers=2, devices=4) as cluster:
        yield cluster.address


@pytest.mark.parametrize("place", some(test_docs.SCRIPTS, ABOUT_CLUSTERS))
def test_a_pages_script_runs(place, address, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # where pictures go
    test_docs.run_script(place, address)


@pytest.mark.parametrize("name", some(test_gallery.SCRIPTS, "grpo"))
def test_a_script_of_the_gallery_runs(name, address, tmp_path):
    test_gallery.run_script(name, tmp_path / "out", PATHWAYS_ADDRESS=address)


@pytest.mark.filterwarnings("default")  # of the packages that drive kernels
@pytest.mark.parametrize("name", some(NOTEBOOKS, "programs"))
def test_a_notebook_runs_without_alarms(name, address, tmp_path, monkeypatch):
    pytest.importorskip("nbclient")
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "python")
    import run_notebooks
    import test_notebooks

    monkeypatch.delenv("PYTEST_CURRENT_TEST")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    notebook = run_notebooks.run(name, tmp_path, address=address)
    assert not test_notebooks.alarming(notebook)
    assert len(test_notebooks.pictures(notebook)) == test_notebooks.PICTURES[name]


@pytest.mark.again("tests/test_gallery.py runs it, the longest script, and tests/*.py what they call on two workers")
def test_the_demo_ends_well(address, tmp_path):
    test_gallery.run_demo(tmp_path, PATHWAYS_ADDRESS=address)


@pytest.mark.parametrize("name", ["decoder_flax", "t5"])  # one of each kind, and of each library
def test_a_model_trains(name, address):
    test_models.run_model(name, PATHWAYS_ADDRESS=address)


def test_the_quickstart_prints_its_sum(address):
    test_gallery.run_quickstart(PATHWAYS_ADDRESS=address)
