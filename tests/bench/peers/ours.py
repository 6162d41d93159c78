"""Open Pathways: one process drives all devices of the cluster that PATHWAYS_ADDRESS names."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

import sides  # noqa: E402

stream = sides.answers()

import pathways  # noqa: E402, I001
import jax  # noqa: E402

import computation  # noqa: E402

programs, zeros = computation.programs(jax.devices())


def answer(program, calls, sync):
    x, seconds = computation.chain(programs[program], zeros, calls, sync)
    computation.check(program, calls, computation.values(x))
    return {"seconds": seconds}


sides.serve(stream, answer, {"version": pathways.__version__})
