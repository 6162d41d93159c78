"""OpenXLA's own MPMD front end, from a checkout of openxla/shardy: what it compiles runs here.

It partitions a function by itself, and asks jaxlib to compile the module, which only a closed runtime can. For meshes
on devices of Pathways this module answers instead.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

import jax
from pathways_command import _partition

from pathways import _private, _program, _reshard
from pathways._errors import PathwaysError
from pathways.mpmd import _compiled

NAME = "shardy.integrations.python.jax.mpmd"
VARIABLE = "SHARDY_PYTHON"


class _Executable:
    """What OpenXLA's front end expects of a compiled module."""

    def __init__(self, steps: _compiled.Steps):
        self._program = _program.Program(steps.run, None, None, tuple(steps.donated), None)
        self._call: Callable[..., Any] | None = None

    def execute(self, arrays: Sequence[jax.Array]) -> list[jax.Array]:
        return self._program(*arrays)

    def setup_fastpath(self, call: Callable[..., Any], registry: Any) -> None:
        del registry
        self._call = call

    def execute_fastpath(self, *args: Any, **kwargs: Any) -> Any:
        return self._call(*args, **kwargs)[0]

    def __getattr__(self, name: str) -> Any:
        raise PathwaysError("UNIMPLEMENTED", f"an MPMD executable of Pathways has no {name}")


def _compile(
    stock: Callable[..., Any],
    backend: Any,
    ifrt_mlir_module: Any,
    devices: Sequence[jax.Device],
    out_shardings: Sequence[Any],
    ifrt_ir_compile_options: Mapping[str, Any] | None = None,
    host_callbacks: Sequence[Any] = (),
    **more: Any,
) -> Any:
    ours = all(_reshard._ours(jax.sharding.SingleDeviceSharding(device)) for device in devices)
    if not ours:
        if host_callbacks:
            more["host_callbacks"] = host_callbacks
        options = ifrt_ir_compile_options
        return stock(
            backend, ifrt_mlir_module, devices, out_shardings=out_shardings, ifrt_ir_compile_options=options, **more
        )
    if host_callbacks or ifrt_ir_compile_options:
        raise PathwaysError("UNIMPLEMENTED", "Pathways runs no MPMD program with callbacks or ifrt_ir_compile_options")
    meshes = list(dict.fromkeys(sharding.mesh for sharding in out_shardings))
    return _Executable(_compiled.Steps(_partition.plan(ifrt_mlir_module), devices, meshes, {}))


def shardy(path: str | os.PathLike[str] | None = None) -> ModuleType:
    """Returns OpenXLA's own MPMD front end, whose compiled functions then run on devices of Pathways.

        mpmd = pathways.mpmd.shardy("/home/me/shardy")  # a checkout of github.com/openxla/shardy

    It needs absl-py, immutabledict, jaxtyping and typing_extensions.

    Args:
      path: the checkout; None means SHARDY_PYTHON or, if that is not set, what Python finds.

    Raises:
      PathwaysError: NOT_FOUND if there is no such front end, or something that it needs is missing.
    """
    _private.replace_compile_mpmd(lambda stock: lambda *args, **kwargs: _compile(stock, *args, **kwargs))
    path = os.fspath(path) if path is not None else os.environ.get(VARIABLE)
    if path and path not in sys.path:
        sys.path.insert(0, path)
    try:
        return importlib.import_module(NAME)
    except ImportError as error:
        raise PathwaysError(
            "NOT_FOUND",
            f"{NAME} cannot be imported ({error}); pass the path of a checkout of github.com/openxla/shardy, or set "
            f"{VARIABLE}, and install absl-py, immutabledict, jaxtyping and typing_extensions",
        ) from error
