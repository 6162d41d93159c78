"""Measures Open Pathways beside stock JAX on devices of one process: the same script through three backends, in turns.

The backends are "pathways", "jaxlib" (stock JAX with the CPU client inside jaxlib) and "plugin" (stock JAX with the
very plugin that Pathways drives). Each is a process that lives for the whole run; in each round each of them runs one
short segment of the same calls, in rotating order.
"""

import contextlib
import importlib.util
import pathlib
import statistics
import sys

import fresh
import sides

HERE = pathlib.Path(__file__).parent
BACKENDS = ("pathways", "jaxlib", "plugin")
KIB, MIB = 1 << 10, 1 << 20
SEGMENT = 0.03  # seconds of one backend in one round, about
SPEED = 0.97  # of stock's tokens a second, at least, in the demo


def size(n):
    return f"{n // MIB} MiB" if n >= MIB else f"{n // KIB} KiB"


def rows(quick):
    """Returns (name, what is asked, budgets: by backend, the most that ours may take of its time)."""
    yield "tiny jit, asynchronous", {"row": "tiny", "sync": False}, {"jaxlib": 1.5, "plugin": 1.08}
    yield "tiny jit, synchronous", {"row": "tiny", "sync": True}, {"jaxlib": 1.6, "plugin": 1.08}
    yield "computation of 1 ms", {"row": "computation", "length": None}, {"jaxlib": 1.02}
    yield "training step on 8 devices", {"row": "step"}, {"jaxlib": 1.1}
    sizes = (KIB, MIB, 64 * MIB) if quick else (KIB, 64 * KIB, MIB, 16 * MIB, 256 * MIB)
    for n in sizes:
        for aligned in (True, False):
            name = f"device_put {size(n)}, {'aligned' if aligned else 'unaligned'}"
            yield name, {"row": "put", "bytes": n, "aligned": aligned}, {}
    for n in sizes:
        yield f"np.asarray {size(n)}", {"row": "fetch", "bytes": n}, {}


def spread(values):
    return {"median": statistics.median(values), "low": min(values), "high": max(values)}


def calls_of(stock, asked):
    """How many calls of stock JAX fill a segment."""
    n = 1
    while True:
        seconds = stock.ask(calls=n, **asked)["seconds"]
        if seconds > SEGMENT / 4 or n >= 4096:
            return max(1, min(8192, round(n * SEGMENT / max(seconds, 1e-9))))
        n *= 4


def turns(workers, asked, rounds):
    """Returns the number of calls a turn, and what each backend answered, round by round."""
    n = 1 if asked["row"] == "demo" else calls_of(workers["jaxlib"], asked)
    if asked["row"] in ("put", "fetch"):
        n = max(1, min(n, (256 * MIB) // asked["bytes"], 256))
    for worker in workers.values():
        worker.ask(calls=n, **asked)  # not counted: compiles and warms up
    answers = {backend: [] for backend in BACKENDS}
    for i in range(rounds):
        for backend in BACKENDS[i % 3 :] + BACKENDS[: i % 3]:
            answers[backend].append(workers[backend].ask(calls=n, **asked))
    return n, answers


def judged(n, answers, budgets):
    """Returns a row: times, ratios, and whether it met its budgets, or copies nothing that stock does not copy."""
    seconds = {backend: [answer["seconds"] / n for answer in answers[backend]] for backend in BACKENDS}
    out = {"calls": n, "rounds": len(answers["pathways"])}
    out["us"] = {backend: spread([s * 1e6 for s in seconds[backend]]) for backend in BACKENDS}
    for other in ("jaxlib", "plugin"):
        ratios = [a / b for a, b in zip(seconds["pathways"], seconds[other], strict=True)]
        out[f"ratio_{other}"] = spread(ratios)
    if budgets:
        met = {other: out[f"ratio_{other}"]["median"] <= most for other, most in budgets.items()}
        out |= {"budgets": budgets, "within": met, "met": all(met.values())}
    if "copies" in answers["pathways"][0]:
        copies = {backend: statistics.mean(answer["copies"] for answer in answers[backend]) for backend in BACKENDS}
        out |= {"copies": copies, "met": copies["pathways"] <= copies["jaxlib"]}
    return out


def length_of_a_millisecond(stock):
    """How many steps of the computation take stock JAX 1 ms."""
    seconds = {
        k: min(stock.ask(row="computation", length=k, calls=20)["seconds"] / 20 for _ in range(5)) for k in (8, 200)
    }
    step = (seconds[200] - seconds[8]) / 192
    return max(1, round((1e-3 - seconds[8]) / step) + 8)


def line(name, got):
    def ratio(r):
        return f"{r['median']:6.2f} [{r['low']:5.2f} – {r['high']:5.2f}]"

    us = got["us"]
    said = f"{name:32} {ratio(got['ratio_jaxlib'])}  {ratio(got['ratio_plugin'])}"
    said += "".join(f"{us[backend]['median']:14.2f}" for backend in BACKENDS)
    for other, most in got.get("budgets", {}).items():
        of = "" if other == "jaxlib" else f" of the {other}'s"
        said += f"   ≤ {most:.4g}{of} {'ok' if got['within'][other] else 'OVER'}"
    if "copies" in got:
        said += "   " + " ".join("copy" if got["copies"][backend] > 0.5 else "zero-copy" for backend in BACKENDS)
        said += " ok" if got["met"] else " COPIES, and stock does not"
    return said


def demo(quick):
    """Measures steps of the demo's model, twelve a turn. Gives the row.

    Each process gets its memory from the system in a way of its own, which makes it some percent faster or slower for
    all its life; so there are several of each backend.
    """
    processes, rounds = (1, 9) if quick else (3, 8)
    answers = {backend: [] for backend in BACKENDS}
    for _ in range(processes):
        with opened() as (workers, _):
            _, more = turns(workers, {"row": "demo", "steps": 12}, rounds)
        for backend in BACKENDS:
            answers[backend] += more[backend]
    tokens = answers["pathways"][0]["tokens"]
    got = judged(1, answers, {"jaxlib": 1 / SPEED})
    got["tokens a second"] = {
        backend: spread([tokens / answer["seconds"] for answer in answers[backend]]) for backend in BACKENDS
    }
    speed = {backend: f"{got['tokens a second'][backend]['median']:,.0f}" for backend in BACKENDS}
    print(line("demo, a step", got))
    print(
        f"{'':32} {speed['pathways']} tokens/s, stock {speed['jaxlib']}: "
        f"{1 / got['ratio_jaxlib']['median']:.3f} of stock's, ≥ {SPEED} {'ok' if got['met'] else 'MISSED'}",
        flush=True,
    )
    return got


def arrow(worker, quick, chosen):
    """Measures Arrow data in and out beside the way by NumPy, in our own process; returns ratios of theirs to ours."""
    out = {}
    sizes = (KIB, 4 * KIB, 64 * KIB, MIB, 64 * MIB) if quick else tuple(KIB << k for k in range(0, 21, 2))
    for way in ("in", "out", "through"):
        for n in sizes:
            name = f"Arrow {way}, {size(n)}"
            if not chosen(name):
                continue
            calls = max(1 if n > 64 * MIB else 4, min(200, 16 * MIB // n))
            times = 5 if n > 64 * MIB else 9 if quick else 15
            rounds = [worker.ask(row="arrow", way=way, bytes=n, calls=calls)["each"] for _ in range(times)]
            us = {side: spread([each[side] * 1e6 for each in rounds]) for side in rounds[0]}
            others = [side for side in us if side not in ("arrow", "alone")]
            ratios = {side: spread([each[side] / each["arrow"] for each in rounds]) for side in others}
            out[name] = {"us": us, "times": ratios}
            said = ", ".join(f"{r['median']:.2f} [{r['low']:.2f} – {r['high']:.2f}] × {s}" for s, r in ratios.items())
            alone = f"; by itself {us['alone']['median']:.2f} µs" if "alone" in us else ""
            print(f"{name:32} {us['arrow']['median']:10.2f} µs, {said}{alone}", flush=True)
    return out


def streams(worker, quick, chosen):
    """Measures streams of record batches to all devices beside their reader alone and a copy of as many bytes.

    Gives gigabytes a second, and ratios of ours to the slower of the two.
    """
    out = {}
    for source in ("Parquet", "plain Parquet", "memory"):
        name = f"Arrow stream, {source}"
        if not chosen(name):
            continue
        asked = {"row": "stream", "source": source, "bytes": (128 if quick else 512) * MIB}
        rounds = [worker.ask(**asked, calls=1)["each"] for _ in range(9 if quick else 15)]
        rates = {side: spread([asked["bytes"] / each[side] / 1e9 for each in rounds]) for side in rounds[0]}
        ratio = spread([max(each["reader"], each["copy"]) / each["arrow"] for each in rounds])
        out[name] = {"gigabytes a second": rates, "ratio": ratio}
        said = ", ".join(f"{side} {rate['median']:.2f}" for side, rate in rates.items() if side != "arrow")
        print(
            f"{name:32} {rates['arrow']['median']:10.2f} GB/s ({said}); "
            f"{ratio['median']:.2f} [{ratio['low']:.2f} – {ratio['high']:.2f}] × the slower",
            flush=True,
        )
    return out


def draw(axes, results):
    """Draws our time as a multiple of the others', on a logarithmic axis."""
    names = list(results)
    for offset, other, label in (
        (-0.18, "jaxlib", "of stock JAX (jaxlib's CPU client)"),
        (0.18, "plugin", "of the plugin under stock JAX"),
    ):
        ratios = [results[name][f"ratio_{other}"] for name in names]
        middle = [r["median"] for r in ratios]
        error = [[r["median"] - r["low"] for r in ratios], [r["high"] - r["median"] for r in ratios]]
        at = [i + offset for i in range(len(names))]
        axes.errorbar(middle, at, xerr=error, fmt="o", markersize=4, elinewidth=1, capsize=2, label=label)
    for i, name in enumerate(names):
        for other, most in results[name].get("budgets", {}).items():
            half = (-0.4, 0) if other == "jaxlib" else (0, 0.4)
            axes.plot([most, most], [i + half[0], i + half[1]], color="black", linewidth=2)
    axes.axvline(1, color="gray", linewidth=0.8)
    axes.set_xscale("log")
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel("time of Open Pathways, as a multiple (lower is better; a bar is the budget)")
    axes.legend(fontsize=8)


@contextlib.contextmanager
def opened():
    """Yields a worker for each backend, and how many devices each sees; they end with the block."""
    workers = {}
    try:
        for backend in BACKENDS:
            command = [sys.executable, str(HERE / "worker.py"), backend]
            workers[backend] = sides.Side(command, fresh.environment(backend))
        yield workers, {backend: worker.hear()["devices"] for backend, worker in workers.items()}
    finally:
        sides.close(workers.values())


def run(quick, chosen):
    """Measures and prints the chosen rows; returns the results."""
    plugin = fresh.plugin_path()
    with opened() as (workers, devices):
        out = {"about": {"plugin": plugin, "devices": devices}} | measure_all(workers, plugin, quick, chosen)
    if chosen("demo"):
        print()
        out["rows"]["demo"] = demo(quick)
    missed = [name for name, row in out["rows"].items() if not row.get("met", True)]
    asked = sum("met" in row for row in out["rows"].values())
    print(f"\n{asked - len(missed)} of {asked} targets met" + (f"; missed: {', '.join(missed)}" if missed else ""))
    return out


def measure_all(workers, plugin, quick, chosen):
    print(f"plugin {plugin}, 8 devices\n")
    heads = f"{'ours / stock':>22}  {'ours / plugin':>22}" + "".join(f"{backend + ', µs':>14}" for backend in BACKENDS)
    print(f"{'embedded':32} {heads}")
    out = {"rows": {}}
    for name, asked, budgets in rows(quick):
        if not chosen(name):
            continue
        if asked["row"] == "computation":
            asked["length"] = length_of_a_millisecond(workers["jaxlib"])
        rounds = 9 if quick else 15 if asked["row"] in ("put", "fetch") else 45
        out["rows"][name] = judged(*turns(workers, asked, rounds), budgets)
        print(line(name, out["rows"][name]), flush=True)
    if importlib.util.find_spec("pyarrow") is None:
        print("\nArrow: left out, there is no pyarrow")
    else:
        print("\nArrow: our time, and how many times as fast it is as NumPy's way by")
        out["arrow"] = arrow(workers["pathways"], quick, chosen)
        out["streams"] = streams(workers["pathways"], quick, chosen)
    if chosen("memory growth"):
        n = 10_000 if quick else 100_000
        out["growth"] = {backend: worker.ask(row="growth", calls=n)["grown"] for backend, worker in workers.items()}
        grown = ", ".join(f"{backend} {size / KIB:.0f} KiB" for backend, size in out["growth"].items())
        print(f"\nmemory grown over {n} calls: {grown}")
    return out
