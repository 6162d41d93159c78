"""Stock JAX in one process, on so many of jaxlib's CPU devices: there is no other process."""

import pathlib
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

import sides  # noqa: E402

stream = sides.answers()

import computation  # noqa: E402
import jax  # noqa: E402

jax.config.update("jax_num_cpu_devices", int(sys.argv[1]))
programs, zeros = computation.programs(jax.devices())


WINDOW = 16  # calls in flight; jaxlib's CPU client ends the process where some thirty collectives wait for its threads


def answer(program, calls, sync):
    f, x = programs[program], zeros
    start = time.perf_counter()
    for i in range(calls):
        x = f(x)
        if sync or i % WINDOW == WINDOW - 1:
            x.block_until_ready()
    x.block_until_ready()
    seconds = time.perf_counter() - start
    computation.check(program, calls, computation.values(x))
    return {"seconds": seconds}


sides.serve(stream, answer, {"version": jax.__version__})
