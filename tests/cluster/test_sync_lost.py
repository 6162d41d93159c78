"""Weights of a trainer go on coming when the worker of the sampler, or of the trainer, is killed."""

import signal

from processes import Cluster, until
from test_faults import lines

# A trainer on the first worker's devices, and a sampler on the second's.
SCRIPT = """
import itertools
import jax, jax.numpy as jnp, numpy as np, pathways
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

devices = jax.devices()
rows, columns = (NamedSharding(Mesh(np.array(d), "d"), P(*s)) for d, s in (
    (devices[:2], ("d",)), (devices[2:], (None, "d"))))
events = pathways.events()
step = jax.jit(lambda tree: [x + 1 for x in tree])
begin = lambda value: [jax.device_put(jnp.full((256, 256), value, jnp.float32), rows) for _ in range(4)]
params = begin(0.0)
weights = pathways.sync(params, to=columns)

def values(tree):
    return {float(v) for x in tree for v in np.unique(np.asarray(x))}

def until_lost(params):
    for _ in itertools.count():
        try:
            params = step(params)
            weights.push(params)
        except (jax.errors.JaxRuntimeError, ValueError) as error:
            assert "worker-" in str(error), error
            return params

print("ready", flush=True)
params = until_lost(params)
events.wait("rebound", 60)
version = weights.push(step(params))  # the sampler's worker was lost: the trainer's weights are there
assert values(weights.wait(version)[1]) == values(step(params))
print("sampler", flush=True)
until_lost(params)
number, tree = weights.latest()  # the trainer's worker was lost: the sampler has a whole version
assert len(values(tree)) == 1, values(tree)
events.wait("rebound", 60)
version = weights.push(begin(7.0))
assert values(weights.wait(version)[1]) == {7.0}
print("trainer", flush=True)
"""


def test_weights_go_on_coming_after_either_worker_was_killed():
    with Cluster(2, 2, restart=True) as cluster:
        client = cluster.start(SCRIPT)
        for said, worker in (("ready", "worker-1"), ("sampler", "worker-0")):
            assert lines(client, 1) == [said]
            cluster.signal(worker, signal.SIGKILL)  # somewhere in its loop; where does not matter
        out, err = client.communicate(timeout=120)
        assert client.returncode == 0 and out.split() == ["trainer"], out + err
        until("all to be freed", cluster.idle)


# Half of a version is there, and the other half waits for a worker that has been stopped and is then killed.
HALF = """
import jax, numpy as np, pathways

a, stopped, b = jax.devices()
tree = lambda value, *to: [jax.device_put(np.full(1 << 16, value, np.float32), d) for d in to]
sides = {"trainer": ((a, stopped), (b, b)), "sampler": ((b, b), (a, stopped))}  # of which a worker is killed
weights = {side: pathways.sync(tree(0.0, *own), to=list(to)) for side, (own, to) in sides.items()}
new = {side: tree(1.0, *own) for side, (own, _) in sides.items()}
jax.block_until_ready([weights[side].wait(0) for side in sides] + list(new.values()))
print("stop", flush=True)
input()
for side in sides:
    weights[side].push(new[side])
    jax.block_until_ready(weights[side]._coming.params[0])
    assert not weights[side]._coming.is_there(), side
    assert weights[side].latest()[0] == 0, side
print("kill", flush=True)
for side in sides:
    try:
        weights[side].wait(1)
    except jax.errors.JaxRuntimeError as error:
        assert str(error).startswith("UNAVAILABLE: worker worker-1 is gone: "), error
        print(side, flush=True)
    assert weights[side].latest()[0] == 0, side
assert [set(np.asarray(x)) for x in weights["trainer"].latest()[1]] == [{0.0}] * 2
"""


def test_half_of_a_version_is_not_shown_when_a_worker_is_killed_within_a_push():
    with Cluster(3, 1) as cluster:
        client = cluster.start(HALF)
        assert lines(client, 1) == ["stop"]
        cluster.signal("worker-1", signal.SIGSTOP)
        print(file=client.stdin, flush=True)
        assert lines(client, 1) == ["kill"]
        cluster.signal("worker-1", signal.SIGKILL)
        out, err = client.communicate(timeout=120)
        assert client.returncode == 0, out + err
        assert out.split() == ["trainer", "sampler"], out
