"""What a shard costs a client: the time until a call of a tiny jitted function on n devices returns, JAX and our PJRT
door together. The devices are the CPU plugin's, behind the whole control plane in this process; they run what they are
given while nothing is timed.

    python tests/bench/shards.py 1 8 64 512

Prints a line of JSON: microseconds a call, by number of devices.
"""

import json
import sys
import time

import jax
import numpy as np
import pathways
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

CALLS = 8  # between waits; within what a session may have under way


def returns(devices, rounds):
    """Gives the seconds until a call returns, the least of some rounds' means."""
    sharding = NamedSharding(Mesh(np.array(devices), ("d",)), P("d"))
    f = jax.jit(lambda x: x + 1)
    x = jax.block_until_ready(f(jax.device_put(np.zeros(len(devices), np.float32), sharding)))
    took = []
    for _ in range(rounds):
        y = x
        begin = time.perf_counter()
        for _ in range(CALLS):
            y = f(y)
        took.append((time.perf_counter() - begin) / CALLS)
        y.block_until_ready()
    return min(took)


def main():
    sizes = [int(n) for n in sys.argv[1:]]
    pathways.init(address=f"local:1x{max(sizes)}")
    devices = jax.devices()
    print(json.dumps({n: 1e6 * returns(devices[:n], 50) for n in sizes}))


if __name__ == "__main__":
    main()
