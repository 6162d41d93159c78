"""Writes folds.json: what XLA's all-reduce computes in one process, bit for bit, for each element type and reduction.

Usage: python make.py PLUGIN.so > folds.json, with JAX 0.10 or newer. Each line of the result has an element type, a
reduction, the operands of three ranks in hexadecimal, and the result.
"""

import json
import os
import sys

import numpy as np

os.environ["JAX_PLATFORMS"] = "plugin"
from jax._src import xla_bridge  # noqa: E402

RANKS, ELEMENTS = 5, 61
xla_bridge.register_plugin("plugin", library_path=sys.argv[1], options={"cpu_device_count": RANKS})

import jax  # noqa: E402
from jaxlib import _jax, xla_client  # noqa: E402

jax.config.update("jax_enable_x64", True)

REDUCTIONS = {"sum": "add", "product": "multiply", "min": "minimum", "max": "maximum", "and": "and", "or": "or"}
TYPES = {
    "pred": ("i1", np.bool_),
    **{f"s{b}": (f"i{b}", np.dtype(f"int{b}")) for b in (8, 16, 32, 64)},
    **{f"u{b}": (f"ui{b}", np.dtype(f"uint{b}")) for b in (8, 16, 32, 64)},
    **{f"f{b}": (f"f{b}", np.dtype(f"float{b}")) for b in (16, 32, 64)},
    "c64": ("complex<f32>", np.complex64),
    "c128": ("complex<f64>", np.complex128),
}


def operands(dtype, rng):
    """Gives what the ranks bring: ordinary values, then each special value against each other."""
    dtype = np.dtype(dtype)
    if dtype.kind == "b":
        return rng.integers(0, 2, (RANKS, ELEMENTS)).astype(bool)
    if dtype.kind in "iu":
        return np.frombuffer(rng.bytes(RANKS * ELEMENTS * dtype.itemsize), dtype).reshape(RANKS, ELEMENTS)
    real = np.dtype(f"f{dtype.itemsize // (2 if dtype.kind == 'c' else 1)}")
    count = ELEMENTS * (2 if dtype.kind == "c" else 1)
    x = (rng.normal(size=(RANKS, count)) * np.exp(rng.normal(size=(RANKS, count)) * 3)).astype(real)
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, -1.5, np.finfo(real).max, np.finfo(real).tiny / 4], real)
    at = rng.integers(0, len(special), (RANKS, count // 2))
    x[:, count // 2 :][:, : count // 2] = special[at]
    return x.view(dtype)


def program(name, op, element):
    ranks = list(range(RANKS))
    return f"""module @{name} attributes {{mhlo.num_replicas = {RANKS} : i32, mhlo.num_partitions = 1 : i32}} {{
func.func public @main(%x: tensor<{ELEMENTS}x{element}>) -> tensor<{ELEMENTS}x{element}> {{
  %r = "stablehlo.all_reduce"(%x) ({{
  ^bb0(%a: tensor<{element}>, %b: tensor<{element}>):
    %s = stablehlo.{op} %a, %b : tensor<{element}>
    stablehlo.return %s : tensor<{element}>
  }}) {{replica_groups = dense<[{ranks}]> : tensor<1x{RANKS}xi64>}}
    : (tensor<{ELEMENTS}x{element}>) -> tensor<{ELEMENTS}x{element}>
  return %r : tensor<{ELEMENTS}x{element}>
}}
}}"""


def main():
    devices = jax.devices()
    options = xla_client.CompileOptions()
    options.num_replicas, options.num_partitions = RANKS, 1
    options.device_assignment = xla_client.DeviceAssignment.create(np.arange(RANKS).reshape(RANKS, 1))
    rng = np.random.default_rng(0)
    for name, (element, dtype) in TYPES.items():
        x = operands(dtype, rng)
        for reduction, op in REDUCTIONS.items():
            try:
                code = program("fold", op, element).encode()
                run = devices[0].client.compile_and_load(code, _jax.DeviceList(tuple(devices)), options)
                shards = [jax.device_put(x[i], d) for i, d in enumerate(devices)]
                whole = jax.make_array_from_single_device_arrays(
                    (RANKS * ELEMENTS,), jax.sharding.NamedSharding(jax.sharding.Mesh(devices, "r"), jax.P("r")), shards
                )
                out = run.execute_sharded([whole]).disassemble_into_single_device_arrays()[0]
                results = [np.asarray(o).tobytes().hex() for o in out]
            except Exception as e:
                print(name, reduction, str(e)[:120].replace("\n", " "), file=sys.stderr)
                continue
            if len(set(results)) != 1:
                print(name, reduction, "differs between ranks", file=sys.stderr)
            ins = [row.tobytes().hex() for row in x]
            print(json.dumps({"DType": name, "Reduction": reduction, "Ranks": ins, "Result": results[0]}))


main()
