"""Measures a cluster of processes beside systems of the same kind, in turns, and parts of it by benchmarks of Go."""

import contextlib
import dataclasses
import pathlib
import statistics
import sys
import tempfile

import computation
import fresh
import gobench
import sides

HERE = pathlib.Path(__file__).parent
PEERS = HERE / "peers"
PEERS_PYTHON = HERE.parents[1] / ".venv-peers" / "bin" / "python"
TITLES = {"ours": "Open Pathways", "ray": "Ray", "monarch": "Monarch", "gloo": "JAX with gloo"}
LIBRARIES = ("ray", "monarch")  # one process drives the others, as ours does


@dataclasses.dataclass(frozen=True)
class Row:
    """A program that several systems run by turns, and what ours is to reach."""

    name: str
    workers: int
    program: str
    sync: bool
    others: tuple  # the systems that ours is compared with
    times: float = 0  # as fast as the fastest of them, at least
    rate: float = 0  # computations a second, at least
    microseconds: float = 0  # a call, at most


ROWS = [
    Row("add, asynchronous", 8, "add", False, LIBRARIES, times=6, rate=8000),
    Row("add, synchronous", 8, "add", True, LIBRARIES),
    Row("AllReduce + add, asynchronous", 8, "reduce", False, ("gloo",), times=2),
    Row("AllReduce + add, synchronous", 8, "reduce", True, ("gloo",), times=2),
    Row("128 of them fused, unrolled", 8, "fused", False, ("gloo",), times=3),
    Row("128 of them fused, a loop", 8, "loop", False, ("gloo",)),
    Row("add, synchronous, one worker", 1, "add", True, LIBRARIES, microseconds=150),
]


@dataclasses.dataclass(frozen=True)
class Burst:
    """Calls of a client whose operations leave as one message where they queue up, beside one whose never do."""

    name: str
    sync: bool  # each call is waited for, so none queues up: time by time; else calls a second by calls a second
    least: float = 0
    most: float = 0


BURSTS = [
    Burst("batched / not: a lone call, time", True, most=1.05),
    Burst("batched / not: queued dependent calls, rate", False, least=1),
]


@dataclasses.dataclass(frozen=True)
class Lease:
    """Calls on a cluster whose processes and sessions outlive breaks and their controller, beside one without."""

    name: str
    workers: int
    program: str
    sync: bool
    most: float = 1.1  # of the time without


LEASES = [
    Lease(f"lease / none: {name}, {workers} worker{'s' * (workers > 1)}", workers, program, sync)
    for workers in (1, 2, 8)
    for name, program, sync in (
        ("add, asynchronous", "add", False),
        ("add, synchronous", "add", True),
        ("AllReduce + add, asynchronous", "reduce", False),
        ("AllReduce + add, synchronous", "reduce", True),
        ("a program of 128 of them", "chained", False),
    )
]


@dataclasses.dataclass(frozen=True)
class Part:
    """What a benchmark of Go says of a part: the sum of some of its values."""

    name: str
    package: str
    benchmark: str
    units: tuple
    unit: str = ""
    least: float = 0
    most: float = 0


def controller(workers, most=0, depth=32):
    name = f"controller, a gang of {workers} workers" + (", alone" if depth == 1 else "")
    bench = f"Server/sockets/depth={depth}/workers={workers}"
    return Part(name, "controller", bench, ("run-µs", "end-µs"), "µs", most=most)


LARGEST = "Gang/workers=10000/devices=40000"
PARTS = [
    Part("64 MiB, shared memory / warm memcpy", "bulk", "Shared/sink", ("x-memcpy",), least=0.8),
    Part("  copied into memory of the reader's", "bulk", "Shared/into", ("x-memcpy",)),
    Part("64 MiB, TCP on loopback / plain stream", "bulk", "TCP/sink", ("x-stream",), least=0.9),
    Part("  into memory of the reader's", "bulk", "TCP/into", ("x-stream",)),
    controller(1),
    controller(16, most=5),
    controller(16, most=20, depth=1),
    controller(128),
    controller(512, most=150),
    Part("controller, a gang of 10,000, without connections", "state", LARGEST, ("processor-µs",), "µs", most=3000),
    Part("  the memory of that", "state", LARGEST, ("MiB",), "MiB", most=1024),
]
PACKAGES = {
    "bulk": ("./transport/bulk", "^Benchmark(Shared|TCP)$"),
    "controller": ("./core/controller/server", "^BenchmarkServer$"),
    "state": ("./core/controller", "^BenchmarkGang$/^workers=10000$"),
}


def in_cluster(workers, directory, *command, how=()):
    """Returns the command that starts a cluster, runs this in it, and ends the cluster."""
    up = ["-m", "pathways_command", "up", "--workers", str(workers), "--devices", "1", "--dir", directory, *how, "--"]
    return [sys.executable, *up, sys.executable, *command]


def command(system, workers, directory):
    """Returns the command of a system's process."""
    if system == "ours":
        return in_cluster(workers, directory, PEERS / "ours.py")
    if system == "gloo":
        return [sys.executable, PEERS / "jax_gloo.py", str(workers)]
    return [PEERS_PYTHON, PEERS / {"ray": "ray_graph.py", "monarch": "monarch_mesh.py"}[system], str(workers)]


@contextlib.contextmanager
def started(systems, workers, command=command):
    """Returns those of the systems that run here, and ends them; their versions; and why the others do not run."""
    with tempfile.TemporaryDirectory(prefix="bench-") as directory, contextlib.ExitStack() as stack:
        env = fresh.environment("jaxlib") | {"TMPDIR": directory}
        ours = fresh.environment("pathways") | {"TMPDIR": directory}
        for name in ("PATHWAYS_DEVICES", "PATHWAYS_ADDRESS"):
            env.pop(name, None)
            ours.pop(name, None)
        running, missing, versions = {}, {}, {}
        stack.callback(lambda: sides.close(running.values()))
        for system in systems:
            asked = command(system, workers, directory)
            if asked[0] == PEERS_PYTHON and not PEERS_PYTHON.exists():
                missing[system] = "make bench-peers installs it"
                continue
            running[system] = sides.Side(asked, ours if system == "ours" else env)
        for system in list(running):
            try:
                first = running[system].hear()
                versions[system], why = first.get("version"), first.get("left out")
            except sides.Ended as error:
                if running[system].process.args[0] != PEERS_PYTHON:
                    raise
                why = error
            if why:
                missing[system] = str(why)
                running.pop(system).close()
        yield running, versions, missing


def calls_of(side, asked, seconds):
    """How many calls of a system fill so many seconds."""
    side.ask(calls=1, **asked)  # compiles
    n = 4
    while True:
        took = side.ask(calls=n, **asked)["seconds"]
        if took > seconds / 4 or n >= 65536:
            return max(1, round(n * seconds / max(took, 1e-9)))
        n *= 4


def measure(running, row, rounds, seconds):
    """Returns a row's computations a second by system, and the ratio of ours to the fastest of the others."""
    asked = {"program": row.program, "sync": row.sync}
    systems = [system for system in ("ours", *row.others) if system in running]
    calls = {system: calls_of(running[system], asked, seconds) for system in systems}
    rates = {system: [] for system in systems}
    for i in range(rounds):
        first = i % len(systems)
        for system in systems[first:] + systems[:first]:
            took = running[system].ask(calls=calls[system], **asked)["seconds"]
            rates[system].append(computation.computations(row.program, calls[system]) / took)
    out = {"workers": row.workers, "rounds": rounds, "calls": calls}
    out["rates"] = {system: spread(of_system) for system, of_system in rates.items()}
    if others := systems[1:]:
        fastest = [max(of_round) for of_round in zip(*(rates[system] for system in others), strict=True)]
        out["ratio"] = spread([a / b for a, b in zip(rates["ours"], fastest, strict=True)])
    rate = out["rates"]["ours"]["median"]
    out["targets"] = targets = []
    if row.times and "ratio" in out:
        targets.append((f"≥ {row.times} ×", out["ratio"]["median"] >= row.times))
    if row.rate:
        targets.append((f"≥ {row.rate} /s", rate >= row.rate))
    if row.microseconds:
        targets.append((f"≤ {row.microseconds} µs", 1e6 / rate <= row.microseconds))
    return out


def turns(running, asked, rounds, seconds):
    """Asks each system in turns, asked[system] in calls that fill so many seconds.

    Returns by system the milliseconds of a call in each round, and the calls of a turn. What a system has to leave out
    is not there.
    """
    times, calls = {}, {}
    for system, side in running.items():
        first = side.ask(calls=1, **asked[system])  # compiles before it measures
        if "left out" not in first:
            calls[system] = max(1, min(1000, round(seconds / max(first["seconds"], 1e-6))))
            times[system] = []
    for i in range(rounds):
        order = list(times)
        first = i % len(order)
        for system in order[first:] + order[:first]:
            answer = running[system].ask(calls=calls[system], **asked[system])
            if "left out" in answer:  # also in a later round: a wrong result has no time
                del times[system]
                continue
            times[system].append(answer["seconds"] / calls[system] * 1e3)
    return times, calls


def evenly(running, asked, rounds, seconds):
    """Asks two sides the same calls in turns, as many as fill so many seconds on the second.

    Returns by side the microseconds of a call in each round, and the calls of a turn.
    """
    one, other = running
    calls = calls_of(running[other], asked, seconds)
    running[one].ask(calls=calls, **asked)  # compiles
    took = {side: [] for side in running}
    for i in range(rounds):
        for side in (one, other) if i % 2 else (other, one):
            took[side].append(running[side].ask(calls=calls, **asked)["seconds"] / calls * 1e6)
    return took, calls


def beside(times):
    """Returns the spread of each system's times, and of each other system's by ours of the same round."""
    ratios = {
        system: spread([theirs / ours for theirs, ours in zip(of, times["ours"], strict=True)])
        for system, of in times.items()
        if system != "ours"
    }
    return {system: spread(of) for system, of in times.items()}, ratios


def spread(values):
    return {"median": statistics.median(values), "low": min(values), "high": max(values)}


def said(value, digits=2):
    if value is None:
        return f"{'–':>24}"
    return f"{value['median']:8.{digits}f} [{value['low']:.{digits}f} – {value['high']:.{digits}f}]".rjust(24)


def verdict(targets):
    return "   " + ", ".join(f"{text} {'ok' if reached else 'MISSED'}" for text, reached in targets) if targets else ""


def line(name, got):
    rates = {system: got["rates"].get(system) for system in TITLES}
    text = f"{name:42} {said(got.get('ratio'))}"
    text += "".join(f"{rate['median']:14,.0f}" if rate else f"{'–':>14}" for rate in rates.values())
    return text + f"{1e6 / rates['ours']['median']:10.1f}" + verdict(got["targets"])


def ours(stack, workers, how=(), **env):
    """Starts a cluster of ours, with options of `pathways up` and variables, and a process that measures on it."""
    directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-"))
    env = fresh.environment("pathways") | {"TMPDIR": directory} | env
    for name in ("PATHWAYS_DEVICES", "PATHWAYS_ADDRESS"):
        env.pop(name, None)
    side = sides.Side(in_cluster(workers, directory, PEERS / "ours.py", how=how), env)
    stack.callback(side.close)
    return side


def bursts(quick, chosen):
    """Measures what batching of calls does, on two clusters of one worker by turns."""
    wanted = [row for row in BURSTS if chosen(row.name)]
    if not wanted:
        return {}
    rounds, seconds = (5, 0.05) if quick else (15, 0.1)
    out = {}
    with contextlib.ExitStack() as stack:
        running = {batch: ours(stack, 1, PATHWAYS_BATCH=batch) for batch in ("true", "false")}
        for side in running.values():
            side.hear()
        for row in wanted:
            asked = {"program": "add", "sync": row.sync}
            took, calls = evenly(running, asked, rounds, seconds)
            ratios = [a / b if row.sync else b / a for a, b in zip(took["true"], took["false"], strict=True)]
            got = {"ratio": spread(ratios)} | {batch: spread(times) for batch, times in took.items()}
            targets = got["targets"] = []
            if row.most:
                targets.append((f"≤ {row.most} ×", got["ratio"]["median"] <= row.most))
            if row.least:
                targets.append((f"≥ {row.least} ×", got["ratio"]["median"] >= row.least))
            out[row.name] = got | {"calls": calls, "rounds": rounds}
            times = "".join(f"{got[batch]['median']:10.1f}" for batch in running)
            print(f"{row.name:42} {said(got['ratio'])}{times}{verdict(targets)}", flush=True)
    return out


def leases(quick, chosen):
    """Measures what a lease costs where nothing breaks, on two clusters by turns. `up` gives both a directory of state,
    which is used with a lease alone.
    """
    rounds, seconds = (5, 0.05) if quick else (40, 0.1)  # of queued calls, one round takes up to four times another
    out = {}
    for workers in sorted({row.workers for row in LEASES if chosen(row.name)}):
        with contextlib.ExitStack() as stack:
            made = {"lease": "10s", "none": "0"}.items()
            running = {name: ours(stack, workers, ("--lease", lease)) for name, lease in made}
            for side in running.values():
                side.hear()
            for row in (row for row in LEASES if row.workers == workers and chosen(row.name)):
                asked = {"program": row.program, "sync": row.sync}
                took, calls = evenly(running, asked, rounds, seconds)
                ratio = spread([a / b for a, b in zip(took["lease"], took["none"], strict=True)])
                got = {name: spread(of) for name, of in took.items()}
                targets = [(f"≤ {row.most} ×", ratio["median"] <= row.most)]
                out[row.name] = got | {"ratio": ratio, "calls": calls, "rounds": rounds, "targets": targets}
                times = "".join(f"{got[name]['median']:10.1f}" for name in running)
                print(f"{row.name:58} {said(ratio)}{times}{verdict(targets)}", flush=True)
    return out


def parts(quick, chosen):
    """Measures single parts by benchmarks of Go, which take turns with what they are compared with by themselves."""
    wanted = [part for part in PARTS if chosen(part.name)]
    count, time = (2, "0.2s") if quick else (5, "0.5s")
    found = {
        name: gobench.run(path, pattern, count, time)
        for name, (path, pattern) in PACKAGES.items()
        if any(part.package == name for part in wanted)
    }
    out = {}
    for part in wanted:
        values = found[part.package].get(part.benchmark)
        if values is None:
            print(f"{part.name:42} left out: Benchmark{part.benchmark} did not run")
            continue
        got = spread([sum(of_time) for of_time in zip(*(values[unit] for unit in part.units), strict=True)])
        targets = []
        if part.least:
            targets.append((f"≥ {part.least}", got["median"] >= part.least))
        if part.most:
            targets.append((f"≤ {part.most} {part.unit}", got["median"] <= part.most))
        out[part.name.strip()] = {"benchmark": part.benchmark} | got | {"unit": part.unit, "targets": targets}
        print(f"{part.name:42} {said(got)} {part.unit:2}{verdict(targets)}", flush=True)
    return out


def run(quick, chosen):
    """Measures and prints the chosen rows; returns the results."""
    results, about, missing = {}, {}, {}
    rounds, seconds = (3, 0.1) if quick else (9, 0.3)
    heads = "".join(f"{title:>14}" for title in TITLES.values())
    print(f"{'cluster':42} {'ours / best of the others':>24}{heads}{'ours, µs':>10}")
    for workers in (8, 1):
        rows = [row for row in ROWS if row.workers == workers and chosen(row.name)]
        if not rows:
            continue
        wanted = {"ours"}.union(*(row.others for row in rows))
        with started([system for system in TITLES if system in wanted], workers) as (running, versions, why):
            about, missing = about | versions, missing | why
            said_of = ", ".join(f"{TITLES[system]} {versions[system]}" for system in running)
            print(f"{workers} worker{'s' * (workers > 1)} of one device; computations a second of {said_of}:")
            for row in rows:
                results[row.name] = measure(running, row, rounds, seconds)
                print(line(row.name, results[row.name]), flush=True)
    for system, why in missing.items():
        print(f"{TITLES[system]} is left out: {why}")
    print(f"\n{'calls that queue up, one worker':42} {'batched / not':>24}{'µs':>10}{'not, µs':>10}")
    batched = bursts(quick, chosen)
    print(f"\n{'what a lease costs':58} {'time with / without':>24}{'µs':>10}{'without':>10}")
    leased = leases(quick, chosen)
    print(f"\n{'parts':42} {'median [lowest – highest]':>24}")
    found = {"bursts": batched, "leases": leased, "parts": parts(quick, chosen)}
    return {"versions": about, "rows": results, "left out": missing} | found


def draw(axes, results):
    """Draws the computations a second of each system, on a logarithmic axis."""
    from figures import COLORS

    names = list(results)
    for at, (system, title) in enumerate(TITLES.items()):
        have = [(i, results[name]["rates"][system]) for i, name in enumerate(names) if system in results[name]["rates"]]
        middle = [rate["median"] for _, rate in have]
        error = [[r["median"] - r["low"] for _, r in have], [r["high"] - r["median"] for _, r in have]]
        rows = [i + (at - 1.5) * 0.18 for i, _ in have]
        color = COLORS["Ray compiled graph" if system == "ray" else title]
        axes.errorbar(
            middle, rows, xerr=error, fmt="o", markersize=5, elinewidth=1, capsize=2, label=title, color=color
        )
    axes.set_xscale("log")
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.invert_yaxis()
    axes.grid(axis="x", linewidth=0.4)
    axes.set_xlabel("computations a second (higher is better)")
    axes.legend(fontsize=8)
