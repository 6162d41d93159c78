"""A computation that stays on its devices until it is released, for any PJRT plugin.

The gate is a handler of XLA FFI in C, so that a computation that waits in it holds no lock of Python's.
"""

import ctypes
import os
import subprocess
from pathlib import Path

import jax

SOURCE = Path(__file__).parent / "ffi_handlers.c"


def build(folder: Path) -> Path:
    """Compiles the handler and returns the library for Gate."""
    library = folder / "gate.so"
    compiler = os.environ.get("CC", "gcc").split()
    flags = ("-shared", "-fPIC", "-O1", f"-I{jax.ffi.include_dir()}")
    subprocess.run([*compiler, *flags, str(SOURCE), "-o", str(library)], check=True)
    return library


class _Register(ctypes.Structure):  # PJRT_FFI_Register_Handler_Args
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("target_name", ctypes.c_char_p),
        ("target_name_size", ctypes.c_size_t),
        ("handler", ctypes.c_void_p),
        ("platform_name", ctypes.c_char_p),
        ("platform_name_size", ctypes.c_size_t),
        ("traits", ctypes.c_int),
    ]


class Gate:
    """The gate of this process, open at first.

    Args:
      library: what build() returned.
      plugin: the library of the PJRT plugin that JAX drives, whose devices JAX has made.
    """

    def __init__(self, library, plugin):
        self._library = ctypes.CDLL(str(library))
        api = ctypes.CDLL(str(plugin)).GetPjrtApi
        api.restype = ctypes.c_void_p
        ffi = _pointer(api() + 8)  # PJRT_Api.extension_start
        while ctypes.c_int.from_address(ffi + 8).value != 5:  # PJRT_Extension_Base.type, PJRT_Extension_Type_FFI
            ffi = _pointer(ffi + 16)  # PJRT_Extension_Base.next
        register = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(_pointer(ffi + 40))
        handler = ctypes.cast(self._library.gate, ctypes.c_void_p)
        args = _Register(_Register.traits.offset + 4, b"gate", 4, handler, b"Host", 4, 0)
        assert not register(ctypes.byref(args)), "the plugin takes no handler"

    def __call__(self, x):
        """Returns x + 1, inside a jitted function, once the gate is open."""
        return jax.ffi.ffi_call("gate", jax.ShapeDtypeStruct(x.shape, x.dtype))(x)

    def shut(self):
        """Shuts the gate for all threads except this one, which would wait for itself."""
        self._library.gate_shut()

    def open(self) -> int:
        """Returns how often the thread that shut the gate has run the handler since then, inside a call."""
        return self._library.gate_open()

    def wait(self, n: int):
        """Waits until the given number of devices wait at the gate."""
        self._library.gate_await(n)


def _pointer(address: int) -> int:
    return ctypes.c_void_p.from_address(address).value
