"""Turns the marks of `_words.py` in a module of StableHLO into operations of the MPMD dialect.

A mark is a call. Its location, seen in jax 0.10.2 and 0.12.0.1, has the name stack of JAX, such as
`transpose(jvp(jit(mpmd.computation.block_0)))`, and its traceback. The name stack of a call inside a function begins
with that function, so that the number of transposes adds up over the calls that lead to it. What a checkpoint computes
again in the backward is a forward.
"""

from __future__ import annotations

import os
import re
import urllib.parse
from collections.abc import Iterator
from typing import Any, NamedTuple

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import func, mpmd

MARK = re.compile(r"mpmd\.(computation|tensor|call|reduce|broadcast)\.([^/()]*)")
PACKAGE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")
CONTROL = {
    "stablehlo.while": ("loop", "scan, fori_loop or while_loop"),
    "stablehlo.case": ("branch", "cond or switch"),
    "stablehlo.if": ("branch", "cond"),
}
COUNTER_BITS = 32  # of call_counter, which the dialect has as ui32


def rewrite(module: ir.Module) -> tuple[dict[str, str], dict[str, str]]:
    """Rewrites the module in place. Returns the line, "file:line", of each named computation and named tensor."""
    done = _Rewriting(module)
    return done.lines, done.tensors


class _Rewriting:
    def __init__(self, module: ir.Module):
        self.lines: dict[str, str] = {}
        self.tensors: dict[str, str] = {}
        self.symbols = ir.SymbolTable(module.operation)
        # Functions as they came, of which one is copied for each further number of transposes that leads to it.
        pristine = module.operation.clone()
        self.pristine = ir.SymbolTable(pristine)
        self.names: dict[tuple[str, int], str] = {}  # (function, transposes that lead to it) → its name in the module
        self.marked = _marked_functions(pristine)
        with module.context:
            mpmd.register_dialect(module.context)
            self._visit(self.symbols["main"].operation, 0)

    def _visit(self, function: ir.Operation, transposes: int) -> None:
        for op in list(operations(function, "func.call")):
            path = _path(op.location)
            again = path.rpartition("rematted_computation")
            count = again[2].count("transpose(") + (0 if again[1] else transposes)
            callee = ir.FlatSymbolRefAttr(op.attributes["callee"]).value
            mark = MARK.search(path.rpartition("/")[2])
            if mark and mark[1] in ("tensor", "reduce", "broadcast"):
                self._replace_identity(op, mark[1], urllib.parse.unquote(mark[2]), count)
                continue
            if callee in self.marked:
                callee = self._of(callee, count)
                op.attributes["callee"] = ir.FlatSymbolRefAttr.get(callee)
            if mark:
                self._replace(op, mark[1], urllib.parse.unquote(mark[2]), count)

    def _of(self, name: str, transposes: int) -> str:
        """Returns the name of a function as it is when so many transposes lead to it."""
        key = name, transposes
        if key not in self.names:
            if any(known == name for known, _ in self.names):
                function = self.pristine[name].operation.clone()
                self.names[key] = self.symbols.insert(function).value
            else:
                function = self.symbols[name].operation
                self.names[key] = name
            self._visit(function, transposes)
        return self.names[key]

    def _replace(self, op: ir.Operation, kind: str, name: str, transposes: int) -> None:
        types, operands = [result.type for result in op.results], list(op.operands)
        with op.location, ir.InsertionPoint(op):
            if kind == "call":
                new = mpmd.CallOp(types, operands, op.attributes["callee"]).operation
                if name:
                    counter = ir.IntegerType.get_unsigned(COUNTER_BITS)
                    new.attributes["call_counter"] = ir.IntegerAttr.get(counter, int(name))
            else:
                self.lines.setdefault(name, _line(op.location))
                origin = mpmd.UserOriginAttr.get(name, transposes)
                new = mpmd.NamedComputationOp(types, operands, origin).operation
                block = new.regions[0].blocks.append(*[operand.type for operand in operands])
                with ir.InsertionPoint(block):
                    inner = func.CallOp(types, op.attributes["callee"], list(block.arguments))
                    mpmd.ReturnOp(list(inner.results))
        _take_over(op, list(new.results))

    def _replace_identity(self, op: ir.Operation, kind: str, name: str, transposes: int) -> None:
        (operand,) = op.operands
        with op.location, ir.InsertionPoint(op):
            if kind == "tensor":
                self.tensors.setdefault(name, _line(op.location))
                new = mpmd.NamedTensorOp(operand, name)
            elif (kind == "reduce") == (transposes % 2 == 0):  # each is the other's transpose
                new = mpmd.ReduceOp([operand])
            else:
                new = mpmd.BroadcastOp(operand)
        _take_over(op, list(new.operation.results))


class Controlled(NamedTuple):
    """A mark in a loop or a branch that is itself in no named computation: no fragment can contain it."""

    line: str  # "file:line"
    kind: str  # of the mark
    name: str
    control: tuple[str, str]  # what it is in, of CONTROL


def controlled(module: ir.Module) -> Iterator[Controlled]:
    """Yields the marks in loops and branches. Inside of a named computation, loops may contain what they like."""
    symbols, marked = ir.SymbolTable(module.operation), _marked_functions(module.operation)
    seen = set()

    def visit(function: str, control: tuple[str, str] | None) -> Iterator[Controlled]:
        if (function, control) in seen:
            return
        seen.add((function, control))
        for op in operations(symbols[function].operation, "func.call"):
            inside = control or _control_of(op)
            mark = MARK.search(_path(op.location).rpartition("/")[2])
            if mark and inside:
                yield Controlled(_line(op.location), mark[1], urllib.parse.unquote(mark[2]), inside)
            callee = ir.FlatSymbolRefAttr(op.attributes["callee"]).value
            if callee in marked and not (mark and mark[1] == "computation"):
                yield from visit(callee, inside)

    yield from visit("main", None)


def _control_of(op: ir.Operation) -> tuple[str, str] | None:
    """Returns the loop or branch of its function that an operation is in."""
    while (op := op.parent.operation).name != "func.func":
        if op.name in CONTROL:
            return CONTROL[op.name]
    return None


def _take_over(op: ir.Operation, results: list[Any]) -> None:
    for old, new in zip(op.results, results, strict=True):
        old.replace_all_uses_with(new)
    op.erase()


def operations(op: ir.Operation, name: str) -> Iterator[ir.Operation]:
    """Yields the operations of a name in an operation's regions, also nested ones."""
    for region in op.regions:
        for block in region.blocks:
            for inner in block.operations:
                if inner.operation.name == name:
                    yield inner.operation
                yield from operations(inner.operation, name)


def _marked_functions(module: ir.Operation) -> set[str]:
    """Returns the functions that contain marks, or call one that does."""
    calls: dict[str, set[str]] = {}
    marked = set()
    for function in module.regions[0].blocks[0].operations:
        if function.operation.name != "func.func":
            continue
        name = ir.StringAttr(function.operation.attributes["sym_name"]).value
        calls[name] = set()
        for op in operations(function.operation, "func.call"):
            calls[name].add(ir.FlatSymbolRefAttr(op.attributes["callee"]).value)
            if MARK.search(_path(op.location).rpartition("/")[2]):
                marked.add(name)
    while more := {name for name, callees in calls.items() if callees & marked} - marked:
        marked |= more
    return marked


def _path(location: ir.Location) -> str:
    """Returns the name stack of a location."""
    while isinstance(location, ir.CallSiteLoc):
        location = location.callee
    return location.name_str if isinstance(location, ir.NameLoc) else ""


def _line(location: ir.Location) -> str:
    """Returns the innermost line of a location that is not this package's, as "file:line"."""
    if isinstance(location, ir.NameLoc):
        return _line(location.child_loc)
    if isinstance(location, ir.CallSiteLoc):
        return _line(location.callee) or _line(location.caller)
    if isinstance(location, ir.FileLineColLoc) and not location.filename.startswith(PACKAGE):
        return f"{location.filename}:{location.start_line}"
    return ""
