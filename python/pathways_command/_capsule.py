"""PyCapsules, in which JAX passes the functions of XLA FFI."""

from __future__ import annotations

import ctypes
from typing import Any

# Separate objects, so that declaring them does not affect other users of ctypes.pythonapi.
_python = ctypes.PyDLL(None)
_name, _pointer = _python.PyCapsule_GetName, _python.PyCapsule_GetPointer
_name.restype, _name.argtypes = ctypes.c_void_p, [ctypes.py_object]
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_void_p]


def address(capsule: Any) -> int | None:
    """Returns the pointer in a PyCapsule, whatever its name; None for None."""
    if capsule is None:
        return None
    return _pointer(capsule, _name(capsule))
