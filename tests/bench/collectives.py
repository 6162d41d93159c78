"""Measures collectives by size beside JAX and PyTorch with gloo, JAX in one process, and copies of as many bytes."""

import contextlib
import sys
import tempfile

import cluster
import fresh
import sides

OPERATIONS = ("AllReduce", "AllGather", "AllToAll", "ReduceScatter")
WORKERS = (2, 4, 8)
SIZES = [4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20, 256 << 20]  # bytes a device brings
QUICK = [4 << 10, 1 << 20, 16 << 20]
RESULTS = 4 << 30  # bytes of all results together, at most
TITLES = {"ours": "Open Pathways", "gloo": "JAX with gloo", "torch": "PyTorch with gloo", "one": "JAX in one process"}
COPIES = "memcpy"
LARGE = 1 << 20  # from here on three times gloo's speed is wanted, below half of it
BOUND = 64 << 20  # from here on half of memcpy's speed is wanted


def results(operation, workers, size):
    """Returns the bytes of all results."""
    each = {"AllReduce": size, "AllGather": size * workers, "AllToAll": size, "ReduceScatter": size // workers}
    return workers * each[operation]


def moved(operation, workers, size):
    """Returns the bytes that cannot but come from one participant to another."""
    return {
        "AllReduce": 2 * (workers - 1) * size,
        "AllGather": workers * (workers - 1) * size,
        "AllToAll": (workers - 1) * size,
        "ReduceScatter": (workers - 1) * size,
    }[operation]


def command(system, workers, directory):
    """Returns the command of a system's process."""
    script = cluster.PEERS / "exchange.py"
    if system == "ours":
        up = ["-m", "pathways_command", "up", "--workers", str(workers), "--devices", "1", "--dir", directory, "--"]
        return [sys.executable, *up, sys.executable, script, "ours", str(workers)]
    if system == "torch":
        return [cluster.PEERS_PYTHON, cluster.PEERS / "torch_gloo.py", str(workers)]
    if system == COPIES:
        return [sys.executable, cluster.PEERS / "copies.py"]
    return [sys.executable, script, system, str(workers)]


@contextlib.contextmanager
def started(workers):
    """Returns the systems that run here, and why the others do not."""
    with tempfile.TemporaryDirectory(prefix="bench-") as directory, contextlib.ExitStack() as stack:
        running, missing = {}, {}
        stack.callback(lambda: sides.close(running.values()))
        for system in (*TITLES, COPIES):
            env = fresh.environment("pathways" if system == "ours" else "jaxlib") | {"TMPDIR": directory}
            for name in ("PATHWAYS_DEVICES", "PATHWAYS_ADDRESS"):
                env.pop(name, None)
            if system == "torch" and not cluster.PEERS_PYTHON.exists():
                missing[system] = "make bench-peers installs it"
                continue
            running[system] = sides.Side(command(system, workers, directory), env)
        for system in list(running):
            try:
                why = running[system].hear().get("left out")
            except sides.Ended as error:
                if system != "torch":
                    raise
                why = error
            if why:
                missing[system] = str(why)
                running.pop(system).close()
        yield running, missing


def measure(running, operation, workers, size, rounds, seconds):
    """Returns the milliseconds of a call by system, and ours beside each of them."""
    asked = {"operation": operation, "size": size}
    copy = {"moved": moved(operation, workers, size)}
    times, calls = {}, {}
    for system, side in running.items():
        of = copy if system == COPIES else asked
        if side.ask(calls=1, **of).get("left out"):  # compiles
            continue
        took = min(side.ask(calls=1, **of)["seconds"] for _ in range(2))
        calls[system] = max(1, min(1000, round(seconds / max(took, 1e-6))))
        times[system] = []
    for i in range(rounds):
        order = list(times)
        first = i % len(order)
        for system in order[first:] + order[:first]:
            took = running[system].ask(calls=calls[system], **(copy if system == COPIES else asked))["seconds"]
            times[system].append(took / calls[system] * 1e3)
    got = {"workers": workers, "size": size, "operation": operation, "calls": calls, "rounds": rounds}
    got["ms"] = {system: cluster.spread(of) for system, of in times.items()}
    got["ratio"] = {
        system: cluster.spread([theirs / ours for theirs, ours in zip(of, times["ours"], strict=True)])
        for system, of in times.items()
        if system != "ours"
    }
    got["targets"] = targets = []
    if "gloo" in got["ratio"]:
        least = 3 if size >= LARGE else 1.5
        targets.append((f"≥ {least} × gloo", got["ratio"]["gloo"]["median"] >= least))
    if size >= BOUND:
        targets.append(("≥ 0.5 × memcpy", got["ratio"][COPIES]["median"] >= 0.5))
    return got


def bytes_said(size):
    return f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB"


def line(got):
    text = f"{got['operation']:14}{got['workers']:2} × {bytes_said(got['size']):8}"
    ratios = [got["ratio"].get(system) for system in (*list(TITLES)[1:], COPIES)]
    text += "".join(f"{ratio['median']:8.2f} [{ratio['low']:.2f}–{ratio['high']:.2f}]".rjust(22) if ratio else
                    f"{'–':>22}" for ratio in ratios)  # fmt: skip
    return text + f"{got['ms']['ours']['median']:12.3f}" + cluster.verdict(got["targets"])


def run(quick, chosen):
    """Measures and prints the chosen rows; returns the results."""
    rounds, seconds = (3, 0.1) if quick else (5, 0.3)
    rows, missing = [], {}
    heads = "".join(f"ours / {title}".rjust(22) for title in ["gloo", "PyTorch", "one process", COPIES])
    print(f"{'collectives':27}{heads}{'ours, ms':>12}")
    for workers in WORKERS:
        wanted = [
            (operation, size)
            for operation in OPERATIONS
            for size in (QUICK if quick else SIZES)
            if results(operation, workers, size) <= RESULTS
            and chosen(f"{operation} {workers} × {bytes_said(size)}, collectives")
        ]
        if not wanted:
            continue
        with started(workers) as (running, why):
            missing |= why
            for operation, size in wanted:
                rows.append(measure(running, operation, workers, size, rounds, seconds))
                print(line(rows[-1]), flush=True)
    for system, why in missing.items():
        print(f"{TITLES[system]} is left out: {why}")
    return {"rows": rows, "left out": missing}


def write(rows, path):
    """Writes the table as a page has it."""
    titles = [TITLES["gloo"], TITLES["torch"], TITLES["one"], COPIES]
    lines = ["| collective | workers | bytes a device | ours, ms |" + "".join(f" speed of {t} |" for t in titles)]
    lines.append("|---" * (4 + len(titles)) + "|")
    for row in rows:
        ratios = [row["ratio"].get(system) for system in ("gloo", "torch", "one", COPIES)]
        said = "".join(
            f" {ratio['median']:.2f} ({ratio['low']:.2f} – {ratio['high']:.2f}) |" if ratio else " – |"
            for ratio in ratios
        )
        ours = row["ms"]["ours"]["median"]
        lines.append(f"| {row['operation']} | {row['workers']} | {bytes_said(row['size'])} | {ours:.3f} |{said}")
    path.write_text("\n".join(lines) + "\n")


def plot(rows, path):
    """Draws how many bytes a second come to other participants, over sizes: a panel for each collective and count."""
    if not rows:
        return
    import matplotlib

    matplotlib.use("Agg")
    from figures import COLOURS, GREY
    from matplotlib import pyplot

    colours = COLOURS | {"PyTorch with gloo": COLOURS["Monarch"], COPIES: GREY}
    counts = [n for n in WORKERS if any(row["workers"] == n for row in rows)]
    figure, axes = pyplot.subplots(
        len(OPERATIONS), len(counts), figsize=(4 * len(counts), 12), sharex=True, squeeze=False
    )
    for operation, panels in zip(OPERATIONS, axes, strict=True):
        for workers, panel in zip(counts, panels, strict=True):
            of = [row for row in rows if row["operation"] == operation and row["workers"] == workers]
            for system, title in (TITLES | {COPIES: COPIES}).items():
                points = [
                    (row["size"], moved(operation, workers, row["size"]) / row["ms"][system]["median"] / 1e6)
                    for row in of
                    if system in row["ms"]
                ]
                if points:
                    panel.plot(*zip(*points, strict=True), "o-", markersize=3, label=title, color=colours[title])
            panel.set_xscale("log", base=2)
            panel.set_yscale("log")
            panel.set_title(f"{operation}, {workers} workers", fontsize=9)
            panel.grid(linewidth=0.3)
    for panel in axes[-1]:
        panel.set_xlabel("bytes a device")
    for panels in axes:
        panels[0].set_ylabel("GB/s (higher is better)")
    axes[0, 0].legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
