"""How long a script waits after a fault: from the fault to the next right result, on a cluster of real processes.

    python tests/bench/faults.py                      every fault nine times, and the repeated ones: twenty minutes
    python tests/bench/faults.py --rounds 3
    python tests/bench/faults.py --only controller    those whose names hold this
    python tests/bench/faults.py --only every         all connections cut each second, and the controller killed each 20

A script runs tiny steps on two workers with two devices each, and waits for each (tests/cluster/counting.py). Its
arrays count the steps, and each result is compared with the script's own count; a step that is lost or done twice ends
the benchmark. When something fails, the script does what docs/guides/recovery.md says: it waits for another worker, or
begins a new session, and makes its arrays again.

One fault at a time is caused from outside, by a signal or by shutting a socket down. A time ends when the first result
is there of a step that was called after the fault; where another worker comes for a lost one, it is also counted from
when the script hears of that. Faults that only cut a connection share a cluster; others have a new one each time, since
a supervisor waits longer and longer for what dies again and again. The repeated ones happen to one plain cluster and
two scripts, of which nothing may fail. It writes out/faults.json.
"""

import argparse
import dataclasses
import itertools
import json
import os
import random
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "cluster")]

import fresh  # noqa: E402
import sides  # noqa: E402
from counting import Counting, Ended, hear  # noqa: E402
from cuts import between, cut  # noqa: E402
from page import table  # noqa: E402
from processes import COMMAND, Cluster, command, until  # noqa: E402

# Has all devices for itself, once it gets them, and says when its first result on them was there.
HOLDER = """
import time
import jax, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

held = pathways.make_virtual_device_set().add_slice(devices=4, exclusive=True, wait=600)
rows = NamedSharding(Mesh(np.array(held.devices), ("d",)), P("d"))
step = jax.jit(lambda a: a + 1, out_shardings=rows)
x = step(jax.device_put(np.zeros(32, np.float32), rows))
assert np.array_equal(np.asarray(x), np.ones(32))
print(time.monotonic(), flush=True)
while True:
    x = step(x).block_until_ready()
"""

LEASE, NO_LEASE = ("--lease", "30s"), ("--lease", "0")


class ByHand:
    """As processes.Cluster, of processes that nothing starts again."""

    def __init__(self, workers: int, devices: int, *arguments: str):
        self.dir = Path(tempfile.mkdtemp(prefix="pw", dir="/tmp"))
        self.running: dict[str, subprocess.Popen] = {}
        self.arguments = arguments
        self.address = f"unix:{self.dir}/default/controller.sock"
        self.start_controller()
        until("the controller", lambda: Path(self.address.removeprefix("unix:")).exists())
        for i in range(workers):
            self.serve(f"worker-{i}", "worker", "--name", f"worker-{i}", "--devices", str(devices))
        until("the workers", lambda: self.status().count(" × cpu") == workers)

    def start_controller(self) -> None:
        self.serve("controller", "controller", *self.arguments, "--state", str(self.dir / "state"))

    def serve(self, name: str, *arguments: str) -> None:
        self.running[name] = subprocess.Popen(
            [*COMMAND, *arguments, "--dir", str(self.dir)],
            env=fresh.environment(env={"PATHWAYS_DEVICES": ""}),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def status(self) -> str:
        return command("status", "--dir", str(self.dir), check=False).stdout

    def listed(self) -> dict[str, int]:
        return {name: process.pid for name, process in self.running.items()}

    def start(self, code: str):
        return fresh.start(code, env={"PATHWAYS_ADDRESS": self.address, "PATHWAYS_DEVICES": ""})

    def __enter__(self):
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.running.values():
            process.terminate()
        for process in self.running.values():
            process.wait()
        shutil.rmtree(self.dir, ignore_errors=True)


def up(*arguments: str, workers: int = 2):
    """Returns what makes a cluster as `pathways up` does, with its supervisor."""
    return lambda: Cluster(workers, 2, "--heartbeat", "1s", "--log", "info", *arguments, restart=True)


def broken(one: str, other: str):
    """Returns what cuts the connections between two processes; "script" names the client."""

    def cause(cluster, script) -> tuple[float, float]:
        pids = cluster.listed() | {"script": script.pid}
        begun = cut(pids[one], pids[other])
        return begun, begun

    return cause


def kill(name: str, number: signal.Signals = signal.SIGKILL, then: Callable = lambda cluster: None):
    """Returns what sends a process a signal, and does something at once."""

    def cause(cluster, script) -> tuple[float, float]:
        pid = cluster.listed()[name]
        begun = time.monotonic()
        os.kill(pid, number)
        then(cluster)
        return begun, begun

    return cause


def stop_controller(seconds: float):
    """Returns what stops the controller for a while. The time counts from when it may go on."""

    def cause(cluster, script) -> tuple[float, float]:
        pid = cluster.listed()["controller"]
        begun = time.monotonic()
        os.kill(pid, signal.SIGSTOP)
        time.sleep(seconds)
        os.kill(pid, signal.SIGCONT)
        return begun, time.monotonic()

    return cause


@dataclasses.dataclass(frozen=True)
class Fault:
    """Something that happens to a cluster."""

    name: str
    cluster: Callable
    cause: Callable  # of the cluster and the client; when it was caused, and from when on time counts
    again: bool = False  # the next one may happen to the same cluster
    fails: bool = False  # what is under way on lost devices, or all of a session


FAULTS = [
    Fault("connection of the script to the controller is cut", up(*LEASE), broken("script", "controller"), True),
    Fault("connection of a worker to the controller is cut", up(*LEASE), broken("worker-0", "controller"), True),
    Fault("connection between two workers is cut", up(*LEASE), broken("worker-0", "worker-1"), True),
    Fault("connection of the script to a worker is cut", up(*LEASE), broken("script", "worker-0"), True),
    Fault("controller stopped for 5 s, counted from its end", up(*LEASE), stop_controller(5), True),
    Fault("controller stopped for 14 s, counted from its end", up(*LEASE), stop_controller(14), True),
    Fault("controller killed, restarted by the supervisor", up(*LEASE), kill("controller")),
    Fault(
        "controller killed, started again by hand at once",
        lambda: ByHand(2, 2, *LEASE),
        kill("controller", then=ByHand.start_controller),
    ),
    Fault("worker killed, with a spare", up(*LEASE, workers=3), kill("worker-1"), fails=True),
    Fault("worker killed, restarted by the supervisor", up(*LEASE), kill("worker-1"), fails=True),
    Fault("worker killed, restarted with --import jax", up(*LEASE, "--import", "jax"), kill("worker-1"), fails=True),
    Fault("worker hangs (SIGSTOP), with a spare", up(*LEASE, workers=3), kill("worker-1", signal.SIGSTOP), fails=True),
    Fault(
        "no lease: connection of the script to the controller is cut",
        up(*NO_LEASE),
        broken("script", "controller"),
        again=True,
        fails=True,
    ),
    Fault("no lease: worker killed, restarted by the supervisor", up(*NO_LEASE), kill("worker-1"), fails=True),
    Fault(
        "no lease: worker hangs (SIGSTOP), with a spare",
        up(*NO_LEASE, workers=3),
        kill("worker-1", signal.SIGSTOP),
        fails=True,
    ),
    Fault("no lease: controller killed, restarted by the supervisor", up(*NO_LEASE), kill("controller"), fails=True),
]
CLIENT_KILLED = "script killed: until another one has its exclusive slice, and a result there"


def measured(fault: Fault, rounds: int) -> list[dict]:
    """Causes a fault so many times, and returns what the script says of each."""
    got, choose = [], random.Random(1)
    while len(got) < rounds:
        with fault.cluster() as cluster, Counting(cluster.start) as script:
            while True:
                time.sleep(choose.uniform(0.5, 1))  # somewhere in its loop
                got.append(script.after(*fault.cause(cluster, script)))
                if got[-1]["errors"] and not fault.fails:
                    logs = [path.read_text() for path in (cluster.dir / "default").glob("*.log")]
                    logs.append(command("events", "--dir", str(cluster.dir)).stdout)
                    raise Ended("\n".join([f"the script failed: {got[-1]}", *logs]))
                if not fault.again or len(got) == rounds:
                    break
    return got


def cut_all(cluster, scripts: list[Counting]) -> None:
    """Cuts each connection between two processes of a cluster and its scripts."""
    pids = [pid for name, pid in cluster.listed().items() if name != "supervisor"] + [script.pid for script in scripts]
    for one, other in itertools.combinations(pids, 2):
        for end in between(one, other):
            with end, suppress(OSError):  # it may have ended meanwhile
                end.shutdown(socket.SHUT_RDWR)


REPEATED = {  # what causes it, how many seconds after the last time, for how long
    "every connection is cut, each second for a minute": (cut_all, 1, 60),
    "controller killed every 20 s for 5 minutes": (kill("controller"), 20, 300),
}


def repeated(cause: Callable, pause: float, whole: float) -> list[dict]:
    """Causes a fault again and again, and returns what two scripts say of each time."""
    got, end = [], time.monotonic() + whole
    with up()() as cluster, Counting(cluster.start) as one, Counting(cluster.start) as other:
        while (begun := time.monotonic()) < end:
            cause(cluster, [one, other])
            got += [script.after(begun) for script in (one, other)]
            if got[-1]["errors"] or got[-2]["errors"]:
                raise Ended(f"the scripts failed: {got[-2:]}")
            time.sleep(max(0, begun + pause - time.monotonic()))
    print(f"{len(got) // 2} times, {sum(one['steps'] for one in got)} steps", flush=True)
    return got


def of_clients(rounds: int) -> list[dict]:
    """Kills scripts that have all devices while another one waits for them."""
    got = []
    with up(*LEASE)() as cluster:

        def queued() -> list:
            return json.loads(command("queue", "--json", "--dir", str(cluster.dir)).stdout)

        has = cluster.start(HOLDER)
        hear(has)
        try:
            for _ in range(rounds):
                wants = cluster.start(HOLDER)
                until("the other to wait", queued)
                begun = time.monotonic()
                os.kill(has.pid, signal.SIGKILL)
                got.append({"seconds": float(hear(wants)) - begun, "errors": [], "heard": []})
                fresh.end([has])
                has = wants
        finally:
            fresh.end([has])
    return got


def seen(got: list[dict]) -> str:
    """What a script got and heard, each kind once; it did so in each round or in some."""
    errors = dict.fromkeys(error for one in got for error in one["errors"])
    kinds = dict.fromkeys(kind for one in got for kind, _ in one["heard"])
    said = [f"`{error}`" for error in errors] + [f"*{kind}*" for kind in kinds]
    return ", ".join(said) or "nothing"


def seconds(value: float) -> str:
    return f"{value * 1e3:.0f} ms" if value < 0.1 else f"{value:.2f} s" if value < 9.95 else f"{value:.1f} s"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9, help="how often each fault is caused (default %(default)s)")
    parser.add_argument("--only", default="", help="only faults whose names hold this")
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder to write to (default out)")
    said = parser.parse_args()
    found = {}
    calls = {fault.name: lambda fault=fault: measured(fault, said.rounds) for fault in FAULTS}
    calls[CLIENT_KILLED] = lambda: of_clients(said.rounds)
    calls |= {name: lambda of=of: repeated(*of) for name, of in REPEATED.items()}
    for name, call in calls.items():
        if said.only in name:
            found[name] = got = call()
            print(f"{name}: {', '.join(seconds(one['seconds']) for one in got)}; {seen(got)}", flush=True)
    said.out.mkdir(parents=True, exist_ok=True)
    (said.out / "faults.json").write_text(json.dumps(found, indent=1) + "\n")
    rows = []
    for name, got in found.items():
        times = [one["seconds"] for one in got]
        rows.append([name, seen(got), seconds(statistics.median(times)), seconds(max(times))])
    print("\n" + table(["fault", "the script sees", "median", "worst"], rows))
    came = {name: [t for one in got for t in one.get("came", ())] for name, got in found.items()}
    rows = [[name, seconds(statistics.median(ts)), seconds(max(ts))] for name, ts in came.items() if ts]
    if rows:
        print("\n" + table(["fault, from when the other worker has come", "median", "worst"], rows))
    usual = [one["usual"] for got in found.values() for one in got if "usual" in one]
    if usual:
        print(f"\nA step without a fault takes {statistics.median(usual) * 1e3:.2f} ms.")


if __name__ == "__main__":
    sides.run(main, Ended)
