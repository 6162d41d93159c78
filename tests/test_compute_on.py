"""Computations that JAX places on the host of a device, `compute_on`: as stock's, in one process and on a cluster."""

import functools

import jax
import jax.experimental.compute_on
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

pytestmark = [pytest.mark.versions]

# JAX 0.10 has it as a context and, under another name, as the decorator that it has become since.
context = jax.experimental.compute_on.compute_on
decorator = getattr(jax.experimental.compute_on, "compute_on2", None)
if decorator is None:
    context, decorator = None, context
on_host = functools.partial(decorator, compute_type="device_host", out_memory_spaces=jax.memory.Space.Device)


@(context("device_host") if context else on_host)
@jax.jit
def wave(x):
    return jnp.cos(x) * 3


def mixed(x):
    return jnp.sin(wave(x)) + x.sum()


@pytest.fixture
def numbers():
    return np.arange(64, dtype=np.float32).reshape(8, 8)


@pytest.fixture
def stock(numbers):
    """The numbers on jaxlib's own CPU device."""
    return jax.device_put(numbers, jax.devices("cpu")[0])


@pytest.fixture
def split(devices):
    return NamedSharding(jax.make_mesh((len(devices),), ("x",), devices=devices), PartitionSpec("x"))


def test_host_parts_run_on_one_device(devices, numbers, stock):
    result = jax.jit(mixed)(jax.device_put(numbers, devices[-1]))
    assert result.devices() == {devices[-1]}
    np.testing.assert_array_equal(np.asarray(result), np.asarray(jax.jit(mixed)(stock)))


def test_host_parts_run_on_every_device_of_a_mesh(split, numbers, stock):
    result = jax.jit(mixed)(jax.device_put(numbers, split))
    assert result.sharding.device_set == split.device_set
    np.testing.assert_allclose(np.asarray(result), np.asarray(jax.jit(mixed)(stock)), rtol=1e-6)


@pytest.mark.skipif(context is None, reason="this JAX has it as a decorator alone")
def test_compute_on_may_be_a_context(split, numbers):
    def f(x):
        with context("device_host"):
            y = x * 2
        return y + 1

    result = jax.jit(f, out_shardings=split)(jax.device_put(numbers, split))
    assert result.sharding.is_equivalent_to(split, 2)
    np.testing.assert_array_equal(np.asarray(result), numbers * 2 + 1)


def test_the_gradient_of_host_parts_is_stock_jaxs(split, numbers, stock):
    gradient = jax.jit(jax.grad(lambda x: mixed(x).sum()))
    result, expected = gradient(jax.device_put(numbers, split)), gradient(stock)
    np.testing.assert_allclose(np.asarray(result), np.asarray(expected), rtol=1e-5)


def test_a_result_that_is_split_inside(devices, numbers):
    mesh = jax.make_mesh((2,), ("x",), devices=devices[:2], axis_types=(jax.sharding.AxisType.Explicit,))

    @on_host
    def doubled(x):
        return jax.reshard(x, PartitionSpec("x")) * 2

    with jax.set_mesh(mesh):
        result = jax.jit(doubled)(jnp.asarray(numbers))
    assert result.sharding.spec == PartitionSpec("x", None)
    np.testing.assert_array_equal(np.asarray(result), numbers * 2)
