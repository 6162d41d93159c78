"""Programs whose devices talk to each other, of every kind, for comparison between ways to run them.

`save(path)` runs all on the default backend's first eight devices and writes every result into one .npz file. Inputs
come from NumPy with fixed seeds. Nothing here knows where the devices are.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

DTYPES = "float32 bfloat16 float16 float64 int32 int64 uint8 int8 bool complex64 complex128".split()
RING = [(i, (i + 1) % 8) for i in range(8)]
SWAP = [(i, i ^ 1) for i in range(6)]  # two ranks are in no pair: they get zeros


def values(*shape, dtype="float32", seed=0):
    """Random values of a dtype: floats whose sums depend on their order, all bits of whole numbers."""
    rng, dtype = np.random.default_rng(seed), jnp.dtype(dtype)
    if dtype.kind == "b":
        return rng.random(shape) < 0.9
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return rng.integers(info.min, info.max, shape, dtype=dtype, endpoint=True)
    if dtype.kind == "c":
        return (rng.normal(size=shape) + 1j * rng.normal(size=shape)).astype(dtype)
    return (rng.normal(size=shape) * 10.0 ** rng.integers(-3, 4, shape)).astype(dtype)


def line():
    return Mesh(np.array(jax.devices()[:8]), ("x",))


def grid():
    return Mesh(np.array(jax.devices()[:8]).reshape(2, 4), ("a", "b"))


def cube():
    return Mesh(np.array(jax.devices()[:8]).reshape(2, 2, 2), ("a", "b", "c"))


def shuffled():
    """A mesh in which neighbors are of different workers, whatever their number."""
    return Mesh(np.array(jax.devices()[:8])[[0, 4, 2, 6, 1, 5, 3, 7]].reshape(4, 2), ("a", "b"))


def put(mesh, x, *spec):
    return jax.device_put(x, NamedSharding(mesh, P(*spec)))


def on(mesh, f, spec, out=None):
    return jax.jit(jax.shard_map(f, mesh=mesh, in_specs=spec, out_specs=spec if out is None else out))


def kinds(mesh=None):
    """Returns name → (function of a shard, spec of the result) of each kind of collective over the axis x."""
    return {
        "sum": (lambda v: lax.psum(v, "x"), P()),
        "max": (lambda v: lax.pmax(v, "x"), P()),
        "min": (lambda v: lax.pmin(v, "x"), P()),
        "gather": (lambda v: lax.all_gather(v, "x", axis=1, tiled=True)[None, 0], P("x")),
        "gather_new_axis": (lambda v: lax.all_gather(v, "x")[None, :, 0], P("x")),
        "scatter": (lambda v: lax.psum_scatter(v, "x", scatter_dimension=1, tiled=True), P("x")),
        "exchange": (lambda v: lax.all_to_all(v, "x", 1, 0, tiled=True), P("x")),
        "permute": (lambda v: lax.ppermute(v, "x", RING), P("x")),
        "permute_some": (lambda v: lax.ppermute(v, "x", SWAP), P("x")),
        "index": (lambda v: v * 0 + lax.axis_index("x").astype(v.dtype), P("x")),
    }


# Of these dtypes XLA has no such reduction.
WITHOUT = {"bool": {"sum", "scatter"}, "complex64": {"max", "min"}, "complex128": {"max", "min"}}


def by_dtype(dtype):
    """Every kind of collective on an array of one dtype."""
    x = put(line(), values(8, 24, dtype=dtype), "x")
    return {
        f"{name}_{dtype}": on(line(), f, P("x"), out)(x)
        for name, (f, out) in kinds().items()
        if name not in WITHOUT.get(dtype, ())
    }


def groups():
    """Collectives over some axes of a mesh: groups of two, four and eight, of neighbors and of others."""
    out = {}
    for mesh_name, mesh in (("grid", grid()), ("cube", cube()), ("shuffled", shuffled())):
        x = put(mesh, values(8, 16, seed=3), mesh.axis_names)
        for axes in (mesh.axis_names[:1], mesh.axis_names[-1:], mesh.axis_names[1:], mesh.axis_names):
            spec = P(mesh.axis_names)
            name = f"{mesh_name}_{''.join(axes)}"
            out[f"sum_{name}"] = on(mesh, lambda v, axes=axes: lax.psum(v, axes) + 0 * v, spec)(x)
            out[f"gather_{name}"] = on(
                mesh, lambda v, axes=axes: lax.all_gather(v, axes, axis=1, tiled=True)[:, :40], spec
            )(x)
            out[f"scatter_{name}"] = on(
                mesh, lambda v, axes=axes: lax.psum_scatter(v, axes, scatter_dimension=1, tiled=True), spec
            )(x)
            out[f"exchange_{name}"] = on(mesh, lambda v, axes=axes: lax.all_to_all(v, axes, 1, 1, tiled=True), spec)(x)
    x = values(8, 16, seed=4)
    pairs, fours = [[0, 7], [1, 6], [2, 5], [3, 4]], [[0, 3, 6, 1], [2, 7, 4, 5]]
    out["pairs"] = jax.pmap(lambda v: lax.psum(v, "i", axis_index_groups=pairs), axis_name="i")(x)
    out["fours"] = jax.pmap(lambda v: lax.all_gather(v, "i", axis_index_groups=fours), axis_name="i")(x)
    out["exchanged"] = jax.pmap(lambda v: lax.all_to_all(v, "i", 0, 0, axis_index_groups=fours), axis_name="i")(
        x[:, :4]
    )
    return out


def automatic():
    """Programs that XLA partitions by the shardings of arrays."""
    mesh = grid()
    a, b = put(mesh, values(32, 64, seed=5), "a", "b"), put(mesh, values(64, 48, seed=6), "b", "a")
    out = {
        "matmul": jax.jit(jnp.matmul)(a, b),
        "matmul_rows": jax.jit(jnp.matmul, out_shardings=NamedSharding(mesh, P(("a", "b"))))(a, b),
        "softmax": jax.jit(lambda v: jax.nn.softmax(v, axis=1))(a),
        "softmax_columns": jax.jit(lambda v: jax.nn.softmax(v, axis=0))(a),
        "transpose": jax.jit(lambda v: v.T + 1, out_shardings=NamedSharding(mesh, P("a", "b")))(a),
        "total": jax.jit(jnp.sum)(a),
        "extremes": jax.jit(lambda v: (v.max(0), v.min(1), v.argmax(1)))(a),
        "sorted": jax.jit(lambda v: jnp.sort(v, axis=1))(a),
        "cumulative": jax.jit(lambda v: jnp.cumsum(v, axis=1))(a),
        "gathered": jax.jit(lambda v, i: v[i])(a, jnp.array([3, 1, 30, 7])),
        "scattered": jax.jit(lambda v: jnp.zeros((32, 64)).at[jnp.arange(32)[::-1]].add(v))(a),
        "convolved": jax.jit(lambda v: lax.conv_general_dilated(v[None, None], jnp.ones((1, 1, 3, 3)), (1, 1), "SAME"))(
            a
        ),
        "rolled": jax.jit(lambda v: jnp.roll(v, 5, axis=1))(a),
        "uneven": jax.jit(lambda v: (v[:31, :63] ** 2).sum(1))(a),
        "random": jax.jit(
            lambda: jax.random.normal(jax.random.key(7), (64, 24)), out_shardings=NamedSharding(mesh, P("b", "a"))
        )(),
        "replicated": jax.jit(lambda v: v * 2, out_shardings=NamedSharding(mesh, P()))(a),
        "reduced": jax.jit(lambda v: v.sum(0), out_shardings=NamedSharding(mesh, P("b")))(a),
    }

    def loss(w, x):
        h = jax.nn.gelu(x @ w[0])
        return ((h @ w[1]) ** 2).mean()

    weights = [
        put(mesh, np.tanh(values(48, 64, seed=8)) / 9, None, "b"),
        put(mesh, np.tanh(values(64, 24, seed=9)), "b"),
    ]
    step = jax.jit(lambda w, x: [p - 0.01 * g for p, g in zip(w, jax.grad(loss)(w, x), strict=True)])
    x = put(mesh, np.tanh(values(16, 48, seed=10)), "a")
    for _ in range(4):
        weights = step(weights, x)
    return out | {"trained": weights}


def loops():
    """Collectives in loops and branches: one site that devices come to many times."""
    mesh, x = line(), put(line(), values(8, 6, seed=11), "x")

    def body(_, v):
        return jnp.sin(v) + lax.psum(v, "x") / 8 + lax.ppermute(v, "x", RING)

    def until(v):
        return lax.while_loop(
            lambda c: (lax.pmax(jnp.abs(c[1]).max(), "x") > 1e-2) & (c[0] < 50),
            lambda c: (c[0] + 1, c[1] * 0.5 + lax.pmean(c[1], "x") * 0.25),
            (0, v / 1e3),
        )[1]

    def branch(v):
        return lax.cond(lax.psum(v.sum(), "x") > 0, lambda u: lax.psum(u, "x"), lambda u: lax.pmax(u, "x"), v) + 0 * v

    def carried(v):
        return lax.scan(lambda c, k: (lax.ppermute(c + k, "x", RING), lax.psum(c, "x")[0]), v, jnp.arange(5.0))

    return {
        "fori": on(mesh, lambda v: lax.fori_loop(0, 12, body, v), P("x"))(x),
        "while": on(mesh, until, P("x"))(x),
        "branch": on(mesh, branch, P("x"))(x),
        "scan": on(mesh, carried, P("x"), (P("x"), P()))(x),
        "nested": on(
            mesh, lambda v: lax.fori_loop(0, 3, lambda i, u: lax.fori_loop(0, i + 1, body, u) / 10, v), P("x")
        )(x),
        "automatic": jax.jit(lambda v: lax.fori_loop(0, 10, lambda _, u: u / (1 + jnp.abs(u).sum()), v))(x),
    }


def mapped():
    """pmap, which has replicas where the others have partitions."""
    x = values(8, 5, seed=12)
    nested = jax.pmap(jax.vmap(lambda v: v / lax.psum(v, ("i", "j")), axis_name="j"), axis_name="i")
    return {
        "pmap_sum": jax.pmap(lambda v: lax.psum(jnp.cos(v), "i"), axis_name="i")(x),
        "pmap_mean": jax.pmap(lambda v: v - lax.pmean(v, "i"), axis_name="i")(x),
        "pmap_permute": jax.pmap(lambda v: lax.ppermute(v, "i", RING), axis_name="i")(x),
        "pmap_gather": jax.pmap(lambda v: lax.all_gather(v, "i").sum(0), axis_name="i")(x),
        "pmap_exchange": jax.pmap(lambda v: lax.all_to_all(v, "i", 0, 0), axis_name="i")(values(8, 8, 3, seed=13)),
        "pmap_index": jax.pmap(lambda v: v + lax.axis_index("i"), axis_name="i")(x),
        "pmap_nested": nested(values(8, 3, 4, seed=14)),
        "pmap_some": jax.pmap(lambda v: lax.psum(v, "i"), axis_name="i", devices=jax.devices()[1:7])(x[:6]),
    }


def large():
    """Arrays far above what travels at once."""
    mesh = line()
    x = put(mesh, values(8, 1 << 18, seed=15), "x")  # 1 MiB a shard
    whole = put(mesh, values(1 << 20, 4, seed=16), "x")  # 16 MiB in all
    return {
        "large_sum": on(mesh, lambda v: lax.psum(v, "x"), P("x"), P())(x),
        "large_scatter": on(mesh, lambda v: lax.psum_scatter(v, "x", scatter_dimension=1, tiled=True), P("x"))(x),
        "large_exchange": on(mesh, lambda v: lax.all_to_all(v, "x", 1, 0, tiled=True), P("x"))(x),
        "large_gather": jax.jit(lambda v: v[::4096] * 2, out_shardings=NamedSharding(mesh, P()))(whole),
        "large_bf16": on(mesh, lambda v: lax.psum(v, "x"), P("x"), P())(x.astype(jnp.bfloat16)),
        "large_reshard": jax.jit(lambda v: v[:, :1], out_shardings=NamedSharding(mesh, P(None, None)))(whole),
    }


def long():
    """Results so long that the workers of a host read each other's where they lie, from the second call of a group on.

    Of what comes of them there is a number that depends on every bit, and its place.
    """
    x = put(line(), np.tile(values(8, 1 << 14, seed=22), (1, 48)), "x")  # 3 MiB a shard

    def bits(v):
        words = lax.bitcast_convert_type(v, jnp.uint32).ravel()
        return (words * (2 * lax.iota(jnp.uint32, words.size) + 1)).sum()[None]

    def twice(collective):
        return on(line(), lambda v: jnp.stack([bits(collective(v * k)) for k in (3, 5)], 1), P("x"))(x)

    return {
        "long_sum": twice(lambda v: lax.psum((v, -v[:, : 1 << 20]), "x")[0]),
        "long_scatter": twice(lambda v: lax.psum_scatter(v, "x", scatter_dimension=1, tiled=True)),
        "long_exchange": twice(lambda v: lax.all_to_all(v.reshape(8, -1), "x", 0, 1, tiled=True)),
        "long_permute": twice(lambda v: lax.ppermute(v, "x", [(i, (i + 4) % 8) for i in range(7)])),
        "long_gather": twice(lambda v: lax.all_gather(v, "x", axis=1, tiled=True)),
    }


def tiny(dtype):
    """Floats too small to be normal, which XLA's CPU takes for zero: in sums, and in what comes after a collective."""
    small = np.finfo(dtype).tiny
    x = put(line(), np.asarray([[small * (i + 1) / 3, small, -small / 2, 1] for i in range(8)], dtype), "x")
    return {
        f"tiny_sum_{dtype}": on(line(), lambda v: lax.psum(v, "x"), P("x"), P())(x),
        f"tiny_moved_{dtype}": on(line(), lambda v: lax.ppermute(v, "x", RING), P("x"))(x),
        f"tiny_after_{dtype}": on(line(), lambda v: lax.psum(v[:, 3:], "x") * v * np.asarray(0.1, dtype), P("x"))(x),
    }


def constants(dtype):
    """A constant of 256 KiB or more, of which each device reads some elements."""
    table = values(1 << 18, dtype=dtype, seed=17)
    at = put(line(), np.arange(0, 1 << 18, 1 << 12), "x")
    return {f"constant_{dtype}": jax.jit(lambda i: jnp.asarray(table)[i])(at)}


def constants_in_programs():
    """Long constants that are read more than once, are results, or are where a loop begins."""
    table, weights = values(1 << 16, seed=18), values(256, 256, seed=19)
    x = put(line(), values(1 << 16, seed=20), "x")
    rows = put(line(), values(8, 256, seed=21), "x")

    def loop(v):
        return lax.fori_loop(0, 3, lambda _, c: (jnp.tanh(c[0]), c[1] + table), (jnp.asarray(table), v))

    return {
        "constant_twice": jax.jit(lambda v: (v + table, v * table, jnp.asarray(table) * 2))(x),
        "constant_result": jax.jit(lambda v: (v, jnp.asarray(table), jnp.asarray(table)[::-1]))(x),
        "constant_loop": jax.jit(loop)(x),
        "constant_product": jax.jit(lambda v: (v @ weights) @ weights.T)(rows),
        "constant_sum": on(line(), lambda v: lax.psum(v * jnp.asarray(table)[: v.size], "x"), P("x"), P())(x),
        "constant_donated": jax.jit(lambda v: v @ weights + v, donate_argnums=0)(rows + 1),
    }


def everything():
    out = {}
    with jax.enable_x64(True):
        for dtype in DTYPES:
            out |= by_dtype(dtype) | constants(dtype)
        out |= tiny("float32") | tiny("float64")
    return out | groups() | automatic() | loops() | mapped() | large() | long() | constants_in_programs()


def save(path):
    flat = {}
    for name, result in everything().items():
        for i, leaf in enumerate(jax.tree.leaves(result)):
            leaf = np.asarray(leaf)
            # NumPy's file format knows the dtypes of NumPy only; float32 holds the narrower floats exactly.
            flat[f"{name}.{i}"] = leaf if leaf.dtype.isbuiltin == 1 else leaf.astype(np.float32)
    np.savez(path, **flat)
