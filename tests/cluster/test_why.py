"""`pathways why` names the cause of a computation that stands still."""

import os
import re
import shutil
import signal
import sysconfig

from fresh import hear, tell
from processes import Cluster, command, until

# PR_SET_PTRACER: some systems let py-spy read only its own children, unless a process allows it.
STANDS = """
import ctypes, jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

d = NamedSharding(Mesh(np.array(jax.devices()), ("d",)), P("d"))
x = jax.device_put(np.arange(4, dtype=np.float32), d)
total = jax.jit(lambda x: jnp.sum(x) + x)
assert total(x).tolist() == [6, 7, 8, 9]
print("ready", flush=True)
input()
y = total(x)
print("stands", flush=True)
assert y.tolist() == [6, 7, 8, 9]
ctypes.CDLL(None).prctl(0x59616D61, ctypes.c_ulong(2**64 - 1))
def answers(v):
    print("called", flush=True)
    input()
    return v
slow = jax.jit(lambda v: jax.pure_callback(answers, v, v))
slow(np.float32(1)).block_until_ready()
print("done", flush=True)
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
            "in all-reduce 0 on devices 0-1 of worker-0",
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
            "in all-reduce 0 on devices 0-1 of worker-0",
            "worker-1 has ended its part without it",
        ):
            assert part in error, error
        assert hear(client) == "done"
        client.communicate()
        assert {name: worker["process"]["number"] for name, worker in cluster.workers().items()} == before
        until("nothing to be left", cluster.idle)


def test_why_names_a_stopped_worker_and_a_function_that_does_not_return():
    with Cluster(2, 2, "--silence", "60s") as cluster:

        def why(**env: str) -> str:
            return command("why", "--dir", str(cluster.dir), env=env).stdout

        client = cluster.start(STANDS)
        assert hear(client) == "ready"
        cluster.signal("worker-1", signal.SIGSTOP)
        tell(client)
        assert hear(client) == "stands"
        # The controller sees by itself that one says nothing; where the other stands comes with its next heartbeat.
        stands = r"jit__lambda \(first called at <string>:\d+\) is in all-reduce 0 on devices 0-1 of worker-0"
        named = stands, "worker-1 has said nothing for"
        until("both to be named", lambda: all(re.search(part, text) for text in [why()] for part in named))
        cluster.signal("worker-1", signal.SIGCONT)
        assert hear(client) == "called"
        until("the client to be named", lambda: "the client has not returned from a function" in why())
        assert "pip install py-spy, and py-spy dump --pid" in why(PATH=os.devnull)
        with_spy = os.pathsep.join([sysconfig.get_path("scripts"), os.environ["PATH"]])
        if shutil.which("py-spy", path=with_spy):
            assert re.search(r"\n +answers \(<string>:\d+\)\n", stack := why(PATH=with_spy)), stack
        tell(client)
        assert hear(client) == "done"
        client.communicate()
        until("the session to end", lambda: why() == "no session waits for anything\n")
        assert "there is no session 1" in command("why", "1", "--dir", str(cluster.dir), check=False).stderr
