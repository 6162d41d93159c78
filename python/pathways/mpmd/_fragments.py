"""Fragments: the computations of a partitioned function, each of which runs on one mesh.

A fragment is a module of StableHLO. `jax.jit` compiles it: the only thing in the jitted function is a primitive that is
lowered to a call of the module. So shardings, donation, and how it runs are JAX's own.
"""

from __future__ import annotations

import itertools
import re
import types
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.extend.core
import numpy as np
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import func
from jax.interpreters import mlir
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from pathways import _passage, _reshard
from pathways._errors import unimplemented

# --- arrays ---

ARRAY = re.compile(
    r"!ifrt\.array<tensor<(?P<dims>(?:\d+x)*)(?P<dtype>(?:[^<>]|<[^<>]*>)*)>, "
    r"#ifrt\.sharding_param<(?P<shards>[\dx]*) to \[(?P<order>[\d, ]*)\] on (?P<sizes>[\dx]*)>, "
    r"\[(?P<devices>[\d, ]*)\](?:, memory_kind = \"(?P<memory>\w+)\")?(?:, layout = .*)?>"
)


class Array(NamedTuple):
    """What a value of a partitioned function is."""

    shape: tuple[int, ...]
    dtype: np.dtype
    sharding: NamedSharding

    @property
    def described(self) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(self.shape, self.dtype, sharding=self.sharding)


def array_of(text: str, devices: Sequence[jax.Device], meshes: Sequence[Mesh]) -> Array:
    """Returns the array that a type of IFRT describes. Its devices are indices into `devices`."""
    found = ARRAY.fullmatch(text)
    if found is None:
        raise unimplemented(f"the function has a value of type {text}, which has no known sharding")
    shards, sizes = ([int(n) for n in found[key].split("x") if n] for key in ("shards", "sizes"))
    order, places = ([int(n) for n in found[key].split(",") if n.strip()] for key in ("order", "devices"))
    shape = tuple(int(n) for n in found["dims"].split("x") if n)
    here = [devices[i] for i in places]
    # The devices, by the shard of each dimension that they have; along the last axis are replicas.
    held = np.arange(len(here)).reshape(sizes).transpose(order).reshape(*shards, -1)
    for mesh in meshes:
        if list(mesh.devices.flat) == here and (spec := _spec(held, mesh)) is not None:
            break
    else:  # an axis of the user's is cut in two, say
        names = [f"axis{i}" for i in range(held.ndim)]
        mesh, spec = Mesh(np.array(here)[held], names), P(*names[:-1])
    return Array(shape, _dtype(found["dtype"]), NamedSharding(mesh, spec, memory_kind=found["memory"]))


def _spec(held: np.ndarray, mesh: Mesh) -> P | None:
    """Returns the spec on a mesh by which its devices, numbered in its order, have the shards of `held`, or None."""
    *shards, _ = held.shape
    numbers = np.arange(held.size).reshape(mesh.axis_sizes)
    wide = [i for i, n in enumerate(mesh.axis_sizes) if n > 1]
    for axes in itertools.permutations(wide):
        rest, cut = list(axes), []
        for n in shards:
            taken = []
            while n > 1 and rest and n % mesh.axis_sizes[rest[0]] == 0:
                taken.append(rest.pop(0))
                n //= mesh.axis_sizes[taken[-1]]
            cut.append(taken)
            if n > 1:
                break
        else:
            moved = [axis for taken in cut for axis in taken]
            moved += [axis for axis in range(numbers.ndim) if axis not in moved]
            if np.array_equal(np.sort(numbers.transpose(moved).reshape(held.shape)), np.sort(held)):
                while cut and not cut[-1]:
                    cut.pop()
                return P(*(tuple(mesh.axis_names[axis] for axis in taken) or None for taken in cut))
    return None


def _dtype(text: str) -> np.dtype:
    """Returns the dtype of MLIR's name for it."""
    if text == "i1":
        return np.dtype(bool)
    if text.startswith("complex"):
        return np.dtype({"complex<f32>": "complex64", "complex<f64>": "complex128"}[text])
    if text == "bf16":
        return jax.numpy.dtype("bfloat16")
    kind, bits, rest = re.fullmatch(r"(ui|i|f)(\d+)(\w*)", text).groups()
    name = {"ui": "uint", "i": "int", "f": "float"}[kind] + bits
    return jax.numpy.dtype(f"{name}_{rest.lower()}" if rest else name)


# --- the primitive ---

_fragment = jax.extend.core.Primitive("mpmd_fragment")
_fragment.multiple_results = True


@_fragment.def_abstract_eval
def _(*_: Any, text: str, results: tuple[tuple[tuple[int, ...], Any], ...]) -> list[Any]:
    del text
    return [jax.core.ShapedArray(shape, dtype) for shape, dtype in results]


def _lower(ctx: Any, *operands: Any, text: str, results: Any) -> Any:
    del results
    target = ctx.module_context.module
    source = ir.Module.parse(text, target.context)
    symbols = ir.SymbolTable(target.operation)
    own = ir.SymbolTable(source.operation)
    main = own["main"].operation
    own.set_symbol_name(main, "fragment")
    main.attributes["sym_visibility"] = ir.StringAttr.get("private")
    for attributes in ("arg_attrs", "res_attrs"):  # donation and shardings, which are jit's here
        if attributes in main.attributes:
            del main.attributes[attributes]
    made = [result for result in ir.FunctionType(ir.TypeAttr(main.attributes["function_type"]).value).results]
    for op in list(source.body.operations):
        op = op.operation
        if op.name == "sdy.mesh" and ir.StringAttr(op.attributes["sym_name"]).value in symbols:
            continue
        op.detach_from_parent()
        target.body.append(op)
    return func.CallOp(made, ir.FlatSymbolRefAttr.get("fragment"), list(operands)).results


mlir.register_lowering(_fragment, _lower)


# --- compiled ---


class Fragment(NamedTuple):
    """A computation of a partitioned function.

    Attributes:
      name: what a trace shows, with the stage and whether it is a forward.
      line: where the function called its first named computation, as "file:line"; "" if it has none.
      run: calls it with a list of arrays.
    """

    name: str
    line: str
    run: Callable[[Sequence[jax.Array]], Sequence[jax.Array]]


def compile_fragment(
    name: str,
    text: str,
    reads: Sequence[Array],
    makes: Sequence[Array],
    donated: Sequence[int],
    line: str,
    compiler_options: Mapping[str, Any] | None,
) -> Fragment:
    results = tuple((array.shape, array.dtype) for array in makes)

    def call(*arrays):
        return _fragment.bind(*arrays, text=text, results=results)

    call.__name__ = call.__qualname__ = name
    jitted = jax.jit(
        call,
        in_shardings=tuple(array.sharding for array in reads),
        out_shardings=[array.sharding for array in makes],
        donate_argnums=tuple(donated),
        keep_unused=True,
        compiler_options=compiler_options,
    )
    with warnings.catch_warnings():
        # Memory that no result can take over is donated to be freed early.
        warnings.filterwarnings("ignore", "Some donated buffers were not usable")
        # The caller's jax.set_mesh may be of other devices.
        compiled = _passage.unbound(lambda: jitted.lower(*(array.described for array in reads)).compile())
    # JAX believes that arrays of elements narrower than a byte have another layout than what was compiled for them.
    narrow = any(_reshard.wide(array.dtype) for array in reads)
    return Fragment(name, line, calling(jitted if narrow else compiled, line))


def calling(call: Callable[..., Any], line: str) -> Callable[[Sequence[jax.Array]], Sequence[jax.Array]]:
    """Returns a function that makes a call from a line of the user's, which errors of what it starts then name."""

    def run(arrays):
        return call(*arrays)

    file, _, number = line.rpartition(":")
    if not file:
        return run
    code = run.__code__.replace(co_filename=file, co_firstlineno=int(number) - 1)  # its body is one line below
    return types.FunctionType(code, run.__globals__, run.__name__, None, run.__closure__)
