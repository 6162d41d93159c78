"""The cost of a compiled program, compared with jaxlib's figures for the same program."""

import gc
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxlib import _jax

pytestmark = pytest.mark.newest


def array(*dims, dtype=np.float32):
    return jax.ShapeDtypeStruct(dims, dtype)


def attention(q, k, v):
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k)
    return jax.nn.softmax(jnp.where(jnp.tril(jnp.ones((16, 16), bool)), scores, -1e9)) @ v.transpose(0, 2, 1, 3)


PROGRAMS = {
    "matmul": (lambda x, y: x @ y, array(64, 32), array(32, 16)),
    "large matmul": (lambda x, y: x @ y, array(4096, 4096), array(4096, 4096)),
    "bfloat16": (lambda x, y: x @ y, array(64, 32, dtype=jnp.bfloat16), array(32, 16, dtype=jnp.bfloat16)),
    "elementwise": (lambda x: jnp.sin(x) * 2 + jnp.exp(x) / x, array(100, 7)),
    "reduce": (lambda x: (x.sum(0), x.max(1)), array(100, 7)),
    "convolution": (
        lambda x, k: lax.conv_general_dilated(x, k, (2, 1), "SAME", rhs_dilation=(1, 2)),
        array(2, 3, 15, 16),
        array(4, 3, 3, 5),
    ),
    "transposed convolution": (
        lambda x, k: lax.conv_transpose(x, k, (2, 2), "SAME"),
        array(2, 15, 16, 3),
        array(3, 3, 3, 4),
    ),
    "gradient of a convolution": (
        jax.grad(lambda k, x: lax.conv_general_dilated(x, k, (2, 1), "SAME").sum()),
        array(4, 3, 3, 5),
        array(2, 3, 15, 16),
    ),
    "loop": (lambda x: lax.fori_loop(0, 10, lambda i, v: jnp.tanh(v @ v) + i, x), array(16, 16)),
    "scan": (lambda x, ys: lax.scan(lambda c, y: (c * y + 1, c.sum()), x, ys), array(16), array(20, 16)),
    "branches": (
        lambda b, x: lax.cond(b, lambda v: jnp.sin(v @ v), lambda v: v * 2, x),
        array(dtype=np.bool_),
        array(16, 16),
    ),
    "sort": (lambda x: jnp.argsort(x), array(37, 5)),
    "gather and scatter": (
        lambda x, i: x.at[i].add(2 * x[i + 1]),
        array(100, 7),
        array(5, dtype=np.int32),
    ),
    "fft": (lambda x: jnp.fft.rfft2(x), array(8, 32, 64)),
    "random": (lambda key: jax.random.normal(key, (100,)), array(2, dtype=np.uint32)),
    "custom call": (lambda x: jnp.linalg.eigh(x), array(16, 16)),
    "attention": (attention, array(2, 16, 4, 8), array(2, 16, 4, 8), array(2, 16, 4, 8)),
    "training step": (
        jax.value_and_grad(lambda w, x: -jax.nn.log_softmax(jax.nn.relu(x @ w[0]) @ w[1])[:, 0].mean()),
        (array(16, 64), array(64, 10)),
        array(32, 16),
    ),
}

# The entries of a tuple's table are pointers, eight bytes each; jaxlib counts four since 0.12. They are in these two.
TABLES = {"bytes accessed", "bytes accessedout{}"}


def same(compiled):
    (module,) = compiled.runtime_executable().hlo_modules()
    stock = _jax.hlo_module_cost_analysis(jax.devices("cpu")[0].client, module)
    want = {name: value for name, value in stock.items() if value}
    got = compiled.cost_analysis()
    assert set(got) == set(want)
    entries = module.to_string().count("get-tuple-element") + module.to_string().count("tuple(")
    for name, value in got.items():
        if jax.version.__version_info__ >= (0, 12) and name in TABLES and entries:
            assert (value - want[name]) % 4 == 0
            assert 0 <= value - want[name] == got["bytes accessed"] - want["bytes accessed"] <= 4 * 16 * entries
        else:
            # Both are of single precision, summed in an order of its own.
            assert value == pytest.approx(want[name], rel=1e-6), name
    return got


@pytest.mark.parametrize("name", PROGRAMS)
def test_cost_is_jaxlibs(name):
    f, *args = PROGRAMS[name]
    assert same(jax.jit(f).lower(*args).compile())


def test_the_cost_of_a_matmul_is_its_operations_and_bytes():
    cost = jax.jit(lambda x, y: x @ y).lower(array(64, 32), array(32, 16)).compile().cost_analysis()
    assert cost["flops"] == 2 * 64 * 32 * 16
    assert cost["bytes accessed"] == 4 * (64 * 32 + 32 * 16 + 64 * 16)
    assert "transcendentals" not in cost


def test_cost_is_that_of_one_device(devices):
    sharding = NamedSharding(Mesh(np.array(devices), ("d",)), PartitionSpec("d"))
    compiled = jax.jit(lambda x: jnp.tanh(x.T @ x), in_shardings=sharding).lower(array(64, 32)).compile()
    cost = same(compiled)
    assert cost["flops"] < 2 * 64 * 32 * 32  # of all of it


def test_cost_is_asked_for_by_many_threads():
    compiled = jax.jit(lambda x, y: jnp.tanh(x @ y)).lower(array(64, 32), array(32, 16)).compile()
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: compiled.cost_analysis(), range(64)))
    assert all(answer == answers[0] for answer in answers)


def test_cost_goes_with_its_executable():
    # A new executable may get the memory of one that is gone, and must not get its answer.
    gc.collect()
    gc.freeze()  # so that each collection looks at what came since
    try:
        for n in range(1, 40):
            compiled = jax.jit(lambda x: x * 2).lower(array(n)).compile()
            assert compiled.cost_analysis()["flops"] == n
            del compiled
            jax.clear_caches()
            gc.collect()
    finally:
        gc.unfreeze()
