"""Programs: a function that calls jitted functions and moves data, recorded once and then played by one call.

The first call runs the function while the library records the work that JAX submits to it (_capture.py). So this uses
nothing that is private to JAX, and everything that JAX computes, moves or differentiates becomes a node or two.
"""

from __future__ import annotations

import functools
import inspect
import operator
import os
import types
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import jax

from pathways import _capture, _graph, _private, _reshard
from pathways._errors import PathwaysError, failed_precondition

LATER = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)
AGAIN = 8  # captures in one call, each of which became useless before it was played
# Of JAX's settings, those that change what a function does, and are not among those that JAX traces by.
CONFIG = operator.attrgetter("jax_default_device", "jax_disable_jit")


def _settings() -> tuple[Any, ...]:
    """Returns what changes a function's results without being an argument."""
    return CONFIG(jax.config), _private.traced_by()


_programs: weakref.WeakSet[Program] = weakref.WeakSet()


class Lowered:
    """The graph that a program was captured to. A notebook shows it as a picture.

    `graph` is a dict: values [{node, output, bytes, shard, devices, donated}], whose node is -1 for an input; nodes
    [{kind, name, location, devices, makes [value], reads [{value, bytes}], constant_bytes}] of kind execute, copy or
    reshard, in the order in which they are submitted; inputs [value]; outputs [{reads, constant_bytes}]. Bytes are of
    all shards, and devices are their ids.
    """

    def __init__(self, name: str, graph: dict[str, Any]):
        self.graph = graph
        self._name = name

    def as_text(self) -> str:
        """Returns one line per input, node and result, with devices and the lines of the function."""
        return _graph.as_text(self._name, self.graph)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the picture, an SVG: a box for each slice with its nodes, and arrows with the bytes that move.

        Raises:
          PathwaysError: INVALID_ARGUMENT for a name that does not end in .svg.
          OSError: if the file cannot be written.
        """
        _graph.write(path, self._repr_svg_())

    def _repr_svg_(self) -> str:
        return _graph.as_svg(self._name, self.graph)

    def __repr__(self) -> str:
        return self.as_text()


@dataclass(frozen=True)
class Cost:
    """The time of a program's first calls in this process, in seconds.

    `compile` is the part of `capture` that this process spent compiling.
    """

    captures: int
    capture: float
    compile: float


# --- the decorator ---


def _give_up(leaves: list[Any], donated: list[bool], result: Any) -> None:
    """Deletes the donated arguments of a program, except those that it returned."""
    if any(donated):
        kept = {id(x) for x in jax.tree.leaves(result)}
        for x, gone in zip(leaves, donated, strict=True):
            if gone and isinstance(x, jax.Array) and id(x) not in kept:
                x.delete()


class _Call:
    """A call that was played, for later calls with the same types and shardings.

    To compare those costs a fraction of describing the arguments.
    """

    def __init__(
        self, key: Any, captured: _capture.Captured, leaves: list[jax.Array], structure: Any, donated: list[bool]
    ):
        self.key, self.captured, self.structure, self.donated = key, captured, structure, donated
        self.settings = key[-1]
        self.leaves = [(type(x), x.aval, x.sharding, x.committed) for x in leaves]

    def like(self, leaves: list[Any], structure: Any) -> bool:
        if structure != self.structure:
            return False
        for x, (kind, aval, sharding, committed) in zip(leaves, self.leaves, strict=True):
            if type(x) is not kind or x.aval is not aval or x.sharding is not sharding or x.committed != committed:
                return False
        return _settings() == self.settings


class Program:
    """A function that is captured at its first call and played from then on. See `pathways.program`."""

    def __init__(
        self,
        function: Callable[..., Any],
        static_argnums: int | Iterable[int] | None,
        static_argnames: str | Iterable[str] | None,
        donate_argnums: int | Iterable[int] | None,
        donate_argnames: str | Iterable[str] | None,
    ):
        if not callable(function):
            raise TypeError(
                f"pathways.program expects a function of arrays, got {function!r}; use it as @pathways.program"
            )
        functools.update_wrapper(self, function)
        self._function = function
        self._name = getattr(function, "__qualname__", type(function).__qualname__)
        if any(kind(function) for kind in LATER):
            raise TypeError(
                f"{self._name} is a generator or asynchronous; expected a function whose work ends when it returns"
            )
        nums = {static_argnums} if isinstance(static_argnums, int) else set(static_argnums or ())
        names = {static_argnames} if isinstance(static_argnames, str) else set(static_argnames or ())
        donate = {donate_argnums} if isinstance(donate_argnums, int) else set(donate_argnums or ())
        gone = {donate_argnames} if isinstance(donate_argnames, str) else set(donate_argnames or ())
        try:
            parameters = list(inspect.signature(function).parameters.values())
        except (TypeError, ValueError):
            parameters = []
        by_place = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        variadic = any(p.kind == p.VAR_POSITIONAL for p in parameters) or not parameters
        for what, numbers in (("static_argnums", nums), ("donate_argnums", donate)):
            if any(
                not isinstance(i, int) or i < -len(by_place) or i >= len(by_place) and not variadic for i in numbers
            ):
                raise ValueError(
                    f"{what}={sorted(numbers)} does not fit {self._name}, with {len(by_place)} positional arguments"
                )
        nums, donate = ({i % len(by_place) if i < 0 else i for i in numbers} for numbers in (nums, donate))
        if parameters and not any(p.kind == p.VAR_KEYWORD for p in parameters):
            for what, given in (("static_argnames", names), ("donate_argnames", gone)):
                if unknown := given - {p.name for p in parameters}:
                    raise ValueError(f"{what}={sorted(unknown)} are not arguments of {self._name}")

        def either(numbers, named):
            """Returns arguments by position and by name, each of which was passed in one way or the other."""
            also = {by_place[i] for i in numbers if i < len(by_place)}
            return numbers | {i for i, name in enumerate(by_place) if name in named}, named | also

        self._static, self._static_names = either(nums, names)
        self._donate, self._donate_names = either(donate, gone)
        if both := sorted(self._static_names & self._donate_names) or sorted(self._static & self._donate):
            raise ValueError(f"arguments {both} of {self._name} are both static and donated")
        self._captured: dict[Any, _capture.Captured] = {}
        self._last: _Call | None = None
        _programs.add(self)

    def __repr__(self) -> str:
        return f"<program {self._name}>"

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    def _split(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[Any], Any, list[bool], Any]:
        """Returns the leaves of non-static arguments, their structure, which are donated, and the static arguments."""
        fixed = tuple((i, args[i]) for i in sorted(self._static) if i < len(args))
        named = tuple(sorted((k, v) for k, v in kwargs.items() if k in self._static_names))
        try:
            hash((fixed, named))
        except TypeError as error:
            raise ValueError(f"a static argument of the program {self._name} cannot be hashed: {error}") from None
        free = [None if i in self._static else x for i, x in enumerate(args)]
        rest = {k: v for k, v in kwargs.items() if k not in self._static_names}
        leaves, structure = jax.tree.flatten((free, rest))
        donated = [False] * len(leaves)
        if self._donate or self._donate_names:
            at = 0
            # The leaves of a dict are in the order of its keys.
            arguments = [(i in self._donate, x) for i, x in enumerate(free)]
            arguments += [(k in self._donate_names, rest[k]) for k in sorted(rest)]
            for gone, x in arguments:
                n = len(jax.tree.leaves(x))
                donated[at : at + n] = [gone] * n
                at += n
        return leaves, structure, donated, (len(args), fixed, named)

    def _get(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], described_too: bool = False
    ) -> tuple[Any, _capture.Captured, list, list, list[bool]] | None:
        """Returns the capture for such arguments, with their leaves and arrays. Returns None while JAX traces, and if
        the default device is not one of Pathways, as in functions that computations call back.

        described_too: whether arguments may be descriptions of arrays.
        """
        flat = jax.tree.flatten((args, kwargs))
        if (last := self._last) is not None and last.like(*flat):
            return last.key, last.captured, flat[0], flat[0], last.donated
        leaves, structure, donated, static = self._split(args, kwargs)
        if any(isinstance(x, jax.core.Tracer) for x in leaves):
            return None
        arrays = [x if described_too and _capture.is_described(x) else _capture.leaf(x) for x in leaves]
        keys = [_capture.key_of(x) for x in leaves]
        described = [_capture.described(x) if _capture.is_described(x) else _capture.array_of(x) for x in arrays]
        given = static, structure, tuple(described), tuple(map(str, keys))
        key = *given, _settings()
        captured = self._captured.get(key)
        if captured is None:
            if not all(_reshard._ours(array.sharding) for array in described):
                return None

            def call(symbols):
                free, named = structure.unflatten(symbols)
                for i, x in static[1]:
                    free[i] = x
                return self._function(*free, **named, **dict(static[2]))

            captured = _capture.capture(self._name, call, keys, described, donated)
            captured = self._captured.setdefault(key, captured)
        plain = not described_too and not any(static[1:]) and not any(keys)
        if plain and all(map(operator.is_, leaves, arrays)):
            self._last = _Call(key, captured, arrays, flat[1], donated)
            if self._captured.get(key) is not captured:  # it was dropped in the meantime
                self._last = None
        return key, captured, leaves, arrays, donated

    def _let_go(self, key: Any) -> None:
        """Drops a capture, so that the next such call captures again."""
        self._captured.pop(key, None)
        self._last = None

    def lower(self, *args: Any, **kwargs: Any) -> Lowered:
        """Captures the program for such arguments, unless it was captured before, and returns the graph. Nothing runs.

        Arguments may be descriptions: jax.ShapeDtypeStruct with a sharding, or without one for the default device.

        Raises:
          PathwaysError: as for a call; also FAILED_PRECONDITION inside a function that JAX traces or a program
            captures, and in functions that computations call back.
        """
        found = None if _capture.capturing() else self._get(args, kwargs, described_too=True)
        if found is None:
            raise failed_precondition(
                f"the program {self._name} is a part of what is traced around it, or not on devices of Pathways"
            )
        return Lowered(self._name, found[1].describe())

    def cost(self) -> Cost:
        """Returns the cost of the captures that are kept."""
        graphs = [captured.describe() for captured in list(self._captured.values())]
        capture, compiled = (sum(g.get(key, 0) for g in graphs) / 1e9 for key in ("capture_ns", "compile_ns"))
        return Cost(len(graphs), capture, compiled)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if _capture.capturing():
            leaves, _, donated, _ = self._split(args, kwargs)
            result = self._function(*args, **kwargs)
            # Arrays from outside are constants of the program that calls this one, which keeps them.
            _give_up(leaves, [gone and _capture.is_inside(x) for x, gone in zip(leaves, donated, strict=True)], result)
            return result
        refused = 0
        while True:
            found = self._get(args, kwargs)
            if found is None:
                return self._function(*args, **kwargs)
            key, captured, leaves, arrays, donated = found
            try:
                result = captured.run(leaves, arrays)
            except PathwaysError as error:
                if error.code not in ("ABORTED", "NOT_FOUND", "DATA_LOSS"):
                    raise
                self._let_go(key)  # what it calls, runs on or has as a constant is gone
                refused += 1
                if refused == AGAIN and error.code == "DATA_LOSS":
                    raise
                if refused == AGAIN:
                    raise failed_precondition(
                        f"the program {self._name} makes a jitted function that calls back to Python, which is gone"
                        f" once the program has been captured ({error.message}); make it outside of the program"
                    ) from error
                continue
            break
        _give_up(leaves, donated, result)
        return result


def program(
    function: Callable[..., Any] | None = None,
    *,
    static_argnums: int | Iterable[int] | None = None,
    static_argnames: str | Iterable[str] | None = None,
    donate_argnums: int | Iterable[int] | None = None,
    donate_argnames: str | Iterable[str] | None = None,
) -> Any:
    options = static_argnums, static_argnames, donate_argnums, donate_argnames
    return (lambda f: Program(f, *options)) if function is None else Program(function, *options)


def left(devices: set[int]) -> None:
    """Drops captures on devices that a slice no longer has. Captured again, they can use the slice's new devices."""
    for p in list(_programs):
        for key, captured in list(p._captured.items()):
            if any(not devices.isdisjoint(value["devices"]) for value in captured.describe()["values"]):
                p._let_go(key)


def forget() -> None:
    """Drops all captures, because their devices no longer exist."""
    for p in list(_programs):
        for key in list(p._captured):
            p._let_go(key)
