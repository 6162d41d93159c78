"""Moves the arrays of a tree together.

One array moves by a call of its own (_reshard.py). Where several of a tree do, the call is a program: the library keeps
who sends what to whom, and all of them move by one message. So do those of one call of jax.device_put.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax

from pathways import _capture, _passage, _program, _reshard
from pathways._errors import invalid_argument

TREES = 32  # kinds of trees whose programs are kept


@functools.lru_cache(TREES)
def _moves(ways: tuple[Callable[[jax.Array], jax.Array], ...]) -> _program.Program:
    """Returns the program that moves so many arrays, each in its way."""

    def reshard(arrays):
        return [way(x) for way, x in zip(ways, arrays, strict=True)]

    return _program.Program(reshard, None, None, None, None)


@functools.lru_cache(TREES)
def _calls(ways: tuple[Callable[[jax.Array], jax.Array], ...]) -> Iterator[int]:
    """Counts calls that move such arrays and did not ask for a program."""
    return itertools.count()


def forget() -> None:
    """Drops the programs, whose ways are for devices that no longer exist."""
    _moves.cache_clear()
    _calls.cache_clear()


def move(
    moves: Sequence[tuple[Callable[[jax.Array], jax.Array], jax.Array]], at_first: bool = False
) -> list[jax.Array]:
    """Moves arrays, each in its way: all that move by plans by one message.

    To capture a program takes as long as some hundred moves of single arrays. So unless at_first is set, arrays move by
    one from the second time on that such arrays move.
    """
    together = [i for i, (way, _) in enumerate(moves) if _reshard.is_planned(way)]
    ways = tuple(moves[i][0] for i in together)
    # A program that is captured records arrays one by one.
    if len(together) < 2 or _capture.capturing() or not (at_first or next(_calls(ways))):
        return [way(x) for way, x in moves]
    program = _moves(ways)
    # The call may come while JAX traces something else, or under a mesh of other devices.
    with jax.ensure_compile_time_eval():
        arrays = _passage.unbound(lambda: program([moves[i][1] for i in together]))
    moved = dict(zip(together, arrays, strict=True))
    return [moved[i] if i in moved else way(x) for i, (way, x) in enumerate(moves)]


def reshard(tree: Any, shardings: Any) -> Any:
    """Moves the arrays of a tree. See `pathways.reshard`."""
    if isinstance(tree, jax.Array):
        return _reshard.reshard(tree, shardings)
    try:
        targets = jax.tree.leaves(jax.tree.broadcast(shardings, tree))
    except ValueError as error:
        raise invalid_argument(f"the shardings are not a prefix of the arrays' tree: {error}") from None
    leaves, structure = jax.tree.flatten(tree)
    moves = [(_reshard.way(x, to), x) for x, to in zip(leaves, targets, strict=True)]
    return structure.unflatten(move(moves, at_first=True))
