"""Where the processors' time goes in a collective, beside the same copies in C.

For each collective, count of workers and size: milliseconds of a call, of the workers' processor time, of the client's
and the controller's, of threads of the workers that could run but had no processor (queued), and in which a processor
was idle: ours / those of the program of C, which take turns; medians. And what the four wake-ups of a call take alone
(peers/wakes.c). It takes some three minutes; nothing else should run.

    python tests/bench/processors.py [--rounds N]
"""

import argparse
import collections
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

import cluster  # noqa: E402
import collectives  # noqa: E402
import page  # noqa: E402
import sides  # noqa: E402

KIB, MIB = 1 << 10, 1 << 20
MANY = [
    *(("AllReduce", size) for size in (MIB, 16 * MIB)),
    *(("AllToAll", size) for size in (MIB, 16 * MIB)),
    ("ReduceScatter", 64 * MIB),
]
ROWS = {
    2: [
        *(("AllToAll", size) for size in (4 * KIB, 64 * KIB, MIB, 16 * MIB, 64 * MIB)),
        *(("ReduceScatter", size) for size in (4 * KIB, 64 * KIB, MIB, 16 * MIB, 64 * MIB)),
        *(("AllReduce", size) for size in (MIB, 16 * MIB, 64 * MIB)),
        *(("AllGather", size) for size in (MIB, 64 * MIB)),
    ],
    4: MANY,
    8: MANY,
}
SECONDS = 0.3  # a turn
PARTS = ("seconds", "ran", "others", "queued")
HEADS = ("collective", "workers", "bytes", "a call", "of workers", "of client, controller", "queued", "idle")


def is_worker(number):
    return b"\0worker\0" in pathlib.Path(f"/proc/{number}/cmdline").read_bytes()


def used(numbers):
    """Returns the seconds that threads ran, and those in which they could have (schedstat)."""
    ran = queued = 0
    for number in numbers:
        for task in pathlib.Path(f"/proc/{number}/task").iterdir():
            try:
                words = (task / "schedstat").read_text().split()
            except (FileNotFoundError, ProcessLookupError):  # a thread that has ended
                continue
            ran, queued = ran + int(words[0]) / 1e9, queued + int(words[1]) / 1e9
    return ran, queued


class Ours:
    """Asks ours, and adds what its processes took."""

    def __init__(self, side):
        self.side = side
        numbers = sides.processes([side])
        self.workers = [number for number in numbers if is_worker(number)]
        self.others = [number for number in numbers if number not in self.workers]

    def ask(self, calls, **asked):
        before = *used(self.workers), *used(self.others)
        answer = self.side.ask(calls=calls, **asked)
        ran, queued, others, _ = (
            now - then for now, then in zip((*used(self.workers), *used(self.others)), before, strict=True)
        )
        share = calls / (calls + 1)  # the process makes one call before it counts
        return {"seconds": answer["seconds"], "ran": ran * share, "queued": queued * share, "others": others * share}


def measure(systems, operation, size, rounds):
    """Returns for each system the medians of the milliseconds of a call, by part."""
    asked = {"operation": operation, "size": size}
    calls = max(2, round(SECONDS / systems["ours"].ask(calls=4, **asked)["seconds"] * 4))
    turns = collections.defaultdict(list)
    for _ in range(rounds):
        for system, side in systems.items():
            answer = side.ask(calls=calls, **asked)
            turns[system].append([answer.get(part, 0) / calls * 1e3 for part in PARTS])
    return {system: [statistics.median(part) for part in zip(*of, strict=True)] for system, of in turns.items()}


def wakes(calls=5000):
    """Returns, by count of workers, the milliseconds of the wake-ups of a call in C: to the workers and back."""
    with tempfile.TemporaryDirectory() as directory:
        program = pathlib.Path(directory, "wakes")
        subprocess.run(["cc", "-O2", "-o", program, cluster.PEERS / "wakes.c"], check=True)

        def seconds(workers):
            return float(subprocess.run([program, str(workers), str(calls)], check=True, stdout=subprocess.PIPE).stdout)

        return {workers: seconds(workers) / calls * 1e3 for workers in ROWS}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7, metavar="N", help="turns of each system (default 7)")
    rounds = parser.parse_args().rounds
    processors = len(os.sched_getaffinity(0))
    cells = []
    for workers, rows in ROWS.items():
        with cluster.started(("ours", collectives.PASSES), workers, collectives.command) as (running, _, missing):
            for why in missing.values():
                raise sides.Ended(why)
            systems = {"ours": Ours(running["ours"]), "in C": running[collectives.PASSES]}
            for operation, size in rows:
                took = measure(systems, operation, size, rounds)
                idle = {
                    system: max(0, processors * call - ran - others) for system, (call, ran, others, _) in took.items()
                }
                (call, ran, others, queued), in_c = took["ours"], took["in C"]
                digits = 2 if call < 5 else 1
                pairs = ((call, in_c[0]), (ran, in_c[1]), (others,), (queued, in_c[3]), (idle["ours"], idle["in C"]))
                numbers = [" / ".join(f"{n:.{digits}f}" for n in pair) for pair in pairs]
                cells.append([operation, str(workers), collectives.bytes_said(size), *numbers])
                print(*(f"{cell:>15}" for cell in cells[-1]), flush=True)
    print(f"\n{page.table(HEADS, cells)}")
    for workers, took in wakes().items():
        print(f"four wake-ups with {workers} workers, in C: {took:.3f} ms")


if __name__ == "__main__":
    sides.run(main)
