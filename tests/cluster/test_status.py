"""`pathways.status()`: who is in a cluster, as data, as text and as a picture."""

import xml.etree.ElementTree

import pathways
import pytest
from processes import Cluster, command


def test_status_of_a_cluster():
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


@pytest.mark.parametrize(
    ("address", "code"), [("local:2x4", "FAILED_PRECONDITION"), ("unix:/nowhere/controller.sock", "UNAVAILABLE")]
)
def test_status_says_why_there_is_none(address, code):
    with pytest.raises(pathways.PathwaysError) as caught:
        pathways.status(address)
    assert caught.value.code == code
