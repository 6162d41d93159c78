"""Programs: a function that calls jitted functions and moves data, recorded once and played from one call.

The first call runs the function while the library records what it has devices do, at the place where JAX asks for it:
so nothing of JAX is private here, and whatever it computes, moves or differentiates is a node or two. The arguments
come into the recorded function, and its results leave, by the two tiny computations that pathways.reshard uses as well.
"""

from __future__ import annotations

import ctypes
import functools
import inspect
import json
import os
import threading
import types
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Sharding

from pathways import _graph, _native, _reshard
from pathways._errors import PathwaysError

NUMBERS = (bool, int, float, complex, np.generic, np.ndarray)
LATER = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)
AGAIN = 8  # captures in one call, each of which was of no use before it was played
CACHED = 1024  # tiny computations that are kept
# What a function may give other results by, without being told.
CONFIG = (
    "jax_enable_x64",
    "jax_default_device",
    "jax_default_matmul_precision",
    "jax_default_prng_impl",
    "jax_disable_jit",
    "jax_numpy_dtype_promotion",
    "jax_numpy_rank_promotion",
)

_local = threading.local()
_programs: weakref.WeakSet[Program] = weakref.WeakSet()


@functools.cache
def _library() -> ctypes.CDLL:
    library = _reshard._library()
    text, number, size = ctypes.c_void_p, ctypes.c_uint64, ctypes.c_size_t
    numbers = ctypes.POINTER(number)
    for name, result, arguments in (
        ("pathways_capture_begin", text, []),
        ("pathways_capture_inputs", text, [size, ctypes.c_char_p]),
        ("pathways_capture_end", text, [numbers, size, ctypes.POINTER(ctypes.c_int32), numbers]),
        ("pathways_capture_made", ctypes.c_int32, [number]),
        ("pathways_capture_read", text, []),
        ("pathways_capture_drop", None, []),
        ("pathways_program_run", text, [number, numbers, size, numbers, size]),
        ("pathways_program_describe", text, [number]),
        ("pathways_program_free", None, [number]),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def capturing() -> bool:
    """Whether the calling thread captures a program."""
    return getattr(_local, "capturing", False)


# --- arrays in and out ---


@dataclass(frozen=True)
class _Array:
    """What a leaf is, for the computations by which it comes and goes."""

    shape: tuple[int, ...]
    dtype: Any
    weak: bool
    sharding: Sharding
    committed: bool

    @property
    def place(self) -> tuple[Any, ...]:
        """Arrays with the same place come and go together."""
        return (*_devices(self.sharding, self.shape), self.committed, self.sharding.memory_kind)


def _of(x: jax.Array) -> _Array:
    return _Array(x.shape, x.dtype, x.weak_type, x.sharding, x.committed)


def _described(x: jax.ShapeDtypeStruct) -> _Array:
    """The array that a description is of."""
    dtype = jax.dtypes.canonicalize_dtype(x.dtype)
    sharding = x.sharding or jnp.zeros((), dtype).sharding
    return _Array(x.shape, dtype, bool(x.weak_type), sharding, x.sharding is not None)


def _is_described(x: Any) -> bool:
    return isinstance(x, jax.ShapeDtypeStruct) and not jax.dtypes.issubdtype(x.dtype, jax.dtypes.extended)


@functools.lru_cache(CACHED)
def _devices(sharding: Sharding, shape: tuple[int, ...]) -> tuple[jax.Device, ...]:
    return tuple(sharding.devices_indices_map(shape))


def _compiled(function: Callable[..., Any], place: tuple[Any, ...], *arguments: Any, **options: Any) -> Any:
    """What a function compiles to; on the devices of its arguments, or that its options name, or one for any use."""
    if place[-2]:
        return jax.jit(function, **options).lower(*arguments).compile()
    with jax.default_device(place[0]):  # its results are not committed to it
        return jax.jit(function, keep_unused=True).lower(*arguments).compile()


@functools.lru_cache(CACHED)
def _export(arrays: tuple[_Array, ...]) -> Callable[..., None]:
    def __pathways_export(*xs):  # the library knows it by its name
        del xs
        return ()

    place = arrays[0].place
    avals = [
        jax.ShapeDtypeStruct(a.shape, a.dtype, weak_type=a.weak, sharding=a.sharding if a.committed else None)
        for a in arrays
    ]
    compiled = _compiled(__pathways_export, place, *avals, keep_unused=True)

    def take(*xs):
        try:
            compiled(*xs)
        except ValueError:  # one has a layout of its own
            compiled(*(_default_layout(x) for x in xs))

    return take


def _leave(take: Callable[..., None], arrays: list[jax.Array], numbers: Any) -> None:
    """Has arrays leave JAX, and gives the numbers under which the library holds them."""
    exported = _library().pathways_exported
    try:
        take(*arrays)
        n = exported(numbers, len(arrays))
    except BaseException:
        exported(numbers, 0)  # Ctrl-C may have come between: nobody will ask for them
        raise
    if n != len(arrays):
        raise PathwaysError("INTERNAL", "an array did not leave JAX, which gave it to no device of Pathways")


def _default_layout(x: jax.Array) -> jax.Array:
    from jax.experimental.layout import Format, Layout

    order = tuple(range(x.ndim))
    return jax.device_put(x, Format(Layout(order), x.sharding))


def _is_inside(x: Any) -> bool:
    """Whether a leaf stands for a result of the program that the thread captures."""
    if not isinstance(x, jax.Array) or isinstance(x, jax.core.Tracer) or x.is_deleted():
        return False
    x = _leaf(x)
    library, number = _library(), (ctypes.c_uint64 * 1)()
    try:
        _leave(_export((_of(x),)), [x], number)
        return library.pathways_capture_made(number[0]) != 0
    finally:
        library.pathways_release(number, 1)


def _give_up(leaves: list[Any], donated: list[bool], result: Any) -> None:
    """Deletes what a program has taken over, but for what it gave back."""
    if any(donated):
        kept = {id(x) for x in jax.tree.leaves(result)}
        for x, gone in zip(leaves, donated, strict=True):
            if gone and isinstance(x, jax.Array) and id(x) not in kept:
                x.delete()


@functools.lru_cache(CACHED)
def _import(arrays: tuple[_Array, ...]) -> Callable[[], Sequence[jax.Array]]:
    def __pathways_import():
        # A number of Python, which has no type of its own, keeps the result weakly typed.
        zeros = (
            {"b": False, "f": 0.0, "i": 0, "c": 0j}[a.dtype.kind] if a.weak else np.zeros((), a.dtype) for a in arrays
        )
        return tuple(jax.lax.broadcast(zero, a.shape) for zero, a in zip(zeros, arrays, strict=True))

    return _compiled(__pathways_import, arrays[0].place, out_shardings=tuple(a.sharding for a in arrays))


def _groups(arrays: Sequence[_Array]) -> list[list[int]]:
    """Which of the arrays come or go together, each time in their order."""
    groups: dict[Any, list[int]] = {}
    for i, array in enumerate(arrays):
        groups.setdefault(array.place, []).append(i)
    return list(groups.values())


# --- leaves ---


def _leaf(x: Any) -> jax.Array:
    """The array of ours that a leaf of the arguments is or becomes."""
    if isinstance(x, jax.Array):
        if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
            return jax.random.key_data(x)
        return x if _reshard._ours(x.sharding) else jnp.asarray(np.asarray(x))
    if isinstance(x, NUMBERS) or hasattr(x, "__jax_array__"):
        return jnp.asarray(x)
    raise TypeError(
        f"an argument of a program is {x!r} of {type(x)}: expected arrays, numbers and trees of them; name it in "
        "static_argnums or static_argnames where the program is to be captured for its value"
    )


def _key(x: Any) -> Any:
    """The implementation of random numbers that a leaf is a key of; None for others."""
    if isinstance(x, jax.Array) and jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
        return jax.random.key_impl(x)
    return None


# --- what a capture gives ---


class _Captured:
    """A program of the library, with what brings its inputs there and its results back.

    It is there before the library's, which Ctrl-C cannot leave behind then.
    """

    def __init__(self, takes: list[Any], structure: Any):
        self.number = ctypes.c_uint64()
        self.takes = takes  # of each group of inputs, what exports it and which leaves it has
        self.num_inputs = sum(len(which) for _, which in takes)
        self.gives: list[Any] = []  # of each group of results, what imports it and which results it has
        self.num_results = 0  # of all these groups
        self.results: list[Any] = []  # of each leaf what gives it, see run
        self.structure = structure
        self._free = _library().pathways_program_free

    def __del__(self):
        if hasattr(self, "_free"):
            self._free(self.number)

    def run(self, leaves: list[Any], arrays: list[jax.Array]) -> Any:
        library, n, m = _library(), self.num_inputs, self.num_results
        inputs, outputs = (ctypes.c_uint64 * n)(), (ctypes.c_uint64 * m)()
        made: list[Any] = [None] * m
        at = 0
        try:
            for take, which in self.takes:
                _leave(take, [arrays[i] for i in which], (ctypes.c_uint64 * len(which)).from_buffer(inputs, 8 * at))
                at += len(which)
            if refusal := library.pathways_program_run(self.number, inputs, n, outputs, m):
                _native.check(refusal)
            at = 0
            for give, which in self.gives:
                group = (ctypes.c_uint64 * len(which)).from_buffer(outputs, 8 * at)
                library.pathways_import(group, len(which))
                at += len(which)
                for i, x in zip(which, give(), strict=True):
                    made[i] = x
        except BaseException:  # Ctrl-C too, at any of these lines
            library.pathways_release(inputs, n)  # passes over what is not held any more
            library.pathways_release(outputs, m)
            raise
        return self.structure.unflatten([result(leaves, made) for result in self.results])

    def describe(self) -> dict[str, Any]:
        library = _library()
        return json.loads(_native._text(library, library.pathways_program_describe(self.number)) or "{}")


def _given(i: int) -> Callable[..., Any]:
    return lambda leaves, made: leaves[i]


def _made(i: int) -> Callable[..., Any]:
    return lambda leaves, made: made[i]


def _wrapped(i: int, impl: Any) -> Callable[..., Any]:
    return lambda leaves, made: jax.random.wrap_key_data(made[i], impl=impl)


def _constant(x: Any) -> Callable[..., Any]:
    return lambda leaves, made: x


def _capture(
    name: str, call: Callable[..., Any], keys: list[Any], arrays: list[_Array], donated: list[bool]
) -> _Captured:
    """Captures a call that is given arrays in the place of leaves."""
    library = _library()
    groups = _groups(arrays)
    takes = [(_export(tuple(arrays[i] for i in group)), group) for group in groups]
    inputs = [_import(tuple(arrays[i] for i in group)) for group in groups]
    refusal = None
    try:
        refusal = library.pathways_capture_begin()
        _native.check(refusal)
        _local.capturing = True
        symbols: list[Any] = [None] * len(arrays)
        for group, give in zip(groups, inputs, strict=True):
            flags = bytes(donated[i] for i in group)
            _native.check(library.pathways_capture_inputs(len(group), flags))
            for i, x in zip(group, give(), strict=True):
                symbols[i] = x if keys[i] is None else jax.random.wrap_key_data(x, impl=keys[i])
        leaves, structure = jax.tree.flatten(call(symbols))
        return _finish(library, takes, leaves, structure, symbols)
    except Exception as error:
        line = _native._text(library, library.pathways_capture_read())
        if line is None:
            raise
        raise PathwaysError(
            "FAILED_PRECONDITION",
            f"{line or 'a line of it'} reads, prints or branches on an array in the program {name}, where it stands "
            "for a result and has no contents; return it and read it outside, compute what depends on it in a jitted "
            "function (jax.lax.cond, jnp.where), or make the argument static",
        ) from error
    finally:
        _local.capturing = False
        if not refusal:
            library.pathways_capture_drop()  # where it has not ended


def _finish(library: ctypes.CDLL, takes: list[Any], leaves: list[Any], structure: Any, symbols: list[Any]) -> _Captured:
    """Ends a capture whose function gave these leaves."""
    given = {id(x): i for i, x in enumerate(symbols)}
    arrays: dict[int, Any] = {}  # of each result that is no argument, by identity, the array behind it
    for x in leaves:
        if isinstance(x, jax.core.Tracer):
            raise PathwaysError("FAILED_PRECONDITION", "a program gave a value of a function that JAX traces around it")
        if id(x) not in given and isinstance(x, jax.Array):
            arrays[id(x)] = x if _key(x) is None else jax.random.key_data(x)
    order = list(arrays)
    described = [_of(arrays[i]) for i in order]
    numbers = (ctypes.c_uint64 * len(order))()
    captured = _Captured(takes, structure)
    groups = [group for group in _groups(described) if _reshard._ours(described[group[0]].sharding)]
    at, sorted_ids = 0, []
    try:
        for group in groups:
            take = _export(tuple(described[i] for i in group))
            room = (ctypes.c_uint64 * len(group)).from_buffer(numbers, 8 * at)
            _leave(take, [arrays[order[i]] for i in group], room)
            at += len(group)
            sorted_ids += [order[i] for i in group]
        which = (ctypes.c_int32 * at)()
        _native.check(library.pathways_capture_end(numbers, at, which, captured.number))
    finally:
        library.pathways_release(numbers, len(order))
    places = {i: place for i, place in zip(sorted_ids, which, strict=True) if place >= 0}
    for x in leaves:
        if id(x) in given:
            captured.results.append(_given(given[id(x)]))
        elif id(x) not in places:
            captured.results.append(_constant(x))
        elif (impl := _key(x)) is not None:
            captured.results.append(_wrapped(places[id(x)], impl))
        else:
            captured.results.append(_made(places[id(x)]))
    for group in groups:
        made = [i for i in group if order[i] in places]
        if made:
            captured.gives.append((_import(tuple(described[i] for i in made)), [places[order[i]] for i in made]))
            captured.num_results += len(made)
    return captured


class Lowered:
    """What a program was captured to, to look at. A notebook shows it as a picture.

    `graph` is a dict: values [{node, output, bytes, shard, devices, donated}], whose node is -1 for an input; nodes
    [{kind, name, location, devices, gives [value], reads [{value, bytes}], constant_bytes}] of kind execute, copy or
    reshard, in the order in which they are submitted; inputs [value]; outputs [{reads, constant_bytes}]. Bytes are of
    all shards, and devices are their ids.
    """

    def __init__(self, name: str, graph: dict[str, Any]):
        self.graph = graph
        self._name = name

    def as_text(self) -> str:
        """One line an input, node and result, with devices and the lines of the function."""
        return _graph.as_text(self._name, self.graph)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the picture, an SVG: a box a slice, its nodes in it, and arrows with the bytes that go elsewhere.

        Raises:
          PathwaysError: INVALID_ARGUMENT for a name that ends in something else than .svg.
          OSError: where the file cannot be written.
        """
        _graph.write(path, self._repr_svg_())

    def _repr_svg_(self) -> str:
        return _graph.as_svg(self._name, self.graph)

    def __repr__(self) -> str:
        return self.as_text()


@dataclass(frozen=True)
class Cost:
    """What first calls of a program cost, in seconds of this process.

    `compile` is a part of `capture`: what this process compiled meanwhile.
    """

    captures: int
    capture: float
    compile: float


# --- the decorator ---


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
        functools.update_wrapper(self, function)
        self._function = function
        self._name = getattr(function, "__qualname__", type(function).__qualname__)
        if any(kind(function) for kind in LATER):
            raise TypeError(f"{self._name} does its work after it has returned: a program is captured while one runs")
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
                    f"{what}={sorted(numbers)} does not fit {self._name}, which takes {len(by_place)} by place"
                )
        nums, donate = ({i % len(by_place) if i < 0 else i for i in numbers} for numbers in (nums, donate))
        if parameters and not any(p.kind == p.VAR_KEYWORD for p in parameters):
            for what, given in (("static_argnames", names), ("donate_argnames", gone)):
                if unknown := given - {p.name for p in parameters}:
                    raise ValueError(f"{what}={sorted(unknown)} are no arguments of {self._name}")

        def either(numbers, named):
            """Arguments by place and by name, each given in one way or the other."""
            also = {by_place[i] for i in numbers if i < len(by_place)}
            return numbers | {i for i, name in enumerate(by_place) if name in named}, named | also

        self._static, self._static_names = either(nums, names)
        self._donate, self._donate_names = either(donate, gone)
        if both := sorted(self._static_names & self._donate_names) or sorted(self._static & self._donate):
            raise ValueError(f"arguments {both} of {self._name} are both static and donated")
        self._captured: dict[Any, _Captured] = {}
        _programs.add(self)

    def __repr__(self) -> str:
        return f"<program {self._name}>"

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    def _split(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[Any], Any, list[bool], Any]:
        """The leaves of what is not static, their structure, which are donated, and what is static."""
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
            # Leaves of a dict are in the order of its keys.
            arguments = [(i in self._donate, x) for i, x in enumerate(free)]
            arguments += [(k in self._donate_names, rest[k]) for k in sorted(rest)]
            for gone, x in arguments:
                n = len(jax.tree.leaves(x))
                donated[at : at + n] = [gone] * n
                at += n
        return leaves, structure, donated, (len(args), fixed, named)

    def _get(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], described_too: bool = False
    ) -> tuple[Any, _Captured, list, list, list[bool]] | None:
        """What was captured for such arguments, with their leaves and arrays; None while JAX traces, and where the
        default device is another library's, as that of functions which computations call back is.

        described_too: arguments may be descriptions of arrays.
        """
        leaves, structure, donated, static = self._split(args, kwargs)
        if any(isinstance(x, jax.core.Tracer) for x in leaves):
            return None
        arrays = [x if described_too and _is_described(x) else _leaf(x) for x in leaves]
        keys = [_key(x) for x in leaves]
        described = [_described(x) if _is_described(x) else _of(x) for x in arrays]
        config = tuple(getattr(jax.config, name, None) for name in CONFIG)
        key = static, structure, tuple(described), tuple(map(str, keys)), config, jax.sharding.get_abstract_mesh()
        captured = self._captured.get(key)
        if captured is None:
            if not all(_reshard._ours(array.sharding) for array in described):
                return None

            def call(symbols):
                free, named = structure.unflatten(symbols)
                for i, x in static[1]:
                    free[i] = x
                return self._function(*free, **named, **dict(static[2]))

            captured = self._captured.setdefault(key, _capture(self._name, call, keys, described, donated))
        return key, captured, leaves, arrays, donated

    def lower(self, *args: Any, **kwargs: Any) -> Lowered:
        """Captures the program for such arguments, where it is not yet, and shows what it is. It runs nothing.

        Arguments may be descriptions, jax.ShapeDtypeStruct, with a sharding or for the default device.

        Raises:
          PathwaysError: as a call does; FAILED_PRECONDITION while JAX or a program traces around it, and in functions
            that computations call back.
        """
        found = None if capturing() else self._get(args, kwargs, described_too=True)
        if found is None:
            raise PathwaysError(
                "FAILED_PRECONDITION",
                f"the program {self._name} is a part of what is traced around it, or not on devices of Pathways",
            )
        return Lowered(self._name, found[1].describe())

    def cost(self) -> Cost:
        """What the captures that are kept took."""
        graphs = [captured.describe() for captured in list(self._captured.values())]
        capture, compiled = (sum(g.get(key, 0) for g in graphs) / 1e9 for key in ("capture_ns", "compile_ns"))
        return Cost(len(graphs), capture, compiled)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if capturing():
            leaves, _, donated, _ = self._split(args, kwargs)
            result = self._function(*args, **kwargs)
            # Arrays of outside are constants of the program around this one, which keeps them.
            _give_up(leaves, [gone and _is_inside(x) for x, gone in zip(leaves, donated, strict=True)], result)
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
                if error.code not in ("ABORTED", "NOT_FOUND"):
                    raise
                self._captured.pop(key, None)  # what it calls or runs on is no more
                refused += 1
                if refused == AGAIN:
                    raise PathwaysError(
                        "FAILED_PRECONDITION",
                        f"the program {self._name} could not be played after each of {AGAIN} captures, of which the "
                        f"last said: {error.message}; make jitted functions that call back outside of the program",
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
    """Lets go of what was captured on devices that a slice has no more: captured again, it may be on those that it has
    now."""
    for p in list(_programs):
        for key, captured in list(p._captured.items()):
            if any(not devices.isdisjoint(value["devices"]) for value in captured.describe()["values"]):
                p._captured.pop(key, None)


def forget() -> None:
    """Lets go of all that was captured on devices that are no more."""
    for p in list(_programs):
        p._captured.clear()
    for cache in (_devices, _export, _import):
        cache.cache_clear()
