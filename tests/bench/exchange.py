"""Two islands beside one of twice the size, at about the paper's ratio of sending to computing (its figure 12).

All train the decoder of examples/models/two_islands.py. The two islands are on hosts of their own, joined by a line of
slow.py; the one island has its two workers on one host. Each worker has two devices, since XLA multiplies with other
routines in programs of one device, which take some percent longer here. The command line
`exchange.py SIZES ISLANDS` is that of a process that trains on one or two islands whenever it is asked to.
"""

import argparse
import itertools
import json
import math
import os
import pathlib
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack

HERE = pathlib.Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "cluster")]

import fresh  # noqa: E402
import hosts  # noqa: E402
import programs  # noqa: E402
import sides  # noqa: E402
import slow  # noqa: E402
from page import paragraph, table, undecided, verdict  # noqa: E402

DEVICES = 2  # of a worker
SIZES = slow.SIZES | {"devices": 2 * DEVICES, "batch": 144, "accumulate": 9}  # parts of a batch of slow.py
RATE = 1000  # megabits a second of the line
ROUNDS, STEPS = 16, 1  # turns of each way, and the steps of one that are timed
WAYS = {"one": "one island of four devices", "during": "sent during the backward", "late": "used a step later"}
APART = (
    "The table above had 5,226 tokens a second with nothing to limit the line, on 26 November, when the machine was"
    " about [twice as fast](#table-1-tokens-a-second). Steps differ, too (16 sequences on islands of one device there,"
    " 144 of two here), but explain little: at 5,226 tokens a second two processors have at most 0.38 ms for a token,"
    " and here a token took 0.60 to 0.63 ms of processor time, on the AMD EPYC two days later as on an Intel Xeon."
)
TARGETS = {"during": 0.97, "late": 0.99}  # of the one island's speed


def serve():
    """Answers how long steps took, from the losses of one to those of a later one."""
    # Here alone, since the examples have modules with the names of some of this folder.
    sys.path.insert(0, str(slow.EXAMPLE.parent))
    import jax
    import numpy as np
    import pathways
    import training
    import two_islands
    from jax.sharding import Mesh

    stream, args = sides.answers(), argparse.Namespace(**json.loads(sys.argv[1]), heads=4, seed=0)
    pathways.init(devices=args.devices)
    devices = jax.devices()
    meshes = [Mesh(np.array(devices), "data")] if sys.argv[2] == "1" else two_islands.divide(devices)
    params, states = two_islands.begin(meshes, args)
    batches = training.windows(args, extra=1)

    def train(steps, late):
        before = late + 1  # a step whose gradients are late needs those of the one before
        chosen = itertools.islice(batches, before + steps)
        losses = two_islands.train(meshes, params, states, chosen, 3e-3, args.chunk, late, args.accumulate)
        for _ in range(before):
            jax.block_until_ready(next(losses))
        begun = time.perf_counter()
        *_, last = losses
        jax.block_until_ready(last)
        took = time.perf_counter() - begun
        jax.block_until_ready((params, states))  # so that nothing of this turn runs in the next one
        return {"seconds": took / steps}

    sides.serve(stream, train)


def measure(quick):
    """Returns what a step took in each turn, {way: [[seconds, seconds of processor time], …]}, or None where there can
    be no such hosts."""
    if not hosts.may_make_networks():
        return None
    command, sizes = [sys.executable, HERE / "exchange.py"], json.dumps(SIZES)
    up = [sys.executable, "-m", "pathways", "up", "--workers", "2", "--devices", str(DEVICES), "--"]
    with ExitStack() as stack:
        islands = slow.Islands(stack, slow.limited(RATE), DEVICES)
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="exchange-"))
        envs = {"PATHWAYS_DIR": directory, "PATHWAYS_ADDRESS": ""}, islands.env
        one, two = (fresh.environment(env={"PATHWAYS_DEVICES": "", **env}) for env in envs)
        one = sides.Side([*up, *command, sizes, "1"], one)
        two = sides.Side([*islands.places[0], *command, sizes, "2"], two)
        stack.callback(lambda: sides.close([one, two]))
        for side in (one, two):
            side.hear()
        ways, took = list(WAYS), {way: [] for way in WAYS}
        for way in ways:  # what each compiles
            took_by(one if way == "one" else two, way, 1)
        for i in range(1 if quick else ROUNDS):
            at = i % len(ways)
            for way in ways[at:] + ways[:at]:
                took[way].append(took_by(one if way == "one" else two, way, STEPS))
                print(f"exchange, {way}: {took[way][-1]} s a step, and of processor time", flush=True)
    return took


def took_by(side, way, steps):
    before, late = processor(), way == "late"
    seconds = side.ask(steps=steps, late=late)["seconds"]
    return seconds, (processor() - before) / (steps + 1 + late)


def processor():
    """The processor time of all clusters and clients; those whose turn it is not do nothing."""
    return programs.processor(sides.family([os.getpid()]))


def page(data):
    if data is None:
        return []
    tokens = SIZES["batch"] * SIZES["length"]
    step = {way: statistics.median(seconds for seconds, _ in turns) for way, turns in data.items()}
    sending = 8 * 4 * slow.WEIGHTS / (RATE * 1e6) / step["one"]
    text = ["### Beside one island, on this machine", ""]
    text += paragraph(
        f"The same decoder on islands of {DEVICES} devices, with {SIZES['batch']} sequences a step, computed in"
        f" {SIZES['accumulate']} parts whose gradients are added before they are sent, as `--accumulate` of the example"
        f" has it. The line has {RATE:,} Mbit/s and takes {sending:.1%} of a step of the one island for a step's bytes;"
        f" the paper's is 3 %. The one island has two workers of {DEVICES} devices each on one host, and nothing on the"
        f" line. They take turns for {len(data['one'])} rounds. What is timed is from the losses of a step to those of"
        " the next one. The ratio is the median of the rounds; between the percentages behind it lies the median of"
        " many rounds, with a certainty of 95 %. Processor time is that of a step, of all processes."
    )
    ratios = {
        way: sorted(one / own for (one, _), (own, _) in zip(data["one"], turns, strict=True))
        for way, turns in data.items()
    }
    ratio = {way: statistics.median(of) for way, of in ratios.items()}
    bounds = {way: around_median(of) for way, of in ratios.items()}
    rows = [
        [
            title,
            f"{tokens / step[way]:,.0f}",
            f"{ratio[way]:.1%} ({bounds[way][0]:.1%} – {bounds[way][1]:.1%})",
            f"{statistics.median(used for _, used in data[way]):.2f} s",
        ]
        for way, title in WAYS.items()
    ]
    text += [table(["", "tokens a second", "of the one island", "processor time"], rows), ""]
    for way, target in TARGETS.items():
        low, high = bounds[way]
        said = f"This machine, {WAYS[way]}: {ratio[way]:.1%} of one island's speed (target {target:.0%})"
        if low < target <= high:
            text.append(undecided(said, f"it may be from {low:.1%} to {high:.1%}"))
        else:
            text.append(verdict(said, low >= target))
    text += ["", *paragraph(APART)]
    return text


def around_median(ordered):
    """The bounds of a median with a certainty of 95 %, if these are values in order, and enough of them.

    Each of n values lies below the median with a probability of a half. So the median lies beyond the k-th lowest, or
    the k-th highest, in as many of 2^n cases as there are choices of fewer than k of the values.
    """
    n = len(ordered)
    beyond, out = 1, 0
    while 2 * (beyond + math.comb(n, out + 1)) <= 0.05 * 2**n:
        out += 1
        beyond += math.comb(n, out)
    return ordered[out], ordered[-1 - out]


if __name__ == "__main__":
    sides.run(serve)
