"""A call on another host's device beside transfers to that host, over a line whose rate the kernel limits.

Two workers in network namespaces, as in slow.py; that needs root. Prints what the call takes alone and beside two
transfers of 16 MiB at a time, and the rate of these.
"""

import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "cluster")]

import fresh  # noqa: E402
import hosts  # noqa: E402

RATES = (400, 1000)  # megabits a second
CALLER = """
import statistics, threading, time
import jax, numpy as np
import pathways

pathways.init()
near, far = jax.devices()
MIB = 16
add, small = jax.jit(lambda x: x + 1), jax.device_put(np.zeros(8, np.float32), far)
large = [jax.block_until_ready(jax.device_put(np.ones(MIB << 18, np.float32), near)) for _ in range(2)]


def calls(seconds):
    took, end = [], time.monotonic() + seconds
    while time.monotonic() < end:
        begin = time.perf_counter()
        jax.block_until_ready(add(small))
        took.append(1e3 * (time.perf_counter() - begin))
        time.sleep(0.003)
    return f"median {statistics.median(took):.2f} ms, 90 % {statistics.quantiles(took, n=10)[-1]:.2f} ms"


moved, stop = [], threading.Event()


def move(x):
    while not stop.is_set():
        jax.block_until_ready(jax.device_put(x, far))
        moved.append(time.monotonic())


calls(0.5)
print("alone:", calls(1))
threads = [threading.Thread(target=move, args=(x,)) for x in large]
for t in threads:
    t.start()
time.sleep(1.5)
before, begin = len(moved), time.monotonic()
took = calls(4)
rate = (len(moved) - before) * MIB * 8.388608 / (time.monotonic() - begin)
stop.set()
for t in threads:
    t.join()
print(f"beside transfers: {took}; {rate:.0f} Mbit/s")
"""


def main():
    for rate in RATES:
        shape = ("tbf", "rate", f"{rate}mbit", "burst", "256kb", "latency", "200ms")
        workers = (("--name", "w1", "--devices", "1"), ("--name", "w2", "--devices", "1"))
        with (
            tempfile.TemporaryDirectory(prefix="beside-") as directory,
            hosts.two_hosts(*shape) as places,
            hosts.cluster_on(places, pathlib.Path(directory), workers=workers) as (address, env),
        ):
            own = {"PATHWAYS_DEVICES": "", "PATHWAYS_DIR": directory, "PATHWAYS_ADDRESS": address}
            print(f"{rate} Mbit/s", flush=True)
            subprocess.run([*places[0], sys.executable, "-c", CALLER], env=fresh.environment(env=env | own), check=True)


if __name__ == "__main__":
    main()
