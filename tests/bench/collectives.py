"""Measures collectives by size beside JAX and PyTorch with gloo, JAX in one process, and copies of as many bytes."""

import sys

import cluster
import page

OPERATIONS = ("AllReduce", "AllGather", "AllToAll", "ReduceScatter")
ALONE = "Add"  # moves nothing: what a call takes beside the moving
PUT = "AllReduce of puts"  # of what the client has put; the operands of others were computed
KINDS = (ALONE, *OPERATIONS, PUT)
WORKERS = (2, 4, 8)
SIZES = [4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20, 256 << 20]  # bytes a device brings
QUICK = [4 << 10, 1 << 20, 16 << 20]
RESULTS = 4 << 30  # bytes of all results together, at most
TITLES = {"ours": "Open Pathways", "gloo": "JAX with gloo", "torch": "PyTorch with gloo", "one": "JAX in one process"}
COPIES, PASSES = "memcpy", "the same copies in C"
BESIDE = ("gloo", "torch", "one", COPIES, PASSES)
LARGE = 1 << 20  # from here on three times gloo's speed is wanted, below it one and a half
BOUND = 64 << 20  # from here on half of memcpy's speed is wanted
PASSED = 16 << 20  # from here on the same copies in C take a turn
LONG_ROUNDS = 3  # of those that take long, in seconds: sizes from BOUND on


def sizes_of(operation, quick):
    """Returns the sizes of an operation's rows."""
    return [size for size in (QUICK if quick else SIZES) if operation != PUT or size >= LARGE]


def results(operation, workers, size):
    """Returns the bytes of all results."""
    return size * {"AllGather": workers * workers, "ReduceScatter": 1}.get(operation, workers)


def moved(operation, workers, size):
    """Returns the bytes that cannot but come from one participant to another."""
    return {
        "Add": 0,
        "AllReduce": 2 * (workers - 1) * size,
        PUT: 2 * (workers - 1) * size,
        "AllGather": workers * (workers - 1) * size,
        "AllToAll": (workers - 1) * size,
        "ReduceScatter": (workers - 1) * size,
    }[operation]


def command(system, workers, directory):
    """Returns the command of a system's process."""
    script = cluster.PEERS / "exchange.py"
    if system == "ours":
        return cluster.in_cluster(workers, directory, script, system, str(workers))
    if system == "torch":
        return [cluster.PEERS_PYTHON, cluster.PEERS / "torch_gloo.py", str(workers)]
    if system == COPIES:
        return [sys.executable, cluster.PEERS / "copies.py"]
    if system == PASSES:
        return [sys.executable, cluster.PEERS / "passes.py", str(workers)]
    return [sys.executable, script, system, str(workers)]


def measure(running, operation, workers, size, rounds, seconds):
    """Returns the milliseconds of a call by system, and ours beside each of them."""
    asked = dict.fromkeys(running, {"operation": "AllReduce" if operation == PUT else operation, "size": size})
    if operation == PUT:
        asked |= {system: asked[system] | {"put": True} for system in ("ours", "gloo", "one") if system in running}
    asked[COPIES] = {"moved": moved(operation, workers, size)}
    sides = dict(running)
    if operation == ALONE:
        sides.pop(COPIES, None)
    if operation == ALONE or size < PASSED:
        sides.pop(PASSES, None)
    if size >= BOUND:
        rounds = min(rounds, LONG_ROUNDS)
    times, calls = cluster.turns(sides, asked, rounds, seconds)
    got = {"workers": workers, "size": size, "operation": operation, "calls": calls, "rounds": rounds}
    got["ms"], got["ratio"] = cluster.beside(times)
    got["targets"] = targets = []
    if operation == ALONE:
        return got
    least = 3 if size >= LARGE else 1.5
    for system in ("gloo", "torch"):
        if system in got["ratio"]:
            targets.append((f"≥ {least} × {TITLES[system]}", got["ratio"][system]["median"] >= least))
    if size >= BOUND:
        targets.append(("≥ 0.5 × memcpy", got["ratio"][COPIES]["median"] >= 0.5))
    return got


def bytes_said(size):
    return f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB"


def line(got):
    text = f"{got['operation']:18}{got['workers']:2} × {bytes_said(got['size']):8}"
    ratios = [got["ratio"].get(system) for system in BESIDE]
    text += "".join(f"{ratio['median']:8.2f} [{ratio['low']:.2f}–{ratio['high']:.2f}]".rjust(22) if ratio else
                    f"{'–':>22}" for ratio in ratios)  # fmt: skip
    return text + f"{got['ms']['ours']['median']:12.3f}" + cluster.verdict(got["targets"])


def run(quick, chosen, had, keep):
    """Measures and prints the chosen rows that are not among those had before; returns the results.

    keep(results) is called after each row.
    """
    rounds, seconds = (3, 0.1) if quick else (5, 0.2)
    out = {"rows": had.get("rows", []), "left out": had.get("left out", {})}
    done = {(row["operation"], row["workers"], row["size"]) for row in out["rows"]}
    heads = "".join(f"ours / {title}".rjust(22) for title in ["gloo", "PyTorch", "one process", COPIES, "C"])
    print(f"{'collectives':31}{heads}{'ours, ms':>12}")
    for workers in WORKERS:
        wanted = [
            (operation, size)
            for operation in KINDS
            for size in sizes_of(operation, quick)
            if results(operation, workers, size) <= RESULTS
            and (operation, workers, size) not in done
            and chosen(f"{operation} {workers} × {bytes_said(size)}, collectives")
        ]
        if not wanted:
            continue
        with cluster.started((*TITLES, COPIES, PASSES), workers, command) as (running, _, missing):
            out["left out"] |= missing
            for operation, size in wanted:
                out["rows"].append(measure(running, operation, workers, size, rounds, seconds))
                print(line(out["rows"][-1]), flush=True)
                keep(out)
    for system, why in out["left out"].items():
        print(f"{TITLES.get(system, system)} is left out: {why}")
    return out


def write(rows, folder):
    """Writes the tables as a page has them, a column for each size, and the picture."""
    rows = sorted(rows, key=lambda row: (row["workers"], KINDS.index(row["operation"]), row["size"]))  # after --resume
    sizes = [size for size in SIZES if any(row["size"] == size for row in rows)]
    found = {(row["operation"], row["workers"], row["size"]): row for row in rows}
    lines = list(dict.fromkeys((row["operation"], row["workers"]) for row in rows))

    def table(title, said):
        cells = [[*of, *("–" if (*of, n) not in found else said(found[*of, n]) for n in sizes)] for of in lines]
        cells = [cell for cell in cells if set(cell[2:]) != {"–"}]
        return (
            f"**{title}**\n\n{page.table(['collective', 'workers', *map(bytes_said, sizes)], cells)}\n" if cells else ""
        )

    def beside(system):
        return lambda row: page.ratio(row["ratio"].get(system))

    parts = [table("Milliseconds of a call", lambda row: f"{row['ms']['ours']['median']:.3g}")]
    parts += [table(f"Our speed by that of {TITLES.get(system, system)}", beside(system)) for system in BESIDE]
    (folder / "collectives.md").write_text("\n".join(filter(None, parts)))
    plot(rows, folder / "collectives.png")


def plot(rows, path):
    """Draws how many bytes a second come to other participants, over sizes: a panel for each collective and count."""
    rows = [row for row in rows if row["operation"] in OPERATIONS]
    if not rows:
        return
    import matplotlib

    matplotlib.use("Agg")
    from figures import COLORS, GREY
    from matplotlib import pyplot

    colors = COLORS | {"PyTorch with gloo": COLORS["Monarch"], COPIES: GREY}
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
                    panel.plot(*zip(*points, strict=True), "o-", markersize=3, label=title, color=colors[title])
            panel.set_xscale("log", base=2)
            panel.set_yscale("log")
            panel.set_title(f"{operation}, {workers} workers", fontsize=9)
            panel.grid(linewidth=0.3)
    for panel in axes[-1]:
        panel.set_xlabel("bytes a device")
    for panels in axes:
        panels[0].set_ylabel("GB/s (higher is better)")
    next(panel for panel in axes.flat if panel.lines).legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
