"""Compiles that take long: who waits is told, and may give up."""

import signal

import fresh
import pytest
from processes import Cluster, until

# The worker is stopped, so that its compiler takes as long as a test wants; it is not taken for lost meanwhile.
PATIENT = ("--silence", "300s")
COMPILE = """
import logging, sys
logging.basicConfig(stream=sys.stdout, format="%(levelname)s %(message)s")
logging.getLogger("pathways").setLevel(logging.INFO)
import jax, jax.numpy as jnp
x = jnp.zeros(3).block_until_ready()

def patience(x):
    return x + 1

print("ready", flush=True)
input()
"""


@pytest.fixture(scope="module")
def cluster():
    with Cluster(1, 1, *PATIENT) as cluster:
        yield cluster


def read_until(stream, *words: str) -> str:
    """Reads lines up to one that has all words."""
    for line in stream:
        if all(word in line for word in words):
            return line
    raise AssertionError(f"the script ended without a line with {words}")


def begin(cluster, code: str):
    client = cluster.start(COMPILE + code)
    read_until(client.stdout, "ready")
    cluster.signal("worker-0", signal.SIGSTOP)
    fresh.tell(client)
    return client


def test_slow_compile_is_told_of_and_ends(cluster):
    client = begin(cluster, "print(jax.jit(patience)(x)[0])")
    first = read_until(client.stdout, "INFO compiling jit_patience on worker-0:", "…")
    second = read_until(client.stdout, "INFO compiling jit_patience on worker-0:", "…")
    seconds = [int(line.split(": ")[1].split()[0]) for line in (first, second)]
    assert 2 <= seconds[0] < seconds[1]
    cluster.signal("worker-0", signal.SIGCONT)
    read_until(client.stdout, "INFO compiling jit_patience on worker-0: done after")
    out, err = client.communicate()
    assert client.returncode == 0 and out.strip() == "1.0", out + err
    assert "compiling" not in err  # the log has it, and this is no terminal


def test_ctrl_c_gives_up_at_once_and_harms_nothing(cluster):
    client = begin(
        cluster,
        """
try:
    jax.jit(patience)(x)
except KeyboardInterrupt:
    print("interrupted", flush=True)
input()
print(jax.jit(patience)(x)[0])
""",
    )
    read_until(client.stdout, "INFO compiling jit_patience on worker-0:")
    client.send_signal(signal.SIGINT)
    read_until(client.stdout, "interrupted")  # while the worker stands still
    cluster.signal("worker-0", signal.SIGCONT)
    out, err = client.communicate("\n")
    assert client.returncode == 0 and "1.0" in out, out + err
    until("nothing is left", cluster.idle)


def test_ctrl_c_ends_a_script_that_does_not_catch_it(cluster):
    client = begin(cluster, "jax.jit(patience)(x)")
    read_until(client.stdout, "INFO compiling jit_patience on worker-0:")
    client.send_signal(signal.SIGINT)
    out, err = client.communicate()
    assert client.returncode == -signal.SIGINT and "KeyboardInterrupt" in err, (client.returncode, out, err)
    cluster.signal("worker-0", signal.SIGCONT)
    until("nothing is left", cluster.idle)


def test_ctrl_c_while_the_user_is_told_is_not_lost(cluster):
    client = begin(
        cluster,
        """
import signal
class Unlucky(logging.Handler):
    def emit(self, record):
        if "…" in record.getMessage():
            signal.raise_signal(signal.SIGINT)
logging.getLogger("pathways").addHandler(Unlucky())
try:
    jax.jit(patience)(x)
except KeyboardInterrupt:
    print("interrupted", flush=True)
""",
    )
    read_until(client.stdout, "interrupted")  # while the worker stands still
    cluster.signal("worker-0", signal.SIGCONT)
    out, err = client.communicate()
    assert client.returncode == 0, out + err
    until("nothing is left", cluster.idle)


def test_exit_waits_for_who_is_being_told(cluster):
    """A thread of jaxlib's that was left behind in a compile has Python say that it fails, while Python ends."""
    client = begin(
        cluster,
        """
import time
class Slow(logging.Handler):
    def emit(self, record):
        if "failed" in record.getMessage():
            print("begins", flush=True)
            time.sleep(1)
            print("ends", flush=True)
logging.getLogger("pathways").addHandler(Slow())
try:
    jax.jit(patience)(x)
except KeyboardInterrupt:
    pass
""",
    )
    read_until(client.stdout, "INFO compiling jit_patience on worker-0:")
    client.send_signal(signal.SIGINT)
    out, err = client.communicate()  # while the worker stands still
    assert client.returncode == 0 and out.count("begins") == out.count("ends"), out + err
    cluster.signal("worker-0", signal.SIGCONT)
    until("nothing is left", cluster.idle)
