"""The switches of dispatch, on processes: nodes one by one, and calls one by one. They change nothing but when."""

import pytest
from processes import Cluster, until

PROGRAM = """
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

slices = [pathways.make_virtual_device_set().add_slice(devices=2) for _ in range(3)]
a = jax.pmap(lambda x: x * 2.0, devices=slices[0].devices)
b = jax.pmap(lambda x: x + 1.0, devices=slices[1].devices)
c = jax.pmap(lambda x: x / 2.0, devices=slices[2].devices)

def f(v):
    x = a(v)
    return b(x), a(c(x))

for g in (f, pathways.program(f)):
    for _ in range(3):
        y, z = g(np.array([1.0, 2.0], np.float32))
        assert (y.tolist(), z.tolist()) == ([3.0, 5.0], [2.0, 4.0]), (y, z)

all_of_them = NamedSharding(Mesh(np.array(jax.devices()), ("d",)), P("d"))
step = jax.jit(lambda x: x - x.mean() + 1, out_shardings=all_of_them)

def chain(x):
    for i in range(40):
        x = step(x)
        if i % 10 == 0:
            x = pathways.reshard(pathways.reshard(x, NamedSharding(all_of_them.mesh, P())), all_of_them)
    return x

x = jax.device_put(np.arange(18, dtype=np.float32), all_of_them)
g = pathways.program(chain)
want = np.asarray(chain(x)).tobytes()
for _ in range(3):
    assert np.asarray(g(x)).tobytes() == want
print("right")
"""


@pytest.mark.parametrize("dispatch", ["parallel", "sequential"])
def test_programs_are_the_same_however_they_are_dispatched(dispatch):
    with Cluster(2, 3, "--dispatch", dispatch) as cluster:
        for batch in ("true", "false"):
            assert cluster.run(PROGRAM, PATHWAYS_BATCH=batch).stdout == "right\n"
        until("nothing is left", cluster.idle)
