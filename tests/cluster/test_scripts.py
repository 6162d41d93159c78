"""Every script of the README, the pages and the examples runs on a cluster as it runs on the devices of one machine."""

import pytest
import test_docs
import test_gallery
import test_models
from processes import Cluster


@pytest.fixture(scope="module")
def address():
    with Cluster(workers=2, devices=4) as cluster:
        yield cluster.address


@pytest.mark.parametrize("place", test_docs.SCRIPTS)
def test_script_of_a_page(place, address, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # where pictures go
    test_docs.run_script(place, address)


@pytest.mark.parametrize("name", test_gallery.SCRIPTS)
def test_gallery_script(name, address, tmp_path):
    test_gallery.run_script(name, tmp_path / "out", PATHWAYS_ADDRESS=address)


@pytest.mark.again("tests/test_gallery.py runs it, the longest script, and tests/*.py what they call on two workers")
def test_demo(address, tmp_path):
    test_gallery.run_demo(tmp_path, PATHWAYS_ADDRESS=address)


@pytest.mark.parametrize("name", ["decoder_flax", "t5"])  # one of each kind, and of each library
def test_model(name, address):
    test_models.run_model(name, PATHWAYS_ADDRESS=address)


def test_quickstart(address):
    test_gallery.run_quickstart(PATHWAYS_ADDRESS=address)
