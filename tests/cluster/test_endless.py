"""Computations that never end: who sees them, what ends them, and what that costs others."""

from __future__ import annotations

import signal
import time

from processes import Cluster, command, until
from test_faults import lines

# A loop whose length its argument says: quick for an even number, endless for an odd one.
SPIN = """
import jax, jax.numpy as jnp

jax.config.update("jax_send_traceback_to_runtime", "ON")

@jax.jit
def spin(n):
    return jax.lax.while_loop(lambda c: c[0] != n, lambda c: (c[0] + 2, c[1] * 1.5), (jnp.int32(0), jnp.float32(1)))

print(spin(jnp.int32(4))[0], flush=True)
out = spin(jnp.int32(3))
print("spins", flush=True)
out[0].block_until_ready()
"""

# Has an array on each of two devices, says how each fares when it is told to look.
KEEPS = """
import jax, numpy as np

first, second = (jax.device_put(np.arange(4.0), device) for device in jax.devices())
print(float(first.sum()), float(second.sum()), flush=True)
input()
for array in (first, second):
    try:
        print(np.asarray(array + 1).tolist(), flush=True)
    except jax.errors.JaxRuntimeError as error:
        print(str(error).replace("\\n", " "), flush=True)
"""


def running(cluster: Cluster, name: str) -> dict | None:
    """What status says that the device of a worker computes."""
    worker = cluster.workers().get(name, {})
    all_of_it = worker.get("last", {}).get("running", [])
    return all_of_it[0] if all_of_it else None


def spins(cluster: Cluster):
    """Starts a client whose computation on worker-0 never ends."""
    client = cluster.start(SPIN)
    assert lines(client, 2) == ["4", "spins"]
    until("status to show the computation", lambda: (running(cluster, "worker-0") or {}).get("program") == "jit_spin")
    return client


def test_endless_computation_is_shown_and_evicted():
    """Status says what runs, whose and since when; once its client has gone, the worker restarts."""
    with Cluster(2, 1, "--evict-after", "1s") as cluster:
        keeper = cluster.start(KEEPS)
        lines(keeper, 1)
        before = cluster.workers()["worker-0"]["process"]["number"]
        client = spins(cluster)
        time.sleep(2)  # longer than --evict-after: as long as its client lives it is left alone
        seen = running(cluster, "worker-0")
        assert seen["client"].endswith(f":{client.pid}") and int(seen["since_ms"]) >= 1000 and not seen.get("gone")
        assert "called at" in command("status", "--dir", str(cluster.dir)).stdout
        client.kill()
        client.communicate()
        # It may have restarted meanwhile.
        until("its client to have gone", lambda: (running(cluster, "worker-0") or {"gone": True}).get("gone"))

        def anew():
            worker = cluster.workers().get("worker-0")
            return worker and worker["process"]["number"] != before

        until("the worker to restart", anew)
        assert cluster.alive("worker-0"), "it is another process"
        out, err = keeper.communicate("\n", timeout=120)
        assert keeper.returncode == 0, err
        lost, kept = out.strip().splitlines()
        for part in ("DATA_LOSS", "worker-0", f":{client.pid}", "jit_spin", "--evict-after is 1s", "pathways.events()"):
            assert part in lost, f"{lost} does not say {part}"
        assert kept == "[1.0, 2.0, 3.0, 4.0]"
        after = cluster.run("""
            import jax, numpy as np
            print([np.asarray(jax.device_put(np.arange(2.0), device) + 1).tolist() for device in jax.devices()])
            """)
        assert after.stdout.strip() == "[[1.0, 2.0], [1.0, 2.0]]"


def test_worker_ends_in_bounded_time_and_comes_back():
    """SIGTERM and the controller's end are a worker's, whatever its devices compute; under `up` it comes back."""
    with Cluster(1, 1, "--evict-after", "0", restart=True) as cluster:
        clients = [spins(cluster)]
        asked = time.monotonic()
        cluster.signal("worker-0", signal.SIGTERM)
        until("the worker to end", lambda: not cluster.alive("worker-0"))
        # Its bound is three seconds; a busy machine may take longer.
        assert time.monotonic() - asked < 15
        until("the supervisor to start it again", lambda: supervised(cluster)["worker-0"].get("restarts") == 1)
        until("it to be in the cluster", lambda: "worker-0" in cluster.workers())
        clients.append(spins(cluster))  # a new client computes there
        again = supervised(cluster)["worker-0"]
        cluster.processes["worker-0"] = int(again["pid"])
        asked = time.monotonic()
        cluster.signal("controller", signal.SIGTERM)
        until("all to end", lambda: not any(map(cluster.alive, cluster.processes)))
        assert time.monotonic() - asked < 15
        for client in clients:
            client.communicate(timeout=120)


def supervised(cluster: Cluster) -> dict[str, dict]:
    """What status says of the processes that `up` started."""
    return {process["name"]: process for process in cluster.report()["supervisor"]["processes"]}
