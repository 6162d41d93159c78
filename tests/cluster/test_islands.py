"""A cluster of two islands: devices say which is theirs, computations keep to one, and arrays move between both."""

from __future__ import annotations

from contextlib import ExitStack

import fresh
import test_models
from hosts import free_port, serving, there
from processes import until

SCRIPT = """
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
devices = jax.devices()
assert [d.slice_index for d in devices] == [0, 0, 0, 1, 1], [d.slice_index for d in devices]
assert {d.process_index for d in devices} == {jax.process_index()} == {0}
assert jax.local_devices() == devices and jax.device_count() == 5

def over(devices):
    return NamedSharding(Mesh(np.array(devices), ("d",)), P("d"))

one, two = devices[:3], devices[3:]
x = np.arange(6.0, dtype=np.float32)
total = jax.jit(lambda a: a - jnp.sum(a))
there = jax.device_put(total(jax.device_put(x, over(one))), over(two))
assert there.sharding == over(two)
np.testing.assert_array_equal(total(there), (x - 15) + 75)
try:
    jax.block_until_ready(total(jax.device_put(np.ones(5, np.float32), over(devices))))
except (jax.errors.JaxRuntimeError, ValueError) as error:
    assert "several islands" in str(error) and "slice_index" in str(error), error
else:
    raise AssertionError("a computation spans two islands")
np.testing.assert_array_equal(total(jax.device_put(x, over(one))), x - 15)
print("right")
"""


def test_arrays_move_between_two_islands(tmp_path):
    address = f"tcp:127.0.0.1:{free_port()}"
    mine = {"PATHWAYS_DIR": str(tmp_path)}
    with serving("controller", "--listen", address, env=mine), ExitStack() as workers:
        # One after the other: islands are numbered as they come.
        for i, (island, devices) in enumerate([("west", 1), ("west", 2), ("east", 2)]):
            worker = ("worker", "--address", address, "--listen", "tcp:127.0.0.1:0", "--name", f"w{i}")
            workers.enter_context(serving(*worker, "--island", island, "--devices", str(devices), env=mine))
            until("the worker", lambda i=i: there(address, env=mine).count(" × cpu") == i + 1)
        assert there(address, env=mine).count("west (cpu)") == 2
        done = fresh.run(SCRIPT, env={"PATHWAYS_ADDRESS": address, "PATHWAYS_DEVICES": "", **mine})
        assert done.stdout.strip() == "right"


def test_a_model_trains_over_two_islands(tmp_path):
    address = f"tcp:127.0.0.1:{free_port()}"
    mine = {"PATHWAYS_DIR": str(tmp_path)}
    with serving("controller", "--listen", address, env=mine), ExitStack() as workers:
        for name in ("west", "east"):
            worker = ("worker", "--address", address, "--listen", "tcp:127.0.0.1:0", "--name", name)
            workers.enter_context(serving(*worker, "--island", name, "--devices", "4", env=mine))
        until("the workers", lambda: there(address, env=mine).count(" × cpu") == 2)
        test_models.run_model("two_islands", PATHWAYS_ADDRESS=address, **mine)
