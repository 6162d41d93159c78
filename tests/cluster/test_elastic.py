"""A script may begin with more devices than its cluster has; workers that join serve the others."""

import shutil
import signal
import subprocess
from pathlib import Path

import fresh
import pathways
import pytest
from hosts import serving
from processes import Cluster, command, until
from test_faults import lines

SCRIPT = """
import numpy as np
pathways.init(devices=4, elastic=True)
import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

events = pathways.events()
devices = jax.devices()
assert [d.worker for d in devices] == ["worker-0", "worker-0", "", ""], devices
host = np.arange(8, dtype=np.float32)
rows = NamedSharding(Mesh(np.array(devices), ("d",)), P("d"))
twice = jax.jit(lambda x: x * 2, out_shardings=rows)
first = jax.device_put(host, devices[0])
uses = {
    "put": lambda: np.asarray(jax.device_put(host, devices[3])),
    "move": lambda: np.asarray(jax.device_put(first, devices[2])),
    "sharded": lambda: np.asarray(twice(jax.device_put(host, rows))),
}

def all_fail():
    for what, use in uses.items():
        try:
            use()
            raise SystemExit(f"{what} succeeds, and there is no worker")
        except (jax.errors.JaxRuntimeError, ValueError) as error:
            assert "NOT_FOUND" in str(error) and "the cluster had 2" in str(error), (what, error)
    assert np.array_equal(np.asarray(first), host)

all_fail()
print("ready", flush=True)
input()
print(events.wait("restarted", 60).kind, flush=True)
all_fail()
print("goes on", flush=True)
rebound = events.wait("rebound", 60)
assert rebound.devices == tuple(devices[2:]) and rebound.worker == "late", rebound
for use, want in zip(uses.values(), (host, host, 2 * host)):
    assert np.array_equal(use(), want)
assert jax.devices() == devices and np.array_equal(np.asarray(first), host)
print("done")
"""


def test_workers_that_join_serve_devices_of_a_running_script():
    """Also where the controller was killed and started again before they joined, and another kind of worker came."""
    with Cluster(1, 2, restart=True) as cluster:
        client = cluster.start(SCRIPT)
        assert lines(client, 1) == ["ready"]

        def lack(what):
            (session,) = cluster.report()["sessions"]
            return what in session.get("lacks", "")

        assert lack("2 of its 4 devices wait for 1 worker of island default, with 2 devices of kind cpu each")
        cluster.signal("controller", signal.SIGKILL)
        fresh.tell(client, "go")
        assert lines(client, 2) == ["restarted", "goes on"]
        at = ("--address", cluster.address, "--dir", str(cluster.dir))
        with serving("worker", *at, "--name", "single", "--devices", "1"):
            until("a worker that cannot help", lambda: lack("; single has 1 device of kind cpu"))
            assert "LACKS DEVICES" in command("status", "--dir", str(cluster.dir)).stdout
            with serving("worker", *at, "--name", "late", "--devices", "2"):
                out, err = client.communicate(timeout=120)
                assert client.returncode == 0 and out == "done\n", out + err


@pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc on this machine")
def test_workers_that_join_serve_devices_of_a_program_in_c(tmp_path):
    """By openpathways.h: the device is not found before, and used after; and what it had is lost with its worker, a
    constant of a program included."""
    library, clients = Path(pathways._native.library_path()), Path(fresh.__file__).parent / "clients"
    link = (f"-L{library.parent}", f"-l:{library.name}", f"-Wl,-rpath,{library.parent}", "-lpthread")
    include = f"-I{Path(pathways.__file__).parent / 'include'}"
    program = tmp_path / "elastic"
    flags = ("-std=gnu11", "-Wall", "-Wextra", "-Werror", include)
    subprocess.run(["gcc", *flags, clients / "elastic.c", "-o", program, *link], check=True)
    with Cluster(1, 1) as cluster:
        pipes = {name: subprocess.PIPE for name in ("stdin", "stdout", "stderr")}
        client = subprocess.Popen([program, cluster.address], env=fresh.environment(), text=True, **pipes)
        try:
            assert lines(client, 1) == ["ready"]
            at = ("--address", cluster.address, "--dir", str(cluster.dir))
            with serving("worker", *at, "--name", "late", "--devices", "1"):
                assert lines(client, 1) == ["captured"]
            with serving("worker", *at, "--name", "later", "--devices", "1"):
                done = fresh.finish(client)
                assert done.returncode == 0 and done.stdout == "ok\n", done.stdout + done.stderr
        finally:
            fresh.end([client])
