"""Users' jax.ffi handlers on workers: by library and symbol, and by `pathways worker --import`."""

import os
import shutil
import subprocess
from pathlib import Path

import jax
import pytest
from processes import Cluster

SOURCE = Path(__file__).parent.parent / "ffi_handlers.c"
CLIENT = """
import ctypes, jax, jax.numpy as jnp, numpy as np
def register(name, function, **options):
    jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(function), platform="cpu", **options)
def call(name, x):
    return jax.jit(lambda v: jax.ffi.ffi_call(name, jax.ShapeDtypeStruct(v.shape, v.dtype))(v))(x)
def refused(name):
    try:
        print(call(name, jnp.zeros(2)))
    except jax.errors.JaxRuntimeError as error:
        return str(error)
    raise AssertionError(f"{name} runs")
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("handlers")


def build(library: Path, *flags: str) -> Path:
    compiler = os.environ.get("CC", "gcc")
    if shutil.which(compiler) is None:
        pytest.skip(f"no {compiler} on this machine")
    flags = ("-shared", "-fPIC", "-O1", *flags, f"-I{jax.ffi.include_dir()}")
    subprocess.run([compiler, *flags, str(SOURCE), "-o", str(library)], check=True)
    return library


@pytest.fixture(scope="module")
def library(folder):
    return build(folder / "handlers.so")


@pytest.fixture(scope="module")
def cluster(folder, library):
    (folder / "test_targets.py").write_text(
        "import ctypes, jax\n"
        f"handlers = ctypes.CDLL({str(library)!r})\n"
        "jax.ffi.register_ffi_target('imported', jax.ffi.pycapsule(handlers.add_two), platform='cpu')\n"
    )
    with pytest.MonkeyPatch.context() as workers:
        workers.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)
        cluster = Cluster(2, 1, "--import", "test_targets")
    cluster.begin = CLIENT
    with cluster:
        yield cluster


def test_handler_is_found_by_its_library_and_symbol_on_every_worker(cluster, library):
    cluster.run(f"""
handlers = ctypes.CDLL({str(library)!r})
register("by_symbol", handlers.add_two)
for device in jax.devices():
    y = call("by_symbol", jax.device_put(jnp.arange(3.0), device))
    np.testing.assert_array_equal(y, [2, 3, 4])
    assert y.devices() == {{device}}
from jax.sharding import Mesh, PartitionSpec
each = jax.shard_map(
    lambda v: jax.lax.psum(jax.ffi.ffi_call("by_symbol", jax.ShapeDtypeStruct((2,), np.float32))(v), "x"),
    mesh=Mesh(np.asarray(jax.devices()), ("x",)), in_specs=PartitionSpec("x"), out_specs=PartitionSpec(),
    check_vma=False)
np.testing.assert_array_equal(jax.jit(each)(jnp.arange(4.0)), [6, 8])
""")
    # Another client of the same name and function, which finds it loaded.
    cluster.run(f"""
register("by_symbol", ctypes.CDLL({str(library)!r}).add_two)
np.testing.assert_array_equal(call("by_symbol", jnp.zeros(5)), [2] * 5)
""")


def test_a_handlers_state_reaches_its_calls(cluster, library):
    cluster.run(f"""
handlers = ctypes.CDLL({str(library)!r})
capsule = lambda name: jax.ffi.pycapsule(ctypes.c_void_p(ctypes.addressof(ctypes.c_char.in_dll(handlers, name))))
jax.ffi.register_ffi_type("counted", {{"type_id": capsule("state_id"), "type_info": capsule("state_info")}},
                          platform="cpu")
jax.ffi.register_ffi_target("stateful", {{"instantiate": jax.ffi.pycapsule(handlers.stateful_instantiate),
                                         "execute": jax.ffi.pycapsule(handlers.stateful_execute)}}, platform="cpu")
np.testing.assert_array_equal(call("stateful", jnp.ones(2)), [41, 41])
""")


def test_error_of_a_handler_comes_back(cluster, library):
    cluster.run(f"""
register("refusing", ctypes.CDLL({str(library)!r}).refuses_to_run)
text = refused("refusing")
assert "OUT_OF_RANGE" in text and "the handler says no" in text, text
""")


def test_failure_on_one_device_ends_the_collective_of_the_others(library):
    with Cluster(2, 2) as cluster:
        cluster.begin = CLIENT
        cluster.run(f"""
import sys, time
from jax.sharding import Mesh, PartitionSpec
register("refusing", ctypes.CDLL({str(library)!r}).refuses_to_run)
def each(x):
    refuse = lambda v: jax.ffi.ffi_call("refusing", jax.ShapeDtypeStruct(v.shape, v.dtype))(v)
    return jax.lax.psum(jax.lax.cond(jax.lax.axis_index("x") == 2, refuse, lambda v: v, x), "x")
x = jnp.arange(4.0)
fails = jax.jit(jax.shard_map(each, mesh=Mesh(np.asarray(jax.devices()), ("x",)), in_specs=PartitionSpec("x"),
                              out_specs=PartitionSpec(), check_vma=False))
for called in ("called", "first called"):  # no line comes with the second
    begun, line = time.monotonic(), sys._getframe().f_lineno + 1
    shards = fails(x).addressable_shards
    for shard in shards:
        try:
            shard.data.block_until_ready()
            raise AssertionError("it runs")
        except jax.errors.JaxRuntimeError as error:
            assert "the handler says no" in str(error), error
            assert f"[jit_each, {{called}} at <string>:{{line}}, on device 0 of worker worker-1]" in str(error), error
    assert len(shards) == 4 and time.monotonic() - begun < 20  # of the 40 after which XLA ends a process, or 60 of ours
for device in jax.devices():
    np.testing.assert_array_equal(jax.device_put(x, device) + 1, [1, 2, 3, 4])
""")


def test_target_of_an_imported_module_runs(cluster):
    cluster.run('np.testing.assert_array_equal(call("imported", jnp.zeros(2)), [2, 2])\n')


def test_what_cannot_be_found_is_an_error_that_says_what_to_do(cluster, library, folder):
    gone = shutil.copy(library, folder / "gone.so")
    other = shutil.copy(library, folder / "other.so")
    cluster.run(f"""
import os
handlers = ctypes.CDLL({str(library)!r})
handlers.nameless_handler.restype = ctypes.c_void_p
jax.ffi.register_ffi_target("nameless", jax.ffi.pycapsule(ctypes.c_void_p(handlers.nameless_handler())),
                            platform="cpu")
text = refused("nameless")
for part in ("nameless", {str(library)!r}, "static functions", "pathways worker --import"):
    assert part in text, text

# A handler that Python makes, with the answer to the probe borrowed from one in C.
kind = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
handlers.add_two.restype, handlers.add_two.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
made = kind(lambda frame: handlers.add_two(frame))
jax.ffi.register_ffi_target("made", jax.ffi.pycapsule(ctypes.cast(made, ctypes.c_void_p)), platform="cpu")
text = refused("made")
for part in ("made", "pathways worker --import"):
    assert part in text, text

register("gone", ctypes.CDLL({str(gone)!r}).add_two)
os.remove({str(gone)!r})
text = refused("gone")
for part in ("gone", {str(gone)!r}, "cannot be read", "pathways worker --import"):
    assert part in text, text

text = refused("never_registered")
assert "never_registered" in text and "pathways worker --import" in text, text
""")
    cluster.run(f"""
register("replaced", ctypes.CDLL({str(other)!r}).add_two)
np.testing.assert_array_equal(call("replaced", jnp.zeros(2)), [2, 2])
""")
    other.unlink()
    build(other, "-DREBUILT", "-O0")
    cluster.run(f"""
register("replaced", ctypes.CDLL({str(other)!r}).add_two)
text = refused("replaced")
for part in ("replaced", {str(other)!r}, "cannot be replaced", "start the workers again"):
    assert part in text, text
""")


def test_unused_target_that_cannot_be_found_does_no_harm(cluster, library):
    # Its name is in the program: that of the module.
    cluster.run(f"""
handlers = ctypes.CDLL({str(library)!r})
handlers.nameless_handler.restype = ctypes.c_void_p
jax.ffi.register_ffi_target("bystander", jax.ffi.pycapsule(ctypes.c_void_p(handlers.nameless_handler())),
                            platform="cpu")
def bystander(x):
    return x + 1
np.testing.assert_array_equal(jax.jit(bystander)(jnp.zeros(2)), [1, 1])
""")
