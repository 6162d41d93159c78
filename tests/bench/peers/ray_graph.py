"""Ray: N actors of one device, driven through a compiled graph."""

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
N = int(sys.argv[1])
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
    def __init__(self):
        import computation
        import jax

        programs, self.zeros = computation.programs(jax.devices()[:1])
        self.add, self.x = programs["add"], self.zeros

    def pid(self):
        return os.getpid()

    def step(self, what):
        """Adds; or begins anew; or gives the value."""
        if what == "add":
            self.x = self.add(self.x)
            self.x.block_until_ready()
            return None
        if what == "zero":
            self.x = self.zeros
            return None
        return float(self.x[0])


def execute(calls, window):
    """Executes the graph with at most so many executions in flight, and gives the seconds until the last has ended."""
    flying = collections.deque()
    start = time.perf_counter()
    for _ in range(calls):
        flying.append(graph.execute("add"))
        if len(flying) == window:
            ray.get(flying.popleft())
    while flying:
        ray.get(flying.popleft())
    return time.perf_counter() - start


def answer(program, calls, sync):
    signal_hosts(signal.SIGCONT)
    try:
        ray.get(graph.execute("zero"))
        seconds = execute(calls, 1 if sync else WINDOW)
        computation.check(program, calls, ray.get(graph.execute("value")))
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
    hosts = [Host.remote() for _ in range(N)]
    pids = ray.get([host.pid.remote() for host in hosts])
    with InputNode() as given:
        nodes = MultiOutputNode([host.step.bind(given) for host in hosts])
    graph = nodes.experimental_compile(_max_inflight_executions=2 * WINDOW)
    execute(WINDOW, WINDOW)  # compiles
    try:
        signal_hosts(signal.SIGSTOP)
        sides.serve(stream, answer, {"version": ray.__version__})
    finally:
        signal_hosts(signal.SIGCONT)
        graph.teardown()
        ray.shutdown()
