"""init(devices=n, wait=seconds) waits for a cluster, says so, hears Ctrl-C, and says at the end what is missing."""

import json
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

import fresh
import pytest
from pathways import _doctor
from processes import COMMAND, Cluster, command

# The logger shows what a terminal would.
LOUD = "import logging\nlogging.basicConfig(level=logging.INFO, format='%(message)s')\nimport jax\n"


def line(process, *words):
    """Reads what a script writes to standard error up to a line with these words."""
    for said in process.stderr:
        if all(word in said for word in words):
            return said
    raise AssertionError(f"the script ended without a line with {words}")


@pytest.fixture(scope="module")
def cluster():
    with Cluster(workers=1, devices=2) as cluster:
        yield cluster


def test_a_script_waits_for_controller_and_devices():
    directory = Path(tempfile.mkdtemp(prefix="pw", dir="/tmp"))
    place = ("--dir", str(directory))
    env = {"PATHWAYS_ADDRESS": f"unix:{directory}/default/controller.sock", "PATHWAYS_DEVICES": ""}
    script = fresh.start(LOUD + "pathways.init(devices=4, wait=300)\nprint(jax.numpy.arange(4).sum())", env=env)
    worker = None
    try:
        line(script, "waiting up to 300 s", "cannot be reached")
        command("up", *place, "--workers", "1", "--devices", "2", env={"PATHWAYS_DEVICES": ""})
        line(script, "a session of 4 devices was asked for, and the cluster has 2 in 1 worker;")
        worker = subprocess.Popen(
            [*COMMAND, "worker", *place, "--devices", "2", "--name", "late"],
            env=fresh.environment(env={"PATHWAYS_DEVICES": ""}),
            stderr=subprocess.DEVNULL,
        )
        done = fresh.finish(script)
        assert (done.returncode, done.stdout) == (0, "6\n"), done.stderr
    finally:
        fresh.end([script])
        command("down", *place, check=False)
        if worker is not None:
            worker.wait(fresh.HANG_SECONDS)  # it ends with its controller
        shutil.rmtree(directory, ignore_errors=True)


def test_ctrl_c_ends_the_wait(cluster):
    script = cluster.start(
        LOUD
        + """
for again in (lambda: pathways.init(devices=3, wait=300), lambda: (pathways.init(devices=3), jax.devices())):
    try:
        again()
    except KeyboardInterrupt:
        print("interrupted", flush=True)
pathways.init(devices=2)
print(jax.devices())
"""
    )
    for seconds in (300, 30):
        said = line(
            script, f"waiting up to {seconds} s", "a session of 3 devices was asked for", "Ctrl-C ends the wait"
        )
        assert said.count("\n") == 1
        script.send_signal(signal.SIGINT)
    done = fresh.finish(script)
    assert done.stdout == "interrupted\ninterrupted\n[CpuDevice(id=0), CpuDevice(id=1)]\n", (
        f"{done.stdout}\n{done.stderr}"
    )


def test_what_is_missing_is_said(cluster):
    done = cluster.run("""
import jax

def refused(act):
    try:
        act()
    except (pathways.PathwaysError, RuntimeError) as error:
        print(type(error).__name__, error, flush=True)

refused(lambda: pathways.init(devices=3, wait=0))
pathways.init(devices=3)
refused(jax.devices)  # JAX says it in words of its own
refused(pathways.devices)
pathways.init("unix:/nowhere", wait=None)
refused(pathways.devices)
refused(lambda: pathways.init("unix:/nowhere", wait=0.05))
""", PATHWAYS_WAIT="100ms")  # fmt: skip
    few = (
        "a session of 3 devices was asked for, and the cluster has 2 in 1 worker; start more workers, or ask for fewer "
        "devices"
    )
    init, jaxs, ours, away, waited = done.stdout.splitlines()
    assert init.startswith("PathwaysError RESOURCE_EXHAUSTED: ") and f"{few} (waited 0 s" in init
    assert jaxs.startswith("RuntimeError ") and f"{few} (waited 0.1 s; init(wait=seconds) or PATHWAYS_WAIT" in jaxs
    assert ours.startswith("PathwaysError RESOURCE_EXHAUSTED: ") and few in ours
    assert away.startswith("PathwaysError UNAVAILABLE: ") and "(waited 0.1 s" in away
    assert waited.startswith("PathwaysError UNAVAILABLE: ") and "(waited 0.05 s" in waited


def test_a_client_gets_the_number_of_devices_it_asks_for(cluster):
    done = cluster.run("""
import jax, numpy as np

def total():
    x = jax.device_put(np.arange(4.0, dtype="float32"), jax.devices()[-1])
    return len(jax.devices()), float(jax.jit(lambda x: x.sum())(x))

pathways.init(devices=1)
print(total())
pathways.shutdown()
pathways.init(devices=2)
print(total())
""")
    assert done.stdout == "(1, 6.0)\n(2, 6.0)\n"


def test_the_doctor_describes_the_cluster(cluster):
    env = {"PATHWAYS_ADDRESS": cluster.address, "PATHWAYS_DEVICES": ""}
    said = command("doctor", env=env).stdout
    assert f"controller at {cluster.address}, " in said and " µs to a device and back, up " in said, said
    assert "worker worker-0: 2 × cpu, heard " in said
    facts = json.loads(command("doctor", "--json", env=env).stdout)["cluster"]
    assert facts["latency"] > 0 and len(facts["status"]["islands"][0]["workers"][0]["devices"]) == 2
    assert ", a lease of 10 s" in said and "no lease" not in said, said


def test_the_doctor_says_which_processes_a_broken_connection_costs_their_place(cluster):
    with Cluster(1, 1, "--lease", "0") as without:
        said = command("doctor", env={"PATHWAYS_ADDRESS": without.address, "PATHWAYS_DEVICES": ""}).stdout
        assert " a lease of " not in said and "the cluster has no lease: " in said, said
    env = {"PATHWAYS_ADDRESS": cluster.address, "PATHWAYS_DEVICES": ""}
    status = json.loads(command("doctor", "--json", env=env).stdout)["cluster"]["status"]
    status["islands"][0]["workers"][0]["link"]["lease_ms"] = 0  # as that of an older version
    (hint,) = _doctor._lost_with_a_connection(status)
    assert hint.startswith("worker worker-0: lost when the connection to the controller breaks"), hint


def test_the_doctor_finds_a_cluster_by_name(cluster):
    env = {"PATHWAYS_ADDRESS": "", "PATHWAYS_DEVICES": "", "PATHWAYS_DIR": str(cluster.dir)}
    assert f"controller at {cluster.address}, " in command("doctor", "--cluster", "default", env=env).stdout
    assert f"controller at {cluster.address}, " in command("doctor", env=env | {"PATHWAYS_CLUSTER": "default"}).stdout
    done = command("doctor", "--cluster", "nosuch", env=env, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert f'NOT_FOUND: there is no cluster "nosuch" in {cluster.dir}, which has default; ' in done.stderr


def test_a_script_reads_the_configuration_file(cluster, tmp_path):
    token = (cluster.dir / "default/token").read_text()
    (tmp_path / "token").write_text(token)
    (tmp_path / "token").chmod(0o600)
    config = tmp_path / "pathways.toml"
    env = {"PATHWAYS_ADDRESS": "", "PATHWAYS_DEVICES": "", "PATHWAYS_CONFIG": str(config)}
    said = f'address = "{cluster.address}"\ntoken-file = "{tmp_path}/token"\nwait = "1s"\ndevices = 5\n'
    config.write_text(said)
    assert fresh.run("import jax\nprint(jax.devices())", env=env).stdout == "[CpuDevice(id=0), CpuDevice(id=1)]\n"
    assert "worker-0" in command("status", env=env).stdout
    config.write_text(said.replace(f"{tmp_path}/token", "/nowhere/token"))
    assert "/nowhere/token" in fresh.run("pathways.devices()", env=env, check=False).stderr
    config.write_text("devices = 3")
    assert fresh.run("import jax\nprint(len(jax.devices()))", env=env).stdout == "3\n"
    config.unlink()
    assert "NOT_FOUND: the configuration file" in fresh.run("pathways.init()", env=env, check=False).stderr
