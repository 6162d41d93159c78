"""The paper's experiments on sharing devices: figures 8, 9 and 11, and what it costs to share them and to look.

paper.py calls these and writes what they return. Clients are processes of their own. The ones of multi-controller JAX
are a process for each device, and a client's processes know nothing of other clients': the machine shares the
processors out among them.
"""

import contextlib
import json
import math
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

import cluster
import computation
import fresh
import gobench
import orphans
import sides
from page import became, milliseconds, on, paragraph, ratio, table, verdict

WORKERS = 2  # of one device: the processors that this machine has
LENGTHS = (0.04, 0.33, 1.04, 2.4)  # milliseconds of device time, as in the paper
TRACED = 0.33  # of figures 9 and 11
# Of tests on a clock of their own, in which messages take their time and processes none: 16 workers of eight devices.
CLOCKED = ("-clock-workers", "16", "-clock-devices", "8")
WEIGHTS = {"1:1:1:1": (1, 1, 1, 1), "1:2:4:8": (1, 2, 4, 8)}
TRACES = ("9", "11")  # figures whose pictures are of what devices did, not of a table
UNDER_WAY = 256  # calls of a client that goes on until it is stopped: more than a device is given ahead


class Shared:
    """A cluster of this machine, and clients of it that each have a tenant's token."""

    def __init__(self, stack, clients, devices=1):
        self.directory = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="paper-")))
        self.env = fresh.environment("pathways") | {"TMPDIR": str(self.directory)}
        for name in ("PATHWAYS_DEVICES", "PATHWAYS_ADDRESS"):
            self.env.pop(name, None)
        self.file = self.directory / "tenants.toml"
        self.tokens = []
        for i in range(clients):
            self.tokens.append(self.directory / f"t{i}.token")
            self.tokens[i].touch(0o600)
            self.tokens[i].write_text(self.command("token", "new"))
        self.write([1] * clients)
        self.port = sides.free_port()
        self.at = ["--dir", str(self.directory)]
        up = ["--workers", str(WORKERS), "--devices", str(devices), "--http", f"127.0.0.1:{self.port}"]
        stack.callback(self.command, "down", *self.at)
        self.command("up", *self.at, *up, "--tenants", str(self.file))
        address = self.command("address", *self.at).strip()
        self.clients = []
        stack.callback(lambda: sides.close(self.clients))
        for token in self.tokens:
            env = self.env | {"PATHWAYS_ADDRESS": address, "PATHWAYS_TOKEN_FILE": str(token)}
            self.clients.append(sides.Side([sys.executable, cluster.PEERS / "ours.py"], env))
        for client in self.clients:
            client.hear()

    def command(self, *arguments):
        """Runs a command of `pathways`, and returns what it prints."""
        line = [sys.executable, "-m", "pathways_command", *arguments]
        return subprocess.run(line, env=self.env, stdout=subprocess.PIPE, text=True, check=True).stdout

    def processes(self):
        """The numbers of all processes of the cluster and its clients: those that were started with its directory."""
        return orphans.started_with("TMPDIR", str(self.directory))

    def write(self, weights):
        lines = [f'[tenants.t{i}]\ntoken-file = "t{i}.token"\nweight = {weight}\n' for i, weight in enumerate(weights)]
        self.file.write_text("\n".join(lines))

    def weigh(self, weights):
        """Changes the weights of the tenants."""
        self.write(weights)
        self.command("tenants", "apply", *self.at)

    def get(self, path):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}") as answer:
            return json.load(answer)

    def lanes(self, seconds):
        """What the devices do for some seconds, as the system records it: [(tenant, begin, end)] by device, in ms."""
        report, lanes, after = self.get("/api/status"), {}, 0
        tenants = {s["session"]: s["tenant"] for s in report["sessions"]}
        until = time.monotonic() + seconds + 2  # what is first asked has nothing yet, and bars come a second later
        while time.monotonic() < until:
            got = self.get(f"/api/timeline?after={after}")
            after = got["newest"]
            for lane in got["lanes"]:
                if lane["dropped"]:
                    raise ValueError(f"{lane['dropped']} computations of {lane['worker']} are not in its timeline")
                bars = lanes.setdefault(f"{lane['worker']}/{lane['device']}", [])
                bars += [(tenants[session], begin / 1e4, end / 1e4) for session, _, _, begin, end in lane["bars"]]
            time.sleep(0.5)
        return lanes


def together(clients, program, calls):
    """Has clients run so many calls each, at the same time. Returns the computations a second of all of them."""
    began = time.perf_counter()
    for client in clients:
        client.tell(program=program, calls=calls, sync=False)
    for client in clients:
        client.hear()
    return len(clients) * computation.computations(program, calls) / (time.perf_counter() - began)


def lasting(client, lengths):
    """Returns the programs whose computations take so many milliseconds of a device, by length."""
    took = {}
    for steps in (1000, 4000):
        calls = cluster.calls_of(client, {"program": f"work:{steps}", "sync": False}, 0.3)
        asked = {"program": f"work:{steps}", "calls": calls, "sync": False}
        took[steps] = min(client.ask(**asked)["seconds"] for _ in range(3)) / calls
    step = (took[4000] - took[1000]) / 3000
    return {length: f"work:{round(length / 1e3 / step)}" for length in lengths}


# ---- Figure 8: computations a second of several clients together.


def figure8(quick):
    counts = (1, 2, 4) if quick else (1, 2, 4, 8, 16)
    rounds, seconds = (2, 0.3) if quick else (5, 1)
    real = {}
    with contextlib.ExitStack() as stack:
        shared = Shared(stack, counts[-1])
        env = fresh.environment("jaxlib") | {"TMPDIR": str(shared.directory)}
        command = [sys.executable, cluster.PEERS / "jax_gloo.py", str(WORKERS)]
        theirs = []
        stack.callback(lambda: sides.close(theirs))
        theirs += [sides.Side(command, env) for _ in range(counts[-1])]
        for side in theirs:
            side.hear()
        systems = {"ours": shared.clients, "gloo": theirs}
        for length, program in lasting(theirs[0], LENGTHS).items():
            calls = {}
            for name, clients in systems.items():
                calls[name] = cluster.calls_of(clients[0], {"program": program, "sync": False}, seconds)
                together(clients, program, 1)  # compiles
            rates = {}
            for i in range(2 * rounds if length < 0.1 else rounds):  # which differ most there
                for count in counts:
                    for name in list(systems)[:: 1 if i % 2 else -1]:
                        # Idle ranks of JAX look for work all the time: a tenth of these processors, if there are 32.
                        with sides.paused(theirs[count if name == "gloo" else 0 :]):
                            got = together(systems[name][:count], program, max(1, calls[name] // count))
                        rates.setdefault((name, count), []).append(got)
            of = real.setdefault(str(length), {})
            for (name, count), all_of in rates.items():
                of.setdefault(name, {})[str(count)] = cluster.spread(all_of)
            for count in counts:
                for name, other in (("of one", ("ours", 1)), ("of gloo", ("gloo", count))):
                    each = [a / b for a, b in zip(rates["ours", count], rates[other], strict=True)]
                    of.setdefault(name, {})[str(count)] = cluster.spread(each)
                ours, part = (of[name][str(count)] for name in ("ours", "of gloo"))
                said = f"{ours['median']:8,.0f}/s, {ratio(part)} of JAX with gloo"
                print(f"figure 8, {length} ms, {count} clients: {said}", flush=True)
    here, few = (clocked_here(quick, name) for name in ("Clients", "ClientsOfTwoDevices"))
    return {"real": real, "simulated": clocked(quick, LENGTHS), "here": here, "few": few}


def clocked_here(quick, benchmark):
    """How many computations a second simulated devices do, and how much of the time, on this machine's clock."""
    here = {}
    found = gobench.run("./core/cluster", f"^Benchmark{benchmark}$", 1 if quick else 3, "0.3s" if quick else "1s")
    for name, values in found.items():
        cost, clients = cost_and_clients(name)
        at = here.setdefault(cost, {}).setdefault(clients, {})
        at |= {"rate": statistics.median(values["gangs/s"]), "use": statistics.median(values["use"])}
    return here


def cost_and_clients(name):
    """How many milliseconds a gang takes and how many clients there are, by the name of a test."""
    _, cost, clients = (part.partition("=")[2] for part in name.split("/"))
    return f"{milliseconds(cost):g}", clients


def clocked(quick, lengths):
    """How many computations a second simulated devices do, and how much of the time, on a clock of their own."""
    clients = ("-clock-clients", "1,4" if quick else "1,2,4,8,16,64")
    costs = ("-clock-costs", ",".join(f"{length * 1000:g}µs" for length in lengths))
    simulated = {}
    test = "^TestDevicesOfManyClientsAreNotIdle$"
    for name, at in gobench.attributes("./core/cluster", test, *CLOCKED, *clients, *costs).items():
        cost, count = cost_and_clients(name)
        simulated.setdefault(cost, {})[count] = at
    return simulated


def clients_of(count):
    return f"{count} client{'s' * (int(count) != 1)}"


def least_of(rates):
    """Of some counts of clients: where the rate is least of one client's, and how much of that it is."""
    alone = rates["1"]
    return min(((count, rate / alone) for count, rate in rates.items() if count != "1"), key=lambda at: at[1])


def compared(what, of):
    """What became of a target of 1 ×, with the number of clients whose rate is least by what it is compared with."""
    count = min(of, key=lambda count: of[count]["median"])
    said = f"{what}: at least {ratio(of[count])} ×, with {clients_of(count)} (target 1 ×)"
    return verdict(said, of[count]["median"] >= 1)


def page8(data):
    text = ["## Figure 8: computations a second of several clients", ""]
    text += paragraph(
        f"Several clients run programs of their own on the same {on(WORKERS)}, each as fast as it can. Cells are the"
        " computations a second of all clients together. *JAX with gloo* is the same number of clients of"
        f" multi-controller JAX, each with one process per device, on the same {os.cpu_count()} processors. A"
        " computation is a loop of some length and an AllReduce. In each round all of them take their turn; cells are"
        " medians of rounds, and higher is better. Verdicts compare within rounds: they give the median ratio (lowest"
        " – highest), and the median decides: one just below 1 is printed as 1.00, and missed."
    )
    counts = list(next(iter(data["real"].values()))["ours"])
    rows, verdicts = [], []
    titles = {"ours": "Open Pathways", "gloo": "JAX with gloo"}
    for length, of in data["real"].items():
        for name, title in titles.items():
            rows.append([f"{title}, {length} ms", *(f"{of[name][count]['median']:,.0f}" for count in counts)])
        beside = {count: part for count, part in of["of one"].items() if count != "1"}
        verdicts.append(compared(f"{length} ms, of one client's rate", beside))
        verdicts.append(compared(f"{length} ms, of JAX with gloo", of["of gloo"]))
    text += [table(["clients", *counts], rows), "", "![figure 8](figure8.png)", "", *verdicts, ""]
    if data["simulated"]:
        text += paragraph(
            "128 simulated devices on 16 workers, which compute for exactly as long as they are told to. Cells are"
            " computations a second, and in brackets the part of the time that the devices compute. *Own clock*:"
            " messages take 50 µs and the work of processes takes no time, so these rows show only the effect of the"
            f" order of gangs. *This machine's clock*: clients, controller and workers share {os.cpu_count()}"
            " processors. The rows with 2 devices have two workers with one device each, which leave some processor"
            " time free. A ratio that rounds to 1.00 × counts as 1 × in this table."
        )
        verdicts = []
        counts = list(next(iter(data["simulated"].values())))
        rows = []
        clocks = {"own clock": "simulated", "this machine's clock": "here", "this machine's clock, 2 devices": "few"}
        for clock, of in ((clock, data[name]) for clock, name in clocks.items()):
            for length, rates in of.items():
                cells = [rates.get(count) for count in counts]
                said = [f"{at['rate']:,.0f} ({at['use']:.3f})" if at else "–" for at in cells]
                rows.append([f"{length} ms, {clock}", *said])
        for clock, all_of in ((clock, data[name]) for clock, name in clocks.items()):
            for length, of in all_of.items():
                count, part = least_of({count: at["rate"] for count, at in of.items()})
                said = f"{length} ms, {clock}: at least {part:.2f} × one client's rate, with {clients_of(count)}"
                verdicts.append(verdict(f"{said} (target 1 ×)", round(part, 2) >= 1))
        text += [table(["clients", *counts], rows), "", *verdicts]
    return text


# ---- Figure 9: shares of device time.


def parts(bars, begin, end):
    """The part that each tenant has of what a device computed between two times."""
    got = {}
    for tenant, began, ended in bars:
        if (took := min(ended, end) - max(began, begin)) > 0:
            got[tenant] = got.get(tenant, 0) + took
    total = sum(got.values())
    return {tenant: took / total for tenant, took in got.items()}


def distances(lanes, weights, seconds):
    """How far tenants are from their shares, at most, over any second and over all of them.

    As a part of the time that all devices together computed, and ("… of share") as a part of the share; with ", one
    device", of each device's by itself.
    """
    share = {f"t{i}": weight / sum(weights) for i, weight in enumerate(weights)}
    most = {}

    def look(name, bars, begin, end):
        got = parts(bars, begin, end)
        off = {tenant: abs(got.get(tenant, 0) - part) for tenant, part in share.items()}
        for of, far in ((name, off.values()), (f"{name} of share", (off[t] / part for t, part in share.items()))):
            most[of] = max(most.get(of, 0), *far)

    end = min(bars[-1][2] for bars in lanes.values())
    first = end - 1e3 * seconds
    starts = [first + 100 * i for i in range(10 * (seconds - 1) + 1)]
    together = [bar for bars in lanes.values() for bar in bars]
    for name, window in [("whole", (first, end)), *(("second", (start, start + 1e3)) for start in starts)]:
        look(name, together, *window)
        for bars in lanes.values():
            look(f"{name}, one device", bars, *window)
    return most


SHOWN = 60  # milliseconds of a picture of figure 9


def excerpt(lanes, seconds, shown):
    """Some milliseconds from the middle of what devices did in the last seconds, from zero on."""
    out = {}
    begin = lanes[min(lanes)][-1][2] - 1e3 * seconds / 2  # the same for all devices
    for name, bars in sorted(lanes.items()):
        inside = [(t, max(b - begin, 0), min(e - begin, shown)) for t, b, e in bars if e > begin and b < begin + shown]
        out[name] = [(tenant, round(b, 3), round(e, 3)) for tenant, b, e in inside]
    return out


def figure9(quick):
    seconds = 5 if quick else 10
    real = {}
    with contextlib.ExitStack() as stack:
        shared = Shared(stack, 4)
        program = lasting(shared.clients[0], (TRACED,))[TRACED]
        for name, weights in WEIGHTS.items():
            shared.weigh(weights)
            lanes, rates = observed(shared, shared.clients, program, seconds)
            real[name] = distances(lanes, weights, seconds) | {
                "seconds": seconds,
                "rates": rates,
                "parts": parts(lanes[min(lanes)], lanes[min(lanes)][-1][2] - 1e3 * seconds, lanes[min(lanes)][-1][2]),
                "trace": excerpt(lanes, seconds, SHOWN),
            }
            far = "{whole:.1%} from their shares over {seconds} s, {second:.1%} over any second".format(**real[name])
            print(f"figure 9, {name}: {far}", flush=True)
    simulated = {}
    test = "^TestTenantsGetTheirSharesOfDeviceTime$"
    so = ("-clock-costs", f"{TRACED * 1000:g}µs", "-clock-seconds", "10")
    for name, got in gobench.attributes("./core/cluster", test, *CLOCKED, *so).items():
        weights = name.partition("=")[2].strip("[]").replace("_", ":")
        simulated[weights] = {name.replace("_", " "): value for name, value in got.items()} | {"seconds": 10}
    return {"real": real, "simulated": simulated}


def observed(shared, clients, program, seconds):
    """Returns what devices do for some seconds while clients keep them busy, and each client's rate."""
    for client in clients:
        client.ask(program=program, calls=1, sync=True)  # compiles
    for client in clients:
        client.tell(program=program, lasts=seconds + 4, depth=UNDER_WAY)
    time.sleep(0.5)
    lanes = shared.lanes(seconds)
    return lanes, [round(got["calls"] / got["seconds"], 1) for got in (client.hear() for client in clients)]


def page9(data):
    text = ["## Figure 9: shares of device time", ""]
    text += paragraph(
        f"Four clients of four tenants, each with {UNDER_WAY} computations of {TRACED} ms under way, run on"
        f" {on(WORKERS)} of this machine, and on 128 simulated devices with a clock of their own. Cells show how far a"
        " tenant was from its share, at most: in any one second, and over the whole time. The first number is in"
        " points of the time that the devices computed together, which leaves out their idle time. The number in"
        " brackets is a part of the tenant's share, which is stricter. Less is better. A computation counts on each of"
        " its devices with the mean of its times there, since in a collective one device waits for another. So shares"
        " are of both devices together; *one device* takes each by itself. Simulated devices all do the same, and the"
        " first one is shown."
    )
    rows, verdicts = [], []
    for where, of in ((on(WORKERS), data["real"]), ("128 simulated devices", data["simulated"])):
        for weights, got in of.items():
            names = [name for name in ("second", "whole", "second, one device", "whole, one device") if name in got]
            cells = [f"{got[name]:.2%} ({got[name + ' of share']:.1%})" for name in names]
            rows.append([f"{weights}, {where}", *cells, *["–"] * (4 - len(cells))])
            for name, target, over in (("whole", 0.02, f"{got['seconds']} s"), ("second", 0.05, "a second")):
                points, part = ((got[which], became(got[which] <= target)) for which in (name, f"{name} of share"))
                verdicts.append(
                    f"- {weights}, {where}, over {over} (target {target:.0%}): {points[0]:.2%} of what the devices"
                    f" computed: {points[1]}; {part[0]:.1%} of the share: {part[1]}"
                )
    heads = ["weights", "a second", "all", "a second, one device", "all, one device"]
    text += [table(heads, rows), "", "![figure 9](figure9.png)", "", *verdicts, ""]
    return text


# ---- Figure 11: use of devices, and the cost of going from client to client.


def figure11(quick):
    counts = (1, 4) if quick else (1, 4, 8, 16)
    seconds = 2 if quick else 5
    real = {}
    with contextlib.ExitStack() as stack:
        shared = Shared(stack, counts[-1])
        program = lasting(shared.clients[0], (TRACED,))[TRACED]
        for count in counts:
            lanes, rates = observed(shared, shared.clients[:count], program, seconds)
            use = [busy(bars, bars[-1][2] - 1e3 * seconds, bars[-1][2]) for bars in lanes.values()]
            real[str(count)] = {"use": min(use), "rates": rates, "trace": excerpt(lanes, seconds, 10)}
            print(f"figure 11, {count} clients: devices compute {min(use):.0%} of the time", flush=True)
    simulated = {count: at["use"] for of in clocked(quick, (TRACED,)).values() for count, at in of.items()}
    found = gobench.run("./core/cluster", "^BenchmarkSwitch$", 1, "4x" if quick else "100x")
    switch = {name.partition("=")[2]: {unit: of[0] for unit, of in values.items()} for name, values in found.items()}
    return {"real": real, "simulated": simulated, "switch": switch}


def busy(bars, begin, end):
    """The part of a time that a device computes."""
    return sum(max(0, min(ended, end) - max(began, begin)) for _, began, ended in bars) / (end - begin)


def page11(data):
    text = ["## Figure 11: the use of devices", ""]
    text += paragraph(
        f"Clients run computations of {TRACED} ms. Cells show the part of the time that devices compute: on"
        f" {on(WORKERS)} that share {os.cpu_count()} processors with the clients and the controller, and on 128"
        " simulated devices with a clock of their own, where the work of processes takes no time. The table of figure"
        " 8 shows the same on this machine's clock, where clients, controller and workers share these processors. More"
        " is better."
    )
    counts = sorted({*data["real"], *data["simulated"]}, key=int)
    rows = [
        [on(WORKERS), *(f"{data['real'][c]['use']:.1%}" if c in data["real"] else "–" for c in counts)],
        ["simulated", *(f"{data['simulated'][c]:.1%}" if c in data["simulated"] else "–" for c in counts)],
    ]
    text += [table(["clients", *counts], rows), "", "![figure 11](figure11.png)", ""]
    for count, use in data["simulated"].items():
        if int(count) >= 4:
            said = f"Simulated, own clock, {clients_of(count)}: devices compute {use:.1%} of the time (target 99 %)"
            text.append(verdict(said, use >= 0.99))
    return text + ["", *page_switch(data["switch"])]


def page_switch(data):
    text = ["### Going from client to client", ""]
    text += paragraph(
        "Two clients take turns, each with one computation (A B A B …) or with two (A A B B …). *Switches* is how many"
        " times a computation a device goes from one client to the other, in these two orders; the other columns say"
        " how much more the first order takes. Medians of turns, and in brackets the lowest and the highest."
    )
    rows, verdicts = [], []
    for cost, got in data.items():
        what = f"of {cost}" if milliseconds(cost) else "take no time"
        more, low, high, processor = (got[unit] - 1 for unit in ("x-apart", "x-least", "x-most", "x-processor"))
        switches = f"{got['ABAB-switches']:.2f}, {got['AABB-switches']:.2f}"
        rows.append([what, switches, f"{more:+.1%} ({low:+.1%} – {high:+.1%})", f"{processor:+.1%}"])
        said = f"Computations that {what}" if what == "take no time" else f"Computations {what}"
        if got["ABAB-switches"] - got["AABB-switches"] < 0.25:  # of the 0.5 by which the clients' orders differ
            verdicts.append(f"- {said}: **not shown**, since devices switch about as often in both orders")
        elif milliseconds(cost):
            said = f"{said}: {more:+.1%} of time, {processor:+.1%} of processor time (target at most 1 %)"
            verdicts.append(verdict(said, max(more, processor) <= 0.01))
    return text + [table(["computations", "switches", "more time", "more processor time"], rows), "", *verdicts]


# ---- What it costs to share devices, and to look at what they do.


def middle(values):
    """The median of turns, and between which of them it lies with a probability of 95 %, however they differ."""
    values, off = sorted(values), 0.98 * len(values) ** 0.5
    low = max(0, math.floor(len(values) / 2 - off) - 1)
    return {"median": statistics.median(values), "low": values[low], "high": values[-1 - low]}


def costs(quick):
    # Of 60 turns of 0.12 s each, with nothing changed, an addition one by one took 1.5 and 5.9 % more with a trace.
    rounds, seconds = (5, 0.1) if quick else (60, 0.4)
    traced = {}
    with contextlib.ExitStack() as stack:
        shared = Shared(stack, 1, devices=2)
        (client,) = shared.clients
        for program in ("add", "chained add", "chained", "work:1000"):
            calls = cluster.calls_of(client, {"program": program, "sync": False}, seconds)
            took, busy = {False: [], True: []}, {False: [], True: []}
            for i in range(rounds):
                for on in (False, True) if i % 2 else (True, False):
                    got = client.ask(program=program, calls=calls, traced=on, count=shared.processes())
                    took[on].append(got["seconds"])
                    busy[on].append(got["busy"])
            each = {on: statistics.median(of) / computation.computations(program, calls) for on, of in took.items()}
            apart, more = (middle([a / b for a, b in zip(of[True], of[False], strict=True)]) for of in (took, busy))
            traced[program] = {"without": each[False], "with": each[True], "apart": apart["median"], "ratio": more}
            print(f"costs, {program} with a trace: {between(more)} × the processor time without", flush=True)
    count, lasts = (1, "20000x") if quick else (3, "200000x")
    found = gobench.run("./core/schedule", "^BenchmarkFair$/^tenants=[0-9]+$", count, lasts)
    tenants = {name.partition("=")[2]: statistics.median(values["ns/op"]) for name, values in found.items()}
    found = gobench.run("./core/worker", "^BenchmarkRunWatched$", count, lasts)
    run = {unit: statistics.median(values) for of in found.values() for unit, values in of.items()}
    found = gobench.run("./core/cluster", "^BenchmarkWatching$", 1, "3x" if quick else "10x")
    watching = {unit: values[0] for of in found.values() for unit, values in of.items()}
    return {"traced": traced, "tenants": tenants, "run": run, "watching": watching}


def between(got):
    return "{median:.3f} ({low:.3f} – {high:.3f})".format(**got)


NAMED = {
    "add": "add, one by one",
    "chained add": "add, a program of 128",
    "chained": "AllReduce + add, a program of 128",
    "work:1000": "1,000 steps + AllReduce",
}


def costs_page(data):
    text = ["## Costs of sharing and of looking", ""]
    text += paragraph(
        "The table shows what `pathways.trace` costs while it records, on two workers of two devices: the time of a"
        " computation relative to the time without a trace, and the same for the processor time of the client, the"
        " controller and both workers. Cells are medians of turns; in brackets is the range that has the median with a"
        " probability of 95 %. A ratio is the median of the ratios of two turns that follow each other, not the ratio"
        " of the medians beside it. Less is better. Verdicts go by processor time: on two processors the four"
        " processes wait for each other, and the time of a turn varies by 10 % with nothing changed."
    )
    rows, verdicts = [], []
    for program, got in data["traced"].items():
        took = [f"{1e6 * got[how]:,.1f}" for how in ("without", "with")]
        rows.append([NAMED[program], *took, f"{got['apart']:.3f}", between(got["ratio"])])
        more, low, high = (got["ratio"][name] - 1 for name in ("median", "low", "high"))
        said = f"{NAMED[program]}: {more:+.1%} ({low:+.1%} – {high:+.1%}) with a trace (target at most 2 %)"
        verdicts.append(verdict(said, more <= 0.02))
    columns = ["computation", "µs without", "µs with a trace", "ratio", "of processor time"]
    text += [table(columns, rows), "", *verdicts, ""]
    if tenants := data["tenants"]:
        text += paragraph(
            "What it costs the controller to order a gang by shares, from its submission to its end, while each of so"
            " many tenants has one that waits:"
        )
        text += [table(["tenants", *tenants], [["µs a gang", *(f"{ns / 1e3:.2f}" for ns in tenants.values())]]), ""]
    if data["run"]:
        more = data["run"]["x-watched"] - 1
        text.append(verdict(
            f"A worker's part of a run that takes no time, while somebody looks at its device: {more:+.1%} (target at"
            " most 1 %)", more <= 0.01))  # fmt: skip
    if watching := data["watching"]:
        more, low, high = (watching[unit] - 1 for unit in ("x-watched", "x-least", "x-most"))
        look = watching["%look"] / 100
        text.append(verdict(
            "`pathways top`, the page and its metrics, each once a second, with 100,000 arrays on 2,048 simulated"
            f" devices: gangs beside them take {more:+.1%} longer ({low:+.1%} – {high:+.1%}, seconds; target at most"
            f" 1 %). An idle second in which somebody looks takes {look:.1%} of the time of all {os.cpu_count()}"
            f" processors more, which is {look * os.cpu_count():.1%} of one; answers are encoded, not sent",
            max(more, look) <= 0.01))  # fmt: skip
    return text
