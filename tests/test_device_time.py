"""`pathways.status()` of this process's devices: how long programs take of them, as on clusters."""

import time
import xml.etree.ElementTree

import fresh
import jax
import jax.numpy as jnp
import pathways
import pytest
from waiting import comes

pytestmark = [pytest.mark.embedded("workers measure it: core/worker/running_test.go"), pytest.mark.versions]


def program(name):
    """What status says of a program; one that it does not list yet has not run."""
    return next((p for p in pathways.status().report["programs"] if p["name"] == f"jit_{name}"), {"runs": 0})


def of_device(i):
    return pathways.status().workers[-1]["last"]["device_ns"][i]


def test_programs_take_the_time_that_devices_compute(devices):
    device = devices[-1]

    def long_loop(x):
        return jax.lax.fori_loop(0, 60, lambda _, y: jnp.tanh(y @ x), x)

    f, x = jax.jit(long_loop), jax.device_put(jnp.eye(256) * 0.5, device)
    f(x).block_until_ready()
    assert comes(lambda: program("long_loop")["runs"] == 1)  # an end is told after the array is ready
    before, runs = of_device(device.id), 10
    begin = time.perf_counter()
    y = x
    for _ in range(runs):  # they queue on the device: each begins when the one before it ends
        y = f(y)
    y.block_until_ready()
    wall = time.perf_counter() - begin
    assert comes(lambda: program("long_loop")["runs"] == runs + 1)
    known = program("long_loop")
    assert known["devices"] == 1
    took = (of_device(device.id) - before) / 1e9
    assert wall / 3 < took <= wall * 1.1
    assert wall / 5 < known["usual_ns"] / 1e9 * runs < wall * 3


def test_short_programs_are_sampled():
    def short_one(x):
        return x + 1

    def short_two(x):
        return x + 2

    f, g, x = jax.jit(short_one), jax.jit(short_two), jnp.float32(1)
    begin = time.perf_counter()
    for _ in range(4000):  # in turns, so that neither may be in step with the sampling
        f(x).block_until_ready()
        g(x).block_until_ready()
    wall = time.perf_counter() - begin
    both = [program("short_one"), program("short_two")]
    for one in both:
        assert 500 <= one["runs"] <= 4000
        assert 0 < one["usual_ns"] / 1e9 * 4000 < 10 * wall


def test_gangs_take_time_of_each_device(devices):
    mesh = jax.make_mesh((len(devices),), ("x",))

    def of_all(x):
        return (x * x).sum()

    before = pathways.status().workers[-1]["last"]["device_ns"]
    x = jax.device_put(jnp.ones((256, 256)), jax.NamedSharding(mesh, jax.P("x")))
    jax.jit(of_all)(x).block_until_ready()
    assert comes(lambda: program("of_all")["runs"] == 1)  # an end is told after the array is ready
    assert program("of_all")["devices"] == mesh.size
    assert all(b > a for a, b in zip(before, pathways.status().workers[-1]["last"]["device_ns"], strict=True))


def test_waits_for_arrays_of_other_devices_are_no_device_time(devices):
    first, second = devices[-1], devices[-2]

    def maker(x):
        return jax.lax.fori_loop(0, 400, lambda _, y: jnp.tanh(y @ x), x)

    def waiter(x):
        return x + 1

    f, g = jax.jit(maker), jax.jit(waiter)
    x = jax.device_put(jnp.eye(256) * 0.5, first)
    f(x).block_until_ready()
    g(jax.device_put(x, second).block_until_ready()).block_until_ready()
    assert comes(lambda: program("maker")["runs"] == program("waiter")["runs"] == 1)
    on_first, on_second = of_device(first.id), of_device(second.id)
    g(jax.device_put(f(x), second)).block_until_ready()
    assert comes(lambda: program("maker")["runs"] == program("waiter")["runs"] == 2)
    on_first, on_second = of_device(first.id) - on_first, of_device(second.id) - on_second
    assert 0 < on_second < on_first / 4


def test_the_report_of_a_process_says_what_ran_in_words():
    done = fresh.run("""
        print(repr(pathways.status()))
        import jax, jax.numpy as jnp
        f = jax.jit(lambda x: x + 1)
        f(jnp.ones(1 << 18)).block_until_ready()
        while "_lambda" not in repr(pathways.status()):  # an end is told after the array is ready
            pass
        status = pathways.status()
        print(repr(status))
        print(status._repr_svg_())
    """)
    text, picture = done.stdout.split("<svg", 1)
    lines = text.splitlines()
    assert lines[0] == "this process: 0 devices, 0 sessions"
    assert lines[1] == "this process: 8 devices, 1 session"
    assert any(line.startswith("  _lambda: 1 run on 1 device, usually ") for line in lines), text
    assert "1 run on 1 device" in "".join(xml.etree.ElementTree.fromstring("<svg" + picture).itertext())
