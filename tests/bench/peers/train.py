"""A training step of JAX on so many devices, data-parallel: the gradients of all weights are summed over the devices.

python train.py ours N           the devices of the cluster that PATHWAYS_ADDRESS names
python train.py one N            jaxlib's CPU devices, all in this process
python train.py gloo N           starts N ranks and answers for them: the time is that of the slowest
python train.py gloo N rank port
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

LAYERS, WIDTH = 6, 2048  # 25 million weights


def serve():
    import computation
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import Mesh, NamedSharding
    from jax.sharding import PartitionSpec as P

    if system == "one":
        jax.config.update("jax_num_cpu_devices", n)
    elif system == "gloo":
        computation.join(int(sys.argv[3]), n, int(sys.argv[4]))
    mesh = Mesh(np.array(jax.devices()[:n]), ("data",))
    everywhere, cut = NamedSharding(mesh, P()), NamedSharding(mesh, P("data"))

    def loss(weights, x):
        for w in weights:
            x = jax.nn.relu(x @ w)
        return jnp.mean((x - 1) ** 2)

    def begin():
        keys = jax.random.split(jax.random.key(0), LAYERS)
        return [jax.random.normal(key, (WIDTH, WIDTH)) * (2 / WIDTH) ** 0.5 for key in keys]

    def step(weights, x):
        value, gradients = jax.value_and_grad(loss)(weights, x)
        return [w - 0.1 * g for w, g in zip(weights, gradients, strict=True)], value

    begin = jax.jit(begin, out_shardings=[everywhere] * LAYERS)
    step = jax.jit(step, donate_argnums=0, out_shardings=([everywhere] * LAYERS, everywhere))
    kept = {}  # by batch: the weights after the steps so far, and the examples

    def answer(batch, calls):
        if batch not in kept:
            kept.clear()
            rows = n * batch
            examples = np.random.default_rng(0).random((rows, WIDTH), np.float32)
            kept[batch] = begin(), jax.make_array_from_callback((rows, WIDTH), cut, lambda at: examples[at])
        weights, x = kept[batch]
        weights, first = step(weights, x)  # compiles; and the caches hold what other systems used, whose turn it was
        first.block_until_ready()
        start = time.perf_counter()
        for _ in range(calls):
            weights, last = step(weights, x)
            last.block_until_ready()
        jax.block_until_ready(weights)
        seconds = time.perf_counter() - start
        kept[batch] = weights, x
        values = [float(np.asarray(value.addressable_data(0))) for value in (first, last)]
        return {"seconds": seconds, "first": values[0], "last": values[1]}

    sides.serve(stream, answer, {"version": jax.__version__})
    if system == "gloo":
        jax.distributed.shutdown()


if system == "gloo" and len(sys.argv) == 3:
    sides.serve_ranks(stream, n, sys.executable, *sys.argv)
else:
    serve()
