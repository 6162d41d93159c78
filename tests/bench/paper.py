"""Repeats the experiments of the Pathways paper (Barham et al., MLSys 2022) beside other systems, in turns.

    python tests/bench/paper.py [--quick] [--figures 5,6,7,8,9,11,12,delay,…] [--out DIR]

Writes a page, README.md, with tables and plots, and paper.json. What runs on this machine has workers that share its
processors; what says "simulated" has real messages and a real control plane, and devices that take the time they are
told to.
"""

import argparse
import contextlib
import json
import os
import pathlib
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

import cluster  # noqa: E402
import computation  # noqa: E402
import exchange  # noqa: E402
import figures  # noqa: E402
import fresh  # noqa: E402
import gobench  # noqa: E402
import islands  # noqa: E402
import models  # noqa: E402
import sharing  # noqa: E402
import sides  # noqa: E402
import slow  # noqa: E402
import stages  # noqa: E402
import weights  # noqa: E402
from page import milliseconds, on, paragraph, rate, ratio, table, verdict  # noqa: E402

PEERS = cluster.PEERS
# One line of figure 5: a system, how it is driven, and the program that its process is asked for.
LINES = {
    "Open Pathways, OpByOp": ("ours", "reduce"),
    "Open Pathways, OpByOp, each call by itself": ("alone", "reduce"),
    "Open Pathways, Chained": ("ours", "chained"),
    "Open Pathways, Fused": ("ours", "fused"),
    "JAX with gloo, OpByOp": ("gloo", "reduce"),
    "JAX with gloo, Fused": ("gloo", "fused"),
    "JAX in one process, OpByOp": ("one", "reduce"),
    "JAX in one process, Fused": ("one", "fused"),
    "Ray actors, OpByOp": ("ray actors", "reduce"),
    "Ray actors, Fused": ("ray actors", "fused"),
    "Ray compiled graph, OpByOp": ("ray", "reduce"),
    "Ray compiled graph, Chained": ("ray chain", "chained"),
    "Ray compiled graph, Fused": ("ray", "fused"),
    "Monarch, OpByOp": ("monarch", "reduce"),
    "Monarch, Fused": ("monarch", "fused"),
    "TensorFlow, OpByOp": ("tensorflow", "reduce"),
    "TensorFlow, Chained": ("tensorflow", "chained"),
    "Open Pathways, add only, OpByOp": ("ours", "add"),
    "Open Pathways, add only, each call by itself": ("alone", "add"),
    "Open Pathways, add only, Chained": ("ours", "chained add"),
    "Ray actors, add only": ("ray actors", "add"),
    "Ray compiled graph, add only": ("ray", "add"),
    "Monarch, add only": ("monarch", "add"),
}


def command(system, workers, directory):
    """The command of a system's process."""
    if system == "one":
        return [sys.executable, PEERS / "jax_one.py", str(workers)]
    if system.startswith("ray"):
        how = {"ray": [], "ray actors": ["--plain"], "ray chain": ["--chain", str(computation.CHAIN)]}[system]
        return [cluster.PEERS_PYTHON, PEERS / "ray_graph.py", str(workers), "--joined", *how]
    if system == "monarch":
        return [cluster.PEERS_PYTHON, PEERS / "monarch_mesh.py", str(workers), "joined"]
    if system == "tensorflow":
        return [cluster.PEERS_PYTHON, PEERS / "tensorflow_session.py", str(workers)]
    if system in ("sequential", "alone"):
        up = cluster.command("ours", workers, directory)
        at = up.index("--")
        how = ["--dispatch", "sequential"] if system == "sequential" else []
        return [*up[:at], "--cluster", system, *how, *up[at:]]
    return cluster.command(system, workers, directory)


@contextlib.contextmanager
def started(systems, workers):
    """Returns those of the systems that run here, and why the others do not."""
    with tempfile.TemporaryDirectory(prefix="paper-") as directory, contextlib.ExitStack() as stack:
        running, missing = {}, {}
        stack.callback(lambda: sides.close(running.values()))
        for system in systems:
            if system.startswith(("ray", "monarch", "tensorflow")) and not cluster.PEERS_PYTHON.exists():
                missing[system] = "make bench-peers installs it"
                continue
            of = "pathways" if system in ("ours", "sequential", "alone") else "jaxlib"
            env = fresh.environment(of) | {"TMPDIR": directory}
            for name in ("PATHWAYS_DEVICES", "PATHWAYS_ADDRESS"):
                env.pop(name, None)
            if system == "alone":
                env["PATHWAYS_BATCH"] = "false"
            running[system] = sides.Side(command(system, workers, directory), env)
        for system in list(running):
            try:
                why = running[system].hear().get("left out")
            except sides.Ended as error:
                why = error
            if why:
                missing[system] = str(why)
                running.pop(system).close()
        yield running, missing


def turns(running, lines, rounds, seconds):
    """Returns the computations a second of each line, {"median", "low", "high"}; the lines take turns.

    A line is (system, program, sync).
    """
    calls, rates = {}, {}
    for line in lines:
        system, program, sync = line
        if system not in running:
            continue
        try:
            calls[line] = cluster.calls_of(running[system], {"program": program, "sync": sync}, seconds)
        except sides.Ended as error:  # a peer may be unable to; the others go on
            print(f"{system} is left out from {program} on: {error}", file=sys.stderr)
            running.pop(system).close()
    lines = [line for line in lines if line[0] in running]
    for i in range(rounds):
        at = i % max(len(lines), 1)
        for line in lines[at:] + lines[:at]:
            system, program, sync = line
            took = running[system].ask(program=program, calls=calls[line], sync=sync)["seconds"]
            rates.setdefault(line, []).append(computation.computations(program, calls[line]) / took)
    return {line: cluster.spread(values) for line, values in rates.items()}


def microseconds(got):
    """The time of a computation."""
    return 1e6 / got["median"]


# ---- Figure 5: computations a second against the number of workers.


def figure5(quick):
    rounds, seconds = (2, 0.1) if quick else (7, 0.3)
    got, missing = {}, {}
    for workers in (1, 2, 8) if quick else (1, 2, 4, 8):
        systems = sorted({system for system, _ in LINES.values()})
        with started(systems, workers) as (running, why):
            missing |= why
            lines = [(system, program, False) for system, program in LINES.values() if system in running]
            rates = turns(running, lines, rounds, seconds)
        for name, (system, program) in LINES.items():
            if spread := rates.get((system, program, False)):
                got.setdefault(name, {})[workers] = spread
                print(f"figure 5, {workers} workers: {name:36} {spread['median']:10,.0f}/s", flush=True)
    simulated = {}
    found = gobench.run("./core/cluster", "^BenchmarkPlay$", 1 if quick else 3, "0.3s")
    for name, values in found.items():
        at = dict(part.partition("=")[::2] for part in name.split("/")[1:])
        for unit, title in (("runs/s", "OpByOp"), ("nodes/s", "Chained")):
            devices = int(at["workers"]) * int(at["each"])
            simulated.setdefault(title, {})[devices] = statistics.median(values[unit])
    sizes = [1, 8, 64, 512]
    script = pathlib.Path(__file__).with_name("shards.py")
    env = fresh.environment("pathways") | {"TF_CPP_MIN_LOG_LEVEL": "3"}
    ran = subprocess.run([sys.executable, script, *map(str, sizes)], env=env, stdout=subprocess.PIPE, check=True)
    shards = json.loads(ran.stdout)
    print(f"figure 5, µs until a call returns: {shards}", flush=True)
    return {"rates": got, "missing": missing, "simulated": simulated, "shards": shards}


CHAINED = "Open Pathways, Chained"


def parts5(at, workers):
    """Where the time of our computations goes, by the lines that leave a part of it out."""
    said = []
    for what, name in (
        ("{} Chained", CHAINED),
        ("{} OpByOp", "Open Pathways, OpByOp"),
        ("{} Chained without the AllReduce", "Open Pathways, add only, Chained"),
        ("{} Fused, where nothing is dispatched", "Open Pathways, Fused"),
        ("multi-controller JAX, whose processes dispatch for themselves, {} OpByOp", "JAX with gloo, OpByOp"),
        ("{} Fused", "JAX with gloo, Fused"),
    ):
        if got := at(name, workers):
            took = microseconds(got)
            said.append(what.format(f"{took:,.0f}" if took >= 10 else f"{took:.2g}"))
    text = f"Microseconds a computation: {'; '.join(said)}."
    return text + (" With one worker JAX has no other process to wait for." if workers == 1 else "")


def page5(data):
    rates = {name: {int(n): spread for n, spread in of.items()} for name, of in data["rates"].items()}
    sizes = sorted({n for of in rates.values() for n in of})
    rows = [[name, *(rate(of.get(n)) for n in sizes)] for name, of in rates.items()]
    text = ["## Figure 5: computations a second", ""]
    text += paragraph(
        "Each computation is an AllReduce of one number and an addition, and works on the result of the one before."
        f" *OpByOp* makes one client call for each computation, *Chained* one call of a program of {computation.CHAIN}"
        f" nodes, and *Fused* one call of a compiled function of {computation.CHAIN} computations. *Add only* leaves"
        " out the collective. *Each call by itself* runs with PATHWAYS_BATCH=false, so that queued calls do not share"
        " a message. All systems submit calls without waiting, except TensorFlow: it waits for each call, and instead"
        " of an AllReduce it sums at one of its servers. Cells are medians; higher is better."
    )
    text += [table(["workers", *sizes], rows), "", "![figure 5](figure5.png)", ""]

    def at(name, workers):
        return rates.get(name, {}).get(workers)

    explained = {}

    def compare(what, ours, factor, others, workers):
        have = {other: got for other in others if (got := at(other, workers))}
        if (got := at(ours, workers)) and have:
            best = max(have, key=lambda other: have[other]["median"])
            times = got["median"] / have[best]["median"]
            said = f"{what} on {on(workers)}: {times:.2f} × {best} (target {factor} ×)"
            text.append(verdict(said, times >= factor, "See below for where the time goes."))
            if times < factor:
                explained[workers] = f"- Where the time goes on {on(workers)}. {parts5(at, workers)}"

    last = sizes[-1]
    compare("Chained", CHAINED, 4, ["Ray compiled graph, OpByOp", "Ray compiled graph, Chained"], last)
    compare("Fused", "Open Pathways, Fused", 1, ["JAX with gloo, Fused"], last)
    controllers = [f"{name}, OpByOp" for name in ("Ray actors", "Ray compiled graph", "Monarch", "TensorFlow")]
    compare("OpByOp", "Open Pathways, OpByOp", 2, controllers, last)
    for n in sizes:
        compare("Chained", CHAINED, 1, ["JAX with gloo, OpByOp"], n)
    text += explained.values()
    for system, why in data["missing"].items():
        text.append(f"- {system} is left out: {why}")
    if data["simulated"]:
        counts = sorted({int(n) for of in data["simulated"].values() for n in of})
        rows = [[title, *(f"{of.get(str(n), 0):,.0f}" for n in counts)] for title, of in data["simulated"].items()]
        text.append("")
        text += paragraph(
            "The control plane alone: computations a second on simulated devices whose computations take no time. The"
            " client, the controller and all workers share one process; from 16 devices on, each worker has four."
        )
        text += [table(["devices", *counts], rows)]
    if shards := data.get("shards"):
        together, pjrt = shards["together"], shards["pjrt"]
        alone = {n: together[n] - pjrt[n] for n in together}
        least, most = min(together, key=int), max(together, key=int)

        def each(took):
            return (took[most] - took[least]) / (int(most) - int(least))

        text.append("")
        text += paragraph(
            "The client's part comes on top: µs until a call of a tiny computation returns (lower is better). *PJRT*"
            " is our PJRT plugin, called through openpathways.h; *JAX* is what a call of a jitted function takes in"
            f" addition to that. Each further shard costs {each(alone):.2f} µs in JAX and {each(pjrt):.2f} µs in the"
            " plugin; messages and graphs do not grow with the number of shards."
        )
        rows = [[name, *(f"{us:,.1f}" for us in of.values())] for name, of in (("JAX", alone), ("PJRT", pjrt))]
        text += [table(["devices", *together], rows)]
    return text


# ---- Figure 6: the smallest computation at which throughput is that of multi-controller JAX.


def figure6(quick):
    rounds, seconds = (2, 0.2) if quick else (5, 0.5)
    got = {}
    for workers in (1, 8) if quick else (1, 2, 4, 8):
        with started(["ours", "gloo"], workers) as (running, _):
            for steps in (0, 30, 100, 300, 1000, 3000):
                program = f"work:{steps}"
                lines = [(system, program, False) for system in ("ours", "gloo")]
                rates = turns(running, lines, rounds, seconds)
                ours, gloo = (rates[line]["median"] for line in lines)
                got.setdefault(workers, []).append({"steps": steps, "ours": ours, "gloo": gloo})
                said = f"figure 6, {workers} workers, {1e6 / gloo:9.0f} µs: {ours / gloo:.2f} of JAX with gloo"
                print(said, flush=True)
    simulated = {}
    found = gobench.run("./core/cluster", "^BenchmarkParity$", 1 if quick else 2, "1s")
    for name, values in found.items():
        _, workers, cost = name.split("/")
        simulated.setdefault(workers.partition("=")[2], {})[cost.partition("=")[2]] = statistics.median(values["share"])
    found = gobench.run(
        "./core/controller/server", "^BenchmarkServer$/^sockets$/^depth=32$/^workers=(16|512)$", 1, "0.3s"
    )
    own = {
        name.partition("workers=")[2]: sum(values[u][0] for u in ("run-µs", "end-µs")) for name, values in found.items()
    }
    return {"real": got, "simulated": simulated, "controller": own}


def page6(data):
    text = ["## Figure 6: the smallest computation without a loss", ""]
    text += paragraph(
        "A computation is a loop of some length and an AllReduce. Each cell shows how long multi-controller JAX with"
        " gloo takes for a computation, and our throughput relative to its: above 1 we are faster."
    )
    rows = []
    for workers, points in data["real"].items():
        cells = [f"{1e6 / p['gloo']:,.0f} µs: {p['ours'] / p['gloo']:.2f}" for p in points]
        enough = next((p for i, p in enumerate(points) if all(q["ours"] / q["gloo"] >= 0.95 for q in points[i:])), None)
        rows.append([workers, *cells, f"{1e6 / enough['gloo']:,.0f} µs" if enough else "none of these"])
    count = max(len(points) for points in data["real"].values())
    text += [table(["workers", *[""] * count, "95 % from"], rows), "", "![figure 6](figure6.png)", ""]
    targets = {"16": ("128 devices on 16 workers", 0.5, 2.3), "512": ("2,048 devices on 512 workers", 3, 35)}
    for workers, shares in data["simulated"].items():
        name, target, theirs = targets[workers]
        said = "the share of time that devices compute, by the length of a computation (more is better)"
        text += [f"Simulated, {name}: {said}.", ""]
        text += [table(list(shares), [[f"{share:.2f}" for share in shares.values()]]), ""]
        good = [milliseconds(cost) for cost, share in shares.items() if share >= 0.95]
        said = f"95 % from {min(good):g} ms" if good else "95 % at none of these"
        reached = bool(good) and min(good) <= target
        first, share = next(iter(shares.items()))
        why = (
            f"With computations of {first} a gang takes {milliseconds(first) / share:.2f} ms, because"
            f" {os.cpu_count()} processors do the work of the client, the controller and all {workers} workers with"
            " their simulated devices."
        )
        if own := data.get("controller", {}).get(workers):
            why += f" The controller's own part of a gang is {own / 1e3:.2f} ms."
        text += [verdict(f"{said} (target {target} ms; the paper {theirs} ms)", reached, why), ""]
    return text


# ---- Figure 7: parallel and sequential dispatch of a chain over workers.


def figure7(quick):
    rounds, seconds = (2, 0.1) if quick else (7, 0.3)
    got = []
    sizes = (1, 2, 4, 8) if quick else (1, 2, 4, 8, 16)
    with started(["ours", "sequential"], sizes[-1]) as (running, _):
        for stages in sizes:
            lines = [(s, f"{p}:{stages}", True) for s in ("ours", "sequential") for p in ("stages", "moves")]
            rates = turns(running, lines[:3], rounds, seconds)
            parallel, moves, sequential = (rates[line]["median"] for line in lines[:3])
            got.append({"stages": stages, "parallel": parallel, "sequential": sequential, "moves": moves * stages})
            said = f"figure 7, {stages} stages: {1e6 / parallel:.0f} µs a stage"
            print(f"{said}, {parallel / sequential:.2f} × sequential", flush=True)
    return {"points": got}


def page7(data):
    points = data["points"]
    text = ["## Figure 7: parallel and sequential dispatch", ""]
    text += paragraph(
        "A program has several stages, each an addition on a different worker; the client waits for each call."
        " *Parallel* dispatches all stages at once; *sequential* dispatches a stage when the one before has ended."
        " *Moves alone* is the same program without the additions. Times are µs per stage; lower is better."
    )
    heads = ["stages", "parallel", "sequential", "sequential / parallel", "moves alone", "parallel / moves"]
    rows = [
        [
            p["stages"],
            *(f"{1e6 / p[how]:,.0f}" for how in ("parallel", "sequential")),
            f"{p['parallel'] / p['sequential']:.2f}",
            f"{1e6 / p['moves']:,.0f}",
            f"{p['moves'] / p['parallel']:.2f}",
        ]
        for p in points
    ]
    text += [table(heads, rows), "", "![figure 7](figure7.png)", ""]
    for p in points:
        if p["stages"] >= 4:
            times, moves = p["parallel"] / p["sequential"], p["moves"] / p["parallel"]
            took = {how: 1e6 / p[how] for how in ("parallel", "sequential", "moves")}  # µs a stage
            why = (
                f"Sequential dispatch takes {took['sequential']:,.0f} µs a stage: {took['moves']:,.0f} for the move,"
                f" which every dispatch needs, {took['parallel'] - took['moves']:,.0f} for the addition, and"
                f" {took['sequential'] - took['parallel']:,.0f} for two messages through the controller, which are all"
                " that parallel dispatch can save. Against the moves alone it would be"
                f" {p['moves'] / p['sequential']:.2f} ×."
            )
            text.append(verdict(f"{p['stages']} stages: {times:.2f} × sequential (target 2 ×)", times >= 2, why))
            why = (
                f"A stage takes {took['parallel'] - took['moves']:,.0f} µs more than its move, for an addition on"
                f" workers that share {os.cpu_count()} processors."
            )
            said = f"{p['stages']} stages: {moves:.2f} × the moves alone (target at most 2 ×)"
            text.append(verdict(said, moves <= 2, why))
    return text


# ---- The pipeline: the examples' decoder in stages, beside the same model by SPMD.

STAGES = stages.PLACES[0]


def pipeline(quick, *how):
    """What pipeline.py says, on a cluster of a worker for each stage."""
    script = pathlib.Path(__file__).with_name("pipeline.py")
    how = [*how, "--rounds=2"] if quick else how
    up = [sys.executable, "-m", "pathways", "up", "--workers", str(STAGES), "--devices", "1", "--"]
    env = fresh.environment("pathways")
    done = subprocess.run([*up, sys.executable, script, *how], check=True, stdout=subprocess.PIPE, text=True, env=env)
    return json.loads(done.stdout.splitlines()[-1])


def narrow(quick):
    return pipeline(quick, "--shape=256,4,32", "--ways=spmd,no sums,gpipe,1f1b,zb-h1,one", "--rounds=8")


def pipeline_page(data):
    text = ["### Beside SPMD, on this machine", ""]
    text += paragraph(
        f"The [examples' decoder](../../examples/README.md) of 27 million weights with Adam, on {STAGES} workers with"
        " one device each, in steps of 64 sequences of 32 bytes. *SPMD* splits heads, MLPs and logits over the"
        " workers. A pipeline has a stage on each worker, and 16 microbatches. The *loop* is GPipe in plain JAX with a"
        f" call for each stage and microbatch. *Without its sums* each worker computes as much as with SPMD, but of its"
        f" own part alone, which trains nothing. They take turns, a step each, for {data['rounds']} rounds (lowest –"
        " highest). More tokens are better, and less processor time, which is that of all processes together. A ratio"
        " is the median of those of the rounds, so it may differ from that of the two medians beside it."
    )
    text += [*beside_spmd(data["ways"]), ""]
    text += paragraph(
        f"All workers share {os.cpu_count()} processors, and while one stage waits, the work of another fills them. So"
        " a bubble costs no time here. The table compares the costs of using several workers in these ways, beside one"
        " worker that has all processors to itself. SPMD pays for its sums of activations, two a layer forward and two"
        " backward. A pipeline pays for its moves, for computing a sixteenth of the batch at a time, and for summing"
        " the gradients of these parts. The rows above show what bubbles take where each stage has a processor."
    )
    return text


def narrow_page(data):
    ways = data["ways"]
    sums = 1 - 1 / ways["no sums"]["by spmd"]["median"]
    text = ["### Beside SPMD, with narrower layers", ""]
    text += paragraph(
        f"The same with 32 layers, 256 wide, which also have 27 million weights, for {data['rounds']} rounds. A layer"
        " does a quarter of the work for a token, and its sums have half the bytes, so SPMD spends more of its time in"
        f" sums than above. *Without its sums* it would take {sums:.1%} less time for a step; by the arithmetic above"
        f" the paper's SPMD would take {stages.COLLECTIVES:.1%} less. Here, too, a bubble costs no time, where the"
        f" paper's stages have processors of their own. If bubbles took {stages.BUBBLE:.1%} of gpipe's time, it would"
        f" be {(1 - stages.BUBBLE) * ways['gpipe']['by spmd']['median']:.2f} times as fast as SPMD."
    )
    return [*text, *beside_spmd(ways)]


def beside_spmd(ways):
    """A table of the ways to train, and whether pipelines are as much faster than SPMD as the paper's."""
    named = {"spmd": "SPMD", "no sums": "SPMD without its sums", "one": "one worker, whole batch"}
    cells = [
        [named.get(way, way), f"{of['tokens/s']:,.0f}", ratio(of["by spmd"]), f"{of['processor']:.2f} s"]
        for way, of in ways.items()
    ]
    text = [table(["", "tokens a second", "by SPMD's", "processor time of a step"], cells), ""]
    paper = stages.PAPERS[STAGES, 16] / stages.SPMD
    for way in (way for way in ("gpipe", "1f1b", "zb-h1") if way in ways):
        got = ways[way]["by spmd"]["median"]
        said = f"{way}, {STAGES} stages, 16 microbatches: {got:.2f} × SPMD (target {paper:.3f}, the paper's)"
        text.append(verdict(said, got >= paper))
    return text


FIGURES = {
    "5": (figure5, page5),
    "6": (figure6, page6),
    "7": (figure7, page7),
    "8": (sharing.figure8, sharing.page8),
    "9": (sharing.figure9, sharing.page9),
    "11": (sharing.figure11, sharing.page11),
    "12": (islands.figure12, islands.page12),
    "delay": (islands.delays, islands.page_delays),
    "slow": (slow.measure, slow.page),
    "exchange": (exchange.measure, exchange.page),
    "table1": (models.measure, models.page),
    "table2": (stages.table2, stages.page2),
    "pipeline": (pipeline, pipeline_page),
    "pipeline narrow": (narrow, narrow_page),
    "pipeline slow": (slow.pipelines, slow.pipelines_page),
    "costs": (sharing.costs, sharing.costs_page),
    "weights": (weights.measure, weights.page),
}


def where():
    """The machine and the day, as a section says them."""
    cpus = pathlib.Path("/proc/cpuinfo")
    named = re.search(r"model name\s*: (.*)", cpus.read_text()) if cpus.exists() else None
    return f"{os.cpu_count()} processors, {named[1] if named else platform.machine()}, on {time.strftime('%-d %B %Y')}"


def section(lines, measured):
    """The lines of a section, which say below its title where it was measured."""
    return [*lines[:2], *([*paragraph(f"Measured on {measured}.")] if measured and lines else []), *lines[2:]]


def contents(lines):
    """Links to the sections of a page."""
    titles = [line.removeprefix("## ") for line in lines if line.startswith("## ")]
    links = [(title, re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")) for title in titles]
    return [*(f"- [{title}](#{link})" for title, link in links), ""]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer rounds and sizes: some minutes")
    parser.add_argument("--figures", default=",".join(FIGURES), help="which, by commas (default %(default)s)")
    parser.add_argument(
        "--out", type=pathlib.Path, default=pathlib.Path("out/paper"), help="folder (default %(default)s)"
    )
    said = parser.parse_args()
    began = time.monotonic()
    import jax

    said.out.mkdir(parents=True, exist_ok=True)
    store = said.out / "paper.json"
    data = json.loads(store.read_text()) if store.exists() else {}
    for number in said.figures.split(","):
        data[number] = FIGURES[number][0](said.quick)
        data.setdefault("measured", {})[number] = where()
        store.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n")
    text = ["# The experiments of the Pathways paper", ""]
    text += paragraph(
        "The figures and tables of the paper (Barham et al., MLSys 2022) that are repeated here, beside other systems"
        " and with targets, and what sharing, traces and new weights cost. `make bench-paper` writes the sections, and"
        " some have notes of other runs. Each says on which machine it was measured, and when, unless a simulated clock"
        " makes that irrelevant: compare numbers within a section, not between sections. All have jax"
        f" {jax.__version__}, Python {platform.python_version()} and {os.cpu_count()} processors for all systems."
        " [How it is measured](../../tests/bench/README.md)."
    )
    data, sections = json.loads(store.read_text()), []
    for number, (_, page) in FIGURES.items():
        if number in data:
            sections += [*section(page(data[number]), data.get("measured", {}).get(number)), ""]
    text += [*contents(sections), *sections]
    written = said.out / "README.md"
    written.write_text("\n".join(text))
    figures.draw(written)
    for number in sharing.TRACES:
        if number in data:
            figures.draw_traces(data[number]["real"], said.out / f"figure{number}.png")
    print(f"{time.monotonic() - began:.0f} s; wrote {written}")


if __name__ == "__main__":
    sides.run(main)
