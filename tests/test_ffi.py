"""LAPACK and the jax.ffi targets of users inside programs on Pathways devices.

Everything here works, or fails, as it does on JAX's own CPU client.
"""

import ctypes
import itertools
import os
import shutil
import subprocess
from pathlib import Path

import fresh
import jax
import jax.numpy as jnp
import numpy as np
import pathways
import pytest
from jax.sharding import Mesh, PartitionSpec
from pathways import _ffi
from together import together

pytestmark = pytest.mark.newest

HERE = Path(__file__).parent
_names = (f"pathways_test_{os.getpid()}_{i}" for i in itertools.count())

ours = pytest.mark.same_process("the handlers are in the memory of this process")


# --- LAPACK ---

_rng = np.random.default_rng(0)
A = _rng.standard_normal((6, 6)).astype(np.float32)
SPD = A @ A.T + 6 * np.eye(6, dtype=np.float32)


def _rebuilt_eig():
    w, v = jnp.linalg.eig(A)
    return np.real(np.asarray(v * w) @ np.linalg.inv(np.asarray(v)))


LINALG = {
    "eigh": (lambda: jnp.linalg.eigh(SPD)[0], lambda: np.linalg.eigvalsh(SPD)),
    "svd": (lambda: jnp.linalg.svd(A)[1], lambda: np.linalg.svd(A)[1]),
    "cholesky": (lambda: jnp.linalg.cholesky(SPD), lambda: np.linalg.cholesky(SPD)),
    "lu": (lambda: np.matmul(*(x := jax.scipy.linalg.lu(A))[:2]) @ x[2], lambda: A),
    "qr": (lambda: np.matmul(*jnp.linalg.qr(A)), lambda: A),
    "solve": (lambda: jnp.linalg.solve(SPD, A), lambda: np.linalg.solve(SPD, A)),
    "triangular_solve": (
        lambda: jax.scipy.linalg.solve_triangular(SPD, A, lower=True),
        lambda: np.linalg.solve(np.tril(SPD), A),
    ),
    "eig": (_rebuilt_eig, lambda: A),
    "schur": (lambda: (s := jax.scipy.linalg.schur(A))[1] @ s[0] @ s[1].T, lambda: A),
    "det": (lambda: jnp.linalg.det(A), lambda: np.linalg.det(A)),
    "pinv": (lambda: jnp.linalg.pinv(A), lambda: np.linalg.pinv(A)),
    "batched": (lambda: jnp.linalg.inv(jnp.stack([A, SPD])), lambda: np.linalg.inv(np.stack([A, SPD]))),
}


@pytest.mark.parametrize("name", LINALG)
def test_lapack_gives_numpys_numbers(name):
    ours, numpys = LINALG[name]
    np.testing.assert_allclose(np.asarray(ours()), numpys(), rtol=2e-3, atol=2e-4)


@ours
def test_every_target_that_jax_registers_was_taken():
    jnp.zeros(()).block_until_ready()
    assert _ffi.refusals() == []
    assert _ffi.version().startswith("0.")


# --- users' handlers ---


def _compile(source: Path, folder: Path, compiler: str, *flags: str) -> ctypes.CDLL:
    if shutil.which(compiler) is None:
        pytest.skip(f"no {compiler} on this machine")
    library = folder / f"{source.stem}.so"
    flags = ("-shared", "-fPIC", "-O1", *flags, f"-I{jax.ffi.include_dir()}")
    subprocess.run([compiler, *flags, str(source), "-o", str(library)], check=True)
    return ctypes.CDLL(str(library))


@pytest.fixture(scope="module")
def handlers(tmp_path_factory):
    return _compile(HERE / "ffi_handlers.c", tmp_path_factory.mktemp("ffi"), os.environ.get("CC", "gcc"))


def register(name, function, **options):
    jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(function), platform="cpu", **options)


def call(name, x):
    return jax.jit(lambda v: jax.ffi.ffi_call(name, jax.ShapeDtypeStruct(v.shape, v.dtype))(v))(x)


@ours
def test_handler_built_with_newer_headers_runs(handlers, devices):
    name = next(_names)
    assert _raw(name, None, None, None, handlers.add_one) is None
    np.testing.assert_array_equal(call(name, jnp.arange(3.0)), [1, 2, 3])
    mesh = Mesh(np.asarray(devices), ("x",))
    spec = PartitionSpec("x")
    each = jax.shard_map(
        lambda v: jax.ffi.ffi_call(name, jax.ShapeDtypeStruct((1,), np.float32))(v),
        mesh=mesh,
        in_specs=spec,
        out_specs=spec,
        check_vma=False,
    )
    np.testing.assert_array_equal(jax.jit(each)(jnp.arange(8.0)), np.arange(8.0) + 1)


@ours
def test_target_of_jax_ffi_runs_here_and_on_jaxs_own_cpu_client(handlers):
    name = next(_names)
    register(name, handlers.add_two)
    for device in (jax.devices()[0], jax.devices("cpu")[0]):
        y = call(name, jax.device_put(jnp.arange(3.0), device))
        np.testing.assert_array_equal(y, [2, 3, 4])
        assert y.devices() == {device}


@ours
def test_error_of_a_handler_keeps_its_code_and_text(handlers):
    name = next(_names)
    register(name, handlers.refuses_to_run)
    with pytest.raises(jax.errors.JaxRuntimeError, match="OUT_OF_RANGE.*the handler says no"):
        call(name, jnp.ones(3)).block_until_ready()


@ours
def test_a_handlers_state_reaches_its_calls(handlers):
    name = next(_names)
    for function in (handlers.stateful_type_id, handlers.stateful_type_info):
        function.restype = ctypes.c_void_p

    def capsule(pointer):
        return jax.ffi.pycapsule(ctypes.c_void_p(pointer))

    jax.ffi.register_ffi_type(
        f"{name}_state",
        {"type_id": capsule(handlers.stateful_type_id()), "type_info": capsule(handlers.stateful_type_info())},
        platform="cpu",
    )
    stages = {"instantiate": handlers.stateful_instantiate, "execute": handlers.stateful_execute}
    jax.ffi.register_ffi_target(name, {k: jax.ffi.pycapsule(v) for k, v in stages.items()}, platform="cpu")
    f = jax.jit(lambda v: jax.ffi.ffi_call(name, jax.ShapeDtypeStruct((2,), np.float32))(v))
    np.testing.assert_array_equal(f(jnp.zeros(2)), [40, 40])
    np.testing.assert_array_equal(f(jnp.ones(2)), [41, 41])
    assert handlers.states_alive() >= 1


def test_target_of_another_major_version_is_refused(handlers):
    with pytest.raises((pathways.PathwaysError, jax.errors.JaxRuntimeError), match=r"7\.3"):
        register(next(_names), handlers.other_major)


def _raw(name, *stages, platform=b"Host", traits=0):
    """Registers with the library alone, past jaxlib; returns its answer."""
    library = pathways._native.load()
    stages = [ctypes.cast(stage, ctypes.c_void_p) if stage else None for stage in stages]
    pointer = library.pathways_ffi_register(name.encode(), platform, *stages, traits)
    if not pointer:
        return None
    text = ctypes.string_at(pointer).decode()
    library.pathways_free(pointer)
    return text


@ours
def test_refusal_names_target_versions_and_what_to_do(handlers):
    name = next(_names)
    text = _raw(name, None, None, None, handlers.other_major)
    assert text.partition(":")[0] == "INVALID_ARGUMENT"
    for part in (name, "Host", "XLA FFI 7.3", f"the plugin has {_ffi.version()}", "jax.ffi.include_dir()"):
        assert part in text
    # The name is free again.
    assert _raw(name, None, None, None, handlers.add_two) is None
    np.testing.assert_array_equal(call(name, jnp.zeros(2)), [2, 2])


@ours
def test_a_name_is_registered_once(handlers):
    name = next(_names)
    assert _raw(name, None, None, None, handlers.add_one) is None
    assert _raw(name, None, None, None, handlers.add_one) is None
    text = _raw(name, None, None, None, handlers.add_two)
    assert text.startswith("ALREADY_EXISTS: ") and name in text
    np.testing.assert_array_equal(call(name, jnp.zeros(2)), [1, 1])
    assert _raw(next(_names), None, None, None, None).startswith("INVALID_ARGUMENT: ")
    assert _raw(name, None, None, None, handlers.add_one, traits=1).startswith("ALREADY_EXISTS: ")
    graphs = next(_names)
    assert _raw(graphs, None, None, None, handlers.add_one, traits=1) is None
    np.testing.assert_array_equal(call(graphs, jnp.zeros(2)), [1, 1])
    jaxs = next(_names)
    register(jaxs, handlers.add_two)
    with pytest.raises(RuntimeError, match=jaxs):
        register(jaxs, handlers.refuses_to_run)


@ours
def test_threads_register_the_same_and_different_targets(handlers):
    shared, own = next(_names), [next(_names) for _ in range(6)]
    answers = []

    def work(name):
        for _ in range(20):
            answers.append(_raw(shared, None, None, None, handlers.add_one))
            answers.append(_raw(name, None, None, None, handlers.add_two))

    together(work, own)
    assert set(answers) == {None}
    np.testing.assert_array_equal(call(own[3], call(shared, jnp.zeros(2))), [3, 3])


def test_untyped_target_is_warned_of(handlers):
    with pytest.warns(UserWarning, match="api_version=0"):
        register(next(_names), handlers.add_one, api_version=0)


@ours
def test_too_many_handlers_are_refused_with_a_sentence(tmp_path):
    handlers = _compile(HERE / "ffi_handlers.c", tmp_path, os.environ.get("CC", "gcc"), "-DMANY", "-O0")
    fresh.run(
        f"""
        import ctypes, jax, jax.numpy as jnp, numpy as np
        handlers = ctypes.CDLL({handlers._name!r})
        count = ctypes.c_int.in_dll(handlers, "many_count").value
        many = (ctypes.c_void_p * count).in_dll(handlers, "many")
        library = pathways._native.load()
        jnp.zeros(()).block_until_ready()
        answers = []
        for i, function in enumerate(many):
            pointer = library.pathways_ffi_register(b"many%d" % i, b"Host", None, None, None, function, 0)
            answers.append(ctypes.string_at(pointer).decode() if pointer else None)
        full = next(i for i, answer in enumerate(answers) if answer)
        assert 1900 < full < 2048, full
        assert answers[full].startswith("RESOURCE_EXHAUSTED: ") and "2048" in answers[full], answers[full]
        def call(name):
            target = jax.ffi.ffi_call(name, jax.ShapeDtypeStruct((2,), np.float32))
            return jax.jit(lambda v: target(v))(jnp.zeros(2))
        np.testing.assert_array_equal(call(f"many{{full - 1}}"), [full - 1] * 2)
        assert library.pathways_ffi_register(b"many again", b"Host", None, None, None, many[5], 0) is None
        np.testing.assert_array_equal(call("many again"), [5, 5])
        """
    )


CPP = """
#include "xla/ffi/api/ffi.h"
namespace ffi = xla::ffi;
static ffi::Error Axpy(float a, ffi::Buffer<ffi::F32> x, ffi::Buffer<ffi::F32> y, ffi::ResultBuffer<ffi::F32> out) {
  if (x.element_count() != y.element_count()) return ffi::Error::InvalidArgument("x and y differ in size");
  for (size_t i = 0; i < x.element_count(); ++i) out->typed_data()[i] = a * x.typed_data()[i] + y.typed_data()[i];
  return ffi::Error::Success();
}
XLA_FFI_DEFINE_HANDLER_SYMBOL(axpy, Axpy, ffi::Ffi::Bind().Attr<float>("a").Arg<ffi::Buffer<ffi::F32>>()
    .Arg<ffi::Buffer<ffi::F32>>().Ret<ffi::Buffer<ffi::F32>>());
"""


@ours
def test_a_typed_cpp_handler_gets_its_attributes(tmp_path):
    source = tmp_path / "axpy.cc"
    source.write_text(CPP)
    library = _compile(source, tmp_path, os.environ.get("CXX", "g++"), "-std=c++17", "-O0")
    name = next(_names)
    register(name, library.axpy)

    def axpy(x, y):
        return jax.ffi.ffi_call(name, jax.ShapeDtypeStruct((3,), np.float32))(x, y, a=np.float32(2))

    np.testing.assert_array_equal(jax.jit(axpy)(jnp.arange(3.0), jnp.ones(3)), [1, 3, 5])
    with pytest.raises(jax.errors.JaxRuntimeError, match="INVALID_ARGUMENT.*x and y differ in size"):
        jax.jit(axpy)(jnp.arange(3.0), jnp.ones(4)).block_until_ready()


def test_unregistered_target_is_an_error():
    with pytest.raises(jax.errors.JaxRuntimeError, match="no_such_target"):
        call("no_such_target", jnp.ones(3)).block_until_ready()


# --- the process ---


@ours
def test_targets_registered_before_and_after_the_import(handlers):
    fresh.run(
        f"""
        import ctypes, jax, jax.numpy as jnp, numpy as np
        handlers = ctypes.CDLL({handlers._name!r})
        jax.ffi.register_ffi_target("early", jax.ffi.pycapsule(handlers.add_two), platform="cpu")
        import pathways
        jax.ffi.register_ffi_target("between", jax.ffi.pycapsule(handlers.add_two), platform="cpu")
        x = jnp.zeros(2)
        for name, value in (("early", 2), ("between", 2)):
            y = jax.jit(lambda v: jax.ffi.ffi_call(name, jax.ShapeDtypeStruct((2,), np.float32))(v))(x)
            np.testing.assert_array_equal(y, [value] * 2)
            assert y.devices() <= set(jax.devices("pathways"))
        """,
        backend=None,
    )


@ours
def test_early_target_that_is_refused_is_a_warning(handlers):
    done = fresh.run(
        f"""
        import ctypes, warnings
        from jaxlib import xla_client
        import jax
        handlers = ctypes.CDLL({handlers._name!r})
        # jaxlib refuses it too, and earlier; here the plugin alone is asked.
        xla_client._xla.register_custom_call_target = lambda *a, **k: None
        jax.ffi.register_ffi_target("other_major", jax.ffi.pycapsule(handlers.other_major), platform="cpu")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            import pathways
            jax.numpy.ones(3).block_until_ready()
        print([str(w.message) for w in caught if "other_major" in str(w.message)])
        """,
        backend=None,
    )
    assert "XLA FFI 7.3" in done.stdout and "cannot be used on Pathways devices" in done.stdout
