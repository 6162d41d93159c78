"""Ctrl-C in the middle of a program: it is raised, nothing remains, and the same program runs again."""

import signal
from pathlib import Path

import fresh
import gate
import pytest
from waiting import comes

pytestmark = pytest.mark.embedded("each script names the devices it uses")

PROGRAM = """
import gc, time, waiting
import jax, jax.numpy as jnp, numpy as np

gc.disable()  # JAX calls functions after a collection, and Python forgets a Ctrl-C that is raised there
here = jax.devices()[:4]

@jax.jit
def step(x):
    return jax.lax.fori_loop(0, 30, lambda _, v: jnp.sin(v) + 1, x)

endless = False
told = True

def begun():
    global told
    if not told:
        told = True
        print("begun", flush=True)

@pathways.program
def f(x):
    while endless:
        x = step(x)
        begun()  # what JAX compiles is compiled: its callbacks from C++ turn a Ctrl-C into a RuntimeError
    for i in range(40):
        x = jax.device_put(step(x), here[i % len(here)])
    return x, {"more": x + 1}

x = jax.device_put(np.arange(3000, dtype=np.float32), here[0])
want = [np.asarray(y).tobytes() for y in jax.tree.leaves(f.__wrapped__(x))]

def check():
    assert [np.asarray(y).tobytes() for y in jax.tree.leaves(f(x))] == want
    print("right", flush=True)

def interrupted(action):
    global told
    told = False
    try:
        if not endless:
            begun()
        while True:
            action()
    except KeyboardInterrupt:
        print("interrupted", flush=True)
"""
CAPTURED = """
endless = True
for _ in range(4):
    interrupted(lambda: f(x))
assert pathways.stats()["live"].get("captured", 0) == 0
endless = False
check()
"""
RUNNING = """
check()
for _ in range(8):
    interrupted(lambda: jax.block_until_ready(f(x)))
    check()
"""
LONG = """
import os, signal, threading

@pathways.program
def long(x):
    for _ in range(NODES):
        x = heavy(x)
    return x

@jax.jit
def heavy(x):
    return jax.lax.fori_loop(0, 75, lambda _, v: jnp.sin(v) + 1, x)

NODES = 120
executes = lambda: pathways.stats()["executes"]
big = jax.device_put(np.ones(20000, np.float32), here[0])
want_long = np.asarray(long(big))

def press(after):
    while executes() < after:
        time.sleep(0.001)
    os.kill(os.getpid(), signal.SIGINT)

for _ in range(5):
    before = executes()
    thread = threading.Thread(target=press, args=(before + 20,))
    thread.start()
    try:
        long(big).block_until_ready()
        thread.join()
        time.sleep(60)
    except KeyboardInterrupt:
        thread.join()
        if executes() - before < NODES:  # or the thread that presses was late
            print("given up", flush=True)
            break
assert np.array_equal(long(big), want_long)
print("right", flush=True)
del big, long
"""
END = """
del x, f, check
def left():
    gc.collect()
    return {name: n for name, n in pathways.stats()["live"].items() if name in ("exported", "captured") and n}
print("nothing left" if waiting.comes(lambda: not left()) else left(), flush=True)
"""


@pytest.mark.versions
@pytest.mark.parametrize("address", ["", "local:2x2"], ids=["embedded", "cluster"])
@pytest.mark.parametrize("script", [CAPTURED, RUNNING], ids=["captured", "running"])
def test_ctrl_c_in_the_middle_of_a_program(script, address):
    process = fresh.start(PROGRAM + script + END, env={"PATHWAYS_ADDRESS": address})
    said = []
    for line in process.stdout:
        said.append(line.strip())
        if said[-1] == "begun":
            process.send_signal(signal.SIGINT)
    done = fresh.finish(process)
    assert done.returncode == 0, done.stderr
    times = said.count("begun")
    assert times == said.count("interrupted") > 0
    assert said.count("right") == (1 if script is CAPTURED else times + 1)
    assert said[-1] == "nothing left"


def test_ctrl_c_ends_a_play_between_two_nodes():
    done = fresh.run(PROGRAM + LONG + END, env={"PATHWAYS_ADDRESS": ""})
    assert done.stdout.split("\n") == ["given up", "right", "nothing left", ""], done.stderr


# The function of a callback runs on the thread that hears Ctrl-C, so it is raised there.
CALLBACKS = """
import signal
import jax, numpy as np
from jax.experimental import io_callback

def press(v):
    if pressing:
        signal.raise_signal(signal.SIGINT)
    for _ in range(1000):
        pass
    return v

x = jax.device_put(np.ones(3, np.float32), jax.devices()[0])
kinds = {
    "pure": lambda v: jax.pure_callback(press, v, v),
    "io": lambda v: io_callback(press, v, v),
    "debug": lambda v: jax.debug.callback(press, v) or v,
}
for kind, call in kinds.items():
    f = jax.jit(lambda v, call=call: call(v) + 1)
    for pressing in (False, True, False):
        try:
            right = np.asarray(f(x)).tolist() == [2, 2, 2]
            for _ in range(1000):
                pass
            print(kind, right)
        except KeyboardInterrupt:
            print(kind, "interrupted")
"""


@pytest.mark.versions
def test_ctrl_c_in_a_callback_on_a_cluster():
    done = fresh.run(CALLBACKS, env={"PATHWAYS_ADDRESS": "local:2x2", "PATHWAYS_DEVICES": ""})
    kinds = ("pure", "io", "debug")
    assert done.stdout.splitlines() == [f"{kind} {what}" for kind in kinds for what in (True, "interrupted", True)]


# The second computation is in the frontend's queue: the first occupies some of its devices, and threads without which
# it would wait inside the plugin.
QUEUED = """
import gate, gc, threading, waiting
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

gc.disable()  # as above
here = jax.devices()
gate = gate.Gate(LIBRARY, pathways._native.library_path())

def on(devices, f):
    mesh = Mesh(np.array(devices), ("x",))
    x = jax.device_put(np.arange(len(devices), dtype=np.float32), NamedSharding(mesh, P("x")))
    return jax.jit(jax.shard_map(f, mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=False)), x

first, x = on(here[:4], lambda v: jax.lax.psum(gate(v), "x"))
second, y = on(here[1:7], lambda v: jax.lax.psum(v, "x") + v)
right = [10.0] * 4, [15.0, 16, 17, 18, 19, 20]

def check(a, b):
    assert (np.asarray(a).tolist(), np.asarray(b).tolist()) == right

def late():
    print("late", flush=True)
    gate.open()

check(first(x), second(y))
jax.device_put(second(y), here[7]).block_until_ready()
for wait in (
    lambda z: z.block_until_ready(),
    lambda z: jax.block_until_ready([x, y, z]),
    lambda z: jax.device_put(z, here[7]).block_until_ready(),
):
    gate.shut()
    a = first(x)  # it is queued too, for a moment, where the core has yet to hear that the one before has ended
    before = pathways.stats()["queued"]
    b = second(y)
    queued = pathways.stats()["queued"] - before
    timer = threading.Timer(60, late)  # where Ctrl-C would come no sooner
    timer.start()
    try:
        print("waits", flush=True)
        wait(b)
        print("done", flush=True)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    timer.cancel()
    assert queued == 1 and not a.is_ready() and not b.is_ready()
    again = jax.jit(lambda v: v + 1)(jax.device_put(np.float32(1), here[7]))
    assert float(again) == 2  # on a device that nothing holds
    gate.open()
    check(a, b)
    check(first(x), second(y))
    print("right", flush=True)
del a, b, x, y, again, first, second
jax.clear_caches()

def left():
    gc.collect()
    kinds = ("arrays", "buffers", "runs", "provenances")
    return {k: n for k, n in pathways.stats()["live"].items() if k in kinds and n}

print("nothing left" if waiting.comes(lambda: not left()) else left(), flush=True)
"""


def test_ctrl_c_while_a_computation_stands_in_the_queue(tmp_path):
    process = fresh.start(QUEUED.replace("LIBRARY", repr(str(gate.build(tmp_path)))), env={"PATHWAYS_ADDRESS": ""})
    stat = Path(f"/proc/{process.pid}/stat")
    said = []
    for line in process.stdout:
        said.append(line.strip())
        if said[-1] == "waits":
            assert comes(lambda: stat.read_text().rpartition(")")[2].split()[0] == "S")  # the main thread sleeps
            process.send_signal(signal.SIGINT)
    done = fresh.finish(process)
    assert done.returncode == 0, done.stderr
    assert said == ["waits", "interrupted", "right"] * 3 + ["nothing left"]


# A cluster takes so many runs of a client ahead; what comes then waits until one has ended, and here none does.
FULL = """
import gate, gc, time
import jax, numpy as np

gc.disable()  # as above
here = jax.devices()[0]
gate = gate.Gate(LIBRARY, pathways._native.library_path())
held, step = jax.jit(gate), jax.jit(lambda v: v + 1)
x = jax.device_put(np.zeros(3, np.float32), here)
jax.block_until_ready((held(x), step(x)))
gate.shut()
y, calls = held(x), 0
try:
    while True:
        y, calls = step(y), calls + 1
        if calls == 1000:
            print("waits", flush=True)
except KeyboardInterrupt:
    print("interrupted", flush=True)
gate.open()
assert np.asarray(y)[0] in (calls + 1, calls + 2), (np.asarray(y), calls)  # it may come between the two
assert np.asarray(step(y))[0] == np.asarray(y)[0] + 1
print("right", flush=True)
"""


def test_ctrl_c_while_a_cluster_takes_no_more_work(tmp_path):
    code = FULL.replace("LIBRARY", repr(str(gate.build(tmp_path))))
    process = fresh.start(code, env={"PATHWAYS_ADDRESS": "local:1x2", "PATHWAYS_DEVICES": ""})
    stat = Path(f"/proc/{process.pid}/stat")
    assert process.stdout.readline() == "waits\n"
    assert comes(lambda: stat.read_text().rpartition(")")[2].split()[0] == "S")  # the main thread sleeps
    process.send_signal(signal.SIGINT)
    # Line by line to the end: what readline has read ahead, communicate would not return.
    assert [process.stdout.readline() for _ in range(3)] == ["interrupted\n", "right\n", ""]
    done = fresh.finish(process)
    assert done.returncode == 0, done.stderr
