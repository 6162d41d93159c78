"""Measures a data-parallel training step of 25 million weights beside JAX with gloo and JAX in one process."""

import math
import sys

import cluster
import collectives
import page

TITLES = {system: collectives.TITLES[system] for system in ("ours", "gloo", "one")}
WORKERS = (4, 8)
BATCHES = (8, 32)  # examples a worker; with fewer, the sum of gradients takes a larger part of a step
BESIDE = ("gloo", "one")
TARGET = 1.5  # times the speed of JAX with gloo
SAME = 1e-3  # relative difference of losses that the order of sums alone may cause


def command(system, workers, directory):
    script = cluster.PEERS / "train.py"
    if system == "ours":
        return cluster.in_cluster(workers, directory, script, system, str(workers))
    return [sys.executable, script, system, str(workers)]


def measure(running, workers, batch, rounds, seconds):
    """Returns the milliseconds of a step by system, and ours beside each of them."""
    losses = {system: side.ask(model="mlp", batch=batch, calls=1)["first"] for system, side in running.items()}
    if not all(math.isclose(loss, losses["ours"], rel_tol=SAME) for loss in losses.values()):
        raise ValueError(f"the first loss with {workers} workers and batches of {batch} differs: {losses}")
    times, calls = cluster.turns(running, dict.fromkeys(running, {"model": "mlp", "batch": batch}), rounds, seconds)
    ms, ratio = cluster.beside(times)
    targets = [(f"≥ {TARGET} × gloo", ratio["gloo"]["median"] >= TARGET)]
    of = {"workers": workers, "batch": batch, "rounds": rounds, "calls": calls}
    return of | {"ms": ms, "ratio": ratio, "targets": targets}


def run(quick, chosen, had, keep):
    """Measures and prints the chosen rows that are not among those had before; returns the results.

    keep(results) is called after each row.
    """
    rounds, seconds = (3, 0.3) if quick else (5, 1)
    out = {"rows": had.get("rows", [])}
    done = {(row["workers"], row["batch"]) for row in out["rows"]}
    heads = "".join(f"ours / {TITLES[system]}".rjust(26) for system in BESIDE)
    print(f"{'training step, 25 million weights':42}{heads}{'ours, ms':>12}")
    for workers in WORKERS:
        names = {batch: f"{workers} workers, {batch} examples each, training" for batch in BATCHES}
        batches = BATCHES[:1] if quick else BATCHES
        wanted = [batch for batch in batches if (workers, batch) not in done and chosen(names[batch])]
        if not wanted:
            continue
        with cluster.started(TITLES, workers, command) as (running, _, _):
            for batch in wanted:
                got = measure(running, workers, batch, rounds, seconds)
                ratios = "".join(cluster.said(got["ratio"][system]).rjust(26) for system in BESIDE)
                ours = got["ms"]["ours"]["median"]
                print(f"{names[batch]:42}{ratios}{ours:12.1f}{cluster.verdict(got['targets'])}", flush=True)
                out["rows"].append(got)
                keep(out)
    return out


def write(rows, folder):
    """Writes the table for the page."""
    heads = ["workers", "examples a worker", "ours, ms", *(f"speed of {TITLES[system]}" for system in BESIDE)]
    cells = [
        [row["workers"], row["batch"], f"{row['ms']['ours']['median']:.0f}"]
        + [page.ratio(row["ratio"][system]) for system in BESIDE]
        for row in rows
    ]
    (folder / "training.md").write_text(page.table(heads, cells) + "\n")
