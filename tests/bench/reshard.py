"""How fast weights go from a slice of workers to another of different layout, beside memcpy and a plain TCP stream.

    python tests/bench/reshard.py                   256 MiB and 1 GiB, by shared memory and by TCP: some four minutes
    python tests/bench/reshard.py --quick           256 MiB, fewer rounds: some one and a half
    python tests/bench/reshard.py --ways shm --sizes 256 --workers 2

`run.py --only reshard` is the same as a part of `make bench`, without these options but for --quick.

The weights lie on the first half of the workers, cut along their rows (fsdp), and go to the second half, cut along
their columns (tp). They are one array, or thirty. In each round every way of moving them and every reference is taken
once, so that whatever else the machine does slows all of them alike, in random order, since a rotating one has the same
way after the same other, with what that leaves in the caches; a ratio is taken within a round, and the table shows the
median of a row's ratios with the lowest and highest. The references move the same bytes:

* memcpy: one thread a processor copies its part into memory that was written before.
* stream: one process sends the bytes to another over one TCP connection on loopback, out of and into memory that was
  written before.

"cold" is the first call, whose destination has no memory yet. Processor time and page faults are those of all
processes of the cluster together, the client's too, per byte that moves. It writes out/reshard.json, and the table of
docs/guides/reshard.md to out/reshard.md, which it prints at the end.
"""

import argparse
import itertools
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "cluster")]

import fresh  # noqa: E402
import sides  # noqa: E402
from cluster import verdict  # noqa: E402
from page import table  # noqa: E402
from processes import COMMAND, Cluster, command, until  # noqa: E402

WORKERS = 8
WAYS = {"shm": "shared memory", "tcp": "TCP"}
SIZES, QUICK = (256, 1024), (256,)  # MiB
ARRAYS = (1, 30)
TARGETS = {"shm": ("memcpy", 0.7), "tcp": ("stream", 0.9)}  # the part of its speed that is wanted

CLIENT = """
import json, sys, time
import jax, numpy as np
import pathways
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

half = len(jax.devices()) // 2
rows = NamedSharding(Mesh(np.array(jax.devices()[:half]), ("fsdp",)), P("fsdp", None))
columns = NamedSharding(Mesh(np.array(jax.devices()[half:]), ("tp",)), P(None, "tp"))


def values(first, n):  # unlike each other; random numbers of 1 GiB would take longer than all the rest
    row, column = (jax.lax.broadcasted_iota("uint32", (n, 4096), k) for k in range(2))
    return (((first + row) * 4096 + column) * np.uint32(2654435761) >> 8).astype("float32")


make = jax.jit(values, static_argnums=1, out_shardings=rows)
ways = {
    "device_put": lambda tree: jax.device_put(tree, columns),
    "reshard": lambda tree: pathways.reshard(tree, columns),
}
weights = moved = None
for line in sys.stdin:
    asked = json.loads(line)
    if "rows" in asked:
        weights = moved = None
        weights = [make(np.uint32(i << 12), n) for i, n in enumerate(asked["rows"])]
        jax.block_until_ready(weights)
        print(flush=True)
        continue
    moved = None  # as a learner drops the weights before the last ones
    begin = time.perf_counter()
    moved = jax.block_until_ready(ways[asked["way"]](weights))
    print(time.perf_counter() - begin, flush=True)
    if asked.get("check"):
        for a, b in zip(weights, moved):
            assert np.array_equal(np.asarray(a), np.asarray(b))
        print(flush=True)
"""

MEMCPY = """
import sys, threading, time
import numpy as np

size, threads = int(sys.argv[1]), int(sys.argv[2])
parts = [(np.ones(size // threads, np.uint8), np.ones(size // threads, np.uint8)) for _ in range(threads)]
print(flush=True)
for _ in sys.stdin:
    begin = time.perf_counter()
    running = [threading.Thread(target=np.copyto, args=part) for part in parts]
    for t in running:
        t.start()
    for t in running:
        t.join()
    print(time.perf_counter() - begin, flush=True)
"""

STREAM = """
import socket, sys, time
import numpy as np

size, chunk = int(sys.argv[1]), 1 << 20
data = memoryview(np.ones(size, np.uint8))
if sys.argv[2] == "sends":
    s = socket.create_connection(("127.0.0.1", int(sys.argv[3])))
    while s.recv(1):
        for at in range(0, size, chunk):
            s.sendall(data[at : at + chunk])
else:
    s = socket.create_server(("127.0.0.1", 0))
    print(s.getsockname()[1], flush=True)
    s, _ = s.accept()
    for _ in sys.stdin:
        begin = time.perf_counter()
        s.sendall(b"x")
        got = 0
        while got < size:
            got += s.recv_into(data[got : got + chunk])
        print(time.perf_counter() - begin, flush=True)
"""


class Side:
    """A process that does what a line asks, and answers with the seconds that it took."""

    def __init__(self, code, *arguments):
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.first = self.process.stdout.readline()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.wait()

    def __call__(self):
        return float(ask(self.process, ""))


def ask(process, line):
    print(line, file=process.stdin, flush=True)
    answer = process.stdout.readline()
    if not answer:
        raise RuntimeError(f"a process of the benchmark ended with {process.wait()}")
    return answer


class Stream(Side):
    def __init__(self, size):
        super().__init__(STREAM, size, "receives")
        self.sender = subprocess.Popen([sys.executable, "-c", STREAM, str(size), "sends", self.first.strip()])

    def __exit__(self, *error):
        super().__exit__(*error)
        self.sender.wait()


class Tcp:
    """A cluster whose processes reach each other by TCP alone."""

    def __init__(self, workers):
        self.stack, self.env, self.processes = ExitStack(), {}, {}
        self.workers = workers

    def __enter__(self):
        self.env = {"PATHWAYS_DIR": self.stack.enter_context(tempfile.TemporaryDirectory())}
        with socket.create_server(("127.0.0.1", 0)) as s:
            self.address = f"tcp:127.0.0.1:{s.getsockname()[1]}"
        self.serve("controller", "--listen", self.address, "--silence", "60s")
        for i in range(self.workers):
            self.serve(
                "worker",
                "--address",
                self.address,
                "--listen",
                "tcp:127.0.0.1:0",
                "--name",
                f"w{i}",
                "--devices",
                "1",
                "--silence",
                "60s",
            )
        until("workers", lambda: self.status().count(" × cpu") == self.workers)
        return self

    def serve(self, *arguments):
        process = subprocess.Popen(
            [*COMMAND, *arguments],
            env=fresh.environment(env={"PATHWAYS_DEVICES": "", **self.env}),
            stdin=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )

        def end():
            process.terminate()
            process.wait()

        self.processes[f"{arguments[0]} {len(self.processes)}"] = process.pid
        self.stack.callback(end)

    def status(self):
        return command("status", "--address", self.address, env=self.env, check=False).stdout

    def __exit__(self, *error):
        self.stack.__exit__(*error)

    def environment(self):
        return {"PATHWAYS_ADDRESS": self.address, "PATHWAYS_DEVICES": "", **self.env}

    def start(self, code):
        return fresh.start(code, env=self.environment())


def cluster_of(way, workers):
    """A cluster of workers of one device each, which reach each other by shared memory or by TCP alone."""
    return Cluster(workers, 1, "--silence", "60s") if way == "shm" else Tcp(workers)


def used(pids):
    """The processor time, in seconds, and the page faults that processes have taken."""
    fields = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids]
    return (sum(int(f[11]) + int(f[12]) for f in fields) / os.sysconf("SC_CLK_TCK"), sum(int(f[7]) for f in fields))


def measure(way, workers, mib, arrays, rounds):
    """One row for each call that moves the weights."""
    size = mib << 20
    each = mib * 64 // arrays // 64 * 64  # rows of 16 KiB, which every number of workers divides
    rows = [each] * (arrays - 1) + [mib * 64 - each * (arrays - 1)]
    calls = {
        name: {"seconds": [], "memcpy": [], "stream": [], "processor": 0, "faults": 0}
        for name in ("device_put", "reshard")
    }
    with (
        cluster_of(way, workers) as cluster,
        Side(MEMCPY, size, os.cpu_count()) as memcpy,
        Stream(size) as stream,
        cluster.start(CLIENT) as client,  # which ends with its input
    ):
        pids = [*cluster.processes.values(), client.pid]
        ask(client, json.dumps({"rows": rows}))
        references = {"memcpy": memcpy, "stream": stream}
        for reference in references.values():
            reference()
        for name, call in calls.items():
            call["cold"] = float(ask(client, json.dumps({"way": name, "check": True})))
            client.stdout.readline()
            ask(client, json.dumps({"way": name}))
        any_order = random.Random(0)
        for _ in range(rounds):
            took = {}
            for name in any_order.sample([*calls, *references], len(calls) + len(references)):
                if name in references:
                    took[name] = references[name]()
                    continue
                before = used(pids)
                took[name] = float(ask(client, json.dumps({"way": name})))
                after = used(pids)
                calls[name]["processor"] += after[0] - before[0]
                calls[name]["faults"] += after[1] - before[1]
            for name, call in calls.items():
                call["seconds"].append(took[name])
                for reference in references:
                    call[reference].append(took[reference])
    return [row(way, workers, mib, arrays, name, call, rounds) for name, call in calls.items()]


def row(way, workers, mib, arrays, name, call, rounds):
    size = mib << 20
    speeds = {part: size / statistics.median(call[part]) / 1e9 for part in ("seconds", "memcpy", "stream")}
    ratios = {
        part: sorted(b / a for a, b in zip(call["seconds"], call[part], strict=True)) for part in ("memcpy", "stream")
    }
    out = {"way": way, "workers": workers, "MiB": mib, "arrays": arrays, "call": name, "GB/s": speeds, "ratios": ratios}
    out["ns a byte"] = call["processor"] / rounds / size * 1e9
    out["faults a MiB"] = call["faults"] / rounds / mib
    out["cold GB/s"] = size / call["cold"] / 1e9
    beside, least = TARGETS[way]
    out["targets"] = [(f"≥ {least} × {beside}", statistics.median(ratios[beside]) >= least)]

    def ratio(part):
        return f"{statistics.median(ratios[part]):.2f} ({ratios[part][0]:.2f}–{ratios[part][-1]:.2f})"

    print(
        f"{way:3} {workers} workers {mib:5} MiB in {arrays:2}, {name:10}: {speeds['seconds']:5.2f} GB/s, of memcpy "
        f"{ratio('memcpy')} [{speeds['memcpy']:.1f}], of a stream {ratio('stream')} [{speeds['stream']:.1f}]; "
        f"{out['ns a byte']:.2f} ns a byte, {out['faults a MiB']:.1f} faults a MiB; cold {out['cold GB/s']:.2f} GB/s"
        f"{verdict(out['targets'])}",
        flush=True,
    )
    return out


def weights(mib, arrays):
    return f"{mib:,} MiB in {arrays} array{'s' * (arrays > 1)}"


def page(rows):
    """A table of what was measured; medians, with the lowest and highest round."""

    def ratio(row, part):
        got = row["ratios"][part]
        return f"{statistics.median(got):.2f} ({got[0]:.2f} – {got[-1]:.2f})"

    heads = ["by", "weights", "call", "GB/s", "of memcpy", "of a TCP stream"]
    lines = []
    for row in rows:
        speed = f"{row['GB/s']['seconds']:.2f}"
        lines.append([WAYS[row["way"]], weights(row["MiB"], row["arrays"]), f"`{row['call']}`", speed])
        lines[-1] += [ratio(row, "memcpy"), ratio(row, "stream")]
    return table(heads, lines)


def run(quick, chosen, had, keep, *, ways=WAYS, sizes=None, arrays=ARRAYS, workers=WORKERS, rounds=None):
    """Measures and prints the chosen rows that are not among those had before; returns the results.

    keep(results) is called after each pair of rows.
    """
    out = {"rows": had.get("rows", [])}
    done = {(row["way"], row["MiB"], row["arrays"]) for row in out["rows"]}
    print("resharding")
    for asked in itertools.product(ways, sizes or (QUICK if quick else SIZES), arrays):
        way, mib, number = asked
        if asked in done or not chosen(f"{weights(mib, number)} by {WAYS[way]}, resharding"):
            continue
        out["rows"] += measure(way, workers, mib, number, rounds or (5 if quick else 11))
        keep(out)
    return out


def write(rows, folder):
    """Writes the table for the page."""
    rows = sorted(rows, key=lambda row: (row["way"], row["MiB"], row["arrays"]))  # after --resume
    (folder / "reshard.md").write_text(page(rows) + "\n")


def main():
    def numbers(text):
        return tuple(map(int, text.split(",")))

    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--sizes", type=numbers, help="MiB of weights")
    options.add_argument("--workers", type=int, default=WORKERS)
    options.add_argument("--ways", type=lambda text: text.split(","), default=WAYS)
    options.add_argument("--arrays", type=numbers, default=ARRAYS)
    options.add_argument("--rounds", type=int)
    options.add_argument("--quick", action="store_true")
    asked = vars(options.parse_args())
    rows = run(asked.pop("quick"), lambda name: True, {}, lambda results: None, **asked)["rows"]
    out = HERE.parents[1] / "out"
    out.mkdir(exist_ok=True)
    (out / "reshard.json").write_text(json.dumps(rows, indent=1))
    write(rows, out)
    print(page(rows))


if __name__ == "__main__":
    sides.run(main)
