"""Ordinary computations on Pathways, each compared with NumPy, SciPy or a rule that its result must satisfy."""

import jax
import jax.numpy as jnp
import numpy as np
import pathways
import pytest
from jax import lax

pytestmark = pytest.mark.versions


def rng(seed=0):
    return np.random.default_rng(seed)


def test_backend_is_the_default_with_the_devices_asked_for():
    assert jax.default_backend() == "cpu"
    assert len(jax.devices()) == jax.device_count() == 8
    assert [d.id for d in jax.devices()] == list(range(8))
    assert {d.platform for d in jax.devices()} == {"cpu"}
    assert list(pathways.devices()) == jax.devices()
    # The devices are of our client, not of the one inside jaxlib, which stays at hand for host work.
    assert jax.devices()[0].client is not jax.devices("cpu")[0].client
    assert jax.devices("pathways") == jax.devices()


def test_arrays_live_on_the_default_device():
    x = jnp.arange(10.0)
    assert x.devices() == {jax.devices()[0]}
    assert (x * 2 + 1).devices() == {jax.devices()[0]}
    np.testing.assert_array_equal(np.asarray(x * 2 + 1), np.arange(10.0) * 2 + 1)


@pytest.mark.parametrize("device", [0, 3, 7])
def test_jit_runs_where_its_input_is(device):
    d = jax.devices()[device]
    x = jax.device_put(np.arange(6, dtype=np.float32), d)
    y = jax.jit(lambda v: v * v)(x)
    assert y.devices() == {d}
    np.testing.assert_array_equal(np.asarray(y), np.arange(6, dtype=np.float32) ** 2)


def test_jit_of_a_tree_with_static_and_unused_arguments():
    @jax.jit
    def f(tree, unused):
        return {"sum": tree["a"] + tree["b"][0], "passed": tree["b"][1]}

    a, b, c = (rng(i).normal(size=(4,)).astype(np.float32) for i in range(3))
    out = f({"a": a, "b": (b, c)}, jnp.zeros(3))
    np.testing.assert_array_equal(np.asarray(out["sum"]), a + b)
    np.testing.assert_array_equal(np.asarray(out["passed"]), c)
    power = jax.jit(lambda x, n: x**n, static_argnums=1)
    assert [float(power(2.0, n)) for n in (2, 3, 10)] == [4.0, 8.0, 1024.0]


def test_jit_with_no_input_and_with_empty_arrays():
    assert int(jax.jit(lambda: jnp.int32(7))()) == 7
    empty = jax.jit(lambda x: x + 1)(jnp.zeros((0, 5)))
    assert empty.shape == (0, 5) and np.asarray(empty).size == 0
    assert jax.jit(lambda: ())() == ()


def test_many_arguments_and_results():
    xs = [np.float32(i) for i in range(200)]
    ys = jax.jit(lambda *v: [a + i for i, a in enumerate(v)])(*xs)
    assert [float(y) for y in ys] == [2.0 * i for i in range(200)]


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int32", "complex64"])
def test_dot_products_are_exact_for_small_numbers(dtype):
    small = rng().integers(-3, 4, (3, 16, 24)), rng(1).integers(-3, 4, (3, 24, 8))
    a, b = (np.asarray(v, dtype=jnp.dtype(dtype)) for v in small)
    got = jnp.einsum("bij,bjk->bik", a, b)
    assert got.dtype == jnp.dtype(dtype)
    # Small whole numbers: exact in float16 and in bfloat16 up to 256.
    np.testing.assert_array_equal(np.asarray(got).astype(np.complex64), small[0] @ small[1])


def test_convolution_is_numpys():
    x = rng().normal(size=(2, 3, 9, 9)).astype(np.float32)
    w = rng(1).normal(size=(5, 3, 3, 3)).astype(np.float32)
    got = np.asarray(lax.conv_general_dilated(x, w, (2, 2), "VALID"))
    windows = np.lib.stride_tricks.sliding_window_view(x, (3, 3), axis=(2, 3))[:, :, ::2, ::2]
    np.testing.assert_allclose(got, np.einsum("nchwij,ocij->nohw", windows, w), rtol=1e-4, atol=1e-5)


def test_sort_top_k_and_argsort_are_numpys():
    x = rng().normal(size=(7, 33)).astype(np.float32)
    np.testing.assert_array_equal(np.asarray(jnp.sort(x, axis=1)), np.sort(x, axis=1))
    np.testing.assert_array_equal(np.asarray(jnp.argsort(x, axis=0)), np.argsort(x, axis=0, kind="stable"))
    values, indices = lax.top_k(x, 5)
    np.testing.assert_array_equal(np.asarray(values), -np.sort(-x, axis=1)[:, :5])
    np.testing.assert_array_equal(np.take_along_axis(x, np.asarray(indices), 1), np.asarray(values))


def test_loops_scans_and_branches_run():
    @jax.jit
    def collatz(n):
        def step(carry):
            n, count = carry
            return lax.cond(n % 2 == 0, lambda m: m // 2, lambda m: 3 * m + 1, n), count + 1

        return lax.while_loop(lambda c: c[0] != 1, step, (n, jnp.int32(0)))[1]

    assert int(collatz(jnp.int32(27))) == 111
    total, seen = lax.scan(lambda c, x: (c + x, c), 0.0, jnp.arange(10.0))
    assert float(total) == 45.0
    np.testing.assert_array_equal(np.asarray(seen), np.concatenate([[0], np.cumsum(np.arange(9.0))]))
    assert float(lax.fori_loop(0, 20, lambda i, v: v * 2, 1.0)) == 2.0**20
    branch = jax.jit(lambda i: lax.switch(i, [lambda: 10, lambda: 20, lambda: 30]))
    assert [int(branch(i)) for i in range(3)] == [10, 20, 30]


def test_fft_is_numpys():
    x = (rng().normal(size=(4, 60)) + 1j * rng(1).normal(size=(4, 60))).astype(np.complex64)
    np.testing.assert_allclose(np.asarray(jnp.fft.fft(x)), np.fft.fft(x), rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(np.asarray(jnp.fft.irfft(jnp.fft.rfft(x.real))), x.real, atol=1e-5)


def test_threefry_is_the_published_generator():
    # Values of jax.random are a promise of JAX: the same for every backend and version.
    bits = jax.random.bits(jax.random.key(0, impl="threefry2x32"), (4,), "uint32")
    with jax.default_device(jax.devices("cpu")[0]):
        stock = jax.random.bits(jax.random.key(0, impl="threefry2x32"), (4,), "uint32")
    np.testing.assert_array_equal(np.asarray(bits), np.asarray(stock))
    assert len(set(np.asarray(bits).tolist())) == 4


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg", "unsafe_rbg"])
def test_random_numbers_repeat_and_have_their_moments(impl):
    key = jax.random.key(7, impl=impl)
    draw = jax.jit(lambda k: jax.random.normal(k, (20_000,)))
    x = np.asarray(draw(key))
    np.testing.assert_array_equal(x, np.asarray(draw(key)))
    assert abs(x.mean()) < 0.05 and abs(x.std() - 1) < 0.05
    other = np.asarray(draw(jax.random.split(key)[0]))
    assert not np.array_equal(x, other)
    gamma = np.asarray(jax.random.gamma(key, 3.0, (5_000,)))
    assert gamma.min() > 0 and abs(gamma.mean() - 3) < 0.2


def test_grad_and_vmap_and_higher_derivatives():
    f = lambda x: jnp.sum(jnp.sin(x) * x**2)
    x = rng().normal(size=(5,)).astype(np.float32)
    want = np.cos(x) * x**2 + 2 * x * np.sin(x)
    np.testing.assert_allclose(np.asarray(jax.jit(jax.grad(f))(x)), want, rtol=1e-4, atol=1e-5)
    hessian = np.asarray(jax.hessian(f)(x))
    np.testing.assert_allclose(
        np.diag(hessian), 4 * x * np.cos(x) - x**2 * np.sin(x) + 2 * np.sin(x), rtol=1e-4, atol=1e-4
    )
    assert np.count_nonzero(hessian - np.diag(np.diag(hessian))) == 0
    batch = rng(1).normal(size=(6, 5)).astype(np.float32)
    np.testing.assert_allclose(np.asarray(jax.vmap(f)(batch)), [float(f(b)) for b in batch], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "dtype",
    "bool int4 uint4 int8 uint8 int16 int32 uint32 float8_e4m3fn float8_e5m2 float8_e4m3b11fnuz bfloat16 float16 "
    "float32 complex64".split(),
)
def test_every_dtype_comes_in_and_out_and_computes(dtype):
    dt = jnp.dtype(dtype)
    host = np.asarray([0, 1, 1, 0, 1] if dtype == "bool" else [0, 1, 2, 3, 5]).astype(dt)
    on = jax.device_put(host, jax.devices()[2])
    assert on.dtype == dt
    np.testing.assert_array_equal(np.asarray(on), host)
    turned = jax.jit(lambda x: x[::-1].reshape(5, 1))(on)
    np.testing.assert_array_equal(np.asarray(turned), host[::-1].reshape(5, 1))
    wide = jax.jit(lambda x: x.astype(jnp.complex64) + 1)(on)
    np.testing.assert_array_equal(np.asarray(wide), host.astype(np.complex64) + 1)


def test_types_of_64_bits_keep_their_bits():
    with jax.enable_x64(True):
        x = jnp.asarray([2**53 + 1, -1], dtype="int64")
        assert np.asarray(x * 1).tolist() == [2**53 + 1, -1]
        y = jnp.asarray([1.0], dtype="float64") + 2.0**-50
        assert float(y[0]) == 1.0 + 2.0**-50
        z = jnp.asarray([1 + 2j], dtype="complex128")
        assert complex((z * z)[0]) == (1 + 2j) ** 2


def test_scatter_gather_and_dynamic_slices():
    x = np.zeros((6, 4), np.float32)
    at = jnp.asarray(x).at[jnp.array([1, 1, 5]), jnp.array([0, 0, 3])].add(jnp.array([1.0, 2.0, 4.0]))
    want = x.copy()
    np.add.at(want, ([1, 1, 5], [0, 0, 3]), [1, 2, 4])
    np.testing.assert_array_equal(np.asarray(at), want)
    y = np.arange(20, dtype=np.float32)
    cut = jax.jit(lambda v, i: lax.dynamic_slice(v, (i,), (4,)))
    np.testing.assert_array_equal(np.asarray(cut(y, 3)), y[3:7])
    np.testing.assert_array_equal(np.asarray(cut(y, 99)), y[16:])  # XLA clamps the start


def test_linear_algebra_needs_lapack_of_the_host():
    a = rng().normal(size=(12, 12)).astype(np.float32)
    spd = a @ a.T + 12 * np.eye(12, dtype=np.float32)
    w, v = jnp.linalg.eigh(spd)
    np.testing.assert_allclose(np.asarray(v) @ np.diag(np.asarray(w)) @ np.asarray(v).T, spd, atol=1e-3)
    u, s, vt = jnp.linalg.svd(a)
    np.testing.assert_allclose((np.asarray(u) * np.asarray(s)) @ np.asarray(vt), a, atol=1e-4)
    low = np.asarray(jnp.linalg.cholesky(spd))
    np.testing.assert_allclose(low @ low.T, spd, atol=1e-3)
    b = rng(1).normal(size=(12,)).astype(np.float32)
    np.testing.assert_allclose(spd @ np.asarray(jnp.linalg.solve(spd, b)), b, atol=1e-4)
    q, r = jnp.linalg.qr(a)
    np.testing.assert_allclose(np.asarray(q) @ np.asarray(r), a, atol=1e-4)


def test_callbacks_reach_python(capfd):
    seen = []
    double = jax.jit(
        lambda x: jax.pure_callback(lambda v: np.asarray(v) * 2, jax.ShapeDtypeStruct((3,), jnp.float32), x)
    )
    np.testing.assert_array_equal(np.asarray(double(jnp.arange(3.0))), [0, 2, 4])

    @jax.jit
    def ordered(x):
        for i in range(4):
            jax.debug.callback(lambda v, i=i: seen.append((i, float(v))), x + i, ordered=True)
        jax.debug.print("value {x}", x=x)
        return x

    ordered(jnp.float32(1)).block_until_ready()
    jax.effects_barrier()
    assert seen == [(i, 1.0 + i) for i in range(4)]
    assert "value 1.0" in capfd.readouterr().out


def test_asynchronous_results_may_be_used_before_they_are_ready():
    step = jax.jit(lambda x: jnp.tanh(x @ x / 256) * 0.5 + 0.1)
    x = jnp.eye(256)
    want = np.eye(256, dtype=np.float32)
    for _ in range(20):
        x = step(x)
        want = np.tanh(want @ want / np.float32(256)) * np.float32(0.5) + np.float32(0.1)
    jax.block_until_ready([x, {"same": x}])
    assert x.is_ready()
    np.testing.assert_allclose(np.asarray(x), want, rtol=1e-4, atol=1e-5)


def test_a_program_compiled_twice_and_dropped_leaves_nothing():
    import gc

    gc.collect()
    before = len(jax.live_arrays())
    for n in range(5):
        f = jax.jit(lambda x, n=n: x + n)
        assert float(f(1.0)) == 1.0 + n
        f.clear_cache()
    del f
    gc.collect()
    assert len(jax.live_arrays()) == before
