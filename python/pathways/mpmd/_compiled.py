"""Partitioned functions, compiled: a program whose nodes are their fragments and transfers."""

from __future__ import annotations

import os
import re
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, Sharding

from pathways import _capture, _graph, _program, _reshard
from pathways._errors import failed_precondition, invalid_argument
from pathways.mpmd import _fragments, _timetable
from pathways.mpmd._fragments import Array, Fragment

# In the text of a fragment, whose locations have them: names of named computations, and lines.
NAMES = re.compile(r"mpmd\.computation\.([^/()\"]+)")
PLACES = re.compile(r"\"([^\"]+)\":(\d+):\d+")
LIBRARIES = os.path.dirname(_program.__file__), "/shardy/integrations/", "/site-packages/jax/"  # not the user's lines


class Step(NamedTuple):
    """An operation of a partitioned function. Values are numbers."""

    fragment: Fragment | None  # None is a copy of one array
    run: Callable[[Sequence[jax.Array]], Sequence[jax.Array]]
    reads: tuple[int, ...]
    makes: tuple[int, ...]
    last: tuple[int, ...]  # of the values, those that nothing reads afterwards


class Steps:
    """The operations of a partitioned function, in the order in which they are submitted.

    Operations of one mesh stay in the order of the plan, which is the schedule; among meshes, they are in the order in
    which they begin. Control dependencies are between operations of one mesh, and each device runs what it is given in
    the order of submission, so that they hold by themselves. A copy comes right after what makes its array: it does not
    wait for others that the plan copies with it.
    """

    def __init__(
        self,
        plan: Mapping[str, Any],
        devices: Sequence[jax.Device],
        meshes: Sequence[Mesh],
        lines: Mapping[str, str],
        compiler_options: Mapping[str, Any] | None = None,
    ):
        self.arrays = [_fragments.array_of(text, devices, meshes) for text in plan["values"]]
        self.inputs: list[int] = plan["inputs"]
        self.outputs: list[int] = plan["outputs"]
        self.donated: list[int] = plan["donated"]
        fragments: dict[str, Fragment] = {}
        steps: list[tuple[Fragment | None, tuple[int, ...], tuple[int, ...]]] = []
        copies: dict[int, list[int]] = {}
        for op in plan["ops"]:
            if op["fragment"] is None:
                for read, made in zip(op["reads"], op["makes"], strict=True):
                    copies.setdefault(read, []).append(made)

        def add(fragment: Fragment | None, reads: Sequence[int], makes: Sequence[int]) -> None:
            steps.append((fragment, tuple(reads), tuple(makes)))
            copy(makes)

        def copy(made: Sequence[int]) -> None:
            for value in made:
                for target in copies.get(value, ()):
                    add(None, [value], [target])

        copy(self.inputs)
        for op in self._by_begin([op for op in plan["ops"] if op["fragment"] is not None], copies):
            name = op["fragment"]
            if name not in fragments:
                text = plan["fragments"][name]
                fragments[name] = _fragments.compile_fragment(
                    _called(name),
                    text,
                    [self.arrays[i] for i in op["reads"]],
                    [self.arrays[i] for i in op["makes"]],
                    op["donated"],
                    _line(text, lines),
                    compiler_options,
                )
            add(fragments[name], op["reads"], op["makes"])
        self.fragments = list(fragments.values())
        self.steps = self._with_last_reads(steps)

    def _by_begin(self, ops: list[Mapping[str, Any]], copies: Mapping[int, list[int]]) -> list[Mapping[str, Any]]:
        sources = {made: read for read, targets in copies.items() for made in targets}
        found = []
        for op in ops:
            reads, makes = op["reads"], op["makes"]
            mesh = frozenset(self.arrays[[*makes, *reads][0]].sharding.device_set)
            found.append((_called(op["fragment"]), mesh, reads, makes))
        return [ops[i] for i in _timetable.by_begin(found, sources)]

    def run(self, *arrays: jax.Array) -> list[jax.Array]:
        """Runs the operations one by one. A program captures it."""
        values: dict[int, Any] = dict(zip(self.inputs, arrays, strict=True))
        for step in self.steps:
            made = step.run([values[i] for i in step.reads])
            values.update(zip(step.makes, made, strict=True))
            del made
            for i in step.last:
                del values[i]
        return [values[i] for i in self.outputs]

    def _with_last_reads(self, steps: list[Any]) -> list[Step]:
        seen, found = set(self.outputs), []
        lines = {i: fragment.line for fragment, reads, makes in steps if fragment for i in (*reads, *makes)}
        lines |= {i: fragment.line for fragment, _, makes in steps if fragment for i in makes}
        for fragment, reads, makes in reversed(steps):
            last = tuple(dict.fromkeys(i for i in (*reads, *makes) if i not in seen))
            seen.update(last)
            run = fragment.run if fragment else self._copy(makes[0], lines.get(reads[0]) or lines.get(makes[0], ""))
            found.append(Step(fragment, run, reads, makes, last))
        return found[::-1]

    def _copy(self, made: int, line: str) -> Callable[[Sequence[jax.Array]], Sequence[jax.Array]]:
        """Returns a function that moves an array. Its line is that of what makes the array, or else reads it."""
        target = self.arrays[made].sharding
        return _fragments.calling(lambda x: [_reshard.reshard(x, target)], line)


def _called(name: str) -> str:
    """Returns what a trace shows of a fragment's name in the plan."""
    return name.rpartition(".")[0] or name


def _line(text: str, lines: Mapping[str, str]) -> str:
    """Returns the line of a fragment's first named computation that has one, or else of its first operation."""
    names = (urllib.parse.unquote(name) for name in NAMES.findall(text))
    if line := next((lines[name] for name in names if lines.get(name)), ""):
        return line
    found = ((file, number) for file, number in PLACES.findall(text) if not any(part in file for part in LIBRARIES))
    return next((f"{file}:{number}" for file, number in found), "")


def _placed(sharding: Sharding, shape: tuple[int, ...]) -> str:
    """Returns a sharding's text, and its devices, which that does not name."""
    return f"{sharding} on devices {[d.id for d in sharding.devices_indices_map(shape)]}"


class Compiled:
    """A compiled function. A call plays it as one program: on a cluster, one message per call.

    Arguments are as in `lower`. Arrays that are committed to devices must have the sharding of `input_shardings`;
    others are moved there. The call returns without waiting for the results.
    """

    def __init__(
        self,
        name: str,
        steps: Steps,
        in_tree: Any,
        out_tree: Any,
        inputs: Sequence[NamedSharding],
        outputs: Sequence[NamedSharding],
        topology: Mapping[str, Mesh],
    ):
        self._topology = topology
        self._name, self._steps, self._in_tree, self._out_tree = name, steps, in_tree, out_tree
        self._arrays = [
            Array(steps.arrays[i].shape, steps.arrays[i].dtype, sharding)
            for i, sharding in zip(steps.inputs, inputs, strict=True)
        ]

        # For each argument, the shardings with which it came and that are as good as the expected one.
        self._known = [{array.sharding} for array in self._arrays]

        def play(*arrays):
            return steps.run(*arrays)

        play.__name__ = play.__qualname__ = name
        self._program = _program.Program(play, None, None, tuple(steps.donated), None)
        self.input_shardings = in_tree.unflatten(inputs)
        self.output_shardings = out_tree.unflatten(outputs)

    def __call__(self, *args: Any) -> Any:
        return self._out_tree.unflatten(self._program(*self._given(args)))

    def one_by_one(self, *args: Any) -> Any:
        """Runs the same fragments and transfers without a program: each as a call of its own, in the same order."""
        return self._out_tree.unflatten(self._steps.run(*self._given(args)))

    def _given(self, args: tuple[Any, ...]) -> list[jax.Array]:
        leaves, tree = jax.tree.flatten(args)
        if tree != self._in_tree:
            raise invalid_argument(f"{self._name} was lowered for arguments {self._in_tree} and is called with {tree}")
        for i, (x, array, known) in enumerate(zip(leaves, self._arrays, self._known, strict=True)):
            if (
                not isinstance(x, jax.Array)
                or isinstance(x, jax.core.Tracer)
                or x.sharding not in known
                or not x.committed
                or (x.shape, x.dtype) != (array.shape, array.dtype)
            ):
                leaves[i] = self._moved(i, x, array)
                known.add(leaves[i].sharding)
        return leaves

    def _moved(self, i: int, x: Any, array: Array) -> jax.Array:
        """Returns an argument as it is expected, or refuses it."""
        if isinstance(x, jax.core.Tracer):
            raise failed_precondition(
                f"{self._name}, a function of pathways.mpmd, cannot be called inside a function that JAX traces"
            )
        if not isinstance(x, (jax.Array, *_capture.NUMBERS)):
            raise invalid_argument(
                f"argument {self._path(i)} of {self._name} is {x!r}; expected an array, "
                f"{array.dtype}{list(array.shape)}"
            )
        if isinstance(x, jax.Array) and jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
            x = jax.random.key_data(x)
        shape, dtype = np.shape(x), jax.dtypes.canonicalize_dtype(x.dtype if hasattr(x, "dtype") else np.result_type(x))
        if shape != array.shape or dtype != array.dtype:
            raise invalid_argument(
                f"argument {self._path(i)} of {self._name} is {dtype}{list(shape)}; expected "
                f"{array.dtype}{list(array.shape)}, as it was lowered"
            )
        if not isinstance(x, jax.Array) or not x.committed:
            return jax.device_put(x, array.sharding, may_alias=i not in self._steps.donated)
        if not x.sharding.is_equivalent_to(array.sharding, x.ndim):
            raise invalid_argument(
                f"argument {self._path(i)} of {self._name} has the sharding {_placed(x.sharding, x.shape)}; expected "
                f"{_placed(array.sharding, array.shape)}: move it there once, by jax.device_put(args, "
                "compiled.input_shardings)"
            )
        return x

    def _path(self, i: int) -> str:
        paths = jax.tree_util.tree_leaves_with_path(self.input_shardings)
        return jax.tree_util.keystr(paths[i][0])

    @property
    def schedule(self) -> _timetable.Timetable:
        """The plan: the slot of each fragment, assuming that all take the same time."""
        steps = [(step.fragment and step.fragment.name, step.reads, step.makes) for step in self._steps.steps]
        return _timetable.Timetable(steps, self._steps.arrays, self._topology)

    @property
    def graph(self) -> dict[str, Any]:
        """The program as a dict, as for `pathways.program`."""
        return self._lowered().graph

    def _lowered(self) -> _program.Lowered:
        return self._program.lower(*(array.described for array in self._arrays))

    def as_text(self) -> str:
        """Returns one line per argument, fragment, transfer and result, in the order in which they are submitted."""
        return self._lowered().as_text()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes a picture, an SVG: a box for each mesh with its fragments, and arrows with the bytes that move."""
        _graph.write(path, self._repr_svg_())

    def _repr_svg_(self) -> str:
        return self._lowered()._repr_svg_()

    def __repr__(self) -> str:
        return f"<{self._name}: {len(self._steps.steps)} operations of {len(self._steps.fragments)} fragments>"
