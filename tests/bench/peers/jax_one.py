"""Stock JAX in one process, on so many of jaxlib's CPU devices: there is nobody to talk to."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

import sides  # noqa: E402

stream = sides.answers()

import computation  # noqa: E402
import jax  # noqa: E402

jax.config.update("jax_num_cpu_devices", int(sys.argv[1]))
programs, zeros = computation.programs(jax.devices())


def answer(program, calls, sync):
    x, seconds = computation.chain(programs[program], zeros, calls, sync)
    computation.check(program, calls, computation.values(x))
    return {"seconds": seconds}


sides.serve(stream, answer, {"version": jax.__version__})
