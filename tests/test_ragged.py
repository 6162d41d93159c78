"""`jax.lax.ragged_all_to_all` in shard_map, beside the same in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pathways  # noqa: F401
import pytest
from jax import export
from jax.sharding import Mesh, NamedSharding
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


def test_an_exported_program_has_the_instruction_itself_and_runs(mesh):
    """As any program that was not lowered here: what stock JAX exports is the same."""
    operand = np.arange(N * N, dtype=np.float32).reshape(N, N)
    first = np.repeat(np.arange(N, dtype=np.int32)[None], N, 0)
    size = np.ones((N, N), np.int32)
    arrays = operand, np.zeros((N, N), np.float32), first, size, first.T

    def exchange(operand, output, first, size, to):
        return jax.lax.ragged_all_to_all(operand[0], output[0], first[0], size[0], to[0], size[0], axis_name="d")[None]

    f = jax.jit(jax.shard_map(exchange, mesh=mesh, in_specs=P("d"), out_specs=P("d"), check_vma=False))
    unchecked = [export.DisabledSafetyCheck.custom_call("ragged_all_to_all")]
    exported = export.export(f, platforms=["cpu"], disabled_checks=unchecked)(*arrays)
    assert "custom_call @ragged_all_to_all" in exported.mlir_module()
    placed = [jax.device_put(array, NamedSharding(mesh, P("d"))) for array in arrays]
    got = export.deserialize(exported.serialize()).call(*placed)
    np.testing.assert_array_equal(got, operand.T)


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


def experts(x, router, up, down):
    """A layer of experts, two a device: each example goes to the device of its expert, and comes back."""
    logits = x @ router
    expert = jnp.argmax(logits, -1)
    order = jnp.argsort(expert)
    expert = expert[order]
    sent = jnp.bincount(expert // 2, length=N).astype(jnp.int32)  # by receiver
    of_all = jax.lax.all_gather(sent, "d")
    me = jax.lax.axis_index("d")
    came = of_all[:, me]

    def starts(sizes, axis=0):
        return (jnp.cumsum(sizes, axis) - sizes).astype(jnp.int32)

    def there(rows, empty):
        to = starts(of_all)[me]
        return jax.lax.ragged_all_to_all(rows, empty, starts(sent), sent, to, came, axis_name="d")

    rows = there(x[order], jnp.zeros((N * ROWS, x.shape[1])))
    which = there(expert, jnp.full(N * ROWS, 2 * me, expert.dtype)) - 2 * me
    rows = jnp.einsum("rh,rhd->rd", jnp.tanh(jnp.einsum("rd,rdh->rh", rows, up[which])), down[which])
    to = starts(of_all, 1)[:, me]
    rows = jax.lax.ragged_all_to_all(rows, jnp.zeros_like(x), starts(came), came, to, sent, axis_name="d")
    return jnp.zeros_like(x).at[order].set(rows) * jnp.max(jax.nn.softmax(logits), -1, keepdims=True)


def test_a_mixture_of_experts_trains_as_on_one_device(mesh):
    def alone(x, router, up, down):
        logits = x @ router
        expert = jnp.argmax(logits, -1)
        rows = jnp.einsum("rh,rhd->rd", jnp.tanh(jnp.einsum("rd,rdh->rh", x, up[expert])), down[expert])
        return rows * jnp.max(jax.nn.softmax(logits), -1, keepdims=True)

    rng = np.random.default_rng(0)
    shapes = (N * ROWS, 16), (16, 2 * N), (2 * N, 16, 24), (2 * N, 24, 16)
    arrays = [rng.normal(size=shape).astype("f") for shape in shapes]
    spread = jax.shard_map(
        experts, mesh=mesh, in_specs=(P("d"), P(), P("d"), P("d")), out_specs=P("d"), check_vma=False
    )

    def step(layer):
        return jax.jit(jax.value_and_grad(lambda *a: jnp.mean((layer(*a) - 1) ** 2), argnums=(0, 1, 2, 3)))

    for got, want in zip(jax.tree.leaves(step(spread)(*arrays)), jax.tree.leaves(step(alone)(*arrays)), strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-4, atol=1e-6)
