"""Exclusive slices of a cluster of processes: a client that waits for one sees its place and whom it waits for, and one
that uses another user's devices is told."""

import json
import signal

import fresh
from fresh import hear, tell
from processes import Cluster, command, tokens_of, until

OWNER = """
import jax, logging, numpy as np
logging.basicConfig(format="%(message)s")
logging.getLogger("pathways").setLevel(logging.INFO)
slices = pathways.make_virtual_device_set()
"""

HAS_HALF = (
    OWNER
    + """
s = slices.add_slice(devices=2, exclusive=True)
x = jax.device_put(np.float32(1), s.devices[1])
print("has", s.devices[1].id, flush=True)
input()
s.release()  # what lies there still keeps others away
print("released", flush=True)
input()
"""
)

WANTS_ALL = (
    OWNER
    + """
s = slices.add_slice(devices=4, exclusive=True, wait=600, priority=1)
print("has", len(s.devices), flush=True)
input()
"""
)

CANCELS = (
    OWNER
    + """
try:
    slices.add_slice(devices=1, wait=600)
except KeyboardInterrupt:
    print("cancelled", flush=True)
print(len(slices.add_slice(devices=1, wait=600).devices), flush=True)
"""
)


def told(process, words: str) -> None:
    """Reads what a client logs until it says these words."""
    while words not in (text := process.stderr.readline()):
        assert text, f"it ended and did not say {words!r}"


def test_exclusive_slices_of_several_clients():
    clients = []
    with Cluster(2, 2) as cluster:

        def queue() -> list[dict]:
            return json.loads(command("queue", "--json", "--dir", str(cluster.dir)).stdout)

        for script in (HAS_HALF, WANTS_ALL, CANCELS):
            clients.append(cluster.start(script, PYTHONUNBUFFERED="1"))
            if script == HAS_HALF:
                hear(clients[0])
            elif script == WANTS_ALL:
                told(clients[1], "number 1 in the queue>: 2 are in an exclusive slice of session 1")
        first, second, third = clients
        tell(first)
        assert hear(first) == "released"
        told(second, "1 is in use by session 1")
        told(third, "number 2 in the queue>: 1 is reserved for an earlier request of session 2")
        assert [(q["session"], q["devices"], q.get("exclusive", False)) for q in queue()] == [
            (2, 4, True),
            (3, 1, False),
        ]
        assert "PLACE" in command("status", "--dir", str(cluster.dir)).stdout
        third.send_signal(signal.SIGINT)
        first.communicate("\n", timeout=fresh.HANG_SECONDS)
        assert hear(second) == "has 4"
        tell(second)
        second.communicate(timeout=fresh.HANG_SECONDS)
        out, err = third.communicate(timeout=fresh.HANG_SECONDS)
        assert out.splitlines()[-2:] == ["cancelled", "1"], (out, err)
        assert "no request for a slice waits" in command("queue", "--dir", str(cluster.dir)).stdout
        until("nothing to be left", cluster.idle)


def test_work_on_another_sessions_devices_fails():
    with Cluster(1, 2) as cluster:
        owner = cluster.start(
            OWNER + 's = slices.add_slice(devices=2, exclusive=True)\nprint("has", flush=True)\ninput()\n'
        )
        try:
            assert hear(owner) == "has"
            got = cluster.run(
                """
                import jax, numpy as np
                for use in (lambda: jax.device_put(np.float32(1)), lambda: jax.jit(lambda: 1)()):
                    try:
                        use().block_until_ready()
                    except jax.errors.JaxRuntimeError as error:
                        print(error)
                """
            ).stdout.splitlines()
            assert len(got) == 2 and all(
                "FAILED_PRECONDITION" in text and "is in an exclusive slice of session 1" in text for text in got
            ), got
        finally:
            owner.communicate("\n", timeout=fresh.HANG_SECONDS)


ASKS = (
    OWNER
    + """
import contextlib, os, signal, socket

def cut(*_):  # as if the network had
    for fd in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):  # it is no socket, or was closed meanwhile
            socket.socket(fileno=os.dup(fd)).shutdown(socket.SHUT_RDWR)

signal.signal(signal.SIGUSR1, cut)
try:
    s = slices.add_slice(devices=2, exclusive=True, wait=600)
    print("has", flush=True)
    input()
    s.release()
    print("released", flush=True)
    input()
except pathways.PathwaysError as error:
    print(error, flush=True)
"""
)

TENANTS = """
[tenants.bob]
token-file = "bob.token"
"""


def test_clients_are_lost_in_each_state_of_a_request(tmp_path):
    tokens = tokens_of(tmp_path, "ada", "bob")
    file = tmp_path / "tenants.toml"

    def tenants(ada: str) -> None:
        file.write_text(TENANTS + ada)
        file.chmod(0o644)

    tenants('[tenants.ada]\ntoken-file = "ada.token"\nslice-devices = 4')
    with Cluster(1, 2, "--tenants", str(file), "--lease", "0") as cluster:

        def client(tenant: str):
            return cluster.start(ASKS, PYTHONUNBUFFERED="1", PATHWAYS_TOKEN_FILE=str(tokens[tenant]))

        def waiting() -> list[int]:
            queue = json.loads(command("queue", "--json", "--dir", str(cluster.dir)).stdout)
            return [request["session"] for request in queue]

        def holding() -> list[int]:
            return [session["session"] for session in cluster.report()["sessions"] if session["slices"]]

        def waits(tenant: str, *queue: int):
            process = client(tenant)
            until(f"{queue} to wait", lambda: waiting() == list(queue))
            return process

        holder = client("ada")
        assert hear(holder) == "has"
        waits("bob", 2).kill()
        until("a request to go with its client", lambda: waiting() == [])
        stopped, lost = waits("bob", 3), waits("ada", 3, 4)
        lost.send_signal(signal.SIGUSR1)
        assert "UNAVAILABLE" in hear(lost)
        until("a request to go with its client's connection", lambda: waiting() == [3])
        last = waits("ada", 3, 5)
        # The file changes meanwhile: first to a quota that is held already, then without the tenant.
        tenants('[tenants.ada]\ntoken-file = "ada.token"\nslice-devices = 2')
        command("tenants", "apply", "--dir", str(cluster.dir))
        assert (holding(), waiting()) == ([1], [3, 5])
        tenants("")
        command("tenants", "apply", "--dir", str(cluster.dir))
        assert (holding(), waiting()) == ([1], [3, 5])
        # A client that is stopped gets its devices all the same, which it has until it is killed.
        stopped.send_signal(signal.SIGSTOP)
        tell(holder)
        assert hear(holder) == "released"
        holder.kill()
        until("a stopped client to have its devices", lambda: (holding(), waiting()) == ([3], [5]))
        stopped.send_signal(signal.SIGCONT)
        assert hear(stopped) == "has"
        stopped.kill()
        assert hear(last) == "has"
        last.communicate("\n\n", timeout=fresh.HANG_SECONDS)
        until(
            "a tenant without sessions to be forgotten",
            lambda: [tenant["name"] for tenant in cluster.report()["tenants"]] == ["bob"],
        )
        until("nothing to be left", cluster.idle)


STAYS = (
    OWNER
    + """
try:
    s = slices.add_slice(devices=2, exclusive=True, wait=600)
    x = jax.device_put(np.float32(1), s.devices[1])
    print("has", flush=True)
    while True:
        input()
        print(float(x + 1), flush=True)
except (RuntimeError, ValueError) as error:  # the second by JAX's fast path
    print(str(error).replace("\\n", " "), flush=True)
"""
)


def test_stopped_clients_keep_a_slice_and_a_place_in_the_queue_for_the_lease():
    with Cluster(1, 2, "--silence", "1s", "--lease", "4s") as cluster:

        def become(*want: str) -> None:
            """Waits until the sessions have the slice or wait for it, and are connected or not."""

            def states() -> list[str]:
                queue = json.loads(command("queue", "--json", "--dir", str(cluster.dir)).stdout)
                waiting = [request["session"] for request in queue]
                sessions = cluster.report()["sessions"]
                doing = ["has" if s["slices"] else "waits" if s["session"] in waiting else "" for s in sessions]
                return [do + (", cut" if s["link"]["cut_ms"] else "") for do, s in zip(doing, sessions, strict=True)]

            until(f"{want}", lambda: states() == list(want))

        def send(number: signal.Signals) -> None:
            for client in (holder, waiter):
                client.send_signal(number)

        holder = cluster.start(STAYS)
        assert hear(holder) == "has"
        waiter = cluster.start(STAYS)
        become("has", "waits")
        other = cluster.start(STAYS)
        become("has", "waits", "waits")
        send(signal.SIGSTOP)
        become("has, cut", "waits, cut", "waits")
        send(signal.SIGCONT)
        become("has", "waits", "waits")
        tell(holder)
        assert hear(holder) == "2.0"
        send(signal.SIGSTOP)
        assert hear(other) == "has"  # once the lease of both is over
        become("has")
        send(signal.SIGCONT)
        tell(holder)
        for client in (holder, waiter):
            error = hear(client)
            assert error.startswith("UNAVAILABLE: the connection to the controller"), error
        tell(other)
        assert hear(other) == "2.0"
