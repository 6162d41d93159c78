"""Arrow data in and out: values, addresses, lifetimes, refusals, and inconsistent data."""

import ctypes
import gc

import jax
import numpy as np
import pathways
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import NamedSharding, PartitionSpec
from pathways import _arrow
from together import together

on_host = pytest.mark.embedded("looks at the memory of devices")


@pytest.fixture(autouse=True)
def nothing_kept():
    """Every struct that was exported has been released, once."""
    yield
    gc.collect()
    assert _arrow.lent() == 0


@pytest.fixture
def pa():
    return pytest.importorskip("pyarrow")


def aligned(pa, dtype, count):
    """Returns a NumPy array and an Arrow array of the same, aligned, bytes."""
    host = np.frombuffer(pa.allocate_buffer(max(64, count * np.dtype(dtype).itemsize)), np.uint8)
    host = host[: count * np.dtype(dtype).itemsize].view(dtype)
    host[:] = np.arange(count)
    return host, pa.Array.from_buffers(pa.from_numpy_dtype(dtype), count, [None, pa.py_buffer(host)])


def available() -> float:
    """Returns how much memory there is to be had, in GiB."""
    with open("/proc/meminfo") as f:
        return next(int(line.split()[1]) for line in f if line.startswith("MemAvailable")) / 2**20


def address(x):
    return x.unsafe_buffer_pointer()


# --- values ---

DTYPES = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "float16", "float32", "bool"]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(0,), (1,), (7,), (5, 3), (2, 0, 3), (0, 4), (2, 3, 4, 5)])
@pytest.mark.newest
def test_arrays_keep_their_values_through_arrow(dtype, shape):
    x = jax.device_put(np.arange(np.prod(shape)).reshape(shape).astype(dtype))
    back = pathways.from_arrow(pathways.to_arrow(x))
    assert back.dtype == dtype and back.shape == shape
    np.testing.assert_array_equal(back, x)
    del x, back


@pytest.mark.parametrize("dtype", ["int64", "uint64", "float64"])
@pytest.mark.newest
def test_64_bits_follow_jax(dtype):
    host = np.arange(5, dtype=dtype)
    assert pathways.from_arrow(pathways.to_arrow(host)).dtype == jax.numpy.asarray(host).dtype
    with jax.enable_x64(True):
        back = pathways.from_arrow(pathways.to_arrow(host))
        assert back.dtype == dtype
        np.testing.assert_array_equal(back, host)


@pytest.mark.parametrize("dtype", [d for d in DTYPES if d != "bool"])
def test_pyarrow_sees_the_same(pa, dtype):
    x = jax.device_put(np.arange(24).astype(dtype))
    out = pa.array(pathways.to_arrow(x))
    out.validate(full=True)
    assert out.type == pa.from_numpy_dtype(dtype)
    np.testing.assert_array_equal(out.to_numpy(), x)
    tensor = pa.array(pathways.to_arrow(x.reshape(2, 3, 4)))
    tensor.validate(full=True)
    assert tensor.type.shape == [3, 4]
    np.testing.assert_array_equal(tensor.to_numpy_ndarray(), np.asarray(x).reshape(2, 3, 4))


@pytest.mark.parametrize("start", [0, 1, 7, 8, 9, 63])
def test_slices_that_begin_inside_a_byte_keep_their_bits(pa, start):
    bits = np.random.default_rng(0).integers(0, 2, 100).astype(bool)
    np.testing.assert_array_equal(pathways.from_arrow(pa.array(bits)[start:]), bits[start:])
    np.testing.assert_array_equal(pathways.from_arrow(pa.array(bits)[start : start + 5]), bits[start : start + 5])
    numbers = np.arange(100, dtype=np.int16)
    np.testing.assert_array_equal(pathways.from_arrow(pa.array(numbers)[start:]), numbers[start:])
    lists = pa.FixedSizeListArray.from_arrays(pa.array(np.arange(300, dtype=np.float32)), 3)
    np.testing.assert_array_equal(pathways.from_arrow(lists[start:]), np.arange(300).reshape(100, 3)[start:])
    flags = pa.FixedSizeListArray.from_arrays(pa.array(np.tile(bits, 3)), 3)
    np.testing.assert_array_equal(pathways.from_arrow(flags[start:]), np.tile(bits, 3).reshape(100, 3)[start:])


def test_bytes_at_odd_addresses_are_copied(pa):
    raw = pa.py_buffer(b"\0" + np.arange(9, dtype=np.float32).tobytes())
    x = pa.Array.from_buffers(pa.float32(), 9, [None, raw.slice(1)])
    np.testing.assert_array_equal(pathways.from_arrow(x), np.arange(9))
    with pytest.raises(pathways.PathwaysError, match="FAILED_PRECONDITION.*without a copy"):
        pathways.from_arrow(x, zero_copy=True)


def test_lists_of_lists_and_permuted_tensors(pa):
    host = np.arange(48, dtype=np.int32)
    inner = pa.FixedSizeListArray.from_arrays(pa.array(host), 4)
    np.testing.assert_array_equal(
        pathways.from_arrow(pa.FixedSizeListArray.from_arrays(inner, 3)[1:]), host.reshape(4, 3, 4)[1:]
    )
    kind = pa.fixed_shape_tensor(pa.int32(), [2, 3, 4], permutation=[2, 0, 1])
    tensors = pa.ExtensionArray.from_storage(kind, pa.FixedSizeListArray.from_arrays(pa.array(host), 24))
    np.testing.assert_array_equal(pathways.from_arrow(tensors), host.reshape(2, 2, 3, 4).transpose(0, 3, 1, 2))


def test_record_batches_are_dictionaries(pa, devices):
    batch = pa.record_batch({"x": pa.array(np.arange(16, dtype=np.float32)), "y": pa.array([True, False] * 8)})
    mesh = jax.make_mesh((4,), ("d",), devices=devices[:4], axis_types=(jax.sharding.AxisType.Auto,))
    cut = NamedSharding(mesh, PartitionSpec("d"))
    out = pathways.from_arrow(batch, {"x": cut, "y": devices[5]})
    assert list(out) == ["x", "y"] and out["x"].sharding == cut and out["y"].devices() == {devices[5]}
    np.testing.assert_array_equal(out["x"], np.arange(16))
    back = pa.record_batch(pathways.to_arrow(out))
    back.validate(full=True)
    assert back.to_pydict() == batch.to_pydict()
    np.testing.assert_array_equal(pathways.from_arrow(batch.slice(3, 5))["x"], np.arange(3, 8))
    assert pathways.from_arrow(pathways.to_arrow({})) == {}


@pytest.mark.parametrize("dtype", ["bool", "int8", "float16", "float32", "float64", "bfloat16"])
@pytest.mark.newest
def test_arrays_are_those_of_device_put(devices, dtype):
    def same(x, y):
        assert (x.aval, x.sharding, x.committed, x.weak_type) == (y.aval, y.sharding, y.committed, y.weak_type)
        np.testing.assert_array_equal(x, y)

    host = np.arange(8).astype(jax.numpy.dtype(dtype))
    mesh = jax.make_mesh((2,), ("d",), devices=devices[:2], axis_types=(jax.sharding.AxisType.Explicit,))
    plain = jax.sharding.Mesh(np.array(devices[:4]).reshape(2, 2), ("x", "y"))
    cuts = [NamedSharding(mesh, PartitionSpec("d"))]
    cuts += [NamedSharding(plain, PartitionSpec(*p)) for p in ((), ("x",), (("y", "x"),))]
    cuts += [NamedSharding(plain, PartitionSpec("x"), memory_kind="pinned_host")]
    for where in (None, devices[3], *cuts):
        same(_arrow._device_put(host, where), jax.device_put(host, where))
    with jax.default_device(devices[2]):
        same(_arrow._device_put(host, None), jax.device_put(host))
    with jax.set_mesh(mesh):
        same(_arrow._device_put(host, None), jax.device_put(host))
    with jax.transfer_guard("disallow"):  # of copies that were not asked for
        _arrow._device_put(host, None)
        with jax.enable_x64(True):
            x = _arrow._device_put(host, devices[1])
    assert x.dtype == dtype
    for bad in (NamedSharding(plain, PartitionSpec("x", "y")), NamedSharding(plain, PartitionSpec(("x", "y")))):
        with pytest.raises(ValueError) as theirs:
            jax.device_put(host[:6], bad)
        with pytest.raises(ValueError) as ours:
            _arrow._device_put(host[:6], bad)
        # The newest JAX ends with the line of the call.
        assert str(ours.value)[:200] == str(theirs.value)[:200]


# --- addresses ---


@on_host
@pytest.mark.parametrize("dtype", [d for d in DTYPES if d != "bool"])
def test_nothing_is_copied_either_way(pa, dtype):
    host, arrow = aligned(pa, dtype, 64)
    x = pathways.from_arrow(arrow, zero_copy=True)
    assert address(x) == host.ctypes.data
    assert pa.array(pathways.to_arrow(x)).buffers()[1].address == host.ctypes.data
    lists = pa.FixedSizeListArray.from_arrays(arrow, 8)
    assert address(pathways.from_arrow(lists, zero_copy=True)) == host.ctypes.data
    assert address(pathways.from_arrow(arrow, zero_copy=False)) != host.ctypes.data


@on_host
def test_shards_that_are_one_block_are_not_copied(pa, devices):
    host, arrow = aligned(pa, "float32", 64)
    mesh = jax.make_mesh((4,), ("d",), devices=devices[:4], axis_types=(jax.sharding.AxisType.Auto,))
    x = pathways.from_arrow(arrow, NamedSharding(mesh, PartitionSpec("d")), zero_copy=True)
    assert [address(s.data) for s in x.addressable_shards] == [host.ctypes.data + 64 * i for i in range(4)]
    columns = pa.FixedSizeListArray.from_arrays(arrow, 8)
    with pytest.raises(pathways.PathwaysError, match="FAILED_PRECONDITION.*not one block"):
        pathways.from_arrow(columns, NamedSharding(mesh, PartitionSpec(None, "d")), zero_copy=True)


def test_zero_copy_or_an_error_that_says_why(pa):
    host, arrow = aligned(pa, "float32", 64)
    kind = pa.fixed_shape_tensor(pa.float32(), [2, 4], permutation=[1, 0])
    permuted = pa.ExtensionArray.from_storage(kind, pa.FixedSizeListArray.from_arrays(arrow, 8))
    for x, why in (
        (arrow[1:], "multiple of 64|memory of"),
        (pa.array([True, False]), "bits"),
        (permuted, "permuted"),
        (pa.array(np.arange(8.0)), "jax_enable_x64"),
    ):
        with pytest.raises(pathways.PathwaysError, match=f"FAILED_PRECONDITION.*({why})"):
            pathways.from_arrow(x, zero_copy=True)
    del host


# --- lifetimes ---


@on_host
def test_each_side_keeps_the_others_memory(pa):
    before = pa.total_allocated_bytes()
    host, arrow = aligned(pa, "float32", 4096)
    x = pathways.from_arrow(arrow, zero_copy=True)
    del host, arrow
    gc.collect()
    out = pa.array(pathways.to_arrow(x))
    np.testing.assert_array_equal(x, np.arange(4096))
    del x
    gc.collect()
    assert out[4095].as_py() == 4095 and pa.total_allocated_bytes() > before
    inside = pathways.from_arrow(out, zero_copy=True)  # Arrow's view of JAX's view of Arrow's memory
    del out
    np.testing.assert_array_equal(inside, np.arange(4096))
    del inside
    gc.collect()
    jax.effects_barrier()
    assert pa.total_allocated_bytes() == before


@on_host
def test_what_is_shown_outlives_the_array(pa):
    x = jax.numpy.arange(1000, dtype="float32") + 1
    place = address(x.block_until_ready())
    shown = pathways.to_arrow(x)
    x.delete()
    gc.collect()
    first, second = pa.array(shown), pa.array(shown)
    assert first.buffers()[1].address == second.buffers()[1].address == place
    del shown
    for _ in range(10):  # that would take the memory if it had been freed
        (jax.numpy.arange(1000, dtype="float32") - 1).block_until_ready()
    np.testing.assert_array_equal(second, np.arange(1, 1001))


def test_an_array_that_failed_says_why():
    def fails(x):
        raise ValueError("the disk is gone")

    x = jax.jit(lambda x: jax.pure_callback(fails, jax.ShapeDtypeStruct((4,), "float32"), x))
    with pytest.raises(Exception, match="the disk is gone"):
        pathways.to_arrow(x(np.ones(4, np.float32)))


@on_host
@pytest.mark.skipif(available() < 10, reason="takes 5 GB of memory, and has to leave others some")
def test_more_than_2_gib_either_way(pa):
    count = (1 << 31) + (1 << 20)
    host = np.frombuffer(pa.allocate_buffer(count), np.int8)
    host[:64], host[-64:] = 1, 2
    arrow = pa.Array.from_buffers(pa.int8(), count, [None, pa.py_buffer(host)])
    x = pathways.from_arrow(arrow, zero_copy=True)
    assert address(x) == host.ctypes.data and x.shape == (count,)
    assert x[:64].sum() == 64 and jax.jit(lambda x: x[-64:].sum())(x) == 128
    out = pa.array(pathways.to_arrow(x))
    assert len(out) == count and out.buffers()[1].address == host.ctypes.data and out[count - 1].as_py() == 2
    tensors = pathways.from_arrow(pathways.to_arrow(x.reshape(-1, 1 << 10, 1 << 10)), zero_copy=True)
    assert tensors.shape == (2049, 1 << 10, 1 << 10) and tensors[-1, -1, -64:].sum() == 128


def test_capsules_that_are_not_taken():
    shown = pathways.to_arrow({"a": np.ones(3), "b": np.ones((3, 2, 2))})
    capsules = shown.__arrow_c_array__(), shown.__arrow_c_schema__()
    assert _arrow.lent() == 5  # three capsules, and the memory of two columns
    del capsules, shown


def test_a_capsule_is_taken_once():
    class Once:
        capsules = pathways.to_arrow(np.ones(3, np.float32)).__arrow_c_array__()

        def __arrow_c_array__(self):
            return self.capsules

    once = Once()
    np.testing.assert_array_equal(pathways.from_arrow(once), np.ones(3))
    with pytest.raises(pathways.PathwaysError, match="INVALID_ARGUMENT.*released"):
        pathways.from_arrow(once)
    del Once.capsules


def test_release_from_other_threads_and_many_rounds(pa):
    def work(_):
        for i in range(200):
            x = pathways.from_arrow(pathways.to_arrow(np.full((8, 2), i, np.float32)))
            taken = pa.array(pathways.to_arrow(x))
            assert taken.storage.flatten()[15].as_py() == i

    together(work, range(4))


# --- refusals ---


def test_what_arrays_cannot_hold_is_refused_with_a_sentence(pa):
    one = pa.array([1], pa.int32())
    for x, words in (
        (pa.array([1, None, 3, None]), "2 nulls.*fill_null"),
        (pa.FixedSizeListArray.from_arrays(pa.array([1, None, 3, 4]), 2), "1 nulls"),
        (pa.array(["a"]), "'u'.*cast"),
        (pa.array(["a", "b"]).dictionary_encode(), "dictionary_decode"),
        (pa.array([[1], [2, 3]]), r"'\+l'"),
        (pa.array([0], pa.timestamp("s")), "'tss:'"),
        (pa.array([{"a": 1, "b": None}]), "column 'b'"),
        (pa.record_batch([one, one], names=["a", "a"]), "twice"),
        (pa.nulls(3), "'n'"),
        (3, "is not Arrow data"),
    ):
        with pytest.raises(pathways.PathwaysError, match=f"INVALID_ARGUMENT.*{words}"):
            pathways.from_arrow(x)
    # Nulls before the slice are none of its.
    np.testing.assert_array_equal(pathways.from_arrow(pa.array([None, 2, 3], pa.int32())[1:]), [2, 3])


def test_what_arrow_does_not_have_is_refused_with_a_sentence():
    for x, words in (
        (jax.numpy.zeros(3, "bfloat16"), "bfloat16.*DLPack"),
        (jax.numpy.zeros(3, "complex64"), "complex64"),
        (jax.numpy.float32(1), "scalar"),
        (b"text", "S4.*DLPack"),
        ({"a": np.ones(3), "b": np.ones(4)}, "different lengths"),
    ):
        with pytest.raises(pathways.PathwaysError, match=f"INVALID_ARGUMENT.*{words}"):
            pathways.to_arrow(x)


# --- lies ---

LENGTHS = st.sampled_from([-(2**63), -1, 0, 1, 2, 3, 2**31, 2**62, 2**63 - 1])
FORMATS = st.sampled_from(
    [b"", b"+w:", b"+w:-1", b"+w:2", b"+w:99999999999999999999", b"+s", b"+l", b"z", b"f", b"b", b"+w:0"]
)
METADATA = st.sampled_from(
    [b"", b"{", b"[]", b"1", b'{"shape": 3}', b'{"shape": [-1, -2]}', b'{"shape": [2], "permutation": [1]}']
)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_data_that_lies_is_refused(data):
    """One field of a list array, or of its child, has a wrong value."""
    shown = pathways.to_arrow({"x": np.arange(8, dtype=np.int8).reshape(4, 2), "y": np.ones(4, np.int8)})
    capsules = shown.__arrow_c_array__()
    schema = _arrow.Schema.from_address(_arrow._pointer(capsules[0], b"arrow_schema"))
    array = _arrow.Array.from_address(_arrow._pointer(capsules[1], b"arrow_array"))
    truth = (bytes(schema), bytes(array))
    column = array.children[0].contents, schema.children[0].contents
    inner = column[0].children[0].contents, column[1].children[0].contents
    undo = []

    def lie(struct, field, value):
        undo.append((struct, bytes(struct)))
        setattr(struct, field, value)

    where = data.draw(st.sampled_from([(array, schema), column, inner]))
    match data.draw(st.sampled_from(["count", "format", "metadata", "null"])):
        case "count":
            field = data.draw(st.sampled_from(["length", "offset", "n_buffers", "n_children"]))
            value = data.draw(LENGTHS)
            # That a buffer is shorter than its array says cannot be seen.
            if where is inner and field in ("length", "offset") and value > 0:
                value = -value
            lie(where[0], field, value)
        case "format":
            lie(where[1], "format", data.draw(FORMATS))
        case "metadata":
            text = data.draw(METADATA)
            pairs = [(b"ARROW:extension:name", b"arrow.fixed_shape_tensor"), (b"ARROW:extension:metadata", text)]
            raw = ctypes.create_string_buffer(
                np.int32(2).tobytes() + b"".join(np.int32(len(t)).tobytes() + t for pair in pairs for t in pair)
            )
            lie(column[1], "metadata", ctypes.addressof(raw))
        case "null":
            lie(where[0], data.draw(st.sampled_from(["buffers", "children"])), None)

    # Taken is a copy, which releases nothing, so that the truth can be put back for its owner.
    released = []
    release = _arrow.RELEASE(released.append)
    copy = _arrow.Array.from_buffer_copy(array)
    copy.release = ctypes.cast(release, ctypes.c_void_p).value
    try:
        out = _arrow._read(ctypes.addressof(schema), ctypes.addressof(copy))
        assert not copy.release
        assert not isinstance(out, dict) or all(len(x) <= 4 for x, _ in out.values())
        del out
        assert len(released) == 1
    except pathways.PathwaysError as err:
        assert err.code == "INVALID_ARGUMENT"
        assert len(released) == (copy.release is None)
    finally:
        for struct, told in undo:
            ctypes.memmove(ctypes.byref(struct), told, len(told))
        assert (bytes(schema), bytes(array)) == truth
