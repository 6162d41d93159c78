"""Workers that differ from the cluster they come to are refused, with both sides named, and the cluster works on."""

from __future__ import annotations

import shutil
import subprocess
import sys

import fresh
import pytest
from processes import HANG_SECONDS, Cluster


@pytest.fixture(scope="module")
def cluster():
    with Cluster(1, 1) as cluster:
        yield cluster


# The command, in a process that believes of one package to have another version.
SKEWED = """
import importlib.metadata, runpy, sys
version = importlib.metadata.version
importlib.metadata.version = lambda name: "0.0.1" if name == {package!r} else version(name)
sys.argv = ["pathways", *sys.argv[1:]]
runpy.run_module("pathways_command", run_name="__main__")
"""


def refusal(cluster: Cluster, *arguments: str, package: str = "") -> str:
    """Has a worker come that is refused, and returns what it says."""
    done = subprocess.run(
        [sys.executable, "-c", SKEWED.format(package=package), "worker", "--name", "stranger"]
        + ["--address", cluster.address, "--dir", str(cluster.dir), *arguments],
        env=fresh.environment(env={"PATHWAYS_DEVICES": ""}),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
    )
    assert done.returncode == 1 and "FAILED_PRECONDITION" in done.stderr, done.stderr
    assert set(cluster.workers()) == {"worker-0"}
    assert cluster.run("import jax\nprint(jax.numpy.ones(3).sum())").stdout.strip() == "3.0"
    return done.stderr


@pytest.mark.parametrize("package", ["jax", "jaxlib"])
def test_a_worker_with_another_jax_is_refused(cluster, package):
    said = refusal(cluster, package=package)
    assert f"{package} differs" in said and '"0.0.1"' in said


def test_a_worker_with_another_plugin_is_refused(cluster, tmp_path):
    """A plugin of another build: its programs may be no programs to the others."""
    other = tmp_path / "other.so"
    shutil.copyfile(fresh.plugin_path(), other)
    with other.open("ab") as file:
        file.write(b"another build")
    said = refusal(cluster, "--driver", str(other))
    assert "worker stranger has" in said and "worker worker-0" in said, said
    assert "other.so with SHA-256" in said and said.count("SHA-256") == 2, said
