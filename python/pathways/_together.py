"""Moves the arrays of a tree together.

One array moves by a call of its own (_reshard.py). Where several of a tree do, the call is a program: the library keeps
who sends what to whom, and all of them move by one message.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax

from pathways import _capture, _passage, _program, _reshard
from pathways._errors import PathwaysError

TREES = 32  # kinds of trees whose programs are kept


@functools.lru_cache(TREES)
def _moves(ways: tuple[Callable[[jax.Array], jax.Array], ...]) -> _program.Program:
    """Returns the program that moves so many arrays, each in its way."""

    def reshard(arrays):
        return [way(x) for way, x in zip(ways, arrays, strict=True)]

    return _program.Program(reshard, None, None, None, None)


def forget() -> None:
    """Drops the programs, whose ways are for devices that no longer exist."""
    _moves.cache_clear()


def reshard(tree: Any, shardings: Any) -> Any:
    """Moves the arrays of a tree. See `pathways.reshard`."""
    if isinstance(tree, jax.Array):
        return _reshard.reshard(tree, shardings)
    try:
        targets = jax.tree.leaves(jax.tree.broadcast(shardings, tree))
    except ValueError as error:
        raise PathwaysError(
            "INVALID_ARGUMENT", f"the shardings are not a prefix of the arrays' tree: {error}"
        ) from None
    leaves, structure = jax.tree.flatten(tree)
    ways = list(map(_reshard.way, leaves, targets))
    together = [i for i, way in enumerate(ways) if _reshard.is_planned(way)]
    if len(together) < 2 or _capture.capturing():  # a program that is captured records them one by one
        together = []
    moved = {}
    if together:
        moves = _moves(tuple(ways[i] for i in together))
        # The call may come while JAX traces something else, or under a mesh of other devices.
        with jax.ensure_compile_time_eval():
            arrays = _passage.unbound(lambda: moves([leaves[i] for i in together]))
        moved = dict(zip(together, arrays, strict=True))
    return structure.unflatten(moved[i] if i in moved else way(leaves[i]) for i, way in enumerate(ways))
