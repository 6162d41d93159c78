"""Collectives of JAX, on so many devices: AllReduce, AllGather, AllToAll and ReduceScatter of arrays of float32.

Add is for comparison: it adds 1 where the array lies.

python exchange.py ours N           the devices of the cluster that PATHWAYS_ADDRESS names
python exchange.py one N            jaxlib's CPU devices, all in this process
python exchange.py gloo N           starts N ranks and answers for them: the time is that of the slowest
python exchange.py gloo N rank port
"""

import pathlib
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

import sides  # noqa: E402

stream = sides.answers()
system, n = sys.argv[1], int(sys.argv[2])
if system == "ours":
    import pathways  # noqa: F401


def serve():
    import computation
    import jax
    import numpy as np
    from jax import lax
    from jax.sharding import Mesh, NamedSharding
    from jax.sharding import PartitionSpec as P

    if system == "one":
        jax.config.update("jax_num_cpu_devices", n)
    elif system == "gloo":
        computation.join(int(sys.argv[3]), n, int(sys.argv[4]))
    mesh = Mesh(np.array(jax.devices()[:n]), ("d",))
    sharding = NamedSharding(mesh, P("d"))
    operations = {
        "Add": lambda x: x + 1,
        "AllReduce": lambda x: lax.psum(x, "d"),
        "AllGather": lambda x: lax.all_gather(x, "d", tiled=True),
        "AllToAll": lambda x: lax.all_to_all(x, "d", 0, 0, tiled=True),
        "ReduceScatter": lambda x: lax.psum_scatter(x, "d", scatter_dimension=0, tiled=True),
    }

    def on_each(f):
        return jax.jit(jax.shard_map(f, mesh=mesh, in_specs=P("d"), out_specs=P("d"), check_vma=False))

    meet = on_each(lambda x: lax.psum(x, "d"))
    one = jax.device_put(np.zeros(n, np.float32), sharding)
    kept = {}  # the program and the argument that are measured now

    def made(operation, size, put):
        if (operation, size, put) not in kept:
            kept.clear()
            length = size // 4
            # Device d has d * n + p in the part for device p.
            x = jax.make_array_from_callback(
                (n * length,),
                sharding,
                lambda at: np.repeat(np.arange(n, dtype=np.float32) + n * (at[0].start // length), length // n),
            )
            if not put:
                x = on_each(lambda x: x + 0)(x)  # computed, as gradients are
            kept[operation, size, put] = on_each(operations[operation]), x
        return kept[operation, size, put]

    def check(operation, y):
        """Raises where the first or last value of a participant is not what it has to be."""
        for shard in y.addressable_shards:
            d = (shard.index[0].start or 0) // (y.shape[0] // n)
            total = n * sum(range(n))
            first, last = {
                "Add": (n * d + 1, n * d + n),
                "AllReduce": (total, total + n * (n - 1)),
                "AllGather": (0, n * n - 1),
                "AllToAll": (d, n * (n - 1) + d),
                "ReduceScatter": (total + n * d, total + n * d),
            }[operation]
            got = np.asarray(shard.data[:: max(1, shard.data.shape[0] - 1)])
            if (got[0], got[-1]) != (first, last):
                raise ValueError(f"{operation}: participant {d} has {got[0]} … {got[-1]}, want {first} … {last}")

    def answer(operation, size, calls, put=False):
        f, x = made(operation, size, put)
        f(x).block_until_ready()  # the caches hold what other systems used, whose turn it was
        meet(one).block_until_ready()  # all begin together
        start = time.perf_counter()
        for _ in range(calls):
            y = None  # its memory is free for the next
            y = f(x)
            y.block_until_ready()
        seconds = time.perf_counter() - start
        try:
            check(operation, y)
        except ValueError as error:
            if system == "ours":
                raise
            return {"left out": str(error)}  # seen: 64 MiB of gloo's ReduceScatter
        return {"seconds": seconds}

    sides.serve(stream, answer, {"version": jax.__version__})
    if system == "gloo":
        jax.distributed.shutdown()


if system == "gloo" and len(sys.argv) == 3:
    sides.serve_ranks(stream, n, sys.executable, *sys.argv)
else:
    serve()
