"""A script goes on, in the same process, when another worker takes the place of one that was lost."""

import signal
import time

import fresh
import pathways
import pytest
from processes import Cluster, command, until
from test_faults import lines

# Everything that knows of devices, made once: a mesh over all, jitted functions, a program, arrays.
MADE = """
import hashlib, time
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

devices = jax.devices()
mesh = Mesh(np.array(devices), ("d",))
rows = NamedSharding(mesh, P("d"))
host = np.random.default_rng(1).normal(size=(len(devices) * 64,)).astype(np.float32)
weights = np.random.default_rng(2).random(1 << 17, dtype=np.float32)  # so long that it is not part of the executable

def body(a):
    mine = jax.lax.dynamic_slice(jnp.asarray(weights), (jax.lax.axis_index("d") * 1000,), (64,))
    return a * 0.5 + jnp.sin(jax.lax.psum(a, "d")) * 0.125 + mine

step = jax.jit(jax.shard_map(body, mesh=mesh, in_specs=P("d"), out_specs=P("d")))
alone = jax.jit(lambda a: a * 2 + 1)
back = NamedSharding(Mesh(np.array(devices[::-1]), ("d",)), P("d"))

@pathways.program
def four(y):
    for _ in range(4):
        y = step(jax.device_put(jax.device_put(y, back), rows))
    return y

def all_of(x):
    return np.asarray(four(step(x)))
"""

# Programs that have arrays of their own on the last device: numbers, bounds, NumPy arrays, results of jnp, an array
# from outside, a result that depends on nothing, and what a pipeline makes.
OWN = """
table = np.arange(8, dtype=np.float32)
outside = [jax.device_put(table, devices[-1])]

@pathways.program
def own(y):
    with jax.default_device(devices[-1]):
        z = alone(y * 2.0 + table)[1:7] + jnp.ones(6) + outside[0][:6]
        moved = jax.device_put(jnp.arange(6.0) + 1, devices[0])
        return z + 1.5, moved * jax.device_put(z, devices[0])

@pathways.program
def returned():
    return jax.device_put(table, devices[-1])

def stage(w, x):
    return jnp.tanh(x @ w)

w = np.eye(4, dtype=np.float32) / 2
pipe = pathways.pipeline(
    [(stage, w, devices[0]), (stage, w, devices[-1])], microbatches=2, loss=lambda y, to: jnp.mean((y - to) ** 2)
)

@pathways.program
def train(params, rows, to):
    loss, gradients = pipe.value_and_grad(rows, to, params=params)
    return loss, [w - 0.5 * g for w, g in zip(params, gradients)]

def all_own():
    params = [jax.device_put(w, d) for d in (devices[0], devices[-1])]
    batch = host[:16].reshape(4, 4)
    given = jax.device_put(table, devices[-1])
    return [np.asarray(x).tobytes() for x in jax.tree.leaves((own(given), returned(), train(params, batch, batch)))]
"""

SCRIPT = (
    MADE
    + OWN
    + """
events = pathways.events()
heard = []
stop = pathways.on_event(lambda event: heard.append(str(event)))
here = jax.device_put(host[:8], devices[0])
there = jax.device_put(host[:8], devices[-1])
x = jax.device_put(host, rows)
want, want_alone, want_own = all_of(x), np.asarray(alone(here)), all_own()
assert np.array_equal(np.asarray(alone(there)), want_alone)
sharded = step(x).block_until_ready()
print("ready", flush=True)
assert input() == "go"
try:
    y = x
    while True:
        y = four(step(y))
        y.block_until_ready()
except (jax.errors.JaxRuntimeError, ValueError) as error:
    assert "worker-1" in str(error), error
lost = events.wait("lost", 60)
assert lost.devices == tuple(devices[2:]) and lost.worker == "worker-1", lost
uses = {
    "read": lambda: np.asarray(there),
    "compute": lambda: np.asarray(alone(there)),
    "compute on all": lambda: all_of(x),
    "play what has arrays of its own": lambda: np.asarray(own(there)[0]),
    "compute with what was computed": lambda: np.asarray(step(sharded)),
    "read what was computed": lambda: np.asarray(sharded),
}
for what, use in uses.items():
    try:
        use()
        raise SystemExit(f"{what} succeeds, and the array is lost")
    except (jax.errors.JaxRuntimeError, ValueError) as error:
        text = str(error)
        assert "DATA_LOSS" in text and "worker-1" in text and " UTC: " in text, (what, text)
first = [s for s in x.addressable_shards if s.device == devices[0]][0].data
assert np.array_equal(np.asarray(first), host[:64])  # a shard that is left
print("lost", flush=True)
came = events.wait("came", 60)
rebound = events.wait("rebound", 60)
x = jax.device_put(host, rows)
assert np.array_equal(all_of(x), want)
outside[0] = jax.device_put(table, devices[-1])
assert all_own() == want_own
print("took", time.time() - came.time.timestamp(), flush=True)
print(hashlib.sha256(all_of(x).tobytes()).hexdigest())
assert np.array_equal(np.asarray(alone(here)), want_alone)  # it never went
there = jax.device_put(host[:8], devices[-1])
assert np.array_equal(np.asarray(alone(there)), want_alone)
assert [d.virtual_task_index for d in devices] == [0, 0, 1, 1]
assert jax.devices() == devices and rebound.devices == lost.devices == came.devices
print([event.split()[0] for event in heard], flush=True)
stop()
"""
)

# The same on one process's devices, by stock JAX with the same plugin.
STOCK = (
    MADE.replace("jax.devices()", "jax.devices()[:4]").replace("@pathways.program\n", "")
    + "print(hashlib.sha256(all_of(jax.device_put(host, rows)).tobytes()).hexdigest())\n"
)


def test_script_goes_on_after_a_worker_was_killed():
    """The same process, mesh, jitted functions and program give the same bits as before the loss."""
    with Cluster(2, 2, restart=True) as cluster:
        client = cluster.start(SCRIPT)
        assert lines(client, 1) == ["ready"]
        fresh.tell(client, "go")
        time.sleep(0.3)  # somewhere in its loop; where does not matter
        cluster.signal("worker-1", signal.SIGKILL)
        out, err = client.communicate(timeout=120)
        assert client.returncode == 0, out + err
        said, took, bits, heard = out.strip().splitlines()
        assert fresh.run(STOCK, "plugin").stdout.strip() == bits
        assert said == "lost" and heard == "['lost', 'came', 'rebound']", out
        assert float(took.split()[1]) < 10, took  # usually some tenths of a second
        before, _, after = command("events", "--dir", str(cluster.dir)).stdout.partition(" rebound ")
        assert "compiled" in before and after and "compiled" not in after, "the new worker gets programs from the other"
        until("all to be freed", cluster.idle)


def test_waits_for_events_end():
    """A wait for what does not come ends with its time, and one for what there is not at once."""
    events = pathways.events()
    with pytest.raises(pathways.PathwaysError) as late:
        events.wait("rebound", timeout=0.2)
    assert late.value.code == "DEADLINE_EXCEEDED"
    with pytest.raises(pathways.PathwaysError) as unknown:
        events.wait("reborn")
    assert unknown.value.code == "INVALID_ARGUMENT" and "rebound" in unknown.value.message


# On one process's devices, too, which have no other events.
ENDS = """
import time
import jax
jax.devices()
events, later, heard = pathways.events(), pathways.events(), []
pathways.on_event(lambda event: heard.append(event.kind))
pathways.shutdown()
assert [(event.kind, event.reason) for event in events] == [("ended", "")]
try:
    later.wait("rebound")
except pathways.PathwaysError as error:
    assert error.code == "UNAVAILABLE", error
while not heard:
    time.sleep(0.01)
print(heard)
"""


def test_shutdown_ends_waits_for_events():
    done = fresh.run(ENDS)
    assert done.stdout == "['ended']\n" and not done.stderr, done.stderr
