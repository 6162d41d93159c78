"""How idle a pipeline is on this machine, whose stages sleep instead of computing: so each has a processor for itself.

    python -m pathways up --workers 4 --devices 1 -- python tests/bench/sleeping.py --help

A pipeline with a worker for each place, in each schedule. Its last line is JSON: {microbatches: {schedule: {…}}}, of
which "steady" is the idle part of the median step in a row of eight, from the end of one step to that of the next,
"mean" that of the whole row, "recorded" that of a single step, as a trace shows it, "longer" how much longer than its
sleep a worker sees a forward or half of a backward take, and "between" the time from the end of one to the begin of the
next, both in seconds and medians. Where the schedule leaves no gap, these two are what is idle. "late" is how much
longer a sleep of that length takes a thread of this script that does nothing else, beside the row, in the median.

On a machine that has other work, too, a step is late now and then; "steady" leaves that out, and "mean" has it. A
virtual machine may be stopped for tens of milliseconds, which delays every process whatever its priority: "stolen" is
the part of the row's time for which the kernel says that its processors were taken away. With a real-time priority,
measure beside no other process that has one: where they keep a processor busy, Linux stops all of them for a twentieth
of each second (sched_rt_runtime_us).
"""

import argparse
import concurrent.futures
import ctypes
import itertools
import json
import os
import pathlib
import statistics
import sys
import tempfile
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

import gate  # noqa: E402
import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
import pathways  # noqa: E402
import stages  # noqa: E402
from pathways._schedule import NAMES  # noqa: E402

# Of an array between stages. XLA runs a computation of less than a thousand floating-point operations inside the call
# that submits it, where those behind it wait for its end; a real stage has more, and runs on a thread of XLA's.
WIDTH = 2048


def sleeps(seconds):
    """A stage whose forward and halves of backward take so long each."""

    def sleep(x):
        call = jax.ffi.ffi_call("sleeps", jax.ShapeDtypeStruct(x.shape, x.dtype))
        return call(x, nanoseconds=np.int64(seconds * 1e9))

    @jax.custom_vjp
    def stage(w, x):
        return sleep(x * w)

    def forward(w, x):
        return stage(w, x), (w, x)

    def backward(kept, gradient):
        w, x = kept
        onward = sleep(gradient * w)
        # It reads onward, so that in a whole backward the two do not sleep at the same time.
        return sleep(gradient * x + 1e-30 * onward).sum(0), onward

    stage.defvjp(forward, backward)
    return stage


def end(params):
    jax.block_until_ready(params)
    return time.perf_counter()


def stolen():
    """The seconds for which the hypervisor has taken processors away since the start, a processor in the mean."""
    fields = pathlib.Path("/proc/stat").read_text().split()  # cpu user nice system idle iowait irq softirq steal …
    return int(fields[8]) / os.sysconf("SC_CLK_TCK") / os.cpu_count()


@jax.jit
def update(w, gradient):
    return w - 0.01 * gradient


def lateness(seconds, over):
    """How much longer a sleep takes than it was to, in the median until over is set."""
    late = []
    while not over.is_set():
        begin = time.perf_counter()
        time.sleep(seconds)
        late.append(time.perf_counter() - begin - seconds)
    return statistics.median(late)


def measure(name, devices, microbatches, seconds):
    places = stages.schedule(name, len(devices), microbatches).places
    stage = sleeps(seconds)
    cut = [(stage, np.ones(WIDTH, "f"), devices[place]) for place in places]
    pipe = pathways.pipeline(cut, microbatches, name, loss=lambda y, targets: jnp.mean((y - targets) ** 2))
    x = np.ones((microbatches, WIDTH), "f")

    @pathways.program
    def step(params, x, targets):
        _, gradients = pipe.value_and_grad(x, targets, params=params)
        return [update(w, g) for w, g in zip(params, gradients, strict=True)]

    def steps(count):
        """Runs so many steps in a row, and returns when each ended."""
        ends = []
        with concurrent.futures.ThreadPoolExecutor(1) as waiter:
            for _ in range(count):
                pipe.params = step(pipe.params, x, x)
                ends.append(waiter.submit(end, pipe.params))
        return [future.result() for future in ends]

    steps(2)
    begin, before = time.perf_counter(), stolen()
    over = threading.Event()
    with concurrent.futures.ThreadPoolExecutor(1) as beside:
        late = beside.submit(lateness, seconds, over)
        row = steps(stages.STEPS)
        over.set()
    taken = (stolen() - before) / (time.perf_counter() - begin)
    busy = 3 * seconds * microbatches * len(places) / len(devices)
    with tempfile.TemporaryDirectory() as folder, pathways.trace(pathlib.Path(folder) / "trace.json") as timeline:
        steps(1)
    longer, between = spare(timeline, seconds)
    return {
        "steady": 1 - busy / statistics.median(b - a for a, b in itertools.pairwise(row)),
        "mean": 1 - busy * (len(row) - 1) / (row[-1] - row[0]),
        "stolen": taken,
        "recorded": pipe.recorded(timeline).bubble,
        "planned": pipe.schedule.bubble,
        "longer": longer,
        "between": between,
        "late": late.result(),
    }


def spare(timeline, seconds):
    """What a forward or half of a backward takes beyond its sleep, and the time between two that follow each other on a
    device, in the median."""
    of_device = {}
    for span in timeline.spans:
        if span.seconds > seconds / 2:
            of_device.setdefault(span.device, []).append(span)
    longer, between = [], []
    for spans in of_device.values():
        spans.sort(key=lambda span: span.begin)
        longer += [span.seconds % seconds for span in spans]  # a whole backward sleeps twice
        between += [b.begin - a.begin - a.seconds for a, b in itertools.pairwise(spans)]
    return statistics.median(longer), statistics.median(between)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("microbatches", type=int, nargs="*", default=[16], help="of a step; all are measured (16)")
    parser.add_argument("--milliseconds", type=int, default=20, help="of a forward, or half of a backward (20)")
    parser.add_argument("--schedules", nargs="+", choices=NAMES, default=NAMES, help="in this order (all)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        library = ctypes.CDLL(str(gate.build(pathlib.Path(folder))))
        jax.ffi.register_ffi_target("sleeps", jax.ffi.pycapsule(library.sleeps), platform="cpu")
        seconds = args.milliseconds / 1e3
        rows = {m: {n: measure(n, jax.devices(), m, seconds) for n in args.schedules} for m in args.microbatches}
        print(json.dumps(rows))


if __name__ == "__main__":
    main()
