"""What a worker starts with: JAX's FFI handlers, without an import of JAX, and LAPACK when a program first needs it."""

import os
import subprocess
import sys
from pathlib import Path

import fresh
import pytest
from processes import Cluster

pytestmark = pytest.mark.versions

# Reads and writes the memory of a device, so clients of clusters refuse it.
REFUSED = "xla_buffer_python_cpu_callback"
SVD = """
import jax, jax.numpy as jnp, numpy as np
x = jnp.arange(12.0).reshape(4, 3)
"""
COMPILE = """
import jax, jax.numpy as jnp
def compiled(names):
    calls = [jax.ffi.ffi_call(name, jax.ShapeDtypeStruct((2,), jnp.float32), has_side_effect=True) for name in names]
    return jax.jit(lambda x: [call(x) for call in calls]).lower(jnp.zeros(2)).compile()
"""


def mapped(cluster, name, what):
    """Whether a process has a library mapped whose path contains what."""
    return what in Path(f"/proc/{cluster.processes[name]}/maps").read_text()


@pytest.fixture(scope="module")
def jax_targets():
    """The targets for CPUs that stock JAX has in all."""
    done = fresh.run(
        """
        import jax, jax.experimental.buffer_callback, jax.experimental.sparse, jax.scipy.linalg
        from jaxlib import xla_client
        jax.devices()
        print(*xla_client.custom_call_targets("Host"))
        """,
        backend="jaxlib",
    )
    targets = done.stdout.split()
    assert "lapack_sgesdd_ffi" in targets and "cpu_csr_sparse_dense_ffi" in targets and REFUSED in targets
    return sorted({*targets} - {REFUSED})


@pytest.fixture(scope="module")
def cluster():
    """Of one worker that has the handlers of JAX alone."""
    with Cluster(1, 1) as cluster:
        yield cluster


def test_no_process_of_a_cluster_imports_jax_and_a_worker_finds_lapack_when_it_is_called(cluster):
    for name in cluster.processes:
        for library in ("libjax_common", "_multiarray_umath", "cython_lapack"):
            assert not mapped(cluster, name, library), f"{name} has {library}"
    cluster.run(f"{SVD}np.testing.assert_array_equal(x + 1, np.arange(1, 13.0).reshape(4, 3))")
    assert not mapped(cluster, "worker-0", "cython_lapack")
    cluster.run(
        f"""{SVD}
u, s, vt = jnp.linalg.svd(x, full_matrices=False)
np.testing.assert_allclose(u * s @ vt, x, atol=1e-5)
"""
    )
    assert mapped(cluster, "worker-0", "cython_lapack")
    assert not mapped(cluster, "worker-0", "libjax_common")


def test_lapack_computes_with_the_priority_of_the_worker():
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            """
import os, threading
from pathways_command import _handlers, _prepare

usual = os.getpriority(os.PRIO_PROCESS, 0)
_prepare(worker=True, modules=[])
prepare = _handlers._kept[-1]

def load():
    os.setpriority(os.PRIO_PROCESS, 0, usual + 5)  # of this thread, as of those that load programs
    assert prepare(None) == 1
    of_all = [os.getpriority(os.PRIO_PROCESS, int(thread)) for thread in os.listdir("/proc/self/task")]
    print([n for n in of_all if n != usual] == [usual + 5])

loader = threading.Thread(target=load)
loader.start()
loader.join()
""",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "True\n"


def check_handlers(cluster, targets):
    cluster.run(
        f"""{COMPILE}
compiled({targets!r})
try:
    compiled(["no_such_target"])
    raise AssertionError("a program is compiled whose handler is not there")
except jax.errors.JaxRuntimeError as error:
    assert "no_such_target" in str(error), error
"""
    )


def test_a_worker_has_every_handler_that_jax_registers(cluster, jax_targets):
    check_handlers(cluster, jax_targets)


def test_a_worker_beside_jax_has_every_handler_that_jax_registers(jax_targets):
    with Cluster(1, 1, "--import", "jax") as cluster:
        check_handlers(cluster, jax_targets)


def test_a_product_of_a_sparse_matrix_runs_on_a_worker(cluster):
    cluster.run(
        """
        import jax, jax.numpy as jnp, numpy as np
        from jax.experimental import sparse
        dense = np.arange(12, dtype=np.float32).reshape(3, 4) % 5
        x = np.arange(4, dtype=np.float32)
        matrix = sparse.BCSR.fromdense(dense)
        product = jax.jit(lambda m, x: m @ x)
        np.testing.assert_allclose(product(matrix, x), dense @ x)
        assert "cpu_csr_sparse_dense_ffi" in product.lower(matrix, x).as_text()
        """
    )


@pytest.mark.parametrize("package", [None, "libtpu", "jax_cuda12_plugin"])
def test_a_worker_imports_jax_where_there_are_packages_of_accelerators(tmp_path, package):
    if package is not None:
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").touch()
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-c", "from pathways_command import _handlers; print(_handlers._is_jax_needed())"],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == [str(package is not None)]


def test_without_scipy_programs_that_call_lapack_fail_and_others_run(tmp_path, monkeypatch):
    (tmp_path / "scipy").mkdir()
    (tmp_path / "scipy" / "__init__.py").write_text("raise ImportError('this SciPy is broken')\n")
    with monkeypatch.context() as broken:
        broken.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]))
        cluster = Cluster(1, 1)
    with cluster:
        cluster.run(
            f"""{SVD}
for _ in range(2):
    try:
        jnp.linalg.svd(x)
        raise AssertionError("LAPACK was found")
    except jax.errors.JaxRuntimeError as error:
        assert "LAPACK's functions cannot be taken from SciPy: ImportError: this SciPy is broken" in str(error), error
np.testing.assert_array_equal(x + 1, np.arange(1, 13.0).reshape(4, 3))
"""
        )
