"""Donation to and inside programs: which arrays are consumed, and which stay."""

import jax
import jax.numpy as jnp
import numpy as np
import pathways
import pytest

pytestmark = [pytest.mark.sizes, pytest.mark.versions, pytest.mark.usefixtures("nothing_held")]


def test_donated_arguments_are_gone_and_others_stay(devices):
    add = jax.jit(lambda x: x + 1, donate_argnums=0)

    def f(x, y):
        x = add(add(x))
        return x, add(y)

    g = pathways.program(f, donate_argnums=0)
    x, y = jnp.zeros(1000), jnp.ones(3)
    for i in range(3):
        before = x
        x, z = g(x, y)
        assert before.is_deleted() and not y.is_deleted()
        assert x[0] == 2 * (i + 1) and z.tolist() == [2.0] * 3 and y.tolist() == [1.0] * 3
    with pytest.raises((RuntimeError, ValueError), match="delete"):
        g(before, y)
    # An argument that is not donated stays, though it is given to what donates.
    h = pathways.program(lambda x: add(x))
    x = jnp.zeros(4)
    assert h(x).tolist() == [1.0] * 4 and not x.is_deleted() and x.tolist() == [0.0] * 4


def test_arguments_are_donated_by_name():
    by_number = pathways.program(lambda x, y: x + y, donate_argnums=0)
    by_name = pathways.program(lambda x, y: x + y, donate_argnames=("x",))
    for f in (by_number, by_name):
        for call in (lambda f, x, y: f(x, y), lambda f, x, y: f(y=y, x=x), lambda f, x, y: f(x, y=y)):
            x, y = jnp.ones(3), jnp.ones(3)
            assert call(f, x, y).tolist() == [2.0] * 3
            assert x.is_deleted() and not y.is_deleted()
    with pytest.raises(ValueError, match="both"):
        pathways.program(lambda x: x, static_argnames="x", donate_argnums=0)
    with pytest.raises(ValueError, match="are not arguments"):
        pathways.program(lambda x: x, donate_argnames="y")


def test_donated_arguments_that_come_back():
    f = pathways.program(lambda x, y: (x, y + 1), donate_argnums=(0, 1))
    x, y = jnp.ones(3), jnp.ones(3)
    r = f(x, y)
    assert r[0] is x and not x.is_deleted() and y.is_deleted() and x.tolist() == [1.0] * 3


def test_use_after_donation_inside_is_an_error_of_what_depends_on_it():
    add = jax.jit(lambda x: x + 1, donate_argnums=0)

    def f(x):
        y = x * 2
        z = add(y)
        return z, y * 3, x + 5

    z, bad, good = pathways.program(f)(jnp.ones(4))
    assert z.tolist() == [3.0] * 4 and good.tolist() == [6.0] * 4
    with pytest.raises((RuntimeError, ValueError), match="deleted or donated"):
        np.asarray(bad)


def test_a_program_in_a_program_takes_over_what_it_donates():
    outside, seen = jnp.arange(3.0), []
    add = jax.jit(lambda x: x + 1, donate_argnums=0)
    inner = pathways.program(lambda x, k: add(x["x"]) * k, static_argnames="k", donate_argnums=0)
    same_again = pathways.program(lambda x: x, donate_argnames="x")

    @pathways.program
    def outer(x):
        y, key = x * 2, jax.random.key(1)
        r = inner({"x": y}, k=3), inner({"x": x}, k=4), inner({"x": outside}, k=5), same_again(key)
        seen.append((y.is_deleted(), x.is_deleted(), key.is_deleted(), outside.is_deleted()))
        return r

    x = jnp.arange(3.0)
    for _ in range(2):
        r = outer(x)
        assert not x.is_deleted() and [a.tolist() for a in r[:3]] == [
            [3.0, 9.0, 15.0],
            [4.0, 8.0, 12.0],
            [5.0, 10.0, 15.0],
        ]
    assert seen == [(True, True, False, False)]

    @pathways.program
    def again(x):
        y = x * 2
        return inner({"x": y}, k=3) + y

    with pytest.raises(RuntimeError, match="deleted"):
        again(x)
