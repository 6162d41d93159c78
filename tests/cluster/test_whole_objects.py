"""Arrays whose shards are put one by one are one object of the cluster. Their shards still live by themselves."""

import pytest
from processes import Cluster, until

CLIENT = """
import jax, numpy as np, pathways
from jax.sharding import NamedSharding, PartitionSpec
devices = jax.devices()
split = NamedSharding(jax.make_mesh((4,), ("x",)), PartitionSpec("x"))
MiB = 1 << 18  # elements
def objects():
    return pathways.stats()["live"].get("objects", 0)
def one_object(put):
    before = objects()
    x = put()
    assert objects() == before + 1, "the shards are one object"
    return x
"""


@pytest.fixture(scope="module")
def cluster():
    with Cluster(2, 2, "--memory-limit", "8MiB") as cluster:
        cluster.begin = CLIENT
        yield cluster
        until("nothing is left", cluster.idle)


def test_sharded_put_is_one_object(cluster):
    cluster.run("""
for dtype, n in ((np.float32, 64), (np.int8, 4 * MiB), (np.complex64, 0)):
    value = np.arange(n).astype(dtype)
    x = one_object(lambda: jax.device_put(value, split))
    assert np.array_equal(np.asarray(x), value)
    for shard in x.addressable_shards:
        assert np.array_equal(np.asarray(shard.data), value[shard.index])
    y = jax.jit(lambda a: a + a)(x)
    assert np.array_equal(np.asarray(y), value + value)
    del x, y, shard
# What differs in shape, or goes to the same device, is apart.
before = objects()
x = [jax.device_put(np.ones(4, np.float32), d) for d in (devices[0], devices[1], devices[0])]
x.append(jax.device_put(np.ones(5, np.float32), devices[1]))
assert objects() >= before + 3, objects() - before
assert [float(a.sum()) for a in x] == [4, 4, 4, 5]
""")


def test_shard_is_freed_while_its_object_stays(cluster):
    cluster.run("""
value = np.arange(5 * MiB, dtype=np.float32)  # two do not fit on one device
first, second = one_object(lambda: [jax.device_put(value, d) for d in devices[:2]])
for round in range(3):
    jax.block_until_ready((first, second))
    if round % 2:
        first.delete()
    del first
    first = jax.device_put(value + round, devices[0])
assert np.array_equal(np.asarray(first), value + 2)
assert np.array_equal(np.asarray(second), value)
""")


def test_error_of_a_shard_is_that_of_its_array(cluster):
    cluster.run("""
kept = jax.block_until_ready(jax.device_put(np.ones(5 * MiB, np.float32), devices[3]))
x = jax.device_put(np.ones(4 * 5 * MiB, np.float32), split)
plus = jax.jit(lambda a: a + 1)
for read in (lambda: x.block_until_ready(), lambda: np.asarray(x), lambda: plus(x).block_until_ready()):
    try:
        read()
    except jax.errors.JaxRuntimeError as error:
        assert "RESOURCE_EXHAUSTED" in str(error), error
    else:
        raise AssertionError("there is room")
del x
assert np.asarray(kept).all()
# Their bytes are gone again.
jax.block_until_ready(jax.device_put(np.ones(7 * MiB, np.float32), devices[0]))
""")


def test_array_of_shards_that_were_made_apart(cluster):
    cluster.run("""
value = np.arange(64, dtype=np.float32)
add = jax.jit(lambda a, n: a + n, static_argnums=1)
def pieces():
    return [add(jax.device_put(value[16 * i : 16 * i + 16], d), i) for i, d in enumerate(devices)]
def array(shards):
    return jax.make_array_from_single_device_arrays((64,), split, shards)
want = value + np.arange(64) // 16
shards = pieces()
x, total, twice = array(shards), jax.jit(jax.numpy.sum), jax.jit(lambda a: a * 2)
for _ in range(4):  # from the second time on, one object is named
    assert float(total(x)) == want.sum()
    assert np.array_equal(np.asarray(twice(x)), want * 2)
for shard in x.addressable_shards:  # no bytes moved, and shards live on
    assert np.array_equal(np.asarray(shard.data), want[shard.index])
del x, shard
assert [float(s.sum()) for s in shards] == [want[16 * i : 16 * i + 16].sum() for i in range(4)]
# With other shards it is another array.
shards[1] = add(shards[1], 100)
want[16:32] += 100
y = array(shards)
for _ in range(3):
    assert float(total(y)) == want.sum()
# Donated, its shards are gone.
taken = jax.jit(lambda a: a + 1, donate_argnums=0)(y)
assert np.array_equal(np.asarray(taken), want + 1)
assert all(s.is_deleted() for s in shards), [s.is_deleted() for s in shards]
del y, shards
z = array(pieces())
results = [total(z) for _ in range(3)]
del z  # while they are under way
assert len({float(r) for r in results}) == 1
""")
