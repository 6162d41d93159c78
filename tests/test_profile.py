"""jax.profiler shows the work of devices: one plane per device, beside the host's."""

import collections
import contextlib
import re
import socket
import struct
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pathways
import pytest
from jax.profiler import ProfileData
from jax.sharding import Mesh, NamedSharding, PartitionSpec

pytestmark = [
    pytest.mark.sizes,
    pytest.mark.versions,
    # What jaxlib's ProfileData says of itself; as an error it would end the process.
    pytest.mark.filterwarnings("ignore:builtin type .* has no __module__ attribute:DeprecationWarning"),
]

LINES = ["XLA Modules", "XLA Ops"]


def planes(directory):
    """Reads the only profile in a directory: its planes by name."""
    (file,) = directory.glob("**/*.xplane.pb")
    return {plane.name: plane for plane in ProfileData.from_file(str(file)).planes}


def device_planes(profile):
    """The planes of devices by device id."""
    names = {
        name: re.fullmatch(r"/device:CUSTOM:cpu:(\d+)( on .+)?", name)
        for name in profile
        if name.startswith("/device:")
    }
    assert all(names.values()), sorted(names)
    return {int(match.group(1)): profile[name] for name, match in names.items()}


def events(plane):
    """What a device did, in the order of time, as (function, run, begin, duration), checked to be well-formed."""
    lines = {line.name: list(line.events) for line in plane.lines}
    assert sorted(lines) in ([], LINES)
    out = []
    for op, module in zip(*(lines.get(name, []) for name in reversed(LINES)), strict=True):
        stats = dict(op.stats)
        assert stats["hlo_op"] == stats["hlo_module"] == op.name
        assert module.name == f"{op.name}({stats['program_id']})"
        assert (op.start_ns, op.duration_ns) == (module.start_ns, module.duration_ns)
        assert stats["queued_ns"] >= 0 and op.duration_ns >= 0
        assert re.search(rf"cpu:{stats['device_ordinal']}\b", plane.name)
        out.append((op.name, stats["run_id"], op.start_ns, op.duration_ns))
    for earlier, later in zip(out, out[1:], strict=False):
        assert later[2] >= earlier[2] + earlier[3] - 1  # a double holds it to the ns or so
    return out


@contextlib.contextmanager
def profiled(directory):
    """Takes a profile; returns a function that returns the ns for which it was open."""
    begin = time.perf_counter_ns()
    end = 0
    with jax.profiler.trace(directory):
        yield lambda: end - begin
    end = time.perf_counter_ns()


def sharded(*shape):
    mesh = Mesh(np.array(jax.devices()), ("x",))
    return jax.device_put(np.ones(shape, np.float32), NamedSharding(mesh, PartitionSpec("x")))


@jax.jit
def everywhere(x):
    return x / x.sum()


@jax.jit
def alone(x):
    return x + 1


def test_every_device_has_a_plane_with_what_ran_on_it(tmp_path, devices):
    x = sharded(64, 4)
    y = jax.device_put(jnp.ones(3), devices[5])
    jax.block_until_ready((everywhere(x), alone(y)))
    with profiled(tmp_path) as length:
        for _ in range(5):
            x = everywhere(x)
        for _ in range(3):
            y = alone(y)
        jax.block_until_ready((x, y))
    profile = planes(tmp_path)
    assert "/host:CPU" in profile
    by_device = device_planes(profile)
    assert sorted(by_device) == [d.id for d in devices]
    ran = {device: events(plane) for device, plane in by_device.items()}
    for device, track in ran.items():
        names = collections.Counter(name for name, *_ in track)
        assert names == {"jit_everywhere": 5} | ({"jit_alone": 3} if device == devices[5].id else {})
        # Times count from the begin of the profile.
        assert all(0 <= begin and begin + duration <= length() for _, _, begin, duration in track)
        # Each step reads the one before; a run has one number on all devices.
        steps = [run for name, run, *_ in track if name == "jit_everywhere"]
        assert steps == [run for name, run, *_ in ran[0] if name == "jit_everywhere"] and len(set(steps)) == 5


def test_devices_that_do_nothing_have_planes_too(tmp_path, devices):
    with jax.profiler.trace(tmp_path):
        pass
    by_device = device_planes(planes(tmp_path))
    assert sorted(by_device) == [d.id for d in devices]
    assert not any(events(plane) for plane in by_device.values())


def test_devices_and_host_are_on_one_clock(tmp_path, devices):
    slow = jax.jit(lambda x: jax.lax.fori_loop(0, 200, lambda i, v: jnp.tanh(v @ v), x))
    x = jax.device_put(jnp.ones((128, 128)), devices[3])
    slow(x).block_until_ready()
    with profiled(tmp_path) as length:
        with jax.profiler.TraceAnnotation("around"):
            slow(x).block_until_ready()
    profile = planes(tmp_path)
    ((name, _, begin, duration),) = events(device_planes(profile)[devices[3].id])
    (around,) = (e for line in profile["/host:CPU"].lines for e in line.events if e.name == "around")
    assert name == "jit__lambda"
    # It begins within the call. Its end is told to the host's thread and to the recorder, one after the other.
    assert around.start_ns <= begin < around.start_ns + around.duration_ns
    assert 0 < duration and begin + duration <= length()


def test_profiles_one_after_the_other(tmp_path):
    x = sharded(8, 8)
    everywhere(x).block_until_ready()
    for i in range(3):
        with jax.profiler.trace(tmp_path / str(i)):
            for _ in range(i):
                everywhere(x).block_until_ready()
    for i in range(3):
        assert [len(events(p)) for p in device_planes(planes(tmp_path / str(i))).values()] == [i] * len(jax.devices())


def test_a_profile_and_a_trace_at_once(tmp_path):
    x = sharded(8, 8)
    everywhere(x).block_until_ready()
    with pathways.trace(tmp_path / "trace.json") as timeline:
        everywhere(x).block_until_ready()
        with jax.profiler.trace(tmp_path):
            everywhere(x).block_until_ready()
        everywhere(x).block_until_ready()
    assert len({span.gang for span in timeline.spans}) == 3
    assert [len(events(p)) for p in device_planes(planes(tmp_path)).values()] == [1] * len(jax.devices())


def test_work_still_running_at_the_end_is_in_the_profile(tmp_path):
    slow = jax.jit(lambda x: jax.lax.fori_loop(0, 300, lambda i, v: jnp.tanh(v @ v), x))
    x = jnp.ones((128, 128))
    slow(x).block_until_ready()
    with jax.profiler.trace(tmp_path):
        y = slow(x)
    y.block_until_ready()
    assert [name for name, *_ in events(device_planes(planes(tmp_path))[0])] == ["jit__lambda"]


def field(number, value):
    """A field of a protobuf: bytes, or an integer; that and a length are below 128 * 128."""
    if isinstance(value, int):
        return bytes([number << 3, value & 127 | 128, value >> 7])
    return bytes([number << 3 | 2, len(value) & 127 | 128, len(value) >> 7]) + value


def frame(kind, flags, stream, payload):
    """A frame of HTTP/2."""
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def capture(port, directory, milliseconds):
    """Asks a profiler's server for a profile, as xprof does: one call of gRPC, here by hand, without its packages.

    The server writes the profile to the directory.
    """
    settings, header, data = 4, 1, 0
    options = field(2, 2) + field(3, 1) + field(5, 1) + field(9, milliseconds)  # of the host, of devices, version, time
    request = field(4, options) + field(5, str(directory).encode()) + field(6, b"captured") + field(7, b"here")
    headers = {":method": "POST", ":scheme": "http", ":path": "/tensorflow.ProfilerService/Profile"}
    headers |= {":authority": "here", "content-type": "application/grpc", "te": "trailers"}
    words = (word.encode() for pair in headers.items() for word in pair)
    lines = b"".join(b"\0" * (i % 2 == 0) + bytes([len(word)]) + word for i, word in enumerate(words))
    with socket.create_connection(("127.0.0.1", port)) as connection, connection.makefile("rb") as answer:
        connection.sendall(
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
            + frame(settings, 0, 0, b"")
            + frame(header, 4, 1, lines)
            + frame(data, 1, 1, b"\0" + struct.pack(">I", len(request)) + request)
        )
        kind = flags = 0
        while kind != header or not flags & 1:  # until the trailer
            high, low, kind, flags, _ = struct.unpack(">BHBBI", answer.read(9))
            payload = answer.read(high << 16 | low)
            if kind == settings and not flags:
                connection.sendall(frame(settings, 1, 0, b""))
    assert b"grpc-status\x010" in payload, payload


def test_a_profile_that_is_captured_from_a_running_program(tmp_path, devices):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        _, port = free.getsockname()
    x = sharded(8, 8)
    everywhere(x).block_until_ready()
    jax.profiler.start_server(port)
    try:
        capturing = threading.Thread(target=capture, args=(port, tmp_path, 200))
        capturing.start()
        calls = 0
        while capturing.is_alive():
            everywhere(x).block_until_ready()
            calls += 1
        capturing.join()
    finally:
        jax.profiler.stop_server()
    by_device = device_planes(planes(tmp_path))
    assert sorted(by_device) == [d.id for d in devices]
    # Devices begin and end to record in the middle of different runs; between these, all have the same ones.
    runs = [[run for _, run, *_ in events(plane)] for plane in by_device.values()]
    first, last = max(of[0] for of in runs), min(of[-1] for of in runs)
    assert len({tuple(run for run in of if first <= run <= last) for of in runs}) == 1
    assert 0 < sum(first <= run <= last for run in runs[0]) <= calls
