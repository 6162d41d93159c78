"""The models of the examples train in small as they stand: on the devices of one process, and on a cluster."""

import re

import fresh
import pytest
from test_gallery import EXAMPLES, started

MODELS = sorted(path.stem for path in (EXAMPLES / "models").glob("*.py") if path.stem != "training")
SMALL = ("--steps", "12", "--batch", "8", "--length", "32", "--layers", "1", "--width", "16", "--heads", "2")


def run_model(name, **said):
    if name.endswith("_flax"):
        pytest.importorskip("flax")
    done = fresh.finish(started(EXAMPLES / "models" / f"{name}.py", *SMALL, "--rate", "0.03", **said))
    assert done.returncode == 0, f"stdout:\n{done.stdout}\nstderr:\n{done.stderr}"
    first, last = re.search(r"^loss (\S+) to (\S+), [\d,]+ tokens/s$", done.stdout, re.M).groups()
    assert float(last) < float(first), done.stdout


@pytest.mark.embedded("tests/cluster/test_scripts.py runs the models on a cluster")
@pytest.mark.newest
@pytest.mark.parametrize("name", MODELS)
def test_loss_falls(name):
    run_model(name)


@pytest.mark.embedded("it starts no devices")
@pytest.mark.parametrize(
    ("said", "why"),
    [
        (("--batch", "6"), "--batch 6 cannot be split over --devices 8; give a multiple of it"),
        (("--length", "40"), "--length 40 must be a multiple of 16"),
        (("--steps", "1"), "expected at least two steps and one device"),
    ],
)
def test_refused_options_say_what_is_expected(said, why):
    done = fresh.finish(started(EXAMPLES / "models" / "decoder.py", *said))
    assert done.returncode == 2 and done.stderr.endswith(f"{why}\n"), done.stderr


def test_the_readme_names_each_model():
    text = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    assert set(re.findall(r"\(models/(\w+)\.py\)", text)) == set(MODELS)
