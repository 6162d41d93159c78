"""A sharded device_put: how long one takes that is waited for, over 8 devices of 4 workers.

    python tests/bench/puts.py                      rows of 4 bytes, 1 and 16 KiB, 1 MiB
    python tests/bench/puts.py --other ../older     beside another version by turns: a checkout of it that is built

It prints microseconds a call, processor time of all processes and switches of their threads, and what part of the other
version's they are; medians of the rounds.
"""

import argparse
import contextlib
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import orphans  # noqa: E402
import sides  # noqa: E402

WORKERS, DEVICES = 4, 2
ROW = {"4 B": 1, "1 KiB": 256, "16 KiB": 4 << 10, "1 MiB": 256 << 10}  # elements of float32
ROUNDS, SECONDS = 15, 0.2


def serve(directory):
    """Answers for the process that calls device_put, in the cluster that was started with the directory."""
    stream = sides.answers()
    import pathways  # noqa: F401, I001
    import jax
    import numpy as np

    rows = jax.NamedSharding(jax.make_mesh((WORKERS * DEVICES,), ("d",)), jax.P("d"))

    def answer(elements, calls):
        host = np.ones((WORKERS * DEVICES, elements), np.float32)
        before, begin = used(directory), time.perf_counter()
        for _ in range(calls):
            jax.device_put(host, rows).block_until_ready()
        seconds, after = time.perf_counter() - begin, used(directory)
        return {"seconds": seconds, "processor": after[0] - before[0], "switches": after[1] - before[1]}

    sides.serve(stream, answer)


def used(directory):
    """The seconds of processor time that the processes of a cluster have had, and how often their threads slept."""
    seconds = switches = 0
    for number in orphans.started_with("TMPDIR", directory):
        with contextlib.suppress(OSError):  # it has ended
            for task in Path(f"/proc/{number}/task").iterdir():
                seconds += int((task / "schedstat").read_text().split()[0]) / 1e9
                switches += int((task / "status").read_text().partition("\nvoluntary_ctxt_switches:")[2].split()[0])
    return seconds, switches


def started(stack, checkout):
    """Starts a cluster of the version in a checkout, and a process that calls device_put there."""
    directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-"))
    env = os.environ | {"PYTHONPATH": str(checkout / "python"), "TMPDIR": directory}
    for name in ("PATHWAYS_DEVICES", "PATHWAYS_ADDRESS"):
        env.pop(name, None)
    up = ["up", "--workers", str(WORKERS), "--devices", str(DEVICES), "--dir", directory, "--"]
    own = [sys.executable, HERE / "puts.py", "--serve", directory]
    side = sides.Side([sys.executable, "-m", "pathways_command", *up, *own], env)
    stack.callback(side.close)
    return side


def measure(running, elements):
    """Returns by version what each round said of a call."""
    calls, said = {}, {name: [] for name in running}
    for name, side in running.items():
        side.ask(elements=elements, calls=100)
        calls[name] = max(10, round(SECONDS / (side.ask(elements=elements, calls=20)["seconds"] / 20)))
    for i in range(ROUNDS):
        for name in list(running)[:: 1 if i % 2 else -1]:
            got = running[name].ask(elements=elements, calls=calls[name])
            said[name].append({part: value / calls[name] for part, value in got.items()})
    return said


def line(rounds, others):
    middle = {part: statistics.median(one[part] for one in rounds) for part in rounds[0]}
    text = f"{middle['seconds'] * 1e6:7.0f} µs, processors {middle['processor'] * 1e6:7.0f} µs, "
    text += f"{middle['switches']:5.1f} switches"
    for part in ("seconds", "processor") if others else ():
        ratios = sorted(one[part] / other[part] for one, other in zip(rounds, others, strict=True))
        text += f"; {statistics.median(ratios):.2f} [{ratios[0]:.2f} – {ratios[-1]:.2f}] of the other's {part}"
    return text


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--other", type=Path, help="a checkout of another version that is built")
    options.add_argument("--rows", default=",".join(ROW), help="which sizes of rows")
    options.add_argument("--serve", help=argparse.SUPPRESS)
    asked = options.parse_args()
    if asked.serve:
        serve(asked.serve)
        return
    with contextlib.ExitStack() as stack:
        checkouts = {"this": HERE.parents[1]} | ({"other": asked.other.resolve()} if asked.other else {})
        running = {name: started(stack, path) for name, path in checkouts.items()}
        for side in running.values():
            side.hear()
        for row in asked.rows.split(","):
            said = measure(running, ROW[row])
            for name, rounds in said.items():
                others = said.get("other") if name == "this" else None
                print(f"rows of {row:>6}, {name:5}: {line(rounds, others)}", flush=True)


if __name__ == "__main__":
    main()
