"""The paper's table 2: pipelines of 4 to 16 places, in each schedule, as the control plane plays them.

    PYTHONPATH=tests python tests/bench/stages.py FILE        writes the small schedules of core/cluster's tests

Devices are simulated and have a clock of their own: forwards, input halves and weight halves of backwards take equally
long, a move takes a hundredth of that. Orders are those of `pathways.pipeline`. In the tests' schedules there are some
whose last place takes longer, as that of a model's loss does.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

import fresh
import gobench
from page import paragraph, table, undecided, verdict
from pathways import _plan
from pathways._schedule import NAMES, Schedule

PLACES, MICROBATCHES = (4, 8, 16), (16, 32, 64)
PAPERS = {(4, 16): 133.7, (8, 32): 132.7, (16, 64): 131.4}  # thousand tokens a second
SPMD = 125.7
CORES = 128  # of SPMD and of each pipeline


def bubble(places, microbatches):
    """Of the paper's GPipe."""
    return (places - 1) / (places + microbatches - 1)


def faster(places, microbatches):
    """How many times as fast a core of the paper's GPipe is as one of its SPMD, while it is not idle."""
    return PAPERS[places, microbatches] / SPMD / (1 - bubble(places, microbatches))


FIRST = next(iter(PAPERS))
BUBBLE = bubble(*FIRST)
COLLECTIVES = 1 - 1 / faster(*FIRST)  # the part of SPMD's step, if a stage of GPipe spends nothing in them
SPLIT = ("zb-h2", "zbv")  # these leave no gap between steps
STEPS = 8
# What is run on this machine's clock: {milliseconds of a forward, or half of a backward: microbatches}.
SLEEPS = {20: MICROBATCHES, 100: MICROBATCHES}
REAL_TIME = ("chrt", "--rr", "10")
# How far the median steps of two rows of zb-h2 or zbv with ops of 20 ms lie apart, as parts of a step: 53 rows had 0.8
# to 1.3 %. What costs time there is the same for longer ops, so of these it is a smaller part.
BETWEEN_ROWS = {20: 0.005, 100: 0.001}
SLOW = 1.5  # how long ops of the last place take where places are uneven, in ops of the others


def schedule(name, width, microbatches):
    places = {"interleaved": [*range(width)] * 2, "zbv": [*range(width), *reversed(range(width))]}
    places = places.get(name, [*range(width)])
    return Schedule(name, len(places), microbatches, places=places)


def planned(s, lengths):
    """Returns the bubble of a schedule in a row of steps, if moves take no time, and ops as long as places say."""
    costs = [_plan.Cost(forward=n, backward=2 * n, input=n, weight=n) for n in (lengths[place] for place in s.places)]
    steps = _plan.simulate(s, costs, [[place] for place in s.places], STEPS)
    first, *_, last = (max(timed.end for timed in step) for step in steps)
    busy = sum(timed.end - timed.begin for timed in steps[0])
    return 1 - busy * (STEPS - 1) / ((max(s.places) + 1) * (last - first))


def write(path, sizes, uneven=False):
    """Writes schedules of so many places and microbatches; with uneven, those again whose last place is slow."""
    every = [
        (schedule(name, width, microbatches), [1] * (width - 1) + [last])
        for last in (1, SLOW)[: 1 + uneven]
        for width, microbatches in sizes
        for name in NAMES
    ]
    data = [
        {"name": s.name, "places": s.places, "microbatches": s.microbatches, "lengths": lengths}
        | {"bubble": round(planned(s, lengths), 4), "ops": [f"{op.stage} {op.microbatch} {op.kind}" for op in s]}
        for s, lengths in every
    ]
    pathlib.Path(path).write_text("[\n" + ",\n".join(map(json.dumps, data)) + "\n]\n")
    return data


def table2(quick):
    """The idle part of a step in a row of steps: {places: {microbatches: {schedule: {way: share}}}}; and what
    sleeping.py says."""
    sizes = [(4, 16), (8, 32)] if quick else [(p, m) for p in PLACES for m in MICROBATCHES]
    found = {}
    with tempfile.TemporaryDirectory(prefix="paper-") as folder:
        file = pathlib.Path(folder) / "schedules.json"
        for of in write(file, sizes):
            at = found.setdefault(str(max(of["places"]) + 1), {}).setdefault(str(of["microbatches"]), {})
            at[of["name"]] = {"planned": of["bubble"]}
        test = "^TestPipelinesAreIdleAsTheirSchedulesSay$"
        for name, got in gobench.attributes("./core/cluster", test, "-pipeline-schedules", file).items():
            _, order, places, microbatches, _, way = name.split("/")
            at = found[places.partition("=")[2]][microbatches.partition("=")[2]]
            at[order][way] = got["steady"]
    sleeps = {20: (16,)} if quick else SLEEPS
    return {"simulated": found, "real": {ms: slept(sizes, ms) for ms, sizes in sleeps.items()}}


def slept(sizes, ms):
    """What sleeping.py says of the smallest pipeline, on a cluster of a worker for each place. Where it may, it runs
    before all else on this machine, as it would on processors of its own."""
    first = REAL_TIME if subprocess.run([*REAL_TIME, "true"], capture_output=True).returncode == 0 else ()
    up = [sys.executable, "-m", "pathways", "up", "--workers", str(PLACES[0]), "--devices", "1", "--"]
    script = [sys.executable, pathlib.Path(__file__).with_name("sleeping.py"), *map(str, sizes), f"--milliseconds={ms}"]
    done = subprocess.run(
        [*first, *up, *script], check=True, stdout=subprocess.PIPE, text=True, env=fresh.environment("pathways")
    )
    return json.loads(done.stdout.splitlines()[-1])


def rows(data):
    return [(int(p), int(m), at) for p, of in data["simulated"].items() for m, at in of.items()]


def page2(data):
    text = ["## Table 2: pipelines", ""]
    text += paragraph(
        "Each place of a pipeline is a worker with one simulated device, on a simulated clock. Messages and the"
        " control plane are real, and a step is one call of a program. A forward takes 20 ms, and so does each half of"
        " a backward; a move between places takes 0.2 ms. Cells are the part of a step in which devices are idle, in a"
        f" row of {STEPS} steps, by the devices' own times; in brackets is what the schedule has if moves take no time."
        " Less is better. *By calls* is GPipe as a loop that calls each computation and each move."
    )
    heads = ["places", "microbatches", "gpipe by calls", *NAMES]

    def cells(at):
        for name in NAMES:
            yield f"{at[name]['program']:.1%} ({at[name]['planned']:.1%})"

    text += [table(heads, [[p, m, f"{at['gpipe']['calls']:.1%}", *cells(at)] for p, m, at in rows(data)]), ""]
    for name in NAMES:
        over = max(at[name]["program"] - at[name]["planned"] for *_, at in rows(data))
        text.append(verdict(f"{name}: at most {100 * over:.1f} points above its timetable (target 2)", over <= 0.02))
    for name in SPLIT:
        most = max(at[name]["program"] for p, m, at in rows(data) if m >= 2 * p)
        said = f"{name}: at most {most:.2%} idle with twice as many microbatches as places or more (target 1 %)"
        text.append(verdict(said, most < 0.01))
    return [*text, "", *real(data["real"]), *against_spmd(data)]


def real(data):
    text = paragraph(
        f"The same on this machine's clock: {PLACES[0]} places, `pathways.pipeline` in a script, and stages that sleep"
        f" instead of computing, so that {os.cpu_count()} processors are enough. The client, the controller and the"
        " workers are processes of their own. All have real-time priority where that is allowed, so that nothing else"
        " on the machine delays them. *ms* is what a forward, or half of a backward, takes. *A row of steps* is the"
        f" median step of {STEPS} in a row, from the end of one step to the end of the next, so it leaves out steps"
        " that other work on the machine delayed; the lines below also give the mean of the whole row. *One step* is"
        " what `pipe.recorded()` says of a single step. The plan is in brackets."
    )
    cells = [cells for ms, at in data.items() for cells in real_rows(ms, at)]
    text += [table(["ms", "microbatches", "", *NAMES], cells), ""]
    stolen = max(one["stolen"] for at in data.values() for of in at.values() for one in of.values())
    text += paragraph(
        "The host of this virtual machine took its processors away, which delays all processes whatever their"
        f" priority, for at most {stolen:.1%} of the time of a row."
    )
    return [*text, *(line for ms, at in data.items() for line in real_verdicts(int(ms), at)), ""]


def real_rows(ms, data):
    for m, at in data.items():
        row = {name: in_a_row(name, m) for name in NAMES}
        one = {name: at[name]["planned"] for name in NAMES}
        for said, key, plan in (("a row of steps", "steady", row), ("one step", "recorded", one)):
            yield [ms, m, said, *(f"{at[name][key]:.1%} ({plan[name]:.1%})" for name in NAMES)]


def in_a_row(name, microbatches):
    return planned(schedule(name, PLACES[0], int(microbatches)), [1] * PLACES[0])


def real_verdicts(ms, data):
    whole = [name for name in NAMES if name not in SPLIT]
    row = max(at[name]["steady"] - in_a_row(name, m) for m, at in data.items() for name in whole)
    one = max(at[name]["recorded"] - at[name]["planned"] for at in data.values() for name in NAMES)
    but_split = f"a row of steps, {', '.join(whole[:-1])} and {whole[-1]}"
    for said, most in ((but_split, row), ("one step, all schedules", one)):
        said = f"{ms} ms, {said}: at most {100 * most:.1f} points above its plan (target 2)"
        yield verdict(said, most <= 0.02, "The lines of zb-h2 and zbv say where they go.")
    for name in SPLIT:
        of = [at[name] for m, at in data.items() if int(m) >= 2 * PLACES[0]]
        most = max(one["steady"] for one in of)
        longer, between = ([one[key] for one in of] for key in ("longer", "between"))
        spent = [(a + b) / (ms / 1e3 + a + b) for a, b in zip(longer, between, strict=True)]
        why = (
            f"Of {listed(one['steady'] for one in of)} %, {listed(spent)} % are what every computation loses: in the"
            f" median a worker sees it take up to {max(longer) * 1e3:.2f} ms longer than its {ms}, and begins the next"
            f" one of the device up to {max(between) * 1e3:.2f} ms later, sums of gradients before it included. The"
            " rest are longer delays now and then, and between steps."
        )
        whole = listed(one["mean"] for one in of)
        apart = BETWEEN_ROWS[ms]
        unclear = most + apart > 0.01 > most - apart
        said = f"{ms} ms, {name}, a row of steps: at most {most:.1%} idle (target 1 %), the whole row {whole} %"
        if unclear:
            more = f"by up to {100 * apart:.1f} points, more than what separates this from the target"
            yield undecided(said, f"one row differs from another {more}")
        else:
            yield verdict(said, most < 0.01, why)


def listed(parts):
    return ", ".join(f"{100 * part:.1f}" for part in parts)


def enumerated(words):
    *words, last = words
    return f"{', '.join(words)} and {last}"


def against_spmd(data):
    """The paper's table: throughput as a multiple of SPMD's."""
    text = paragraph(
        "Tokens a second as a multiple of SPMD's. Nothing here says how much of its time SPMD spends in collectives,"
        f" so the paper has to: its GPipe of {FIRST[0]} stages and {FIRST[1]} microbatches is"
        f" {PAPERS[FIRST] / SPMD:.3f} times as fast as SPMD although {BUBBLE:.1%} of its time are idle, so"
        f" collectives that its stages do without are {COLLECTIVES:.1%} of SPMD's. More is better. JaxPP reports 1.11"
        " for its best pipeline against the best SPMD, for another model on GPUs."
    )
    sizes = {(p, m): at for p, m, at in rows(data) if (p, m) in PAPERS}

    def times(at, name):
        return (1 - at[name]["program"]) / (1 - COLLECTIVES)

    table2 = [
        [p, m, f"{PAPERS[p, m] / SPMD:.3f}", *(f"{times(at, name):.3f}" for name in NAMES)]
        for (p, m), at in sizes.items()
    ]
    text += [table(["places", "microbatches", "the paper", *NAMES], table2), ""]
    for (p, m), at in sizes.items():
        best = max(NAMES, key=lambda name: times(at, name))
        want = PAPERS[p, m] / SPMD
        said = f"{p} places, {m} microbatches: {best} is {times(at, best):.3f} × SPMD (target {want:.3f})"
        text.append(verdict(said, times(at, best) >= want))
        same, other = (times(at, name) for name in ("gpipe", "1f1b"))
        said = f"gpipe, the paper's schedule, is {same:.3f} × SPMD, 1f1b {other:.3f} × (target {want:.3f})"
        text.append(verdict(f"{p} places, {m} microbatches: {said}", min(same, other) >= want))
    allowed = ", ".join(f"{(1 - at['gpipe']['planned']) / (1 - COLLECTIVES):.3f}" for at in sizes.values())
    own = [f"{(1 - at['gpipe']['program']) * faster(*size):.3f}" for size, at in sizes.items()]
    limit = paragraph(
        f"By this arithmetic the timetable of gpipe and 1f1b allows no more than {allowed}. The paper's pipelines of 8"
        f" and 16 stages are faster than that. All of them have {CORES} cores, so a stage of these pipelines has"
        f" {enumerated(str(CORES // p) for p, _ in sizes)}, over which SPMD splits it, and fewer cores spend less time"
        " in collectives. By the paper's ratios and the bubbles of its GPipe, a core of such a stage is"
        f" {enumerated(f'{faster(*size):.3f}' for size in sizes)} times as fast as one of SPMD over all {CORES}. The"
        " table takes the first of these numbers for all rows. With a row's own, gpipe has"
        f" {enumerated(own)}. What is left of its distance from the paper is what moves between places take here; what"
        " the paper's take is part of its ratios."
    )
    return [*text, "", *limit]


if __name__ == "__main__":
    write(sys.argv[1], [(4, 8)], uneven=True)
