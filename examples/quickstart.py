"""Eight devices, a matrix product split over them, and a sum across them. Run: python examples/quickstart.py"""

import jax
import jax.numpy as jnp
import pathways
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

pathways.init(devices=8)  # before JAX is first asked for a device
mesh = jax.sharding.Mesh(jax.devices(), ("x",))

rows = jax.device_put(jnp.ones((1024, 256)), NamedSharding(mesh, P("x")))
product = jax.jit(lambda a: a @ a.T)(rows)
print(product.shape, product.sharding.spec, float(product[0, 0]))

total = jax.jit(jax.shard_map(lambda a: jax.lax.psum(a, "x"), mesh=mesh, in_specs=P("x"), out_specs=P()))
print(total(jnp.arange(8.0)))  # [28.]
