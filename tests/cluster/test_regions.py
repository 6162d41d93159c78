"""A region of an array moves when its shard is there, and can be read and computed with then: it does not wait for the
whole array."""

from processes import Cluster

SCRIPT = """
import sys
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

devices = jax.devices()
two = NamedSharding(Mesh(np.array(devices[:2]), "a"), P("a"))
four = NamedSharding(Mesh(np.array(devices[2:]), "a"), P("a"))


def compute(x, rounds):
    return jax.lax.fori_loop(0, rounds[0], lambda _, v: jnp.sin(v) + 1, x)


compute = jax.jit(jax.shard_map(compute, mesh=two.mesh, in_specs=P("a"), out_specs=P("a"), check_vma=False))
double = jax.jit(lambda v: v * 2)
x = jax.device_put(np.ones(8192, np.float32), two)


def move(x, rounds):
    return pathways.reshard(compute(x, rounds), four)


for play in (move, pathways.program(move)):
    for longer in range(7):  # until it takes longer than whatever delays the other shard
        y = play(x, jax.device_put(np.array([4**longer, 1], np.int32) * 100, two))
        slow, *_, quick = (shard.data for shard in y.addressable_shards)
        np.asarray(double(quick))
        np.asarray(quick)
        if not slow.is_ready():
            break
        y.block_until_ready()
    else:
        sys.exit("the quick shard came only when the slow one did")
    y.block_until_ready()
"""


def test_a_region_moves_when_its_shard_is_ready():
    with Cluster(6, 1) as cluster:
        cluster.run("import pathways\n" + SCRIPT)
