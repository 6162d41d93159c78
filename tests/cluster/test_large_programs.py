"""Programs whose text has tens of megabytes, for constants are part of it."""

import re

from processes import Cluster

SCRIPT = """
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

table = np.random.default_rng(0).random(30 << 18, dtype=np.float32)  # 30 MiB

def look_up(x, i):
    return x + jax.lax.dynamic_slice(jnp.asarray(table), (i,), (8,))

x = jax.device_put(np.zeros(8, np.float32), NamedSharding(Mesh(np.array(jax.devices()), ("d",)), P("d")))
compiled = jax.jit(look_up).lower(x, 5).compile()
np.testing.assert_array_equal(compiled(x, 5), table[5:13])
assert "constant({...})" in compiled.as_text()
"""


def test_program_with_a_long_constant_is_compiled_once():
    with Cluster(2, 1, "--log", "info") as cluster:
        cluster.run(SCRIPT)
        cluster.run(SCRIPT)
        log = (cluster.dir / "default/controller.log").read_text()
        report = cluster.report()
    assert len(re.findall(r"compiled jit_look_up", log)) == 1
    assert int(report["artifact_bytes"]) >= 30 << 20 and int(report["compiled_bytes"]) < 30 << 20
