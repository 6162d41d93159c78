"""A profile has what xprof's Trace Viewer reads; where xprof is installed, it converts one."""

import importlib.util
import json
import subprocess
import sys

import fresh
import jax
import pytest


@pytest.fixture(scope="module")
def profile(tmp_path_factory):
    """The file of a profile in which each device ran one computation twice."""

    @jax.jit
    def step(x):
        return x * 2 + 1

    xs = jax.block_until_ready([step(jax.device_put(1.0, device)) for device in jax.devices()])
    directory = tmp_path_factory.mktemp("profile")
    with jax.profiler.trace(directory):
        for _ in range(2):
            xs = [step(x) for x in xs]
        jax.block_until_ready(xs)
    (file,) = directory.glob("**/*.xplane.pb")
    return file


def fields(message: bytes) -> dict[int, list]:
    """Reads a protobuf message: the values of each field by its number, numbers as int and the rest as bytes."""
    at, found = 0, {}

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(message):
        key = varint()
        if key & 7 == 0:
            value = varint()
        else:
            size = {1: 8, 5: 4}[key & 7] if key & 7 != 2 else varint()
            at += size
            value = message[at - size : at]
        found.setdefault(key >> 3, []).append(value)
    assert at == len(message)
    return found


def table(plane: dict[int, list], number: int) -> dict[int, str]:
    """Reads a map of a plane from ids to metadata with names: field 4 has those of events, 5 those of stats."""
    entries = [fields(entry) for entry in plane.get(number, [])]
    return {entry[1][0]: fields(entry[2][0]).get(2, [b""])[0].decode() for entry in entries}


def test_a_profile_has_what_the_trace_viewer_reads(profile):
    """Field numbers are those of tsl/profiler/protobuf/xplane.proto.

    xprof names a row by its plane and line, which it tells apart by their ids, and a bar by its event's metadata.
    """
    planes = [fields(plane) for plane in fields(profile.read_bytes())[1]]
    devices = {plane[2][0].decode(): plane for plane in planes if plane[2][0].startswith(b"/device:")}
    assert len(devices) == len(jax.devices())
    assert len({plane.get(1, [0])[0] for plane in devices.values()}) == len(devices)
    for name, plane in devices.items():
        events, stats = table(plane, 4), table(plane, 5)
        lines = [fields(line) for line in plane[3]]
        assert sorted(line[2][0] for line in lines) == [b"XLA Modules", b"XLA Ops"], name
        assert len({line[1][0] for line in lines}) == len(lines), name
        for line in lines:
            ran = [fields(event) for event in line[4]]
            assert len(ran) == 2, name
            for event in ran:
                assert events[event[1][0]].split("(")[0] == "jit_step"
                assert event[3][0] > 0  # a bar has a length
                assert {"hlo_module", "program_id"} <= {stats[fields(stat)[1][0]] for stat in event[4]}


XPROF = """
import json, sys
from xprof.convert import raw_to_tool_data
data, kind = raw_to_tool_data.xspace_to_tool_data([sys.argv[1]], "trace_viewer", {"tqx": "out:json;"})
assert kind == "application/json", kind
print(json.dumps(json.loads(data)))
"""


def test_xprof_shows_the_profile(profile):
    if importlib.util.find_spec("xprof") is None:
        pytest.skip("xprof is not installed: pip install xprof (350 MB)")
    done = subprocess.run(
        [sys.executable, "-c", XPROF, profile], capture_output=True, text=True, timeout=fresh.HANG_SECONDS, check=False
    )
    assert done.returncode == 0, done.stderr
    events = json.loads(done.stdout.splitlines()[-1])["traceEvents"]
    rows = {e["pid"]: e["args"]["name"] for e in events if e.get("name") == "process_name"}
    shown = [(rows[e["pid"]], e["name"].split("(")[0]) for e in events if e.get("ph") == "X"]
    for device in (row for row in rows.values() if row.startswith("/device:")):
        assert shown.count((device, "jit_step")) == 4, device  # on the lines XLA Modules and XLA Ops
    assert sum(row.startswith("/device:") for row in rows.values()) == len(jax.devices())
