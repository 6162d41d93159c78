"""A cluster with devices of four platforms: sessions of one, of two and of three, whose programs use all of theirs."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import fresh
import pytest
from processes import Cluster

# Simulated devices hold arrays, and do not run what JAX compiles.
SIMULATED = """
import jax, numpy as np
pathways.init(platform="sim_slow")
devices = jax.devices()
assert [d.platform for d in devices] == ["sim_slow"] * 3 and {d.worker for d in devices} == {"worker-3"}, devices
x = np.arange(6.0, dtype=np.float32)
one = jax.device_put(x, devices[0])
np.testing.assert_array_equal(jax.device_put(one, devices[2]), x)
print("ready", flush=True)
input()
"""
COMPUTES = """
import jax, jax.numpy as jnp, numpy as np
devices = jax.devices()
assert [d.platform for d in devices] == ["fast"] * 2 and {d.worker for d in devices} == {"worker-1"}, devices
np.testing.assert_array_equal(jax.jit(lambda a: a - jnp.sum(a))(np.arange(6.0)), np.arange(6.0) - 15)
print("ready", flush=True)
input()
"""
BOTH = """
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from jaxlib import xla_client
from pathways import _backend

# The process gets another session between the clients of this one.
others, make_beside = [], _backend._make_beside
def interrupted(factory):
    others.append(xla_client.make_c_api_client("pathways", {"platform": "sim_slow"}))
    return make_beside(factory)
_backend._make_beside = interrupted

pathways.init(platform="fast,cpu", devices=2)
fast, host = jax.devices(), pathways.devices("cpu")
assert [(d.platform, d.id) for d in fast] == [("fast", 0), ("fast", 1)]
assert [(d.platform, d.id, d.worker) for d in host] == [("cpu", 2, "worker-0"), ("cpu", 3, "worker-0")]
assert jax.devices("pathways_cpu") == host
assert [[d.platform for d in other.devices()] for other in others] == [["sim_slow"] * 3]

def over(devices):
    return NamedSharding(Mesh(np.array(devices), ("d",)), P("d"))

# Arrays move between both platforms without a copy here, whatever they look like.
x = np.arange(6.0, dtype=np.float32)
one, two = jax.device_put(x, fast[1]), jax.device_put(x, over(fast))
before = pathways.stats()
moved = [
    jax.device_put(one, host[0]), jax.device_put(one, over(host)), jax.device_put(two, host[1]),
    jax.device_put(two, over(host)), pathways.reshard(two, over(host)),
    jax.device_put(jax.device_put(two, over(host)), over(fast)),
]
after = pathways.stats()
assert [after[k] - before[k] for k in ("puts", "fetches", "reshards")] == [0, 0, 7], (before, after)
for array in moved:
    np.testing.assert_array_equal(array, x)
assert moved[0].devices() == {host[0]} and moved[3].sharding == over(host) and moved[5].sharding == over(fast)
assert jax.device_put(jax.device_put(np.int8([1, -2]).astype(jnp.int4), fast[0]), host[0]).tolist() == [1, -2]
key = jax.device_put(jax.random.key(1), host[0])
assert jax.random.normal(key, (2,)).devices() == {host[0]}
assert jax.grad(lambda a: (jax.device_put(2 * a, host[0]) ** 2).sum())(one).devices() == {fast[1]}
q, r = jnp.linalg.qr(jax.device_put(np.eye(2, dtype=np.float32), host[0]))  # LAPACK's, on the CPU
np.testing.assert_allclose(q @ r, np.eye(2), atol=1e-6)

# A program over both is one message.
double, add = jax.jit(lambda a: 2 * a), jax.jit(lambda a: a + jnp.sum(a))

@pathways.program
def both(v):
    there = add(jax.device_put(double(v), over(host)))
    return double(jax.device_put(there, fast[0])), there

for n in range(3):
    first, second = both(jax.device_put(x + n, over(fast)))
    want = 2 * (x + n) + 2 * (x + n).sum()
    np.testing.assert_array_equal(second, want)
    np.testing.assert_array_equal(first, 2 * want)
assert first.devices() == {fast[0]} and second.sharding == over(host)
assert [node["kind"] for node in both.lower(jax.device_put(x, over(fast))).graph["nodes"]].count("reshard") == 2

# Arrays that were never placed follow the others, within the cluster, in calls like an earlier one as well.
plus = jax.jit(jnp.add)
ones = jnp.ones(6)
ahead = plus.lower(moved[0], ones).compile()
for call in (plus, ahead):
    for n in range(3):
        before = pathways.stats()
        total = call(moved[0], ones)
        after = pathways.stats()
        assert [after[k] - before[k] for k in ("puts", "fetches", "reshards")] == [0, 0, 1], (call, n, before, after)
        assert total.devices() == {host[0]}
follows = pathways.program(lambda v: plus(ahead(v, 2 * jnp.ones(6)), np.ones(6)) + 1)
for n in range(2):
    np.testing.assert_array_equal(follows(moved[0]), x + 4)

# A slice is of the first platform, unless it says which.
assert pathways.make_virtual_device_set().add_slice(devices=2).devices == fast
assert pathways.make_virtual_device_set().add_slice(devices=2, island="default").devices == host
try:
    jax.jit(jnp.add)(one, moved[0])
except ValueError as error:
    assert "on platform FAST" in str(error) and "on platform CPU" in str(error)
else:
    raise AssertionError("a computation spans two platforms")
try:
    pathways.devices("tpu")
except pathways.PathwaysError as error:
    assert "only of fast and cpu" in str(error)
del one, two, moved, key, first, second, q, r, array
pathways.shutdown()
pathways.init(platform="cpu")
assert [d.platform for d in jax.devices()] == ["cpu"] * 2
print("right")
"""

# A function of pathways.mpmd has a stage on each of three platforms.
THREE = """
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh
from pathways import mpmd

pathways.init(platform="fast,other,cpu", devices=2)
platforms = ("fast", "other", "cpu")
meshes = {name: Mesh(pathways.devices(name), "d") for name in platforms}

def loss(ws, x):
    for name, w in zip(platforms, ws):
        x = mpmd.named_computation(lambda w, x: jnp.tanh(x @ w), name=name)(w, x)
    return jnp.mean(x**2)

def train(ws, xs):
    total = jax.tree.map(jnp.zeros_like, ws)
    for i, x in enumerate(xs):
        total = jax.tree.map(jnp.add, total, mpmd.call(jax.grad(loss), call_counter=i)(ws, x))
    return total

config = mpmd.make_config(
    meshes, {name: name for name in platforms}, name_to_stage_assignment={name: i for i, name in enumerate(platforms)},
    pipeline_schedule="ZeroBubbleH1",
)
args = [np.eye(4, dtype="f")] * 3, [np.full((2, 4), i, "f") for i in range(3)]
step = mpmd.jit(train, config).lower(*args).compile()
there = jax.device_put(args, step.input_shardings)
jax.block_until_ready(step(*there))  # and it is captured
before = pathways.stats()
found = step(*there)
after = pathways.stats()
assert [after[k] - before[k] for k in ("go_entries", "puts", "fetches")] == [1, 0, 0], (before, after)
assert [x.devices() for x in found] == [set(pathways.devices(name)) for name in platforms]
for a, b, c in zip(found, step.one_by_one(*there), jax.jit(train)(*args), strict=True):
    np.testing.assert_array_equal(a, b)
    np.testing.assert_allclose(a, c, rtol=2e-5, atol=2e-6)
print("right")
"""


@pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc on this machine")
def test_sessions_on_several_platforms(tmp_path):
    source = Path(fresh.__file__).parent / "clients/platform.c"
    headers = f"-I{source.parents[2] / 'device/pjrt/abi'}"
    for name in ("fast", "other"):
        names = (f'-DNAME="{name}"', f'-DPLUGIN="{fresh.plugin_path()}"')
        compiler = ("gcc", "-std=gnu11", "-shared", "-fPIC", "-Wall", headers)
        subprocess.run([*compiler, *names, source, "-o", tmp_path / f"{name}.so"], check=True)
    drivers = f"cpu,{tmp_path}/fast.so,{tmp_path}/other.so,sim:slow=1x3"
    with Cluster(1, 2, "--driver", drivers) as cluster:
        clients = [cluster.start(SIMULATED), cluster.start(COMPUTES, PATHWAYS_PLATFORM="fast")]
        for client in clients:
            assert fresh.hear(client) == "ready"
        assert [island["platform"] for island in cluster.report()["islands"]].count("sim_slow") == 1
        assert cluster.run(BOTH).stdout == "right\n"
        assert cluster.run(THREE).stdout == "right\n"
        for client in clients:
            out, err = client.communicate("go\n", timeout=60)
            assert client.returncode == 0, out + err
        lacks = cluster.run("import jax; jax.devices()", PATHWAYS_PLATFORM="fast,tpu", PATHWAYS_WAIT="0", check=False)
        assert "no devices of platform tpu, and has some of " in lacks.stderr
