"""Pipelines: a model in stages, each on its own devices, with batches cut into microbatches that follow each other.

They use only public functions: `jax.jit`, `jax.vjp`, `jax.device_put` and `pathways.reshard`. A forward is one
computation, which also returns what its backward needs; the backward is another one. Nothing here waits for values: a
step is a series of calls in the schedule's order, and each device runs its calls in that order, as soon as their inputs
are ready.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, Sharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P

from pathways import _reshard
from pathways._errors import PathwaysError
from pathways._schedule import Schedule
from pathways._slices import Slice


class Stage(NamedTuple):
    """A part of a model: y = function(params, x), and where it runs.

    Attributes:
      function: a function that JAX can trace and differentiate; x and y are arrays or pytrees of them, rows first.
      params: a pytree of floating-point arrays. Arrays that are already on the stage's devices keep their sharding;
        others are copied to each device.
      place: a device; a list of devices or a `Slice`, which share a microbatch's rows; a Mesh, along whose first axis
        rows are split; or the `NamedSharding` of x; an array with fewer dimensions uses the first ones of that.
    """

    function: Callable[[Any, Any], Any]
    params: Any
    place: Any


class Pipeline:
    """A sequence of stages, made by `pathways.pipeline`.

    Attributes:
      params: a list with each stage's parameters, on its devices. Assign to it, or to an element, to change them.
      schedule: the order of a step, a `Schedule`; ``schedule.draw(path)`` draws it.
      shardings: a list with the sharding of each stage's input.
      microbatches: the number of microbatches per batch.
    """

    def __init__(
        self,
        stages: Sequence[Stage | tuple],
        microbatches: int,
        schedule: str,
        loss: Callable[[Any, Any], Any] | None,
    ):
        stages = [Stage(*stage) for stage in stages]
        self.shardings = [_sharding(stage.place, i) for i, stage in enumerate(stages)]
        self.schedule = Schedule(
            schedule, len(stages), microbatches, [_row(i, s) for i, s in enumerate(self.shardings)]
        )
        self.microbatches = microbatches
        self.params = [_settled(stage.params, self.shardings[i], i) for i, stage in enumerate(stages)]
        last = len(stages) - 1
        self._parts = [
            _Part(i, stage.function, loss if i == last else None, microbatches) for i, stage in enumerate(stages)
        ]

    def __repr__(self) -> str:
        return f"<Pipeline: {'; '.join(self.schedule.rows)}; {self.schedule!r}>"

    def forward(self, batch: Any, params: Sequence[Any] | None = None) -> Any:
        """Returns the last stage's output for a batch, without the loss.

        Args:
          batch: a NumPy or JAX array on any devices, or a pytree of them; its rows must be divisible by microbatches.
          params: a pytree for each stage; None means the pipeline's own.

        Returns:
          the last stage's output for all rows, on its devices, without waiting for it.

        Raises:
          PathwaysError: INVALID_ARGUMENT for rows that cannot be divided, or a wrong number of params.
        """
        params = self._given(params)
        arrives, ends = _cut(batch, self.microbatches, self.shardings[0]), []
        for diagonal in range(self.schedule.stages + self.microbatches - 1):
            # The forwards of the schedule, slot by slot.
            for m in range(max(0, diagonal - self.schedule.stages + 1), min(diagonal + 1, self.microbatches)):
                stage = diagonal - m
                y = self._parts[stage].run(params[stage], arrives[m])
                if stage == self.schedule.stages - 1:
                    arrives[m] = None
                    ends.append(y)
                else:
                    arrives[m] = _moved(y, self.shardings[stage + 1])
        return _joined(ends)

    def value_and_grad(self, batch: Any, targets: Any, params: Sequence[Any] | None = None) -> tuple[Any, list[Any]]:
        """Returns the mean of the microbatches' losses, and its gradients with respect to the parameters.

        The bits depend on the stages, their places and the number of microbatches, but not on the schedule: gradients
        add up from the first microbatch to the last.

        Args:
          batch: as in `forward`.
          targets: the second argument of the loss: an array or a pytree of them, divided like the batch.
          params: a pytree for each stage; None means the pipeline's own.

        Returns:
          (loss, gradients): a scalar on the last stage's devices, and for each stage a pytree with its parameters'
          shapes, dtypes and shardings. It does not wait for them.

        Raises:
          PathwaysError: INVALID_ARGUMENT for rows that cannot be divided, a wrong number of params, or a loss that is
            not a real number; FAILED_PRECONDITION for a pipeline without a loss.
        """
        if self._parts[-1].loss is None:
            raise PathwaysError(
                "FAILED_PRECONDITION",
                "this pipeline has no loss; pass loss=function(y, targets) to pathways.pipeline()",
            )
        params, last = self._given(params), self.schedule.stages - 1
        targets = _cut(targets, self.microbatches, self.shardings[last])
        arrives = {(0, m): x for m, x in enumerate(_cut(batch, self.microbatches, self.shardings[0]))}
        back = [part.backward(p) for part, p in zip(self._parts, params, strict=True)]
        kept, returns, losses, seed = {}, {}, [], []
        sums: list[Any] = [None] * (last + 1)
        for _, stage, m, kind in self.schedule:
            here = stage, m
            if kind == "forward":
                x = arrives.pop(here)
                y, residuals = self._parts[stage].forward(params[stage], x, targets[m] if stage == last else None)
                kept[here] = x, residuals, [leaf.sharding for leaf in _smooth(y)]
                if stage < last:
                    arrives[stage + 1, m] = _moved(y, self.shardings[stage + 1])
                else:
                    losses.append(y)
                    targets[m] = None
                    returns[here] = seed = seed or [jnp.ones_like(y, device=y.sharding)]
            else:
                x, residuals, _ = kept.pop(here)
                gradients, onward = back[stage](params[stage], x, residuals, returns.pop(here))
                sums[stage] = gradients if m == 0 else _add_gradients(sums[stage], gradients)
                if stage > 0:
                    # To the devices on which its array was made, in that array's sharding.
                    shardings = kept[stage - 1, m][-1]
                    returns[stage - 1, m] = [_reshard.reshard(*pair) for pair in zip(onward, shardings, strict=True)]
        return _sum_losses(losses), sums

    def _given(self, params: Sequence[Any] | None) -> Sequence[Any]:
        params = self.params if params is None else params
        if len(params) != self.schedule.stages:
            raise PathwaysError(
                "INVALID_ARGUMENT", f"got parameters of {len(params)} stages; expected {self.schedule.stages}"
            )
        return params


# --- a stage's computations ---


@jax.tree_util.register_pytree_node_class
class _Residuals:
    """The values of a forward that its backward needs, except the forward's own arguments, which are not copied."""

    def __init__(self, leaves: list[Any], shape: tuple[Any, tuple[int | None, ...]]):
        self.leaves, self.shape = leaves, shape

    @classmethod
    def of(cls, back: Any, arguments: Any) -> _Residuals:
        """Splits the function that `jax.vjp` returned into its values and its structure, while tracing."""
        leaves, structure = jax.tree.flatten(back)
        numbers = {id(argument): i for i, argument in enumerate(jax.tree.leaves(arguments))}
        places = tuple(numbers.get(id(leaf)) for leaf in leaves)
        own = [leaf for leaf, place in zip(leaves, places, strict=True) if place is None]
        return cls(own, (structure, places))

    def back(self, arguments: Any) -> Any:
        """Returns the function again."""
        structure, places = self.shape
        arguments, own = jax.tree.leaves(arguments), iter(self.leaves)
        return structure.unflatten(next(own) if place is None else arguments[place] for place in places)

    def tree_flatten(self):
        return self.leaves, self.shape

    @classmethod
    def tree_unflatten(cls, shape, leaves):
        return cls(list(leaves), shape)


class _Part:
    """The computations of one stage. A trace shows their names.

    run: (params, x) → y, for a forward without a backward.
    forward: (params, x, targets) → (y or the loss's share of the mean, residuals).
    backward(params): a computation, (params, x, residuals, gradients of y) → (gradients of params, gradients of x).
    Gradients are lists of the floating-point and complex leaves; the first stage's x has none.
    """

    def __init__(self, stage: int, function: Callable[[Any, Any], Any], loss: Callable | None, microbatches: int):
        self.name, self.first, self.loss = f"stage{stage}", stage == 0, loss
        self.function, self.microbatches = function, microbatches
        self.run = self._jit("", lambda params, x: function(params, x))
        self.forward = self._jit("_forward", self._forward)
        self._backwards: dict[Any, Callable] = {}

    def _jit(self, what: str, function: Callable, **more: Any) -> Callable:
        def call(*args):
            return function(*args)

        call.__name__ = call.__qualname__ = self.name + what
        return jax.jit(call, **more)

    def _forward(self, params, x, targets):
        def whole(params, smooth):
            y = self.function(params, x if self.first else _replaced(x, smooth))
            if self.loss is None:
                return _smooth(y), y
            value = jnp.asarray(self.loss(y, targets))
            if value.shape or not jnp.issubdtype(value.dtype, jnp.floating):
                raise PathwaysError(
                    "INVALID_ARGUMENT", f"the loss returns {value.aval.str_short()}; expected one floating-point number"
                )
            share = value / self.microbatches
            return [share], share

        _, back, y = jax.vjp(whole, params, [] if self.first else _smooth(x), has_aux=True)
        return y, _Residuals.of(back, (params, x))

    def backward(self, params: Any) -> Callable:
        leaves, structure = jax.tree.flatten(params)
        key = structure, tuple(leaf.sharding for leaf in leaves)
        if key not in self._backwards:

            def back(params, x, residuals, gradients):
                return residuals.back((params, x))(gradients)

            shardings = jax.tree.map(lambda leaf: leaf.sharding, params)
            self._backwards[key] = self._jit("_backward", back, out_shardings=(shardings, None))
        return self._backwards[key]


def _is_smooth(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jnp.inexact)


def _smooth(tree: Any) -> list[Any]:
    """Returns the leaves that have gradients."""
    return [leaf for leaf in jax.tree.leaves(tree) if _is_smooth(leaf)]


def _replaced(tree: Any, smooth: list[Any]) -> Any:
    """Returns the tree with the leaves that have gradients replaced."""
    leaves = iter(smooth)
    return jax.tree.map(lambda leaf: next(leaves) if _is_smooth(leaf) else leaf, tree)


@jax.jit
def _add_gradients(a, b):
    return jax.tree.map(operator.add, a, b)


@jax.jit
def _sum_losses(values):
    return functools.reduce(operator.add, values)


# --- places ---


def _sharding(place: Any, stage: int) -> Sharding:
    """Returns the sharding of a stage's input."""
    if isinstance(place, Slice):
        place = place.devices
    if isinstance(place, jax.Device):
        return SingleDeviceSharding(place)
    if isinstance(place, Sequence) and place and all(isinstance(device, jax.Device) for device in place):
        place = Mesh(np.array(place), ("rows",)) if len(place) > 1 else SingleDeviceSharding(place[0])
    if isinstance(place, Mesh):
        return NamedSharding(place, P(place.axis_names[0]))
    if isinstance(place, NamedSharding | SingleDeviceSharding):
        return place
    raise PathwaysError(
        "INVALID_ARGUMENT",
        f"stage {stage} is to run on {place!r}; expected a device, a list of devices, a Slice, a "
        "Mesh or a NamedSharding",
    )


def _row(stage: int, sharding: Sharding) -> str:
    """Returns the name of a stage in the schedule's picture."""
    devices = list(sharding.mesh.devices.flat) if isinstance(sharding, NamedSharding) else list(sharding.device_set)
    return f"stage {stage} on device {', '.join(str(device.id) for device in devices)}"


def _first(sharding: Sharding, dims: int) -> Sharding:
    """Returns the sharding for an array with dims dimensions."""
    if isinstance(sharding, SingleDeviceSharding) or dims >= len(sharding.spec):
        return sharding
    return NamedSharding(sharding.mesh, P(*sharding.spec[:dims]), memory_kind=sharding.memory_kind)


def _settled(params: Any, sharding: Sharding, stage: int) -> Any:
    """Returns a stage's parameters on its devices."""
    everywhere = _first(sharding, 0)

    def settle(path, leaf):
        if not jnp.issubdtype(jnp.result_type(leaf), jnp.floating):
            raise PathwaysError(
                "INVALID_ARGUMENT",
                f"stage {stage} has a parameter {jax.tree_util.keystr(path)} of {jnp.result_type(leaf)}; expected "
                "floating-point ones, which have gradients: close over the others",
            )
        there = isinstance(leaf, jax.Array) and leaf.committed and leaf.sharding.device_set == sharding.device_set
        return leaf if there else jax.device_put(leaf, everywhere)

    return jax.tree_util.tree_map_with_path(settle, params)


def _moved(tree: Any, sharding: Sharding) -> Any:
    return jax.tree.map(lambda leaf: _reshard.reshard(leaf, _first(sharding, leaf.ndim)), tree)


# --- batches ---


def _cut(batch: Any, microbatches: int, sharding: Sharding) -> list[Any]:
    """Returns a batch's microbatches, each in the sharding, without waiting for the bytes."""
    leaves, structure = jax.tree.flatten(batch)
    pieces = []
    for leaf in leaves:
        leaf = leaf if isinstance(leaf, jax.Array) else np.asarray(leaf)
        if not leaf.ndim or len(leaf) % microbatches:
            raise PathwaysError(
                "INVALID_ARGUMENT",
                f"an array of shape {leaf.shape} cannot be cut into {microbatches} microbatches; expected rows, as its "
                f"first dimension, in a multiple of {microbatches}",
            )
        cut = _rows(leaf, microbatches) if isinstance(leaf, jax.Array) else np.split(leaf, microbatches)
        pieces.append([jax.device_put(piece, _first(sharding, leaf.ndim)) for piece in cut])
    return [structure.unflatten(leaves) for leaves in zip(*pieces, strict=True)]


@functools.partial(jax.jit, static_argnums=1)
def _rows(x, microbatches):
    size = len(x) // microbatches
    return [x[i : i + size] for i in range(0, len(x), size)]


def _joined(microbatches: list[Any]) -> Any:
    """Returns the arrays of all rows, in the sharding of the microbatches."""
    if len(microbatches) == 1:
        return microbatches[0]
    leaves, structure = jax.tree.flatten(microbatches[0])
    return _joiner(structure, tuple(leaf.sharding for leaf in leaves))(microbatches)


@functools.lru_cache(64)
def _joiner(structure: Any, shardings: tuple[Sharding, ...]) -> Callable:
    def join(microbatches):
        return jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *microbatches)

    return jax.jit(join, out_shardings=structure.unflatten(shardings))
