"""`jax.experimental.custom_partitioning` where the PJRT plugin cannot be taught it.

JAX gives XLA's partitioner functions to call by an extension of PJRT, which the CPU plugins and the devices of a
cluster do not have. There a function under custom_partitioning runs as its body, which XLA partitions as it does all
else: the same values, but not split as the function's own partition() would have it.
"""

from __future__ import annotations

import ctypes
import warnings
from typing import Any

from jax.extend.core import jaxpr_as_fun
from jax.interpreters import mlir

from pathways import _native

PARTITIONER = 2  # PJRT_Extension_Type_Custom_Partitioner


class _Listed(ctypes.Structure):
    """The head of a PJRT_Extension_Base, and, but for the kind, of a PJRT_Api."""


_Listed._fields_ = [("size", ctypes.c_size_t), ("kind", ctypes.c_int), ("next", ctypes.POINTER(_Listed))]


class _Api(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("extensions", ctypes.POINTER(_Listed))]


def _teachable() -> bool:
    """Whether the plugin, as JAX sees it now, has the extension."""
    api = ctypes.CFUNCTYPE(ctypes.POINTER(_Api))(("GetPjrtApi", _native.load()))()
    at = api.contents.extensions
    while at:
        if at.contents.kind == PARTITIONER:
            return True
        at = at.contents.next
    return False


def _split(context: Any) -> Any:
    """The devices that XLA partitions a computation for, as far as they are known; none where the user does that."""
    mesh = getattr(context, "mesh", None)
    if mesh is None:
        return getattr(context, "device_assignment", None) or ()
    if set(context.manual_axes) == set(mesh.axis_names):
        return ()
    return getattr(mesh, "_flat_devices_tuple", ())


def install() -> None:
    """Has JAX lower custom_partitioning to the function's body for our devices, where there is no other way.

    In a version of JAX that keeps it elsewhere, such programs are refused when they are compiled, with a sentence.
    """
    try:
        from jax._src.custom_partitioning import _custom_partitioning_lowering_rule as stock
        from jax._src.custom_partitioning import custom_partitioning_p
    except ImportError:
        return

    def lowered(ctx: Any, *values: Any, call: Any, **said: Any) -> Any:
        devices = _split(ctx.module_context.axis_context)
        ours = len(devices) > 1 and "Open Pathways" in devices[0].client.platform_version
        if not ours or _teachable():
            return stock(ctx, *values, call=call, **said)
        warnings.warn(
            "custom_partitioning: the PJRT plugin underneath has no extension by which XLA could call partition(), so "
            "XLA partitions the body of the function itself; call it in jax.shard_map to say what each device does",
            stacklevel=2,
        )
        return mlir.lower_fun(jaxpr_as_fun(call), multiple_results=True)(ctx, *values)

    mlir.register_lowering(custom_partitioning_p, lowered)
