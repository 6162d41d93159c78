"""Arrays from any sharding on any devices to any other, never through this process.

An array leaves JAX by a computation that takes it, and comes back by one that makes it. The library runs neither: it
holds what the first takes, has the boxes of its shards move, and gives the result for the second's. So no private part
of JAX is needed to make an array, each way costs one ordinary dispatch, and nothing waits for the data.
"""

from __future__ import annotations

import ctypes
import functools
import math
import threading
from typing import Any

import jax
import numpy as np
from jax.sharding import Sharding, SingleDeviceSharding

from pathways import _native
from pathways._errors import PathwaysError

NAME = "pathways"
CACHED = 1024  # pairs of shardings that are kept, with their programs


def __pathways_export(x):  # the library knows it by its name
    del x
    return ()


# --- what is made once ---


@functools.cache
def _library() -> ctypes.CDLL:
    library = _native.load()
    numbers, number, size = ctypes.POINTER(ctypes.c_int64), ctypes.c_uint64, ctypes.c_size_t
    handles = ctypes.POINTER(ctypes.c_uint64)
    for name, result, arguments in (
        ("pathways_exported", size, [handles, size]),
        ("pathways_import", None, [handles, size]),
        ("pathways_release", None, [handles, size]),
        (
            "pathways_plan",
            ctypes.c_void_p,
            [size, numbers, size, numbers, size, numbers, ctypes.c_char_p, handles],
        ),
        ("pathways_plan_free", None, [number]),
        ("pathways_reshard", ctypes.c_void_p, [number, number, handles]),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def _check(pointer: int | None) -> None:
    if pointer:
        raise PathwaysError.parse(_native._text(_library(), pointer) or "")


class _Plan:
    """The library's plan for one shape and pair of shardings."""

    def __init__(self, shape: tuple[int, ...], source: Sharding, target: Sharding):
        dims = np.array(shape, np.int64)
        lists = [_boxes(shape, sharding) for sharding in (source, target)]
        number = ctypes.c_uint64()
        pointers = [array.ctypes.data_as(ctypes.POINTER(ctypes.c_int64)) for array in (dims, *lists)]
        kind = (target.memory_kind or "").encode()
        _check(
            _library().pathways_plan(
                len(shape), pointers[0], len(lists[0]), pointers[1], len(lists[1]), pointers[2], kind, number
            )
        )
        self.number = number.value

    def __del__(self):
        if hasattr(self, "number"):
            _library().pathways_plan_free(self.number)


def _boxes(shape: tuple[int, ...], sharding: Sharding) -> np.ndarray:
    """One row a device: its ID, where its shard starts, and the shard's size."""
    rows = []
    for device, index in sharding.devices_indices_map(shape).items():
        bounds = [s.indices(n)[:2] for s, n in zip(index, shape, strict=True)]
        rows.append([device.id, *(a for a, _ in bounds), *(b - a for a, b in bounds)])
    return np.array(rows, np.int64)


@functools.lru_cache(CACHED)
def _plan(shape: tuple[int, ...], source: Sharding, target: Sharding) -> _Plan:
    return _Plan(shape, source, target)


@functools.lru_cache(CACHED)
def _export(shape: tuple[int, ...], dtype: np.dtype, weak: bool, sharding: Sharding) -> Any:
    aval = jax.ShapeDtypeStruct(shape, dtype, sharding=sharding, weak_type=weak)
    return jax.jit(__pathways_export, keep_unused=True).lower(aval).compile()


@functools.lru_cache(CACHED)
def _import(shape: tuple[int, ...], dtype: np.dtype, weak: bool, sharding: Sharding) -> Any:
    def __pathways_import():
        # Without a type of its own a number of Python stays weakly typed.
        zero = {"f": 0.0, "i": 0, "c": 0j}[dtype.kind] if weak else np.zeros((), dtype)
        return jax.lax.broadcast(zero, shape)

    return jax.jit(__pathways_import, out_shardings=sharding).lower().compile()


@functools.lru_cache(CACHED)
def _identity(sharding: Sharding) -> Any:
    return jax.jit(lambda x: x, out_shardings=sharding)


@functools.lru_cache(CACHED)
def _convert(dtype: np.dtype, cast: bool) -> Any:
    convert = jax.lax.convert_element_type if cast else jax.lax.bitcast_convert_type
    return jax.jit(lambda x: convert(x, dtype))


def forget() -> None:
    """Lets go of all that was made for devices that are no more."""
    for cache in (_plan, _export, _import, _identity, _convert):
        cache.cache_clear()


# --- moving ---

_local = threading.local()


def _numbers() -> Any:
    """Room of the calling thread for one number."""
    try:
        return _local.numbers
    except AttributeError:
        _local.numbers = (ctypes.c_uint64 * 1)()
        return _local.numbers


def move(x: jax.Array, target: Sharding) -> jax.Array:
    """Moves an array by the library."""
    shape, dtype, weak, source = x.shape, x.dtype, x.aval.weak_type, x.sharding
    library, numbers = _library(), _numbers()
    plan = _plan(shape, source, target)
    take, give = _export(shape, dtype, weak, source), _import(shape, dtype, weak, target)
    take(x)
    if library.pathways_exported(numbers, 1) != 1:
        raise PathwaysError("INTERNAL", "the array did not leave JAX; is it on a device of Pathways?")
    held = numbers[0]
    try:
        refusal = library.pathways_reshard(held, plan.number, numbers)
    finally:
        library.pathways_release((ctypes.c_uint64 * 1)(held), 1)
    _check(refusal)
    library.pathways_import(numbers, 1)
    return give()
