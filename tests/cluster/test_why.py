"""`pathways why` names the cause of a computation that stands still."""

import signal

from processes import Cluster, command, until

STANDS = """
import jax, jax.numpy as jnp, numpy as np
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
slow = jax.jit(lambda v: jax.pure_callback(lambda v: (print("called", flush=True), input(), v)[2], v, v))
slow(np.float32(1)).block_until_ready()
print("done", flush=True)
"""


def test_why_names_a_stopped_worker_and_a_function_that_does_not_return():
    with Cluster(2, 2, "--silence", "60s") as cluster:

        def why() -> str:
            return command("why", "--dir", str(cluster.dir)).stdout

        client = cluster.start(STANDS)
        try:
            assert client.stdout.readline() == "ready\n"
            cluster.signal("worker-1", signal.SIGSTOP)
            print("", file=client.stdin, flush=True)
            assert client.stdout.readline() == "stands\n"
            until("the cause to be named", lambda: "worker-1 has said nothing for" in why())
            assert "is in all-reduce 0 on devices 0-1 of worker-0" in why()
            cluster.signal("worker-1", signal.SIGCONT)
            assert client.stdout.readline() == "called\n"
            until("the client to be named", lambda: "the client has not returned from a function" in why())
            print("", file=client.stdin, flush=True)
            assert client.stdout.readline() == "done\n"
            client.communicate()
            until("the session to end", lambda: why() == "no session waits for anything\n")
            assert "there is no session 1" in command("why", "1", "--dir", str(cluster.dir), check=False).stderr
        finally:
            client.kill()
            client.communicate()
