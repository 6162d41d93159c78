"""What happens to a cluster's processes when one of them dies, freezes, or is a stranger.

`make soak` makes the random part longer than its few seconds; PATHWAYS_SEED repeats one.
"""

from __future__ import annotations

import random
import signal
import textwrap
import time

import fresh
import pytest
from conftest import SEED, SOAK_SECONDS
from processes import FREEZES, Cluster, command, until

# Trains, in a way: a chain of collectives over all devices with a known result, a line each round.
CHAIN = """
import sys
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

devices = jax.devices()
mesh = Mesh(np.array(devices), ("d",))
x = jax.device_put(np.arange(len(devices) * 64, dtype=np.float32), NamedSharding(mesh, P("d")))
step = jax.jit(jax.shard_map(lambda a: a + jax.lax.psum(a, "d") * 0 + 1, mesh=mesh, in_specs=P("d"), out_specs=P("d")))
y, rounds = x, 0
print("ready", flush=True)
"""

# Computations of all devices and moves between them, one call each; in a program, a call for all of them.
TWENTY = """
back = NamedSharding(Mesh(np.array(devices[::-1]), ("d",)), P("d"))

def twenty(y):
    for i in range(20):
        y = step(y)
        if i % 5 == 0:
            y = jax.device_put(jax.device_put(y, back), x.sharding)
    return y
"""
FOREVER = (
    CHAIN
    + TWENTY
    + """
try:
    while True:
        y = twenty(y)
        rounds += 20
        got = np.asarray(y)
        assert np.array_equal(got, np.arange(len(got), dtype=np.float32) + rounds), got
        print(rounds, flush=True)
except (RuntimeError, ValueError) as error:  # JAX's, a program's, and what JAX's fast path raises
    print("error", str(error).replace("\\n", " "), flush=True)
"""
)
PLAYS = FOREVER.replace("def twenty", "@pathways.program\ndef twenty")
LARGE = FOREVER.replace("len(devices) * 64", "len(devices) << 16")  # 256 KiB a device, in areas that workers share
# 8 MiB, which the others read where they lie: in the memory of devices, or in what a client has put them into.
LONG = FOREVER.replace("len(devices) * 64", "len(devices) << 21").replace(
    "        print(rounds", "        y = jax.device_put(got, x.sharding)\n        print(rounds"
)

# Behind the loss of the controller: init() does not go on returning as if the devices could be used.
AGAIN = """
for again in (pathways.init, lambda: pathways.init(devices=len(devices))):
    try:
        while True:  # the session may hear of it after the workers
            again()
    except pathways.PathwaysError as error:
        assert error.code == "UNAVAILABLE" and "pathways.shutdown()" in error.message, error
"""

KEEPS = "keep = [step(x) for _ in range(100)]\nprint(len(keep), flush=True)\ninput()\n"


def lines(process, want: int) -> list[str]:
    """Reads so many lines of a script."""
    out = []
    for _ in range(want):
        line = process.stdout.readline()
        assert line, f"the script ended: {out} {process.stderr.read()}"
        out.append(line.strip())
    return out


def ended(process) -> str:
    """Waits for a script that met a fault, and returns the error it printed."""
    out, err = process.communicate(timeout=120)
    last = out.strip().splitlines()[-1] if out.strip() else ""
    assert process.returncode == 0 and last.startswith("error "), f"exit {process.returncode}\n{out}\n{err}"
    return last


def workers_end(cluster: Cluster) -> None:
    """Waits until the workers have ended by themselves."""
    names = [name for name in cluster.processes if name.startswith("worker")]
    until("the workers to end", lambda: not any(cluster.alive(name) for name in names))


@pytest.fixture(scope="module")
def cluster():
    """Of four devices, for tests that harm none of its processes."""
    with Cluster(2, 2) as cluster:
        yield cluster


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "frozen"])
def test_worker_is_lost(number):
    """The clients are told which worker is gone; a new client works with those that are left."""
    with Cluster(3, 2, *FREEZES) as cluster:
        clients = [cluster.start(script) for script in (FOREVER, PLAYS, LARGE, LONG)]
        for client in clients:
            lines(client, 3)
        cluster.signal("worker-1", number)
        for client in clients:
            assert "worker-1" in ended(client)
        until("the loss to be seen", lambda: set(cluster.workers()) == {"worker-0", "worker-2"})
        after = cluster.run(CHAIN + "print(len(devices), np.asarray(step(x))[:2].tolist())")
        assert after.stdout.split("\n")[1] == "4 [1.0, 2.0]"
        until("all to be freed", cluster.idle)


def test_rest_of_a_session_goes_on():
    """Arrays on the other workers, and computations there, outlive a worker."""
    with Cluster(2, 1) as cluster:
        client = cluster.start("""
            import jax, jax.numpy as jnp, numpy as np
            first, second = jax.devices()
            here = jax.device_put(np.arange(4.0), first)
            there = jax.device_put(np.arange(4.0), second)
            add = jax.jit(lambda a: a + 1)
            print(add(here).sum(), add(there).sum(), flush=True)
            input()
            try:
                for _ in range(10**9):
                    there = add(there)
                    there.block_until_ready()
            except (jax.errors.JaxRuntimeError, ValueError) as error:  # the second by JAX's fast path
                print(str(error).replace("\\n", " "), flush=True)
            print(add(here).sum(), flush=True)
            """)
        assert lines(client, 1) == ["10.0 10.0"]
        cluster.signal("worker-1", signal.SIGKILL)
        out, err = client.communicate("\n", timeout=120)
        assert client.returncode == 0, err
        error, result = out.strip().splitlines()
        # A computation that was under way is UNAVAILABLE, and one that begins behind it reads an array that is lost.
        assert "worker-1" in error and ("UNAVAILABLE" in error or "DATA_LOSS" in error)
        assert result == "10.0"


@pytest.mark.parametrize("script", [CHAIN + KEEPS, PLAYS], ids=["idle", "playing"])
def test_client_is_killed(cluster, script):
    """What a client had is freed everywhere when it dies, in the middle of a program too; others do not notice."""
    other = cluster.start(FOREVER)
    lines(other, 2)
    client = cluster.start(script)
    lines(client, 2)
    until("both sessions", lambda: len(cluster.report()["sessions"]) == 2)
    client.kill()
    client.communicate()
    until("its session to end", lambda: len(cluster.report()["sessions"]) == 1)
    lines(other, 2)
    other.kill()
    other.communicate()
    until("all to be freed", cluster.idle)


TRANSFERS = """
import jax, numpy as np

devices = jax.devices()
x = np.arange(1 << 20, dtype=np.float32)
while True:
    for i in range(len(devices)):
        y = jax.device_put(jax.device_put(x, devices[i]), devices[i - 1])
        assert np.array_equal(np.asarray(y), x)
    print("moved", flush=True)
"""


def test_clients_that_die_leave_nothing_open(cluster):
    """Processes that are killed while arrays come, go and move leave no memory, socket or file behind."""
    clients = 5

    def die():
        client = cluster.start(TRANSFERS)
        lines(client, 2)
        client.kill()
        client.communicate()
        until("all to be freed", cluster.idle)

    die()  # the workers open what they keep
    before = {name: cluster.opened(name) for name in cluster.processes}
    for _ in range(clients):
        die()
    # One that is left of each client would be too many; what a pool keeps may differ by less.
    until(
        f"no more to be open than before: {before}",
        lambda: all(cluster.opened(name) < count + clients for name, count in before.items()),
    )


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "frozen"])
def test_controller_is_lost(number):
    """Clients are told, also by init(), and workers end by themselves."""
    with Cluster(2, 1, *FREEZES) as cluster:
        client = cluster.start(FOREVER + (AGAIN if number == signal.SIGKILL else ""))
        lines(client, 2)
        cluster.signal("controller", number)
        error = ended(client)
        assert "UNAVAILABLE" in error and "controller" in error
        workers_end(cluster)
        if number == signal.SIGSTOP:  # an error that says why, and no hang
            seen = command("status", "--dir", str(cluster.dir), check=False)
            assert seen.returncode == 1 and cluster.address in seen.stderr


STRANGER = "import jax\ntry:\n    jax.devices()\nexcept Exception as error:\n    print(error)\n"


def test_strangers_are_refused(cluster):
    """A wrong token and another version of JAX are refused with what to do; the cluster works on."""
    wrong = cluster.run(STRANGER, PATHWAYS_TOKEN="wrong")
    assert "UNAUTHENTICATED" in wrong.stdout and "PATHWAYS_TOKEN" in wrong.stdout
    skewed = """
        import importlib.metadata
        version = importlib.metadata.version
        importlib.metadata.version = lambda name: "0.0.1" if name == "jax" else version(name)
        """
    old = cluster.run(textwrap.dedent(skewed) + STRANGER)
    assert "FAILED_PRECONDITION" in old.stdout and '"0.0.1"' in old.stdout
    assert cluster.run("import jax\nprint(jax.numpy.ones(3).sum())").stdout.strip() == "3.0"


def test_no_process_is_left(tmp_path):
    """An address at which nothing listens is an error that names it, not a hang."""
    address = f"unix:{tmp_path}/s"
    done = command("status", "--address", address, check=False)
    assert done.returncode == 1 and address in done.stderr


@pytest.mark.soak
def test_random_faults():
    """Any process dies or freezes at random; what is left computes right, waits end with errors, nothing leaks."""
    choose = random.Random(SEED)
    end = time.monotonic() + SOAK_SECONDS
    rounds = 0
    while rounds == 0 or time.monotonic() < end:
        rounds += 1
        with Cluster(choose.choice([2, 3]), choose.choice([1, 2]), *FREEZES) as cluster:
            clients = [cluster.start(choose.choice([FOREVER, PLAYS])) for _ in range(2)]
            for client in clients:
                lines(client, 1)
            time.sleep(choose.uniform(0, 0.5))
            what = choose.choice(["worker", "worker", "controller", "client"])
            fault = choose.choice([signal.SIGKILL, signal.SIGSTOP])
            if what == "client":
                dead, alive = clients
                dead.send_signal(fault)
                until("one session to end", lambda cluster=cluster: len(cluster.report()["sessions"]) == 1)
                lines(alive, 3)
                for client in clients:
                    client.kill()
                    client.communicate()
            else:
                victim = choose.choice([name for name in cluster.processes if name.startswith(what)])
                cluster.signal(victim, fault)
                for client in clients:
                    assert victim in ended(client)
            if what == "controller":
                workers_end(cluster)
            else:
                until("all to be freed", cluster.idle)


def test_ctrl_c_while_a_program_waits_for_a_worker():
    """The wait ends while the worker stands still; what it was for ends later, and the program runs again."""
    with Cluster(2, 1, "--silence", "300s") as cluster:
        client = cluster.start(
            """
import jax, jax.numpy as jnp, numpy as np
first, second = jax.devices()
step = jax.jit(lambda x: x * 2 + 1)

@pathways.program
def f(x):
    for i in range(64):
        x = step(jax.device_put(x, (first, second)[i % 2])) % 1000
    return x

x = jax.device_put(np.arange(100, dtype=np.int32), first)
want = np.asarray(f.__wrapped__(x))
assert np.array_equal(f(x), want)
print("ready", flush=True)
input()
y = f(x)
try:
    print("waiting", flush=True)
    y.block_until_ready()
except KeyboardInterrupt:
    print("interrupted", y.is_ready(), flush=True)
input()
assert np.array_equal(f(x), want) and np.array_equal(y, want)
print("right")
"""
        )
        assert lines(client, 1) == ["ready"]
        cluster.signal("worker-1", signal.SIGSTOP)
        fresh.tell(client)
        assert lines(client, 1) == ["waiting"]
        client.send_signal(signal.SIGINT)
        assert lines(client, 1) == ["interrupted False"]
        cluster.signal("worker-1", signal.SIGCONT)
        out, err = client.communicate("\n")
        assert client.returncode == 0 and out.strip() == "right", out + err
        until("nothing is left", cluster.idle)
