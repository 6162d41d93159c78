"""A node of a program that fails, and what fails with it."""

import jax
import jax.numpy as jnp
import numpy as np
import pathways
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

pytestmark = [pytest.mark.sizes, pytest.mark.versions]

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
        assert text.startswith("RESOURCE_EXHAUSTED: ") and "emory" in text, text
        assert f"[jit__lambda, called at {__file__}:{line}" in text, text


def test_dependents_have_the_code_the_name_and_the_line_of_the_node_that_failed(devices):
    plus = jax.jit(lambda x: x + 1)
    take = jax.jit(lambda x: x * 2, donate_argnums=0)
    pair = NamedSharding(Mesh(np.array(devices[:2]), "a"), P("a"))
    over = jax.shard_map(lambda x: jax.lax.psum(x, "a"), mesh=pair.mesh, in_specs=P("a"), out_specs=P())
    total = jax.jit(over)

    @pathways.program
    def f(x):
        y = x - 1
        taken = take(y)
        bad = plus(y)  # the line: y was given away
        there = pathways.reshard(bad, pair)
        return taken, [bad, plus(bad), plus(jax.device_put(bad, devices[1])), there, plus(there), total(there)]

    line = f.__wrapped__.__code__.co_firstlineno + 4
    taken, failed = f(jnp.zeros(4))
    assert taken.tolist() == [-2.0] * 4
    uses = [np.asarray, jax.block_until_ready, lambda x: plus(x).block_until_ready()]
    for i, x in enumerate(failed):
        for use in uses:
            with pytest.raises((jax.errors.JaxRuntimeError, ValueError)) as caught:
                use(x)
            text = str(caught.value)
            assert text.startswith("INVALID_ARGUMENT: ") and "donated" in text, (i, text)
            assert text.count("called at ") == 1 and f"[jit__lambda, called at {__file__}:{line}" in text, (i, text)
