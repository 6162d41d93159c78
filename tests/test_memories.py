"""Memories of a device inside of jitted functions, as stock's: results, donated arguments and offloaded activations."""

import functools

import jax
import jax.experimental.compute_on
import jax.numpy as jnp
import numpy as np
import pytest
from jax.ad_checkpoint import checkpoint_name
from jax.experimental import serialize_executable
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P

pytestmark = [pytest.mark.versions]

on_host = getattr(jax.experimental.compute_on, "compute_on2", jax.experimental.compute_on.compute_on)


def over(devices):
    mesh = jax.make_mesh((len(devices),), ("x",), devices=devices)
    return NamedSharding(mesh, P("x"), memory_kind="device")


@pytest.fixture(params=["all devices", "one device"])
def place(request, devices):
    """A sharding in a device's default memory, over the devices of all workers or on one of the last worker."""
    if request.param == "one device":
        return SingleDeviceSharding(devices[-1], memory_kind="device")
    return over(devices)


@pytest.fixture
def pinned(place):
    return place.with_memory_kind("pinned_host")


def numbers():
    return np.arange(64, dtype=np.float32).reshape(8, 8)


def check(array, want, kind):
    assert array.sharding.memory_kind == kind
    assert {shard.data.sharding.memory_kind for shard in array.addressable_shards} == {kind}
    np.testing.assert_array_equal(np.asarray(array), want)


def test_results_are_in_the_memory_that_the_program_names(place, pinned):
    x = jax.device_put(numbers(), place)
    first, second = jax.jit(lambda x: (x * 2, x + 1), out_shardings=(pinned, place))(x)
    check(first, numbers() * 2, "pinned_host")
    check(second, numbers() + 1, "device")
    check(jax.jit(lambda x: jax.device_put(x * 2, pinned))(x), numbers() * 2, "pinned_host")
    check(jax.jit(lambda x: jax.device_put(x * 2, jax.memory.Space.Host))(x), numbers() * 2, "pinned_host")
    in_host = on_host(lambda x: x * 2, compute_type="device_host", out_memory_spaces=jax.memory.Space.Host)
    check(jax.jit(in_host)(x), numbers() * 2, "pinned_host")

    # They are arguments as others are, and are moved and read as others are.
    check(jax.jit(lambda x, y: jax.device_put(x, place) + y)(first, second), numbers() * 3 + 1, "device")
    check(jax.device_put(first, place), numbers() * 2, "device")
    check(jax.device_put(second, pinned), numbers() + 1, "pinned_host")


def test_state_stays_in_the_memory_of_the_host_from_step_to_step(place, pinned):
    @functools.partial(jax.jit, donate_argnums=(0, 1), out_shardings=(place, pinned))
    def step(weights, momentum):
        momentum = 0.5 * jax.device_put(momentum, place) + weights
        return weights - 0.25 * momentum, jax.device_put(momentum, pinned)

    weights, momentum = jax.device_put(numbers(), place), jax.device_put(np.zeros((8, 8), np.float32), pinned)
    wanted, wanted_momentum = numbers(), np.zeros((8, 8), np.float32)
    for _ in range(3):
        before, (weights, momentum) = (weights, momentum), step(weights, momentum)
        assert all(array.is_deleted() for array in before)
        wanted_momentum = 0.5 * wanted_momentum + wanted
        wanted = wanted - 0.25 * wanted_momentum
    check(weights, wanted, "device")
    check(momentum, wanted_momentum, "pinned_host")


def test_offloaded_activations_give_stocks_gradient(place):
    policy = jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[],
        names_which_can_be_offloaded=["wave"],
        offload_src="device",
        offload_dst="pinned_host",
    )

    @functools.partial(jax.checkpoint, policy=policy)
    def loss(x):
        def layer(x, _):
            return jnp.cos(checkpoint_name(jnp.sin(x), "wave")), None

        return jax.lax.scan(layer, x, None, length=3)[0].sum()

    gradient = jax.jit(jax.grad(loss))
    stock = gradient(jax.device_put(numbers(), jax.devices("cpu")[0]))
    np.testing.assert_allclose(gradient(jax.device_put(numbers(), place)), stock, rtol=1e-5, atol=1e-6)


def test_a_program_that_python_partitions_places_results(devices):
    pinned = over(devices).with_memory_kind("pinned_host")

    @custom_partitioning
    def double(x):
        return x * 2

    double.def_partition(
        partition=lambda mesh, args, result: (mesh, lambda x: x * 2, result.sharding, (args[0].sharding,)),
        infer_sharding_from_operands=lambda mesh, args, result: args[0].sharding,
        sharding_rule="i j -> i j",
    )
    x = jax.device_put(numbers(), over(devices))
    check(jax.jit(double, out_shardings=pinned)(x), numbers() * 2, "pinned_host")


def test_a_compiled_program_that_is_loaded_places_results(devices):
    pinned = over(devices).with_memory_kind("pinned_host")
    x = jax.device_put(numbers(), over(devices))
    compiled = jax.jit(lambda x: x * 2, out_shardings=pinned).lower(x).compile()
    loaded = serialize_executable.deserialize_and_load(*serialize_executable.serialize(compiled))
    check(loaded(x), numbers() * 2, "pinned_host")
