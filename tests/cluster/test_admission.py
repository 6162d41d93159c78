"""Memory that several sessions want: who waits, how long, and who gets an error."""

import os
import signal
import subprocess
import time

import fresh
import pytest
from processes import Cluster, until

WAIT = 3.0  # longer than it takes until a client is told that it waits

CLIENT = """
import sys
import jax, jax.numpy as jnp, numpy as np
MiB = 1 << 18  # elements
device = jax.devices()[0]
def put(size, value=1.0):
    return jax.device_put(np.full(size * MiB, value, np.float32), device)
def line(text):
    print(text, flush=True)
def told():
    assert sys.stdin.readline()
"""


@pytest.fixture(scope="module")
def cluster():
    with Cluster(1, 1, "--memory-limit", "10MiB", "--memory-wait", f"{WAIT}s") as cluster:
        cluster.begin = CLIENT
        yield cluster
        until("nothing is left", cluster.idle)


class Script:
    """A client that says lines and is told to go on."""

    def __init__(self, cluster: Cluster, code: str):
        self.process = cluster.start(code)

    def __enter__(self):
        return self

    def __exit__(self, failed, *_):
        if failed:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
        out, errors = self.process.communicate(timeout=120)
        if not failed:
            assert self.process.returncode == 0, f"{out}\n{errors}"

    def says(self, text: str) -> None:
        said = self.process.stdout.readline().strip()
        assert said == text, f"it says {said!r}, not {text!r}" + ("" if said else self.process.stderr.read())

    def tell(self) -> None:
        fresh.tell(self.process)


def test_sessions_that_need_most_of_the_memory_take_turns(cluster):
    turns = """
double = jax.jit(lambda x: x * 2)
for i in range(6):
    x = put(3, i)
    y = double(x)
    assert float(y[5]) == 2 * i
    del x, y
line("done")
"""
    with Script(cluster, turns) as one, Script(cluster, turns) as other:
        one.says("done")
        other.says("done")


def test_error_names_the_session_that_keeps_the_memory(cluster):
    holds = "x = jax.block_until_ready(put(6))\nline('holds')\ntold()\n"
    wants = f"""
import logging, time
logged = []
class Log(logging.Handler):
    def emit(self, record):
        logged.append(record.getMessage())
logging.getLogger("pathways").addHandler(Log())
logging.getLogger("pathways").setLevel(logging.INFO)
begun = time.monotonic()
try:
    jax.block_until_ready(put(6))
    raise AssertionError("there is room")
except jax.errors.JaxRuntimeError as error:
    text = str(error)
took = time.monotonic() - begun
parts = "RESOURCE_EXHAUSTED", "6 MiB in 1 of device_put", " of USER;", "in {WAIT:.4g} s there was never enough"
for part in parts:
    assert part in text, text
assert {WAIT} <= took < {WAIT} + 20, took
[waited] = logged
for part in "device_put has waited 2 s: it needs 6.0 MiB", "and waits for memory of session ", "; it fails in":
    assert part in waited, waited
jax.block_until_ready(put(2))
line("went on")
"""
    user = subprocess.run(["id", "-un"], capture_output=True, text=True, check=True).stdout.strip()
    with Script(cluster, holds) as idle:
        idle.says("holds")
        with Script(cluster, wants.replace("USER", user)) as other:
            other.says("went on")
        idle.tell()


def test_session_goes_on_when_the_other_frees(cluster):
    holds = "x = jax.block_until_ready(put(6))\nline('holds')\ntold()\ndel x\nline('freed')\ntold()\n"
    wants = "line('asks')\nx = jax.block_until_ready(put(6))\nline('has it')\n"
    with Script(cluster, holds) as first, Script(cluster, wants) as second:
        first.says("holds")
        second.says("asks")
        first.tell()
        first.says("freed")
        second.says("has it")
        first.tell()


def test_fetches_pass_what_waits_for_memory(cluster):
    holds = "x = jax.block_until_ready(put(4))\nline('holds')\ntold()\n"
    wants = """
y = jax.block_until_ready(put(2))
z = put(5)
assert np.asarray(y)[7] == 1
assert not z.is_ready()
line("read it")
try:
    jax.block_until_ready(z)
    raise AssertionError("there is room")
except jax.errors.JaxRuntimeError as error:
    assert "RESOURCE_EXHAUSTED" in str(error), error
line("done")
"""
    with Script(cluster, holds) as first:
        first.says("holds")
        with Script(cluster, wants) as second:
            second.says("read it")
            second.says("done")
        first.tell()


def test_donated_array_that_numpy_views_counts_beside_the_result(cluster):
    cluster.run("""
step = jax.jit(lambda x: x + 1, donate_argnums=0)
x = put(6)
for _ in range(5):
    x = step(x)  # in place: 12 MiB would not fit
assert np.asarray(x)[0] == 6
y = put(4)
view = np.asarray(y)
del x
z = step(y)
assert (view == 1).all() and (np.asarray(z) == 2).all()
del y, z, view
x = jax.block_until_ready(put(6))
again = step(x)
np.asarray(again)
""")


def test_temporary_memory_counts(cluster):
    cluster.run("""
@jax.jit
def wide(x):
    w = jnp.sort(jnp.broadcast_to(x[:, None], (x.shape[0], 16)) * jnp.arange(16.0), axis=0)
    return jnp.sum(jnp.sort(w, axis=1)[::7, 3])
def takes(n):
    x = jax.device_put(np.ones(n, np.float32), device)
    temporary = wide.lower(x).compile().memory_analysis().temp_size_in_bytes
    return x, temporary
x, temporary = takes(1 << 15)
assert 1 << 20 < temporary < 9 << 20, temporary
assert np.isfinite(float(wide(x)))
x, temporary = takes(1 << 19)
assert temporary > 11 << 20, temporary
try:
    jax.block_until_ready(wide(x))
    raise AssertionError("there is room")
except jax.errors.JaxRuntimeError as error:
    assert "RESOURCE_EXHAUSTED" in str(error) and "temporary memory included" in str(error), error
""")


def test_stopped_client_holds_up_no_other(cluster):
    """Wherever it is in its puts and runs; and it goes on with what it had."""
    puts = """
import select
total = jax.jit(jnp.sum)
had = put(1, 3.0)
line("begins")
while not select.select([sys.stdin], [], [], 0)[0]:
    last = total(put(1))
assert float(last) == MiB and float(total(had)) == 3 * MiB
line("went on")
"""
    runs = """
small = jax.jit(lambda x: x + 1)
x = jax.block_until_ready(jax.device_put(np.zeros(8, np.float32), device))
jax.block_until_ready(small(x))
line("ready")
for _ in range(8):
    told()
    jax.block_until_ready(small(x))
    line("ran")
"""
    with Script(cluster, runs) as other:
        other.says("ready")
        with Script(cluster, puts) as client:
            client.says("begins")
            for i in range(8):
                time.sleep(0.01 * i)  # each time it is stopped somewhere else
                os.kill(client.process.pid, signal.SIGSTOP)
                other.tell()
                other.says("ran")
                os.kill(client.process.pid, signal.SIGCONT)
            client.tell()
            client.says("went on")
