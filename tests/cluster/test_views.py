"""Arrays that NumPy looks at in the shared memory that their worker has written: what they are, how long they stay, and
what becomes of them when the array, the session or the worker goes."""

import signal

from fresh import finish, hear
from processes import Cluster

START = """
import gc, os, sys, threading
import jax, jax.numpy as jnp, numpy as np

SIZE = 100_000

@jax.jit
def count(start):
    return start + jnp.arange(SIZE, dtype=jnp.float32)

def right(a, start):
    np.testing.assert_array_equal(a, np.arange(SIZE, dtype=np.float32) + start)

def live():
    return pathways.stats()["live"].get("views", 0)

def raises(kind, words, f):
    try:
        f()
    except kind as error:
        assert words in str(error), error
        return str(error)
    raise AssertionError(f"{f} raised nothing")

@jax.jit
def slow(start):  # about half a second
    return jax.lax.fori_loop(0, 20_000, lambda _, v: v + 1, count(start))

@jax.jit
def endless(start):
    return jax.lax.while_loop(lambda v: v[0] >= 0, lambda v: v + 1, count(start))
"""

LIFETIMES = """
x = count(0)
a = np.asarray(x)
right(a, 0)
assert not a.flags.writeable and live() == 1
before = pathways.stats()
b = np.asarray(x)
(c,) = jax.device_get([x])
after = pathways.stats()
assert a.ctypes.data == b.ctypes.data == c.ctypes.data, "the bytes are sent for once"
assert after["fetches"] == before["fetches"] == 1 and after["copied"] == before["copied"], (before, after)
del b, c

# Several looks at once, of all kinds; each keeps the memory.
looks = [np.asarray(x), memoryview(x), np.from_dlpack(x)]
assert all(np.asarray(y).ctypes.data == a.ctypes.data and not np.asarray(y).flags.writeable for y in looks)
assert x.__dlpack_device__() == (1, 0)
del looks
raises(jax.errors.JaxRuntimeError, "another process", x.unsafe_buffer_pointer)

# The array goes, the bytes stay.
x.delete()
raises(RuntimeError, "deleted", lambda: np.asarray(x))
del x
y = count(1)
assert np.asarray(y).ctypes.data != a.ctypes.data
right(a, 0)
assert live() == 2
del a, y
gc.collect()
assert live() == 0, pathways.stats()

# Donated: dead for new calls, alive for views. Without a view it is freed at once.
give = jax.jit(lambda x: x + 1, donate_argnums=0)
x, y = count(2), count(3)
a = np.asarray(x)
np.asarray(y)
p, q = give(x), give(y)
assert x.is_deleted() and live() == 1
raises(RuntimeError, "deleted", lambda: np.asarray(x))
right(a, 2)
right(np.asarray(p), 3)
right(np.asarray(q), 4)
del a, p, q, x, y

# What the devices have is not what lies here.
x = count(5)
d = np.from_dlpack(x)
right(np.asarray(x + 1), 6)
del x, d

# More than one dtype and shape; those of less than a byte are copied.
for dtype in ("bool", "int8", "bfloat16", "float64", "complex64", "int4"):
    x = jnp.arange(SIZE).reshape(100, 10, 100) % 7
    y = x.astype(dtype)
    assert np.array_equal(np.asarray(y), np.asarray(x).astype(y.dtype)), dtype
for dtype in (np.uint8, np.float32):
    for shape in ((), (0,), (10,), (2, 3)):
        x = jax.device_put(np.full(shape, 3, dtype))
        host, memory = np.asarray(x), memoryview(x)
        assert (memory.shape, memory.tobytes()) == (shape, np.full(shape, 3, dtype).tobytes())
        assert np.asarray(memory).ctypes.data == host.ctypes.data == np.from_dlpack(x).ctypes.data
del host, memory, x, y
gc.collect()
assert live() == 0, pathways.stats()

# After the session.
x = count(7)
a, b = np.asarray(x), np.asarray(count(8))
pathways.shutdown()
right(a, 7)
right(b, 8)
del x, a
right(b, 8)
print("right")
"""

FORKED = """
x = count(0)
a = np.asarray(x)
start, done = os.pipe(), os.pipe()
child = os.fork()
if child == 0:
    os.read(start[0], 1)
    os._exit(0 if np.array_equal(a, np.arange(SIZE, dtype=np.float32)) else 1)
at = a.ctypes.data
del a, x
for i in range(20):  # none of them where the child looks
    b = np.asarray(count(i + 1))
    right(b, i + 1)
    assert b.ctypes.data != at
os.write(start[1], b"g")
assert os.waitpid(child, 0)[1] == 0, "memory that a child looks at was used again"
print("right")
"""

# Reads that are told ahead are under way before the first is waited for, and are not asked for again.
AHEAD = """
arrays = [slow(0), *(count(i) for i in range(1, 20))]
for x in arrays:
    x.copy_to_host_async()
assert live() == 20 and pathways.stats()["fetches"] == 20, pathways.stats()
got = []
reader = threading.Thread(target=lambda: got.extend(jax.device_get(arrays)))
reader.start()
for found in jax.device_get(arrays), got:
    right(np.asarray(found[0]), 20_000)
    for i, a in enumerate(found[1:], 1):
        right(a, i)
    reader.join()
assert pathways.stats()["fetches"] == 20, pathways.stats()
print("right")
"""

# Of a worker with room for 8 MiB.
FAILED = """
@jax.jit
def large(start):
    return start + jnp.arange(4 << 20, dtype=jnp.float32)

words = "RESOURCE_EXHAUSTED"
x = large(0)
said = {raises(jax.errors.JaxRuntimeError, words, read) for read in [lambda: np.asarray(x)] * 2 + [x.block_until_ready]}
assert len(said) == 1, said
raises(jax.errors.JaxRuntimeError, words, lambda: jax.device_get([count(1), large(0)]))
raises(BufferError, words, lambda: memoryview(large(0)))
right(np.asarray(count(2)), 2)
print("right")
"""

INTERRUPTED = """
gc.disable()  # JAX calls functions after a collection, and Python forgets a Ctrl-C that is raised there
x = slow(3)
for _ in range(4):
    try:
        print("begun", flush=True)
        while True:
            x = slow(3)
            np.asarray(x)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    right(np.asarray(x), 20_003)
print("right", flush=True)
"""

# A thread waits for bytes that never come, and leaves the others alone. What is there stays.
KILLED = """
x, y, z = count(0), count(1), endless(2)
a = np.asarray(x)
z.copy_to_host_async()
said = []
lost = lambda x: said.append(raises(jax.errors.JaxRuntimeError, "worker-0", lambda: np.asarray(x)))
reader = threading.Thread(target=lost, args=[z])
reader.start()
print("ready", flush=True)
sys.stdin.readline()
reader.join()
lost(z)
lost(y)
assert len(said) == 3 and all("UNAVAILABLE" in s or "DATA_LOSS" in s for s in said), said
right(a, 0)
right(np.asarray(x), 0)
del x
gc.collect()
right(a, 0)
print("right")
"""


def test_views_of_results_outlive_scripts_forks_and_ctrl_c():
    with Cluster(1, 2) as cluster:
        for script in (LIFETIMES, FORKED, AHEAD):
            env = {"JAX_ENABLE_X64": "1"} if script is LIFETIMES else {}
            assert cluster.run("import pathways\n" + START + script, **env).stdout.endswith("right\n")
        client = cluster.start("import pathways\n" + START + INTERRUPTED)
        for line in ["begun\n", "interrupted\n"] * 4 + ["right\n"]:
            assert client.stdout.readline() == line, finish(client)
            if line == "begun\n":
                client.send_signal(signal.SIGINT)
        assert finish(client).returncode == 0


def test_views_of_what_fails_or_goes_away_say_so():
    with Cluster(1, 2, "--memory-limit", "8MiB") as cluster:
        assert cluster.run("import pathways\n" + START + FAILED).stdout == "right\n"
        client = cluster.start("import pathways\n" + START + KILLED)
        assert hear(client) == "ready"
        cluster.signal("worker-0", signal.SIGKILL)
        client.stdin.write("go on\n")
        assert finish(client).stdout == "right\n"
