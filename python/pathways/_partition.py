"""What plugins for CPUs leave to Python when they compile.

They cannot call Python while XLA partitions a program. The library passes on each program that asks for it
(custom_partitioning, inspect_array_sharding, debug callbacks with partitioned=True, batch-partitionable FFI targets).
This module compiles it for as many CPU devices of jaxlib's own client, which calls the functions that JAX has
registered, and XLA dumps the module before and after its partitioner. The compiled program is never run.

They also refuse some operations: XLA's CPU compiler has no ragged_all_to_all and no collective_broadcast, and older
plugins do not know the calls by which a program places arrays in memories. This module replaces them.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import Any

from pathways import _collectives, _native, _private
from pathways._errors import failed_precondition

# Compile options, so that they apply only to this program. It is never run, so it need not be fast.
_DUMP = {
    "xla_dump_hlo_pass_re": "^spmd-partitioning$",
    "xla_dump_hlo_module_re": ".*",
    "xla_dump_hlo_as_proto": True,
    "xla_dump_compress_protos": False,
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
}

_lock = threading.Lock()
_client: Any = None  # the largest so far, guarded by _lock; a client has a few threads per device


def _devices(count: int) -> list[Any]:
    """Returns count devices of a CPU client of jaxlib's: JAX's own if it has enough, else a private one."""
    global _client
    own = _private.client("cpu")
    if own is not None and own.local_device_count() >= count:
        return own.local_devices()[:count]
    with _lock:
        if _client is None or _client.local_device_count() < count:
            _client = _private.make_cpu_client(count)
        return _client.local_devices()[:count]


def _compile(code: bytes, options: bytes, directory: str) -> None:
    parsed = _private.parse_compile_options(options)
    given = [
        (name, value) for name, value in parsed.env_option_overrides if name not in _DUMP and name != "xla_dump_to"
    ]
    parsed.env_option_overrides = [*given, *_DUMP.items(), ("xla_dump_to", directory)]
    _private.compile_for(code, parsed, _devices(parsed.executable_build_options.num_partitions))


# By operation or target of a custom call. The library knows the same names, without the dialect (capi/partition).
_REPLACED: dict[str, Callable[[Any], Any]] = {
    "annotate_device_placement": lambda op: op.operands[0],
    "ragged_all_to_all": _collectives.ragged_all_to_all,
    "stablehlo.collective_broadcast": _collectives.collective_broadcast,
}

_PARTITIONER = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_char_p,
)


_REPLACER = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


def _done(call: int, function: Callable[[], None]) -> int:
    """Calls a function for the library, and returns what that expects."""
    try:
        function()
        return 1
    except KeyboardInterrupt:
        return -1
    except BaseException as error:  # must not propagate out of a function that C calls
        from jax.errors import JaxRuntimeError

        text = str(error) if isinstance(error, JaxRuntimeError) else f"INTERNAL: {type(error).__name__}: {error}"
        _native.load().pathways_partition_fail(call, text.encode("utf-8", "replace"))
        return 0


@_PARTITIONER
def _partitioner(call: int, code: int, code_size: int, options: int, options_size: int, directory: bytes) -> int:
    given = ctypes.string_at(code, code_size), ctypes.string_at(options, options_size), directory.decode()
    return _done(call, lambda: _compile(*given))


@_REPLACER
def _replacer(call: int, code: int, code_size: int) -> int:
    def replace() -> None:
        made = _private.replaced(ctypes.string_at(code, code_size), _REPLACED)
        if made is not None:
            _native.load().pathways_partition_give(call, made, len(made))

    return _done(call, replace)


def install() -> None:
    """Installs this module's functions in the library, and has JAX lower what they replace."""
    library = _native.load()
    try:
        library.pathways_partition_fail.restype = None
        library.pathways_partition_fail.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
        library.pathways_partition_give.restype = None
        library.pathways_partition_give.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t]
        library.pathways_set_partitioner.restype = None
        library.pathways_set_partitioner.argtypes = [_PARTITIONER, _REPLACER]
    except AttributeError as error:
        raise failed_precondition(f"libpathways.so belongs to another version of the package: {error}") from None
    library.pathways_set_partitioner(_partitioner, _replacer)
    _private.lower_broadcasts()


def remove() -> None:
    """Removes the functions, and waits for a program that is in one of them. For Python's exit."""
    _native.load().pathways_set_partitioner(_PARTITIONER(), _REPLACER())
