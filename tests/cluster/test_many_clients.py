"""Clients that share devices with little memory do random work at the same time, and some are killed in its midst.

What the others compute is right to the bit, and nothing of those that went is left. PATHWAYS_SEED repeats a run, as far
as its choices go; `make soak` goes on for longer.
"""

from __future__ import annotations

import random
import time

import pytest
from conftest import SEED, SOAK_SECONDS
from fresh import hear
from processes import Cluster, until

# Integers, so that sums are the same in any order. A step that finds no memory lets go of all that the client has.
WALK = """
import random, time
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

choose = random.Random({seed})
devices = jax.devices()
n = len(devices)
rows = NamedSharding(Mesh(np.array(devices), ("d",)), P("d"))
back = NamedSharding(Mesh(np.array(devices[::-1]), ("d",)), P("d"))
kept = []  # arrays, each with what is in it

add = jax.jit(lambda x, y: x + y)
grow = jax.jit(lambda x: x + 1, donate_argnums=0)
total = jax.jit(jax.shard_map(lambda x: x + jax.lax.psum(x.sum(), "d"), mesh=rows.mesh, in_specs=P("d"),
                              out_specs=P("d")))

def fresh():
    return np.arange(n * choose.choice([1, 100, 1 << 14, 1 << 17]), dtype=np.int32) * choose.randrange(1000)

def put():
    a = fresh()
    kept.append((jax.device_put(a, rows), a))

def put_apart():
    a = fresh()
    shards = [jax.device_put(part, d) for part, d in zip(np.split(a, n), devices)]
    kept.append((jax.make_array_from_single_device_arrays(a.shape, rows, shards), a))

def move():
    x, a = choose.choice(kept)
    kept.append((jax.device_put(jax.device_put(x, back), rows), a))

def double():
    x, a = choose.choice(kept)
    kept.append((add(x, x), a + a))

def donate():
    x, a = kept.pop(choose.randrange(len(kept)))
    kept.append((grow(x), a + 1))

def reduce():
    x, a = choose.choice(kept)
    kept.append((total(x), a + a.sum(dtype=np.int32)))

def constant():
    size = choose.choice([1 << 10, 1 << 20])
    table = np.random.default_rng(choose.randrange(9)).integers(0, 99, size, dtype=np.int32)
    x, a = choose.choice(kept)
    kept.append((jax.jit(lambda x, i: x + jnp.asarray(table)[i])(x, 7), a + table[7]))

def check():
    x, a = choose.choice(kept)
    got = np.asarray(x)
    assert np.array_equal(got, a), (a.shape, np.flatnonzero(got != a)[:5])

def drop():
    del kept[choose.randrange(len(kept))]

steps = [put, put_apart, move, double, donate, reduce, constant, check, check, drop, drop]
print("ready", flush=True)
end, done, short = time.monotonic() + {seconds}, 0, 0
while time.monotonic() < end:
    step = choose.choice(steps) if kept else put
    try:
        step()
        done += 1
        if len(kept) > 6:
            drop()
    except (jax.errors.JaxRuntimeError, ValueError) as error:  # the second by JAX's fast path
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        short += 1
        kept.clear()
print("done", done, short, flush=True)
"""


@pytest.mark.soak
def test_random_work_of_clients_that_come_and_go():
    choose = random.Random(SEED)
    with Cluster(2, 2, "--memory-limit", "4MiB") as cluster:
        left = SOAK_SECONDS
        while left > 0:
            each = min(left, 20)
            left -= each
            clients = [cluster.start(WALK.format(seed=choose.randrange(1 << 30), seconds=each)) for _ in range(3)]
            for client in clients:
                assert hear(client) == "ready"
            victim = clients.pop()
            time.sleep(choose.uniform(0, each / 2))
            victim.kill()
            victim.communicate()
            for client in clients:
                out, err = client.communicate()
                assert client.returncode == 0 and out.startswith("done"), f"{out}\n{err}"
                print(out, end="")
        until("all to be freed", cluster.idle)
