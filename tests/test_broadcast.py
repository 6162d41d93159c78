"""`jax.lax.pbroadcast` in shard_map, over one axis of a mesh and over both."""

import jax
import jax.numpy as jnp
import numpy as np
import pathways  # noqa: F401
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

pytestmark = [pytest.mark.sizes, pytest.mark.versions]


@pytest.mark.parametrize(
    ("dtype", "length"),
    [(np.float32, 3), (jnp.bfloat16, 3), (np.int8, 3), (jnp.int4, 3), (np.complex64, 3), (np.bool_, 3),
    (np.float32, 20_000), (np.complex64, 10_000)],
)  # fmt: skip
@pytest.mark.parametrize(
    ("devices", "axes", "source"), [((1, 8), "b", 5), ((2, 4), "b", 3), ((2, 4), "a", 1), ((2, 4), ("a", "b"), 6),
    ((1, 5), "b", 2), ((1, 1), "b", 0)]
)  # fmt: skip
def test_everyone_has_the_bits_of_the_source(devices, axes, source, dtype, length):
    mesh = Mesh(np.array(jax.devices()[: np.prod(devices)]).reshape(devices), ("a", "b"))
    x = np.random.default_rng(source).normal(size=(*devices, length)).astype(dtype)
    x[..., 0] = np.array([-0.0], np.float32).astype(dtype)  # a sum would lose its sign
    f = jax.shard_map(
        lambda v: jax.lax.pbroadcast(v, axes, source), mesh=mesh, in_specs=P("a", "b"), out_specs=P("a", "b"),
        check_vma=False,
    )  # fmt: skip
    want = {
        "a": lambda: x[source : source + 1],
        "b": lambda: x[:, source : source + 1],
        ("a", "b"): lambda: x.reshape(-1, length)[source],
    }[axes]()
    assert np.asarray(jax.jit(f)(x)).tobytes() == np.broadcast_to(want, x.shape).tobytes()
