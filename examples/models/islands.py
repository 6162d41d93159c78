"""Data parallel over islands: gradients of a part of a model, summed within each island and then across all of them.

Each device sends only its row to its partner in the other islands, as PaLM's pods do, in chunks that leave when the
backward has made them. Every island adds in the order of the islands, so all have the same bits, whatever the chunks.
"""

import functools
import itertools
import operator

import jax
import jax.numpy as jnp
import pathways
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P


def rows(gradients, mesh):
    """Returns, inside jit, gradients as one array with a row for each device of an island, which XLA sums there."""
    flat = jnp.concatenate([g.ravel() for g in jax.tree.leaves(gradients)])
    table = jnp.pad(flat, (0, -len(flat) % mesh.size)).reshape(mesh.size, -1)
    return jax.lax.with_sharding_constraint(table, NamedSharding(mesh, P(mesh.axis_names)))


@functools.partial(jax.jit, static_argnums=1)
def chunks(table, size):
    """Cuts rows into columns of a size: what each device sends at a time."""
    return [table[:, i : i + size] for i in range(0, table.shape[1], size)]


def send(parts, meshes):
    """Sends each island's part to all islands. Returns for each island the parts in the order of islands, at once."""
    return [[pathways.reshard(x, NamedSharding(mesh, P(mesh.axis_names))) for x in parts] for mesh in meshes]


def mean(sent, like):
    """Returns, inside jit, the gradients from their chunks: a list of the islands' parts for each chunk."""
    table = jnp.concatenate([functools.reduce(operator.add, parts) / len(parts) for parts in sent], 1)
    leaves, structure = jax.tree.flatten(like)
    ends = itertools.accumulate(leaf.size for leaf in leaves)
    flat = table.ravel()
    return structure.unflatten(flat[end - x.size : end].reshape(x.shape) for end, x in zip(ends, leaves, strict=True))
