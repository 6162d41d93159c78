"""Host callbacks inside programs on Pathways devices: functions of the user's Python.

Everything here works, or fails, as it does on JAX's own CPU client.
"""

import threading

import fresh
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.experimental import io_callback
from jax.experimental.buffer_callback import buffer_callback
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from pathways import _ffi
from together import together

pytestmark = pytest.mark.newest

F32 = jnp.float32
in_place = pytest.mark.embedded("a buffer_callback reads and writes the memory of the device")


def shape(*dims, dtype=F32):
    return jax.ShapeDtypeStruct(dims, dtype)


def pure(function, result, *args):
    return jax.jit(lambda *xs: jax.pure_callback(function, result, *xs))(*args)


# --- pure_callback ---

DTYPES = """
    bool int8 int16 int32 uint8 uint16 uint32 float16 float32 complex64 bfloat16 int2 uint2 int4 uint4
    float4_e2m1fn float8_e3m4 float8_e4m3 float8_e4m3fn float8_e4m3b11fnuz float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz
    float8_e8m0fnu
"""


@pytest.mark.parametrize("name", DTYPES.split())
def test_callback_sees_and_gives_every_dtype(name):
    dtype = np.dtype(getattr(ml_dtypes, name, name))
    # Five elements: those narrower than a byte end inside one.
    x = np.asarray([1, 0, 1, 1, -2 if name.startswith("int") else 1]).astype(dtype)
    seen = []

    def callback(v):
        seen.append(np.asarray(v))
        return np.asarray(v)[::-1]

    y = np.asarray(pure(callback, shape(5, dtype=dtype), x))
    assert seen[0].dtype == y.dtype == dtype
    # As bytes: one of these types has no zero, but a NaN in its place.
    assert seen[0].tobytes() == x.tobytes()
    assert y.tobytes() == x[::-1].tobytes()


def test_callback_sees_and_gives_64_bit_dtypes():
    with jax.enable_x64(True):
        for dtype in (np.int64, np.uint64, np.float64, np.complex128):
            x = np.asarray([1, 2**40], dtype)
            y = pure(lambda v: np.asarray(v) + 1, shape(2, dtype=dtype), x)
            assert y.dtype == dtype
            np.testing.assert_array_equal(y, x + 1)


def test_callback_with_empty_scalar_and_many_arrays():
    result = (shape(0, 3), shape(), shape(2, 2, dtype=jnp.int8))
    empty, scalar, ones = pure(
        lambda v, w, *rest: (np.asarray(v).T, np.asarray(w) + len(rest), np.ones((2, 2), np.int8)),
        result,
        jnp.zeros((3, 0)),
        F32(1),
        *[jnp.ones((1, 1, 1, 1)) for _ in range(100)],
    )
    assert empty.shape == (0, 3)
    assert scalar == 101
    np.testing.assert_array_equal(ones, np.ones((2, 2), np.int8))


def test_result_may_have_any_strides():
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    np.testing.assert_array_equal(pure(lambda v: np.asarray(v).T, shape(4, 3), x), x.T)
    rows = pure(lambda v: np.broadcast_to(np.asarray(v)[:1], (3, 4)), shape(3, 4), x)
    np.testing.assert_array_equal(rows, x[[0, 0, 0]])


@pytest.mark.parametrize("size", [4, 100_000])
def test_arguments_that_the_callback_keeps_stay_as_they_were(size):
    kept = []

    def keep(v):
        kept.append(v)
        return np.asarray(v)

    f = jax.jit(lambda x: jax.pure_callback(keep, shape(size), x * 2) + 1)
    for i in range(20):
        f(jnp.full(size, i, F32)).block_until_ready()
    assert [(float(v[0]), float(v[-1])) for v in kept] == [(2 * i, 2 * i) for i in range(20)]


def test_callback_under_vmap_grad_and_scan():
    def square(x):
        return jax.pure_callback(lambda v: np.asarray(v) ** 2, shape(), x, vmap_method="sequential")

    np.testing.assert_array_equal(jax.vmap(square)(jnp.arange(4.0)), np.arange(4.0) ** 2)
    total, _ = jax.lax.scan(lambda carry, x: (carry + square(x), None), F32(0), jnp.arange(5.0))
    assert total == 30

    @jax.custom_jvp
    def sine(x):
        return jax.pure_callback(lambda v: np.sin(np.asarray(v)), shape(), x)

    sine.defjvp(lambda primals, tangents: (sine(*primals), jnp.cos(primals[0]) * tangents[0]))
    assert jax.jit(jax.grad(sine))(F32(0)) == 1


def test_callback_of_a_sharded_array(devices):
    mesh = Mesh(np.asarray(devices), ("x",))
    x = jax.device_put(jnp.arange(8.0), NamedSharding(mesh, PartitionSpec("x")))
    np.testing.assert_array_equal(pure(lambda v: np.asarray(v) * 3, shape(8), x), np.arange(8.0) * 3)
    each = jax.shard_map(
        lambda v: jax.pure_callback(lambda w: np.asarray(w) + 1, shape(1), v),
        mesh=mesh,
        in_specs=PartitionSpec("x"),
        out_specs=PartitionSpec("x"),
    )
    np.testing.assert_array_equal(jax.jit(each)(x), np.arange(8.0) + 1)


def test_callback_may_run_programs_on_the_same_devices(devices):
    inner = jax.jit(lambda v: v * 10)

    def callback(v):
        return np.asarray(inner(jax.device_put(np.asarray(v), devices[0])))

    f = jax.jit(lambda x: jax.pure_callback(callback, shape(3), x + 1) + 1)
    for _ in range(5):
        np.testing.assert_array_equal(f(jnp.zeros(3)), [11, 11, 11])


def test_callbacks_of_many_threads():
    f = jax.jit(lambda x: jax.pure_callback(lambda v: np.asarray(v) + 1, shape(100), x))

    def work(k):
        for i in range(20):
            np.testing.assert_array_equal(f(jnp.full(100, 100 * k + i, F32)), np.full(100, 100 * k + i + 1))

    together(work, range(6))


# --- errors in callbacks ---


class Oddity(Exception):
    def __str__(self):
        return "odd: ü\0 and more"


@pytest.mark.parametrize(
    ("kind", "arguments", "text"),
    [
        (ValueError, ("bad thing",), "ValueError: bad thing"),
        (SystemExit, (3,), "SystemExit: 3"),
        (Oddity, (), "odd: ü\\0 and more"),
    ],
)
def test_exception_in_a_callback_is_the_programs_error(kind, arguments, text):
    def callback(v):
        raise kind(*arguments)

    f = jax.jit(lambda x: jax.pure_callback(callback, shape(3), x))
    for _ in range(2):
        # JAX's fast path raises ValueError, on its own CPU client too.
        with pytest.raises((jax.errors.JaxRuntimeError, ValueError)) as caught:
            f(jnp.ones(3)).block_until_ready()
        assert "INTERNAL: CpuCallback error calling callback: Traceback" in str(caught.value)
        assert f"{text} [jit__lambda, called at {__file__}:" in str(caught.value)
        assert "in callback" in str(caught.value)  # the user's frame
        assert "_trampoline" not in str(caught.value)
    np.testing.assert_array_equal(pure(np.asarray, shape(3), jnp.ones(3)), np.ones(3))


def test_callback_that_fails_once_in_a_while():
    def callback(v):
        if v[0] == 3:
            raise LookupError("not three")
        return np.asarray(v)

    f = jax.jit(lambda x: jax.pure_callback(callback, shape(2), x))
    for i in range(6):
        if i == 3:
            # JAX's fast path raises ValueError, on its own CPU client too.
            with pytest.raises((jax.errors.JaxRuntimeError, ValueError), match="LookupError: not three"):
                f(jnp.full(2, F32(i))).block_until_ready()
        else:
            np.testing.assert_array_equal(f(jnp.full(2, F32(i))), [i, i])


@pytest.mark.parametrize(
    ("gives", "text"),
    [
        (lambda v: np.zeros(2, np.float32), r"Expected: \(3,\), Actual: \(2,\)"),
        (lambda v: np.zeros(3, np.int32), "Expected: float32, Actual: int32"),
        (lambda v: (np.zeros(3, np.float32),) * 2, "Mismatched number of outputs"),
    ],
)
def test_wrong_result_of_a_callback_is_an_error(gives, text):
    with pytest.raises(jax.errors.JaxRuntimeError, match=text):
        pure(gives, shape(3), jnp.ones(3)).block_until_ready()


def test_results_are_checked_once_more_before_they_are_written():
    memory = np.zeros(4, np.float32)
    place = (11, memory.ctypes.data, (4,))
    with pytest.raises(TypeError, match=r"result 1 of the callback is float32\[5\]; expected float32\[4\]"):
        _ffi._write(*place, np.ones(5, np.float32), 1)
    with pytest.raises(TypeError, match="float64"):
        _ffi._write(*place, np.ones(4), 1)
    assert not memory.any()
    words = (0, 2, 11, memory.ctypes.data, 1, 4, 11, memory.ctypes.data, 1, 4)
    with pytest.raises(TypeError, match="expected a tuple of 2 results"):
        _ffi._call(lambda: (memory,), words)
    with pytest.raises(TypeError, match="returned a list"):
        _ffi._call(lambda: [memory, memory], words)
    with pytest.raises(TypeError, match="data type 99"):
        _ffi._write(99, memory.ctypes.data, (4,), memory, 0)


@pytest.mark.parametrize("bits", [1, 2, 4])
@pytest.mark.parametrize("count", [0, 1, 7, 8, 9])
def test_narrow_elements_are_packed_lowest_first(bits, count):
    elements = np.random.default_rng(0).integers(0, 1 << bits, count, dtype=np.uint8)
    packed = _ffi._pack(elements, bits)
    number = int.from_bytes(packed.tobytes(), "little")
    assert [number >> (bits * i) & ((1 << bits) - 1) for i in range(count)] == elements.tolist()
    np.testing.assert_array_equal(_ffi._unpack(packed, bits, count), elements)


def test_memory_of_large_arguments_is_kept_within_a_limit():
    idle, limit = _ffi._Memory._idle, _ffi._Memory.IDLE_LIMIT
    source = np.arange(limit // 4 + 1000, dtype=np.uint8)
    copies = [_ffi._Memory.copy(source.ctypes.data, limit // 4 + i) for i in range(8)]
    assert all(c.ctypes.data % 64 == 0 and not c.flags.writeable for c in copies)
    np.testing.assert_array_equal(copies[3], source[: limit // 4 + 3])
    view = copies[3][10:20]
    del copies
    assert 0 < sum(size * len(blocks) for size, blocks in idle.items()) <= limit
    np.testing.assert_array_equal(view, source[10:20])
    again = _ffi._Memory.copy(source[::-1].copy().ctypes.data, limit // 4 + 3)  # its memory is still the view's
    np.testing.assert_array_equal(view, source[10:20])
    del again, view
    idle.clear()


def test_callback_of_a_program_from_elsewhere_is_an_error(devices):
    """Text of a program names a callback by its number alone; here no function comes with it."""
    from jax._src import compiler
    from jax._src.interpreters import mlir
    from jax._src.lib.mlir import ir
    from jaxlib import _jax

    text = """
        func.func public @main(%x: tensor<3xf32>) -> tensor<3xf32> {
          %y = stablehlo.custom_call @xla_ffi_python_cpu_callback(%x)
              {api_version = 4 : i32, backend_config = {index = 0 : ui64}} : (tensor<3xf32>) -> tensor<3xf32>
          return %y : tensor<3xf32>
        }"""
    with mlir.make_ir_context():
        options = compiler.get_compile_options(num_replicas=1, num_partitions=1)
        executable = devices[0].client.compile_and_load(
            ir.Module.parse(text), _jax.DeviceList((devices[0],)), options, []
        )
    with pytest.raises((jax.errors.JaxRuntimeError, ValueError), match="host callback 0 has no Python function"):
        results = executable.execute_sharded([jax.device_put(jnp.ones(3), devices[0])])
        np.asarray(results.disassemble_into_single_device_arrays()[0][0])


# --- io_callback and debug ---


def test_ordered_callbacks_run_in_order():
    log = []

    @jax.jit
    def f(x):
        io_callback(lambda v: log.append(("a", int(v))), None, x, ordered=True)
        io_callback(lambda v: log.append(("b", int(v))), None, x, ordered=True)
        return io_callback(lambda v: np.asarray(v) + 1, shape(dtype=jnp.int32), x, ordered=True)

    assert [int(f(i)) for i in range(5)] == [1, 2, 3, 4, 5]
    jax.effects_barrier()
    assert log == [(letter, i) for i in range(5) for letter in "ab"]


def test_unordered_callback_gives_its_result():
    f = jax.jit(lambda x: io_callback(lambda v: np.asarray(v) * 2, shape(3), x))
    np.testing.assert_array_equal(f(jnp.ones(3)), [2, 2, 2])


def test_ordered_callback_that_fails_leaves_the_next_program_alone():
    def boom(v):
        raise ValueError("ordered and bad")

    with pytest.raises(jax.errors.JaxRuntimeError, match="ordered and bad"):
        jax.jit(lambda x: io_callback(boom, None, x, ordered=True))(1)
        jax.effects_barrier()
    seen = []
    try:
        jax.jit(lambda x: io_callback(lambda v: seen.append(int(v)), None, x, ordered=True))(2)
    except jax.errors.JaxRuntimeError:  # JAX reports the token of the failed program once more
        jax.jit(lambda x: io_callback(lambda v: seen.append(int(v)), None, x, ordered=True))(2)
    jax.effects_barrier()
    assert seen == [2]


def test_debug_print_prints(capfd):
    jax.jit(lambda x: (jax.debug.print("value {x}", x=x), x + 1)[1])(jnp.ones(2))
    jax.debug.print("eager {x}", x=jnp.int32(7))
    jax.effects_barrier()
    assert {"value [1. 1.]", "eager 7"} <= set(capfd.readouterr().out.splitlines())


def test_debug_print_of_every_shard(devices, capfd):
    mesh = Mesh(np.asarray(devices), ("x",))

    def body(x):
        jax.debug.print("shard {x}", x=x[0])
        return x + 1

    spec = PartitionSpec("x")
    y = jax.jit(jax.shard_map(body, mesh=mesh, in_specs=spec, out_specs=spec))(jnp.arange(8.0))
    np.testing.assert_array_equal(y, np.arange(8.0) + 1)
    jax.effects_barrier()
    assert sorted(capfd.readouterr().out.splitlines()) == [f"shard {i}.0" for i in range(8)]


# --- buffer_callback, dce_sink ---


@in_place
def test_buffer_callback_writes_in_place():
    def callback(ctx, out, x):
        np.asarray(out)[...] = np.asarray(x) + 1

    f = jax.jit(buffer_callback(callback, shape(3)))
    np.testing.assert_array_equal(f(jnp.ones(3)), [2, 2, 2])


@in_place
def test_buffer_callbacks_stream_says_what_it_says_on_the_cpu():
    said = []

    def callback(ctx, out, x):
        try:
            said.append(ctx.stream)
        except jax.errors.JaxRuntimeError as error:
            said.append(str(error))
        np.asarray(out)[...] = 5

    np.testing.assert_array_equal(jax.jit(buffer_callback(callback, shape(3)))(jnp.ones(3)), [5, 5, 5])
    assert said == ["UNIMPLEMENTED: XLA FFI GPU context is not available"]

    def careless(ctx, out, x):
        _ = ctx.stream

    with pytest.raises(jax.errors.JaxRuntimeError, match="XLA FFI GPU context is not available"):
        jax.jit(buffer_callback(careless, shape(3)))(jnp.ones(3)).block_until_ready()


@in_place
def test_exception_in_a_buffer_callback():
    def callback(ctx, out, x):
        raise RuntimeError("in a buffer callback")

    with pytest.raises(jax.errors.JaxRuntimeError, match="in a buffer callback"):
        jax.jit(buffer_callback(callback, shape(3)))(jnp.ones(3)).block_until_ready()


def test_dce_sink_runs():
    from jax._src.lax.lax import dce_sink

    f = jax.jit(lambda x: (dce_sink(x * 2), x + 1)[1])
    np.testing.assert_array_equal(f(jnp.ones(3)), [2, 2, 2])


# --- the process ---


@pytest.mark.parametrize("end", ["pass", "raise SystemExit(0)", "jax.effects_barrier()"])
def test_process_that_ends_with_callbacks_in_flight(end):
    done = fresh.run(
        f"""
        import sys, time, jax, jax.numpy as jnp, numpy as np
        from jax.experimental import io_callback
        def slow(v):
            time.sleep(0.05)
            sys.stdout.write("ran\\n")
        f = jax.jit(lambda x: (io_callback(slow, None, x), x + 1)[1])
        for i in range(10):
            f(jnp.float32(i))
        {end}
        """
    )
    # As with stock JAX, the effects of what was submitted happen.
    assert done.stdout.count("ran") == 10
    assert "Traceback" not in done.stderr, done.stderr


def test_process_that_ends_with_callbacks_waiting_on_eight_devices():
    """JAX's own CPU client crashes here: its threads call into a Python that has gone."""
    for _ in range(3):
        done = fresh.run(
            """
            import time, jax, jax.numpy as jnp, numpy as np
            from jax.sharding import Mesh, NamedSharding, PartitionSpec
            mesh, spec = Mesh(np.asarray(jax.devices()), ("x",)), PartitionSpec("x")
            def slow(v):
                time.sleep(0.003)
                return np.asarray(v)
            def each(v):
                return jax.pure_callback(slow, jax.ShapeDtypeStruct((2,), np.float32), v)
            f = jax.jit(jax.shard_map(each, mesh=mesh, in_specs=spec, out_specs=spec))
            x = f(jax.device_put(jnp.zeros(16), NamedSharding(mesh, spec)))
            for _ in range(20):
                x = f(x)
            """
        )
        assert "Fatal" not in done.stderr, done.stderr


def test_nothing_enters_python_once_it_is_closed():
    done = fresh.run(
        """
        import jax, jax.numpy as jnp, numpy as np
        f = jax.jit(lambda x: jax.pure_callback(lambda v: np.asarray(v), jax.ShapeDtypeStruct((3,), np.float32), x))
        f(jnp.ones(3)).block_until_ready()
        assert pathways._native.load().pathways_ffi_close(100_000) == 0
        try:
            f(jnp.ones(3)).block_until_ready()
        except (jax.errors.JaxRuntimeError, ValueError) as error:
            print(error)
        """
    )
    assert "Python is exiting" in done.stdout


def test_debug_callbacks_in_shard_map_and_of_whole_arrays(devices):
    mesh = Mesh(np.asarray(devices), ("x",))
    x = jax.device_put(jnp.arange(8.0), NamedSharding(mesh, PartitionSpec("x")))
    seen, lock = [], threading.Lock()

    def see(v):
        with lock:
            seen.append(np.asarray(v).tolist())

    def each(v):
        jax.debug.callback(see, v, partitioned=True)
        return v

    spec = PartitionSpec("x")
    jax.jit(jax.shard_map(each, mesh=mesh, in_specs=spec, out_specs=spec))(x).block_until_ready()
    jax.effects_barrier()
    assert sorted(seen) == [[i] for i in range(8)]
    seen.clear()
    jax.jit(lambda v: (jax.debug.callback(see, v), v)[1])(x).block_until_ready()
    jax.effects_barrier()
    assert seen == [list(range(8))]
    shardings = []
    jax.debug.inspect_array_sharding(jax.jit(lambda v: v * 2)(x), callback=shardings.append)
    assert shardings[0].is_equivalent_to(x.sharding, 1)


@pytest.mark.embedded("on a cluster, the call of the program itself waits for its callbacks")
def test_an_error_does_not_wait_for_a_callback_of_another_device(devices):
    """A run's own error is told while the run that made its input is still in a callback on a second device."""
    go, told = threading.Event(), []

    def stays(x):
        if x[0]:
            told.append(go.wait(60))
        return x

    mesh = Mesh(np.array(devices[:2]), "d")
    both = jax.shard_map(
        lambda x: jax.pure_callback(stays, shape(2), x),
        mesh=mesh,
        in_specs=PartitionSpec("d"),
        out_specs=PartitionSpec("d"),
        check_vma=False,
    )
    fails = jax.jit(lambda x: (x + 1, jnp.zeros(2**39, "f") + x[0]))  # 2 TiB
    y = jax.jit(both)(jax.device_put(np.array([0, 0, 1, 1], "f"), NamedSharding(mesh, PartitionSpec("d"))))
    try:
        with pytest.raises((jax.errors.JaxRuntimeError, ValueError), match="RESOURCE_EXHAUSTED.*called at"):
            first = next(shard.data for shard in y.addressable_shards if shard.device == devices[0])
            fails(first)[0].block_until_ready()
        assert not told
    finally:
        go.set()
    assert np.array_equal(y, [0, 0, 1, 1]) and told == [True]
