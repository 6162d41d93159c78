"""`device.memory_stats()`: its counts are the same in one process and on a cluster."""

import functools
import gc

import jax
import jax.numpy as jnp
import numpy as np
import pathways
import pytest
from fresh import run
from waiting import comes

MiB = 1 << 20
# What JAX has a name for, but for the sizes of a pool, which are an accelerator's.
NUMBERS = {
    "bytes_in_use",
    "bytes_limit",
    "bytes_reservable_limit",
    "bytes_reserved",
    "largest_alloc_size",
    "largest_free_block_bytes",
    "num_allocs",
    "peak_bytes_in_use",
    "peak_bytes_reserved",
}


def put(device, size=MiB):
    return jax.block_until_ready(jax.device_put(np.ones(size // 4, np.float32), device))


def in_use(device):
    return device.memory_stats()["bytes_in_use"]


@pytest.fixture
def device(devices):
    """A device whose arrays are those of the test alone."""
    gc.collect()
    return devices[-1]


def test_devices_tell_every_number_that_jax_knows(devices):
    for device in devices:
        stats = device.memory_stats()
        assert set(stats) == NUMBERS
        assert all(number >= 0 for number in stats.values()), stats


def test_what_all_devices_may_reserve_is_no_more_than_there_is(devices):
    with open("/proc/meminfo") as f:
        (there,) = (int(line.split()[1]) << 10 for line in f if line.startswith("MemTotal:"))
    stats = [device.memory_stats() for device in devices]
    assert sum(s["bytes_reservable_limit"] for s in stats) <= there
    for s in stats:
        assert s["bytes_reservable_limit"] <= s["bytes_limit"] <= there
        assert s["bytes_reservable_limit"] > s["bytes_limit"] // 16, "eight devices share a machine"


def test_arrays_are_counted_while_they_live(device):
    before = device.memory_stats()
    x = put(device)
    during = device.memory_stats()
    assert during["bytes_in_use"] == before["bytes_in_use"] + MiB
    assert during["num_allocs"] == before["num_allocs"] + 1
    assert during["largest_alloc_size"] >= MiB
    assert during["peak_bytes_in_use"] >= during["bytes_in_use"]
    assert during["largest_free_block_bytes"] == before["largest_free_block_bytes"] - MiB
    del x
    gc.collect()
    assert comes(lambda: in_use(device) == before["bytes_in_use"])
    after = device.memory_stats()
    assert after["peak_bytes_in_use"] == during["peak_bytes_in_use"]
    assert after["num_allocs"] == during["num_allocs"]


def test_sharded_arrays_count_on_each_device(devices):
    before = [in_use(device) for device in devices]
    mesh = jax.make_mesh((len(devices),), ("x",), devices=devices)
    split = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
    x = jax.block_until_ready(jax.device_put(np.ones(len(devices) * MiB // 4, np.float32), split))
    assert [in_use(device) - b for device, b in zip(devices, before, strict=True)] == [MiB] * len(devices)
    y = jax.jit(jnp.sin)(x)
    assert [in_use(device) - b for device, b in zip(devices, before, strict=True)] == [2 * MiB] * len(devices)
    del x, y


def test_deleted_arrays_do_not_count(device):
    before = in_use(device)
    x = put(device)
    x.delete()
    assert comes(lambda: in_use(device) == before)


def test_a_donated_array_and_what_takes_its_memory_count_once(device):
    @functools.partial(jax.jit, donate_argnums=0)
    def more(x):
        return x + 1

    x = put(device, 64 * MiB)  # more than any other test here has on a device
    peak = device.memory_stats()["peak_bytes_in_use"]
    for _ in range(40):  # more than are under way at once, so that some wait for their turn
        x = more(x)
    assert device.memory_stats()["peak_bytes_in_use"] == peak
    assert float(jax.block_until_ready(x)[0]) == 41


def test_what_a_program_keeps_counts_once(device):
    before = in_use(device)
    kept = [put(device)]

    @jax.jit
    def more(x, y):
        return x + y

    @pathways.program
    def program(y):
        return more(kept[0], y)

    y = jax.block_until_ready(program(*kept))
    assert comes(lambda: in_use(device) == before + 2 * MiB)
    kept.clear()
    gc.collect()
    assert in_use(device) == before + 2 * MiB  # the program keeps it
    z = jax.block_until_ready(program(y))
    assert float(z[0]) == 3
    del program, y, z
    gc.collect()
    assert comes(lambda: in_use(device) == before)


def test_an_array_that_moved_counts_where_it_is(devices):
    before = [in_use(devices[i]) for i in (0, -1)]
    x = put(devices[0])
    y = pathways.reshard(x, jax.sharding.SingleDeviceSharding(devices[-1]))
    jax.block_until_ready(y)
    assert [in_use(devices[i]) - b for i, b in zip((0, -1), before, strict=True)] == [MiB, MiB]
    del x, y
    gc.collect()
    assert comes(lambda: [in_use(devices[i]) for i in (0, -1)] == before)


@pytest.mark.embedded("workers have limits of their own")
def test_a_limit_is_told():
    run(
        """
        import jax
        pathways.init(memory_limit=1 << 20)
        for device in jax.devices():
            stats = device.memory_stats()
            assert stats["bytes_limit"] == stats["bytes_reservable_limit"] == 1 << 20, stats
        """
    )
