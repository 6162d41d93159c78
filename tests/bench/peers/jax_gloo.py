"""Multi-controller JAX: a process a device, joined by jax.distributed, each running the whole script; gloo carries the
collectives.

    python jax_gloo.py N         starts N ranks and answers for them: the time is that of the slowest
    python jax_gloo.py N rank port
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

import sides  # noqa: E402

stream = sides.answers()


def rank(n, rank, port):
    import computation
    import jax

    computation.join(rank, n, port)
    programs, zeros = computation.programs(jax.devices())

    def answer(program, calls, sync):
        programs["reduce"](zeros).block_until_ready()  # all begin together
        x, seconds = computation.chain(programs[program], zeros, calls, sync)
        computation.check(program, calls, computation.values(x))
        return {"seconds": seconds}

    sides.serve(stream, answer, {"version": jax.__version__})
    jax.distributed.shutdown()


if len(sys.argv) == 2:
    sides.serve_ranks(stream, int(sys.argv[1]), sys.executable, __file__, sys.argv[1])
else:
    rank(*map(int, sys.argv[1:]))
