"""The life of arrays: copies, sharing, donation, memories, DLPack, deletion."""

import gc
import pickle
import weakref

import fresh
import jax
import jax.numpy as jnp
import numpy as np
import pathways  # noqa: F401
import pytest
from jax.sharding import Mesh, NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P

pytestmark = pytest.mark.versions

pointer = pytest.mark.embedded("reads the address of an array")
external = pytest.mark.embedded("shares an array's memory")


def aligned(count, offset=0, dtype=np.float32, boundary=64):
    """Returns an array that begins offset bytes past a boundary; XLA's CPU client aliases host memory aligned to 64."""
    raw = np.zeros(count * np.dtype(dtype).itemsize + 2 * boundary, np.uint8)
    skip = -raw.ctypes.data % boundary + offset
    return raw[skip : skip + count * np.dtype(dtype).itemsize].view(dtype)


def address(view):
    return view.__array_interface__["data"][0]


@pointer
def test_numpy_reads_without_a_copy():
    x = jnp.arange(1024.0) + 0
    view = np.asarray(x)
    assert address(view) == x.unsafe_buffer_pointer()
    assert not view.flags.writeable
    assert address(np.array(x)) != x.unsafe_buffer_pointer()


@pointer
def test_device_put_of_aligned_memory_makes_no_copy():
    host = aligned(4096)
    host[:] = np.arange(4096)
    x = jax.device_put(host, jax.devices()[3], may_alias=True)
    assert x.unsafe_buffer_pointer() == address(host)
    np.testing.assert_array_equal(np.asarray(x), host)


@pointer
def test_device_put_of_unaligned_memory_copies():
    host = aligned(4096, offset=4)
    x = jax.device_put(host, jax.devices()[3], may_alias=True)
    assert x.unsafe_buffer_pointer() != address(host)
    host[:] = 5  # the copy is ours
    assert float(x.sum()) == 0


@pytest.mark.embedded("the memory of devices is that of this process")
def test_memory_of_cpu_devices_is_kept_for_the_next_arrays():
    # What malloc maps by itself goes back to the system with each free, and its pages are faulted in again.
    script = """
        import ctypes
        import jax
        libc = ctypes.CDLL(None)
        class Info(ctypes.Structure):  # of glibc: the number of mapped blocks is the fourth
            _fields_ = [(f"field{i}", ctypes.c_size_t) for i in range(10)]
        if not hasattr(libc, "mallinfo2"):
            raise SystemExit(print("another libc"))
        libc.mallinfo2.restype, libc.malloc.restype = Info, ctypes.c_void_p
        libc.malloc.argtypes = [ctypes.c_size_t]
        def mapped(size):
            before = libc.mallinfo2().field3
            assert libc.malloc(size)
            return libc.mallinfo2().field3 - before
        first = mapped(24 << 20)
        jax.devices()
        print(first, mapped(24 << 20), mapped(64 << 20))
    """
    said = fresh.run(script).stdout.strip()
    if said == "another libc":
        pytest.skip("glibc alone tells how it allocates")
    assert said == "1 0 1"  # before there is a device; with devices; above what glibc keeps


@pointer
def test_an_explicit_copy_keeps_the_values_of_the_call():
    host = aligned(1 << 16)
    host[:] = 1
    x = jnp.array(host)
    host[:] = 2
    assert x.unsafe_buffer_pointer() != address(host)
    assert float(x.sum()) == 1 << 16


def test_a_view_outlives_its_array():
    x = jnp.arange(1000.0) * 2
    view = np.asarray(x)
    del x
    gc.collect()
    for _ in range(50):  # memory given back too soon would be written over here
        (jnp.zeros(1000) + 1).block_until_ready()
    np.testing.assert_array_equal(view, np.arange(1000.0) * 2)


@pointer
def test_aliased_host_memory_lives_as_long_as_the_array():
    host = aligned(4096)
    host[:] = 9
    gone = weakref.ref(host.base)
    x = jax.device_put(host, may_alias=True)
    assert x.unsafe_buffer_pointer() == address(host)
    del host
    gc.collect()
    assert gone() is not None and float(x.sum()) == 9 * 4096
    x.delete()
    # JAX drops such references when it next enters the client.
    jnp.zeros(1).block_until_ready()
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("order", ["C", "F", "strided", "reversed", "broadcast"])
def test_device_put_of_any_strides(order):
    base = np.arange(24, dtype=np.float32).reshape(4, 6)
    host = {
        "C": base,
        "F": np.asfortranarray(base),
        "strided": base[::2, 1::2],
        "reversed": base[::-1, ::-1],
        "broadcast": np.broadcast_to(base[0], (3, 6)),
    }[order]
    x = jax.device_put(host, jax.devices()[4])
    np.testing.assert_array_equal(np.asarray(x), host)
    np.testing.assert_array_equal(np.asarray(jax.jit(lambda v: v + 1)(x)), host + 1)


@pointer
def test_donation_reuses_the_memory_and_ends_the_input():
    x = jnp.arange(4096.0) + 0
    place = x.unsafe_buffer_pointer()
    y = jax.jit(lambda v: v + 1, donate_argnums=0)(x)
    assert x.is_deleted()
    assert y.unsafe_buffer_pointer() == place
    with pytest.raises(RuntimeError, match="deleted|donated"):
        np.asarray(x)
    with pytest.raises((RuntimeError, ValueError), match="deleted|donated"):
        jax.jit(lambda v: v * 2)(x)
    np.testing.assert_array_equal(np.asarray(y), np.arange(4096.0) + 1)


@pointer
def test_donation_does_not_happen_under_a_numpy_view():
    x = jnp.arange(4096.0) + 0
    view = np.asarray(x)
    y = jax.jit(lambda v: v + 1, donate_argnums=0)(x)
    y.block_until_ready()
    np.testing.assert_array_equal(view, np.arange(4096.0))
    np.testing.assert_array_equal(np.asarray(y), np.arange(4096.0) + 1)
    assert y.unsafe_buffer_pointer() != address(view)


def test_one_array_given_twice_is_not_donated_half():
    x = jnp.arange(16.0)
    f = jax.jit(lambda a, b: (a + b, b), donate_argnums=0)
    with pytest.raises((ValueError, RuntimeError), match="INVALID_ARGUMENT.*donate"):
        f(x, x)
    # Refused before anything ran: the array is whole.
    np.testing.assert_array_equal(np.asarray(x), np.arange(16.0))


@pointer
def test_a_donated_loop_state_does_not_grow():
    step = jax.jit(lambda s: {"w": s["w"] * 0.5, "n": s["n"] + 1}, donate_argnums=0)
    state = {"w": jnp.ones(1 << 16), "n": jnp.int32(0)}
    place = state["w"].unsafe_buffer_pointer()
    for _ in range(50):
        state = step(state)
    assert int(state["n"]) == 50 and state["w"].unsafe_buffer_pointer() == place


def test_deleted_arrays_refuse_every_use():
    x = jnp.arange(8.0)
    x.delete()
    assert x.is_deleted()
    x.delete()  # twice is fine
    for use in (lambda: np.asarray(x), lambda: x + 1, lambda: jax.device_put(x, jax.devices()[1]), x.block_until_ready):
        with pytest.raises((RuntimeError, ValueError), match="deleted"):
            use()


def test_delete_while_work_still_reads():
    a = jnp.ones((512, 512)) * 0.01
    y = jax.jit(lambda v: jax.lax.fori_loop(0, 30, lambda _, w: jnp.tanh(w @ v), v))(a)
    host = np.array(a)
    a.delete()
    want = host
    for _ in range(30):
        want = np.tanh(want @ host)
    np.testing.assert_allclose(np.asarray(y), want, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("kind", ["device", "pinned_host", "unpinned_host"])
def test_arrays_go_to_each_memory_of_a_device_and_back(kind):
    d = jax.devices()[2]
    assert kind in {m.kind for m in d.addressable_memories()}
    there = SingleDeviceSharding(d, memory_kind=kind)
    host = np.arange(32, dtype=np.float32)
    x = jax.device_put(host, there)
    assert x.sharding.memory_kind == kind
    np.testing.assert_array_equal(np.asarray(x), host)
    back = jax.device_put(x, SingleDeviceSharding(d, memory_kind="device"))
    np.testing.assert_array_equal(np.asarray(back * 2), host * 2)
    assert d.default_memory().kind == "device"


def test_a_sharded_array_in_pinned_memory():
    mesh = Mesh(np.array(jax.devices()), ("x",))
    host = np.arange(64, dtype=np.float32).reshape(8, 8)
    x = jax.device_put(host, NamedSharding(mesh, P("x"), memory_kind="pinned_host"))
    assert x.sharding.memory_kind == "pinned_host"
    y = jax.device_put(x, NamedSharding(mesh, P("x"), memory_kind="device"))
    np.testing.assert_array_equal(np.asarray(jax.jit(lambda v: v @ v)(y)), host @ host)


@external
def test_dlpack_and_the_buffer_protocol_share_memory():
    x = jnp.arange(64.0) + 0
    view = np.from_dlpack(x)
    assert address(view) == x.unsafe_buffer_pointer()
    del x
    gc.collect()
    np.testing.assert_array_equal(view, np.arange(64.0))
    y = jnp.arange(8.0) + 0
    memory = memoryview(y)
    assert bytes(memory) == np.arange(8, dtype=np.float32).tobytes()
    host = aligned(128)
    host[:] = 3
    z = jax.dlpack.from_dlpack(host)
    np.testing.assert_array_equal(np.asarray(jax.device_put(z, jax.devices()[1])), host)


def test_dlpack_keeps_a_sharded_array_refused():
    x = jax.device_put(np.zeros(8), NamedSharding(Mesh(np.array(jax.devices()), ("x",)), P("x")))
    with pytest.raises((BufferError, ValueError), match="shard|device"):
        np.from_dlpack(x)


@external
def test_dlpack_capsules_never_consumed_are_freed():
    x = jnp.arange(1 << 18, dtype=jnp.float32) + 0
    for _ in range(100):
        x.__dlpack__()
    gc.collect()
    y = jax.jit(lambda v: v + 1, donate_argnums=0)(x)  # a leaked capsule would hold the memory
    assert x.is_deleted() and float(y[0]) == 1


def test_copy_to_host_async_and_many_readers():
    xs = [jax.device_put(np.full(1000, i, np.float32), d) + 0 for i, d in enumerate(jax.devices())]
    for x in xs:
        x.copy_to_host_async()
        x.copy_to_host_async()
    assert [float(np.asarray(x)[0]) for x in xs] == list(range(8))


def test_pickled_and_copied_arrays_outlive_the_first():
    import copy

    x = jnp.asarray([1, 2, 3], dtype=jnp.bfloat16)
    for y in (pickle.loads(pickle.dumps(x)), copy.deepcopy(x), copy.copy(x), x.copy()):
        assert y.dtype == x.dtype
        np.testing.assert_array_equal(np.asarray(y), np.asarray(x))
    x.delete()
    np.testing.assert_array_equal(np.asarray(y), np.asarray([1, 2, 3], jnp.bfloat16))


def test_live_arrays_are_counted_and_go():
    gc.collect()
    before = {id(a) for a in jax.live_arrays()}
    x = jnp.arange(5.0)
    assert [a for a in jax.live_arrays() if id(a) not in before][0] is x
    del x
    gc.collect()
    assert all(id(a) in before for a in jax.live_arrays())


def test_scalars_and_arrays_between_clients():
    stock = jax.devices("cpu")[0]
    x = jax.device_put(np.arange(10.0, dtype=np.float32), jax.devices()[1])
    y = jax.device_put(x, stock)
    assert y.devices() == {stock}
    z = jax.device_put(y + 1, jax.devices()[2])
    assert z.devices() == {jax.devices()[2]}
    np.testing.assert_array_equal(np.asarray(z), np.arange(10.0) + 1)


def test_transfer_guard_sees_transfers_in():
    with jax.transfer_guard("disallow"), pytest.raises(Exception, match="[Dd]isallowed"):
        jnp.sin(np.arange(3.0))
    x = jnp.arange(3.0)
    with jax.transfer_guard("disallow"):
        jax.block_until_ready(jax.device_put(np.arange(3.0)))  # explicit ones are allowed
    assert float(x[2]) == 2
