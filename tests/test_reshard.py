"""pathways.reshard, and jax.device_put, which uses it: any sharding on any devices to any other."""

import itertools
import os
import random

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pathways
import pytest
from fresh import run
from jax.experimental.layout import Format, Layout
from jax.sharding import Mesh, NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P
from together import together
from waiting import comes

pytestmark = pytest.mark.newest


@pytest.fixture(autouse=True)
def nothing_held():
    yield
    assert comes(lambda: "exported" not in pathways.stats()["live"]), pathways.stats()["live"]


def bits(x) -> bytes:
    return np.asarray(x).tobytes()


def count(name: str) -> int:
    return pathways.stats()[name]


def values(shape, dtype="float32"):
    n = int(np.prod(shape))
    if dtype == "complex64":
        return (np.arange(n) * (1 + 2j)).astype(dtype).reshape(shape)
    return (np.arange(n) % 2 if dtype == "bool" else np.arange(n) % 7).astype(dtype).reshape(shape)


def put(shape, sharding, dtype="float32"):
    return jax.device_put(values(shape, dtype), sharding)


def mesh(devices, *sizes):
    n = int(np.prod(sizes))
    return Mesh(np.array(devices[:n]).reshape(sizes), tuple("abc"[: len(sizes)]))


def moved(x, sharding):
    """Moves an array and checks what came of it; nothing of it may pass the host."""
    before = count("fetches")
    y = pathways.reshard(x, sharding)
    y.block_until_ready()
    assert count("fetches") == before
    assert y.sharding.is_equivalent_to(sharding, y.ndim)
    assert (y.shape, y.dtype, y.weak_type, y.committed) == (x.shape, x.dtype, x.weak_type, True)
    assert bits(y) == bits(x)
    for shard in y.addressable_shards:
        assert bits(shard.data) == bits(np.asarray(x)[shard.index])
    return y


def some_sharding(r, devices, ndim):
    """A random mesh over a random choice of devices, in random order, with each axis for one dimension or none."""
    sizes = r.choice([(1,), (2,), (4,), (8,), (2, 2), (4, 2), (2, 4), (2, 2, 2), (3,), (6,), (2, 3)])
    chosen = r.sample(devices, int(np.prod(sizes)))
    names = list("abc"[: len(sizes)])
    spec = [[] for _ in range(ndim)]
    for name in names:
        if ndim and r.random() < 0.75:
            spec[r.randrange(ndim)].append(name)
    return NamedSharding(mesh(chosen, *sizes), P(*(tuple(axes) or None for axes in spec)))


@pytest.mark.sizes
@pytest.mark.parametrize("seed", range(6))
def test_arrays_keep_their_values_between_random_shardings(devices, seed):
    r = random.Random(seed)
    ndim = r.randrange(4)
    shape = tuple(24 for _ in range(ndim))  # divides into what any of the meshes makes of it
    x = put(shape, some_sharding(r, devices, ndim))
    for _ in range(4):
        x = moved(x, some_sharding(r, devices, ndim))


@pytest.mark.parametrize(
    "dtype",
    ["bool", "int8", "uint16", "int32", "float16", "bfloat16", "float8_e4m3fn", "complex64"],
)
def test_arrays_of_every_type_move(devices, dtype):
    x = put((8, 6), NamedSharding(mesh(devices, 4, 2), P("a", "b")), dtype)
    moved(x, NamedSharding(mesh(devices[5:], 3), P(None, "a")))


@pytest.mark.parametrize("dtype", ["int4", "uint4", "int2", "float4_e2m1fn"])
def test_elements_narrower_than_a_byte(devices, dtype):
    # Three of them a row: no shard begins where a byte does.
    x = jax.jit(lambda v: v.astype(dtype))(put((3, 9), NamedSharding(mesh(devices, 3), P("a")), "int8"))
    before = count("fetches")
    y = pathways.reshard(x, NamedSharding(mesh(devices[4:], 3), P(None, "a"))).block_until_ready()
    assert count("fetches") == before
    assert y.dtype == x.dtype and bits(y) == bits(x)


@pytest.mark.parametrize("dtype", ["int4", "uint4", "float4_e2m1fn"])
def test_elements_narrower_than_a_byte_in_a_program(devices, dtype):
    twice = jax.jit(lambda x: (x.astype(jnp.float32) * 2).astype(dtype))
    x = jax.device_put(jnp.arange(3.0).astype(dtype), devices[0])
    there = pathways.program(lambda x: pathways.reshard(twice(x), SingleDeviceSharding(devices[5])))
    y = there(x)
    assert y.devices() == {devices[5]} and y.dtype == dtype and bits(y) == bits(twice(x))


def test_result_of_a_program_on_other_devices_than_the_mesh_that_is_set(devices):
    target = NamedSharding(mesh(devices[5:], 3), P("a"))
    x = jax.device_put(np.ones((3, 5), np.float32), NamedSharding(mesh(devices, 2), P()))
    with jax.set_mesh(mesh(devices, 2)):
        assert pathways.program(lambda x: pathways.reshard(x, target))(x).sharding == target


def test_arrays_without_elements_move(devices):
    x = put((0, 8), NamedSharding(mesh(devices, 2), P("a")))
    target = NamedSharding(mesh(devices[4:], 4), P(None, "a"))
    for y in (pathways.reshard(x, target), jax.device_put(x, target)):
        assert (y.shape, y.dtype, y.sharding) == (x.shape, x.dtype, target)


def test_every_bit_pattern_survives(devices):
    patterns = np.arange(1 << 16, dtype=np.uint16).view(ml_dtypes.bfloat16)  # with all NaNs
    x = jax.device_put(patterns, NamedSharding(mesh(devices, 8), P("a")))
    assert bits(moved(x, NamedSharding(mesh(devices[1:], 4), P("a")))) == patterns.tobytes()


@pytest.mark.sizes
@pytest.mark.parametrize("order", [(3, 2, 1, 0), (2, 0, 3, 1), (0, 1, 2, 3)])
@pytest.mark.parametrize("spec", [P("x"), P("y", "x"), P(None, ("y", "x"))])
def test_device_put_to_a_mesh_in_another_order(devices, order, spec):
    """JAX compiles a computation with both meshes, which differ in the order of their devices alone."""
    here = Mesh(np.array(devices[:4]).reshape(2, 2), ("x", "y"))
    there = Mesh(np.array([devices[i] for i in order]).reshape(2, 2), ("x", "y"))
    host = values((8, 4))
    x = jax.device_put(host, NamedSharding(here, P("x", "y")))
    y = jax.device_put(x, NamedSharding(there, spec))
    assert y.sharding == NamedSharding(there, spec)
    assert bits(y) == host.tobytes()
    assert all(np.array_equal(shard.data, host[shard.index]) for shard in y.addressable_shards)


@pytest.mark.parametrize("kind", [jax.sharding.AxisType.Auto, jax.sharding.AxisType.Explicit])
def test_a_mesh_that_is_set_binds_no_move(devices, kind):
    """JAX makes what is computed under jax.set_mesh() be on that mesh; where an array moves to is another matter."""
    here = jax.make_mesh((2,), ("x",), axis_types=(kind,), devices=devices[:2])
    there = jax.make_mesh((4,), ("y",), axis_types=(kind,), devices=devices[4:])
    one = SingleDeviceSharding(devices[3])
    for dtype in ("float32", "int4", "float64"):
        with jax.set_mesh(here), jax.enable_x64(dtype == "float64"):
            x = jax.device_put(values(8, dtype), NamedSharding(here, P("x")))
            y = jax.device_put(x, one)
            z = pathways.reshard(y, NamedSharding(there, P("y")))
            jax.jit(lambda v, z=z: v + pathways.reshard(z, one).shape[0])(1)  # while JAX traces
        assert y.devices() == {devices[3]} and z.sharding == NamedSharding(there, P("y"))
        assert y.dtype == z.dtype == dtype and bits(x) == bits(y) == bits(z) == values(8, dtype).tobytes()
        assert jax.typeof(z).sharding.spec == (P("y") if kind == jax.sharding.AxisType.Explicit else P(None))


@pytest.mark.parametrize("shape", [(8,), (0, 8)])
def test_arrays_of_64_bits_move_where_these_are_off(devices, shape):
    source, target = (NamedSharding(mesh(some, 2), P("a")) for some in (devices, devices[4:]))
    for dtype in ("int64", "float64", "complex128"):
        with jax.enable_x64(True):
            x = jax.device_put(values(shape, dtype), source)
            weak = jax.jit(lambda: jax.lax.broadcast(1 << 40, (8,)), out_shardings=source)()
        thin = jax.jit(lambda: jax.lax.broadcast(1, (8,)), out_shardings=source)()
        move = pathways.program(lambda *xs: jax.device_put(xs, target))
        for there in (jax.device_put(x, target), pathways.reshard(x, target), move(x)[0]):
            assert (there.dtype, there.sharding, bits(there)) == (x.dtype, target, bits(x))
        for y, w, t in (pathways.reshard([x, weak, thin], target), move(x, weak, thin)):
            assert (y.dtype, bits(y), int(w[0]), w.weak_type) == (x.dtype, bits(x), 1 << 40, True)
            assert (t.dtype, bits(t), t.weak_type) == ("int32", bits(thin), True)


@pytest.mark.parametrize("dtype", ["float32", "int4"])
def test_arrays_move_to_another_sharding_in_the_memory_of_the_host(devices, dtype):
    rows = NamedSharding(mesh(devices, 4), P("a"))
    pinned = rows.with_memory_kind("pinned_host")
    fewer = NamedSharding(mesh(devices[3:], 2), P("a"), memory_kind="pinned_host")
    x = put((8,), rows, dtype)
    for there in (jax.device_put(x, fewer), *pathways.reshard([x, x], fewer), moved(x, fewer)):
        assert there.sharding == fewer and bits(there) == bits(x)
        assert {shard.data.sharding.memory_kind for shard in there.addressable_shards} == {"pinned_host"}
        assert bits(moved(there, pinned)) == bits(moved(there, rows)) == bits(x)


@pytest.mark.parametrize("shape", [(), (1,), (0,), (0, 8), (8, 0), (8, 8)])
def test_scalars_empty_arrays_and_copies(devices, shape):
    everywhere, few = NamedSharding(mesh(devices, 8), P()), NamedSharding(mesh(devices[6:], 2), P())
    one = SingleDeviceSharding(devices[3])
    for source, target in itertools.permutations([everywhere, few, one], 2):
        moved(put(shape, source), target)


def test_arrays_without_elements_keep_their_weak_type(devices):
    source, target = (NamedSharding(mesh(some, 2), P("a")) for some in (devices, devices[4:]))
    x = jax.device_put(jax.lax.full((0, 8), 1.0), source)
    move = pathways.program(lambda x: pathways.reshard(x, target))
    copy = pathways.sync({"x": x}, target)
    for there in (
        *(jax.device_put(x, target), pathways.reshard(x, target), *pathways.reshard([x, x], target), move(x)),
        copy.wait()[1]["x"],
    ):
        assert there.weak_type and there.sharding == target


@pytest.mark.sizes
def test_arrays_change_their_cut_on_the_same_devices_by_a_computation(devices, monkeypatch):
    # As on devices that have an interconnect.
    from pathways import _reshard

    monkeypatch.setattr(_reshard, "_connected", lambda _: True)
    before = count("executes")
    shape = (8, 24)  # of no other test: its way is not kept yet
    moved(put(shape, NamedSharding(mesh(devices, 8), P("a"))), NamedSharding(mesh(devices, 8), P(None, "a")))
    assert count("executes") == before + 1
    _reshard.forget()


@pytest.mark.sizes
def test_arrays_move_from_one_device_to_another(devices):
    moved(put((4,), SingleDeviceSharding(devices[0])), SingleDeviceSharding(devices[7]))
    x = pathways.reshard(put((4,), SingleDeviceSharding(devices[0])), devices[1])
    assert x.devices() == {devices[1]}


def test_equivalent_sharding_gives_the_array_itself(devices):
    x = put((8, 8), NamedSharding(mesh(devices, 8), P("a")))
    assert pathways.reshard(x, NamedSharding(mesh(devices, 8), P("a", None))) is x


@pytest.mark.sizes
def test_large_arrays_move_by_threads(devices):
    # More than is copied at once by the calling thread, and pieces for several.
    x = put((1 << 10, 1 << 11), NamedSharding(mesh(devices, 8), P("a")))
    moved(moved(x, NamedSharding(mesh(devices[2:], 4), P(None, "a"))), NamedSharding(mesh(devices[:3], 1), P()))


def test_weak_types_and_uncommitted_arrays(devices):
    x = jax.device_put(jnp.broadcast_to(2.0, (8, 2)), NamedSharding(mesh(devices, 8), P("a")))
    assert x.weak_type
    moved(x, NamedSharding(mesh(devices[1:], 2), P("a")))
    uncommitted = jnp.arange(8)
    assert not uncommitted.committed
    moved(uncommitted, uncommitted.sharding)
    moved(uncommitted, NamedSharding(mesh(devices, 4), P("a")))


def test_trees_move_by_a_prefix_of_shardings(devices):
    rows, columns = NamedSharding(mesh(devices, 8), P("a")), NamedSharding(mesh(devices[4:], 4), P(None, "a"))
    tree = {"w": put((8, 4), rows), "layers": [put((16, 8), rows), put((8, 8), rows, "int8")]}
    for shardings in (columns, {"w": devices[1], "layers": columns}, {"w": rows, "layers": [columns, devices[0]]}):
        out = pathways.reshard(tree, shardings)
        assert jax.tree.structure(out) == jax.tree.structure(tree)
        jax.tree.map(lambda a, b: np.testing.assert_array_equal(np.asarray(a), np.asarray(b)), out, tree)
    assert pathways.reshard([], columns) == []


def test_random_keys_move(devices):
    keys = jax.device_put(jax.random.split(jax.random.key(1), 8), NamedSharding(mesh(devices, 8), P("a")))
    out = pathways.reshard(keys, NamedSharding(mesh(devices[3:], 2), P("a")))
    assert out.dtype == keys.dtype and bits(jax.random.key_data(out)) == bits(jax.random.key_data(keys))


def test_a_jitted_function_may_reshard(devices):
    rows, columns = (NamedSharding(mesh(devices, 8), spec) for spec in (P("a"), P(None, "a")))
    x = put((8, 8), rows)
    y = jax.jit(lambda v: pathways.reshard(v + 1, columns))(x)
    assert y.sharding.is_equivalent_to(columns, 2) and bits(y) == bits(np.asarray(x) + 1)


def test_while_something_else_is_traced(devices):
    x = put((8, 8), NamedSharding(mesh(devices, 8), P("a")))
    columns = NamedSharding(mesh(devices, 8), P(None, "a"))
    seen = []

    def f(v):
        with jax.ensure_compile_time_eval():
            seen.append(jax.device_put(x, columns))
            seen.append(jax.device_put(x, SingleDeviceSharding(devices[2])))
        seen.extend(pathways.reshard([x, x], columns))
        return v + 1

    jax.jit(f)(1.0)
    assert [bits(y) for y in seen] == [bits(x)] * 4


@pytest.mark.embedded("results of a portable program have the default layout")
def test_array_with_a_layout_of_its_own(devices):
    rows = NamedSharding(mesh(devices, 8), P("a"))
    transposed = jax.jit(lambda v: v + 1, out_shardings=Format(Layout((1, 0)), rows))(put((16, 8), rows))
    moved(transposed, NamedSharding(mesh(devices[3:], 2), P(None, "a")))


# --- device_put ---


@pytest.mark.sizes
def test_device_put_reads_nothing_on_the_host(devices):
    x = put((24, 24), NamedSharding(mesh(devices, 8), P("a")))
    jax.block_until_ready(x)
    ways = [
        NamedSharding(mesh(devices, 8), P(None, "a")),
        NamedSharding(mesh(devices[4:], 4), P("a")),
        SingleDeviceSharding(devices[7]),
        NamedSharding(mesh(devices, 2, 4), P("b", "a")),
        NamedSharding(mesh(devices[::-1], 8), P("a")),
        NamedSharding(mesh(devices[2:], 3), P()),
        devices[0],
    ]
    before, last = pathways.stats(), x
    results = []
    for way in ways:
        results.append(jax.device_put(x, way))
        results.append(last := jax.device_put(last, way))
    jax.block_until_ready(results)
    after = pathways.stats()
    assert (after["fetches"], after["puts"]) == (before["fetches"], before["puts"])
    assert after["reshards"] > before["reshards"]
    assert [bits(y) for y in results] == [bits(x)] * len(results)


def test_device_put_of_a_tree_whose_leaves_move_in_many_ways(devices):
    rows, columns = (NamedSharding(mesh(devices, 8), spec) for spec in (P("a"), P(None, "a")))
    few = NamedSharding(mesh(devices[4:], 4), P(None, "a"))
    one = SingleDeviceSharding(devices[2])
    leaves = [
        (put((8, 8), rows), columns),
        (put((8, 8), rows), rows),  # stays
        (put((16, 8), rows), few),
        (values((8, 8), "int32"), few),  # comes from the host
        (put((8, 8), one), columns),
        (put((8, 8), rows, "int8").astype("int4"), columns),
        (jax.random.split(jax.device_put(jax.random.key(3), NamedSharding(few.mesh, P())), 8), rows),
        (put((24, 8), few), one),
        (put((8, 8), few), NamedSharding(mesh(devices, 4), P(None, "a"))),  # is cut the same way elsewhere
    ]
    tree, to = ({str(i): leaf[k] for i, leaf in enumerate(leaves)} for k in range(2))
    for _ in range(3):
        for i, x in jax.device_put(tree, to).items():
            assert x.sharding == to[i] and x.committed
            if i == "6":
                x, tree[i] = jax.random.key_data(x), jax.random.key_data(leaves[6][0])
            assert x.dtype == tree[i].dtype and bits(x) == bits(tree[i]), i
        tree["6"] = leaves[6][0]


@pytest.mark.sizes
def test_arguments_that_lie_otherwise_are_not_read_on_the_host(devices):
    x = put((8, 8), NamedSharding(mesh(devices, 8), P("a")))
    two = NamedSharding(mesh(devices[6:], 2), P(None, "a"))
    f = jax.jit(lambda v: v + 1)
    want = bits(np.asarray(x) + 1)
    before = count("fetches")
    y = f(jax.device_put({"x": x}, two)["x"]).block_until_ready()
    assert count("fetches") == before and bits(y) == want


@pytest.mark.sizes
def test_the_host_is_counted_when_it_reads(devices):
    # Without this the tests above could not fail.
    x = put((8, 8), NamedSharding(mesh(devices, 8), P("a"))) + 1
    before = count("fetches")
    np.asarray(x)
    assert count("fetches") >= before + 8


# --- order, errors, ends ---


@pytest.mark.sizes
def test_a_source_may_be_unready(devices):
    rows = NamedSharding(mesh(devices, 8), P("a"))
    slow = jax.jit(lambda v: jax.lax.fori_loop(0, 40, lambda _, a: jnp.sin(a) + a, v))
    x = put((512, 512), rows)
    want = bits(slow(x))
    y = slow(x)
    z = pathways.reshard(y, NamedSharding(mesh(devices[1:], 4), P(None, "a")))
    w = jax.jit(lambda v: v * 1)(z)  # a computation that waits for what moves
    back = pathways.reshard(w, rows)
    assert [bits(v) for v in (z, w, back)] == [want] * 3


@pytest.mark.sizes
def test_source_may_go_while_it_moves(devices):
    rows, columns = NamedSharding(mesh(devices, 8), P("a")), NamedSharding(mesh(devices[4:], 4), P(None, "a"))
    slow = jax.jit(lambda v: jax.lax.fori_loop(0, 40, lambda _, a: jnp.sin(a) + a, v))
    twice = jax.jit(lambda v: v * 2, donate_argnums=0)
    x = put((512, 512), rows)
    want = np.asarray(slow(x))

    y = slow(x)
    z = pathways.reshard(y, columns)
    y.delete()
    assert bits(z) == want.tobytes()

    twice(slow(x))  # compiles it, which may take longer than the move
    y = slow(x)
    z = pathways.reshard(y, columns)
    doubled = twice(y)
    assert y.is_deleted() and bits(z) == want.tobytes() and bits(doubled) == (want * 2).tobytes()

    z = pathways.reshard(slow(x), columns)
    doubled = twice(z)  # and what is on its way may be donated
    assert z.is_deleted() and bits(doubled) == (want * 2).tobytes()

    pathways.reshard(slow(x), columns).delete()


@pytest.mark.sizes
def test_error_of_the_source_reaches_what_reads_it(devices):
    two, four = (NamedSharding(mesh(devices[at:], n), P("a")) for at, n in ((0, 2), (4, 4)))
    slow = jax.jit(lambda v: jax.lax.fori_loop(0, 40, lambda _, a: jnp.sin(a) + a, v))
    # It finds out that there is no room when its argument has come, long after the call.
    broken = jax.jit(lambda v: (v[:8, :8] * 2, jnp.zeros((1 << 44,)) + v[0, 0]), out_shardings=(two, two))
    x = pathways.reshard(slow(put((512, 512), four)), two)
    double = jax.jit(lambda v: v * 2)
    bad, huge = broken(x)
    early = double(pathways.reshard(bad, NamedSharding(four.mesh, P(None, "a"))))
    del huge
    with pytest.raises(RuntimeError, match="Out of memory") as caught:
        bad.block_until_ready()
    why = f"^{str(caught.value).partition(':')[0]}: .*Out of memory"  # code and text are the source's
    for target in (
        NamedSharding(four.mesh, P(None, "a")),
        SingleDeviceSharding(devices[3]),
        NamedSharding(mesh(devices[1:], 2), P()),
    ):
        out = pathways.reshard(bad, target)
        for _ in range(2):
            with pytest.raises(RuntimeError, match=why):
                out.block_until_ready()
            with pytest.raises(RuntimeError, match=why):
                np.asarray(out)
        for later in (pathways.reshard(out, NamedSharding(mesh(devices, 8), P("a"))), double(out), early):
            with pytest.raises(RuntimeError, match=why):
                later.block_until_ready()
    moved(x, four)
    rows = NamedSharding(mesh(devices, 8), P("a"))
    for move in (pathways.reshard, jax.device_put, jax.device_put):  # from the second time on by one message
        good, failed = move([x, bad], rows)
        assert bits(good) == bits(x)
        with pytest.raises(RuntimeError, match="Out of memory"):
            failed.block_until_ready()


def test_what_cannot_be_moved_is_refused(devices):
    rows = NamedSharding(mesh(devices, 8), P("a"))
    x = put((8, 8), rows)
    gone = put((8, 8), rows)
    gone.delete()
    stock = jnp.zeros(8, device=jax.devices("cpu")[0])
    for array, target, text in (
        (gone, devices[0], "was deleted or donated"),
        (np.zeros(8), rows, "make one with jax.device_put"),
        (x, P("a"), "expected a Sharding or a Device"),
        (stock, rows, "between devices of Pathways"),
        ([x, x], [rows], "not a prefix of the arrays' tree"),
    ):
        with pytest.raises(pathways.PathwaysError, match=text) as e:
            pathways.reshard(array, target)
        assert e.value.code == "INVALID_ARGUMENT"
    with pytest.raises(RuntimeError, match="deleted"):
        jax.device_put(gone, devices[0])
    with pytest.raises(ValueError, match="divi"):
        pathways.reshard(x, NamedSharding(mesh(devices, 3), P("a")))
    with pytest.raises(ValueError, match="has 2 dimensions, and .* names 3; expected a PartitionSpec of at most 2"):
        pathways.reshard(x, NamedSharding(mesh(devices, 8), P("a", None, None)))


@pytest.mark.sizes
def test_threads_may_reshard_at_once(devices):
    ways = [
        NamedSharding(mesh(devices, 8), P("a")),
        NamedSharding(mesh(devices[3:], 2), P(None, "a")),
        NamedSharding(mesh(devices[1:], 2, 2), P("b", "a")),
        SingleDeviceSharding(devices[6]),
    ]

    def work(seed):
        r = random.Random(seed)
        x = jax.device_put(np.full((8, 8), seed, np.float32), ways[0])
        for _ in range(40):
            x = pathways.reshard(x, r.choice(ways))
        assert (np.asarray(x) == seed).all()

    together(work, range(4))


@pytest.mark.sizes
def test_one_entry_into_go_a_move(devices):
    x = put((8, 8), NamedSharding(mesh(devices, 8), P("a")))
    target = NamedSharding(mesh(devices[4:], 4), P(None, "a"))
    keep = [pathways.reshard(x, target)]
    jax.block_until_ready(keep)
    before = pathways.stats()
    keep += [pathways.reshard(x, target) for _ in range(32)]
    jax.block_until_ready(keep)
    after = pathways.stats()
    assert after["reshards"] - before["reshards"] == 32
    assert after["executes"] == before["executes"]
    assert 32 <= after["go_entries"] - before["go_entries"] <= 36


@pytest.mark.parametrize("move", [pathways.reshard, jax.device_put])
def test_nothing_of_a_tree_passes_the_host(devices, move):
    tree = [put((16, 8), NamedSharding(mesh(devices, 4), P("a"))) for _ in range(3)]  # a shape of this test alone
    before = count("puts"), count("fetches")
    # As in tunix' sync_weights. A program makes the second move of such a tree, and the first of pathways.reshard.
    with jax.transfer_guard("disallow_explicit"):
        for _ in range(3):
            jax.block_until_ready(move(tree, NamedSharding(mesh(devices[4:], 4), P(None, "a"))))
    assert (count("puts"), count("fetches")) == before


@pytest.mark.sizes
@pytest.mark.skipif(not os.environ.get("PATHWAYS_TEST_ADDRESS"), reason="of clusters: here each move is a call of Go")
@pytest.mark.parametrize("move", [pathways.reshard, jax.device_put])
@pytest.mark.parametrize("spec", [P(None, "a"), P("a")])  # cut otherwise, or the same way
def test_a_tree_moves_by_one_entry_into_go(devices, spec, move):
    tree = [put((8, 8), NamedSharding(mesh(devices, 4), P("a")))] * 32
    target = NamedSharding(mesh(devices[4:], 4), spec)
    for _ in range(2):
        jax.block_until_ready(move(tree, target))
    before = count("go_entries")
    jax.block_until_ready(move(tree, target))
    assert count("go_entries") - before <= 4


SCRIPT = """
    import jax, numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

    def move():
        devices = np.array(jax.devices())
        x = jax.device_put(np.arange(64.0).reshape(8, 8), NamedSharding(Mesh(devices, "a"), P("a")))
        return pathways.reshard(x, NamedSharding(Mesh(devices[4:], "a"), P(None, "a")))
"""


@pytest.mark.sizes
def test_shutdown_may_come_while_arrays_move():
    run(
        SCRIPT
        + """
    for _ in range(3):
        y = move()
        assert (np.asarray(y) == np.arange(64.0).reshape(8, 8)).all()
        z = move()  # may be under way
        del y, z
        pathways.shutdown()
        pathways.init()
    """
    )


@pytest.mark.embedded("a cluster's devices have no limit of ours")
def test_moves_beyond_a_memory_limit_are_refused():
    run(
        SCRIPT
        + """
    pathways.init(memory_limit=300)
    y = move()
    copies = NamedSharding(Mesh(np.array(jax.devices()[:2]), "a"), P())  # 256 bytes a device
    kept = [pathways.reshard(y, copies)]
    try:
        kept.append(pathways.reshard(y, copies))
        raise SystemExit("there was room")
    except pathways.PathwaysError as error:
        assert error.code == "RESOURCE_EXHAUSTED" and "300" in error.message, error
    kept.clear()
    pathways.reshard(y, copies).block_until_ready()
    """
    )
