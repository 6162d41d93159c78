"""A worker that dies in the middle of a step of pathways.mpmd, and the steps after it."""

import re
import signal

from processes import Cluster

STEPS = """
import time
import jax, jax.numpy as jnp, numpy as np
import pathways
from jax.sharding import Mesh
from pathways import mpmd

def block(w, x):
    return jnp.tanh(x @ w)

def loss(ws, x):
    for i, w in enumerate(ws):
        x = mpmd.named_computation(block, name=f"block{i}")(w, x)
    return jnp.mean(x**2)

def train(ws, xs):
    gradients = jax.tree.map(jnp.zeros_like, ws)
    for i, x in enumerate(xs):
        one = mpmd.call(jax.grad(loss), call_counter=i)(ws, x)
        gradients = jax.tree.map(jnp.add, gradients, one)
    return jax.tree.map(lambda w, g: w - 0.1 * g, ws, gradients)

meshes = {f"mesh{i}": Mesh([device], "x") for i, device in enumerate(jax.devices())}
assert len({device.worker for device in jax.devices()}) == len(meshes) == 2
config = mpmd.make_config(
    meshes, {"block0": "mesh0", "block1": "mesh1"}, name_to_stage_assignment={"block0": 0, "block1": 1},
    pipeline_schedule="1F1B",
)
given = [np.eye(256, dtype="f")] * 2, [np.ones((16, 256), "f")] * 4
step = mpmd.jit(train, config, donate_argnums=0).lower(*given).compile()
ws, xs = jax.device_put(given, step.input_shardings)
first = np.asarray(step(ws, xs)[1])
ws, _ = jax.device_put(given, step.input_shardings)
events = pathways.events()
print(loss.__code__.co_firstlineno + 2, flush=True)  # of the named computation
try:
    while True:
        for _ in range(5):
            ws = step(ws, xs)
        jax.block_until_ready(ws)
except Exception as error:
    print(error, flush=True)

events.wait("rebound", timeout=60)
ws, xs = jax.device_put(given, step.input_shardings)
assert np.array_equal(np.asarray(step(ws, xs)[1]), first)
print("again", flush=True)
"""


def test_a_lost_worker_is_named_with_what_was_under_way_and_steps_go_on_with_the_one_in_its_place():
    with Cluster(workers=2, devices=1, restart=True) as cluster:
        script = cluster.start(STEPS)
        line = int(script.stdout.readline())
        lost = sorted(cluster.workers())[1]
        cluster.signal(lost, signal.SIGKILL)
        said = script.stdout.readline()
        assert said.startswith(("DATA_LOSS: ", "UNAVAILABLE: ")) and lost in said, said
        # What was under way there; or a step began after the loss, and read what was lost.
        under_way = rf"\[(a transfer of a result of )?jit_\w*stage\d\w*, called at <string>:{line}[],]"
        moving = rf"\[moving a result of jit_\w*stage\d\w*, called at <string>:{line}, on device"
        assert re.search(rf"{under_way}|{moving}|^DATA_LOSS: .*{lost}, which was lost at", said), said
        output, errors = script.communicate(timeout=120)
        assert output == "again\n", errors
