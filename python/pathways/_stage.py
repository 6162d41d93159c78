"""The stages of a pipeline: their computations, and the places that these run on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, Sharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P

from pathways import _reshard
from pathways._errors import PathwaysError
from pathways._slices import Slice
from pathways._split import Split


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


def _back(params, x, residuals, gradients):
    """The backward of a stage: gradients of its parameters, and of its input."""
    return residuals.back((params, x))(gradients)


def _backward(params, x, residuals, gradients, sums):
    own, onward = _back(params, x, residuals, gradients)
    return _added(sums, own), onward


def _added(sums, gradients):
    return jax.tree.map(lambda total, gradient: total + _on_device(gradient), sums, gradients)


def _on_device(gradient):
    """Returns a gradient in its device's own memory: that of a parameter in the host's memory is made there."""
    host = jax.typeof(gradient).memory_space == jax.memory.Space.Host
    return jax.device_put(gradient, jax.memory.Space.Device) if host else gradient


class _Halves:
    """The backward of a stage in two computations, for arguments of some shapes and shardings.

    first: the computation of `input`, which there is none of unless starts.
    weight(what input returned, sums): a computation → the sums with the gradients of params. It donates the sums.
    """

    def __init__(self, part: Part, arguments: tuple[Any, ...]):
        split = Split(_back, *arguments)
        self.whole, self._keeps, self.starts = split.whole, split.keeps, split.starts
        shardings = _sums_like(arguments[0])
        self.first = part.jit("_input", split.first)

        def weight(carried, kept, sums):
            return _added(sums, split.second(carried, kept))

        self.weight = part.jit("_weight", weight, out_shardings=shardings, donate_argnums=2)

    def input(self, leaves: list[Any]) -> tuple[list[Any], tuple[_Halves, list[Any], list[Any]]]:
        """Returns the gradients of the stage's input, and what weight needs, with the halves themselves.

        leaves: of the backward's arguments.
        """
        onward, carried = self.first(leaves) if self.starts else ([], [])
        return onward, (self, carried, [leaves[i] for i in self._keeps])


def _named(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", repr(function))


class Part:
    """The computations of one stage. A trace shows their names.

    run: (params, x) → y, for a forward without a backward.
    forward: (params, x, targets) → (y or the loss's share of the mean, residuals).
    backward(params): a computation, (params, x, residuals, gradients of y, sums) → (the sums with the gradients of
      params, gradients of x). It adds to sums in their memory, which they donate: gradients of a microbatch that were
      written to memory of their own, and added later, would be a large part of what a short backward takes.
    halves((params, x, residuals, gradients of y)): the same in two computations.
    zeros(params): sums to which nothing has been added.
    Gradients of x and y are lists of the floating-point and complex leaves; the first stage's x has none.
    """

    def __init__(self, stage: int, function: Callable[[Any, Any], Any], loss: Callable | None, microbatches: int):
        self.name, self.first, self.loss = f"stage{stage}", stage == 0, loss
        self.function, self.microbatches = function, microbatches
        self.run = self.jit("", lambda params, x: function(params, x))
        self.forward = self.jit("_forward", self._forward)
        self._backwards: dict[Any, tuple[Callable, Callable]] = {}
        self._halves: dict[Any, _Halves] = {}

    def jit(self, what: str, function: Callable, **more: Any) -> Callable:
        def call(*args):
            try:
                return function(*args)
            except Exception as error:
                error.add_note(f"in {self.name} of the pipeline, {_named(self.function)}")
                raise

        call.__name__ = call.__qualname__ = self.name + what
        return jax.jit(call, **more)

    def _forward(self, params, x, targets):
        def whole(params, smooth):
            y = self.function(params, x if self.first else _replaced(x, smooth))
            if self.loss is None:
                return smooth_leaves(y), y
            value = jnp.asarray(self.loss(y, targets))
            if value.shape or not jnp.issubdtype(value.dtype, jnp.floating):
                raise PathwaysError(
                    "INVALID_ARGUMENT", f"the loss returns {value.aval.str_short()}; expected one floating-point number"
                )
            share = value / self.microbatches
            return [share], share

        _, back, y = jax.vjp(whole, params, [] if self.first else smooth_leaves(x), has_aux=True)
        return y, _Residuals.of(back, (params, x))

    def backward(self, params: Any) -> Callable:
        return self._of(params)[0]

    def zeros(self, params: Any) -> Any:
        return self._of(params)[1](params) if jax.tree.leaves(params) else params

    def _of(self, params: Any) -> tuple[Callable, Callable]:
        leaves, structure = jax.tree.flatten(params)
        key = structure, tuple(leaf.sharding for leaf in leaves)
        if key not in self._backwards:
            shardings = _sums_like(params)
            self._backwards[key] = (
                self.jit("_backward", _backward, out_shardings=(shardings, None), donate_argnums=4),
                self.jit("_zeros", _zeros, out_shardings=shardings),
            )
        return self._backwards[key]

    def halves(self, arguments: tuple[Any, ...]) -> tuple[_Halves, list[Any]]:
        """Returns the halves for such arguments, and the arguments' leaves."""
        leaves, structure = jax.tree.flatten(arguments)
        shardings = tuple(leaf.sharding for leaf in jax.tree.leaves(arguments[0]))
        key = structure, shardings, tuple((leaf.shape, leaf.dtype) for leaf in leaves)
        if key not in self._halves:
            self._halves[key] = _Halves(self, arguments)
        return self._halves[key], leaves


def _sums_like(params: Any) -> Any:
    """Returns the shardings of the sums of gradients: the parameters', in their devices' own memory."""
    return jax.tree.map(lambda leaf: leaf.sharding.with_memory_kind(None), params)


def in_memory_of(gradients: Any, params: Any) -> Any:
    """Returns gradients in the memories of their parameters."""

    def put(gradient, param):
        same = gradient.sharding.memory_kind == param.sharding.memory_kind
        return gradient if same else jax.device_put(gradient, param.sharding)

    return jax.tree.map(put, gradients, params)


def _is_smooth(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jnp.inexact)


def smooth_leaves(tree: Any) -> list[Any]:
    """Returns the leaves that have gradients."""
    return [leaf for leaf in jax.tree.leaves(tree) if _is_smooth(leaf)]


def _replaced(tree: Any, smooth: list[Any]) -> Any:
    """Returns the tree with the leaves that have gradients replaced."""
    leaves = iter(smooth)
    return jax.tree.map(lambda leaf: next(leaves) if _is_smooth(leaf) else leaf, tree)


def _zeros(params):
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), params)


# --- places ---


def sharding_of(place: Any, stage: int) -> Sharding:
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
        f"the place of stage {stage} is {place!r}; expected a device, a list of devices, a Slice, a "
        "Mesh or a NamedSharding",
    )


def devices_of(sharding: Sharding) -> tuple[int, ...]:
    devices = sharding.mesh.devices.flat if isinstance(sharding, NamedSharding) else sharding.device_set
    return tuple(device.id for device in devices)


def places_of(shardings: Sequence[Sharding]) -> list[int]:
    """Numbers the sets of devices on which stages are, in the order of the stages."""
    numbers: dict[tuple[int, ...], int] = {}
    return [numbers.setdefault(devices_of(sharding), len(numbers)) for sharding in shardings]


def first_dims(sharding: Sharding, dims: int) -> Sharding:
    """Returns the sharding for an array with dims dimensions."""
    if isinstance(sharding, SingleDeviceSharding) or dims >= len(sharding.spec):
        return sharding
    return NamedSharding(sharding.mesh, P(*sharding.spec[:dims]), memory_kind=sharding.memory_kind)


def settled(params: Any, sharding: Sharding, stage: int) -> Any:
    """Returns a stage's parameters on its devices."""
    everywhere = first_dims(sharding, 0)

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


def moved(tree: Any, sharding: Sharding) -> Any:
    """Returns a stage's input on its devices."""
    return jax.tree.map(lambda leaf: _reshard.reshard(leaf, first_dims(sharding, leaf.ndim)), tree)


def returned(gradients: list[Any], shardings: list[Sharding]) -> list[Any]:
    """Returns the gradients of a stage's input on the devices of the stage before, in the shardings of its output."""
    return [_reshard.reshard(*pair) for pair in zip(gradients, shardings, strict=True)]
