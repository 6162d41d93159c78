"""`pathways.status()`: who is in a cluster, as data, as text and as a picture."""

import xml.etree.ElementTree

import pathways
import pytest
from fresh import hear
from processes import Cluster, command, until


def test_status_shows_islands_workers_and_their_processes():
    with Cluster(2, 2) as cluster:
        status = pathways.status(cluster.address)
        text = command("status", "--dir", str(cluster.dir)).stdout.splitlines()
    assert [island["name"] for island in status.report["islands"]] == ["default"]
    assert [line.split()[0] for line in text if line.split()[2:3] in (["worker-0"], ["worker-1"])] == ["default"] * 2
    assert [worker["process"]["name"] for worker in status.workers] == ["worker-0", "worker-1"]
    assert {p["name"] for p in status.report["supervisor"]["processes"]} == {"controller", "worker-0", "worker-1"}
    lines = repr(status).splitlines()
    assert lines[0] == f"cluster {status.report['cluster']}: 2 workers, 4 devices, 0 sessions"
    assert lines[1:] == [f"  worker-{n}: 2 devices, 0 B in use" for n in range(2)]
    picture = xml.etree.ElementTree.fromstring(status._repr_svg_())
    texts = [e.text for e in picture.iter("{http://www.w3.org/2000/svg}text")]
    assert {"worker-0", "worker-1", "2 × cpu"} <= set(texts)


def test_status_shows_host_memory_and_what_is_held():
    put = """
import jax, numpy as np, sys
x = jax.device_put(np.ones(3 << 19, np.float32), jax.devices()[0])  # 6 MiB
print("asked", flush=True)
jax.block_until_ready(x)
print("has it", flush=True)
assert sys.stdin.readline()
"""
    with Cluster(1, 1, "--memory-limit", "10MiB", "--memory-wait", "10m") as cluster:
        first, second = cluster.start(put), None
        assert [hear(first) for _ in range(2)] == ["asked", "has it"]
        second = cluster.start(put)
        assert hear(second) == "asked"
        until("something is held", lambda: "held" in repr(pathways.status(cluster.address)))
        until("host memory is told", lambda: "of its host" in repr(pathways.status(cluster.address)))
        status = pathways.status(cluster.address)
        text = command("status", "--dir", str(cluster.dir)).stdout
        first.communicate("\n", timeout=60)
        assert hear(second) == "has it"
        second.communicate("\n", timeout=60)
    one, two = status.report["sessions"]
    held = two["held"]
    assert not one["held"]["operations"]
    assert (held["operations"], held["what"], held["need"], held["waits_for"]) == (1, "device_put", 6 << 20, "memory")
    assert [(holder["session"], holder["bytes"]) for holder in held["holders"]] == [(one["session"], 6 << 20)]
    (line,) = [line for line in text.splitlines() if "device_put" in line]
    assert "6.0 MiB on device 0 of worker-0" in line and f"memory of session {one['session']}, {one['name']}" in line
    (worker, *_), picture = repr(status).splitlines()[1:], status._repr_svg_()
    assert "6 MiB in use, 6 MiB of its host" in worker
    shown = " ".join(xml.etree.ElementTree.fromstring(picture).itertext())
    for part in (
        "6 MiB of its host: arrays",
        "6 MiB of hosts",
        "1 operation held for",
        "device_put needs 6 MiB on device 0",
    ):
        assert part in shown, shown


@pytest.mark.parametrize(
    ("address", "code"), [("local:2x4", "FAILED_PRECONDITION"), ("unix:/nowhere/controller.sock", "UNAVAILABLE")]
)
def test_status_says_why_there_is_none(address, code):
    with pytest.raises(pathways.PathwaysError) as caught:
        pathways.status(address)
    assert caught.value.code == code
