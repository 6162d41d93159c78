"""Random programs go on when workers are killed at any time; what has nothing to do with these has stock JAX's bits.

PATHWAYS_SEED repeats one, as far as its choices go; `make soak` tries many.
"""

from __future__ import annotations

import itertools
import time
from pathlib import Path

import fresh
import numpy as np
import pytest
from conftest import SEED, SOAK_SECONDS
from processes import Cluster, until

# One worker more than the devices need, so that another one mostly is there at once.
CLUSTERS = [(3, 4), (5, 2)]
# A supervisor waits longer each time that a worker dies soon after its start, so a cluster does not have more faults.
FAULTS = 8

STOCK = """
import sys
import random_programs
random_programs.save(sys.stdin.readline().strip(), [{seed}])
"""

OURS = """
import pathways
pathways.init(devices=8)
import random_losses
random_losses.go_on({seed}, {folder!r}, {path!r}, {faults}, {seconds})
"""


def go_on(seed: int, seconds: float, path: Path) -> None:
    """Runs the program of a seed while its cluster has faults, and saves what it has made."""
    workers, devices = CLUSTERS[seed % 2]
    with Cluster(workers, devices, "--lease", "60s", "--log", "info", restart=True) as cluster:
        folder = str(cluster.dir / "default")
        script = OURS.format(seed=seed, folder=folder, path=str(path), faults=FAULTS, seconds=seconds)
        done = fresh.finish(cluster.start(script))
        assert done.returncode == 0, f"PATHWAYS_SEED={seed}\n{done.stdout}\n{done.stderr}"
        print(done.stdout, end="")
        until("all to be freed", cluster.idle)


@pytest.mark.soak
def test_random_programs_go_on_when_workers_are_killed(tmp_path):
    end = time.monotonic() + SOAK_SECONDS
    for seed in itertools.count(SEED):
        print(f"PATHWAYS_SEED={seed}", flush=True)
        ours, theirs = tmp_path / "ours.npz", tmp_path / "stock.npz"
        begun = time.monotonic()
        stock = fresh.start(STOCK.format(seed=seed), "plugin", {"PATHWAYS_ADDRESS": ""})
        try:
            fresh.tell(stock, f"{theirs}")
            go_on(seed, max(SOAK_SECONDS / 2, end - begun - 5), ours)
            done = fresh.finish(stock)
        finally:
            fresh.end([stock])
        assert done.returncode == 0, done.stderr
        with np.load(ours) as one, np.load(theirs) as other:
            assert set(one) == set(other) and len(one)
            wrong = [name for name in one if not np.array_equal(one[name], other[name])]
        assert not wrong, f"of PATHWAYS_SEED={seed}, {wrong} differ"
        if 2 * time.monotonic() - begun > end:
            return
