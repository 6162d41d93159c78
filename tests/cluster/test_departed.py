"""Clients that leave while a cluster has much of their work: how soon they end, and what becomes of the work."""

from __future__ import annotations

import re
import signal

import fresh
import pytest
from processes import Cluster, until
from test_faults import lines
from test_handlers import build

# Worker-0 computes without end. Behind that stand computations of both workers, which worker-1 begins and where it
# waits for worker-0, and some of worker-1 alone.
QUEUES = """
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

devices = jax.devices()
mesh = Mesh(np.array(devices), ("d",))
x = jax.device_put(np.arange(2, dtype=np.float32), NamedSharding(mesh, P("d")))
both = jax.jit(jax.shard_map(lambda a: a + jax.lax.psum(a, "d"), mesh=mesh, in_specs=P("d"), out_specs=P("d")))
spin = jax.jit(lambda n: jax.lax.while_loop(lambda c: c != n, lambda c: c + 2, jnp.int32(0)))
alone = jax.jit(lambda a: a * 2)
y = jax.device_put(np.float32(3), devices[1])
assert spin(jnp.int32(4)) == 4 and float(both(x)[1]) == 2 and alone(y) == 6
endless = spin(jnp.int32(3))
many = [step(arg) for _ in range(100) for step, arg in ((both, x), (alone, y))]
print("queued", flush=True)
END
"""

# A thread of the client waits for what never comes. Its wait sleeps on: woken by an error while Python finalizes, the
# thread would print a traceback, or end the process.
READS = """
import threading

before = pathways.stats()["fetches"]
threading.Thread(target=np.asarray, args=(endless,), daemon=True).start()
while pathways.stats()["fetches"] == before:
    pass
"""

ENDS = {
    "returns": ("", None, 0),
    "reads in a thread": (READS, None, 0),
    "interrupted": ("jax.block_until_ready(many)", signal.SIGINT, -signal.SIGINT),
    "killed": ("input()", signal.SIGKILL, -signal.SIGKILL),
}

# Computes on the device of worker-1.
NEXT = """
import jax, numpy as np

print(float(jax.jit(lambda a: a + 1)(jax.device_put(np.float32(1), jax.devices()[1]))))
"""


@pytest.mark.parametrize("end", ENDS)
def test_client_leaves_with_a_full_queue(end):
    """It ends without waiting for results that cannot be read, and the workers drop what they have not begun."""
    last, number, code = ENDS[end]
    with Cluster(2, 1, "--evict-after", "0") as cluster:
        client = cluster.start(QUEUES.replace("END", last))
        assert lines(client, 1) == ["queued"]

        def running(workers) -> list[str]:
            return [r["program"] for worker in workers.values() for r in worker.get("last", {}).get("running", [])]

        if number:  # a call returns before its message has left: one that is killed at once may have queued nothing
            until("the endless computation to run", lambda: "jit__lambda" in running(cluster.workers()))
            client.send_signal(number)
        _, err = client.communicate(timeout=120)
        assert client.returncode == code, err
        # Nothing is said of what was dropped: work that is worth a wait is told of when it is cut off.
        assert "pathways:" not in err and (number or not err), err
        until("its session to end", lambda: not cluster.report().get("sessions"))
        assert cluster.run(NEXT).stdout == "2.0\n"

        def left() -> list[str]:
            """The programs that still run, and whether worker-1 has anything of the client."""
            workers = cluster.workers()
            return running(workers) + ["arrays"] * int(workers["worker-1"].get("last", {}).get("objects", 0))

        until("nothing but the endless computation to be left", lambda: left() == ["jit__lambda"])


# Threads of the client are in calls whose callbacks never run, and others dispatch until the end.
CALLS = """
import os, threading
import jax, numpy as np
from jax.experimental import io_callback
from pathways import _backend

_backend.EXIT_TIMEOUT_MS = 100
call = jax.jit(lambda a: io_callback(lambda value: None, None, a))
x = jax.device_put(np.float32(1), jax.devices()[0])
call(x)
jax.effects_barrier()
print("stop", flush=True)
input()
before = pathways.stats()["under_way"]
for _ in range(20):
    threading.Thread(target=call, args=(x,), daemon=True).start()
while pathways.stats()["under_way"] < before + 20:
    pass
"""
DISPATCHES = """
import sys, threading
import jax, numpy as np

x = jax.device_put(np.float32(1), jax.devices()[0])
step = jax.jit(lambda a: a + 1)
step(x)

def work():
    try:
        sys.stdout.write("stop\\n")  # at once: print writes the end of the line by itself, after another thread's word
        sys.stdout.flush()
        while True:
            step(x)
    finally:
        print("raised", flush=True)

for _ in range(4):
    threading.Thread(target=work, daemon=True).start()
input()
"""


def test_client_leaves_while_threads_wait_in_calls_with_callbacks():
    """None raises: one that took the GIL while Python finalizes would end the process by SIGABRT."""
    with Cluster(1, 1, "--lease", "60s") as cluster:
        client = cluster.start(CALLS)
        assert lines(client, 1) == ["stop"]
        cluster.signal("controller", signal.SIGSTOP)
        _, err = client.communicate("\n", timeout=120)
        cluster.signal("controller", signal.SIGCONT)
        assert client.returncode == 0, err
        assert re.fullmatch("pathways: work was cut off at exit: .* of this process under way .*\n", err), err


def test_client_leaves_while_threads_dispatch():
    with Cluster(1, 1) as cluster:
        client = cluster.start(DISPATCHES)
        assert lines(client, 4) == ["stop"] * 4
        out, err = client.communicate("\n", timeout=120)
        assert (client.returncode, out, err) == (0, "", ""), (out, err)


def test_handlers_of_the_process_run_to_the_end(tmp_path):
    """What the process's own code does outside of devices happens, also where its result is not read."""
    library = build(tmp_path / "handlers.so")
    script = f"""
        import ctypes, jax, jax.numpy as jnp

        handler = jax.ffi.pycapsule(ctypes.CDLL({str(library)!r}).tells)
        jax.ffi.register_ffi_target("tells", handler, platform="cpu")
        x = jnp.zeros(2)
        tells = jax.jit(lambda v: jax.ffi.ffi_call("tells", jax.ShapeDtypeStruct(v.shape, v.dtype))(v))
        for _ in range(5):
            x = tells(x)
        """
    done = fresh.run(script, env={"PATHWAYS_ADDRESS": "local:1x1", "PATHWAYS_DEVICES": ""})
    assert done.stdout == 5 * "told\n", done
