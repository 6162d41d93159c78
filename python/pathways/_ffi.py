"""XLA FFI in this process: passes JAX's FFI targets to the plugin, and runs host callbacks.

JAX passes the handlers of a platform (LAPACK, users' `jax.ffi` targets) to a single function, the first one that is
installed for it. This module installs its own, which passes each registration both to jaxlib's own CPU client, as
without Pathways, and to the plugin.

Not supported, because PJRT has no way for it: targets of the old untyped kind (api_version=0).
"""

from __future__ import annotations

import atexit
import ctypes
import struct
import threading
import traceback
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
from pathways_command import _capsule

from pathways import _native, _private
from pathways._errors import PathwaysError, failed_precondition

STAGES = ("instantiate", "prepare", "initialize", "execute")
# Targets of jaxlib whose handlers work as they are. Its other callback targets have private state, so the library has
# its own handler for them.
BORROWED = ("xla_buffer_python_cpu_callback", "dce_sink")
EXIT_TIMEOUT_MS = 5000
INTERRUPTED = -1  # PW_CALLBACK_INTERRUPTED of the library
LARGE = 1 << 14  # bytes; arguments of this size or more are copied to memory of _Memory

_lock = threading.Lock()
_library: ctypes.CDLL | None = None  # set once under _lock
_replaying = False  # JAX is passing on what it queued; only the installing thread sees it set, under JAX's own lock
_refused: list[str] = []  # registrations that were refused during the replay
_kept: list[Any] = []  # objects that the library has pointers to

# --- host callbacks ---

# By XLA_FFI_DataType: the NumPy dtype, and the bits of an element where several share a byte.
_DTYPES: dict[int, tuple[np.dtype, int]] = {
    1: (np.dtype(np.bool_), 0),
    2: (np.dtype(np.int8), 0),
    3: (np.dtype(np.int16), 0),
    4: (np.dtype(np.int32), 0),
    5: (np.dtype(np.int64), 0),
    6: (np.dtype(np.uint8), 0),
    7: (np.dtype(np.uint16), 0),
    8: (np.dtype(np.uint32), 0),
    9: (np.dtype(np.uint64), 0),
    10: (np.dtype(np.float16), 0),
    11: (np.dtype(np.float32), 0),
    12: (np.dtype(np.float64), 0),
    15: (np.dtype(np.complex64), 0),
    18: (np.dtype(np.complex128), 0),
}
_TOKEN = 17
for _code, _name, _bits in (
    (16, "bfloat16", 0),
    (19, "float8_e5m2", 0),
    (20, "float8_e4m3fn", 0),
    (21, "int4", 4),
    (22, "uint4", 4),
    (23, "float8_e4m3b11fnuz", 0),
    (24, "float8_e5m2fnuz", 0),
    (25, "float8_e4m3fnuz", 0),
    (26, "int2", 2),
    (27, "uint2", 2),
    (28, "float8_e4m3", 0),
    (29, "float8_e3m4", 0),
    (30, "int1", 1),
    (31, "uint1", 1),
    (32, "float4_e2m1fn", 4),
    (33, "float8_e8m0fnu", 0),
):
    if hasattr(ml_dtypes, _name):  # the set of types depends on its version
        _DTYPES[_code] = (np.dtype(getattr(ml_dtypes, _name)), _bits)

_CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


def _dtype(code: int) -> tuple[np.dtype, int]:
    try:
        return _DTYPES[code]
    except KeyError:
        have = f"ml_dtypes {ml_dtypes.__version__}"
        raise TypeError(f"no NumPy dtype for XLA FFI data type {code} in {have}; upgrade ml_dtypes") from None


def _unpack(packed: np.ndarray, bits: int, count: int) -> np.ndarray:
    """Unpacks bytes with several elements each, lowest bits first, to one element per byte."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    return ((packed[:, None] >> shifts) & ((1 << bits) - 1)).astype(np.uint8).reshape(-1)[:count]


def _pack(elements: np.ndarray, bits: int) -> np.ndarray:
    per = 8 // bits
    padded = np.zeros(-(-elements.size // per) * per, np.uint8)
    padded[: elements.size] = elements & ((1 << bits) - 1)
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    return np.bitwise_or.reduce(padded.reshape(-1, per) << shifts, axis=1, dtype=np.uint8)


def _sign_extended(elements: np.ndarray, dtype: np.dtype, bits: int) -> np.ndarray:
    """Converts bytes of narrow elements to the form of ml_dtypes: signed integers are sign-extended to a byte."""
    if dtype.name.startswith("int"):
        sign = np.uint8(1 << (bits - 1))
        elements = (elements ^ sign) - sign
    return elements.view(dtype)


class _Memory:
    """Owns the memory of a large argument's copy, for the arrays that use it.

    The memory is 64-byte aligned, so that JAX's CPU client uses it without another copy. When the last array on it is
    gone, it is kept for the next argument of that size: fresh pages cost several times the copy.
    """

    __slots__ = ("__array_interface__", "_block", "_nbytes")
    IDLE_LIMIT = 64 << 20  # bytes kept at most
    _idle: dict[int, list[np.ndarray]] = {}  # by size; each step on it is atomic, since __del__ runs anywhere

    def __init__(self, block: np.ndarray, nbytes: int, address: int):
        self._block, self._nbytes = block, nbytes
        self.__array_interface__ = {"version": 3, "shape": (nbytes,), "typestr": "|u1", "data": (address, True)}

    @classmethod
    def copy(cls, data: int, nbytes: int) -> np.ndarray:
        """Returns a read-only copy of bytes."""
        try:
            block = cls._idle[nbytes].pop()
        except (KeyError, IndexError):
            block = np.empty(nbytes + 63, np.uint8)
        address = -(-block.ctypes.data // 64) * 64
        ctypes.memmove(address, data, nbytes)
        return np.asarray(cls(block, nbytes, address))

    def __del__(self):
        if self._nbytes > self.IDLE_LIMIT:
            return
        if sum(size * len(blocks) for size, blocks in list(self._idle.items())) + self._nbytes > self.IDLE_LIMIT:
            self._idle.clear()
        self._idle.setdefault(self._nbytes, []).append(self._block)


def _read(code: int, data: int, shape: Sequence[int]) -> np.ndarray | None:
    """Returns a read-only copy of an argument: functions may keep their arguments, and the memory is XLA's."""
    if code == _TOKEN:
        return None
    dtype, bits = _dtype(code)
    count = 1
    for size in shape:
        count *= size
    if bits:
        packed = np.frombuffer(ctypes.string_at(data, (count * bits + 7) // 8), np.uint8)
        array = _sign_extended(_unpack(packed, bits, count), dtype, bits).reshape(shape)
        array.flags.writeable = False
        return array
    nbytes = count * dtype.itemsize
    if nbytes < LARGE:
        return np.ndarray(shape, dtype, ctypes.string_at(data, nbytes))
    return _Memory.copy(data, nbytes).view(dtype).reshape(shape)


def _write(code: int, data: int, shape: tuple[int, ...], result: Any, index: int) -> None:
    if code == _TOKEN:
        return
    dtype, bits = _dtype(code)
    array = np.asarray(result)
    if array.shape != shape or array.dtype != dtype:
        raise TypeError(
            f"result {index} of the callback is {array.dtype}{list(array.shape)}; expected {dtype}{list(shape)}"
        )
    if array.size == 0:
        return
    if bits:
        packed = _pack(np.ascontiguousarray(array).view(np.uint8).reshape(-1), bits)
        ctypes.memmove(data, packed.ctypes.data, packed.size)
        return
    np.copyto(np.ndarray(shape, dtype, (ctypes.c_char * array.nbytes).from_address(data)), array)


def _call(function: Callable[..., Any], words: tuple[int, ...]) -> None:
    nargs, nrets = words[:2]
    buffers, at = [], 2
    for _ in range(nargs + nrets):
        end = at + 3 + words[at + 2]
        buffers.append((words[at], words[at + 1], words[at + 3 : end]))
        at = end
    results = function(*[_read(*buffer) for buffer in buffers[:nargs]])
    if not isinstance(results, tuple) or len(results) != nrets:
        found = f"{len(results)}" if isinstance(results, tuple) else f"a {type(results).__name__}"
        raise TypeError(f"the callback returned {found}; expected a tuple of {nrets} results")
    for index, (buffer, result) in enumerate(zip(buffers[nargs:], results, strict=True)):
        _write(*buffer, result, index)


@_CALLBACK
def _trampoline(function: Callable[..., Any], call: int, words: int, count: int) -> int:
    try:
        _call(function, struct.unpack(f"{count}q", ctypes.string_at(words, 8 * count)))
        return 1
    except BaseException as error:  # including SystemExit and KeyboardInterrupt: no Python frame above handles them
        text = f"CpuCallback error calling callback: {_described(error)}"
        _library.pathways_ffi_callback_fail(call, text.replace("\0", "\\0").encode("utf-8", "backslashreplace"))
        first = threading.get_ident() == threading.main_thread().ident  # which is the one that hears Ctrl-C
        return INTERRUPTED if first and isinstance(error, KeyboardInterrupt) else 0


def _described(error: BaseException) -> str:
    """Returns the traceback and text of an error, without the frames of this file."""
    try:
        described = traceback.TracebackException.from_exception(error)
        kept = [frame for frame in described.stack if frame.filename != __file__]
        described.stack = traceback.StackSummary.from_list(kept)
        return "".join(described.format()).rstrip()
    except BaseException:  # of the error's own __str__, say
        return type(error).__name__


# --- registrations ---


def _answer(pointer: int | None) -> None:
    """Raises the library's error, or records it while JAX replays its queue."""
    text = _native._text(_library, pointer)
    if text is None:
        return
    if not _replaying:
        raise PathwaysError.parse(text)
    _refused.append(text)


def _register(name: str, bundle: dict[str, Any], platform: str, traits: int) -> None:
    _kept.append(bundle)
    stages = [_capsule.address(bundle.get(stage)) for stage in STAGES]
    _answer(_library.pathways_ffi_register(name.encode(), platform.encode(), *stages, traits))


def _on_target(name: str, fn: Any, platform: str, api_version: int = 0, traits: Any = 0) -> None:
    """Handles JAX's registrations of custom call targets."""
    try:
        _private.register_target(name, fn, platform, api_version, traits)
    except Exception as error:  # so that the rest of the replay continues
        if not _replaying:
            raise
        _refused.append(f"{error} (refused by jaxlib itself)")
        return
    if isinstance(name, bytes):
        name = name.decode()
    if api_version == 0:
        warnings.warn(
            f"custom call target {name!r} has api_version=0: programs on Pathways devices cannot call it. Register an "
            "XLA FFI handler (api_version=1), or run on the CPU client of JAX (jax.devices('cpu'))",
            stacklevel=3,
        )
        return
    _register(name, fn if isinstance(fn, dict) else {"execute": fn}, platform, int(traits))


def _on_type(name: str, registration: Any) -> None:
    """Handles JAX's registrations of types, the states of handlers. jaxlib goes first: it assigns the type's ID."""
    _private.register_type(name, registration)
    _kept.append(registration)
    type_id = ctypes.cast(_capsule.address(registration["type_id"]), ctypes.POINTER(ctypes.c_int64))
    _answer(
        _library.pathways_ffi_register_type(name.encode(), type_id, _capsule.address(registration.get("type_info")))
    )


def _declare(library: ctypes.CDLL) -> None:
    pointer, text = ctypes.c_void_p, ctypes.c_char_p
    _native.declare(
        library,
        ("pathways_ffi_register", pointer, [text, text, pointer, pointer, pointer, pointer, ctypes.c_uint32]),
        ("pathways_ffi_register_type", pointer, [text, pointer, pointer]),
        ("pathways_ffi_refusals", pointer, []),
        ("pathways_ffi_version", pointer, []),
        ("pathways_set_callback", pointer, [_CALLBACK]),
        ("pathways_ffi_callback_fail", None, [pointer, text]),
        ("pathways_ffi_close", ctypes.c_int, [ctypes.c_int64]),
    )


def install(library: ctypes.CDLL) -> None:
    """Passes JAX's FFI registrations, past and future ones, to the library; does nothing the second time.

    If the plugin refuses a registration that was made before this call, a warning says so (JAX runs without it); later
    ones raise PathwaysError in `jax.ffi.register_ffi_target`.

    Raises:
      PathwaysError: FAILED_PRECONDITION if JAX has already made its CPU client.
    """
    global _library, _replaying
    from jax import ffi

    with _lock:
        if _library is not None:
            return
        if _private.has_cpu_client():
            raise failed_precondition(
                "JAX has already made its CPU client, so FFI targets (LAPACK, callbacks) cannot reach Pathways; put "
                "`import pathways` before the first use of a device"
            )
        _declare(library)
        _library = library
        _replaying = True
        try:
            # jaxlib's probe of this handler shows the library how to make errors that jaxlib can read.
            _private.register_target(
                "pathways_jaxlib_probe", ffi.pycapsule(library.pathways_ffi_jaxlib_probe), "Host", 1
            )
            _answer(library.pathways_set_callback(_trampoline))
            targets = _private.targets("Host")
            for name in BORROWED:
                if name in targets:
                    _register(name, targets[name], "Host", 0)
            _private.handle_registrations(_on_type, _on_target)
        finally:
            _replaying = False
        # This exit hook runs after those registered later, which wait for work in flight.
        atexit.register(library.pathways_ffi_close, EXIT_TIMEOUT_MS)
        refused, _refused[:] = list(_refused), []
    if refused:
        warn(refused)


def refusals() -> list[str]:
    """Returns the targets registered before the plugin was loaded that it refused."""
    text = _native._text(_library, _library.pathways_ffi_refusals()) if _library else None
    return (text or "").splitlines()


def version() -> str | None:
    """Returns the plugin's version of XLA FFI, such as "0.4"; None if it is not loaded or has none."""
    return _native._text(_library, _library.pathways_ffi_version()) if _library else None


def warn(refused: list[str]) -> None:
    """Warns of FFI targets that programs will not find on Pathways devices."""
    first = "\n  ".join(refused[:3])
    more = f"\n  and {len(refused) - 3} more" if len(refused) > 3 else ""
    warnings.warn(
        f"{len(refused)} FFI targets (custom calls) cannot be used on Pathways devices:\n  {first}{more}", stacklevel=3
    )
