"""OpenXLA's own MPMD front end, from a checkout of openxla/shardy: what it compiles runs here.

The front end partitions a function itself, and asks jaxlib to compile the module, which only a closed runtime can do.
For meshes on devices of Pathways, this module compiles it instead.
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import jax
from pathways_command import _partition

from pathways import _private, _program, _reshard
from pathways._errors import not_found, unimplemented
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
        raise unimplemented(f"an MPMD executable of Pathways has no {name}")


def _compile(stock: Callable[..., Any], **given: Any) -> Any:
    """Answers a call of jaxlib's compile_mpmd, whose arguments that front end passes by name."""
    if not all(_reshard._ours(jax.sharding.SingleDeviceSharding(device)) for device in given["devices"]):
        return stock(**given)
    for name in ("ifrt_ir_compile_options", "host_callbacks"):
        if given.get(name):
            raise unimplemented(f"Pathways cannot run an MPMD program compiled with {name}")
    if any(options.env_option_overrides for options in (given.get("xla_compile_options") or {}).values()):
        raise unimplemented("Pathways cannot run an MPMD program compiled with compiler_options")
    meshes = list(dict.fromkeys(sharding.mesh for sharding in given["out_shardings"] or ()))
    plan = _partition.plan(given["ifrt_mlir_module"])
    return _Executable(_compiled.Steps(plan, given["devices"], meshes, {}))


def shardy(path: str | os.PathLike[str] | None = None) -> ModuleType:
    """Returns OpenXLA's own MPMD front end, whose compiled functions then run on devices of Pathways.

        mpmd = pathways.mpmd.shardy("path/to/shardy")  # a checkout of github.com/openxla/shardy

    It needs absl-py, immutabledict, jaxtyping and typing_extensions, and a JAX of about the same date.

    Args:
      path: the checkout; None means SHARDY_PYTHON or, if that is not set, what Python finds.

    Raises:
      PathwaysError: NOT_FOUND if there is no such front end, or something that it needs is missing.
    """
    _private.replace_compile_mpmd(lambda stock: functools.partial(_compile, stock))
    path = os.fspath(path) if path is not None else os.environ.get(VARIABLE)
    if path and path not in sys.path:
        sys.path.insert(0, path)
    try:
        return importlib.import_module(NAME)
    except ImportError as error:
        do = (
            f"pass the path of a checkout of github.com/openxla/shardy, or set {VARIABLE}, and install absl-py, "
            "immutabledict, jaxtyping and typing_extensions"
        )
        if (error.name or "").split(".")[0] in ("jax", "jaxlib"):
            do = f"it is written for another version of JAX than {jax.__version__}: use a commit of about the same date"
        raise not_found(f"{NAME} cannot be imported ({error}); {do}") from error
