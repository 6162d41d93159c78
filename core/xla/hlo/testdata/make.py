"""Writes the programs of this folder and what XLA's own analysis says of them.

Run it where jaxlib 0.10.2 is installed: python make.py
"""

import json
import os
import pathlib

os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxlib import _hlo, _jax

HERE = pathlib.Path(__file__).parent
ADD = "add { a = f32[] parameter(0)\n b = f32[] parameter(1)\n ROOT c = f32[] add(a, b) }\n"


def array(*dims, dtype=np.float32):
    return jax.ShapeDtypeStruct(dims, dtype)


COMPILED = {
    "matmul": (lambda x, y: x @ y, array(64, 32), array(32, 16)),
    "elementwise": (lambda x: jnp.sin(x) * 2 + jnp.exp(x) / x, array(100, 7)),
    "reduce": (lambda x: x.sum(0), array(100, 7)),
    "convolution": (
        lambda x, k: lax.conv_general_dilated(
            x, k, (1, 1), [(2, 1), (-1, 3)], lhs_dilation=(3, 2), rhs_dilation=(1, 2), feature_group_count=3
        ),
        array(2, 6, 15, 16),
        array(9, 2, 4, 5),
    ),
    "loop": (lambda x: lax.fori_loop(0, 10, lambda i, v: jnp.tanh(v @ v) + i, x), array(16, 16)),
    "branches": (
        lambda i, x: lax.switch(i, [lambda v: jnp.sin(v @ v), lambda v: v * 2, lambda v: jnp.exp(v) + v], x),
        array(dtype=np.int32),
        array(16, 16),
    ),
    "gather": (lambda x, i: x[i], array(100, 7), array(5, dtype=np.int32)),
    "scatter": (lambda x, i, u: x.at[i].add(u), array(100, 7), array(5, dtype=np.int32), array(5, 7)),
    "update": (
        lambda x, u, i: lax.dynamic_update_slice(x * 2, u, (i, 0)),
        array(100, 7),
        array(5, 7),
        array(dtype=np.int32),
    ),
    "pool": (
        jax.grad(lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3), (1, 2, 2), "SAME").sum()),
        array(2, 15, 16),
    ),
    "fft": (lambda x: jnp.fft.rfft2(x), array(8, 32, 64)),
    "argsort": (lambda x: jnp.argsort(x), array(37)),
    "eigh": (lambda x: jnp.linalg.eigh(x), array(16, 16)),
    "step": (
        jax.value_and_grad(lambda w, x: -jax.nn.log_softmax(jax.nn.relu(x @ w[0]) @ w[1])[:, 0].mean()),
        (array(16, 64), array(64, 10)),
        array(32, 16),
    ),
}

WRITTEN = {
    "tuples": "f { a = (f32[6], (f32[3], s32[4])) parameter(0)\n x = f32[6] get-tuple-element(a), index=0\n"
    " y = (f32[3], s32[4]) get-tuple-element(a), index=1\n z = s32[4] get-tuple-element(y), index=1\n"
    " w = s32[4] negate(z)\n v = f32[6] negate(x)\n t = (s32[4], f32[6]) tuple(w, v)\n"
    " ROOT r = ((s32[4], f32[6]), f32[6]) tuple(t, x) }\n"
    "ENTRY e { p = (f32[6], (f32[3], s32[4])) parameter(0)\n"
    " ROOT r = ((s32[4], f32[6]), f32[6]) fusion(p), kind=kLoop, calls=f }",
    "nested": "g { a = f32[60] parameter(0)\n s = f32[5] slice(a), slice={[3:8]}\n ROOT n = f32[5] sine(s) }\n"
    "f { a = f32[60] parameter(0)\n q = f32[5] fusion(a), kind=kLoop, calls=g\n"
    " w = f32[5,3] broadcast(q), dimensions={0}\n v = f32[60,2] broadcast(a), dimensions={0}\n"
    " z = f32[60] negate(a)\n ROOT r = (f32[5,3], f32[60,2], f32[60]) tuple(w, v, z) }\n"
    "ENTRY e { p = f32[60] parameter(0)\n"
    " ROOT r = (f32[5,3], f32[60,2], f32[60]) fusion(p), kind=kLoop, calls=f }",
    "in_place": "f { a = f32[60] parameter(0)\n b = f32[7] parameter(1)\n i = s32[] parameter(2)\n"
    " d = f32[60] dynamic-update-slice(a, b, i)\n n = f32[60] negate(a)\n ROOT r = (f32[60], f32[60]) tuple(d, n) }\n"
    "ENTRY e { p = f32[60] parameter(0)\n b = f32[7] parameter(1)\n i = s32[] parameter(2)\n"
    " ROOT r = (f32[60], f32[60]) fusion(p, b, i), kind=kLoop, calls=f }",
    "custom_fusion": "f { a = f32[60,2] parameter(0)\n i = s32[5,1] parameter(1)\n"
    " g = f32[5,2] gather(a, i), offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1,"
    " slice_sizes={1,2}\n ROOT r = f32[5,2] negate(g) }\n"
    "ENTRY e { p = f32[60,2] parameter(0)\n i = s32[5,1] parameter(1)\n"
    " ROOT r = f32[5,2] fusion(p, i), kind=kCustom, calls=f }",
    "wide_window": ADD + "ENTRY e { p = f32[6,5] parameter(0)\n z = f32[] constant(0)\n"
    " ROOT r = f32[6,5] reduce-window(p, z), window={size=11x1 pad=5_5x0_0}, to_apply=add }",
    "batch_groups": "ENTRY e { p = f32[6,5,5,3] parameter(0)\n k = f32[3,3,3,4] parameter(1)\n"
    " ROOT r = f32[3,3,3,4] convolution(p, k), window={size=3x3}, dim_labels=b01f_01io->b01f, batch_group_count=2 }",
    "transposes": "ENTRY e { p = f32[6,5]{0,1} parameter(0)\n q = f32[5,6]{1,0} transpose(p), dimensions={1,0}\n"
    " ROOT r = f32[6,5]{1,0} transpose(q), dimensions={1,0} }",
    "feeds": "ENTRY e { t = token[] after-all()\n f = ((f32[3,4], s32[2]), token[]) infeed(t)\n"
    " x = (f32[3,4], s32[2]) get-tuple-element(f), index=0\n u = token[] get-tuple-element(f), index=1\n"
    " ROOT r = token[] outfeed(x, u), outfeed_shape=(f32[3,4], s32[2]) }",
    "collective": ADD + "ENTRY e { p = f32[6,5] parameter(0)\n s = f32[6,5] all-reduce-start(p), to_apply=add\n"
    " d = f32[6,5] all-reduce-done(s)\n ROOT g = f32[12,5] all-gather(d), dimensions={0}, replica_groups={{0,1}} }",
    "bounded": "ENTRY e { p = f32[<=6,5] parameter(0)\n ROOT r = f32[<=6,5] negate(p) }",
    "narrow": "ENTRY e { p = s4[7,3]{1,0:E(4)} parameter(0)\n ROOT r = s4[7,3]{1,0:E(4)} negate(p) }",
    "map": "f { a = f32[] parameter(0)\n b = f32[] multiply(a, a)\n ROOT c = f32[] exponential(b) }\n"
    "ENTRY e { p = f32[6,5] parameter(0)\n ROOT r = f32[6,5] map(p), dimensions={0,1}, to_apply=f }",
    "cholesky": "ENTRY e { p = f32[2,7,7] parameter(0)\n ROOT r = f32[2,7,7] cholesky(p), lower=true }",
    "asynchronous": "f { a = f32[6] parameter(0)\n ROOT c = f32[6] add(a, a) }\nENTRY e { p = f32[6] parameter(0)\n"
    " s = ((f32[6]), f32[6], s32[]) async-start(p), calls=f\n ROOT r = f32[6] async-done(s), calls=f }",
}


def main():
    client = jax.devices()[0].client
    bare = _hlo.HloPrintOptions()
    bare.print_metadata = False
    texts = {name: "HloModule m\n" + text for name, text in WRITTEN.items()}
    for name, (f, *args) in COMPILED.items():
        texts[name] = jax.jit(f).lower(*args).compile().runtime_executable().hlo_modules()[0].to_string(bare)
    costs = {}
    for name, text in sorted(texts.items()):
        module = _hlo.hlo_module_from_text(text)
        (HERE / f"{name}.hlo").write_bytes(module.as_serialized_hlo_module_proto())
        cost = _jax.hlo_module_cost_analysis(client, module)
        costs[name] = {key: value for key, value in sorted(cost.items()) if value}
    (HERE / "costs.json").write_text(json.dumps(costs, indent=1) + "\n")


if __name__ == "__main__":
    main()
