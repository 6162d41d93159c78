"""Random pipelines give the loss and gradients of their model, in every schedule that fits them.

PATHWAYS_SEED=n tries the pipelines of the seeds from n on; without it, each run draws others, and says which.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pathways
import pytest
from conftest import ADDRESS, SEED, THOROUGH
from pathways._schedule import NAMES

# Each is compiled anew, which is all that takes time.
SEEDS = range(SEED, SEED + (30 if THOROUGH else 1 if ADDRESS else 3))

# The places of stages: there and back, again, and one each.
LAYOUTS = [0, 1, 1, 0], [0, 1, 0, 1], [0, 1, 2]


def dense(r, size, out):
    def run(w, x):
        return jnp.tanh(x @ w["w"] + w["b"])

    return run, {"w": r.normal(size=(size, out)) / np.sqrt(size), "b": r.normal(size=out)}


def block(r, size, out):
    """An MLP beside its input, computed again for the backward."""

    def run(w, x):
        return (x + jax.nn.gelu(x @ w[0]) @ w[1]) @ w[2]

    sizes = (size, 2 * size), (2 * size, size), (size, out)
    return jax.checkpoint(run), tuple(r.normal(size=pair) / np.sqrt(pair[0]) for pair in sizes)


def loop(r, size, out):
    """Layers in a loop, whose backward is not divided."""

    def run(w, x):
        return jax.lax.scan(lambda x, w: (jnp.sin(x @ w), None), x, w[0])[0] @ w[1]

    return run, (r.normal(size=(3, size, size)) / np.sqrt(size), r.normal(size=(size, out)) / np.sqrt(size))


def scale(r, size, out):
    """A weight for each number, and sums of several: no product of matrices."""

    def run(w, x):
        return jnp.stack([x[:, i % size] * w[i] for i in range(out)], 1) + x.sum(1, keepdims=True) * w[0]

    return run, r.normal(size=out)


def loss(y, targets):
    return jnp.mean(jnp.abs(y - targets) ** 1.5)


def bits(tree):
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(tree)]


@pytest.mark.parametrize("seed", SEEDS)
def test_the_numbers_of_the_model_in_every_schedule(devices, seed):
    r = np.random.default_rng(seed)
    numbers = LAYOUTS[seed % len(LAYOUTS)]
    if len(numbers) == 3:
        numbers = numbers[: r.integers(1, 4)]
    each = r.integers(1, 3)  # devices of a place
    order = r.permutation(len(devices))
    places = [[devices[i] for i in order[each * n : each * (n + 1)]] for n in range(3)]
    microbatches = int(2 * r.integers(1, 4))
    widths = r.integers(2, 9, len(numbers) + 1)
    kinds = r.permutation([dense, block, loop, scale])[: len(numbers)]
    made = [kind(r, a, b) for kind, a, b in zip(kinds, widths, widths[1:], strict=False)]
    functions, params = zip(*made, strict=True)
    params = jax.tree.map(lambda leaf: leaf.astype("float32"), list(params))
    rows = microbatches * each * int(r.integers(1, 4))
    x, targets = (r.normal(size=(rows, w)).astype("float32") for w in (widths[0], widths[-1]))
    print(f"PATHWAYS_SEED={seed}: {[kind.__name__ for kind in kinds]} on {numbers}, {each} devices a place, {widths}")

    def whole(params):
        y = x
        for function, p in zip(functions, params, strict=True):
            y = function(p, y)
        return loss(y, targets)

    want, parts, results = jax.jit(jax.value_and_grad(whole))(params), None, {}
    stages = [(f, p, places[n]) for f, p, n in zip(functions, params, numbers, strict=True)]
    for name in NAMES:
        try:
            pipe = pathways.pipeline(stages, microbatches, name, loss=loss)
        except pathways.PathwaysError as error:
            assert "expects" in error.message
            continue
        parts = pipe._parts = parts or pipe._parts  # they know of no schedule, and are compiled once
        results[name] = got = pipe.value_and_grad(x, targets)
        if not name.startswith("zb"):
            assert bits(got) == bits(results["gpipe"]), name
        for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5, err_msg=name)
    assert len(results) >= 4  # all that are of one stage a place
