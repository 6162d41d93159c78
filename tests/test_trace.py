"""A trace is readable for Perfetto: JSON trace events, one track per device, gangs in the order of time."""

import collections
import json
import os
import xml.etree.ElementTree

import jax
import jax.numpy as jnp
import numpy as np
import pathways
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from together import together

pytestmark = pytest.mark.sizes

NUMBER = (int, float)


def read(path):
    """Reads a trace, checks what every trace keeps, and returns its gangs by device, each list in the order of time."""
    trace = json.loads(path.read_text(encoding="utf-8"))
    assert set(trace) == {"displayTimeUnit", "traceEvents", "otherData"}
    assert trace["displayTimeUnit"] in ("ms", "ns")  # the two that the format has
    assert trace["otherData"] == {"dropped": "0"}
    processes, tracks, gangs = {}, {}, collections.defaultdict(list)
    for event in trace["traceEvents"]:
        match event["ph"], event["name"]:
            case "M", "process_name":
                assert event["pid"] not in processes, "a process is named once"
                processes[event["pid"]] = event["args"]["name"]
            case "M", "thread_name":
                assert event["tid"] not in tracks and event["pid"] in processes, "a track is named once"
                tracks[event["tid"]] = event["args"]["name"]
            case (("X" | "s" | "f"), str(name)) if event["cat"] != "gang":
                assert name and event["tid"] in tracks and event["ts"] > 0
                assert event["cat"] in ("call", "controller", "move", "collective", "operation")
            case "X", str(name):
                assert name and event["cat"] == "gang" and event["tid"] in tracks
                assert isinstance(event["ts"], NUMBER) and event["ts"] > 0
                assert isinstance(event["dur"], NUMBER) and event["dur"] >= 0
                assert isinstance(event["args"]["gang"], int) and event["args"]["gang"] > 0
                assert event["args"]["queued_us"] >= 0 and event["args"]["launch_us"] >= 0
                gangs[event["tid"]].append(event)
            case other:
                pytest.fail(f"an event {other}")
    workers = {device.id: getattr(device, "worker", "") for device in jax.devices()}
    assert processes.pop(os.getpid()) == "Open Pathways"
    assert set(processes.values()) <= {"controller", *workers.values()}
    of_devices = {n: name for n, name in tracks.items() if n in gangs}
    assert of_devices == {n: f"device {n} on {workers[n]}" if workers[n] else f"device {n}" for n in gangs}
    assert of_devices == tracks or any(workers.values()), "other tracks are those of clusters"
    for track in gangs.values():
        for earlier, later in zip(track, track[1:], strict=False):
            # Slices of a track that overlap without one being inside the other are drawn wrong. Times are whole ns.
            assert later["ts"] >= earlier["ts"] + earlier["dur"] - 0.0005
        ids = [event["args"]["gang"] for event in track]
        assert len(set(ids)) == len(ids), "a gang is on a device once"
    return gangs


def sharded(*shape):
    mesh = Mesh(np.array(jax.devices()), ("x",))
    return jax.device_put(np.ones(shape, np.float32), NamedSharding(mesh, PartitionSpec("x")))


def test_a_gang_is_on_each_of_its_devices(tmp_path, devices):
    @jax.jit
    def everywhere(x):
        return x / x.sum()

    @jax.jit
    def alone(x):
        return x + 1

    x = sharded(64, 4)
    y = jax.device_put(jnp.ones(3), devices[5])
    jax.block_until_ready((everywhere(x), alone(y)))
    with pathways.trace(tmp_path / "trace.json"):
        for _ in range(5):
            x = everywhere(x)
        for _ in range(3):
            y = alone(y)
        jax.block_until_ready((x, y))
    gangs = read(tmp_path / "trace.json")
    assert sorted(gangs) == [d.id for d in devices]
    for device, track in gangs.items():
        names = collections.Counter(event["name"] for event in track)
        assert names == {"jit_everywhere": 5} | ({"jit_alone": 3} if device == devices[5].id else {})
    members = collections.defaultdict(set)
    for device, track in gangs.items():
        for event in track:
            members[event["args"]["gang"]].add((device, event["name"]))
    assert sorted(len(m) for m in members.values()) == [1] * 3 + [len(devices)] * 5
    assert all(len({name for _, name in m}) == 1 for m in members.values())
    # Each step reads the one before, so on every device they come in that order.
    steps = [[e["args"]["gang"] for e in t if e["name"] == "jit_everywhere"] for t in gangs.values()]
    assert all(ids == sorted(ids) == steps[0] for ids in steps)


def test_a_computation_begins_once_what_it_reads_has_come_from_another_device(tmp_path, devices):
    @jax.jit
    def slow(x):
        return jax.lax.fori_loop(0, 300, lambda i, v: jnp.tanh(v @ v), x)

    @jax.jit
    def after(x):
        return x + 1

    def both(x):
        return after(jax.device_put(slow(x), devices[-1]))

    x = jax.device_put(jnp.ones((128, 128)), devices[0])
    both(x).block_until_ready()
    with pathways.trace(tmp_path / "trace.json"):
        both(x).block_until_ready()
    gangs = read(tmp_path / "trace.json")
    (first,), (second,) = gangs[devices[0].id], gangs[devices[-1].id]
    # The end of the first may be told late. It is launched at once, as the second is.
    assert second["ts"] > first["ts"] + first["dur"] / 2


@pytest.mark.embedded("a cluster's client does not count which computations wait")
def test_gangs_of_many_threads_that_have_to_wait(tmp_path, devices):
    step = jax.jit(lambda x: jnp.tanh(x @ x.T).sum(0) + x.sum())
    xs = [sharded(64, 64) for _ in range(4)]
    jax.block_until_ready([step(x) for x in xs])
    waited = pathways.stats()["queued"]
    with pathways.trace(tmp_path / "trace.json"):

        def work(x):
            jax.block_until_ready([step(x) for _ in range(20)])

        together(work, xs)
    assert pathways.stats()["queued"] > waited
    gangs = read(tmp_path / "trace.json")
    assert sorted(gangs) == [d.id for d in devices]
    each = [{event["args"]["gang"] for event in track} for track in gangs.values()]
    assert all(ids == each[0] for ids in each) and len(each[0]) == 80


def test_a_trace_of_nothing_is_empty(tmp_path):
    with pathways.trace(tmp_path / "trace.json"):
        pass
    assert read(tmp_path / "trace.json") == {}


def test_work_still_running_at_the_end_is_in_the_trace(tmp_path):
    @jax.jit
    def slow(x):
        return jax.lax.fori_loop(0, 300, lambda i, v: jnp.tanh(v @ v), x)

    x = jnp.ones((128, 128))
    slow(x).block_until_ready()
    with pathways.trace(tmp_path / "trace.json"):
        y = slow(x)
    y.block_until_ready()
    (track,) = read(tmp_path / "trace.json").values()
    assert [event["name"] for event in track] == ["jit_slow"]
    assert track[0]["dur"] > 0


def test_the_timeline_of_a_trace_is_data_and_a_picture(tmp_path, devices):
    @jax.jit
    def everywhere(x):
        return x / x.sum()

    x = jax.block_until_ready(everywhere(sharded(64, 4)))
    with pathways.trace(tmp_path / "trace.json") as timeline:
        assert timeline._repr_svg_() is None  # nothing to look at yet
        with pytest.raises(pathways.PathwaysError, match="FAILED_PRECONDITION.*look at it after the block"):
            _ = timeline.spans
        for _ in range(3):
            x = everywhere(x)
        jax.block_until_ready(x)
    spans = timeline.spans
    assert [span.device for span in spans] == 3 * [d.id for d in devices]
    assert {span.name for span in spans} == {"everywhere"} and len({span.gang for span in spans}) == 3
    assert min(span.begin for span in spans) == 0 and all(span.seconds > 0 for span in spans)
    assert repr(timeline).endswith(f"3 gangs on {len(devices)} devices>")
    timeline.save(tmp_path / "trace.svg")
    picture = xml.etree.ElementTree.parse(tmp_path / "trace.svg")
    titles = [e.text for e in picture.iter("{http://www.w3.org/2000/svg}title")]
    assert len(titles) == len(spans) and titles[0].startswith(f"everywhere, gang {spans[0].gang}, device 0: ")
