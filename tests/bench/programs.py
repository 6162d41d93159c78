"""Programs with long constants: how long they take to compile and run once, on a cluster and embedded, and what
meanwhile becomes of another session's computations.

    python tests/bench/programs.py                       constants of 1, 30, 100 and 500 MiB, on 2 and 4 workers
    python tests/bench/programs.py --sizes 30 --workers 2

Each size is a process of its own, embedded and on a cluster in turns, several times, with as many devices as there are
workers; the medians are compared. "copy" is one memcpy of the constant. Processor time is that of all processes
together, and depends little on what else the machine does. Beside it, another client runs a computation of some 2 ms on
all devices, one after the other, and waits for each: its 99th percentile while the program compiles, and while
processes burn all processors for as long. These two compare only where Linux schedules all processes in one group, see
the README. It writes out/programs.json.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "cluster")]

import fresh  # noqa: E402
from processes import Cluster  # noqa: E402

COMPILE = """
import json, os, time
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

def processor():
    now = os.times()
    return now.user + now.system

table = np.random.default_rng({seed}).random({mib} << 18, dtype=np.float32)
n = len(jax.devices())

def look_up(x, i):
    return x + jax.lax.dynamic_slice(jnp.asarray(table), (i,), (n,))

x = jax.device_put(np.zeros(n, np.float32), NamedSharding(Mesh(np.array(jax.devices()), ("d",)), P("d")))
(x + 1).block_until_ready()
begin = time.perf_counter()
copy = table.copy()
copied = time.perf_counter()
lowered = jax.jit(look_up).lower(x, 5)
used = processor()
lower = time.perf_counter()
compiled = lowered.compile()
done = time.perf_counter()
y = np.asarray(compiled(x, 5))
ran = time.perf_counter()
np.testing.assert_array_equal(y, table[5:5 + n])
used = processor() - used
print(json.dumps(dict(copy=copied - begin, lower=lower - copied, compile=done - lower, run=ran - done, processor=used)))
"""

GANGS = """
import json, sys, threading, time
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

mesh = Mesh(np.array(jax.devices()), ("d",))
step = jax.jit(jax.shard_map(lambda v, k: jax.lax.fori_loop(0, k, lambda _, w: jnp.tanh(w @ v), v), mesh=mesh,
                             in_specs=(P("d"), P()), out_specs=P("d")))
v = jax.device_put(np.stack([np.eye(64, dtype=np.float32) * 0.5] * mesh.size).reshape(-1, 64),
                   NamedSharding(mesh, P("d")))

def timed(k):
    begin = time.perf_counter()
    step(v, k).block_until_ready()
    return time.perf_counter() - begin

timed(np.int32(1))
k = np.int32(10)
while sorted(timed(k) for _ in range(5))[2] < 0.002:
    k = np.int32(k * 1.2 + 1)
print("ready", flush=True)
for line in sys.stdin:  # begin
    stop = threading.Event()
    times = []
    def go():
        while not stop.is_set():
            times.append(timed(k))
    thread = threading.Thread(target=go)
    thread.start()
    sys.stdin.readline()  # end
    stop.set()
    thread.join()
    times.sort()
    at = lambda percent: times[len(times) * percent // 100]
    print(json.dumps(dict(gangs=len(times), median=at(50), p99=at(99))), flush=True)
"""


def compile_once(mib, seed, env):
    return json.loads(fresh.run(COMPILE.format(mib=mib, seed=seed), env=env).stdout.splitlines()[-1])


def processor(pids):
    """The processor time that processes have used, in seconds."""
    fields = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids]
    return sum(int(f[11]) + int(f[12]) for f in fields) / os.sysconf("SC_CLK_TCK")


def in_turns(cluster, workers, mib, times):
    """Medians of compiling and running, embedded and on a cluster."""
    sides = [], []
    for seed in range(times):  # each time another program, since a cluster may keep what it has compiled
        sides[0].append(compile_once(mib, seed, {"PATHWAYS_ADDRESS": "", "PATHWAYS_DEVICES": str(workers)}))
        before = processor(cluster.processes.values())
        sides[1].append(compile_once(mib, seed, cluster.environment()))
        sides[1][-1]["processor"] += processor(cluster.processes.values()) - before
    return [{part: statistics.median(one[part] for one in side) for part in side[0]} for side in sides]


def beside(gangs, work):
    """What the other session measured while work ran."""
    print("begin", file=gangs.stdin, flush=True)
    result = work()
    print("end", file=gangs.stdin, flush=True)
    return json.loads(gangs.stdout.readline()), result


def burn(seconds):
    code = f"import time\nend = time.time() + {seconds}\nwhile time.time() < end: pass"
    all_of_them = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(os.cpu_count())]
    for process in all_of_them:
        process.wait()


def groups_by_session():
    """Whether Linux schedules each of the processes here, which have sessions of their own, as a group."""
    enabled = Path("/proc/sys/kernel/sched_autogroup_enabled")
    if not enabled.exists() or enabled.read_text() == "0\n":
        return False
    groups = (line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines())
    paths = {kinds: path for _, kinds, path in groups}
    return next((path for kinds, path in paths.items() if "cpu" in kinds.split(",")), paths.get("")) == "/"


def measure(workers, sizes, times):
    rows = []
    with Cluster(workers, 1, "--silence", "60s") as cluster:
        gangs = cluster.start(GANGS)
        assert gangs.stdout.readline() == "ready\n"
        for mib in sizes:
            embedded, alone = in_turns(cluster, workers, mib, times)
            begin = time.monotonic()
            code = COMPILE.format(mib=mib, seed=times)
            during, shared = beside(gangs, lambda code=code: cluster.run(code))
            busy, _ = beside(gangs, lambda begin=begin: burn(max(2, time.monotonic() - begin)))
            row = {"workers": workers, "MiB": mib, "embedded": embedded, "cluster": alone}
            rows.append(row | {"during": during, "burning": busy})
            total = [sum(side[part] for part in ("compile", "run")) for side in (embedded, alone)]
            print(
                f"{workers} workers, {mib:4} MiB: {total[1]:6.2f} s, embedded {total[0]:6.2f} s, "
                f"copy {alone['copy']:.2f} s, {total[1] / (1.5 * total[0] + alone['copy']):.2f} of the bound; "
                f"processor time {alone['processor']:.2f} s, embedded {embedded['processor']:.2f} s; "
                f"99th percentile of gangs {during['p99'] * 1e3:.1f} ms, "
                f"{busy['p99'] * 1e3:.1f} ms beside a burning process ({during['p99'] / busy['p99']:.2f})",
                flush=True,
            )
        gangs.stdin.close()
        gangs.wait()
    return rows


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--sizes", default="1,30,100,500", help="MiB of constants")
    options.add_argument("--workers", default="2,4")
    options.add_argument("--times", type=int, default=3)
    asked = options.parse_args()
    if groups_by_session():
        print("Linux schedules each process as a group here, so percentiles do not compare: see the README")
    sizes = [int(size) for size in asked.sizes.split(",")]
    rows = [row for workers in asked.workers.split(",") for row in measure(int(workers), sizes, asked.times)]
    out = HERE.parents[1] / "out"
    out.mkdir(exist_ok=True)
    (out / "programs.json").write_text(json.dumps(rows, indent=1))
    ratios = [row["during"]["p99"] / row["burning"]["p99"] for row in rows]
    print(f"the other session's 99th percentile: ratio {statistics.median(ratios):.2f}, at most {max(ratios):.2f}")


if __name__ == "__main__":
    main()
