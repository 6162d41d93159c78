"""Conversion between arrays and Arrow data, by the Arrow C data interface, which needs no Arrow library.

Bytes are shared if possible. Incoming data is wrapped by NumPy in place and passed to JAX as a NumPy array; on the
host, the device uses the same bytes if they are aligned. Outgoing data is the array that `numpy.asarray` returns. Each
side keeps the other's memory alive until it has finished with it.

There can be many small arrays, so each direction is one call of the library, which reads, checks and makes Arrow's
structs (capi/public/arrow_numpy.c). This module only converts capsules to arrays and arrays to capsules.
"""

from __future__ import annotations

import collections
import ctypes
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Sharding

from pathways import _native, _private
from pathways._ahead import Ahead
from pathways._errors import CODES, PathwaysError, failed_precondition, invalid_argument

_direct = _private.device_put()
DTYPES = frozenset(map(np.dtype, "?bBhHiIlLefd"))  # those that Arrow has


class Schema(ctypes.Structure):
    """struct ArrowSchema."""


class Array(ctypes.Structure):
    """struct ArrowArray."""


class Stream(ctypes.Structure):
    """struct ArrowArrayStream."""


Schema._fields_ = [
    ("format", ctypes.c_char_p),
    ("name", ctypes.c_char_p),
    ("metadata", ctypes.c_void_p),
    ("flags", ctypes.c_int64),
    ("n_children", ctypes.c_int64),
    ("children", ctypes.POINTER(ctypes.POINTER(Schema))),
    ("dictionary", ctypes.POINTER(Schema)),
    ("release", ctypes.c_void_p),
    ("private_data", ctypes.c_void_p),
]
Array._fields_ = [
    ("length", ctypes.c_int64),
    ("null_count", ctypes.c_int64),
    ("offset", ctypes.c_int64),
    ("n_buffers", ctypes.c_int64),
    ("n_children", ctypes.c_int64),
    ("buffers", ctypes.POINTER(ctypes.c_void_p)),
    ("children", ctypes.POINTER(ctypes.POINTER(Array))),
    ("dictionary", ctypes.POINTER(Array)),
    ("release", ctypes.c_void_p),
    ("private_data", ctypes.c_void_p),
]
Stream._fields_ = [
    ("get_schema", ctypes.c_void_p),
    ("get_next", ctypes.c_void_p),
    ("get_last_error", ctypes.c_void_p),
    ("release", ctypes.c_void_p),
    ("private_data", ctypes.c_void_p),
]


class Column(ctypes.Structure):
    """The library's description of a column: see capi/public/arrow_numpy.c."""

    _fields_ = [("tensor", ctypes.c_void_p), ("name", ctypes.c_char_p), ("converted", ctypes.c_int64)]


class Taken(ctypes.Structure):
    """A column, or, if count is not -1, a list of columns."""

    _fields_ = [("column", Column), ("list", ctypes.POINTER(Column)), ("count", ctypes.c_int64)]


RELEASE = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
GET = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
LAST_ERROR = ctypes.CFUNCTYPE(ctypes.c_char_p, ctypes.c_void_p)

# Separate objects, so that declaring them does not affect other users of ctypes.pythonapi.
_python = ctypes.PyDLL(None)
_pointer = _python.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
_capsule = _python.PyCapsule_New
_capsule.restype, _capsule.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
_valid = _python.PyCapsule_IsValid
_valid.restype, _valid.argtypes = ctypes.c_int, [ctypes.py_object, ctypes.c_char_p]

_library = _native.load()
_with_gil = ctypes.PyDLL(_library._name)
_take, _drop, _show_batch, lent = (
    _library.pathways_numpy_take,
    _library.pathways_numpy_drop,
    _with_gil.pathways_numpy_show_batch,
    _with_gil.pathways_numpy_lent,
)
_take.restype = ctypes.c_uint64
_take.argtypes = [ctypes.c_void_p] * 3
_drop.restype, _drop.argtypes = None, [ctypes.c_void_p]
_show_batch.restype, _show_batch.argtypes = ctypes.py_object, [ctypes.py_object, ctypes.py_object, ctypes.c_int64]
lent.restype, lent.argtypes = ctypes.c_int64, []
_code, _message = _library.pathways_error_code, _library.pathways_error_message
_code.restype, _code.argtypes = ctypes.c_int, [ctypes.c_uint64]
_message.restype, _message.argtypes = ctypes.c_char_p, [ctypes.c_uint64]
_forget = _library.pathways_drop
_forget.restype, _forget.argtypes = ctypes.c_uint64, [ctypes.c_uint64]
if not _with_gil.pathways_numpy_python():
    raise failed_precondition("this Python lacks functions of its stable interface, which Arrow needs")
_with_gil.pathways_numpy_lend.restype = ctypes.py_object
_lend = _with_gil.pathways_numpy_lend()


def _refuse(what: str, why: str) -> PathwaysError:
    return invalid_argument(f"{what} {why}")


# --- in ---


class _Owned:
    """A C struct that this object owns and releases."""

    def __init__(self, kind: type):
        self.struct = kind()

    def __del__(self):
        if self.struct.release:
            RELEASE(self.struct.release)(ctypes.addressof(self.struct))


def _address(capsule: object, name: bytes) -> int:
    try:
        return _pointer(capsule, name)
    except ValueError as err:
        raise _refuse("from_arrow:", f"expected a capsule named {name.decode()}: {err}") from None


class _Tensor:
    """The protocol of numpy.from_dlpack."""

    __slots__ = ("capsule",)

    def __dlpack__(self, **_: Any) -> object:
        return self.capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0


def _numpy(tensor: int) -> np.ndarray:
    """Returns the elements of a tensor of the library's, which they keep alive."""
    asked = _Tensor()
    asked.capsule = _capsule(tensor, b"dltensor", None)
    try:
        return np.from_dlpack(asked)
    finally:
        if _valid(asked.capsule, b"dltensor"):  # it was not consumed
            _drop(tensor)


def _read(schema: int, array: int) -> tuple[np.ndarray, bool] | dict[str, tuple[np.ndarray, bool]]:
    """Takes ownership of Arrow data; returns its elements, and whether they were converted (by name for a batch)."""
    taken = Taken()
    refused = _take(schema, array, ctypes.byref(taken))
    if refused:
        code, text = CODES[_code(refused) - 1], _message(refused).decode(errors="replace")
        _forget(refused)
        raise PathwaysError(code, text)
    if taken.count < 0:
        column = taken.column
        return _numpy(column.tensor), bool(column.converted)
    columns = [
        (c.tensor, (c.name or b"").decode(errors="replace"), bool(c.converted)) for c in taken.list[: taken.count]
    ][::-1]
    _library.pathways_free(taken.list)
    hosts = {}
    try:
        while columns:
            tensor, name, converted = columns.pop()
            host = _numpy(tensor)
            if name in hosts:
                raise _refuse(f"column {name!r}", "appears twice; rename one")
            hosts[name] = host, converted
    finally:
        for tensor, _, _ in columns:
            _drop(tensor)
    return hosts


class _Way(NamedTuple):
    """The arguments of _direct.put for an array."""

    shaped: Any
    sharding: Sharding
    parts: list[Any]  # of the array, one per device
    devices: list[jax.Device]


@functools.lru_cache(256)
def _way(where: jax.Device | Sharding, shape: tuple[int, ...], dtype: np.dtype) -> _Way | None:
    """Returns the arguments, or None if jax.device_put is needed, or has a better error message."""
    sharding = jax.sharding.SingleDeviceSharding(where) if isinstance(where, jax.Device) else where
    if not sharding.is_fully_addressable or sharding.memory_kind not in (None, "device"):
        return None
    try:
        parts = sharding.addressable_devices_indices_map(shape)
        shaped = _direct.shaped(shape, dtype, sharding)
    except Exception:
        return None
    return _Way(shaped, sharding, list(parts.values()), list(parts))


def forget() -> None:
    """Drops cached values for devices that no longer exist."""
    _way.cache_clear()


def _device_put(host: np.ndarray, sharding: Any) -> jax.Array:
    """Does what jax.device_put does, by a shorter path unless the context requires the full one."""
    where = sharding
    if sharding is None:
        where = jax.config.jax_default_device or jax.local_devices()[0]
    if (
        _direct is None
        or not isinstance(where, (jax.Device, Sharding))
        or (host.dtype.itemsize == 8 and not jax.config.jax_enable_x64)
        or not jax.sharding.get_abstract_mesh().empty
        or (way := _way(where, host.shape, host.dtype)) is None
    ):
        return jax.device_put(host, sharding)
    hosts = [host[part] for part in way.parts] if len(way.parts) > 1 else [host]
    return _direct.put(way.shaped, way.sharding, hosts, way.devices, sharding is not None)


def _put(host: np.ndarray, converted: bool, what: str, sharding: Any, zero_copy: bool | None) -> jax.Array:
    dense = host.flags.c_contiguous
    if zero_copy is False or not dense:
        host = np.array(host, order="C")
    out = _device_put(host, sharding)
    why = _copied(host, out, converted or not dense) if zero_copy else ""
    if why:
        raise failed_precondition(f"{what} cannot be used without a copy: {why}")
    return out


def _copied(host: np.ndarray, out: jax.Array, converted: bool) -> str:
    """Returns why an array does not share its host memory; "" if it does."""
    if host.size == 0:
        return ""
    if converted:
        return "its bits, permuted dimensions or unaligned bytes must be converted"
    if host.dtype != out.dtype:
        return f"{host.dtype} becomes {out.dtype}; set jax_enable_x64 to keep it"
    for shard in out.addressable_shards:
        part = host[shard.index]
        try:
            same = part.flags.c_contiguous and shard.data.unsafe_buffer_pointer() == part.ctypes.data
        except jax.errors.JaxRuntimeError:
            return f"the memory of {shard.device} is not that of this process"
        if not same:
            return f"its bytes on {shard.device} are not one block that begins at a multiple of 64"
    return ""


def _import(schema: int, array: int, sharding: Any, zero_copy: bool | None) -> Any:
    read = _read(schema, array)
    if isinstance(read, tuple):
        return _put(*read, "the Arrow data", sharding, zero_copy)
    of = (lambda name: sharding[name]) if isinstance(sharding, Mapping) else (lambda name: sharding)
    return {name: _put(*column, f"column {name!r}", of(name), zero_copy) for name, column in read.items()}


def from_arrow(x: Any, sharding: Any = None, *, zero_copy: bool | None = None, prefetch: int = 2) -> Any:
    if sharding is not None and not isinstance(sharding, (jax.Device, Sharding, Mapping)):
        raise _refuse("from_arrow:", f"sharding is {sharding!r}; expected a sharding, a device or None")
    if not isinstance(prefetch, int) or prefetch < 0:
        raise _refuse(
            "from_arrow:", f"prefetch is {prefetch!r}; expected the number of batches to read ahead, 0 for none"
        )
    if hasattr(x, "__arrow_c_array__"):
        schema, array = x.__arrow_c_array__()
        return _import(_address(schema, b"arrow_schema"), _address(array, b"arrow_array"), sharding, zero_copy)
    if hasattr(x, "__arrow_c_stream__"):
        return _stream(x.__arrow_c_stream__(), sharding, zero_copy, prefetch)
    raise _refuse(
        "from_arrow:", f"{type(x).__name__} is not Arrow data: it has neither __arrow_c_array__ nor __arrow_c_stream__"
    )


def _stream(capsule: object, sharding: Any, zero_copy: bool | None, prefetch: int) -> Iterator[Any]:
    owner, source = _Owned(Stream), Stream.from_address(_address(capsule, b"arrow_array_stream"))
    if not source.release:
        raise _refuse("from_arrow:", "the Arrow stream has been released, or was imported before; export it again")
    ctypes.memmove(ctypes.byref(owner.struct), ctypes.byref(source), ctypes.sizeof(Stream))
    source.release = None  # ours from here on

    def get(function: int, kind: type) -> _Owned:
        out, stream = _Owned(kind), owner.struct
        code = GET(function)(ctypes.addressof(stream), ctypes.addressof(out.struct))
        if code:
            text = LAST_ERROR(stream.get_last_error)(ctypes.addressof(stream)) if stream.get_last_error else None
            raise PathwaysError("UNKNOWN", f"the Arrow stream failed with errno {code}: {(text or b'').decode()}")
        return out

    schema = get(owner.struct.get_schema, Schema)

    def read() -> _Owned | None:
        array = get(owner.struct.get_next, Array)
        return array if array.struct.release else None

    def put(array: _Owned) -> Any:
        return _import(ctypes.addressof(schema.struct), ctypes.addressof(array.struct), sharding, zero_copy)

    return _put_ahead(read, prefetch, put) if prefetch else map(put, iter(read, None))


def _put_ahead(read: Callable[[], Any], most: int, put: Callable[[Any], Any]) -> Iterator[Any]:
    """Reads ahead, and copies the next item to the devices before it yields the current one, unless that would wait."""
    source = Ahead(read, most)  # inside the generator, so that its end stops the thread
    there: collections.deque[Any] = collections.deque()
    try:
        while True:
            if not there or (len(there) == 1 and source.ready()):
                item = next(source, None)
                if item is not None:
                    try:
                        there.append(item if isinstance(item, Exception) else put(item))
                    except Exception as err:
                        there.append(err)
                    continue
            if not there:
                return
            item = there.popleft()
            if isinstance(item, Exception):
                raise item
            yield item
            del item  # otherwise two items would be kept alive
    finally:
        source.stop()


# --- out ---


def _check(name: str, host: np.ndarray) -> np.ndarray:
    if host.dtype not in DTYPES:
        raise _refuse(
            f"to_arrow: {name or 'the array'}", f"has dtype {host.dtype}, which Arrow does not have; use DLPack"
        )
    if host.ndim == 0:
        raise _refuse(f"to_arrow: {name or 'the array'}", "is a scalar, which Arrow does not have; reshape it to (1,)")
    return host if host.flags.c_contiguous else np.ascontiguousarray(host)


class ArrowData:
    """Arrays as Arrow data, for `pyarrow.array(x)`, `pyarrow.record_batch(x)` and any other consumer."""

    def __init__(self, columns: Mapping[str, np.ndarray]):
        self._columns = columns

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        # The requested schema is a hint that may be ignored.
        hosts, names = tuple(self._columns.values()), tuple(name.encode() for name in self._columns)
        return _show_batch(hosts, names, len(hosts[0]) if hosts else 0)

    def __arrow_c_schema__(self) -> object:
        return self.__arrow_c_array__()[0]


def to_arrow(array: Any) -> ArrowData:
    if hasattr(array, "__array__") or not isinstance(array, Mapping):
        out = ArrowData({})
        # JAX's arrays in this process's memory, and NumPy's, export their memory. So would bytes, as numbers.
        shown = _lend(array) if hasattr(array, "__array__") else None
        out.__arrow_c_array__ = shown or _lend(_check("", np.asarray(array)))
        return out
    columns = {str(name): np.asarray(x) for name, x in array.items()}
    lengths = {len(x) if x.ndim else -1 for x in columns.values()}
    if len(lengths) > 1:
        raise _refuse("to_arrow:", f"the columns of a record batch have different lengths: {sorted(lengths)}")
    return ArrowData({name: _check(name, host) for name, host in columns.items()})
