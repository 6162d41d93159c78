"""What the systems of the cluster table compute; all of them run these functions.

A *computation* is an AllReduce of one float32 a participant, scaled by 1/N, plus 1; "add" is the plus alone. Starting
from zeros, every participant therefore holds the number of computations done: each measurement checks it.
"""

import time

import jax
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

CHAIN = 128  # computations in one fused program


def programs(devices):
    """Gives the programs on these devices by name, and their first argument."""
    n = len(devices)
    mesh = Mesh(np.array(devices), ("d",))
    sharding = NamedSharding(mesh, P("d"))

    def add(x):
        return x + np.float32(1)

    def reduce(x):
        return add(lax.psum(x, "d") * np.float32(1 / n))

    def fused(x):
        for _ in range(CHAIN):
            x = reduce(x)
        return x

    def loop(x):
        return lax.fori_loop(0, CHAIN, lambda _, v: reduce(v), x)

    def on_each(f):
        return jax.jit(jax.shard_map(f, mesh=mesh, in_specs=P("d"), out_specs=P("d"), check_vma=False))

    zeros = jax.make_array_from_callback((n,), sharding, lambda at: np.zeros(n, np.float32)[at])
    return {"add": jax.jit(add), "reduce": on_each(reduce), "fused": on_each(fused), "loop": on_each(loop)}, zeros


def computations(program, calls):
    """How many computations some calls of a program are."""
    return calls * (CHAIN if program in ("fused", "loop") else 1)


def check(program, calls, values):
    """Raises where a participant's value is not the number of computations done since zero."""
    want = computations(program, calls)
    if any(value != want for value in values):
        raise ValueError(f"{program}: {calls} calls from 0 gave {list(values)}, want {want} at each participant")


def chain(f, x, calls, sync):
    """Calls f on its own result, and gives the last one and the seconds until it is there. sync waits for each."""
    start = time.perf_counter()
    for _ in range(calls):
        x = f(x)
        if sync:
            x.block_until_ready()
    x.block_until_ready()
    return x, time.perf_counter() - start


def values(x):
    """The values of this process's participants."""
    return [float(np.asarray(shard.data)[0]) for shard in x.addressable_shards]
