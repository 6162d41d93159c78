"""Divides a computation in two: what some of its results need, and what is left for the others.

A pipeline has the gradients of a stage's input made first, for which the stage before waits, and those of its
parameters later. The computation is traced to a jaxpr. The first part is all that the first results need; the second
is the rest, and takes what it needs of the first, so nothing is computed twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
from jax.extend import core

from pathways import _private

# What only moves or renames values: a second part of nothing else is not worth a call of its own.
_MOVES = frozenset("broadcast_in_dim convert_element_type copy neg reshape squeeze transpose".split())
# Equations that stand for a jaxpr, by the parameter that holds it. Its equations are divided, too. Recomputation
# (remat2, of jax.checkpoint) is among them: what it makes anew is carried from the first part to the second.
_CALLS = {"pjit": "jaxpr", "jit": "jaxpr", "closed_call": "call_jaxpr", "remat2": "jaxpr"}

# A value is the number of a slot, or a constant.
Value = int | tuple[Any]


class _Step(NamedTuple):
    """An equation on slots."""

    equation: Any
    reads: list[Value]
    writes: list[int]


class Split:
    """A function of arrays that returns (later, sooner), pytrees, divided for arguments of some shapes.

    Attributes:
      whole: whether nothing that is worth a call is left for the second part.
      starts: whether the first part does anything.
      keeps: the numbers of the arguments' leaves that the second part needs.
    """

    def __init__(self, function: Callable[..., tuple[Any, Any]], *arguments: Any):
        closed, results = jax.make_jaxpr(function, return_shape=True)(*arguments)
        self._slots = len(closed.jaxpr.invars)
        steps: list[_Step] = []
        values = self._flat(closed, list(range(self._slots)), steps)
        self._later_tree, self._sooner_tree = map(jax.tree.structure, results)
        count = self._later_tree.num_leaves
        self._later, self._sooner = values[:count], values[count:]
        self._first, needed = _needed(steps, self._sooner)
        rest = [step for step in steps if not needed.issuperset(step.writes)]
        self._second, wanted = _needed(rest, self._later)
        self.whole = all(step.equation.primitive.name in _MOVES for step in self._second)
        self.starts = bool(self._sooner or self._first)
        made = {slot for step in self._first for slot in step.writes}
        self._carried = sorted(wanted & made)
        self.keeps = sorted(slot for slot in wanted - made if slot < len(closed.jaxpr.invars))

    def first(self, leaves: Sequence[Any]) -> tuple[Any, list[Any]]:
        """Returns the sooner results, and what the second part takes of this one."""
        slots = dict(enumerate(leaves))
        _run(self._first, slots)
        sooner = self._sooner_tree.unflatten(_read(slots, value) for value in self._sooner)
        return sooner, [slots[slot] for slot in self._carried]

    def second(self, carried: Sequence[Any], kept: Sequence[Any]) -> Any:
        """Returns the later results. kept: the leaves that `keeps` numbers."""
        slots = dict(zip([*self._carried, *self.keeps], [*carried, *kept], strict=True))
        _run(self._second, slots)
        return self._later_tree.unflatten(_read(slots, value) for value in self._later)

    def _flat(self, closed: core.ClosedJaxpr, arguments: list[Value], steps: list[_Step]) -> list[Value]:
        """Adds a jaxpr's equations to steps, and those of jaxprs in it. Returns its results."""
        known: dict[Any, Value] = dict(zip(closed.jaxpr.invars, arguments, strict=True))
        known |= {var: (value,) for var, value in zip(closed.jaxpr.constvars, closed.consts, strict=True)}

        def value_of(var: Any) -> Value:
            return (var.val,) if isinstance(var, core.Literal) else known[var]

        for equation in closed.jaxpr.eqns:
            reads = [value_of(var) for var in equation.invars]
            inner = equation.params.get(_CALLS.get(equation.primitive.name, ""))
            if inner is None:
                made: list[Value] = list(range(self._slots, self._slots + len(equation.outvars)))
                self._slots += len(made)
                steps.append(_Step(equation, reads, made))
            else:
                inner = inner if isinstance(inner, core.ClosedJaxpr) else core.ClosedJaxpr(inner, ())
                made = self._flat(inner, reads, steps)
            known |= zip(equation.outvars, made, strict=True)
        return [value_of(var) for var in closed.jaxpr.outvars]


def _needed(steps: list[_Step], values: Sequence[Value]) -> tuple[list[_Step], set[int]]:
    """Returns the steps that values need, in their order, and all slots that these and the values read or write."""
    slots = {value for value in values if isinstance(value, int)}
    needed = []
    for step in reversed(steps):
        if step.equation.effects or not slots.isdisjoint(step.writes):
            needed.append(step)
            slots.update(step.writes)
            slots.update(value for value in step.reads if isinstance(value, int))
    return needed[::-1], slots


def _run(steps: list[_Step], slots: dict[int, Any]) -> None:
    for equation, reads, writes in steps:
        slots.update(zip(writes, _private.bind(equation, [_read(slots, value) for value in reads]), strict=True))


def _read(slots: dict[int, Any], value: Value) -> Any:
    return slots[value] if isinstance(value, int) else value[0]
