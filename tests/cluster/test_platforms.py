"""A cluster with devices of two platforms: a session has those of one."""

from __future__ import annotations

from contextlib import ExitStack

import fresh
from hosts import free_port, serving, there
from processes import until

# Simulated devices hold arrays, and do not run what JAX compiles.
SIMULATED = """
import jax, numpy as np
devices = jax.devices()
assert [d.platform for d in devices] == ["sim"] * 3 and {d.worker for d in devices} == {"fast"}, devices
x = np.arange(6.0, dtype=np.float32)
one = jax.device_put(x, devices[0])
np.testing.assert_array_equal(jax.device_put(one, devices[2]), x)
"""
COMPUTES = """
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
devices = jax.devices()
assert [d.platform for d in devices] == ["cpu"] * 2 and {d.worker for d in devices} == {"host"}, devices
x = jax.device_put(np.arange(6.0, dtype=np.float32), NamedSharding(Mesh(np.array(devices), ("d",)), P("d")))
np.testing.assert_array_equal(jax.jit(lambda a: a - jnp.sum(a))(x), np.arange(6.0) - 15)
"""
WAITS = 'print("ready", flush=True)\ninput()\nprint("done")\n'


def test_sessions_on_two_platforms_at_once(tmp_path):
    address = f"tcp:127.0.0.1:{free_port()}"
    mine = {"PATHWAYS_DIR": str(tmp_path)}
    with serving("controller", "--listen", address, env=mine), ExitStack() as workers:
        worker = ("worker", "--address", address, "--listen", "tcp:127.0.0.1:0")
        for name, driver, devices in (("host", "cpu", 2), ("fast", "sim", 3)):
            what = ("--name", name, "--island", name, "--driver", driver, "--devices", str(devices))
            workers.enter_context(serving(*worker, *what, env=mine))
            until("the worker", lambda name=name, driver=driver: f"{name} ({driver})" in there(address, env=mine))
        at = {"PATHWAYS_ADDRESS": address, "PATHWAYS_DEVICES": "", **mine}
        simulated = fresh.start(SIMULATED + WAITS, env=at)
        computes = fresh.start("pathways.init(platform='cpu')\n" + COMPUTES + WAITS, env=at)
        for client in (simulated, computes):
            assert client.stdout.readline() == "ready\n", client.communicate()
        shown = there(address, env=mine)
        assert "3 × sim" in shown and "2 × cpu" in shown, shown
        fresh.run(COMPUTES, env={**at, "PATHWAYS_PLATFORM": "cpu"})
        for client in (simulated, computes):
            assert client.communicate("go\n", timeout=60)[0] == "done\n"
        asks = {"PATHWAYS_PLATFORM": "tpu", "PATHWAYS_WAIT": "0"}
        lacks = fresh.run("import jax; jax.devices()", env={**at, **asks}, check=False)
        assert "no devices of platform tpu, and has some of cpu and sim" in lacks.stderr
