"""Training over two hosts on this machine, with a line between them that the kernel makes slow.

The hosts are network namespaces with a worker each, joined by a pair of virtual interfaces with tc's token bucket at
both ends for a rate, or its netem for a delay too, where the kernel has that; this needs root.
examples/models/two_islands.py trains on them as two islands, with gradients on the line during the backward, and for a
whole step (--late). On one island over both hosts, pipeline.py compares pipelines with SPMD.
"""

import json
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
import stages  # noqa: E402
from page import paragraph, ratio, table  # noqa: E402

EXAMPLE = HERE.parents[1] / "examples" / "models" / "two_islands.py"
SIZES = {"devices": 2, "layers": 6, "width": 256, "batch": 16, "length": 128, "chunk": 1 << 18}
WEIGHTS = 5.2e6  # of that model
RATES = (None, 1000, 400, 200, 100)  # megabits a second; None: as fast as the machine copies
DELAYS = (1, 5, 20)  # milliseconds of each way
DELAYED = 1000  # megabits a second of lines with a delay
WAYS = {"during": (), "late": ("--late",)}
PIPELINES = (2000, 1000)  # megabits a second of lines that pipelines have stages on both ends of


class Islands:
    """Two islands of a worker each, on hosts with such a line between them."""

    def __init__(self, stack, shape, devices=1):
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="slow-"))
        self.places = stack.enter_context(hosts.two_hosts(*shape))
        has = ("--devices", str(devices))
        islands = tuple(("--name", name, "--island", name, *has) for name in ("west", "east"))
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


def limited(rate):
    """tc's words for a line of a rate."""
    return () if rate is None else ("tbf", "rate", f"{rate}mbit", "burst", "256kb", "latency", "200ms")


def delayed(ms):
    """tc's words for a line with a delay. The limit is of packets under way."""
    return ("netem", "delay", f"{ms}ms", "rate", f"{DELAYED}mbit", "limit", "100000")


def measure(quick):
    """Returns the tokens a second by line and way, {"rates": {rate: {way: …}}, "delays": {milliseconds: {way: …}}}, or
    None where there can be no such hosts. Delays are None where the kernel has no netem."""
    if not hosts.may_make_networks():
        return None
    steps, rounds, every = (4, 1, 2) if quick else (8, 3, 1)
    rates = {str(rate): tokens(f"{rate or 'any'} Mbit/s", limited(rate), steps, rounds) for rate in RATES[::every]}
    try:
        delays = {str(ms): tokens(f"{ms} ms", delayed(ms), steps, rounds) for ms in DELAYS[::every]}
    except hosts.NoDiscipline as error:
        print(f"slow, delays are left out: {error}", file=sys.stderr)
        delays = None
    return {"rates": rates, "delays": delays}


def tokens(title, shape, steps, rounds):
    """Returns the tokens a second over a line, by way."""
    with ExitStack() as stack:
        islands = Islands(stack, shape)
        took = {way: [] for way in WAYS}
        for _ in range(rounds):
            for way, how in WAYS.items():
                took[way].append(islands.train(steps, *how))
    found = {way: statistics.median(of) for way, of in took.items()}
    print(f"slow, {title}: tokens/s {found}", flush=True)
    return found


def page(data):
    if data is None:
        return []
    rates, best = data["rates"], max(data["rates"]["None"].values())
    text = ["### On this machine, over a line with a rate", ""]
    text += paragraph(
        f"A decoder of {WEIGHTS / 1e6:.1f} million weights on two islands of one device, with {SIZES['batch']}"
        f" sequences of {SIZES['length']} bytes a step. Each island sends {4 * WEIGHTS / 1e6:.0f} MB a step to the"
        f" other, through TLS, over a line whose rate the kernel limits. The islands share {os.cpu_count()} processors"
        " with client and controller. Cells are tokens a second, and in brackets the part of the highest rate without"
        " a limit. *Sending* is how long the line takes for a step's bytes, as a part of that step."
    )

    def row(name, rate, of):
        sending = f"{8 * 4 * WEIGHTS / 1e6 / rate / (SIZES['batch'] * SIZES['length'] / best):.0%}" if rate else "–"
        return [name, sending, *(f"{of[way]:,.0f} ({of[way] / best:.0%})" for way in WAYS)]

    rows = [row("no limit" if r == "None" else f"{int(r):,} Mbit/s", r != "None" and int(r), rates[r]) for r in rates]
    rows += [row(f"{DELAYED:,} Mbit/s, {ms} ms", DELAYED, of) for ms, of in (data["delays"] or {}).items()]
    heads = ["line", "sending / a step without a limit", "sent during the backward", "used a step later"]
    text += [table(heads, rows), ""]
    late = rates["None"]["late"] / rates["None"]["during"]
    text += paragraph(
        "The simulated rows above do not predict these. Their 97.5 % and 99.9 % at 0.4 come from a network that takes"
        " nothing but time. Here the same two processors also encrypt, copy and add gradients, and with nothing to"
        f" limit the line `--late` trains at {late:.0%} of the speed without it. The paper's ratio, 0.03, is in the"
        " section after this one."
    )
    if data["delays"] is None:
        text += paragraph(
            "Where the kernel has netem (`CONFIG_NET_SCH_NETEM`), this table also has rows for lines with a delay."
            " This kernel does not have it: run `python tests/bench/paper.py --figures slow` as root on one that does."
            " The delays above are those of the simulated network."
        )
    return text


# ---- Pipelines beside SPMD, where SPMD's sums of activations cross the line.


def pipelines(quick):
    """Returns what pipeline.py says on four devices of two hosts, by the rate of the line, or None where there can be
    no such hosts."""
    if not hosts.may_make_networks():
        return None
    how = [f"--rounds={2 if quick else 6}", "--ways=spmd,gpipe,1f1b,one"]
    return {str(rate): beside_spmd(rate, how) for rate in PIPELINES}


def beside_spmd(rate, how):
    with ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="slow-"))
        places = stack.enter_context(hosts.two_hosts(*limited(rate)))
        address, env = stack.enter_context(hosts.cluster_on(places, pathlib.Path(directory)))
        env |= {"PATHWAYS_DIR": directory, "PATHWAYS_ADDRESS": address, "PATHWAYS_DEVICES": ""}
        script = [*places[0], sys.executable, HERE / "pipeline.py", *how]
        done = subprocess.run(script, env=fresh.environment(env=env), check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def pipelines_page(data):
    if data is None:
        return []
    paper = stages.PAPERS[stages.FIRST] / stages.SPMD
    text = ["### Beside SPMD, over a line with a rate", ""]
    text += paragraph(
        "The same on two hosts with two devices each: network namespaces of this machine, joined by a line whose rate"
        " the kernel limits. SPMD sends its sums of activations over the line, a pipeline the activations between its"
        f" two middle stages, both through TLS. {next(iter(data.values()))['rounds']} rounds (lowest – highest). *One"
        " worker* computes the whole batch and sends nothing. More is better."
    )
    rows = [
        [f"{int(rate):,} Mbit/s", *(ratio(of["ways"][way]["by spmd"]) for way in ("gpipe", "1f1b", "one"))]
        for rate, of in data.items()
    ]
    heads = ["line", "gpipe by SPMD", "1f1b by SPMD", "one worker by SPMD"]
    text += [table(heads, rows), ""]

    def with_bubbles(way):
        ratios = (of["ways"][way]["by spmd"]["median"] for of in data.values())
        return " and ".join(f"{(1 - stages.BUBBLE) * times:.2f}" for times in ratios)

    return text + paragraph(
        f"A pipeline loses less to a slow line than SPMD does. All stages share this machine's {os.cpu_count()}"
        " processors, so a bubble costs no time here. The paper's stages have processors of their own, and"
        f" {stages.BUBBLE:.1%} of its GPipe's time are bubbles. If bubbles took as much here, gpipe would be"
        f" {with_bubbles('gpipe')} times as fast as SPMD (the ratios above, times {1 - stages.BUBBLE:.3f}); the paper's"
        f" is {paper:.3f} times. One worker, which sends nothing, would have {with_bubbles('one')} with bubbles; a"
        " pipeline may gain more than that, since one worker does not keep both processors busy all the time."
    )
