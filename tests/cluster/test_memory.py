"""The memory limit of workers, `pathways up --memory-limit`."""

import pytest
from processes import Cluster, until

CLIENT = """
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import NamedSharding, PartitionSpec
mesh = jax.make_mesh((4,), ("x",))
split = NamedSharding(mesh, PartitionSpec("x"))
MiB = 1 << 18  # elements
def refused(make):
    try:
        jax.block_until_ready(make())
    except (jax.errors.JaxRuntimeError, ValueError) as error:
        return str(error)
    raise AssertionError("there is room")
"""


@pytest.fixture(scope="module")
def cluster():
    with Cluster(2, 2, "--memory-limit", "8MiB") as cluster:
        cluster.begin = CLIENT
        yield cluster
        until("nothing is left", cluster.idle)


def test_limit_is_reported(cluster):
    for worker in cluster.workers().values():
        assert [int(device["memory_limit"]) for device in worker["devices"]] == [8 << 20] * 2


def test_limit_reaches_the_client(cluster):
    cluster.run("""
for device in jax.devices():
    before = device.memory_stats()
    assert before["bytes_limit"] == before["bytes_reservable_limit"] == 8 << 20, before
    x = jax.block_until_ready(jax.device_put(np.ones(MiB, np.float32), device))
    after = device.memory_stats()
    assert after["bytes_in_use"] == after["peak_bytes_in_use"] == after["largest_alloc_size"] == 1 << 20, after
    assert (after["num_allocs"], after["largest_free_block_bytes"]) == (1, 7 << 20), after
""")


def test_what_does_not_fit_is_an_error_that_says_who_has_what(cluster):
    cluster.run("""
@jax.jit
def doubled(x):
    return x + x
x = jax.device_put(np.ones(4 * MiB, np.float32), jax.devices()[0])
y = doubled(x)
jax.block_until_ready(y)
def another():
    return doubled(x)  # the line
line = another.__code__.co_firstlineno + 1
for make, place in ((another, f"[jit_doubled, called at <string>:{line}, on device 0 of worker worker-0]"),
                    (lambda: jax.device_put(np.ones(MiB, np.float32), jax.devices()[0]), "")):
    text = refused(make)
    parts = ("RESOURCE_EXHAUSTED", "8 MiB are in use", "4 MiB in 1 of device_put", "jit_doubled", "--memory-limit")
    for part in (*parts, place):
        assert part in text, text
# Other devices have room, and so has this one when something has gone.
jax.block_until_ready(jax.device_put(np.ones(2 * MiB, np.float32), jax.devices()[1]))
assert np.asarray(y)[0] == 2
del x
z = doubled(y)
assert (np.asarray(z) == 4).all()
""")


def test_loop_that_runs_ahead_stays_within_the_limit(cluster):
    # Each step makes 2 MiB a device and drops as much; all of them are far more than the limit.
    cluster.run("""
step = jax.jit(lambda x: jnp.sin(x) + 1)
given = jax.jit(lambda x: jnp.sin(x) + 1, donate_argnums=0)
summed = jax.jit(lambda x: x + jnp.sum(x))
start = np.arange(8 * MiB, dtype=np.float32) / 8 / MiB
want = start
for _ in range(20):
    want = np.sin(want) + 1
for f in (step, given):
    x = jax.device_put(start, split)
    for _ in range(20):
        x = f(x)
    np.testing.assert_allclose(np.asarray(x), want, rtol=1e-5)
x = jax.device_put(np.zeros(8 * MiB, np.float32), split)
for _ in range(20):
    x = summed(x)  # which spans workers
assert not np.asarray(x).any()
# From one device to the other and back, and new arrays all the time.
y = jax.device_put(np.ones(2 * MiB, np.float32), jax.devices()[0])
for i in range(20):
    y = jax.device_put(y, jax.devices()[(i + 1) % 4])
    fresh = jax.device_put(np.full(2 * MiB, i, np.float32), jax.devices()[i % 4])
assert np.asarray(y).all() and np.asarray(fresh)[5] == 19
""")
