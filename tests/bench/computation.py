"""What the systems of the cluster table compute; all of them run these functions.

A *computation* is an AllReduce of one float32 a participant, scaled by 1/N, plus 1; "add" is the plus alone. Starting
from zeros, every participant therefore holds the number of computations done: each measurement checks it.
"""

import collections
import time

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

CHAIN = 128  # computations in one fused program, or in one chain of programs


class Programs(dict):
    """Programs by name; those of some length are made when they are asked for."""

    def __init__(self, of, made):
        super().__init__(of)
        self.made = made

    def __missing__(self, name):
        kind, _, length = name.partition(":")
        self[name] = program = self.made[kind](int(length))
        return program


def programs(devices):
    """Returns the programs on these devices by name, and their first argument.

    "work:k" is a computation behind k steps of a loop, to take as long as one likes.
    """
    n = len(devices)
    mesh = Mesh(np.array(devices), ("d",))
    sharding = NamedSharding(mesh, P("d"))

    def add(x):
        return x + np.float32(1)

    def reduce(x):
        return add(lax.psum(x, "d") * np.float32(1 / n))

    def fused(x):
        for _ in range(CHAIN):
            x = reduce(x)
        return x

    def loop(x):
        return lax.fori_loop(0, CHAIN, lambda _, v: reduce(v), x)

    def work(steps):
        def busy(x):
            y = lax.fori_loop(0, steps, lambda _, v: lax.cos(v), jnp.broadcast_to(x, (256,)))
            return reduce(x + 0 * y[:1])

        return on_each(busy)

    def on_each(f):
        return jax.jit(jax.shard_map(f, mesh=mesh, in_specs=P("d"), out_specs=P("d"), check_vma=False))

    zeros = jax.make_array_from_callback((n,), sharding, lambda at: np.zeros(n, np.float32)[at])
    of = {"add": jax.jit(add), "reduce": on_each(reduce), "fused": on_each(fused), "loop": on_each(loop)}
    return Programs(of, {"work": work}), zeros


def computations(program, calls):
    """How many computations some calls of a program are."""
    kind, _, length = program.partition(":")
    if kind == "stages":
        return calls * int(length)
    return calls * (CHAIN if kind in ("fused", "loop", "chained", "chained add") else 1)


def check(program, calls, values):
    """Raises where a participant's value is not the number of computations done since zero."""
    want = 0 if program.startswith("moves:") else computations(program, calls)
    if any(value != want for value in values):
        raise ValueError(f"{program}: {calls} calls from 0 gave {list(values)}, want {want} at each participant")


def chain(f, x, calls, sync):
    """Calls f on its own result, and returns the last one and the seconds until it is there. sync waits for each."""
    start = time.perf_counter()
    for _ in range(calls):
        x = f(x)
        if sync:
            x.block_until_ready()
    x.block_until_ready()
    return x, time.perf_counter() - start


def go_on(f, x, seconds, depth):
    """Calls f on its own result for some seconds, and waits for the oldest of `depth` results before it goes on.

    Returns the last result, the number of calls, and the seconds that they took.
    """
    start, calls, under_way = time.perf_counter(), 0, collections.deque()
    while time.perf_counter() - start < seconds:
        x = f(x)
        calls += 1
        under_way.append(x)
        if len(under_way) > depth:
            under_way.popleft().block_until_ready()
    x.block_until_ready()
    return x, calls, time.perf_counter() - start


def values(x):
    """The values of this process's participants."""
    return [float(np.asarray(shard.data)[0]) for shard in x.addressable_shards]


def join(rank, n, port):
    """Makes this process one of n whose devices are one list, with gloo between them."""
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"127.0.0.1:{port}", n, rank)


class Participant:
    """One of the processes that Ray or Monarch drives: it keeps the state, and computes on its own device.

    With a port, it is joined to the others by gloo, and has programs with collectives too.
    """

    def __init__(self, rank=0, n=1, port=0):
        if port:
            join(rank, n, port)
        alone, self.zero = programs(jax.local_devices()[:1])
        self.programs = {"add": (alone["add"], self.zero)}
        if port:
            together, zeros = programs(jax.devices())
            self.programs |= {name: (together[name], zeros) for name in ("reduce", "fused", "loop")}
        self.x = self.zero

    def begin(self, program):
        self.x = self.programs[program][1]

    def run(self, program):
        self.x = self.programs[program][0](self.x)
        self.x.block_until_ready()

    def value(self):
        return values(self.x)[0]
