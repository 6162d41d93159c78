"""Programs whose text has tens of megabytes, for constants are part of it."""

import re

import pytest
from processes import Cluster

SCRIPT = """
import os
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

MIB = int(os.environ["MIB"])
table = np.random.default_rng(0).random(MIB << 18, dtype=np.float32)

def look_up(x, i):
    return x + jax.lax.dynamic_slice(jnp.asarray(table), (i,), (8,))

x = jax.device_put(np.zeros(8, np.float32), NamedSharding(Mesh(np.array(jax.devices()), ("d",)), P("d")))
compiled = jax.jit(look_up).lower(x, 5).compile()
np.testing.assert_array_equal(compiled(x, 5), table[5:13])
assert "constant({...})" in compiled.as_text()
"""


AGAIN = pytest.mark.again("30 MiB on two workers here; core/cluster's TestProgramOfAnySize")


@pytest.mark.parametrize(
    ("workers", "mib"),
    [
        pytest.param(workers, mib, marks=() if (workers, mib) == (2, 30) else AGAIN)
        for workers in (2, 4)
        for mib in (1, 30, 100, 500)
    ],
)
def test_program_with_a_long_constant_is_compiled_once(workers, mib):
    with Cluster(workers, 1, "--log", "info") as cluster:
        cluster.run(SCRIPT, MIB=str(mib))
        cluster.run(SCRIPT, MIB=str(mib))
        log = (cluster.dir / "default/controller.log").read_text()
        report = cluster.report()
    assert len(re.findall(r"compiled jit_look_up", log)) == 1
    assert int(report["artifact_bytes"]) >= mib << 20 and int(report["compiled_bytes"]) < max(mib, 30) << 20
