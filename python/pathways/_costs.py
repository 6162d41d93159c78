"""Measures what a microbatch costs on each stage of a pipeline, for a `Plan`."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Sharding

from pathways._plan import Cost
from pathways._stage import Part, devices_of, moved, returned, smooth_leaves

# The shortest of so many rounds counts, since other work on the machine only makes them longer. A round is of several
# runs behind each other, as in a step, so that what it takes to submit one and to wait for it is beside the others.
ROUNDS, RUNS = 3, 3


def measured(
    parts: Sequence[Part],
    params: Sequence[Any],
    shardings: Sequence[Sharding],
    x: Any,
    targets: Any,
    states: Sequence[int],
) -> list[Cost]:
    """Runs one microbatch forward and back through the stages, and returns what each costs.

    x, targets: the microbatch, on the first and the last stage's devices. states: bytes of each optimizer's state.
    """
    last = len(parts) - 1
    costs: list[dict[str, Any]] = [{} for _ in parts]
    kept = []
    for stage, part in enumerate(parts):
        given = targets if stage == last else None
        cost = costs[stage]
        (y, residuals), cost["forward"] = _timed(part.forward, params[stage], x, given)
        kept.append((x, residuals, y))
        cost |= {"params": _bytes(params[stage]), "arrives": _bytes(x), "leaves": _bytes(y), "targets": _bytes(given)}
        cost["kept"], cost["state"] = _bytes(residuals), states[stage]
        cost["temps"] = {"forward": _temp(part.forward, params[stage], x, given)}
        if stage < last:
            x, cost["onward"] = _timed(moved, y, shardings[stage + 1])
    gradients = [jnp.ones_like(y, device=y.sharding)]
    for stage in reversed(range(len(parts))):
        arguments = params[stage], *kept[stage][:2], gradients
        onward = _back(parts[stage], arguments, costs[stage])
        if stage:
            there = [leaf.sharding for leaf in smooth_leaves(kept[stage - 1][2])]
            gradients, costs[stage]["back"] = _timed(returned, onward, there)
    return [Cost(**cost) for cost in costs]


def _back(part: Part, arguments: tuple[Any, ...], cost: dict[str, Any]) -> list[Any]:
    """Measures a stage's backward, whole and in halves. Returns the gradients of its input."""
    params, *needed = arguments
    backward, sums = part.backward(params), part.zeros(params)

    def whole():
        nonlocal sums
        sums, onward = backward(*arguments, sums)
        return sums, onward

    (_, onward), cost["backward"] = _timed(whole)
    temps = cost["temps"]
    temps["backward"] = _temp(backward, *arguments, sums)
    halves, leaves = part.halves(arguments)
    cost["whole"] = halves.whole
    if not halves.whole:
        (_, (_, carried, rest)), cost["input"] = _timed(halves.input, leaves)

        def weight():
            nonlocal sums
            sums = halves.weight(carried, rest, sums)
            return sums

        _, cost["weight"] = _timed(weight)
        temps["input"] = _temp(halves.first, leaves) if halves.starts else 0
        temps["weight"] = _temp(halves.weight, carried, rest, sums)
        before = {id(leaf) for leaf in jax.tree.leaves(needed)}
        cost["carried"] = _bytes(carried)
        cost["rest"] = _bytes([leaf for leaf in rest if id(leaf) in before])
    return onward


def _timed(call: Callable, *arguments: Any) -> tuple[Any, float]:
    """Returns a call's results, and its seconds once it is compiled. It may donate results of calls before it."""
    results = jax.block_until_ready(call(*arguments))
    rounds = []
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        jax.block_until_ready(_alive([call(*arguments) for _ in range(RUNS)]))
        rounds.append((time.perf_counter() - begin) / RUNS)
    return results, min(rounds)


def _alive(tree: Any) -> list[jax.Array]:
    """Returns the arrays that have not been donated."""
    return [leaf for leaf in jax.tree.leaves(tree) if isinstance(leaf, jax.Array) and not leaf.is_deleted()]


def _temp(computation: Any, *arguments: Any) -> int:
    """Returns the bytes that a jitted function takes of each device while it runs, beside arguments and results. It has
    run with such arguments, so this compiles nothing."""
    stats = computation.lower(*arguments).compile().memory_analysis()
    return stats.temp_size_in_bytes if stats else 0


def state_bytes(make: Callable[[Any], Any], params: Any) -> int:
    """Returns the bytes of an optimizer's state on each device, without making it.

    make: a function of the parameters. What of its result has the shape of a parameter is taken to be divided like it,
      the rest to be on each device.
    """
    shards = {leaf.shape: leaf.sharding.shard_shape(leaf.shape) for leaf in jax.tree.leaves(params)}
    leaves = jax.tree.leaves(jax.eval_shape(make, params))
    return sum(math.prod(shards.get(leaf.shape, leaf.shape)) * leaf.dtype.itemsize for leaf in leaves)


def _bytes(tree: Any) -> int:
    """Returns the bytes of arrays on each of their devices, each array once."""
    leaves = {id(leaf): leaf for leaf in jax.tree.leaves(tree)}.values()
    return sum(math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize for leaf in leaves)


def limits(shardings: Sequence[Sharding], memory: int | None) -> dict[int, int]:
    """Returns the bytes that each device may hold, by its number: as given, or as the device says, if it does."""
    if memory is not None:
        return {device: memory for sharding in shardings for device in devices_of(sharding)}
    said = {device.id: device.memory_stats() for sharding in shardings for device in sharding.device_set}
    return {device: stats["bytes_limit"] for device, stats in said.items() if stats and stats.get("bytes_limit")}
