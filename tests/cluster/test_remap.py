"""Slices of a cluster of processes: two users' do not meet, and one is remapped after a worker was lost."""

import signal

import fresh
from fresh import hear, tell
from processes import Cluster, command, until

USER = """
import jax, numpy as np

slices = pathways.make_virtual_device_set()
s = slices.add_slice(devices=2)
double = lambda: jax.pmap(lambda x: x * 2.0, devices=s.devices)
ask = lambda: input() or True

print(sorted(d.worker for d in s.devices), double()(np.array([1.0, 2.0], np.float32)).tolist(), flush=True)
"""

REMAPS = (
    USER
    + """


@pathways.program
def plus_one(x):  # on the slice's devices, whichever those are
    x = jax.device_put(x, s.devices[1])
    return jax.jit(lambda v: v + 1)(x)


elsewhere = next(d for d in jax.devices() if d.worker != s.devices[1].worker)
one = jax.device_put(np.float32(1), elsewhere)
assert plus_one(one) == 2
again = double()
x = again(np.array([1.0, 2.0], np.float32))
had = s.devices
ask()
try:
    while True:
        x = again(x)
        x.block_until_ready()
except (jax.errors.JaxRuntimeError, ValueError) as error:  # the second by JAX's fast path
    lost = any(code in str(error) for code in ("UNAVAILABLE", "DATA_LOSS"))  # under way, or behind it
    print(lost, "worker" in str(error), flush=True)
changed = s.remap()
assert list(changed) == had and list(changed.values()) == s.devices, changed
print(double()(np.array([3.0, 4.0], np.float32)).tolist(), flush=True)
y = plus_one(one)
assert y == 2 and y.devices() == {s.devices[1]}, y
print(s.remap(), flush=True)
try:
    slices.add_slice(devices=5)
except pathways.PathwaysError as error:
    print(error.code, "4" in error.message and "2 more have no worker now" in error.message, flush=True)
ask()
"""
)


def granted(cluster: Cluster) -> list[list[dict]]:
    """Where each session's slices are, by session."""
    return [[slice_["devices"] for slice_ in s.get("slices", [])] for s in cluster.report().get("sessions", [])]


def test_remap_after_a_worker_is_lost():
    with Cluster(3, 2) as cluster:
        first, second = cluster.start(REMAPS), None
        told = hear(first)
        second = cluster.start(USER + "ask()\n")
        other = hear(second)
        mine, others = (text.split("]")[0] for text in (told, other))
        assert mine != others, "two users were granted the same worker, and others are free"
        assert told.endswith("[2.0, 4.0]") and other.endswith("[2.0, 4.0]")
        shown = command("status", "--dir", str(cluster.dir)).stdout
        assert shown.count("2: worker-") == 2, shown
        assert [len(spans) for spans in granted(cluster)] == [1, 1]

        numbers = {name: int(w["process"]["number"]) for name, w in cluster.workers().items()}
        (span,) = granted(cluster)[0][0]
        (victim,) = (name for name, number in numbers.items() if number == int(span["worker"]))
        cluster.signal(victim, signal.SIGKILL)
        until("the loss to be seen", lambda: victim not in cluster.workers())
        tell(first)
        assert hear(first) == "True True"
        assert hear(first) == "[6.0, 8.0]"
        assert hear(first) == "{}"
        assert hear(first) == "RESOURCE_EXHAUSTED True"
        places = [int(span["worker"]) for spans in granted(cluster) for slice_ in spans for span in slice_]
        assert sorted(places) == sorted(number for name, number in numbers.items() if name != victim)
        first.communicate("\n", timeout=fresh.HANG_SECONDS)
        until("its slice to be freed", lambda: [len(spans) for spans in granted(cluster)] == [1])
        second.communicate("\n", timeout=fresh.HANG_SECONDS)
        until("the other's too", lambda: granted(cluster) == [])
