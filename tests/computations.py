"""About forty computations of many kinds, whose results are compared between clients.

`save(path, names)` runs those of one device that are named, and all of eight, on the default backend, and writes every
result into one .npz file. Inputs come from NumPy with fixed seeds, so that the same bytes go in everywhere.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

RING = [(i, (i + 1) % 8) for i in range(8)]


def values(*shape, seed=0, dtype=np.float32):
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def one_device():
    """Returns name → (function, arguments) for the computations of one device."""
    a, b, v = values(130, 70), values(70, 50, seed=1), values(1000, seed=2)
    image, kernel = values(2, 8, 17, 17, seed=3), values(16, 8, 3, 3, seed=4)
    heads = [values(2, 4, 32, 16, seed=s) for s in (5, 6, 7)]
    spd = a.T @ a + np.eye(70, dtype=np.float32)
    whole = np.random.default_rng(8).integers(-1000, 1000, (64, 64)).astype(np.int32)

    def attention(q, k, w):
        scores = jnp.einsum("bhqd,bhkd->bhqk", q, k) / 4
        scores = jnp.where(jnp.tril(jnp.ones((32, 32), bool)), scores, -1e30)
        return jax.nn.softmax(scores, axis=-1) @ w

    def layer_norm(x):
        mean = x.mean(-1, keepdims=True)
        return (x - mean) * lax.rsqrt(((x - mean) ** 2).mean(-1, keepdims=True) + 1e-5)

    def conv(x, w, **more):
        return lax.conv_general_dilated(x, w, more.pop("strides", (1, 1)), "SAME", **more)

    def recurrence(x, w):
        return lax.scan(lambda h, row: (jnp.tanh(h @ w + row),) * 2, jnp.zeros(70), x)[1]

    return {
        "add": (lambda x: x + 0.1, (a,)),
        "matmul": (jnp.matmul, (a, b)),
        "matmul_bf16": (jnp.matmul, (a.astype(jnp.bfloat16), b.astype(jnp.bfloat16))),
        "matmul_f16": (jnp.matmul, (a.astype(np.float16), b.astype(np.float16))),
        "matmul_int": (jnp.matmul, (whole, whole)),
        "matvec": (jnp.dot, (a, values(70, seed=9))),
        "complex": (lambda x, y: jnp.matmul(x + 1j * x, jnp.exp(1j * y)), (a, b)),
        "convolution": (conv, (image, kernel)),
        "convolution_strided": (lambda x, w: conv(x, w, strides=(2, 3), rhs_dilation=(2, 1)), (image, kernel)),
        "convolution_grouped": (lambda x, w: conv(x, w, feature_group_count=8), (image, values(8, 1, 3, 3, seed=10))),
        "max_pool": (lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (1, 1, 3, 3), (1, 1, 2, 2), "VALID"), (image,)),
        "softmax": (jax.nn.softmax, (a,)),
        "log_sum_exp": (jax.nn.logsumexp, (a,)),
        "attention": (attention, heads),
        "layer_norm": (layer_norm, (a,)),
        "gelu": (jax.nn.gelu, (a,)),
        "sum": (jnp.sum, (a,)),
        "mean_of_rows": (lambda x: x.mean(1), (a,)),
        "variance": (jnp.var, (v,)),
        "product": (jnp.prod, (1 + 0.01 * v,)),
        "cumulative_sum": (jnp.cumsum, (v,)),
        "transcendental": (lambda x: jnp.stack([jnp.sin(x), jnp.exp(x), jnp.log1p(x * x), lax.erf(x)]), (v,)),
        "special": (lambda x: jnp.stack([lax.lgamma(x * x + 1), lax.digamma(x * x + 1), lax.erf_inv(x / 5)]), (v,)),
        "power": (lambda x: jnp.abs(x) ** 1.7, (v,)),
        "divide_and_root": (lambda x: jnp.sqrt(jnp.abs(x)) / (x + 3), (v,)),
        "sort": (lambda x: jnp.sort(x, axis=0), (a,)),
        "sort_pairs": (lambda x: lax.sort_key_val(x, jnp.arange(1000)), (v,)),
        "top_k": (lambda x: lax.top_k(x, 7), (a,)),
        "fft": (jnp.fft.fft2, (a,)),
        "real_fft": (lambda x: jnp.fft.irfft(jnp.fft.rfft(x) * 0.5), (v,)),
        "gather": (lambda x: x[jnp.arange(0, 130, 7)][:, ::-3], (a,)),
        "scatter_add": (lambda x: jnp.zeros(37).at[jnp.arange(1000) % 37].add(x), (v,)),
        "while": (lambda x: lax.while_loop(lambda c: jnp.linalg.norm(c) > 1, lambda c: c * 0.93, x), (v,)),
        "scan": (recurrence, (a, spd / 100)),
        "gradient": (jax.grad(lambda w, x: jnp.sum(jnp.tanh(x @ w) ** 2)), (b, a)),
        "jacobian": (jax.jacfwd(lambda x: jnp.sin(x) * x.sum()), (values(20, seed=11),)),
        "threefry": (lambda: jax.random.normal(jax.random.key(3, impl="threefry2x32"), (777,)), ()),
        "rbg": (lambda: jax.random.normal(jax.random.key(3, impl="rbg"), (777,)), ()),
        "gamma": (lambda: jax.random.gamma(jax.random.key(4), 2.5, (300,)), ()),
        "permutation": (lambda: jax.random.permutation(jax.random.key(5), 500), ()),
        "categorical": (lambda x: jax.random.categorical(jax.random.key(6), x), (a,)),
        "fp8": (lambda x: (x.astype(jnp.float8_e4m3fn) + x.astype(jnp.float8_e4m3fn)).astype(jnp.float32), (v,)),
        "int4": (lambda x: (x % 8).astype(jnp.int4).astype(jnp.int32) * 3, (whole,)),
        "quantized": (
            lambda x: jnp.round(x * 50).astype(jnp.int8).astype(jnp.int32) @ jnp.ones((70, 3), jnp.int32),
            (a,),
        ),
    }


def eight_devices():
    """Returns name → result for the computations of eight devices."""
    line = Mesh(np.array(jax.devices()), ("x",))
    grid = Mesh(np.array(jax.devices()).reshape(2, 4), ("data", "model"))
    rows = jax.device_put(values(16, 333, seed=20), NamedSharding(line, P("x")))

    def on_line(f, out=P("x")):
        return jax.jit(jax.shard_map(f, mesh=line, in_specs=P("x"), out_specs=out))(rows)

    out = {
        "all_reduce": on_line(lambda x: lax.psum(x, "x"), P()),
        "all_reduce_large": jax.jit(lambda x: jnp.exp(x).sum(0))(
            jax.device_put(values(64, 20_000, seed=21), NamedSharding(line, P("x")))
        ),
        "all_reduce_max": on_line(lambda x: lax.pmax(x, "x"), P()),
        "reduce_scatter": on_line(lambda x: lax.psum_scatter(jnp.tile(x, (4, 1)), "x", tiled=True)),
        "permute": on_line(lambda x: lax.ppermute(jnp.sin(x), "x", RING)),
        "all_gather": on_line(lambda x: lax.all_gather(x, "x", tiled=True).mean(0, keepdims=True)),
        "mean_over_all": jax.jit(jnp.mean)(rows),
        "pmap": jax.pmap(lambda x: x / lax.psum(jnp.sum(x * x), "i"), axis_name="i")(values(8, 50, seed=22)),
        "sharded_random": jax.jit(
            lambda: jax.random.normal(jax.random.key(1), (64, 9)), out_shardings=NamedSharding(line, P("x"))
        )(),
    }

    for name, spec in (("data", P()), ("model", P(None, "model"))):
        weights = jax.device_put(values(24, 40, seed=23) / 5, NamedSharding(grid, spec))
        last = jax.device_put(values(40, 3, seed=24) / 5, NamedSharding(grid, P("model" if name == "model" else None)))
        x = jax.device_put(values(32, 24, seed=25), NamedSharding(grid, P("data")))
        y = jax.device_put(values(32, 3, seed=26), NamedSharding(grid, P("data")))

        def loss(params, x, y):
            return jnp.mean((jax.nn.gelu(x @ params[0]) @ params[1] - y) ** 2)

        @jax.jit
        def step(params, momentum, x, y):
            value, grads = jax.value_and_grad(loss)(params, x, y)
            momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, grads)
            return jax.tree.map(lambda p, m: p - 0.05 * m, params, momentum), momentum, value

        params, losses = (weights, last), []
        momentum = jax.tree.map(jnp.zeros_like, params)
        for _ in range(12):
            params, momentum, value = step(params, momentum, x, y)
            losses.append(np.asarray(value))
        out[f"training_{name}"] = [*params, np.stack(losses)]
    return out


def save(path, names):
    """Writes the results; their names are the computations' names with the number of the result."""
    alone = {name: each for name, each in one_device().items() if name in names}
    results = {name: jax.jit(f)(*args) for name, (f, args) in alone.items()}
    # The same again with nothing compiled as a whole: operation by operation, on another device.
    with jax.default_device(jax.devices()[5]):
        for name in sorted({"softmax", "layer_norm", "gradient"} & alone.keys()):
            f, args = alone[name]
            results[f"{name}_by_operation"] = f(*args)
    results |= eight_devices()
    flat = {}
    for name, result in results.items():
        for i, leaf in enumerate(jax.tree.leaves(result)):
            leaf = np.asarray(leaf)
            # NumPy's file format knows the dtypes of NumPy only; float32 holds the narrower floats exactly.
            flat[f"{name}.{i}"] = leaf if leaf.dtype.isbuiltin == 1 else leaf.astype(np.float32)
    np.savez(path, **flat)
