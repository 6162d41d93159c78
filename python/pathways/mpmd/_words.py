"""The marks by which a function names its parts: jitted functions with special names.

Each word wraps a function in `jax.jit` under a name that begins with "mpmd.". So JAX itself differentiates, batches and
checkpoints it, and outside of `pathways.mpmd.jit` it is an ordinary jitted function with the same values. In a lowered
module it is a call, whose location says the name and what transformations it went through: `_marks.py` reads that.
"""

from __future__ import annotations

import functools
import urllib.parse
from collections.abc import Callable, Sequence
from typing import Any

import jax

from pathways._errors import invalid_argument

RESERVED = ("main",)  # names that a module has already


def _marked(function: Callable[..., Any], kind: str, name: str, **options: Any) -> Callable[..., Any]:
    """Returns the function, jitted, under the name of a mark."""

    @functools.wraps(function)
    def call(*args, **kwargs):
        try:
            return function(*args, **kwargs)
        except Exception as error:
            if kind == "computation":
                error.add_note(f"in the named computation {name!r}")
            raise

    # Quoted, the name has no slash and no parenthesis, which delimit names in a location.
    call.__name__ = call.__qualname__ = f"mpmd.{kind}.{urllib.parse.quote(name, safe='')}"
    return jax.jit(call, **options)


def _name(name: Any, what: str) -> str:
    if not isinstance(name, str) or not name or name in RESERVED:
        raise invalid_argument(f"the name of a {what} is {name!r}; expected a text other than 'main'")
    return name


def named_computation(
    fn: Callable[..., Any] | None = None,
    *,
    name: str,
    static_argnames: str | Sequence[str] | None = None,
) -> Callable[..., Any]:
    """Names a part of a model, so that a config can assign it to a mesh. Its gradient runs on the same mesh.

    Args:
      fn: a function that JAX can trace; without it, a decorator is returned.
      name: several calls may have the same name; they run on the same mesh.
      static_argnames: arguments that are not traced, as in `jax.jit`.

    Raises:
      PathwaysError: INVALID_ARGUMENT for a name that is not a text, or "main".
    """
    if fn is None:
        return functools.partial(named_computation, name=name, static_argnames=static_argnames)
    return _marked(fn, "computation", _name(name, "computation"), static_argnames=static_argnames)


def call(fn: Callable[..., Any], *, call_counter: int | None = None) -> Callable[..., Any]:
    """Marks the function of one microbatch; schedules order microbatches by number.

    Args:
      fn: a function that JAX can trace. It is traced once for all microbatches.
      call_counter: the number of the microbatch, from 0.

    Raises:
      PathwaysError: INVALID_ARGUMENT for a number that is not an integer of at least 0.
    """
    if call_counter is not None and (not isinstance(call_counter, int) or call_counter < 0):
        raise invalid_argument(f"call_counter is {call_counter!r}; expected a whole number from 0")
    return _marked(jax.jit(fn), "call", "" if call_counter is None else str(call_counter))


def _each(kind: str, name: str, tree: Any) -> Any:
    """Marks each array of a tree, by a function that leaves it as it is."""
    mark = _marked(jax.lax.optimization_barrier, kind, name)  # JAX would drop a function that returns its argument
    return jax.tree.map(mark, tree)


def named_tensor(tensor: Any, name: str) -> Any:
    """Names an array (or each of a pytree), so that a config can assign it to a mesh. Returns it unchanged."""
    return _each("tensor", _name(name, "tensor"), tensor)


def reduce(arr: Any) -> Any:
    """Allows a sum (or product, max, min, and, or) of arrays on several meshes: they move to the mesh that uses it."""
    return _each("reduce", "", arr)


def broadcast(arr: Any) -> Any:
    """Allows an array to be moved to every mesh that uses it. It is the transpose of `reduce`."""
    return _each("broadcast", "", arr)
