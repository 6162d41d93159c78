"""The FFI handlers that a worker uses from JAX's packages, mostly without importing JAX.

`import jax` takes ten times as long as the rest of a worker's start, and half of its memory. A worker needs only the
handlers of custom calls that JAX registers for CPUs, which are in two small libraries of jaxlib. This is the only
module that uses these private parts of JAX (seen in jax 0.10.2 and 0.12.0.1):

- `registrations()` of `jaxlib.cpu._lapack` and of `jaxlib.cpu._sparse`: PyCapsules by target. LAPACK's use the typed
  FFI if they end in `_ffi`, as all do.
- `jaxlib.cpu._lapack.initialize()` must be called before one of its handlers runs. JAX does so when it lowers a
  program, which a worker never does.
- `jaxlib.plugin_support._PLUGIN_MODULE_NAMES`: the packages with handlers for GPUs.
- `initialize()` of `jax_plugins.xla_cuda13`: registers them (seen in 0.11.2).

Of JAX's other targets for CPUs, the driver has its own host callbacks, `dce_sink` is in libpathways.so, and clients
refuse programs with a `buffer_callback`. tests/cluster/test_worker_start.py compares the names with JAX's own.
"""

from __future__ import annotations

import atexit
import ctypes
import importlib
import importlib.util
import queue
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jax_plugins.pathways import places

from pathways_command import _capsule

PLATFORM = b"Host"  # XLA's name for CPUs
TYPED = "_ffi"
CUDA_PLUGINS = ("jax_plugins.xla_cuda13", "jax_plugins.xla_cuda12")  # best first, as device/pjrt/find.go has them
EXIT_TIMEOUT_MS = 5000  # for an import of SciPy in progress when the process ends

_PREPARE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
_kept: list[Any] = []  # objects that the library has pointers to


def install(library: ctypes.CDLL, modules: Sequence[str]) -> None:
    """Registers JAX's handlers and those of modules with the library, and sets the directories of plugins.

    Raises:
      ImportError: if a module, or jaxlib, cannot be imported.
    """
    from jaxlib.cpu import _lapack, _sparse

    _declare(library)
    if modules or _is_jax_needed():
        import pathways  # noqa: F401, since it passes every registration with JAX to the library

        _register_cuda()
        for module in modules:
            importlib.import_module(module)
        _lapack.initialize()
        lapack_prepare = None
    else:
        library.pathways_plugin_dirs(places.joined())
        _register(library, "dce_sink", ctypes.cast(library.pathways_ffi_dce_sink, ctypes.c_void_p).value)
        lapack_prepare = _prepared_later(library, _lapack)
    # If JAX has been imported, most handlers are registered; registering the same functions again does nothing.
    for name, capsule in _lapack.registrations().items():
        if name.endswith(TYPED):
            _register(library, name, _capsule.address(capsule), lapack_prepare)
    for name, capsule in _sparse.registrations().items():
        _register(library, name, _capsule.address(capsule))


def _is_jax_needed() -> bool:
    """Returns whether a worker must import JAX for more than the handlers above.

    It must if something (such as sitecustomize) has imported jaxlib before and may have registered handlers with it, or
    if there are accelerators: JAX loads their libraries, and sets variables for them, while it is imported.
    """
    from jaxlib import plugin_support

    named = getattr(plugin_support, "_PLUGIN_MODULE_NAMES", None)
    if "jaxlib.xla_client" in sys.modules or named is None:
        return True
    packages = ["libtpu", *(name for names in named.values() for name in names)]
    return any(importlib.util.find_spec(package) for package in packages)


def _register_cuda() -> None:
    """Makes JAX register its handlers for GPUs (cuSOLVER's, Triton's) with the CUDA plugin, if there is a GPU.

    JAX does so when it first looks for devices, which a worker never does. The plugin is loaded once in a process, so
    the worker's driver has the handlers too.
    """
    if not (any(Path("/dev").glob("nvidia[0-9]*")) or Path("/dev/dxg").exists()):
        return
    for name in CUDA_PLUGINS:
        if importlib.util.find_spec(name):
            importlib.import_module(name).initialize()
            return


def _prepared_later(library: ctypes.CDLL, lapack: Any) -> int | None:
    """Returns a handler stage that makes jaxlib find LAPACK in SciPy when the first program needs it.

    The threads on which LAPACK computes are made by that import, and inherit the priority of its thread. Programs are
    loaded with a lower one (device/host/behind.go), so a thread that was made before imports SciPy.
    """
    lock = threading.Lock()
    asked: queue.SimpleQueue[None] = queue.SimpleQueue()
    found: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()

    def find() -> None:
        while True:
            asked.get()
            try:
                lapack.initialize()
                found.put(None)
            except BaseException as error:  # is raised where it was asked for
                found.put(error)

    threading.Thread(target=find, name="lapack", daemon=True).start()

    @_PREPARE
    def prepare(call: int) -> int:
        try:
            with lock:
                asked.put(None)
                if (refusal := found.get()) is not None:
                    raise refusal
            return 1
        except BaseException as error:  # must not propagate out of a function that C calls
            text = f"LAPACK's functions cannot be taken from SciPy: {type(error).__name__}: {error}"
            library.pathways_ffi_callback_fail(call, text.replace("\0", "\\0").encode("utf-8", "backslashreplace"))
            return 0

    _kept.append(prepare)
    library.pathways_ffi_set_prepare(prepare)
    atexit.register(library.pathways_ffi_close, EXIT_TIMEOUT_MS)
    return ctypes.cast(library.pathways_ffi_prepare, ctypes.c_void_p).value


def _declare(library: ctypes.CDLL) -> None:
    pointer, text = ctypes.c_void_p, ctypes.c_char_p
    for name, result, arguments in (
        ("pathways_free", None, [pointer]),
        ("pathways_plugin_dirs", ctypes.c_int, [text]),
        ("pathways_ffi_register", pointer, [text, text, pointer, pointer, pointer, pointer, ctypes.c_uint32]),
        ("pathways_ffi_set_prepare", None, [_PREPARE]),
        ("pathways_ffi_callback_fail", None, [pointer, text]),
        ("pathways_ffi_close", ctypes.c_int, [ctypes.c_int64]),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments


def _register(library: ctypes.CDLL, name: str, execute: int | None, instantiate: int | None = None) -> None:
    refusal = library.pathways_ffi_register(name.encode(), PLATFORM, instantiate, None, None, execute, 0)
    if refusal:
        text = ctypes.string_at(refusal).decode("utf-8", "replace")
        library.pathways_free(refusal)
        raise RuntimeError(text)
