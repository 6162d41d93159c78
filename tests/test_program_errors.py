"""A node of a program that fails, and what it takes with it."""

import jax
import jax.numpy as jnp
import numpy as np
import pathways
import pytest

HUGE = (1 << 20, 1 << 19)  # float32: 2 TiB, which no machine has


def test_a_node_without_memory_fails_its_dependents_alone():
    small = jax.jit(lambda x: x + 1)
    fill = jax.jit(lambda x: jnp.zeros(HUGE, jnp.float32) + x)
    corner = jax.jit(lambda y: y[0, :2])

    @pathways.program
    def f(x):
        z = small(x)
        y = fill(x)  # the line
        return z, corner(y), small(z)

    line = f.__wrapped__.__code__.co_firstlineno + 3
    assert len(f.lower(np.float32(1)).graph["nodes"]) == 4  # which takes no such memory
    for _ in range(2):
        z, nothing, more = f(np.float32(1))
        assert (float(z), float(more)) == (2, 3)
        with pytest.raises((jax.errors.JaxRuntimeError, ValueError)) as caught:
            nothing.block_until_ready()
        text = str(caught.value)
        assert "emory" in text and f"[jit__lambda, called at {__file__}:{line}" in text, text
