"""Draws steps of training over two islands: when they compute, and when gradients are on the line between them.

    python tests/bench/overlap.py [PICTURE]         # docs/collectives/overlap.png

It needs root, for the line of slow.py, and takes half a minute. What it says of the steps stands on docs/collectives.
"""

import json
import pathlib
import subprocess
import sys
import tempfile
from contextlib import ExitStack

import matplotlib

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

import fresh  # noqa: E402
import slow  # noqa: E402

matplotlib.use("Agg")
from matplotlib import pyplot  # noqa: E402

RATE = 1000  # megabits a second: gradients are on the line for a third to a half of a step
STEPS = 2
LONG = 1 << 16  # bytes of a transfer that is gradients
COLORS = {"forward": "#56B4E9", "backward": "#0072B2", "update": "#E69F00"}
SAME = {"chunks": "backward"}  # one layer's gradients are cut while the next one's backward runs
SENT = "#D55E00"

TRAIN = """
import argparse, json, sys
path, models, steps, late, sizes = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4] == "late", sys.argv[5]
sys.path.insert(0, models)
import jax, pathways, training, two_islands

args = argparse.Namespace(**json.loads(sizes), heads=4, seed=0)
pathways.init(devices=2)
meshes = two_islands.divide(jax.devices())
params, states = two_islands.begin(meshes, args)
batches = training.windows(args, extra=1)
train = two_islands.train(meshes, params, states, batches, 3e-3, args.chunk, late)
for _ in range(3):
    jax.block_until_ready((next(train), params, states))
with pathways.trace(path):
    for _ in range(steps):
        next(train)
    jax.block_until_ready((params, states))
"""


def traced(islands, way):
    """Returns the events of a trace of some steps."""
    with tempfile.TemporaryDirectory() as directory:
        path = pathlib.Path(directory, "trace.json")
        asked = [path, slow.EXAMPLE.parent, STEPS, way, json.dumps(slow.SIZES)]
        subprocess.run(
            [*islands.places[0], sys.executable, "-c", TRAIN, *map(str, asked)],
            env=fresh.environment(env={"PATHWAYS_DEVICES": "", **islands.env}),
            check=True,
        )
        return json.loads(path.read_text())["traceEvents"]


def rows(events):
    """Returns for each worker its computations and its transfers, each a list of (name, begin, end) in seconds.

    A worker's bar of a transfer begins when it expects the bytes, which may be long before they can be sent. So a
    transfer begins here with the last of its workers: before that, none of its bytes is on the line.
    """
    moves = [e for e in events if e["ph"] == "X" and e.get("cat") == "move" and e["name"] == "transfer"]
    starts = {}  # of transfers, by gang
    for e in moves:
        starts[e["args"]["gang"]] = max(starts.get(e["args"]["gang"], 0), e["ts"])
    names = {e["pid"]: e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "process_name"}
    found = {}
    for e in events:
        if e["ph"] != "X" or e.get("cat") not in ("gang", "move"):
            continue
        bar = e["name"].removeprefix("jit_"), e["ts"] / 1e6, (e["ts"] + e["dur"]) / 1e6
        computed, sent = found.setdefault(names[e["pid"]], ([], []))
        if e["cat"] == "gang":
            computed.append(bar)
        elif e["name"] == "transfer" and e["args"]["bytes"] >= LONG:
            sent.append((bar[0], min(starts[e["args"]["gang"]] / 1e6, bar[2]), bar[2]))
    return found


def union(bars):
    """Returns the spans of time that bars cover, as (begin, end)."""
    spans = []
    for _, begin, end in sorted(bars, key=lambda bar: bar[1]):
        if spans and begin <= spans[-1][1]:
            spans[-1] = spans[-1][0], max(end, spans[-1][1])
        else:
            spans.append((begin, end))
    return spans


def hidden(computed, sent):
    """Returns how much of the time in which something was sent something was computed, too."""
    both = sum(max(0, min(b, d) - max(a, c)) for a, b in union(computed) for c, d in union(sent))
    return both / sum(end - begin for begin, end in union(sent))


def draw(axes, workers, title):
    first = min(begin for bars in workers.values() for row in bars for _, begin, _ in row)
    for i, (worker, (computed, sent)) in enumerate(sorted(workers.items())):
        for name, begin, end in computed:
            color = COLORS.get(SAME.get(name, name), "#999999")
            axes.barh(-2 * i, end - begin, left=begin - first, color=color, height=0.8)
        for begin, end in union(sent):
            axes.barh(-2 * i - 0.7, end - begin, left=begin - first, color=SENT, height=0.5)
        share = hidden(computed, sent)
        print(f"{title}: {worker} computes in {share:.0%} of the time in which it sends or receives", flush=True)
    axes.set_yticks([-2 * i - 0.35 for i in range(len(workers))], sorted(workers))
    axes.set_title(title, loc="left", fontsize=10)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)


def main():
    picture = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else slow.HERE.parents[1] / "docs/collectives/overlap.png")
    with ExitStack() as stack:
        islands = slow.Islands(stack, slow.limited(RATE))
        found = {way: rows(traced(islands, way)) for way in slow.WAYS}
    figure, panels = pyplot.subplots(2, 1, figsize=(9, 4.2), sharex=True, layout="constrained")
    titles = ("gradients sent during the backward", "gradients used a step later (--late)")
    for axes, way, title in zip(panels, slow.WAYS, titles, strict=True):
        draw(axes, found[way], title)
    panels[-1].set_xlabel(f"seconds, {STEPS} steps")
    of = [*COLORS.items(), ("gradients on the line", SENT)]
    handles = [pyplot.Rectangle((0, 0), 1, 1, color=color) for _, color in of]
    figure.legend(handles, [name for name, _ in of], loc="outside lower center", ncols=len(of), frameon=False)
    figure.savefig(picture, dpi=110)


if __name__ == "__main__":
    main()
