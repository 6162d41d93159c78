"""Profiles of clusters of real processes."""

from __future__ import annotations

import json
import signal
import socket
import urllib.request
from collections import Counter

import fresh
from processes import Cluster, command, until

SCRIPT = """
from pathlib import Path
import jax, jax.numpy as jnp
from jax.profiler import ProfileData

first, second = Path("first"), Path("second")
step = jax.jit(lambda x: x + 1)
xs = [step(jax.device_put(jnp.ones(3), d)) for d in jax.devices()]
jax.block_until_ready(xs)
with jax.profiler.trace(first):
    xs = [step(x) for x in xs]  # what was submitted is in the profile, even if it is not waited for
jax.profiler.start_trace(second)
jax.block_until_ready(step(xs[0]))
print("recording", flush=True)
input()
jax.profiler.stop_trace()
for directory in first, second:
    (file,) = directory.glob("**/*.xplane.pb")
    for plane in ProfileData.from_file(str(file)).planes:
        if plane.name.startswith("/device:"):
            lines = {line.name: [event.name for event in line.events] for line in plane.lines}
            print(plane.name.removeprefix("/device:CUSTOM:"), lines.get("XLA Ops", []), lines.get("Warnings", []))
"""

TRACE = """
import threading
import jax, numpy as np, pathways

d = jax.NamedSharding(jax.make_mesh((4,), ("d",), axis_types=(jax.sharding.AxisType.Auto,)), jax.P("d"))
step = jax.jit(lambda x: x + x.sum())
x = np.ones(256, np.float32)
np.asarray(step(jax.device_put(x, d)))
with pathways.trace("trace.json"):
    reader = threading.Thread(target=np.asarray, args=[step(jax.device_put(x, d))])
    reader.start()
    reader.join()
print(threading.get_native_id(), reader.native_id)
"""


def test_arrows_of_a_trace_lead_from_calls_to_the_controller_and_to_workers(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        page = "{}:{}".format(*free.getsockname())
    with Cluster(2, 2, "--http", page) as cluster:
        threads = cluster.run(TRACE).stdout.split()
        operator = command("token", "operator", "--dir", str(cluster.dir)).stdout.strip()

        def get(path: str, token: str):
            asked = urllib.request.Request(
                f"http://{page}/{path}", headers={"Authorization": f"Bearer {token}"} if token else {}
            )
            return json.load(urllib.request.urlopen(asked))

        def counted() -> list[str]:
            with urllib.request.urlopen(f"http://{page}/metrics") as said:
                lines = said.read().decode().splitlines()
            return [line for line in lines if line.startswith("pathways_worker_collective")]

        of = '{{island="default",op="all-reduce",way="letters",worker="worker-{}"}}'.format
        calls, bytes_ = "pathways_worker_collectives_total", "pathways_worker_collective_bytes_total"
        # The two devices of each worker brought four bytes twice; it is told with the next heartbeat.
        told = [f"{calls}{of(i)} 4" for i in (0, 1)] + [f"{bytes_}{of(i)} 16" for i in (0, 1)]
        until("collectives in the metrics", lambda: counted() == told)
        assert get("api/traces", "") == []
        (kept,) = get("api/traces", operator)
        copy = get(f"api/trace?number={kept['number']}", operator)
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert (kept["name"], copy["traceEvents"]) == ("trace.json", events)
    processes = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    tracks = {e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert {t for t in tracks if t.startswith("calls ")} == {f"calls of thread {n}" for n in threads}
    bars = {(e["tid"], e["ts"]): e for e in events if e["ph"] == "X"}

    def at(event):
        bar = bars[event["tid"], event["ts"]]
        return f"{bar['cat']} {bar['name']} in {processes[bar['pid']]}"

    begins = {e["id"]: at(e) for e in events if e["ph"] == "s"}
    arrows = sorted(f"{begins[e['id']]} -> {at(e)}" for e in events if e["ph"] == "f")
    call, queued = "call {0} in Open Pathways -> controller {0} in controller", "controller {0} in controller -> "
    run = queued.format("jit__lambda") + "gang jit__lambda in worker-{}"
    put = queued.format("put") + "move put in worker-{}"
    assert set(arrows) >= {call.format("jit__lambda"), call.format("put"), call.format("fetch")}
    assert [a for a in arrows if " gang " in a] == [run.format(0)] * 2 + [run.format(1)] * 2
    assert {a for a in arrows if " move put " in a} == {put.format(0), put.format(1)}
    moved = Counter()
    for e in bars.values():
        if e["cat"] == "move":
            moved[e["name"], processes[e["pid"]]] += e["args"]["bytes"]
    assert moved == {(name, worker): 512 for name in ("put", "fetch") for worker in ("worker-0", "worker-1")}
    sums = [e for e in bars.values() if e["cat"] == "collective"]
    assert [e["name"] for e in sums] == ["all-reduce"] * 4 and all(e["args"]["bytes"] == 4 for e in sums)
    assert {e["args"]["way"] for e in sums} == {"letters"}


def test_planes_of_workers_and_what_is_said_of_one_that_is_lost(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with Cluster(2, 1) as cluster:
        script = cluster.start(SCRIPT)
        assert fresh.hear(script) == "recording"
        cluster.signal("worker-1", signal.SIGKILL)
        done = fresh.finish(script, "\n")
    assert done.returncode == 0, done.stderr
    ran, lost = "['jit__lambda']", "not in the profile: worker worker-1: "
    planes = done.stdout.splitlines()
    assert planes[:2] == [f"cpu:0 on worker-0 {ran} []", f"cpu:1 on worker-1 {ran} []"]
    assert planes[2].startswith(f"cpu:0 on worker-0 {ran} ") and lost in planes[2]
    assert planes[3] == "cpu:1 on worker-1 [] []"
    assert f"pathways: {lost}" in done.stderr
