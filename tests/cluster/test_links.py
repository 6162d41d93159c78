"""Connections between workers, and between clients and workers, that break while their processes live."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from contextlib import ExitStack, suppress

import fresh
import pytest
from cuts import break_tcp, break_unix
from hosts import cluster_on, free_port, may_make_networks, serving, there, two_hosts
from processes import HANG_SECONDS, Cluster, command, until

# Each round has a collective between the workers and moves arrays between them, and says when it is through.
ROUNDS = """
import sys
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
devices = jax.devices()
mesh = Mesh(np.array(devices), ("d",))
x = np.arange(len(devices) * 1024 * 256, dtype=np.float32).reshape(len(devices), -1)  # a MiB a device
step = jax.jit(jax.shard_map(lambda a: jax.lax.psum(a * 2, "d"), mesh=mesh, in_specs=P("d"), out_specs=P()))
turn = jax.jit(lambda a: a.T, out_shardings=NamedSharding(mesh, P("d")))
expected = (x * 2)[0]
for row in x[1:]:
    expected = expected + row * 2
for line in sys.stdin:
    a = jax.device_put(x, NamedSharding(mesh, P("d")))
    assert np.array_equal(np.asarray(step(a))[0], expected)
    assert np.array_equal(np.asarray(turn(a)), x.T)
    print(line.strip(), float(jnp.sum(jax.device_put(a[0, :4], devices[-1]))), flush=True)
"""


class Rounds:
    """A client that runs a round when it is told to."""

    def __init__(self, address: str, inside: tuple[str, ...] = (), env: dict[str, str] | None = None, source=ROUNDS):
        self.process = subprocess.Popen(
            [*inside, sys.executable, "-c", fresh.source(source)],
            env=fresh.environment(env={"PATHWAYS_ADDRESS": address, "PATHWAYS_DEVICES": "", **(env or {})}),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.count = 0

    def begin(self) -> None:
        self.count += 1
        print(self.count, file=self.process.stdin, flush=True)

    def has_ended(self, seconds: float) -> bool:
        """Whether the round ends within this time."""
        return bool(select.select([self.process.stdout], [], [], seconds)[0])

    def end(self) -> None:
        line = self.process.stdout.readline().strip()
        assert line == f"{self.count} 6.0", f"round {self.count} said {line!r}"

    def __enter__(self) -> Rounds:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            self.process.wait(HANG_SECONDS)
        finally:
            self.process.kill()
            self.process.wait()
            self.process.stdout.close()


def test_tcp_links_are_made_again(tmp_path):
    """Connections between two workers are closed, between and under operations: those go on, and so do new clients."""
    address = f"tcp:127.0.0.1:{free_port()}"
    env = {"PATHWAYS_TOKEN": "open sesame"}
    with serving("controller", "--listen", address, "--dir", str(tmp_path), env=env), ExitStack() as running:
        workers = [
            running.enter_context(
                serving(
                    *("worker", "--address", address, "--listen", "tcp:127.0.0.1:0", "--name", f"w{i}"),
                    *("--devices", "2", "--dir", str(tmp_path)),
                    env=env,
                )
            )
            for i in range(2)
        ]
        until("two workers", lambda: there(address, env=env).count(" × cpu") == 2)
        with Rounds(address, env=env) as client:
            client.begin()
            client.end()
            assert break_tcp(workers[0].pid, workers[1].pid), "the workers have no connection to each other"
            for i in range(5):
                client.begin()
                break_tcp(workers[i % 2].pid, workers[1 - i % 2].pid)
                break_tcp(workers[i % 2].pid, client.process.pid)
                client.end()

            def told() -> bool:
                """Whether status says of a link between the workers, and of one to the client, that they broke."""
                report = json.loads(command("status", "--json", "--address", address, env=env).stdout)
                workers = [w["last"].get("links", []) for island in report["islands"] for w in island["workers"]]
                names = [link["name"] for links in workers for link in links if int(link["cuts"]) > 0]
                return bool({"w0", "w1"} & set(names)) and any("session" in name for name in names)

            until("status tells of the breaks", told)
            text = there(address, env=env)
            assert "CONNECTION TO" in text and "connected, after" in text, text
            # Each has a connection to the other worker, and one to the client.
            until("both connections of each worker", lambda: there(address, env=env).count("  2 up") == 2)
        with Rounds(address, env=env) as client:
            client.begin()
            client.end()


def test_unix_links_are_made_again():
    """The same for workers of one host, which share memory."""
    with Cluster(2, 2) as cluster, Rounds(cluster.address) as client:
        client.begin()
        client.end()
        workers = [pid for name, pid in cluster.processes.items() if "worker" in name]
        assert sum(break_unix(pid) for pid in workers), "no process is connected to the workers"
        for i in range(5):
            client.begin()
            break_unix(workers[i % 2])
            client.end()


# Each round adds to an array on all devices, in place, and calls a function of this process in order, whose argument
# and result are blocks of their own. So a computation or a call that is lost or runs twice shows.
COUNTS = """
import sys
import jax, numpy as np
from jax.experimental import io_callback
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
devices = jax.devices()
s = NamedSharding(Mesh(np.array(devices), ("d",)), P("d"))
step = jax.jit(lambda a: a + 1, donate_argnums=0, out_shardings=s)
block = jax.ShapeDtypeStruct((64 * 1024,), np.int32)
calls = []

def record(n):
    assert np.all(n == n[0])
    calls.append(int(n[0]))
    return -n

call = jax.jit(lambda n: io_callback(record, block, n, ordered=True))
a, steps = jax.device_put(np.zeros(len(devices) * 1024, dtype=np.float32), s), 0
for line in sys.stdin:
    for i in range(1500):
        a = step(a)
        steps += 1
        if i % 20 == 0:
            b = jax.device_put(np.full(len(devices) * 1024, i, dtype=np.float32), s)
            answer = call(jax.device_put(np.full(block.shape, steps, dtype=np.int32), devices[0]))
            assert np.all(np.asarray(b) == i)
            assert np.all(np.asarray(answer) == -steps)
    jax.effects_barrier()
    counts = np.asarray(a)
    assert np.all(counts == steps), (counts.min(), counts.max(), steps)
    assert calls == list(range(1, steps, 20)), calls
    print(line.strip(), 6.0, flush=True)
"""


def test_operations_and_callbacks_run_once_while_connections_are_cut(tmp_path):
    """With --lease, connections of a client and workers to the controller, and of the client to the workers, are closed
    under load, again and again.
    """
    address = f"tcp:127.0.0.1:{free_port()}"
    env = {"PATHWAYS_TOKEN": "open sesame"}
    at = ("--address", address, "--listen", "tcp:127.0.0.1:0", "--devices", "2", "--dir", str(tmp_path))
    controller = ("controller", "--listen", address, "--lease", "10s", "--dir", str(tmp_path))
    with serving(*controller, env=env) as leader, ExitStack() as running:
        workers = [running.enter_context(serving("worker", *at, "--name", f"w{i}", env=env)) for i in range(2)]
        until("two workers", lambda: there(address, env=env).count(" × cpu") == 2)
        with Rounds(address, env=env, source=COUNTS) as client:
            client.begin()
            client.end()
            own = [client.process.pid, *(w.pid for w in workers)]
            pairs = [*((leader.pid, end) for end in own), *((client.process.pid, w.pid) for w in workers)]
            broken, turn = [0] * len(pairs), 0
            for _ in range(40):
                client.begin()
                while not client.has_ended(seconds=0.03):
                    broken[turn % len(pairs)] += break_tcp(*pairs[turn % len(pairs)])
                    turn += 1
                client.end()
                if min(broken) > 5:
                    break
            done = command("status", "--json", "--address", address, env=env)
            report = json.loads(done.stdout)
            links = [w["link"] for island in report["islands"] for w in island["workers"]]
            links += [s["link"] for s in report["sessions"]]
            cuts = [link["cuts"] for link in links]
            assert min(broken) > 5 and min(cuts) > 1, (broken, cuts)
            assert {link["lease_ms"] for link in links} == {10_000}, links
            text = command("status", "--address", address, env=env).stdout
            broken = text.split("CONNECTION TO THE CONTROLLER")[1].split("\n\n")[0]
            assert broken.count("connected, after") + broken.count("none for") == 3, text


@pytest.mark.skipif(not may_make_networks(), reason="network namespaces need root, ip and tc")
def test_partition_between_workers_heals(tmp_path):
    """Two hosts have a line for the controller and one for bytes. The second is cut: both workers stay, status shows
    that they cannot reach each other, and what waits for the line goes on when it is back.
    """
    with two_hosts() as hosts, ExitStack() as running:
        ends = [f"u{os.getpid() % 100000}{side}" for side in "ab"]
        subprocess.run(["ip", "link", "add", ends[0], "type", "veth", "peer", "name", ends[1]], check=True)
        for i, (inside, end) in enumerate(zip(hosts, ends, strict=True), 1):
            subprocess.run(["ip", "link", "set", end, "netns", inside[-1]], check=True)
            subprocess.run([*inside, "ip", "addr", "add", f"10.78.0.{i}/24", "dev", end], check=True)
            subprocess.run([*inside, "ip", "link", "set", end, "up"], check=True)
        silence = ("--silence", "1s", "--heartbeat", "200ms")
        address, env = running.enter_context(cluster_on(hosts, tmp_path, *silence, network=78))

        def apart() -> list[str]:
            done = subprocess.run(
                [*hosts[0], sys.executable, "-m", "pathways_command", "status", "--json", "--address", address],
                env=fresh.environment(env=env),
                capture_output=True,
                text=True,
                timeout=HANG_SECONDS,
            )
            workers = [w for island in json.loads(done.stdout)["islands"] for w in island["workers"]]
            assert len(workers) == 2, done.stdout
            return [f"{w['process']['name']} {a['name']}" for w in workers for a in w["last"].get("apart", [])]

        with Rounds(address, hosts[0], env) as client:
            client.begin()
            client.end()
            subprocess.run([*hosts[0], "ip", "link", "set", ends[0], "down"], check=True)
            client.begin()
            until("status shows the pair", lambda: {"w1 w2", "w2 w1"} <= set(apart()))
            assert "CANNOT REACH" in there(address, hosts[0], env)
            subprocess.run([*hosts[0], "ip", "link", "set", ends[0], "up"], check=True)
            client.end()
            until("status shows that the pair is well", lambda: not apart())
            client.begin()
            client.end()
