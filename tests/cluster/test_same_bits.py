"""One, two and four workers give the bits of the same plugin in one process, for every kind of collective.

The workers are parts of one process, and four of them processes of their own, whose collectives go by shared memory.
"""

import os
from contextlib import ExitStack
from pathlib import Path

import fresh
import numpy as np
import pytest
from processes import Cluster

SCRIPT = f"""
    import sys
    sys.path.insert(0, {str(Path(__file__).parent)!r})
    import cluster_computations
    cluster_computations.save(sys.stdin.readline().strip())
"""
PROCESSES = "four processes"
TOPOLOGIES = ["local:1x8", "local:2x4", "local:4x2", PROCESSES]
# The four processes are as many as any of the others, have several devices each, and the same frontend.
AGAIN = pytest.mark.again("four processes here; tests/gotest/cluster within one process; tests/test_bits.py on two")
# The same on a cluster whose address is given.
if (address := os.environ.get("PATHWAYS_TEST_ADDRESS", "")) and address not in TOPOLOGIES:
    TOPOLOGIES.append(address)


@pytest.fixture(scope="module")
def run(tmp_path_factory, request):
    """Returns a function from a backend or address to arrays by name; each runs once, in its own process."""
    folder, begun, done = tmp_path_factory.mktemp("bits"), {}, {}
    # No process is begun ahead for a test that is not run.
    here = [
        item.callspec.params
        for item in request.session.items
        if item.path == request.path and hasattr(item, "callspec")
    ]
    order = ["plugin", *(where for where in TOPOLOGIES if {"where": where} in here)]
    clusters = ExitStack()

    def begin(where):
        backend, address = (where, "") if where == "plugin" else ("pathways", where)
        if where == PROCESSES:
            address = clusters.enter_context(Cluster(4, 2)).address
        begun[where] = process = fresh.start(SCRIPT, backend, {"PATHWAYS_ADDRESS": address})
        fresh.tell(process, f"{folder / str(order.index(where))}.npz")

    def results(where):
        if where not in done:
            for ahead in order[order.index(where) :][:2]:
                if ahead not in begun:
                    begin(ahead)
            ended = fresh.finish(begun[where])
            assert ended.returncode == 0, f"{where}: {ended.stderr}"
            with np.load(folder / f"{order.index(where)}.npz") as saved:
                done[where] = dict(saved)
        return done[where]

    with clusters:
        yield results
        fresh.end(begun.values())


def test_every_computation_is_there_and_says_something(run):
    results = run("plugin")
    assert len(results) >= 180
    for name, array in results.items():
        assert array.size > 0, name
        if array.dtype.kind in "fc":
            assert np.isfinite(array).all(), name
        assert array.any() or "permute_some" in name or name.startswith("index"), name


@pytest.mark.parametrize("where", [pytest.param(t, marks=AGAIN if t in TOPOLOGIES[:3] else ()) for t in TOPOLOGIES])
def test_the_bits_of_one_process(run, where):
    ours, plugin = run(where), run("plugin")
    assert ours.keys() == plugin.keys()
    wrong = []
    for name, a in ours.items():
        b = plugin[name]
        assert (a.shape, a.dtype) == (b.shape, b.dtype), name
        if a.tobytes() != b.tobytes():
            wrong.append(f"{name}: {np.mean(a != b):.2%} of the elements differ")
    assert not wrong, "\n".join(wrong)
