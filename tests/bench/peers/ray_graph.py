"""Ray: N actors of one device, driven through a compiled graph, or, with --plain, by calls of a method of each.

With --joined, gloo joins them and they have programs with collectives; with --chain, an execution of the graph runs the
program so many times, each a node of its own.
"""

import argparse
import collections
import os
import pathlib
import signal
import sys
import tempfile
import time

HERE = str(pathlib.Path(__file__).parents[1])
sys.path.insert(0, HERE)

import computation  # noqa: E402
import sides  # noqa: E402

stream = sides.answers()
parser = argparse.ArgumentParser()
parser.add_argument("actors", type=int)
parser.add_argument("--joined", action="store_true")
parser.add_argument("--plain", action="store_true")
parser.add_argument("--chain", type=int, default=1)
said = parser.parse_args()
N = said.actors
WINDOW = 32  # executions in flight; more or fewer were no faster

# Ray gives its workers the priority 15 by default, and would lose to everyone here.
os.environ |= {"RAY_worker_niceness": "0", "RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}

try:
    import ray
    from ray.dag import InputNode, MultiOutputNode
except ImportError as error:
    sides.leave_out(stream, str(error))
    sys.exit()


@ray.remote(num_cpus=1)
class Host:
    def __init__(self, rank, n, port):
        import computation

        self.participant = computation.Participant(rank, n, port)

    def pid(self):
        return os.getpid()

    def step(self, what):
        """Runs a program; or begins another, "0 name"; or gives the value, "?". The next step of a chain is given what
        this one gives."""
        if what == "?":
            return self.participant.value()
        if isinstance(what, str):
            self.participant.begin(what[2:]) if what.startswith("0 ") else self.participant.run(what)
        return what


def submit(what):
    """Has all actors do one step, and returns what stands for its results."""
    return [host.step.remote(what) for host in hosts] if said.plain else graph.execute(what)


def execute(what, calls, window):
    """Submits steps, of which at most so many are in flight, and returns the seconds until the last has ended."""
    flying = collections.deque()
    start = time.perf_counter()
    for _ in range(calls):
        flying.append(submit(what))
        if len(flying) == window:
            ray.get(flying.popleft())
    while flying:
        ray.get(flying.popleft())
    return time.perf_counter() - start


def answer(program, calls, sync):
    chained = program == "chained"
    signal_hosts(signal.SIGCONT)
    try:
        execute("0 " + ("reduce" if chained else program), 1, 1)
        seconds = execute("reduce" if chained else program, calls, 1 if sync else WINDOW)
        computation.check(program, calls, ray.get(submit("?")))
    finally:
        signal_hosts(signal.SIGSTOP)
    return {"seconds": seconds}


def signal_hosts(number):
    """Stops the actors while others are measured, or has them go on: a compiled graph's poll for input all the time,
    with 15 % of a core each."""
    for pid in pids:
        os.kill(pid, number)


with tempfile.TemporaryDirectory(prefix="ray-") as directory:
    ray.init(
        num_cpus=N,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
        object_store_memory=256 << 20,
        _temp_dir=directory,
        runtime_env={"env_vars": {"PYTHONPATH": HERE}},
    )
    port = sides.free_port() if said.joined else 0
    hosts = [Host.remote(rank, N, port) for rank in range(N)]
    pids = ray.get([host.pid.remote() for host in hosts])
    if not said.plain:
        with InputNode() as given:
            nodes = [given] * N
            for _ in range(said.chain):
                nodes = [host.step.bind(node) for host, node in zip(hosts, nodes, strict=True)]
        graph = MultiOutputNode(nodes).experimental_compile(_max_inflight_executions=2 * WINDOW)
    execute("0 add", 1, 1)
    execute("add", WINDOW, WINDOW)  # compiles
    try:
        signal_hosts(signal.SIGSTOP)
        sides.serve(stream, answer, {"version": ray.__version__})
    finally:
        signal_hosts(signal.SIGCONT)
        if not said.plain:
            graph.teardown()
        ray.shutdown()
