"""Open Pathways: one process drives all devices of the cluster that PATHWAYS_ADDRESS names."""

import contextlib
import pathlib
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

import sides  # noqa: E402

stream = sides.answers()

import pathways  # noqa: E402, I001
import jax  # noqa: E402
import numpy as np  # noqa: E402

import computation  # noqa: E402

programs, zeros = computation.programs(jax.devices())


def chained(name):
    """A program of CHAIN nodes, each of which is one of the programs."""

    @pathways.program
    def chain(x):
        for _ in range(computation.CHAIN):
            x = programs[name](x)
        return x

    return chain


def stages(compute):
    """Makes programs that bring a value from device to device, and add one on each, or nothing."""

    def of(n):
        @pathways.program
        def through(x):
            for device in jax.devices()[:n]:
                x = jax.device_put(x, device)
                if compute:
                    x = add(x)
            return x

        return through

    return of


add = jax.jit(lambda x: x + np.float32(1))
programs |= {"chained": chained("reduce"), "chained add": chained("add")}
programs.made |= {"stages": stages(True), "moves": stages(False)}


def first(program):
    if program.partition(":")[0] in ("stages", "moves"):
        return jax.device_put(np.zeros(1, np.float32), jax.devices()[0])
    return zeros


def answer(program, calls=0, sync=False, lasts=0, depth=0, traced=False, count=()):
    """Runs so many calls; or goes on for some seconds, with at most `depth` calls under way. Says the processor time
    that some processes, by their numbers, took meanwhile."""
    busy = 0
    if lasts:
        x, calls, seconds = computation.go_on(programs[program], first(program), lasts, depth)
    else:
        with recorded(traced):
            busy -= processor_seconds(count)
            x, seconds = computation.chain(programs[program], first(program), calls, sync)
            busy += processor_seconds(count)
    computation.check(program, calls, computation.values(x))
    return {"seconds": seconds, "calls": calls, "busy": busy}


def processor_seconds(processes):
    """Returns the processor time of all threads of some processes, which Linux has as a clock of each of them."""
    return sum(time.clock_gettime(~number << 3 | 2) for number in processes)


@contextlib.contextmanager
def recorded(traced):
    """Records a trace meanwhile, which is thrown away."""
    if not traced:
        yield
        return
    with tempfile.TemporaryDirectory() as directory, pathways.trace(directory + "/trace.json"):
        yield


sides.serve(stream, answer, {"version": pathways.__version__})
