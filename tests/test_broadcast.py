"""`jax.lax.pbroadcast` in shard_map, over one axis of a mesh and over both."""

import jax
import jax.numpy as jnp
import numpy as np
import pathways  # noqa: F401
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

pytestmark = [pytest.mark.sizes, pytest.mark.versions]


@pytest.mark.parametrize("dtype", [np.float32, jnp.bfloat16, np.int8, np.complex64, np.bool_])
@pytest.mark.parametrize(
    ("devices", "axes", "source"), [((1, 8), "b", 5), ((2, 4), "b", 3), ((2, 4), "a", 1), ((2, 4), ("a", "b"), 6),
    ((1, 5), "b", 2), ((1, 1), "b", 0)]
)  # fmt: skip
def test_everyone_has_the_bits_of_the_source(devices, axes, source, dtype):
    mesh = Mesh(np.array(jax.devices()[: np.prod(devices)]).reshape(devices), ("a", "b"))
    x = np.random.default_rng(source).normal(size=(*devices, 3)).astype(dtype)
    x[..., 0] = np.array([-0.0], np.float32).astype(dtype)  # a sum would lose its sign
    f = jax.shard_map(
        lambda v: jax.lax.pbroadcast(v, axes, source), mesh=mesh, in_specs=P("a", "b"), out_specs=P("a", "b"),
        check_vma=False,
    )  # fmt: skip
    want = {
        "a": lambda: x[source : source + 1],
        "b": lambda: x[:, source : source + 1],
        ("a", "b"): lambda: x.reshape(-1, 3)[source],
    }[axes]()
    assert np.asarray(jax.jit(f)(x)).tobytes() == np.broadcast_to(want, x.shape).tobytes()
