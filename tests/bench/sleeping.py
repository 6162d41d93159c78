"""How idle a pipeline is on this machine, whose stages sleep instead of computing: so each has a processor for itself.

    python -m pathways up --workers 4 --devices 1 -- python tests/bench/sleeping.py [MICROBATCHES …]

A pipeline with a worker for each place, in each schedule, whose forwards and halves of backwards take 20 ms. Its last
line is JSON: {microbatches: {schedule: {…}}}, of which "steady" is the idle part of a row of steps, "recorded" that of
one, as a trace shows it, "longer" how much longer than 20 ms a worker sees a forward or half take, and "between" the
time from the end of one to the begin of the next, both in seconds and medians. Where the schedule leaves no gap, these
two are what is idle.
"""

import ctypes
import itertools
import json
import pathlib
import statistics
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

import gate  # noqa: E402
import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
import pathways  # noqa: E402
import stages  # noqa: E402
from pathways._schedule import NAMES  # noqa: E402

SECONDS = 0.02  # of sleeps in tests/ffi_handlers.c
LONGEST = 128  # microbatches in a row of steps, but for three steps at least


def sleep(x):
    return jax.ffi.ffi_call("sleeps", jax.ShapeDtypeStruct(x.shape, x.dtype))(x)


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


@jax.jit
def update(w, gradient):
    return w - 0.01 * gradient


def measure(name, devices, microbatches):
    places = stages.schedule(name, len(devices), microbatches).places
    cut = [(stage, np.ones(4, "f"), devices[place]) for place in places]
    pipe = pathways.pipeline(cut, microbatches, name, loss=lambda y, targets: jnp.mean((y - targets) ** 2))
    x = np.ones((microbatches, 4), "f")

    @pathways.program
    def step(params, x, targets):
        _, gradients = pipe.value_and_grad(x, targets, params=params)
        return [update(w, g) for w, g in zip(params, gradients, strict=True)]

    def steps(count):
        begin = time.perf_counter()
        for _ in range(count):
            pipe.params = step(pipe.params, x, x)
        jax.block_until_ready(pipe.params)
        return time.perf_counter() - begin

    steps(2)
    count = min(stages.STEPS, max(3, LONGEST // microbatches))
    one, several = steps(1), steps(count)
    period = (several - one) / (count - 1)
    busy = 3 * SECONDS * microbatches * len(places) / len(devices)
    with tempfile.TemporaryDirectory() as folder, pathways.trace(pathlib.Path(folder) / "trace.json") as timeline:
        steps(1)
    longer, between = spare(timeline)
    return {
        "steady": 1 - busy / period,
        "recorded": pipe.recorded(timeline).bubble,
        "planned": pipe.schedule.bubble,
        "longer": longer,
        "between": between,
    }


def spare(timeline):
    """What a forward or half of a backward takes beyond its sleep, and the time between two that follow each other on a
    device, in the median."""
    of_device = {}
    for span in timeline.spans:
        if span.seconds > SECONDS / 2:
            of_device.setdefault(span.device, []).append(span)
    longer, between = [], []
    for spans in of_device.values():
        spans.sort(key=lambda span: span.begin)
        longer += [span.seconds % SECONDS for span in spans]  # a whole backward sleeps twice
        between += [b.begin - a.begin - a.seconds for a, b in itertools.pairwise(spans)]
    return statistics.median(longer), statistics.median(between)


def main():
    sizes = [int(said) for said in sys.argv[1:]] or [16]
    with tempfile.TemporaryDirectory() as folder:
        library = ctypes.CDLL(str(gate.build(pathlib.Path(folder))))
        jax.ffi.register_ffi_target("sleeps", jax.ffi.pycapsule(library.sleeps), platform="cpu")
        print(json.dumps({m: {name: measure(name, jax.devices(), m) for name in NAMES} for m in sizes}))


if __name__ == "__main__":
    main()
