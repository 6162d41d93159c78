"""Captures: the work that one call of a function submits to devices, recorded as a program of the library.

Arrays enter the recorded function, and its results leave it, by the computations of _passage.py: one of each for every
set of devices.
"""

from __future__ import annotations

import ctypes
import functools
import json
import threading
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pathways import _backend, _native, _passage, _reshard
from pathways._errors import failed_precondition
from pathways._passage import Array, array_of

NUMBERS = (bool, int, float, complex, np.generic, np.ndarray)

_local = threading.local()


@functools.cache
def _library() -> ctypes.CDLL:
    library = _passage.library()
    text, number, size = ctypes.c_void_p, ctypes.c_uint64, ctypes.c_size_t
    numbers = ctypes.POINTER(number)
    _native.declare(
        library,
        ("pathways_capture_begin", text, []),
        ("pathways_capture_inputs", text, [size, ctypes.c_char_p]),
        ("pathways_capture_end", text, [numbers, size, ctypes.POINTER(ctypes.c_int32), numbers]),
        ("pathways_capture_made", ctypes.c_int32, [number]),
        ("pathways_capture_read", text, []),
        ("pathways_capture_drop", None, []),
        ("pathways_program_run", text, [number, numbers, size, numbers, size]),
        ("pathways_program_describe", text, [number]),
        ("pathways_program_free", None, [number]),
    )
    return library


def capturing() -> bool:
    """Returns whether the calling thread captures a program."""
    return getattr(_local, "capturing", False)


# --- arrays in and out ---


def described(x: jax.ShapeDtypeStruct) -> Array:
    """Returns the array that a description describes."""
    dtype = jax.dtypes.canonicalize_dtype(x.dtype)
    sharding = x.sharding or jnp.zeros((), dtype).sharding
    return Array(x.shape, dtype, bool(x.weak_type), sharding, x.sharding is not None)


def is_described(x: Any) -> bool:
    return isinstance(x, jax.ShapeDtypeStruct) and not jax.dtypes.issubdtype(x.dtype, jax.dtypes.extended)


def _room(numbers: Any, at: int, n: int) -> Any:
    """Returns the n numbers that begin at index `at`."""
    return numbers if n == len(numbers) else (ctypes.c_uint64 * n).from_buffer(numbers, 8 * at)


def is_inside(x: Any) -> bool:
    """Returns whether a leaf stands for a result of the program that the thread captures."""
    if not isinstance(x, jax.Array) or isinstance(x, jax.core.Tracer) or x.is_deleted():
        return False
    x = leaf(x)
    library, number = _library(), (ctypes.c_uint64 * 1)()
    try:
        _passage.export(_passage.exporting((array_of(x),)), [x], number)
        return library.pathways_capture_made(number[0]) != 0
    finally:
        library.pathways_release(number, 1)


def _groups(arrays: Sequence[Array]) -> list[list[int]]:
    """Groups the indices of arrays that enter or leave together, in their order."""
    groups: dict[Any, list[int]] = {}
    for i, array in enumerate(arrays):
        groups.setdefault(array.place, []).append(i)
    return list(groups.values())


# --- leaves ---


def leaf(x: Any) -> jax.Array:
    """Returns the array on Pathways devices that a leaf of the arguments is or becomes."""
    if isinstance(x, jax.Array):
        if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
            return jax.random.key_data(x)
        return x if _reshard._ours(x.sharding) else jnp.asarray(np.asarray(x))
    if isinstance(x, NUMBERS) or hasattr(x, "__jax_array__"):
        return jnp.asarray(x)
    raise TypeError(
        f"an argument of a program is {x!r} of {type(x)}: expected arrays, numbers and trees of them; name it in "
        "static_argnums or static_argnames if the program is to be captured for its value"
    )


def key_of(x: Any) -> Any:
    """Returns the random-number implementation of a leaf that is a key; None for other leaves."""
    if isinstance(x, jax.Array) and jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
        return jax.random.key_impl(x)
    return None


# --- the result of a capture ---


class Captured:
    """A program of the library, with the computations that export its inputs and import its results.

    It is made before the library's program, so that Ctrl-C cannot leak that.
    """

    def __init__(self, takes: list[Any], structure: Any):
        self.number = ctypes.c_uint64()
        self.takes = takes  # for each group of inputs: the computation that exports it, and its leaves
        self.num_inputs = sum(len(which) for _, which in takes)
        self.imports: list[Any] = []  # for each group of results: the computation that imports it, and its results
        self.num_results = 0  # of all these groups
        self.results: list[Any] = []  # for each leaf: the function that returns it, see run
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
                _passage.export(take, [arrays[i] for i in which], _room(inputs, at, len(which)))
                at += len(which)
            if refusal := library.pathways_program_run(self.number, inputs, n, outputs, m):
                _native.check(refusal)
            at = 0
            for computation, which in self.imports:
                library.pathways_import(_room(outputs, at, len(which)), len(which))
                at += len(which)
                for i, x in zip(which, computation(), strict=True):
                    made[i] = x
        except BaseException:  # including Ctrl-C at any of these lines
            library.pathways_release(inputs, n)  # skips inputs that were consumed
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


def capture(name: str, call: Callable[..., Any], keys: list[Any], arrays: list[Array], donated: list[bool]) -> Captured:
    """Captures a call of a function whose leaves are replaced by arrays without contents."""
    library = _library()
    groups = _groups(arrays)
    takes = [(_passage.exporting(tuple(arrays[i] for i in group)), group) for group in groups]
    inputs = [_passage.importing(tuple(arrays[i] for i in group)) for group in groups]
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
        several = len(_backend.clients()) > 1
        raise failed_precondition(
            f"{line or 'a line of it'} reads, prints or branches on an array in the program {name}, where it stands "
            "for a result and has no contents; return it and read it outside, compute what depends on it in a jitted "
            "function (jax.lax.cond, jnp.where), or make the argument static"
            + ("; jax.device_put brings it to devices of another platform" if several else "")
        ) from error
    finally:
        _local.capturing = False
        if not refusal:
            library.pathways_capture_drop()  # if it has not ended


def _finish(library: ctypes.CDLL, takes: list[Any], leaves: list[Any], structure: Any, symbols: list[Any]) -> Captured:
    """Ends a capture whose function returned these leaves."""
    given = {id(x): i for i, x in enumerate(symbols)}
    arrays: dict[int, Any] = {}  # by identity, the array of each result that is not an argument
    for x in leaves:
        if isinstance(x, jax.core.Tracer):
            raise failed_precondition("a program returned a value that JAX traces outside of it")
        if id(x) not in given and isinstance(x, jax.Array):
            arrays[id(x)] = x if key_of(x) is None else jax.random.key_data(x)
    order = list(arrays)
    described = [array_of(arrays[i]) for i in order]
    numbers = (ctypes.c_uint64 * len(order))()
    captured = Captured(takes, structure)
    groups = [group for group in _groups(described) if _reshard._ours(described[group[0]].sharding)]
    at, sorted_ids = 0, []
    try:
        for group in groups:
            take = _passage.exporting(tuple(described[i] for i in group))
            _passage.export(take, [arrays[order[i]] for i in group], _room(numbers, at, len(group)))
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
        elif (impl := key_of(x)) is not None:
            captured.results.append(_wrapped(places[id(x)], impl))
        else:
            captured.results.append(_made(places[id(x)]))
    for group in groups:
        made = [i for i in group if order[i] in places]
        if made:
            captured.imports.append(
                (_passage.importing(tuple(described[i] for i in made)), [places[order[i]] for i in made])
            )
            captured.num_results += len(made)
    return captured
