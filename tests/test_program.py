"""pathways.program: functions that are captured once and then played, compared with the same functions directly."""

import gc
import os

import jax
import jax.numpy as jnp
import numpy as np
import pathways
import pytest
from jax.sharding import Mesh, NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P
from pathways import _capture
from together import together

pytestmark = [pytest.mark.newest, pytest.mark.usefixtures("nothing_held")]


def same(a, b):
    """Checks that two results are the same trees with the same bits in the same places."""
    (xs, one), (ys, other) = jax.tree.flatten(a), jax.tree.flatten(b)
    assert one == other
    for x, y in zip(xs, ys, strict=True):
        assert type(x) is type(y)
        if not isinstance(x, jax.Array):
            assert np.array_equal(x, y)
            continue
        if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
            assert x.dtype == y.dtype
            x, y = jax.random.key_data(x), jax.random.key_data(y)
        assert (x.shape, x.dtype, x.weak_type, x.committed) == (y.shape, y.dtype, y.weak_type, y.committed)
        assert x.sharding.is_equivalent_to(y.sharding, x.ndim)
        assert np.asarray(x).tobytes() == np.asarray(y).tobytes()


def mesh(devices, *sizes):
    n = int(np.prod(sizes))
    return Mesh(np.array(devices[:n]).reshape(sizes), tuple("abc"[: len(sizes)]))


def executes():
    return pathways.stats()["executes"]


def figure_2(devices):
    a = jax.pmap(lambda x: x * 2.0, devices=devices[:2])
    b = jax.pmap(lambda x: x + 1.0, devices=devices[2:4])
    c = jax.pmap(lambda x: x / 2.0, devices=devices[4:6])

    def f(v):
        x = a(v)
        y = b(x)
        z = a(c(x))
        return y, z

    return f


@pytest.mark.sizes
def test_figure_2_of_the_paper_runs_as_a_program(devices):
    f = figure_2(devices)
    g = pathways.program(f)
    for _ in range(3):
        y, z = g(np.array([1.0, 2.0]))
        assert y.tolist() == [3.0, 5.0] and z.tolist() == [2.0, 4.0]
        assert y.sharding.device_set == set(devices[2:4]) and z.sharding.device_set == set(devices[:2])
    same(g(np.array([5.0, 7.0])), f(np.array([5.0, 7.0])))


def test_the_function_runs_once_a_signature(devices):
    calls = []

    @pathways.program
    def f(x):
        calls.append(1)
        return x * 2 + 1

    for x in (jnp.arange(3), jnp.arange(3), np.arange(3, dtype=np.int32), jnp.arange(4)):
        same(f(x), jnp.asarray(x) * 2 + 1)
    assert len(calls) == 2
    same(f(jnp.arange(3.0)), jnp.arange(3.0) * 2 + 1)
    same(f(jax.device_put(jnp.arange(3.0), devices[3])), jax.device_put(jnp.arange(3.0), devices[3]) * 2 + 1)
    same(
        f(jax.device_put(jnp.arange(8.0), NamedSharding(mesh(devices, 4), P("a")))),
        jax.device_put(jnp.arange(8.0) * 2 + 1, NamedSharding(mesh(devices, 4), P("a"))),
    )
    assert len(calls) == 5


def test_calls_like_the_one_before_and_others(devices):
    seen = []

    @pathways.program
    def f(t, y=None):
        seen.append(1)
        return t["a"] + (0 if y is None else y)

    x = jax.jit(lambda: jnp.arange(3.0))()
    there = jax.device_put(x, devices[0])  # committed
    weak = jax.jit(lambda: jnp.broadcast_to(2.0, (3,)))()
    assert weak.weak_type and not x.weak_type
    captures = 0
    for call, new in (
        (lambda: f({"a": x}), True),
        (lambda: f({"a": x}), False),
        (lambda: f({"a": x * 2}), False),
        (lambda: f({"a": weak}), True),
        (lambda: f({"a": there}), True),
        (lambda: f({"a": x}), False),
        (lambda: f({"a": x}, x), True),
        (lambda: f({"a": x}, y=x), True),
        (lambda: f({"a": x, "b": x}), True),
        (lambda: f({"a": x}), False),
        (lambda: f({"a": np.asarray(x)}), False),
    ):
        captures += new
        got = call()
        assert len(seen) == captures and call().tolist() == got.tolist() and len(seen) == captures
    with jax.default_matmul_precision("highest"):
        f({"a": x})
        assert len(seen) == captures + 1
    assert f({"a": x}).weak_type is False and f({"a": weak}).weak_type
    assert f({"a": there}).committed and not f({"a": x}).committed
    assert len(seen) == captures + 1


def test_other_settings_and_meshes_of_jax_capture_again(devices):
    draw = pathways.program(lambda key: jax.random.normal(key, (5, 3)))
    key, drawn = jax.random.key(1), []
    for partitionable in (True, False, True):
        with jax.threefry_partitionable(partitionable):
            drawn.append(draw(key))
            same(drawn[-1], jax.random.normal(key, (5, 3)))
    assert not np.array_equal(*drawn[:2])

    split = pathways.program(jax.jit(lambda x: jax.lax.with_sharding_constraint(x, P("a"))))
    for some in (devices[:4], devices[4:], devices[:4]):
        with jax.set_mesh(mesh(some, 4)):
            assert split(np.arange(8.0)).devices() == set(some)


def test_arguments_and_results_are_in_the_memory_of_the_host(devices):
    rows = NamedSharding(mesh(devices, 4), P("a"))
    pinned = rows.with_memory_kind("pinned_host")
    double = jax.jit(lambda x: x * 2)

    def f(x, y):
        return jax.device_put(double(x), pinned), jax.device_put(y, rows) + x, y

    program = pathways.program(f)
    x = jax.device_put(jnp.arange(8.0), rows)
    y = jax.device_put(x, pinned)
    for _ in range(2):
        results = program(x, y)
        same(results, f(x, y))
        assert [r.sharding.memory_kind for r in results] == ["pinned_host", "device", "pinned_host"]


def test_weak_types_and_uncommitted_arrays_stay_so(devices):
    there = jax.device_put(jnp.arange(3.0), devices[5])

    def f(x, y):
        return x + 1, y * x, x * there, jnp.float32(1) + x

    g = pathways.program(f)
    for x, y in ((2.0, jnp.arange(3.0)), (3, jnp.arange(3)), (True, jnp.arange(3)), (1j, jnp.arange(2))):
        if y.shape == there.shape or not isinstance(x, complex):
            same(g(x, y), f(jnp.asarray(x), y))


def test_trees_constants_and_results_that_are_arguments(devices):
    weights = jax.device_put(jnp.arange(8.0), NamedSharding(mesh(devices, 8), P("a")))

    @pathways.program
    def f(state, *, scale):
        return {
            "state": state,
            "same": weights,
            "twice": (state["x"] * scale,) * 2,
            "none": None,
            "number": 3,
            "text": "t",
        }

    state = {"x": jnp.ones(4), "y": [np.arange(3), 2.0]}
    for _ in range(2):
        r = f(state, scale=2.0)
        assert r["state"]["x"] is state["x"] and r["state"]["y"][0] is state["y"][0] and r["state"]["y"][1] == 2.0
        assert r["same"] is weights and r["none"] is None and r["number"] == 3 and r["text"] == "t"
        assert r["twice"][0].tolist() == [2.0] * 4
    # Lists are trees, and the function's own.
    total = pathways.program(lambda xs: (xs.append(xs[0] * xs[1]), xs)[1])
    xs = [2.0, np.arange(3, dtype=np.float32)]
    for _ in range(2):
        assert [np.asarray(x).tolist() for x in total(xs)] == [2.0, [0.0, 1.0, 2.0], [0.0, 2.0, 4.0]] and len(xs) == 2
    # The constant is kept, whatever becomes of it outside.
    g = pathways.program(lambda x: x + weights)
    want = g(1.0).tolist()
    weights.delete()
    assert g(1.0).tolist() == want
    del f, g, r


@pytest.mark.sizes
def test_a_constant_outlives_its_array():
    def make():
        c = jnp.arange(5.0) + 1
        return pathways.program(lambda x: x * c)

    f = make()
    for _ in range(3):
        gc.collect()
        assert f(2.0).tolist() == [2.0, 4.0, 6.0, 8.0, 10.0]


@pytest.mark.sizes
def test_programs_move_and_reshard(devices):
    two, other = NamedSharding(mesh(devices, 2), P("a")), NamedSharding(mesh(devices[4:], 4), P(None, "a"))
    grid = NamedSharding(mesh(devices, 2, 4), P("b", "a"))
    double = jax.jit(lambda x: x * 2)

    def f(x):
        y = double(jax.device_put(x, two))
        z = double(pathways.reshard(y, other))
        w = pathways.reshard(y + 1, grid)
        one = jax.device_put(x, devices[7])
        return y, z, w, double(one), pathways.reshard(z, two), x[1:3], x.addressable_shards[0].data

    g = pathways.program(f)
    x = jnp.arange(64.0).reshape(8, 8)
    before = pathways.stats()["fetches"]
    results = [g(x) for _ in range(3)]
    assert pathways.stats()["fetches"] == before
    for r in results:
        same(r, f(x))


@pytest.mark.sizes
def test_shards_of_several_arrays_in_one(devices):
    pair = NamedSharding(mesh(devices, 2), P("a"))

    def f(x, y):
        shards = [jax.device_put(x, devices[0]), y * 2]
        return jax.make_array_from_single_device_arrays((4,), pair, shards) * 3

    x, y = jnp.arange(2.0), jax.device_put(jnp.arange(2.0), devices[1])
    g = pathways.program(f)
    for _ in range(2):
        same(g(x, y), f(x, y))


@pytest.mark.sizes
def test_gradients_and_random_numbers(devices):
    sharding = NamedSharding(mesh(devices, 4), P("a"))

    @jax.jit
    def loss(w, x):
        return jnp.mean((jnp.tanh(x @ w) - 1) ** 2)

    def step(w, key):
        key, now = jax.random.split(key)
        x = jax.device_put(jax.random.normal(now, (8, 4)), sharding)
        value, gradient = jax.value_and_grad(loss)(w, x)
        return w - 0.1 * gradient, key, value

    w = jax.device_put(jnp.ones((4, 2)), NamedSharding(mesh(devices, 4), P()))
    key = jax.random.key(7)
    g = pathways.program(step)
    a, b = (w, key), (w, key)
    for _ in range(4):
        *a, one = g(*a)
        *b, other = step(*b)
        same((a, one), (b, other))


def test_functions_that_run_later_are_refused():
    def generator(x):
        yield x

    async def later(x):
        return x

    for function in (generator, later):
        with pytest.raises(TypeError, match="is a generator or asynchronous"):
            pathways.program(function)


@pytest.mark.parametrize("given", [3, "f", [abs], np.arange(3)])
def test_what_is_no_function_is_refused_at_once(given):
    with pytest.raises(TypeError, match="expects a function of arrays, got "):
        pathways.program(given)
    with pytest.raises(TypeError, match="expects a function of arrays, got "):
        pathways.program(static_argnums=0)(given)


def test_static_arguments_make_programs_of_their_own():
    seen = []

    @pathways.program(static_argnums=1, static_argnames="mode")
    def f(x, n, *, mode="up"):
        seen.append((n, mode))
        for _ in range(n):
            x = x + 1 if mode == "up" else x - 1
        return x

    assert f(1.0, 3) == 4 and f(1.0, 3) == 4 and f(1.0, n=3) == 4
    assert f(1.0, 2, mode="down") == -1 and f(1.0, n=2, mode="down") == -1
    assert set(seen) == {(3, "up"), (2, "down")}
    with pytest.raises(ValueError, match="cannot be hashed"):
        f(1.0, [])
    with pytest.raises(TypeError, match="static_argnames"):
        f("text", 3)
    with pytest.raises(ValueError, match="does not fit"):
        pathways.program(lambda x: x, static_argnums=4)
    with pytest.raises(ValueError, match="are not arguments"):
        pathways.program(lambda x: x, static_argnames="y")
    with pytest.raises(ValueError, match="both"):
        pathways.program(lambda x: x, static_argnums=0, donate_argnums=0)


def test_programs_in_programs_and_in_jit():
    inner = pathways.program(lambda x, k: x * k, static_argnums=1)

    @pathways.program
    def outer(x):
        return inner(x, 3) + inner(x, 4)

    x = jnp.arange(3.0)
    assert outer(x).tolist() == [0.0, 7.0, 14.0]
    assert jax.jit(outer)(x).tolist() == [0.0, 7.0, 14.0]
    assert jax.grad(lambda x: outer(x).sum())(x).tolist() == [7.0] * 3
    assert jax.vmap(outer)(x).tolist() == [0.0, 7.0, 14.0]


def test_methods_may_be_programs():
    class Model:
        def __init__(self, k):
            self.k = k

        @pathways.program(static_argnums=0)
        def __call__(self, x):
            return x * self.k

    two, three = Model(2), Model(3)
    assert two(1.0) == 2 and three(1.0) == 3 and two(5.0) == 10
    Model.__call__._captured.clear()


def test_errors_of_the_function_are_its_own():
    def f(x):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        pathways.program(f)(1.0)
    assert not _capture.capturing()
    assert (jnp.arange(2) + 1).tolist() == [1, 2]


def test_leaks_are_errors_for_ever(devices):
    leaked = []

    @pathways.program
    def f(x):
        y = x * 2
        leaked.extend([y, jax.device_put(y, devices[1]), jax.device_put(x, NamedSharding(mesh(devices, 4), P()))])
        return y + 1

    assert f(1.0) == 3
    uses = [
        np.asarray,
        lambda x: x.block_until_ready(),
        lambda x: (x + 1).block_until_ready(),
        lambda x: jax.device_put(x, devices[2]).block_until_ready(),
        lambda x: pathways.reshard(x, NamedSharding(mesh(devices[1:], 3), P())).block_until_ready(),
        lambda x: np.from_dlpack(x),
        lambda x: jax.jit(lambda y: y, donate_argnums=0)(x).block_until_ready(),
    ]
    for x in leaked:
        for use in uses:
            if x.is_deleted():
                continue
            with pytest.raises(
                Exception, match="no contents|not available on devices of a cluster|donate|DLPack|dlpack"
            ):
                use(x)
    # In another program as well.
    again = []
    f_again = pathways.program(lambda x: again.append(x * 2))
    f_again(1.0)
    with pytest.raises(Exception, match="no contents"):
        pathways.program(lambda x: x + again[0])(1.0)
    again[0].delete()
    assert again[0].is_deleted()
    again.clear()
    leaked.clear()
    assert f(2.0) == 5


@pytest.mark.sizes
def test_a_node_that_fails_fails_what_depends_on_it(caplog):
    def boom(x):
        raise ValueError("boom in the callback")

    # Alive for as long as the program is: what it calls is Python's.
    bad = jax.jit(lambda x: jax.pure_callback(boom, jax.ShapeDtypeStruct((), jnp.float32), x))
    other = jax.jit(lambda x: x + 2)

    def f(x):
        y = bad(x)
        return y + 1, other(x)

    g = pathways.program(f)
    failed, good = g(1.0)
    assert good == 3
    with pytest.raises(Exception, match="boom"):
        failed.block_until_ready()
    caplog.clear()  # the log keeps the callback's stack, and so the program


@pytest.mark.sizes
def test_threads_may_call_a_program_at_once(devices):
    f = figure_2(devices)
    g = pathways.program(f)
    want = [[a.tolist() for a in f(np.array([float(i), 2.0]))] for i in range(4)]

    def work(i):
        for _ in range(10):
            assert [a.tolist() for a in g(np.array([float(i), 2.0]))] == want[i]

    together(work, range(4))


@pytest.mark.sizes
def test_intermediates_go_at_their_last_use():
    n = 32

    @pathways.program
    def f(x):
        for _ in range(n):
            x = x * 1.5
        return x

    x = jnp.ones(64)
    f(x).block_until_ready()
    before = pathways.stats()["live"]["buffers"]
    y = f(x)
    assert pathways.stats()["live"]["buffers"] == before + 1
    del y


@pytest.mark.sizes
@pytest.mark.skipif(not os.environ.get("PATHWAYS_TEST_ADDRESS"), reason="of clusters: here nodes are calls of a plugin")
def test_a_call_is_one_message(devices):
    n, far = 32, devices[-1]

    @pathways.program
    def f(x):
        for _ in range(n):
            x = x + 1
        return jax.device_put(x, far) * 2, x

    x = jax.device_put(jnp.zeros(4), devices[0])
    same(f(x), (jax.device_put(x + n, far) * 2, x + n))
    before = pathways.stats()
    results = f(x)
    after = pathways.stats()
    assert after["executes"] - before["executes"] == n + 1
    assert after["go_entries"] - before["go_entries"] == 1
    assert results[0].tolist() == [2.0 * n] * 4 and results[1].tolist() == [float(n)] * 4


@pytest.mark.sizes
def test_more_nodes_than_a_message_has(devices):
    """Values are kept, donated and read across all of it, and an error goes where its node's results do."""
    far = devices[-1]
    inc = jax.jit(lambda x: x * 0.5 + 1)
    eat = jax.jit(lambda x: x - 3, donate_argnums=0)
    huge = jax.jit(lambda x: x[0] + jnp.zeros(8 << 40))  # 32 TiB, which no machine has
    head = jax.jit(lambda x: x[:4])

    def f(x):
        early = inc(x)
        y = jax.device_put(early, far)
        for _ in range(4500):
            y = inc(y)
        y = eat(y)
        for _ in range(4500):
            y = inc(y)
        return early, y, jax.device_put(early, far) + y

    g = pathways.program(f)
    x = jax.device_put(jnp.arange(4.0), devices[0])
    want = f(x)
    same(g(x), want)
    before = pathways.stats()
    results = g(x)
    after = pathways.stats()
    same(results, want)
    assert after["executes"] - before["executes"] == 9003
    if os.environ.get("PATHWAYS_TEST_ADDRESS"):  # elsewhere nodes are calls of a plugin
        assert after["go_entries"] - before["go_entries"] == 1

    def fails(x):
        bad, y = huge(x), inc(x)
        for _ in range(4500):
            y = inc(y)
        return y, y + head(bad)

    good, bad = pathways.program(fails)(x)
    for _ in range(4501):
        x = inc(x)
    same(good, x)
    with pytest.raises((jax.errors.JaxRuntimeError, ValueError), match="emory"):
        bad.block_until_ready()


def test_a_program_can_be_looked_at(devices, tmp_path):
    import xml.etree.ElementTree as ElementTree

    f = figure_2(devices)
    g = pathways.program(f)
    v = jax.device_put(np.array([1.0, 2.0]), NamedSharding(mesh(devices, 2), P("a")))
    f(v)
    before = executes()
    lowered = g.lower(v)
    assert executes() == before
    nodes = lowered.graph["nodes"]
    run = [n for n in nodes if n["kind"] == "execute" and len(n["devices"]) == 2]
    ids = [d.id for d in devices]
    assert [n["devices"] for n in run] == [ids[:2], ids[2:4], ids[4:6], ids[:2]]
    assert all("test_program.py:" in n["location"] for n in nodes)
    assert len(nodes) - len(run) <= 3  # an array that moves is one node, whatever its shards
    values = lowered.graph["values"]
    assert [sum(r["bytes"] for r in n["reads"]) for n in run] == [8] * 4
    assert [[values[r["value"]]["devices"] for r in out["reads"]] for out in lowered.graph["outputs"]] == [
        [ids[2:4]],
        [ids[:2]],
    ]
    text = lowered.as_text()
    assert "program figure_2.<locals>.f: 1 input, " in text and "result 1" in text and "test_program.py" in text
    path = tmp_path / "f.svg"
    lowered.save(path)
    root = ElementTree.parse(path).getroot()
    slices = [r for r in root.iter("{http://www.w3.org/2000/svg}rect") if r.get("class") == "slice"]
    transfers = [p for p in root.iter("{http://www.w3.org/2000/svg}path") if p.get("class") == "transfer"]
    assert len(slices) >= 3 and len(transfers) >= 3
    assert lowered._repr_svg_() == path.read_text()
    with pytest.raises(pathways.PathwaysError, match="f.png' does not end in .svg"):
        lowered.save(tmp_path / "f.png")
    described = g.lower(jax.ShapeDtypeStruct(v.shape, v.dtype, sharding=v.sharding))
    assert described.graph == lowered.graph and g.cost().captures == 1
    here = pathways.program(lambda x: jnp.sin(x) * 2)
    described = here.lower(jax.ShapeDtypeStruct((3,), jnp.float32))
    assert described.graph == here.lower(jnp.zeros(3)).graph and here.cost().captures == 1
    for given in (np.ones(3, np.float32), jnp.ones(3), np.ones(3)):  # which were never placed either
        np.testing.assert_array_equal(here(given), here(jnp.ones(3)))
    assert here.cost().captures == 1
    with pytest.raises(TypeError, match="ShapeDtypeStruct"):
        here(jax.ShapeDtypeStruct((3,), jnp.float32))
    cost = g.cost()
    assert cost.captures == 1 and cost.capture > 0 and 0 <= cost.compile <= cost.capture
    # A reshard moves bytes, also on the devices where the array is.
    rows, columns = (NamedSharding(mesh(devices, 4), spec) for spec in (P("a"), P(None, "a")))
    here = pathways.program(lambda x: jnp.sin(pathways.reshard(x, columns)))
    picture = ElementTree.fromstring(here.lower(jax.device_put(np.ones((8, 64), np.float32), rows))._repr_svg_())
    assert [t.text for t in picture.iter("{http://www.w3.org/2000/svg}text") if t.get("class") == "bytes"] == ["2 KiB"]
    # As many nodes for eight shards as for one.
    double = pathways.program(lambda x: jnp.sin(x * 2) + 1)
    one, eight = (
        double.lower(jax.device_put(jnp.zeros(8), s)).graph
        for s in (SingleDeviceSharding(devices[0]), NamedSharding(mesh(devices, 8), P("a")))
    )
    assert len(one["nodes"]) == len(eight["nodes"]) > 0
