"""Functions of Python that computations of a captured program call."""

import jax
import jax.numpy as jnp
import numpy as np
import pathways
import pytest

pytestmark = [pytest.mark.newest, pytest.mark.usefixtures("nothing_held")]


@pytest.mark.sizes
def test_callbacks_of_a_program_run_once_and_outlive_their_function():
    seen = []
    tell = jax.jit(lambda x: (jax.debug.callback(lambda v: seen.append(float(v)), x), x * 2)[1])
    twice = jax.jit(lambda x: jax.pure_callback(lambda v: np.asarray(v * 2), jax.ShapeDtypeStruct((), jnp.float32), x))

    @pathways.program
    def f(x):
        return twice(tell(x))

    for i in range(4):
        assert f(float(i)) == 4 * i
        if i == 2:
            del tell  # the function of Python goes with it
            tell = jax.jit(lambda x: x * 2)
            jax.clear_caches()
    jax.effects_barrier()
    assert seen == [0.0, 1.0, 2.0]


def test_callbacks_may_call_programs():
    """There JAX's default device is one of its own CPU client, and the function runs as it is."""
    inner = pathways.program(lambda x: x * 2 + 1)
    assert inner(np.arange(3.0)).tolist() == [1.0, 3.0, 5.0]
    back = jax.jit(
        lambda x: jax.pure_callback(
            lambda v: np.asarray(inner(np.asarray(v))), jax.ShapeDtypeStruct((3,), jnp.float32), x
        )
    )
    outer = pathways.program(lambda x: back(x) + 1)
    for _ in range(2):
        assert back(jnp.arange(3.0)).tolist() == [1.0, 3.0, 5.0]
        assert outer(jnp.arange(3.0)).tolist() == [2.0, 4.0, 6.0]
    assert inner.cost().captures == 1


def test_a_function_that_calls_back_and_is_made_inside():
    """Where it is gone with the capture, the call says so, and does not capture again and again."""
    like = jax.ShapeDtypeStruct((), jnp.float32)

    @pathways.program
    def f(x):
        return jax.jit(lambda y: jax.pure_callback(lambda v: np.asarray(v * 2), like, y))(x)

    try:
        assert f(2.0) == 4  # JAX keeps it
    except pathways.PathwaysError as error:
        assert error.code == "FAILED_PRECONDITION" and "outside of the program" in error.message


def test_ordered_effects_are_refused():
    from jax.experimental import io_callback

    ordered = jax.jit(
        lambda x: io_callback(lambda v: np.asarray(v), jax.ShapeDtypeStruct((), jnp.float32), x, ordered=True)
    )
    with pytest.raises(Exception, match="ordered effects"):
        pathways.program(lambda x: ordered(x))(1.0)
    assert ordered(jnp.float32(2)) == 2
    jax.effects_barrier()
