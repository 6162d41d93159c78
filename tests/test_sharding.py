"""Eight devices as one: meshes, shardings, collectives, pmap and a sharded training step."""

import jax
import jax.numpy as jnp
import numpy as np
import pathways  # noqa: F401
import pytest
from jax import lax
from jax.sharding import Mesh, NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P

pytestmark = [pytest.mark.sizes, pytest.mark.versions]

RING = [(i, (i + 1) % 8) for i in range(8)]


@pytest.fixture
def mesh():
    return Mesh(np.array(jax.devices()), ("x",))


@pytest.fixture
def grid():
    return Mesh(np.array(jax.devices()).reshape(2, 4), ("data", "model"))


def values(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def test_a_sharded_array_holds_the_right_rows_on_each_device(mesh):
    host = values(16, 6)
    x = jax.device_put(host, NamedSharding(mesh, P("x")))
    assert [s.device for s in x.addressable_shards] == jax.devices()
    for i, shard in enumerate(x.addressable_shards):
        np.testing.assert_array_equal(np.asarray(shard.data), host[2 * i : 2 * i + 2])
    np.testing.assert_array_equal(np.asarray(x), host)


@pytest.mark.parametrize(
    "spec", [P(), P("data"), P(None, "model"), P("data", "model"), P("model", "data"), P(("data", "model"))]
)
def test_computations_over_every_way_to_cut(grid, spec):
    host = values(16, 8)
    x = jax.device_put(host, NamedSharding(grid, spec))
    y = jax.jit(lambda v: v @ v.T)(x)
    np.testing.assert_allclose(np.asarray(y), host @ host.T, rtol=1e-4, atol=1e-5)
    assert len(y.sharding.device_set) == 8


def test_resharding_inside_and_outside_a_program(grid):
    host = values(8, 8)
    a, b = NamedSharding(grid, P("data", "model")), NamedSharding(grid, P("model"))
    x = jax.device_put(host, a)
    inside = jax.jit(lambda v: v + 0, out_shardings=b)(x)
    outside = jax.device_put(x, b)
    back = jax.device_put(outside, jax.devices()[5])
    for y in (inside, outside):
        assert y.sharding.is_equivalent_to(b, 2)
        np.testing.assert_array_equal(np.asarray(y), host)
    assert back.devices() == {jax.devices()[5]}
    np.testing.assert_array_equal(np.asarray(back), host)


def test_arrays_of_several_shardings_meet_in_one_program(grid):
    a, b = values(8, 16), values(16, 4, seed=1)
    xa = jax.device_put(a, NamedSharding(grid, P("data", "model")))
    xb = jax.device_put(b, NamedSharding(grid, P("model")))
    out = jax.jit(lambda p, q, r: p @ q + r, out_shardings=NamedSharding(grid, P("data")))(xa, xb, 1.0)
    np.testing.assert_allclose(np.asarray(out), a @ b + 1, rtol=1e-4, atol=1e-5)


def test_collectives_of_shard_map(mesh):
    host = np.arange(16, dtype=np.float32).reshape(8, 2)
    x = jax.device_put(host, NamedSharding(mesh, P("x")))

    def each(f, out=P("x")):
        return np.asarray(jax.jit(jax.shard_map(f, mesh=mesh, in_specs=P("x"), out_specs=out))(x))

    np.testing.assert_array_equal(each(lambda v: lax.psum(v, "x"), P()), host.sum(0, keepdims=True))
    np.testing.assert_array_equal(each(lambda v: lax.pmax(v, "x"), P()), host.max(0, keepdims=True))
    np.testing.assert_array_equal(each(lambda v: lax.pmean(v, "x"), P()), host.mean(0, keepdims=True))
    np.testing.assert_array_equal(each(lambda v: lax.ppermute(v, "x", RING)), np.roll(host, 1, axis=0))
    gathered = each(lambda v: lax.all_gather(v, "x").reshape(1, 16))
    np.testing.assert_array_equal(gathered, np.tile(host.reshape(1, 16), (8, 1)))
    np.testing.assert_array_equal(each(lambda v: v + lax.axis_index("x")), host + np.arange(8)[:, None])

    square = np.arange(64, dtype=np.float32).reshape(8, 8)
    put = jax.device_put(square, NamedSharding(mesh, P("x")))
    turn = jax.shard_map(
        lambda v: lax.all_to_all(v, "x", split_axis=1, concat_axis=0, tiled=True),
        mesh=mesh,
        in_specs=P("x"),
        out_specs=P(None, "x"),
    )
    np.testing.assert_array_equal(np.asarray(jax.jit(turn)(put)), square)
    scatter = jax.shard_map(
        lambda v: lax.psum_scatter(v[0], "x", tiled=True)[None], mesh=mesh, in_specs=P("x"), out_specs=P("x")
    )
    np.testing.assert_array_equal(np.asarray(jax.jit(scatter)(put)).ravel(), square.sum(0))


def test_collectives_over_groups(grid):
    host = values(2, 4)
    x = jax.device_put(host, NamedSharding(grid, P("data", "model")))
    f = jax.shard_map(
        lambda v: (lax.psum(v, "model"), lax.psum(v, "data")),
        mesh=grid,
        in_specs=P("data", "model"),
        out_specs=(P("data"), P(None, "model")),
    )
    rows, columns = jax.jit(f)(x)
    np.testing.assert_allclose(np.asarray(rows), host.sum(1, keepdims=True), rtol=1e-5)
    np.testing.assert_allclose(np.asarray(columns), host.sum(0, keepdims=True), rtol=1e-5)


@pytest.mark.parametrize("picks", [[0, 1], [2, 5, 7], [7, 6, 5, 4, 3, 2, 1, 0]])
def test_meshes_of_some_devices_in_any_order(picks):
    devices = [jax.devices()[i] for i in picks]
    mesh = Mesh(np.array(devices), ("x",))
    host = values(len(picks), 3)
    x = jax.device_put(host, NamedSharding(mesh, P("x")))
    total = jax.jit(jax.shard_map(lambda v: lax.psum(v, "x"), mesh=mesh, in_specs=P("x"), out_specs=P()))(x)
    assert total.sharding.device_set == set(devices)
    np.testing.assert_allclose(np.asarray(total), host.sum(0, keepdims=True), rtol=1e-5)
    assert [s.device for s in x.addressable_shards] == devices


def test_pmap_runs_over_all_devices():
    host = values(8, 4)
    out = jax.pmap(lambda v: v / lax.psum(jnp.sum(v), "i"), axis_name="i")(host)
    np.testing.assert_allclose(np.asarray(out), host / host.sum(), rtol=1e-4)
    assert out.sharding.device_set == set(jax.devices())
    again = jax.pmap(lambda v: v * 2)(out)
    np.testing.assert_array_equal(np.asarray(again), np.asarray(out) * 2)


@pytest.mark.parametrize("picks", [[2, 3], [5, 1, 4]])
def test_pmap_moves_inputs_to_its_devices(picks):
    devices = [jax.devices()[i] for i in picks]
    double = jax.pmap(lambda v: v * 2, devices=devices)
    host = values(len(picks), 4)
    elsewhere = jax.pmap(lambda v: v + 0, devices=jax.devices()[-len(picks) :])(host)
    for x in (host, elsewhere):
        out = double(x)
        assert out.sharding.device_set == set(devices)
        np.testing.assert_array_equal(np.asarray(out), host * 2)


@pytest.mark.embedded("reads the addresses of shards")
def test_donation_of_a_sharded_array(mesh):
    host = values(8, 1024)
    # The result of a computation: memory of the plugin's own, not NumPy's, which may not be written over.
    x = jax.jit(lambda v: v * 1)(jax.device_put(host, NamedSharding(mesh, P("x"))))
    places = [s.data.unsafe_buffer_pointer() for s in x.addressable_shards]
    y = jax.jit(lambda v: v + 1, donate_argnums=0)(x)
    assert x.is_deleted()
    assert [s.data.unsafe_buffer_pointer() for s in y.addressable_shards] == places
    np.testing.assert_array_equal(np.asarray(y), host + 1)


def test_make_array_from_single_device_arrays_and_callback(mesh):
    rows = [jax.device_put(np.full((1, 3), i, np.float32), d) for i, d in enumerate(jax.devices())]
    sharding = NamedSharding(mesh, P("x"))
    x = jax.make_array_from_single_device_arrays((8, 3), sharding, rows)
    np.testing.assert_array_equal(np.asarray(jax.jit(lambda v: v.sum(0))(x)), np.full(3, 28.0))
    host = values(8, 5)
    y = jax.make_array_from_callback((8, 5), sharding, lambda index: host[index])
    np.testing.assert_array_equal(np.asarray(y), host)


def test_each_device_computes_for_itself():
    step = jax.jit(lambda v: v * 3 + 1)
    xs = [jax.device_put(np.float32(i), d) for i, d in enumerate(jax.devices())]
    for _ in range(5):
        xs = [step(x) for x in xs]
    assert [x.devices() for x in xs] == [{d} for d in jax.devices()]
    assert [float(x) for x in xs] == [243.0 * i + 121 for i in range(8)]


def test_device_put_between_devices_keeps_the_source():
    x = jax.device_put(values(100), jax.devices()[1])
    y = jax.device_put(x, jax.devices()[6])
    host = np.array(x)
    x.delete()
    assert y.sharding == SingleDeviceSharding(jax.devices()[6])
    np.testing.assert_array_equal(np.asarray(y), host)


def test_mixing_devices_in_one_call_is_refused():
    a = jax.device_put(np.float32(1), jax.devices()[0])
    b = jax.device_put(np.float32(1), jax.devices()[1])
    with pytest.raises(ValueError, match="incompatible devices"):
        jax.jit(lambda x, y: x + y)(a, b)


def train(spec_of_weights, mesh, steps=25):
    """Trains a two-layer network; returns the losses."""
    x, y = values(64, 8), values(64, 1, seed=1)
    shard = lambda v, spec: jax.device_put(v, NamedSharding(mesh, spec))
    params = shard(values(8, 32, seed=2) * 0.3, spec_of_weights), shard(values(32, 1, seed=3) * 0.3, P())

    def loss(params, x, y):
        return jnp.mean((jnp.tanh(x @ params[0]) @ params[1] - y) ** 2)

    @jax.jit
    def step(params, x, y):
        value, grads = jax.value_and_grad(loss)(params, x, y)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value

    x, y = shard(x, P("data")), shard(y, P("data"))
    losses = []
    for _ in range(steps):
        params, value = step(params, x, y)
        losses.append(value)
    return np.array([float(v) for v in losses])


def test_sharded_training_follows_training_on_one_device(grid):
    one = Mesh(np.array(jax.devices()[:1]).reshape(1, 1), ("data", "model"))
    alone = train(P(), one)
    assert alone[-1] < 0.8 * alone[0]
    np.testing.assert_allclose(train(P(None, "model"), grid), alone, rtol=1e-4)
    np.testing.assert_allclose(train(P(), grid), alone, rtol=1e-4)
