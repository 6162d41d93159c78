"""New weights for samplers: how long an update by `pathways.sync` takes beside other ways, and what training loses.

The weights are thirty arrays of float32, cut along their rows over a trainer's four devices, and go to a sampler's
four, cut along their columns. Each other way takes turns with ours, an update each, and a ratio is taken within a turn:

* sync: `Weights.push`, until `Weights.wait` returns that version; workers reach each other by shared memory, or by TCP.
* memcpy, stream: references, as in reshard.py.
* Ray: four actors put their parts into the object store; four others get all of them, and copy their columns.
* gloo: a trainer's rank that has all of the weights broadcasts array by array, as trainers do that gather for their
  samplers; four ranks receive all and copy their columns. The gathering before it is not counted.
* file: four threads save the parts, four load them and copy their columns. The files stay in the system's cache.

What training loses: an MLP of 256 MiB whose weights are cut over the trainer's devices (fsdp), ten steps with a push
after each by turns with ten steps without. What one push among ten steps costs is less than ten steps differ from each
other; so it is taken as a tenth of what ten pushes cost.
"""

import os
import pathlib
import statistics
import sys
import tempfile
from contextlib import ExitStack

import cluster
import fresh
import reshard
import sides
from page import paragraph, table, verdict

ARRAYS = 30
TRAINERS = SAMPLERS = 4
MIB = (256, 1024)
TITLES = {"memcpy": "memcpy", "stream": "a TCP stream", "ray": "Ray's object store", "gloo": "gloo's broadcast",
          "file": "a file"}  # fmt: skip
TARGETS = {"shm": ("memcpy", 0.7), "tcp": ("stream", 0.9)}
EVERY = 10  # steps of training to a push
SMALL = 8  # MiB that are pushed apart from the trained ones
LOSS = 0.03  # of training's time, at most


def rows_of(mib):
    """The rows of 16 KiB that each array has; four devices divide them."""
    each = mib * 64 // ARRAYS // TRAINERS * TRAINERS
    return [each] * (ARRAYS - 1) + [mib * 64 - each * (ARRAYS - 1)]


class Ours:
    """A cluster of trainer and sampler, whose workers reach each other by shared memory ("shm") or by TCP."""

    def __init__(self, stack, way, rows):
        there = stack.enter_context(reshard.cluster_of(way, TRAINERS + SAMPLERS))
        env = fresh.environment("pathways", env=there.environment())
        self.side = sides.Side([sys.executable, cluster.PEERS / "weights.py", "ours", *map(str, rows)], env)
        stack.callback(self.side.close)
        self.side.hear()

    def __call__(self):
        return self.side.ask()["seconds"]

    def train(self, steps, push):
        return self.side.ask(train=steps, push=push)["seconds"]


class Peer:
    """A process of another system that has the weights; `why` says why there is none."""

    def __init__(self, stack, system, rows):
        python = cluster.PEERS_PYTHON if system in ("ray", "gloo") else pathlib.Path(sys.executable)
        self.why = None if python.exists() else "make bench-peers installs it"
        if self.why is None:
            directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="weights-"))
            env = fresh.environment("jaxlib") | {"TMPDIR": directory}
            self.side = sides.Side([python, cluster.PEERS / "weights.py", system, *map(str, rows)], env)
            stack.callback(self.side.close)
            self.why = self.side.hear().get("left out")

    def __call__(self):
        return self.side.ask()["seconds"]


def updates(mib, rounds):
    """The seconds that updates took, by our way and the other, in turns; and which were left out, and why.

    The others come one after the other, since the memory of all would not do.
    """
    rows, took, missing = rows_of(mib), {}, {}
    for way in TARGETS:
        with ExitStack() as stack:
            ours, took[way] = Ours(stack, way, rows), {}
            for name in TITLES:
                with ExitStack() as inner:
                    other = started(inner, name, mib, rows)
                    if why := getattr(other, "why", None):
                        missing[name] = why
                        continue
                    sides_of = {"ours": ours, "other": other}
                    for side in [ours, other] * 2:  # the first takes memory
                        side()
                    took[way][name] = seconds = {"ours": [], "other": []}
                    for i in range(rounds):
                        for side in list(sides_of)[:: 1 if i % 2 else -1]:
                            seconds[side].append(sides_of[side]())
    return took, missing


def started(stack, name, mib, rows):
    if name == "memcpy":
        return stack.enter_context(reshard.Side(reshard.MEMCPY, mib << 20, os.cpu_count()))
    if name == "stream":
        return stack.enter_context(reshard.Stream(mib << 20))
    return Peer(stack, name, rows)


def training(rounds):
    """The seconds of ten steps without pushes, and with a push after each, by turns."""
    took = {"alone": [], "push": []}
    with ExitStack() as stack:
        ours = Ours(stack, "shm", rows_of(SMALL))
        ours.train(2, True)  # compiles
        for i in range(rounds):
            for name in list(took)[:: 1 if i % 2 else -1]:
                took[name].append(ours.train(EVERY, name == "push"))
    return took


def measure(quick):
    rounds = 5 if quick else 9
    out = {"updates": {}, "left out": {}}
    for mib in MIB[:1] if quick else MIB:
        out["updates"][mib], missing = updates(mib, rounds)
        out["left out"] |= missing
        for way, (reference, target) in TARGETS.items():
            times = ratio(out["updates"][mib], way, reference)
            print(f"weights of {mib} MiB, {way}: {times:.2f} of {TITLES[reference]} (target {target})", flush=True)
    out["training"] = training(3 if quick else 9)
    print(f"a push after each step: {lost(out['training']):+.1%} of training's time", flush=True)
    return out


def ratio(took, way, other):
    """How many times as fast as another way ours is."""
    seconds = took[way][other]
    return statistics.median(b / a for a, b in zip(seconds["ours"], seconds["other"], strict=True))


def lost(took):
    """What part of training's time pushes after each step take."""
    return statistics.median(b / a - 1 for a, b in zip(took["alone"], took["push"], strict=True))


def page(data):
    text = ["## Weights from a trainer to a sampler", ""]
    text += paragraph(
        f"A trainer's {TRAINERS} workers have {ARRAYS} arrays of float32, split by rows. A push of"
        f" [`pathways.sync`](../guides/weights.md), which is waited for, brings them to a sampler's {SAMPLERS} workers,"
        " split by columns. The table shows GB/s, and how many times as fast as each of the others that is, within a"
        " turn; medians."
    )
    heads = ["", "GB/s", *(f"of {title}" for title in TITLES.values())]
    rows, verdicts = [], []
    for mib, took in data["updates"].items():
        speed = {way: (int(mib) << 20) / statistics.median(got["memcpy"]["ours"]) / 1e9 for way, got in took.items()}
        for way, (reference, target) in TARGETS.items():
            name = f"{int(mib):,} MiB by {'shared memory' if way == 'shm' else 'TCP'}"
            times = {other: ratio(took, way, other) for other in TITLES if other in took[way]}
            cells = [f"{times[other]:.2f}" if other in times else "–" for other in TITLES]
            rows.append([name, f"{speed[way]:.2f}", *cells])
            said = f"{name}: {times[reference]:.2f} of {TITLES[reference]} (target {target})"
            verdicts.append(verdict(said, times[reference] >= target))
    text += [table(heads, rows), ""]
    part = lost(data["training"])
    alone = statistics.median(data["training"]["alone"]) / EVERY
    said = (
        f"Training of 256 MiB of weights ({alone:.2f} s a step) with a push after each step takes {part:+.1%}, so with"
        f" one every {EVERY} steps {part / EVERY:+.1%} (target {LOSS:.0%})"
    )
    text += [*verdicts, verdict(said, part / EVERY <= LOSS)]
    text += [f"- {TITLES[name]} is left out: {why}" for name, why in data["left out"].items()]
    return [*text, ""]
