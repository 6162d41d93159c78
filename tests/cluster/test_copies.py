"""How often the bytes of an array are copied between a client and a worker of one machine, through shared memory.

What a process copies it counts itself (`stats()["copied"]`). What a worker takes over without a copy stays in the
shared memory, which its heartbeats tell the size of. A worker writes what is read into the client's shared memory; the
client copies it from there only where it is to be somewhere else, as are arrays of many shards.
"""

import pytest
from fresh import finish
from processes import Cluster, until

SIZE = 16 << 20

CLIENT = f"""
import sys
import jax, numpy as np

room = np.zeros({SIZE} + 64, np.uint8)
at = -room.ctypes.data % 64
x = room[at : at + {SIZE}].view(np.float32)
x[:] = np.arange(x.size)


def copied(f):
    before = pathways.stats()["copied"]
    result = f()
    print((pathways.stats()["copied"] - before) / {SIZE}, flush=True)
    return result


one = jax.block_until_ready(jax.device_put(np.float32(1)))
y = copied(lambda: jax.block_until_ready(jax.device_put(x)))
two = jax.block_until_ready(jax.device_put(np.float32(2)))
sys.stdin.readline()
np.testing.assert_array_equal(x, copied(lambda: np.asarray(y)))
z = jax.block_until_ready(y + 1)
np.testing.assert_array_equal(x + 1, copied(lambda: jax.device_get([z])[0]))
"""


def test_device_put_copies_once_and_reading_never():
    with Cluster(1, 1) as cluster:
        client = cluster.start("import pathways\n" + CLIENT)
        put = client.stdout.readline()
        said = {}

        def both():
            said.update(cluster.workers()["worker-0"]["last"])
            return int(said.get("objects", 0)) >= 3 or client.poll() is not None

        until("the array and what was put after it", both)
        client.stdin.write("go on\n")
        done = finish(client)
        assert done.returncode == 0, done
        assert float(put) == pytest.approx(1, abs=0.01), "device_put copies once, straight into the shared memory"
        assert int(said.get("host_bytes", 0)) >= SIZE, "the worker's plugin takes it from there without a copy"
        for read in done.stdout.split():
            assert float(read) == pytest.approx(0, abs=0.01), "np.asarray looks at what the worker has written"
