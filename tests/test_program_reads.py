"""Reading an array inside of a program, which has no contents there: an error that names the line, also where something
on the way passes over it."""

import inspect
import logging
import os
import pprint

import jax
import jax.numpy as jnp
import numpy as np
import pathways
import pytest

pytestmark = pytest.mark.newest


def number(x):
    return float(x.sum()) + 1  # reads


def truth(x):
    return bool(x[0])  # reads


def branch(x):
    return x if x.sum() > 0 else -x  # reads


def prints(x):
    print(x)  # reads


def waits(x):
    return x.block_until_ready()  # reads


def waits_for_a_tree(x):
    return jax.block_until_ready([x])  # reads


def asks_whether_it_is_ready(x):
    return x * 2 if x.is_ready() else x  # reads


def numpy(x):
    return np.asarray(x) + 1  # reads


def items(x):
    return x[0].item(), x.tolist()  # reads


def goes_through(x):
    return [float(y) for y in x]  # reads


def device_get(x):
    return jax.device_get({"x": x})  # reads


def shard(x):
    return np.asarray(x.addressable_data(0))  # reads


def view(x):
    return memoryview(x)  # reads


def dlpack(x):
    return np.from_dlpack(x)  # reads


def address(x):
    return x.unsafe_buffer_pointer()  # reads


def saves(x):
    np.save(os.devnull, x)  # reads, in a function of NumPy


def prints_nicely(x):
    pprint.pprint([x])  # reads, in a function of Python's own library


def logs(x):
    logging.getLogger("test").warning("%s", x)  # reads, and logging goes on without


FUNCTIONS = (
    *(number, truth, branch, prints, waits, waits_for_a_tree, asks_whether_it_is_ready, numpy, items, goes_through),
    *(device_get, shard, view, dlpack, address, saves, prints_nicely, logs),
)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_reading_inside_names_the_line(function, monkeypatch):
    monkeypatch.setattr(logging, "raiseExceptions", False)
    lines, start = inspect.getsourcelines(function)
    line = start + next(i for i, text in enumerate(lines) if "# reads" in text)

    def passes_over(x):
        try:
            function(x)
        except Exception:
            pass
        return x * 2

    for f in (function, passes_over, function):
        with pytest.raises(pathways.PathwaysError, match=f"test_program_reads.py:{line} reads, prints") as error:
            pathways.program(f)(jnp.arange(3.0))
        assert error.value.code == "FAILED_PRECONDITION" and f.__name__ in error.value.message
    # Nothing is left of the capture.
    assert (jnp.arange(3.0) + 1).tolist() == [1.0, 2.0, 3.0]


def test_what_does_not_read_is_no_error():
    @pathways.program
    def f(x):
        x.copy_to_host_async()  # ahead of who reads what comes out
        assert x.on_device_size_in_bytes() == 12 and not x.is_deleted() and x.nbytes == 12
        return x.addressable_data(0) + len(x) + x.copy()

    assert f(jnp.arange(3.0)).tolist() == [3.0, 5.0, 7.0]


def closes_over(x):
    y = x + 1
    return jax.jit(lambda z: z + y)(x)


def test_a_jitted_function_that_closes_over_a_value():
    f = pathways.program(closes_over)
    try:
        assert f(1.0) == 3  # where JAX gives it to the computation as an argument
    except pathways.PathwaysError as error:  # where it becomes a part of the computation
        assert error.code == "FAILED_PRECONDITION" and "test_program_reads.py" in error.message
    del f
