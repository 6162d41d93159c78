"""Profiles of clusters of real processes."""

from __future__ import annotations

import signal

import fresh
from processes import Cluster

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


def test_planes_of_workers_and_what_is_said_of_one_that_is_lost(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with Cluster(2, 1) as cluster:
        script = cluster.start(SCRIPT)
        try:
            assert script.stdout.readline() == "recording\n"
            cluster.signal("worker-1", signal.SIGKILL)
            done = fresh.finish(script, "\n")
        finally:
            fresh.end([script])
    assert done.returncode == 0, done.stderr
    ran, lost = "['jit__lambda']", "not in the profile: worker worker-1: "
    planes = done.stdout.splitlines()
    assert planes[:2] == [f"cpu:0 on worker-0 {ran} []", f"cpu:1 on worker-1 {ran} []"]
    assert planes[2].startswith(f"cpu:0 on worker-0 {ran} ") and lost in planes[2]
    assert planes[3] == "cpu:1 on worker-1 [] []"
    assert f"pathways: {lost}" in done.stderr
