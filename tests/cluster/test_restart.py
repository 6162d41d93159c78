"""A cluster survives its controller: a script goes on when the controller is killed and starts again."""

import time

from processes import Cluster, command, kill_controller, until
from test_faults import lines

# A training loop over both workers: each step reads what the one before has made, donates it, and counts itself, so a
# step that is lost or done twice shows in the result. Each round calls a function of this process, which mostly runs
# when the controller is killed. Asked by a line, it says how long the longest round took since
# the last line, once another one has begun and ended.
LOOP = """
import sys, threading, time
import jax, jax.numpy as jnp, numpy as np
from jax.experimental import io_callback
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

devices = jax.devices()
mesh = Mesh(np.array(devices), ("d",))
rows = NamedSharding(mesh, P("d"))
called = []

def hear(count):
    time.sleep(0.02)
    called.append(int(count))

call = jax.jit(lambda count: io_callback(hear, None, count, ordered=True))
step = jax.jit(jax.shard_map(lambda a: a + jax.lax.psum(a, "d") * 0 + 1, mesh=mesh, in_specs=P("d"), out_specs=P("d")),
               donate_argnums=0)
kept = jax.device_put(np.arange(len(devices) * 8, dtype=np.float32), rows)
x = jax.device_put(np.zeros(len(devices) * 8, np.float32), rows)
over = threading.Event()
rounds = []

def answer():
    for _ in sys.stdin:
        asked = time.monotonic()
        while not rounds or rounds[-1][0] < asked:
            time.sleep(0.01)
        print(round(max(ended - begun for begun, ended in rounds), 2), flush=True)
        rounds.clear()
    over.set()

threading.Thread(target=answer, daemon=True).start()
count, begun = 0, time.monotonic()
while not over.is_set():
    for _ in range(20):
        x = step(x)
    count += 20
    call(jax.device_put(np.int32(count), devices[0]))
    y = jax.device_put(np.full(len(devices), count, np.float32), rows)
    assert np.array_equal(np.asarray(x[::8] - y), np.zeros(len(devices))), (count, np.asarray(x))
    now = time.monotonic()
    if count == 20:
        print("ready", flush=True)  # and all is compiled
    else:
        rounds.append((begun, now))
    begun = now
assert np.array_equal(np.asarray(kept), np.arange(len(devices) * 8))
jax.effects_barrier()
assert called == list(range(20, count + 1, 20)), (count, called)
print(count, flush=True)
"""


def test_script_goes_on_while_its_controller_is_killed():
    """Nothing fails, steps and callbacks are done once, and the script pauses for at most five seconds."""
    with Cluster(2, 2, restart=True) as cluster:
        client = cluster.start(LOOP)
        assert lines(client, 1) == ["ready"]
        pauses = []
        for _ in range(2):
            time.sleep(0.5)  # somewhere in its loop; where does not matter
            kill_controller(cluster)
            print(file=client.stdin, flush=True)
            pauses.append(float(lines(client, 1)[0]))
        out, errors = client.communicate(timeout=60)
        assert client.returncode == 0, errors
        print(f"{out.strip()} steps, and pauses of {pauses} s")
        # Usually one or two seconds, most of which a process takes to start; a busy machine may start one late.
        assert min(pauses) < 5, pauses
        workers = {name: pid for name, pid in cluster.listed().items() if name.startswith("worker")}
        assert workers == {name: pid for name, pid in cluster.processes.items() if name.startswith("worker")}


# A session that has all devices for itself, and goes on using them.
OWNER = """
import sys
import jax, numpy as np, pathways
mine = pathways.make_virtual_device_set().add_slice(devices=len(jax.devices()), exclusive=True)
x = jax.device_put(np.float32(1), mine.devices[0])
print("mine", flush=True)
for line in sys.stdin:
    if line == "release\\n":
        break
    x = x + 1
    print(float(x), flush=True)
x.delete()
mine.release()
print("released", flush=True)
sys.stdin.readline()
"""

# Another one that waits for them, and must not use them before.
WAITING = """
import sys, threading
import jax, numpy as np, pathways
waiting = pathways.make_virtual_device_set()
threading.Thread(target=lambda: (sys.stdin.readline(), use()), daemon=True).start()

def use():
    try:
        np.asarray(jax.device_put(np.float32(1), jax.devices()[0]) + 1)
        print("used", flush=True)
    except Exception as error:
        print("refused" if "exclusive" in str(error) else error, flush=True)

print("waits", flush=True)
mine = waiting.add_slice(devices=len(jax.devices()), exclusive=True, wait=600)
print(float(np.asarray(jax.device_put(np.float32(41), mine.devices[0]) + 1)), flush=True)
"""


def test_slices_outlive_their_controller():
    """An exclusive slice stays its session's when the controller is killed, and a request for one goes on waiting."""
    with Cluster(1, 2, restart=True) as cluster:
        owner = cluster.start(OWNER)
        assert lines(owner, 1) == ["mine"]
        waiting = cluster.start(WAITING)
        assert lines(waiting, 1) == ["waits"]
        until(
            "the request to be in the queue", lambda: "exclusive" in command("queue", "--dir", str(cluster.dir)).stdout
        )
        kill_controller(cluster)
        print("use", file=waiting.stdin, flush=True)
        assert lines(waiting, 1) == ["refused"]
        print("go on", file=owner.stdin, flush=True)
        assert lines(owner, 1) == ["2.0"]
        print("release", file=owner.stdin, flush=True)
        assert lines(owner, 1) == ["released"]
        assert lines(waiting, 1) == ["42.0"]
        for client in (owner, waiting):
            _, errors = client.communicate("\n", timeout=60)
            assert client.returncode == 0, errors
