"""A script that goes on through whatever happens to its cluster, and knows whether each of its results is right.

It runs small steps on four devices and waits for each: one array becomes its mean over all devices, plus one, and
another one moves to the last device, where one is added, and back. So both count the steps. A step that is lost or done
twice shows in the next result, and ends the script. When a step fails, the script waits for another worker, or begins a
new session, and begins to count again.
"""

from __future__ import annotations

import json
import time

import fresh

SCRIPT = """
import json, os, sys, threading, time
import jax, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

DEVICES, SIZE = 4, 32
steps = []  # of each right result, when it was called for and when it was there
errors, heard, came = [], [], []
over = threading.Event()
plus = jax.jit(lambda a: a + 1)

def hear(event):
    heard.append((event.kind, event.worker))
    if event.kind == "came":
        came.append(time.monotonic())

def begin():
    pathways.init(devices=DEVICES, wait=120)
    mesh = Mesh(np.array(jax.devices()), ("d",))
    pathways.on_event(hear)
    mean = jax.jit(jax.shard_map(lambda a: jax.lax.psum(a, "d") / DEVICES + 1, mesh=mesh, in_specs=P("d"),
                                 out_specs=P("d")), donate_argnums=0)
    zero = np.zeros(SIZE, np.float32)
    first, *_, last = jax.devices()

    def step(arrays):
        if arrays is None:
            arrays = jax.device_put(zero, NamedSharding(mesh, P("d"))), jax.device_put(zero, first)
        return mean(arrays[0]), jax.device_put(plus(jax.device_put(arrays[1], last)), first)

    return step, pathways.events()

def answer():
    for line in sys.stdin:
        fault, since = json.loads(line)
        while not (steps and steps[-1][0] >= fault and steps[-1][1] >= since):
            time.sleep(0.002)
        first = next(ended for called, ended in steps if called >= fault and ended >= since)
        usual = sorted(ended - called for called, ended in steps)[len(steps) // 2]
        time.sleep(0.2)  # what is heard may be heard later
        done = dict(seconds=first - since, usual=usual, steps=len(steps), errors=errors, heard=heard,
                    came=[first - at for at in came])
        print(json.dumps(done), flush=True)
        errors.clear(), heard.clear(), came.clear(), steps.clear()
    over.set()

step, events = begin()
threading.Thread(target=answer, daemon=True).start()
said = False
while not over.is_set():
    try:
        arrays, count = None, 0
        while not over.is_set():
            called = time.monotonic()
            arrays, count = step(arrays), count + 1
            for got in map(np.asarray, arrays):
                if not np.array_equal(got, np.full(SIZE, count)):
                    print(f"step {count} is {got}", file=sys.stderr, flush=True)
                    os._exit(1)
            steps.append((called, time.monotonic()))
            if count == 20 and not said:  # and all is compiled
                said = True
                print("ready", flush=True)
    except (RuntimeError, ValueError) as error:
        errors.append(str(error).partition(":")[0])
        arrays = None
        try:
            events.wait("rebound", timeout=60)
        except pathways.PathwaysError:  # the session has ended
            pathways.shutdown()
            step, events = begin()
"""


class Ended(Exception):
    """A script that ended when an answer was expected."""


def hear(process) -> str:
    """Reads a line of a script."""
    if line := process.stdout.readline():
        return line.strip()
    raise Ended(f"the script ended with {process.wait()}: {process.stderr.read()}")


class Counting:
    """The script, begun by start(code) on a cluster; a context manager, at whose end the script ends well."""

    def __init__(self, start):
        self.process = start(SCRIPT)
        self.pid = self.process.pid

    def __enter__(self) -> Counting:
        try:
            assert hear(self.process) == "ready"
        except BaseException:
            fresh.end([self.process])
            raise
        return self

    def __exit__(self, kind: type | None, *_: object) -> None:
        try:
            if kind is None:
                self.process.stdin.close()
                if self.process.wait(fresh.HANG_SECONDS):
                    raise Ended(self.process.stderr.read())
        finally:
            fresh.end([self.process])

    def after(self, fault: float | None = None, since: float | None = None) -> dict:
        """Waits for the first right result of a step that was called after a fault, and that came after `since`.

        Both are times of time.monotonic(), and now if they are not given. Returns the seconds that passed since then
        ("seconds"), those that a step took in the middle before ("usual"), and since the last answer the right results
        ("steps"), the codes of what failed ("errors"), the kinds of its events, with their workers ("heard"), and the
        seconds that passed since each worker had come ("came").
        """
        fault = time.monotonic() if fault is None else fault
        print(json.dumps([fault, fault if since is None else since]), file=self.process.stdin, flush=True)
        return json.loads(hear(self.process))
