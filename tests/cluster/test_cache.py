"""Programs are compiled once: not again for the next client, nor, where a folder keeps them, by the next cluster."""

import re

from processes import Cluster

SCRIPT = """
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

def alone(x):
    return x * 3 + jnp.linalg.det(jnp.eye(3) * 2)  # which calls LAPACK

table = np.arange(9 << 18, dtype=np.float32)[::-1]  # too long for any message, and none that XLA makes by itself

def long(x):
    return x + jnp.asarray(table)[x.astype(np.int32)]

def together(x):
    return x - jnp.sum(x)

x = jax.device_put(np.arange(8.0, dtype=np.float32), NamedSharding(Mesh(np.array(jax.devices()), ("d",)), P("d")))
np.testing.assert_array_equal(jax.jit(together)(x), np.arange(8.0) - 28)
np.testing.assert_array_equal(jax.jit(long)(x), np.arange(8.0, dtype=np.float32) + table[:8])
np.testing.assert_array_equal(jax.jit(alone)(jnp.arange(3.0)), [8, 11, 14])
"""


def programs(folder) -> tuple[list[str], list[str]]:
    """Runs two clients on a new cluster and returns which programs its workers compiled, and which the folder had."""
    with Cluster(2, 1, "--cache", str(folder), "--log", "info") as cluster:
        cluster.run(SCRIPT)
        cluster.run(SCRIPT)
        log = (cluster.dir / "default/controller.log").read_text()
    return sorted(re.findall(r"worker-\d compiled (\w+) in", log)), sorted(
        re.findall(r"worker-\d has (\w+) in its cache", log)
    )


def test_programs_are_compiled_once(tmp_path):
    made, had = programs(tmp_path)
    assert all(made.count(f"jit_{name}") == 1 for name in ("alone", "together", "long")) and not had
    again, kept = programs(tmp_path)
    assert not again and kept == made
