"""Training over two islands of this machine, with a line between them whose rate the kernel limits.

The islands are workers in two network namespaces, joined by a pair of virtual interfaces with tc's token bucket at both
ends; that needs root. examples/models/two_islands.py trains on them, with gradients on the line during the backward,
and for a whole step (--late).
"""

import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
from contextlib import ExitStack

HERE = pathlib.Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "cluster")]

import fresh  # noqa: E402
import hosts  # noqa: E402
from page import paragraph, table  # noqa: E402

EXAMPLE = HERE.parents[1] / "examples" / "models" / "two_islands.py"
SIZES = {"devices": 2, "layers": 6, "width": 256, "batch": 16, "length": 128, "chunk": 1 << 18}
WEIGHTS = 5.2e6  # of that model
RATES = (None, 1000, 400, 200, 100)  # megabits a second; None: as fast as the machine copies
WAYS = {"during": (), "late": ("--late",)}


class Islands:
    """Two islands of a worker of one device each, on hosts with a line of this rate between them."""

    def __init__(self, stack, rate):
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="slow-"))
        shape = () if rate is None else ("tbf", "rate", f"{rate}mbit", "burst", "256kb", "latency", "200ms")
        self.places = stack.enter_context(hosts.two_hosts(*shape))
        islands = tuple(("--name", name, "--island", name, "--devices", "1") for name in ("west", "east"))
        address, env = stack.enter_context(hosts.cluster_on(self.places, pathlib.Path(directory), workers=islands))
        self.env = env | {"PATHWAYS_DIR": directory, "PATHWAYS_ADDRESS": address}

    def train(self, steps, *how):
        """Returns the tokens a second."""
        options = [f"--{name}={value}" for name, value in SIZES.items()]
        done = subprocess.run(
            [*self.places[0], sys.executable, EXAMPLE, f"--steps={steps}", *options, *how],
            env=fresh.environment(env={"PATHWAYS_DEVICES": "", **self.env}),
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        )
        return float(re.search(r"([\d,]+) tokens/s", done.stdout)[1].replace(",", ""))


def measure(quick):
    """Returns the tokens a second by rate and way; None where there can be no such hosts."""
    if not hosts.may_make_networks():
        return None
    steps, rounds, rates = (4, 1, RATES[::2]) if quick else (8, 3, RATES)
    found = {}
    for rate in rates:
        with ExitStack() as stack:
            islands = Islands(stack, rate)
            took = {way: [] for way in WAYS}
            for _ in range(rounds):
                for way, how in WAYS.items():
                    took[way].append(islands.train(steps, *how))
            found[str(rate)] = {way: statistics.median(of) for way, of in took.items()}
            print(f"slow, {rate or 'any'} Mbit/s: tokens/s {found[str(rate)]}", flush=True)
    return found


def page(data):
    if data is None:
        return []
    best = max(data["None"].values())
    text = ["### On this machine, over a line with a rate", ""]
    text += paragraph(
        f"A decoder of {WEIGHTS / 1e6:.1f} million weights on two islands of one device, {SIZES['batch']} sequences of"
        f" {SIZES['length']} bytes a step: each island sends {4 * WEIGHTS / 1e6:.0f} MB a step to the other, through"
        f" TLS, over a line whose rate the kernel limits. The islands share {os.cpu_count()} processors with client and"
        " controller. Tokens a second, and as a part of the most without a limit. *Sending*: what a step's bytes"
        " take of the line, as a part of that step."
    )
    rows = []
    for rate, of in data.items():
        sending = "–"
        if rate != "None":
            step = SIZES["batch"] * SIZES["length"] / best
            sending = f"{8 * 4 * WEIGHTS / 1e6 / float(rate) / step:.0%}"
        cells = [f"{of[way]:,.0f} ({of[way] / best:.0%})" for way in WAYS]
        rows.append(["no limit" if rate == "None" else f"{float(rate):,.0f} Mbit/s", sending, *cells])
    text += [table(["rate", "sending / a step without a limit", "sent during the backward", "used a step later"], rows)]
    return [*text, ""]
