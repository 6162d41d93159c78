"""Moves arrays from any sharding on any devices to any other, never through this process.

An array leaves JAX, the library moves the regions of its shards, and the new array comes back (_passage.py). Nothing
waits for the data.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, Sharding, SingleDeviceSharding

from pathways import _native, _passage, _private
from pathways._errors import invalid_argument

CACHED = 1024  # number of routes between two shardings that are cached


# --- made once per route ---


@functools.cache
def _library() -> ctypes.CDLL:
    library = _passage.library()
    numbers, number, size = ctypes.POINTER(ctypes.c_int64), ctypes.c_uint64, ctypes.c_size_t
    handles = ctypes.POINTER(ctypes.c_uint64)
    _native.declare(
        library,
        (
            "pathways_plan",
            ctypes.c_void_p,
            [size, numbers, size, numbers, size, numbers, ctypes.c_char_p, handles],
        ),
        ("pathways_plan_free", None, [number]),
        ("pathways_reshard", ctypes.c_void_p, [number, number, handles]),
    )
    return library


class _Plan:
    """The library's plan for one shape and pair of shardings."""

    def __init__(self, shape: tuple[int, ...], source: Sharding, target: Sharding):
        dims = np.array(shape, np.int64)
        lists = [_regions(shape, sharding) for sharding in (source, target)]
        number = ctypes.c_uint64()
        pointers = [array.ctypes.data_as(ctypes.POINTER(ctypes.c_int64)) for array in (dims, *lists)]
        kind = (target.memory_kind or "").encode()
        library = _library()
        refusal = library.pathways_plan(
            len(shape), pointers[0], len(lists[0]), pointers[1], len(lists[1]), pointers[2], kind, number
        )
        _native.check(refusal)
        self.number, self._free = number.value, library.pathways_plan_free

    def __del__(self):
        if hasattr(self, "number"):
            self._free(self.number)


def _regions(shape: tuple[int, ...], sharding: Sharding) -> np.ndarray:
    """Returns one row per device: its ID, the start of its shard, and the shard's size."""
    rows = []
    for device, index in sharding.devices_indices_map(shape).items():
        bounds = [s.indices(n)[:2] for s, n in zip(index, shape, strict=True)]
        rows.append([device.id, *(a for a, _ in bounds), *(b - a for a, b in bounds)])
    return np.array(rows, np.int64)


def _jitted(name: str, function: Callable[[Any], Any], to: Sharding) -> Callable[..., Any]:
    """Compiles a function of our own under a name that says in errors, events and profiles what it is for."""
    function.__name__ = function.__qualname__ = name
    return _passage.at_once(jax.jit(function, out_shardings=to))


def _ours(sharding: Sharding) -> bool:
    return all("Open Pathways" in device.client.platform_version for device in sharding.device_set)


def _crosses(source: Sharding, target: Sharding) -> bool:
    """Returns whether the devices are of two platforms, and so of two clients of JAX."""
    return next(iter(source.device_set)).client is not next(iter(target.device_set)).client


def _connected(sharding: Sharding) -> bool:
    """Returns whether the devices have an interconnect, so that a computation moves arrays between them best.

    CPU devices have none, and a computation would only add the cost of its collectives.
    """
    return next(iter(sharding.device_set)).platform != "cpu"


@functools.lru_cache(CACHED)
def _route(
    shape: tuple[int, ...], dtype: np.dtype, weak: bool, source: Sharding, target: Sharding
) -> Callable[[jax.Array], jax.Array] | None:
    """Returns a function that moves such arrays from one sharding to another; None if the library does not do that."""
    if not (_ours(source) and _ours(target)):
        return None
    before, after = source.devices_indices_map(shape), target.devices_indices_map(shape)
    if list(before) == list(after) and _connected(target):
        return _jitted("reshard", lambda x: x, target)
    if 0 in shape:  # XLA does not divide an array without elements
        if weak:  # NumPy's arrays are not weakly typed
            make = _passage.zeros(_passage.Array(shape, dtype, weak, target))
            return lambda x: make()
        return lambda x: _empty(shape, dtype, target)
    if len(before) == len(after) == 1 and not _crosses(source, target):
        return lambda x: jax.device_put(_passage.in_rows(x), target)  # JAX copies it from device to device
    if carrier := wide(dtype):
        widen = _jitted("reshard_widen", lambda x: _cast(x, carrier), source)
        narrow = _jitted("reshard_narrow", lambda x: _cast(x, dtype), target)
        middle = _route(shape, np.dtype(carrier), False, source, target)
        return lambda x: narrow(middle(widen(x)))
    take = _passage.exporting((_passage.Array(shape, dtype, weak, source),))
    give = _passage.importing((_passage.Array(shape, dtype, weak, target),))
    return functools.partial(_move, take, _Plan(shape, source, target), give)


def _empty(shape: tuple[int, ...], dtype: np.dtype, sharding: Sharding) -> jax.Array:
    with _passage.as_wide(dtype):
        return jax.device_put(np.zeros(shape, dtype), sharding)


def wide(dtype: np.dtype) -> type | None:
    """Returns the type in which elements narrower than a byte move; None for others."""
    name = dtype.name
    if name in ("int2", "int4"):
        return np.int8
    return np.uint8 if name in ("uint2", "uint4", "float4_e2m1fn") else None


def _cast(x: jax.Array, dtype: Any) -> jax.Array:
    """Converts between a narrow type and the bytes in which it moves."""
    if x.dtype == "float4_e2m1fn":
        x = jax.lax.bitcast_convert_type(x, "uint4")
    if dtype == "float4_e2m1fn":
        return jax.lax.bitcast_convert_type(jax.lax.convert_element_type(x, "uint4"), dtype)
    return jax.lax.convert_element_type(x, dtype)


def forget() -> None:
    """Drops cached routes for devices that no longer exist."""
    _route.cache_clear()
    _calls.cache_clear()
    _passage.forget()


# --- moving ---

_local = threading.local()


def _move(take: Any, plan: _Plan, give: Any, x: jax.Array) -> jax.Array:
    library = _library()
    try:
        number = _local.number  # room of this thread for one number
    except AttributeError:
        number = _local.number = (ctypes.c_uint64 * 1)()
    _passage.export(take, [x], number)
    exported = (ctypes.c_uint64 * 1)(number[0])
    try:
        refusal = library.pathways_reshard(exported[0], plan.number, number)
    finally:
        library.pathways_release(exported, 1)
    _native.check(refusal)
    library.pathways_import(number, 1)
    return give()[0]


def way(x: Any, target: Any) -> Callable[[jax.Array], jax.Array]:
    """Returns the function that moves an array to a sharding or a device, or raises why it cannot move."""
    if isinstance(target, jax.Device):
        target = SingleDeviceSharding(target)
    if not isinstance(target, Sharding):
        raise invalid_argument(f"cannot move an array to {target!r}; expected a Sharding or a Device")
    if not isinstance(x, jax.Array):
        raise invalid_argument(f"reshard moves JAX arrays, got {type(x)}; make one with jax.device_put()")
    if isinstance(x, jax.core.Tracer):
        return lambda x: jax.lax.with_sharding_constraint(x, target)  # becomes part of the traced computation
    if jax.dtypes.issubdtype(x.dtype, jax.dtypes.extended):
        return lambda x: jax.device_put(x, target)  # handles such elements itself
    if x.is_deleted():
        raise invalid_argument(f"the array {x.aval.str_short()} was deleted or donated before")
    if isinstance(target, NamedSharding) and len(target.spec) > x.ndim:
        raise ValueError(
            f"the array {x.aval.str_short()} has {x.ndim} dimensions, and {target.spec} names {len(target.spec)}; "
            f"expected a PartitionSpec of at most {x.ndim}"
        )
    if x.sharding.is_equivalent_to(target, x.ndim):
        return lambda x: x if x.committed else jax.device_put(x, target)
    route = _route(x.shape, x.dtype, x.aval.weak_type, x.sharding, target)
    if route is None:
        raise invalid_argument(
            f"reshard moves arrays between devices of Pathways, and got one from {x.sharding} to {target}; use "
            "jax.device_put() where others take part"
        )
    return route


def is_planned(way: Callable[[jax.Array], jax.Array]) -> bool:
    """Returns whether arrays move so by a plan of the library."""
    return isinstance(way, functools.partial) and way.func is _move


def reshard(x: Any, target: Any) -> jax.Array:
    return way(x, target)(x)


@dataclass(frozen=True, slots=True)
class _Later:
    """Stands in the list of a call's results for an array that moves together with others of the call."""

    x: jax.Array
    way: Callable[[jax.Array], jax.Array]


def install() -> None:
    """Makes JAX move arrays through the library wherever it would read them on the host to change their sharding.

    JAX does so in one function, which device_put() uses, and calls whose arguments need another sharding. It calls that
    once per array; those of one call move together. If a version of JAX lacks that function, device_put() is as slow as
    in stock JAX, and reshard() is not.
    """

    def one(stock):
        def moved(x, devices, indices, sharding):
            route = _route(x.shape, x.dtype, x.aval.weak_type, x.sharding, sharding)
            if route is None:
                return stock(x, devices, indices, sharding)
            return _Later(x, route) if getattr(_local, "several", False) else route(x)

        return moved

    def call(stock):
        def moved(xs, shardings, *rest):
            before = getattr(_local, "several", False)  # of a call that this one is a part of
            _local.several = len(xs) > 1
            away = _away(xs, shardings, *rest) if len(xs) > 1 else {}
            stays = [i for i in range(len(xs)) if i not in away]
            made = [_Later(x, away.get(i)) for i, x in enumerate(xs)]
            try:
                for i, x in zip(stays, stock(*([of[i] for i in stays] for of in (xs, shardings, *rest))), strict=True):
                    made[i] = x
            finally:
                _local.several = before
            later = [i for i, x in enumerate(made) if isinstance(x, _Later)]
            if later:
                moves = [(made[i].way, made[i].x) for i in later]
                for i, x in zip(later, _move_all(moves, again=bool(away)), strict=True):
                    made[i] = x
            return made

        return moved

    _private.replace_moves(one, call)


def _away(xs: Sequence[jax.Array], shardings: Sequence[Sharding], layouts: Any, copies: Any) -> dict[int, Any]:
    """Returns the ways of arrays that a call moves to other devices and has moved there before, by place in the call.

    JAX copies those that are cut the same way there shard by shard. It does so the first time, since to make a way
    takes longer.
    """
    kinds = {
        i: (x.shape, x.dtype, x.aval.weak_type, x.sharding, to)
        for i, (x, to, layout, copy) in enumerate(zip(xs, shardings, layouts, copies, strict=True))
        if layout is None
        and copy.name != "DONATE_INPUT"
        and x.sharding.num_devices > 1
        and x.sharding.device_set.isdisjoint(to.device_set)
        and not x.is_deleted()
    }
    if len(kinds) < 2 or not next(_calls(tuple(kinds.values()))):
        return {}
    ways = {i: _route(*kind) for i, kind in kinds.items()}
    return {i: way for i, way in ways.items() if way is not None}


@functools.lru_cache(32)
def _calls(kinds: tuple[Any, ...]) -> Iterator[int]:
    """Counts calls that move such arrays to other devices."""
    return itertools.count()


def _move_all(
    moves: Sequence[tuple[Callable[[jax.Array], jax.Array], jax.Array]], again: bool = False
) -> Sequence[jax.Array]:
    """Moves the arrays of a call, each in its way. again: such a call has moved them before."""
    if len(moves) < 2:
        return [way(x) for way, x in moves]
    from pathways import _together  # slow to import, and may not be needed

    return _together.move(moves, at_first=again)


def cross() -> None:
    """Makes JAX move arrays through the library from the devices of one platform to those of another.

    JAX itself would read them on the host: its clients know nothing of each other.
    """

    def route(x, sharding):
        """Returns the way of an array to the devices of a sharding if these are of another platform."""
        if not isinstance(x, jax.Array) or not _crosses(x.sharding, sharding):
            return None
        return _route(x.shape, x.dtype, x.aval.weak_type, x.sharding, sharding)

    def over(xs, shardings):
        """Returns arrays, those that come from another platform on the devices of their shardings."""
        ways = list(map(route, xs, shardings))
        made = iter(_move_all([(way, x) for way, x in zip(ways, xs, strict=True) if way is not None]))
        return [x if way is None else next(made) for way, x in zip(ways, xs, strict=True)]

    def shard_args(stock):
        return lambda xs, shardings, *rest: stock(over(xs, shardings), shardings, *rest)

    def batched_put(stock):
        def put(aval, sharding, xs, devices, *rest, **named):
            xs = over(xs, list(map(SingleDeviceSharding, devices)))
            return stock(aval, sharding, xs, devices, *rest, **named)

        return put

    def is_slow(args, shardings):
        """Returns whether an array that was never placed follows others to another platform, which C++ would do by
        reading it here."""
        arrays = [x for x in args if isinstance(x, jax.Array) and not isinstance(x, jax.core.Tracer)]
        return any(_crosses(x.sharding, to) for to in shardings[:1] for x in arrays)

    _private.replace_puts(shard_args, batched_put, is_slow)
