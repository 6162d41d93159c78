"""How arrays leave JAX for the library, and come back: by two tiny computations for each list of arrays.

One has the arrays as its arguments, the other as its results. The library runs neither: it stores the arguments of the
first under numbers, and returns the arrays with given numbers as the results of the second. So this needs no private
part of JAX to make an array, each way costs one ordinary dispatch, and nothing waits for the data.
"""

from __future__ import annotations

import concurrent.futures
import ctypes
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.experimental.layout import Format, Layout
from jax.sharding import Sharding

from pathways import _native
from pathways._errors import PathwaysError

CACHED = 1024  # number of tiny computations of either kind that are cached
WIDE = ("int64", "uint64", "float64", "complex128")  # dtypes that JAX makes narrower where jax_enable_x64 is off


@functools.cache
def library() -> ctypes.CDLL:
    """Returns the library, with the functions that arrays leave and come back by."""
    loaded, size = _native.load(), ctypes.c_size_t
    numbers = ctypes.POINTER(ctypes.c_uint64)
    _native.declare(
        loaded,
        ("pathways_exported", size, [numbers, size]),
        ("pathways_import", None, [numbers, size]),
        ("pathways_release", None, [numbers, size]),
    )
    return loaded


@dataclass(frozen=True)
class Array:
    """Describes an array, for the computations by which it leaves JAX and comes back."""

    shape: tuple[int, ...]
    dtype: Any
    weak: bool
    sharding: Sharding
    committed: bool = True

    @property
    def place(self) -> tuple[Any, ...]:
        """Arrays with the same place leave and come back together."""
        return (*_devices(self.sharding, self.shape), self.committed, self.sharding.memory_kind)


def as_wide(dtype: np.dtype) -> Any:
    """Returns a context in which JAX makes arrays of exactly this dtype, whatever jax_enable_x64 is outside."""
    return jax.enable_x64(dtype.name in WIDE)


def array_of(x: jax.Array) -> Array:
    return Array(x.shape, x.dtype, x.weak_type, x.sharding, x.committed)


@functools.lru_cache(CACHED)
def _devices(sharding: Sharding, shape: tuple[int, ...]) -> tuple[jax.Device, ...]:
    return tuple(sharding.devices_indices_map(shape))


def unbound(call: Callable[[], Any]) -> Any:
    """Makes a call that JAX does not restrict to the devices of the mesh set by jax.set_mesh().

    Such a mesh belongs to the calling thread, and cannot be removed while JAX traces.
    """
    return call() if jax.sharding.get_abstract_mesh().empty else apart(call)


def apart(call: Callable[[], Any]) -> Any:
    """Makes a call in a thread of its own, where JAX traces nothing, has no mesh, and evaluates nothing early."""
    x64 = jax.config.jax_enable_x64  # may also belong to the calling thread

    def with_types() -> Any:
        with jax.enable_x64(x64):
            return call()

    with concurrent.futures.ThreadPoolExecutor(1, "pathways-reshard") as thread:
        return thread.submit(with_types).result()


def at_once(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a function of arrays for calls that may come while JAX traces something else."""

    def call(*xs):
        with jax.ensure_compile_time_eval():
            return unbound(lambda: function(*xs))

    return call


def in_rows(x: jax.Array) -> jax.Array:
    """Returns the array with a row-major layout: on a cluster, only such arrays are copied from device to device."""
    rows = Layout(tuple(range(x.ndim)))
    layout = x.format.layout
    if layout is None or layout.major_to_minor == rows.major_to_minor:
        return x
    return jax.device_put(x, Format(rows, x.sharding))


def _compiled(function: Callable[..., Any], arrays: tuple[Array, ...], *arguments: Any, **options: Any) -> Any:
    """Compiles a function of such arrays for the devices of its arguments or options, or for any single device."""
    place = arrays[0].place
    widest = max((a.dtype for a in arrays), key=lambda dtype: dtype.name in WIDE)

    def compile_it() -> Any:
        with as_wide(widest):
            if place[-2]:
                return jax.jit(function, **options).lower(*arguments).compile()
            with jax.default_device(place[0]):  # its results are not committed to it
                return jax.jit(function, keep_unused=True).lower(*arguments).compile()

    # Where JAX evaluates early (at_once), arrays without operands would become constants, as large as they are.
    return apart(compile_it)


@functools.lru_cache(CACHED)
def exporting(arrays: tuple[Array, ...]) -> Callable[..., None]:
    """Returns the function that exports such arrays from JAX."""

    def __pathways_export(*xs):  # the library recognizes this name
        del xs
        return ()

    avals = [
        jax.ShapeDtypeStruct(a.shape, a.dtype, weak_type=a.weak, sharding=a.sharding if a.committed else None)
        for a in arrays
    ]
    compiled = _compiled(__pathways_export, arrays, *avals, keep_unused=True)
    any_layout = at_once(jax.jit(__pathways_export, keep_unused=True))

    def take(*xs):
        try:
            compiled(*xs)
        except ValueError:  # an array has a non-default layout, or JAX believes so of one narrower than a byte
            any_layout(*map(in_rows, xs))

    return take


def export(take: Callable[..., None], arrays: list[jax.Array], numbers: Any) -> None:
    """Exports arrays from JAX to the library, and stores the numbers under which it has them."""
    exported = library().pathways_exported
    try:
        take(*arrays)
        n = exported(numbers, len(arrays))
    except BaseException:
        exported(numbers, 0)  # Ctrl-C may have interrupted the call before it: its arrays are not needed
        raise
    if n != len(arrays):
        raise PathwaysError("INTERNAL", "JAX did not export an array: it passed it to no device of Pathways")


@functools.lru_cache(CACHED)
def importing(arrays: tuple[Array, ...]) -> Callable[[], Sequence[jax.Array]]:
    """Returns the function that returns such arrays, whose numbers the library was told last."""

    def __pathways_import():
        return tuple(map(_zeros, arrays))

    return _compiled(__pathways_import, arrays, out_shardings=tuple(a.sharding for a in arrays))


def _zeros(a: Array) -> jax.Array:
    # A Python number has no dtype, so the result is weakly typed.
    zero = {"b": False, "f": 0.0, "i": 0, "c": 0j}[a.dtype.kind] if a.weak else np.zeros((), a.dtype)
    with as_wide(a.dtype):
        return jax.lax.broadcast(zero, a.shape)


def zeros(a: Array) -> Callable[[], jax.Array]:
    """Returns a function that returns such an array of zeros."""

    def pathways_zeros():
        return _zeros(a)

    return _compiled(pathways_zeros, (a,), out_shardings=a.sharding)


def forget() -> None:
    """Drops cached computations for devices that no longer exist."""
    for cache in (_devices, exporting, importing):
        cache.cache_clear()
