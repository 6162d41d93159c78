"""A small step of training in stages, as a function of pathways.mpmd."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh
from pathways import mpmd

WIDTH, ROWS = 8, 4
EMBEDDED = pytest.mark.embedded("it is about partitioning, which is the same everywhere")


def meshes(devices, stages, shape=(1,), axes=("x",)):
    n = int(np.prod(shape))
    order = devices[::2] + devices[1::2]  # of two workers, each stage is on another than the one before
    return {f"m{i}": Mesh(np.array(order[n * i : n * (i + 1)]).reshape(shape), axes) for i in range(stages)}


def config(devices, stages, schedule=None, **more):
    on = more.pop("on", None) or meshes(devices, stages)
    names = [f"block {i}" for i in range(stages)]  # a name is any text
    return mpmd.make_config(
        on,
        dict(zip(names, itertools.cycle(on), strict=False)),
        name_to_stage_assignment={name: i for i, name in enumerate(names)},
        pipeline_schedule=schedule,
        **more,
    )


def block(w, x):
    return jnp.tanh(x @ w)


def forward(ws, x):
    for i, w in enumerate(ws):
        x = mpmd.named_computation(block, name=f"block {i}")(w, x)
    return x


def loss(ws, x):
    return jnp.mean(forward(ws, x) ** 2)


def microbatch(carry, ws, x):
    return jax.tree.map(jnp.add, carry, jax.value_and_grad(loss)(ws, x))


def train(ws, xs):
    carry = jnp.zeros(()), jax.tree.map(jnp.zeros_like, ws)
    for i, x in enumerate(xs):
        carry = mpmd.call(microbatch, call_counter=i)(carry, ws, x)
    value, gradients = carry
    return value, jax.tree.map(lambda w, g: w - 0.1 * g, ws, gradients)


def infer(ws, xs):
    return [mpmd.call(forward, call_counter=i)(ws, x) for i, x in enumerate(xs)]


def numbers(stages, microbatches, seed=0):
    r = np.random.default_rng(seed)
    ws = [r.normal(size=(WIDTH, WIDTH)).astype("f") / 2 for _ in range(stages)]
    return ws, [r.normal(size=(ROWS, WIDTH)).astype("f") for _ in range(microbatches)]


def bits(tree):
    return [(leaf.shape, leaf.dtype, np.asarray(leaf).tobytes()) for leaf in jax.tree.leaves(tree)]


def near(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=2e-5, atol=2e-6), a, b)


def placed(compiled, args):
    return jax.device_put(args, compiled.input_shardings)
