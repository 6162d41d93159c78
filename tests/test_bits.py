"""Numbers are those of the plugin underneath, bit for bit, and near those of the CPU client inside jaxlib."""

import computations
import fresh
import numpy as np
import pytest
from conftest import ADDRESS

SCRIPT = """
    import sys
    import computations
    computations.save(sys.stdin.readline().strip())
"""

NAMES = [*computations.one_device(), "all_reduce", "permute", "pmap", "training_data", "training_model"]
# Whole numbers, choices of elements and a single rounding leave no freedom to a compiler.
EXACT = {"matmul_int", "int4", "sort", "sort_pairs", "permutation", "max_pool", "gather", "add"}
# In these two, a last bit before rounding decides which of two neighbours comes out.
COARSE = {"matmul_bf16": 0.02, "matmul_f16": 0.01, "fp8": 0.15}


@pytest.fixture(scope="module")
def results(tmp_path_factory, request):
    """Returns arrays by backend and name, each backend in a process of its own, all at once."""
    folder = tmp_path_factory.mktemp("bits")
    out = {}
    backends = ["pathways", "plugin"]
    # That process is begun only where a test that reads its results runs.
    if not ADDRESS and any(item.path == request.path and "name" in item.fixturenames for item in request.session.items):
        backends.append("jaxlib")
    optimized = {} if ADDRESS else {"XLA_FLAGS": ""}
    processes = {backend: fresh.start(SCRIPT, backend, optimized) for backend in backends}
    try:
        for backend, process in processes.items():
            process.stdin.write(f"{folder / backend}.npz\n")
            process.stdin.flush()
        for backend, process in processes.items():
            done = fresh.finish(process)
            assert done.returncode == 0, f"{backend}: {done.stderr}"
            with np.load(folder / f"{backend}.npz") as saved:
                out[backend] = dict(saved)
    finally:
        fresh.end(processes.values())
    return out


@pytest.mark.newest
def test_every_computation_is_there(results):
    names = {name.rsplit(".", 1)[0] for name in results["pathways"]}
    assert set(NAMES) <= names and len(names) >= 50
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


@pytest.mark.embedded("a cluster gives the plugin's bits too, which are near")
@pytest.mark.parametrize("name", NAMES)
def test_near_the_client_inside_jaxlib(results, name):
    ours = {k: v for k, v in results["pathways"].items() if k.rsplit(".", 1)[0] == name}
    assert ours
    for key, a in ours.items():
        b = results["jaxlib"][key]
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        if name in EXACT or a.dtype.kind not in "fc":
            np.testing.assert_array_equal(a, b)
            continue
        scale = np.abs(b.astype(np.complex128)).max()
        tolerance = COARSE.get(name, 2e-4)
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * scale / 10)
