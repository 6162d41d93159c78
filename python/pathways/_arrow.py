"""Arrays from Arrow's memory and to it, by the Arrow C data interface, which needs no library of Arrow's.

Bytes are shared where that is possible. What comes in is looked at by NumPy where it lies, and JAX takes it as NumPy's
memory: on the host the device uses the same bytes, if they are aligned. What goes out is the array that
`numpy.asarray` sees. Either side keeps the other's memory until it is through with it.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import struct
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import Sharding

from pathways._errors import PathwaysError

TENSOR = "arrow.fixed_shape_tensor"
NAME, METADATA = b"ARROW:extension:name", b"ARROW:extension:metadata"
FORMATS = {
    **{"c": np.int8, "C": np.uint8, "s": np.int16, "S": np.uint16, "i": np.int32, "I": np.uint32},
    **{"l": np.int64, "L": np.uint64, "e": np.float16, "f": np.float32, "g": np.float64},
}
OF_DTYPE = {np.dtype(dtype): letter for letter, dtype in FORMATS.items()}
DEEPEST = 32  # fixed-size lists in each other
MOST = 1 << 20  # fields of a record batch, or bytes of a schema's metadata: beyond it, it is no schema


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

RELEASE = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
GET = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
LAST_ERROR = ctypes.CFUNCTYPE(ctypes.c_char_p, ctypes.c_void_p)

_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
_capsule = ctypes.pythonapi.PyCapsule_New
_capsule.restype, _capsule.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


def _refuse(what: str, why: str) -> PathwaysError:
    return PathwaysError("INVALID_ARGUMENT", f"{what} {why}")


# --- what is owned ---


class _Owned:
    """A C struct that was moved here; released when the last that needs it has gone."""

    def __init__(self, kind: type, capsule: object, name: bytes):
        try:
            source = _pointer(capsule, name)
        except ValueError as err:
            raise _refuse("from_arrow:", f"this is no capsule named {name.decode()}: {err}") from None
        self.struct = kind()
        ctypes.memmove(ctypes.byref(self.struct), source, ctypes.sizeof(kind))
        if not self.struct.release:
            raise _refuse("from_arrow:", "the Arrow data has been released, or was imported before; export it again")
        kind.from_address(source).release = None  # ours from here on

    @classmethod
    def new(cls, kind: type) -> _Owned:
        """An empty struct that somebody else is to fill."""
        self = cls.__new__(cls)
        self.struct = kind()
        return self

    def __del__(self):
        made = getattr(self, "struct", None)
        if made is not None and made.release:
            RELEASE(made.release)(ctypes.addressof(made))


class _Memory:
    """Elements that somebody else owns, for NumPy."""

    def __init__(self, address: int, dtype: np.dtype, count: int, owner: _Owned):
        self.owner = owner
        self.__array_interface__ = {"version": 3, "data": (address, True), "shape": (count,), "typestr": dtype.str}


# --- in ---


class _Source:
    """Where a column comes from: what holds its memory, and what errors call it."""

    def __init__(self, owner: _Owned, what: str):
        self.owner, self.what = owner, what
        self.converted = False  # the bytes are not Arrow's own any more


def _metadata(address: int | None, what: str) -> dict[bytes, bytes]:
    """Reads a schema's key-value pairs."""
    if not address:
        return {}
    at = 0

    def number() -> int:
        nonlocal at
        (n,) = struct.unpack("=i", ctypes.string_at(address + at, 4))
        at += 4
        if not 0 <= n <= MOST:
            raise _refuse(what, f"has metadata with a length of {n}, which is damaged")
        return n

    def text() -> bytes:
        nonlocal at
        n = number()
        at += n
        return ctypes.string_at(address + at - n, n)

    return {text(): text() for _ in range(number())}


def _shape_of_tensor(metadata: bytes, size: int, what: str) -> tuple[tuple[int, ...], tuple[int, ...] | None]:
    """Reads what arrow.fixed_shape_tensor says: the shape as it lies in memory, and how its dimensions are permuted."""
    try:
        told = json.loads(metadata)
        shape = tuple(told["shape"])
        order = told.get("permutation")
        fits = all(type(n) is int and 0 <= n < 1 << 62 for n in shape) and len(shape) <= DEEPEST
        product = 1
        for n in shape if fits else ():
            product *= n
        fits = fits and product == size and (order is None or sorted(order) == list(range(len(shape))))
    except (ValueError, TypeError, KeyError, AttributeError):
        fits = False
    if not fits:
        raise _refuse(what, f"is a {TENSOR} whose metadata {metadata[:200]!r} does not describe its {size} elements")
    return shape, None if order is None else tuple(order)


def _bits(address: int, start: int, count: int, owner: _Owned) -> np.ndarray:
    """Unpacks bits, lowest first."""
    first = start // 8
    taken = np.asarray(_Memory(address + first, np.dtype(np.uint8), (start + count + 7) // 8 - first, owner))
    return np.unpackbits(taken, bitorder="little")[start - 8 * first :][:count].view(np.bool_)


def _no_nulls(a: Array, start: int, count: int, source: _Source) -> None:
    if a.null_count == 0 or count == 0 or a.n_buffers == 0 or not a.buffers[0]:
        return
    nulls = count - int(np.count_nonzero(_bits(a.buffers[0], start, count, source.owner)))
    if nulls:
        raise _refuse(
            source.what, f"has {nulls} nulls, which arrays cannot hold; fill them (fill_null) or drop them first"
        )


def _read(s: Schema, a: Array, start: int, count: int, source: _Source, depth: int = 0) -> np.ndarray:
    """Gives elements of an Arrow array, where they lie if that is possible: [count, *shape of an element].

    Start counts from the beginning of the buffers; the array's own offset has been added.
    """
    owner, what = source.owner, source.what
    form = (s.format or b"").decode("latin1")
    if s.dictionary or a.dictionary:
        raise _refuse(what, "is dictionary-encoded; decode it first (dictionary_decode)")
    nested, primitive = form.startswith("+w:"), form in FORMATS or form == "b"
    if not nested and not primitive:
        raise _refuse(
            what,
            f"has the Arrow type {form!r}, which is no array of numbers; expected numbers, booleans or fixed-size lists"
            " of them (cast it first)",
        )
    buffers, children = (1, 1) if nested else (2, 0)
    if a.n_buffers != buffers or a.n_children != children or s.n_children != children:
        raise _refuse(
            what,
            f"of type {form!r} has {a.n_buffers} buffers and {a.n_children} children; expected {buffers}, {children}",
        )
    if not a.buffers or (nested and not (a.children and s.children and a.children[0] and s.children[0])):
        raise _refuse(what, "has no buffers or children where it says that they are")
    _no_nulls(a, start, count, source)
    if form == "b":
        source.converted = True
        return _bits(a.buffers[1], start, count, owner) if count else np.zeros(0, np.bool_)
    if primitive:
        dtype = np.dtype(FORMATS[form])
        if count == 0:
            return np.zeros(0, dtype)
        if not a.buffers[1]:
            raise _refuse(what, f"has {count} elements and no buffer")
        address = a.buffers[1] + start * dtype.itemsize
        if address % dtype.itemsize:  # Arrow allows it, NumPy copes, XLA does not
            source.converted = True
            return np.asarray(_Memory(address, np.dtype(np.uint8), count * dtype.itemsize, owner)).copy().view(dtype)
        return np.asarray(_Memory(address, dtype, count, owner))

    try:
        size = int(form[3:])
    except ValueError:
        size = -1
    if not 0 <= size < 1 << 62 or depth == DEEPEST:
        raise _refuse(what, f"has the type {form!r} of lists, or too many in each other")
    child_schema, child = s.children[0].contents, a.children[0].contents
    _sane(child, what)
    if (start + count) * size > child.length:
        raise _refuse(what, f"needs {(start + count) * size} elements of its lists, and they have {child.length}")
    inner = _read(child_schema, child, child.offset + start * size, count * size, source, depth + 1)
    metadata = _metadata(s.metadata, what)
    shape, order = (size,), None
    if metadata.get(NAME) == TENSOR.encode():
        shape, order = _shape_of_tensor(metadata.get(METADATA, b""), size, what)
    out = inner.reshape((count, *shape, *inner.shape[1:]))
    # The metadata's shape is that in memory, and order[i] the place there of dimension i.
    return out if order is None else out.transpose((0, *(1 + i for i in order), *range(1 + len(shape), out.ndim)))


def _sane(a: Array, what: str) -> None:
    if (
        min(a.length, a.offset, a.n_buffers, a.n_children) < 0
        or max(a.length, a.offset) >= 1 << 62
        or a.n_children > MOST
    ):
        raise _refuse(what, f"says that it has {a.length} elements from {a.offset} on and {a.n_children} children")


def _put(host: np.ndarray, sharding: Any, zero_copy: bool | None, source: _Source) -> jax.Array:
    source.converted |= not host.flags.c_contiguous
    if zero_copy is False or not host.flags.c_contiguous:
        host = np.array(host, order="C")
    out = jax.device_put(host, sharding)
    why = _copied(host, out, source) if zero_copy else ""
    if why:
        raise PathwaysError("FAILED_PRECONDITION", f"{source.what} cannot be used without a copy: {why}")
    return out


def _copied(host: np.ndarray, out: jax.Array, source: _Source) -> str:
    """Says why an array does not lie where its host memory does; "" where it does."""
    if host.size == 0:
        return ""
    if source.converted:
        return "its bits, permuted dimensions or bytes at an odd address have to be brought into another form"
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


def _import(s: Schema, owner: _Owned, sharding: Any, zero_copy: bool | None) -> Any:
    a = owner.struct
    _sane(a, "the Arrow array")
    if s.format != b"+s":
        source = _Source(owner, "the Arrow array")
        return _put(_read(s, a, a.offset, a.length, source), sharding, zero_copy, source)
    if s.n_children != a.n_children:
        raise _refuse("the record batch", f"has {s.n_children} columns in its schema and {a.n_children} in its data")
    if a.n_children and not (s.children and a.children):
        raise _refuse("the record batch", "has no columns where it says that they are")
    if a.n_buffers and a.buffers:
        _no_nulls(a, a.offset, a.length, _Source(owner, "the record batch"))
    hosts = {}
    for i in range(a.n_children):
        if not (s.children[i] and a.children[i]):
            raise _refuse("the record batch", f"has no column {i} where it says that it is")
        field, column = s.children[i].contents, a.children[i].contents
        name = (field.name or b"").decode(errors="replace")
        what = f"column {name!r}"
        if name in hosts:
            raise _refuse(what, "is there twice; rename one")
        _sane(column, what)
        if column.length < a.offset + a.length:
            raise _refuse(what, f"has {column.length} elements, and the record batch {a.offset + a.length}")
        source = _Source(owner, what)
        hosts[name] = _read(field, column, column.offset + a.offset, a.length, source), source
    of = (lambda name: sharding[name]) if isinstance(sharding, Mapping) else (lambda name: sharding)
    return {name: _put(host, of(name), zero_copy, source) for name, (host, source) in hosts.items()}


def from_arrow(x: Any, sharding: Any = None, *, zero_copy: bool | None = None) -> Any:
    if sharding is not None and not isinstance(sharding, (Sharding, jax.Device, Mapping)):
        raise _refuse("from_arrow:", f"sharding is {sharding!r}; expected a sharding, a device or None")
    if hasattr(x, "__arrow_c_array__"):
        schema, array = x.__arrow_c_array__()
        held = _Owned(Schema, schema, b"arrow_schema")
        return _import(held.struct, _Owned(Array, array, b"arrow_array"), sharding, zero_copy)
    if hasattr(x, "__arrow_c_stream__"):
        return _stream(_Owned(Stream, x.__arrow_c_stream__(), b"arrow_array_stream"), sharding, zero_copy)
    raise _refuse(
        "from_arrow:", f"{type(x).__name__} is no Arrow data: it has no __arrow_c_array__ or __arrow_c_stream__"
    )


def _stream(owner: _Owned, sharding: Any, zero_copy: bool | None) -> Iterator[Any]:
    def get(function: int, kind: type) -> _Owned:
        out, stream = _Owned.new(kind), owner.struct
        code = GET(function)(ctypes.addressof(stream), ctypes.addressof(out.struct))
        if code:
            text = LAST_ERROR(stream.get_last_error)(ctypes.addressof(stream)) if stream.get_last_error else None
            raise PathwaysError("UNKNOWN", f"the Arrow stream failed with errno {code}: {(text or b'').decode()}")
        return out

    held = get(owner.struct.get_schema, Schema)

    def batches() -> Iterator[Any]:
        ahead = None
        while True:
            array = get(owner.struct.get_next, Array)
            if not array.struct.release:  # the end
                break
            # The next batch is read and put while the one before is worked on.
            now, ahead = ahead, _import(held.struct, array, sharding, zero_copy)
            if now is not None:
                yield now
        if ahead is not None:
            yield ahead

    return batches()


# --- out ---

_kept: dict[int, Any] = {}  # what exported structs need, by their private_data
_numbers = itertools.count(1)


def _keep(made: Schema | Array, *what: Any) -> None:
    made.private_data = number = next(_numbers)
    _kept[number] = what


def _release(kind: type, address: int) -> None:
    made = kind.from_address(address)
    made.release = None
    for child in _kept.pop(made.private_data)[1]:
        if child.release:  # nobody has moved it elsewhere
            RELEASE(child.release)(ctypes.addressof(child))


def _destroy(kind: type, name: bytes):
    """The destructor of a capsule: releases what nobody took, and lets go of the struct's own memory."""

    def destroy(capsule: int) -> None:
        address = _raw_pointer(capsule, name)
        made = kind.from_address(address)
        if made.release:
            RELEASE(made.release)(address)
        _kept.pop(-address, None)

    return ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(destroy)


_raw_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
# What C calls lives as long as the process, whatever the interpreter takes apart at its end.
_callbacks = {
    Schema: (RELEASE(lambda address: _release(Schema, address)), _destroy(Schema, b"arrow_schema"), b"arrow_schema"),
    Array: (RELEASE(lambda address: _release(Array, address)), _destroy(Array, b"arrow_array"), b"arrow_array"),
}
for _callback in itertools.chain.from_iterable(_callbacks.values()):
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(_callback))


def _finish(made: Schema | Array, children: list, *keep: Any) -> Any:
    pointers = (ctypes.POINTER(type(made)) * len(children))(*(ctypes.pointer(c) for c in children))
    made.n_children = len(children)
    made.children = ctypes.cast(pointers, type(made.children)) if children else None
    made.release = ctypes.cast(_callbacks[type(made)][0], ctypes.c_void_p)
    _keep(made, pointers, children, *keep)
    return made


def _schema(form: str, name: str, children: list[Schema], metadata: dict[bytes, bytes] | None = None) -> Schema:
    texts = form.encode(), name.encode()
    made = Schema(format=texts[0], name=texts[1])
    packed = None
    if metadata:
        pairs = b"".join(struct.pack("=i", len(t)) + t for pair in metadata.items() for t in pair)
        packed = ctypes.create_string_buffer(struct.pack("=i", len(metadata)) + pairs)
        made.metadata = ctypes.addressof(packed)
    return _finish(made, children, texts, packed)


def _data(length: int, buffers: list[np.ndarray | None], children: list[Array], *keep: Any) -> Array:
    addresses = (ctypes.c_void_p * max(1, len(buffers)))(*(None if b is None else b.ctypes.data for b in buffers))
    made = Array(length=length, n_buffers=len(buffers))
    made.buffers = ctypes.cast(addresses, type(made.buffers))
    return _finish(made, children, addresses, buffers, *keep)


def _check(name: str, host: np.ndarray) -> None:
    if host.dtype != np.bool_ and host.dtype not in OF_DTYPE:
        raise _refuse(
            f"to_arrow: {name or 'the array'}", f"has dtype {host.dtype}, which Arrow does not have; use DLPack"
        )
    if host.ndim == 0:
        raise _refuse(f"to_arrow: {name or 'the array'}", "is a scalar, which Arrow does not have; reshape it to (1,)")


def _column(name: str, host: np.ndarray) -> tuple[Schema, Array]:
    form = "b" if host.dtype == np.bool_ else OF_DTYPE[host.dtype]

    def flat(name: str) -> tuple[Schema, Array]:
        bits = np.packbits(host.reshape(-1), bitorder="little") if form == "b" else np.ascontiguousarray(host)
        return _schema(form, name, []), _data(host.size, [None, bits], [], host)

    if host.ndim == 1:
        return flat(name)
    size = int(np.prod(host.shape[1:], dtype=np.int64))
    described = json.dumps({"shape": list(host.shape[1:])}).encode()
    inner_schema, inner = flat("item")
    metadata = {NAME: TENSOR.encode(), METADATA: described}
    return _schema(f"+w:{size}", name, [inner_schema], metadata), _data(host.shape[0], [None], [inner])


def _wrap(made: Schema | Array) -> object:
    _, destroy, name = _callbacks[type(made)]
    address = ctypes.addressof(made)
    _kept[-address] = made
    return _capsule(address, name, ctypes.cast(destroy, ctypes.c_void_p))


class ArrowData:
    """Arrays as Arrow sees them: `pyarrow.array(x)`, `pyarrow.record_batch(x)` or any other consumer takes them."""

    def __init__(self, columns: Mapping[str, np.ndarray] | np.ndarray):
        self._columns = columns

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        del requested_schema  # a wish, which may go unheard
        if isinstance(self._columns, np.ndarray):
            schema, array = _column("", self._columns)
        else:
            both = [_column(name, host) for name, host in self._columns.items()]
            length = len(next(iter(self._columns.values()))) if both else 0
            schema = _schema("+s", "", [s for s, _ in both])
            array = _data(length, [None], [a for _, a in both])
        return _wrap(schema), _wrap(array)

    def __arrow_c_schema__(self) -> object:
        return self.__arrow_c_array__()[0]


def to_arrow(array: Any) -> ArrowData:
    if isinstance(array, Mapping):
        columns = {str(name): np.asarray(x) for name, x in array.items()}
        lengths = {len(x) if x.ndim else -1 for x in columns.values()}
        if len(lengths) > 1:
            raise _refuse("to_arrow:", f"the columns of a record batch have different lengths: {sorted(lengths)}")
    else:
        columns = np.asarray(array)
    for name, host in columns.items() if isinstance(columns, dict) else [("", columns)]:
        _check(name, host)
    return ArrowData(columns)
