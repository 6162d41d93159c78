"""`jax.lax.ragged_all_to_all` in shard_map, beside the same in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pathways  # noqa: F401
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

pytestmark = [pytest.mark.sizes, pytest.mark.versions]

N, ROWS, UPDATES = 8, 12, 2
EVERYONE = [list(range(N))]


@pytest.fixture
def mesh():
    return Mesh(np.array(jax.devices()[:N]), ("d",))


def twin(groups, operand, output, first, size, to):
    """What each device holds after it, from what all bring, by device."""
    result = output.copy()
    for group in groups:
        updates = first.shape[1] // len(group)
        for sender in group:
            for i in range(first.shape[1]):
                rows = operand[sender, first[sender, i] : first[sender, i] + size[sender, i]]
                receiver = group[i // updates]
                result[receiver, to[sender, i] : to[sender, i] + len(rows)] = rows
    return result


@pytest.mark.parametrize(
    ("dtype", "groups", "largest"),
    [
        (np.float32, EVERYONE, 3),
        (jnp.bfloat16, EVERYONE, 3),
        (np.int8, EVERYONE, 2),
        (np.complex64, EVERYONE, 0),
        (np.float32, [[0, 2, 4, 6], [7, 5, 3, 1]], 3),
    ],
)
def test_rows_go_where_their_senders_say(mesh, dtype, groups, largest):
    """Random rows, and a place of its own at its receiver for each update."""
    rng = np.random.default_rng(len(groups) + largest)
    n = len(groups[0])
    operand = (rng.random((N, ROWS, 3)) * 100).astype(dtype)
    output = (rng.random((N, n * UPDATES * 3, 3)) * 100).astype(dtype)
    size = rng.integers(0, largest + 1, (N, n * UPDATES)).astype(np.int32)
    first = rng.integers(0, ROWS - largest + 1, (N, n * UPDATES)).astype(np.int32)
    to = np.zeros((N, n * UPDATES), np.int32)
    received = np.zeros((N, n * UPDATES), np.int32)
    for group in groups:
        for place, sender in enumerate(group):
            for i in range(n * UPDATES):
                to[sender, i] = (place * UPDATES + i % UPDATES) * 3
                received[group[i // UPDATES], place * UPDATES + i % UPDATES] = size[sender, i]
    given = None if len(groups) == 1 else groups

    def exchange(operand, output, first, size, to, received):
        arrays = operand[0], output[0], first[0], size[0], to[0], received[0]
        return jax.lax.ragged_all_to_all(*arrays, axis_name="d", axis_index_groups=given)[None]

    f = jax.jit(jax.shard_map(exchange, mesh=mesh, in_specs=P("d"), out_specs=P("d"), check_vma=False))
    got = np.asarray(f(operand, output, first, size, to, received))
    np.testing.assert_array_equal(got, twin(groups, operand, output, first, size, to))


def test_gradients_go_back_the_way_the_rows_came(mesh):
    one = np.ones((N, N), np.int32)
    to = np.repeat(np.arange(N, dtype=np.int32)[:, None], N, 1)
    first = np.repeat(np.arange(N, dtype=np.int32)[None], N, 0)

    def weighed(x, first, one, to):
        got = jax.lax.ragged_all_to_all(x[0], jnp.zeros(N), first[0], one[0], to[0], one[0], axis_name="d")
        return jnp.sum(got * jnp.arange(N))[None]

    def loss(x):
        g = jax.shard_map(weighed, mesh=mesh, in_specs=P("d"), out_specs=P("d"), check_vma=False)
        return jnp.sum(g(x, first, one, to))

    x = np.arange(N * N, dtype=np.float32).reshape(N, N)
    want = np.repeat(np.arange(N, dtype=np.float32)[:, None], N, 1)
    np.testing.assert_array_equal(jax.jit(jax.grad(loss))(x), want)
