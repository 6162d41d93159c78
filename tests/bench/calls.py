"""Where the time of a small collective goes whose call is waited for, by a trace.

    python -m pathways up --workers 2 --devices 1 -- python tests/bench/calls.py [--bytes 4096]

For each collective, medians in microseconds: the way of a call from the client through the controller to the worker
that begins first, how much later the last worker begins, and what follows until the client's next call. A call without
the trace, too: what is left between it and the sum is what the trace costs.
"""

import argparse
import itertools
import json
import pathlib
import statistics
import tempfile
import time

import jax
import numpy as np
import page
import pathways
from jax.sharding import NamedSharding, PartitionSpec

CALLS = 500
HEADS = ("", "a call, no trace", "call → sent", "→ first begins", "→ last begins", "→ last is in the collective",
         "→ collective ends", "→ computation ends", "→ next call")  # fmt: skip


def collectives(devices):
    mesh = jax.make_mesh((devices,), ("x",))
    bodies = {
        "add": lambda x: x + 1,
        "AllGather": lambda x: jax.lax.all_gather(x, "x", tiled=True),
        "AllToAll": lambda x: jax.lax.all_to_all(x.reshape(devices, -1), "x", 0, 0),
        "ReduceScatter": lambda x: jax.lax.psum_scatter(x, "x", tiled=True),
    }
    spec = PartitionSpec("x")
    for name, body in bodies.items():
        yield name, jax.jit(jax.shard_map(body, mesh=mesh, in_specs=spec, out_specs=spec)), NamedSharding(mesh, spec)


def call(f, x):
    begin = time.perf_counter()
    f(x).block_until_ready()
    return time.perf_counter() - begin


def parts(path):
    """Returns the times of each call of a trace, in the order of HEADS, in µs; but the first."""
    events = json.loads(path.read_text())["traceEvents"]
    lane = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    calls, sent, ran, met = {}, {}, {}, {}
    for e in (e for e in events if e["ph"] == "X"):
        name, args = lane[e["pid"], e["tid"]], e["args"]
        if name.startswith("calls of"):
            calls[args["operation"]] = e["ts"]
        elif name == "operations":
            sent[args["gang"]] = (args["operation"], e["ts"] + e["dur"])
        else:
            of = met if name.startswith("collectives of") else ran
            of.setdefault(args["gang"], []).append((e["ts"], e["ts"] + e["dur"]))
    begins = sorted(calls.values())
    for gang, (operation, left) in sent.items():
        begun, last = zip(*((min(at), max(at)) for at in zip(*ran[gang], strict=True)), strict=True)
        begin = calls[operation]
        in_it, out_of_it = (max(at) for at in zip(*met.get(gang, [(last[0], last[0])]), strict=True))
        after = next((at for at in begins if at > begin), None)
        if after is not None:
            ways = [begin, left, begun[0], last[0], in_it, out_of_it, last[1], after]
            yield [b - a for a, b in itertools.pairwise(ways)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--bytes", type=int, nargs="+", default=[4 << 10, 64 << 10], help="of a device (4 and 64 KiB)")
    args = parser.parse_args()
    devices, rows = len(jax.devices()), []
    with tempfile.TemporaryDirectory(prefix="calls-") as folder:
        path = pathlib.Path(folder) / "trace.json"
        for size in args.bytes:
            for name, f, sharding in collectives(devices):
                x = jax.device_put(np.ones(devices * size // 4, np.float32), sharding)
                alone = statistics.median([call(f, x) for _ in range(2 * CALLS)][CALLS:])
                with pathways.trace(path):
                    for _ in range(CALLS):
                        call(f, x)
                medians = (statistics.median(at) for at in zip(*parts(path), strict=True))
                rows.append([f"{name}, {size >> 10} KiB", *(f"{at:.0f}" for at in (1e6 * alone, *medians))])
    print(page.table(HEADS, rows))


if __name__ == "__main__":
    main()
