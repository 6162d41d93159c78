"""`pathways why` names the cause of a computation that stands still."""

import os
import re
import shutil
import signal
import sysconfig
import time

from fresh import hear, tell
from processes import Cluster, command, until

# Device 0 comes to its collective only when its function has returned, and the others wait for it there.
# PR_SET_PTRACER: some systems let py-spy read only its own children, unless a process allows it.
STANDS = """
import ctypes, jax, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

def holds(device, v):
    if device == 0:
        print("called", flush=True)
        input()
    return v

def each(v):
    held = jax.pure_callback(holds, v, jax.lax.axis_index("d"), v)
    return jax.lax.psum(jax.lax.psum(held, "d"), "d") / 4 + v

mesh = Mesh(np.array(jax.devices()), ("d",))
x = jax.device_put(np.arange(4, dtype=np.float32), NamedSharding(mesh, P("d")))
total = jax.jit(jax.shard_map(each, mesh=mesh, in_specs=P("d"), out_specs=P("d")))
ctypes.CDLL(None).prctl(0x59616D61, ctypes.c_ulong(2**64 - 1))
print(total(x).tolist(), flush=True)
"""

FAILS = """
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

mesh = Mesh(np.array(jax.devices()), ("d",))
x = jax.device_put(np.arange(4, dtype=np.float32), NamedSharding(mesh, P("d")))
total = jax.jit(lambda x: jnp.sum(x) + x)
twice = lambda x: 2 * x
parts = jax.jit(jax.shard_map(
    lambda x: jax.lax.cond(jax.lax.axis_index("d") < 2, lambda x: jax.lax.psum(x, "d"), twice, x),
    mesh=mesh, in_specs=P("d"), out_specs=P("d"), check_vma=False))

def fails(y):
    try:
        y.block_until_ready()
        print("ended", flush=True)
    except jax.errors.JaxRuntimeError as error:
        print(str(error).replace("\\n", " | "), flush=True)

near, far = jax.devices()[0], jax.device_put(np.float32(7), jax.devices()[3])
assert total(x).tolist() == [6, 7, 8, 9]
print("ready", flush=True)
input()
y, moved = total(x), jax.device_put(far, near)
fails(y)
fails(moved)
input()
assert jax.device_put(far, near) == 7
assert total(x).tolist() == [6, 7, 8, 9]
fails(parts(x))
assert total(x).tolist() == [6, 7, 8, 9]
print("done", flush=True)
"""


def test_what_stands_still_is_aborted_with_its_cause_and_all_goes_on():
    with Cluster(2, 2, "--silence", "300s", "--stuck-after", "5s") as cluster:
        before = {name: worker["process"]["number"] for name, worker in cluster.workers().items()}
        client = cluster.start(FAILS)
        assert hear(client) == "ready"
        cluster.signal("worker-1", signal.SIGSTOP)
        tell(client)
        error = hear(client)
        for part in (
            "DEADLINE_EXCEEDED: jit__lambda",
            "jit__lambda (first called at <string>:",
            "in collective 0 (all-reduce) on devices 0-1 of worker-0",
            "--stuck-after",
            "it waits for worker-1",
            "worker-1 has said nothing for",
        ):
            assert part in error, error
        error = hear(client)
        for part in ("DEADLINE_EXCEEDED: a transfer stood still", "worker-1 has said nothing for"):
            assert part in error, error
        # Another session computes meanwhile.
        other = cluster.run("import jax, jax.numpy as jnp\nprint(jnp.arange(3, device=jax.devices()[0]) + 1)")
        assert other.stdout == "[1 2 3]\n"
        cluster.signal("worker-1", signal.SIGCONT)
        tell(client)
        error = hear(client)
        for part in (
            "DEADLINE_EXCEEDED: jit__lambda",
            "in collective 0 (all-reduce) on devices 0-1 of worker-0",
            "worker-1 has ended its part without it",
        ):
            assert part in error, error
        assert hear(client) == "done"
        client.communicate()
        assert {name: worker["process"]["number"] for name, worker in cluster.workers().items()} == before
        until("nothing to be left", cluster.idle)


def test_why_names_a_function_that_does_not_return_and_a_worker_stopped_in_a_collective():
    with Cluster(2, 2, "--silence", "60s") as cluster:

        def why(**env: str) -> str:
            return command("why", "--dir", str(cluster.dir), env=env).stdout

        def named(*parts: str) -> None:
            until(f"{parts} to be named", lambda: all(re.search(part, text) for text in [why()] for part in parts))

        client = cluster.start(STANDS)
        assert hear(client) == "called"
        stands = r"jit_each \(called at <string>:\d+\) is in collective"
        waits = rf"{stands} 0 \(all-reduce\) on devices 0-1 of worker-1 for .*"
        named(waits, "the client has not returned from a function")
        # One beside this Python is found where that is not on PATH.
        if shutil.which("py-spy", path=sysconfig.get_path("scripts")):
            assert re.search(r"\n +holds \(<string>:\d+\)\n", stack := why(PATH=os.devnull)), stack
        else:
            assert "pip install py-spy, and py-spy dump --pid" in why(PATH=os.devnull)
        cluster.signal("worker-1", signal.SIGSTOP)
        begun = time.monotonic()
        tell(client)
        # The controller sees by itself that one says nothing; where the other stands comes with its next heartbeat.
        waits = rf"{stands} \d \(all-reduce\) on devices 0-1 of worker-0 for .*: it waits for worker-1"
        named(waits, "worker-1 has said nothing for")
        assert time.monotonic() - begun < 5
        cluster.signal("worker-1", signal.SIGCONT)
        assert hear(client) == "[6.0, 7.0, 8.0, 9.0]"
        client.communicate()
        until("the session to end", lambda: why() == "no session waits for anything\n")
        assert "there is no session 1" in command("why", "1", "--dir", str(cluster.dir), check=False).stderr
