"""A training step of JAX on so many devices, data-parallel: the gradients of all weights are summed over the devices.

python train.py ours N           the devices of the cluster that PATHWAYS_ADDRESS names
python train.py one N            jaxlib's CPU devices, all in this process
python train.py gloo N           starts N ranks and answers for them: the time is that of the slowest
python train.py gloo N rank port

The models are a plain network ("mlp"), and the examples' decoder and encoder-decoder ("decoder", "t5").
"""

import argparse
import ctypes
import functools
import importlib
import pathlib
import sys
import time
import types

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

import sides  # noqa: E402

stream = sides.answers()
system, n = sys.argv[1], int(sys.argv[2])
if system == "ours":
    import pathways  # noqa: F401
else:
    sys.modules["pathways"] = types.ModuleType("pathways")  # the examples' models import it, and only main uses it

LAYERS, WIDTH = 6, 2048  # of the plain network: 25 million weights


def mlp(rows):
    """Returns what begins and what steps it, and its batch."""
    import jax
    import jax.numpy as jnp
    import numpy as np

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

    return begin, step, [np.random.default_rng(0).random((rows, WIDTH), np.float32)]


def example(name, rows, sizes):
    """Returns the same of a model of the examples, with Adam; its sizes are by the names of its options."""
    import jax

    sys.path.insert(0, str(pathlib.Path(__file__).parents[3] / "examples" / "models"))
    training, model = importlib.import_module("training"), importlib.import_module(name)
    args = argparse.Namespace(batch=rows, seed=0, **sizes)

    def begin():
        params = model.make_params(jax.random.key(0), args)
        return params, training.moments(params)

    def step(state, *batch):
        params, state, loss = model.train(*state, *batch, 3e-3)
        return (params, state), loss

    return begin, step, next(training.masked(args)) if name == "t5" else [next(training.windows(args, extra=1))]


def serve():
    import computation
    import jax
    import numpy as np
    from jax.sharding import Mesh, NamedSharding
    from jax.sharding import PartitionSpec as P

    if system == "one":
        jax.config.update("jax_num_cpu_devices", n)
    elif system == "gloo":
        computation.join(int(sys.argv[3]), n, int(sys.argv[4]))

    @functools.cache
    def prepared(model, batch, summed, **sizes):
        devices = jax.devices()[:n] if summed else jax.local_devices()[:1]
        mesh = Mesh(np.array(devices), ("data",))
        everywhere, cut = NamedSharding(mesh, P()), NamedSharding(mesh, P("data"))
        rows = batch * len(devices)
        begin, step, examples = mlp(rows) if model == "mlp" else example(model, rows, sizes)
        return (
            jax.jit(begin, out_shardings=everywhere),
            jax.jit(step, donate_argnums=0, out_shardings=everywhere),
            [jax.make_array_from_callback(e.shape, cut, e.__getitem__) for e in examples],
        )

    def answer(model, batch, calls, summed=True, **sizes):
        """Trains from the beginning, and keeps no weights: the memory of all systems together would not do. Without a
        sum, a device trains alone."""
        begin, step, examples = prepared(model, batch, summed, **sizes)
        state, first = step(begin(), *examples)  # compiles; and the caches hold what other systems used
        jax.block_until_ready((state, first))
        start = time.perf_counter()
        for _ in range(calls):
            state, last = step(state, *examples)
            last.block_until_ready()
        jax.block_until_ready(state)
        seconds = time.perf_counter() - start
        values = [float(np.asarray(value.addressable_data(0))) for value in (first, last)]
        del state
        ctypes.CDLL(None).malloc_trim(0)
        return {"seconds": seconds, "first": values[0], "last": values[1]}

    sides.serve(stream, answer, {"version": jax.__version__})
    if system == "gloo":
        jax.distributed.shutdown()


if system == "gloo" and len(sys.argv) == 3:
    sides.serve_ranks(stream, n, sys.executable, *sys.argv)
else:
    serve()
