"""Numbers are those of the plugin underneath under stock JAX, bit for bit."""

import computations
import fresh
import numpy as np
import pytest
from conftest import ADDRESS

# A worker compiles and runs what one device computes as this process does, and the newest JAX and plugin as the ones
# before, so there some of these are enough: of each kind of number, of several results, of none that come in, and one
# that is large.
SOME = {"add", "attention", "complex", "fp8", "gradient", "int4", "matmul_bf16", "matmul_f16", "sort_pairs", "threefry"}
SCRIPT = """
    import sys
    import computations
    computations.save(sys.stdin.readline().strip(), {names})
"""


@pytest.fixture(scope="module")
def one_device(request):
    """The names of the computations of one device that are tried."""
    some = ADDRESS or "newest" in request.config.getoption("markexpr")
    return sorted(SOME if some else computations.one_device())


@pytest.fixture(scope="module")
def results(one_device, tmp_path_factory):
    """Returns arrays by backend and name, each backend in a process of its own, all at once."""
    folder = tmp_path_factory.mktemp("bits")
    out = {}
    script = SCRIPT.format(names=one_device)
    optimized = {} if ADDRESS else {"XLA_FLAGS": ""}
    processes = {backend: fresh.start(script, backend, optimized) for backend in ("pathways", "plugin")}
    try:
        for backend, process in processes.items():
            fresh.tell(process, f"{folder / backend}.npz")
        for backend, process in processes.items():
            done = fresh.finish(process)
            assert done.returncode == 0, f"{backend}: {done.stderr}"
            with np.load(folder / f"{backend}.npz") as saved:
                out[backend] = dict(saved)
    finally:
        fresh.end(processes.values())
    return out


@pytest.mark.newest
def test_every_computation_is_there(one_device, results):
    names = {name.rsplit(".", 1)[0] for name in results["pathways"]}
    of_eight = {"all_reduce", "permute", "pmap", "training_data", "training_model"}
    assert of_eight.union(one_device) <= names and len(names) >= len(one_device) + 10
    for name, array in results["pathways"].items():
        assert array.size > 0, name
        if array.dtype.kind in "fc":
            assert np.isfinite(array).all(), name


@pytest.mark.newest
def test_bit_for_bit_the_plugin_under_stock_jax(results):
    ours, plugin = results["pathways"], results["plugin"]
    assert ours.keys() == plugin.keys()
    wrong = []
    for name in ours:
        a, b = ours[name], plugin[name]
        assert (a.shape, a.dtype) == (b.shape, b.dtype), name
        if a.tobytes() != b.tobytes():
            wrong.append(f"{name}: {np.mean(a != b):.2%} of the elements differ, at most by {np.abs(a - b).max()}")
    assert not wrong, "\n".join(wrong)
