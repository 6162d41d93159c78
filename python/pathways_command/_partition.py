"""Partitions a function over meshes by Shardy's passes, in a process of its own that does not import JAX.

The passes print to stdout what they do, and end their process where an assumption of theirs does not hold. So
`pathways.mpmd` runs this file for each function: a JSON object comes in by stdin, and another one leaves by stdout.

It uses these private parts of jaxlib (seen in 0.10.2 and 0.12.0.1): of `jaxlib._sdy_mpmd`, whose extension asks for
jaxlib by the name `jax.jaxlib`, `apply_mpmd_partitioning`, `lower_to_ifrt`, `clone_mlir_module` and
`PartitioningPhase`; and the bindings of MLIR in `jaxlib.mlir`, with `_mlir_libs._jax_mlir_ext.register_dialects`.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

CONTROL = "!ifrt.control"  # the type of what stands for the end of an operation


def alias() -> None:
    """Makes the parts of jaxlib that are loaded known by the names that its extensions ask for."""
    import jaxlib._jax
    import jaxlib.mlir.ir  # noqa: F401

    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "jaxlib":
            sys.modules.setdefault(f"jax.{name}", module)
        if name == "jaxlib.mlir" or name.startswith("jaxlib.mlir."):
            sys.modules.setdefault(name.removeprefix("jaxlib."), module)


def partition(text: str, options: dict[str, Any]) -> tuple[Any, Any, Any]:
    """Returns a module partitioned, the same in the dialect of IFRT, and where arguments and results are.

    options: the arguments of apply_mpmd_partitioning, as JSON has them.
    """
    # The extension asks for jax.jaxlib, and so for JAX itself, which takes longer to import than all the rest.
    stub = ModuleType("jax")
    stub.__path__ = []
    sys.modules.setdefault("jax", stub)
    alias()
    from jaxlib import _sdy_mpmd
    from jaxlib.mlir import ir
    from jaxlib.mlir._mlir_libs import _jax_mlir_ext
    from jaxlib.mlir.dialects import chlo, mpmd, sdy, stablehlo

    registry = ir.DialectRegistry()
    _jax_mlir_ext.register_dialects(registry)
    context = ir.Context()
    context.append_dialect_registry(registry)
    context.load_all_available_dialects()
    for dialect in (chlo, mpmd, sdy, stablehlo):
        dialect.register_dialect(context)
    assignment = {k: tuple(v) if isinstance(v, list) else v for k, v in options.pop("assignment").items()}
    meshes = [(name, [tuple(axis) for axis in axes]) for name, axes in options.pop("named_meshes")]
    result = _sdy_mpmd.apply_mpmd_partitioning(
        ir.Module.parse(text, context),
        assignment=assignment,
        named_meshes=meshes,
        fragment_merge_rules=[],
        fragment_schedule_rules=[],
        phases=_sdy_mpmd.PartitioningPhase.ALL,
        **options,
    )
    lowered = _sdy_mpmd.clone_mlir_module(result.mpmd_module)
    _sdy_mpmd.lower_to_ifrt(lowered)
    return result.mpmd_module, lowered, result.module_io_sharding_specs_and_meshes


# --- a module in the dialect of IFRT, as plain values ---


def plan(module: Any) -> dict[str, Any]:
    """Returns what a module of IFRT does.

    A dict: values, the type of each; inputs and outputs, lists of values; donated, the inputs that may be reused; ops,
    in their order, each {fragment, reads, makes, donated}, where None as fragment is a copy; and fragments, the text of
    each by name.
    """
    fragments, main = {}, None
    for op in _body(module.operation):
        if op.name == "builtin.module":
            fragments[_text(op, "sym_name")] = op.get_asm(enable_debug_info=True)
        elif op.name == "func.func" and _text(op, "sym_name") == "main":
            main = op
    values: list[str] = []
    numbers: dict[Any, int] = {}

    def add(value: Any) -> int:
        numbers[value] = len(values)
        values.append(str(value.type))
        return numbers[value]

    inputs = [add(argument) for argument in main.regions[0].blocks[0].arguments]
    ops: list[dict[str, Any]] = []
    outputs: list[int] = []
    for op in main.regions[0].blocks[0].operations:
        op = op.operation
        reads = [numbers[value] for value in op.operands if str(value.type) != CONTROL]
        if op.name == "func.return":
            outputs = reads
            continue
        makes = [add(value) for value in op.results if str(value.type) != CONTROL]
        ops.append(_op(op, reads, makes))
    donated = [i for i, attributes in enumerate(_list(main, "arg_attrs")) if "ifrt.donated" in str(attributes)]
    return {
        "values": values,
        "inputs": inputs,
        "outputs": outputs,
        "donated": donated,
        "ops": ops,
        "fragments": fragments,
    }


def _op(op: Any, reads: list[int], makes: list[int]) -> dict[str, Any]:
    if op.name == "ifrt.Call":
        donated = set(map(int, _list(op, "donated_input_indices")))
        donated |= {int(list(pair)[0]) for pair in _list(op, "io_aliases")}
        name = str(op.attributes["callee"]).removeprefix("@").partition("::")[0].strip('"')
        return {"fragment": name, "reads": reads, "makes": makes, "donated": sorted(donated)}
    if op.name in ("ifrt.CopyArrays", "ifrt.Reshard"):
        return {"fragment": None, "reads": reads, "makes": makes, "donated": []}
    raise ValueError(
        f"the module has an operation {op.name}, which is none of ifrt.Call, ifrt.CopyArrays, ifrt.Reshard"
    )


def _body(op: Any) -> Iterator[Any]:
    for inner in op.regions[0].blocks[0].operations:
        yield inner.operation


def _text(op: Any, name: str) -> str:
    return str(op.attributes[name]).strip('"')


def _list(op: Any, name: str) -> list[Any]:
    return list(op.attributes[name]) if name in op.attributes else []


# --- the process ---


def _run(given: dict[str, Any]) -> dict[str, Any]:
    try:
        partitioned, lowered, places = partition(given["module"], given["options"])
    except (RuntimeError, ValueError) as error:
        return {"error": str(error)}

    def sides(specs: Any) -> list[dict[str, Any]]:
        return [
            {"mesh": s.mesh_name, "spec": [list(axes) for axes in s.tensor_spec], "memory": s.memory_kind}
            for s in specs
        ]

    return {
        "plan": plan(lowered),
        "mpmd": str(partitioned),
        "ifrt": str(lowered),
        "inputs": sides(places.input_specs),
        "outputs": sides(places.output_specs),
    }


def main() -> None:
    answer = os.dup(1)
    os.dup2(2, 1)  # the passes print to stdout
    done = _run(json.load(sys.stdin))
    with contextlib.suppress(BrokenPipeError), os.fdopen(answer, "w", encoding="utf-8") as out:
        json.dump(done, out)


if __name__ == "__main__":
    main()
