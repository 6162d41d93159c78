"""Arrays that are not row-major: Layout and Format, wherever JAX accepts them, and moves of such arrays."""

import os

import jax
import jax.numpy as jnp
import numpy as np
import pathways
import pytest
from jax.experimental.layout import Format, Layout
from jax.sharding import Mesh, NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P

pytestmark = pytest.mark.newest

COLUMNS = Layout((1, 0))  # the first dimension is the minor one
X = np.arange(128 * 16, dtype=np.float32).reshape(128, 16)


def over_all():
    return NamedSharding(Mesh(np.array(jax.devices()).reshape(4, 2), ("x", "y")), P("x", "y"))


def on_one(index=0):
    return SingleDeviceSharding(jax.devices()[index])


def order(array):
    return array.format.layout.major_to_minor


@pytest.mark.parametrize("sharding", [over_all, on_one])
def test_device_put_with_a_format(sharding):
    for x in (X, jax.device_put(X, sharding())):
        y = jax.device_put(x, Format(COLUMNS, sharding()))
        assert order(y) == (1, 0)
        np.testing.assert_array_equal(y, X)
        np.testing.assert_array_equal(y + 1, X + 1)  # a program that expects rows converts it first


@pytest.mark.parametrize("sharding", [over_all, on_one])
def test_formats_of_arguments_and_results(sharding):
    columns, rows = Format(COLUMNS, sharding()), Format(Layout((0, 1)), sharding())
    y = jax.jit(lambda x: x * 2, out_shardings=columns)(jax.device_put(X, sharding()))
    assert order(y) == (1, 0)
    z = jax.jit(lambda x: x + 1, in_shardings=columns, out_shardings=rows)(y)
    assert order(z) == (0, 1)
    np.testing.assert_array_equal(y, X * 2)
    np.testing.assert_array_equal(z, X * 2 + 1)


def test_formats_that_the_compiler_chooses():
    auto = Format(Layout.AUTO, over_all())
    like = jax.ShapeDtypeStruct(X.shape, X.dtype, sharding=over_all())
    f = jax.jit(lambda x: (x @ x.T).T, in_shardings=auto, out_shardings=auto).lower(like).compile()
    ((wants,), _) = f.input_formats
    y = f(jax.device_put(X, wants))
    assert y.format == f.output_formats
    np.testing.assert_allclose(y, (X @ X.T).T, rtol=1e-5)


def test_reshard_makes_arrays_row_major():
    y = jax.device_put(X, Format(COLUMNS, on_one()))
    for sharding in (over_all(), on_one(1), on_one(7)):  # of the same worker and of others, on a cluster
        moved = pathways.reshard(y, sharding)
        assert order(moved) == (0, 1)
        np.testing.assert_array_equal(moved * 2, X * 2)


def test_reshard_makes_whole_shards_row_major():
    def over(*indices):
        return NamedSharding(Mesh(np.array([jax.devices()[i] for i in indices]), "x"), P("x"))

    y = jax.device_put(X, Format(COLUMNS, over(0, 1)))
    for indices in ((1, 0), (6, 7)):  # between devices of a worker, and to those of another, on a cluster
        moved = pathways.reshard(y, over(*indices))
        assert order(moved) == (0, 1)
        np.testing.assert_array_equal(moved * 2, X * 2)


@pytest.mark.skipif("PATHWAYS_ADDRESS" not in os.environ, reason="about clusters: in one process the plugin copies it")
def test_a_cluster_refuses_to_copy_unconverted_arrays():
    y = jax.device_put(X, Format(COLUMNS, on_one()))
    for index in (1, 7):
        with pytest.raises(jax.errors.JaxRuntimeError, match="UNIMPLEMENTED.*first convert it to the default layout"):
            jax.device_put(y, jax.devices()[index])
    rows = jax.device_put(y, Format(Layout((0, 1)), on_one()))
    np.testing.assert_array_equal(jax.device_put(rows, jax.devices()[7]) * 2, X * 2)


def test_a_program_accepts_arguments_of_any_layout():
    f = pathways.program(jax.jit(lambda x: x * 2))
    columns = jax.device_put(X, Format(COLUMNS, on_one()))
    rows = jax.device_put(X, on_one())
    for x in (columns, rows, columns):
        np.testing.assert_array_equal(f(x), X * 2)


def test_memory_analysis_has_no_bytes_of_the_host():
    stats = jax.jit(lambda x: x @ x.T).lower(jax.device_put(X, over_all())).compile().memory_analysis()
    assert stats.argument_size_in_bytes == X.nbytes // 8
    for name in ("generated_code", "argument", "output", "alias", "temp"):
        assert getattr(stats, f"host_{name}_size_in_bytes") == 0


def test_results_of_bfloat16_and_higher_rank():
    x = jnp.arange(2 * 3 * 4, dtype=jnp.bfloat16).reshape(2, 3, 4)
    y = jax.device_put(x, Format(Layout((2, 0, 1)), on_one()))
    assert order(y) == (2, 0, 1)
    np.testing.assert_array_equal(y, x)
