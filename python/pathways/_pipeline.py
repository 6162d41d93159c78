"""Pipelines: a model in stages, each on its own devices, with batches split into microbatches that follow each other.

They use only public functions: `jax.jit`, `jax.vjp`, `jax.device_put` and `pathways.reshard`. A forward is one
computation, which also returns what its backward needs; the backward is another one. Nothing here waits for values: a
step is a series of calls in the schedule's order, and each device runs its calls in that order, as soon as their inputs
are ready.
"""

from __future__ import annotations

import functools
import operator
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Sharding

from pathways import _capture, _graph, _picture, _timeline
from pathways._costs import limits, measured, state_bytes
from pathways._errors import PathwaysError
from pathways._plan import Plan
from pathways._recorded import Recorded, recorded
from pathways._schedule import NAMES, SEVERAL_STAGES, Schedule
from pathways._settings import parse_bytes
from pathways._stage import (
    Part,
    devices_of,
    first_dims,
    in_memory_of,
    moved,
    places_of,
    returned,
    settled,
    sharding_of,
    smooth_leaves,
)
from pathways._text import plain
from pathways._tied import Name, Tied
from pathways._timeline import Timeline

AUTO = "auto"  # the schedule that the plan chooses


class Stage(NamedTuple):
    """A part of a model: y = function(params, x), and where it runs.

    Attributes:
      function: a function that JAX can trace and differentiate; x and y are arrays or pytrees of them, with rows along
        the first dimension.
      params: a pytree of floating-point arrays. Arrays that are already on the stage's devices keep their sharding;
        others are copied to each device.
      place: a device; a list of devices or a `Slice`, over which a microbatch's rows are split; a Mesh, along whose
        first axis rows are split; or the `NamedSharding` of x, of which an array with fewer dimensions uses the first
        ones.
    """

    function: Callable[[Any, Any], Any]
    params: Any
    place: Any


class Pipeline:
    """A sequence of stages, made by `pathways.pipeline`.

    Attributes:
      params: a list with each stage's own parameters, on its devices. Assign to it, or to an element, to change them.
      schedule: the order of a step, a `Schedule`; ``schedule.draw(path)`` draws it. The first step finds out which
        backwards cannot be split (``schedule.whole``). With "auto" it is 1f1b until a plan is made.
      plan: the time of a step in each schedule, a `Plan`, from the last `measure`, or the first step with "auto"; None
        before. It prints as a table.
      shardings: a list with the sharding of each stage's input.
      microbatches: the number of microbatches per batch.
    """

    def __init__(
        self,
        stages: Sequence[Stage | tuple],
        microbatches: int,
        schedule: str,
        loss: Callable[[Any, Any], Any] | None,
        tied: Mapping[Name, Name],
        memory: int | str | None,
        state: Callable[[Any], Any] | None,
    ):
        named = (
            {plain(name): name for name in (*NAMES, AUTO)}.get(plain(schedule)) if isinstance(schedule, str) else None
        )
        if named is None:
            raise PathwaysError(
                "INVALID_ARGUMENT", f"the schedule is {schedule!r}; expected one of {', '.join(NAMES)}, or {AUTO}"
            )
        schedule = named
        try:
            microbatches = operator.index(microbatches)
        except TypeError:
            raise PathwaysError(
                "INVALID_ARGUMENT", f"the number of microbatches is {microbatches!r}; expected a whole number"
            ) from None
        if memory is not None and schedule != AUTO:
            raise PathwaysError(
                "INVALID_ARGUMENT",
                f"memory={memory!r} has no effect on the schedule {schedule}; expected it with {AUTO}",
            )
        stages = [Stage(*stage) for stage in stages]
        self.shardings = [sharding_of(stage.place, i) for i, stage in enumerate(stages)]
        self.microbatches = microbatches
        self.schedule = self._scheduled("1f1b" if schedule == AUTO else schedule)
        self.plan: Plan | None = None
        self._timeline: Timeline | None = None  # of the last step that was recorded
        self._auto = schedule == AUTO
        self._state = state
        self._memory = None if memory is None else parse_bytes(memory, "memory")
        self.params = [settled(stage.params, self.shardings[i], i) for i, stage in enumerate(stages)]
        self._tied = Tied(tied, self.params, [first_dims(sharding, 0) for sharding in self.shardings])
        last = len(stages) - 1
        self._parts = [
            Part(i, stage.function, loss if i == last else None, microbatches) for i, stage in enumerate(stages)
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
                    arrives[m] = moved(y, self.shardings[stage + 1])
        return _joined(ends)

    def value_and_grad(self, batch: Any, targets: Any, params: Sequence[Any] | None = None) -> tuple[Any, list[Any]]:
        """Returns the mean of the microbatches' losses, and its gradients with respect to the parameters.

        The bits depend on the stages, their places, the number of microbatches, and whether the schedule splits
        backwards. Gradients are summed from the first microbatch to the last.

        Args:
          batch: as in `forward`.
          targets: the second argument of the loss: an array or a pytree of them, divided like the batch, and with as
            many rows.
          params: a pytree for each stage; None means the pipeline's own.

        Returns:
          (loss, gradients): a scalar on the last stage's devices, and for each stage a pytree with its parameters'
          shapes, dtypes and shardings. It does not wait for them.

        Raises:
          PathwaysError: INVALID_ARGUMENT for rows that cannot be divided, targets with another number of rows than the
            batch, a wrong number of params, or a loss that is not a real number;
            FAILED_PRECONDITION for a pipeline without a loss.
        """
        if self._parts[-1].loss is None:
            raise _no_loss()
        _check_rows(batch, targets)
        if self._auto and self.plan is None:
            self.measure(batch, targets, params)
        self._timeline = _timeline.recording or self._timeline
        given = self._given(params)
        step = _Step(self._parts, given, self.shardings)
        step.arrives = {(0, m): x for m, x in enumerate(_cut(batch, self.microbatches, self.shardings[0]))}
        step.targets = _pieces(targets, self.microbatches)
        ops = {"forward": step.forward, "backward": step.backward, "input": step.input, "weight": step.weight}
        for _, stage, m, kind in self.schedule:
            ops[kind](stage, m)
        if step.whole:
            self.schedule = self.schedule.with_whole(step.whole)
        sums = [in_memory_of(own, of) for own, of in zip(step.sums, given, strict=True)]
        return _sum_losses(step.losses), self._tied.gathered(sums)

    def measure(self, batch: Any, targets: Any, params: Sequence[Any] | None = None) -> Plan:
        """Times the computations and moves of each stage, and predicts the time of a step in each schedule. It runs a
        microbatch through the stages some ten times, and waits for it; compiled computations are kept for the steps.
        With the schedule "auto", later steps use the best schedule, and the first step calls this by itself.

        Args:
          batch, targets, params: as in `value_and_grad`.

        Returns:
          the `Plan`, also kept as `plan`.

        Raises:
          PathwaysError: RESOURCE_EXHAUSTED if no schedule fits into the memory; FAILED_PRECONDITION for a pipeline
            without a loss, and while a program is captured; otherwise as `value_and_grad`.
        """
        if self._parts[-1].loss is None:
            raise _no_loss()
        if _capture.capturing():
            raise PathwaysError(
                "FAILED_PRECONDITION",
                "stages cannot be timed while a program is captured, since nothing runs; call"
                " pipeline.measure(batch, targets) before",
            )
        _check_rows(batch, targets)
        x = _cut(batch, self.microbatches, self.shardings[0])[0]
        y = _cut(targets, self.microbatches, self.shardings[-1])[0]
        given, own = self._given(params), self.params if params is None else params  # without those tied to others
        states = [state_bytes(self._state, p) if self._state else 0 for p in own]
        costs = measured(self._parts, given, self.shardings, x, y, states)
        devices = [devices_of(sharding) for sharding in self.shardings]
        room = limits(self.shardings, self._memory)
        self.plan = Plan(costs, self.microbatches, places_of(self.shardings), devices, room)
        if self._auto:
            whole = [stage for stage, cost in enumerate(costs) if cost.whole]
            self.schedule = self._scheduled(self.plan.chosen).with_whole(whole)
        return self.plan

    def recorded(self, timeline: Timeline | None = None) -> Recorded | None:
        """Returns the last step in a trace, with the begin and end of each op.

        Args:
          timeline: the one that `pathways.trace` yielded; None means that of the last `value_and_grad`. To find steps
            that a program played, pass it.

        Returns:
          the `Recorded`: .ops, .others, .seconds and .bubble; None if that trace has no step of this pipeline, or is
          still being recorded.
        """
        timeline = timeline or self._timeline
        if timeline is None or timeline is _timeline.recording:
            return None
        return recorded(self.schedule, [devices_of(sharding) for sharding in self.shardings], timeline.spans)

    def draw(self, path: str | os.PathLike[str] | None = None, timeline: Timeline | None = None) -> str:
        """Draws the last recorded step next to its plan, with two rows for each place on one time axis; without a
        recorded step, only the schedule. A notebook draws a pipeline in this way.

            with pathways.trace("step.json"):
                jax.block_until_ready(pipe.value_and_grad(x, targets))
            pipe.draw("step.svg")

        Args:
          path: a file to write it to, whose name ends in .svg; None means no file.
          timeline: as in `recorded`.

        Returns:
          the text of the picture.
        """
        svg = _picture.svg(self.schedule, self.recorded(timeline))
        if path is not None:
            _graph.write(path, svg)
        return svg

    def _repr_svg_(self) -> str:  # what a notebook shows
        return self.draw()

    def _scheduled(self, name: str) -> Schedule:
        places = places_of(self.shardings)
        rows = _rows_of(places if name in SEVERAL_STAGES else range(len(places)), self.shardings)
        return Schedule(name, len(places), self.microbatches, rows, places)

    def _given(self, params: Sequence[Any] | None) -> Sequence[Any]:
        params = self.params if params is None else params
        if len(params) != self.schedule.stages:
            raise PathwaysError(
                "INVALID_ARGUMENT", f"got parameters of {len(params)} stages; expected {self.schedule.stages}"
            )
        return self._tied.filled(params)


def _no_loss() -> PathwaysError:
    return PathwaysError(
        "FAILED_PRECONDITION",
        "this pipeline has no loss; pass loss=function(y, targets) to pathways.pipeline()",
    )


# --- a step ---


class _Step:
    """What is under way in one step. Its methods do the ops of a schedule, of one stage and microbatch each."""

    def __init__(self, parts: list[Part], params: Sequence[Any], shardings: Sequence[Sharding]):
        self._parts, self._params, self._shardings, self._last = parts, params, shardings, len(parts) - 1
        self._backs = [part.backward(p) for part, p in zip(parts, params, strict=True)]
        self.arrives: dict[tuple[int, int], Any] = {}  # (stage, microbatch) → the stage's input
        self.targets: list[Any] = []
        self.losses: list[Any] = []
        self.sums: list[Any] = [None] * len(parts)  # the gradients of each stage's parameters so far
        self.whole: set[int] = set()  # stages whose backward was to be split, and cannot be
        self._kept: dict[tuple[int, int], Any] = {}  # (input, residuals, shardings of the output)
        self._returns: dict[tuple[int, int], list[Any]] = {}  # gradients of the output
        self._later: dict[tuple[int, int], Any] = {}  # what weight needs
        self._seed: list[Any] = []

    def forward(self, stage: int, m: int) -> None:
        here, last = (stage, m), stage == self._last
        x = self.arrives.pop(here)
        if stage == max(self._last - 1, 0):
            # With the last stage's input. Moved at the step's begin, targets would have the first stage wait until the
            # last one has ended the step before.
            self.targets[m] = _put(self.targets[m], self._shardings[-1])
        y, residuals = self._parts[stage].forward(self._params[stage], x, self.targets[m] if last else None)
        self._kept[here] = x, residuals, [leaf.sharding for leaf in smooth_leaves(y)]
        if not last:
            self.arrives[stage + 1, m] = moved(y, self._shardings[stage + 1])
            return
        self.losses.append(y)
        self.targets[m] = None
        self._returns[here] = self._seed = self._seed or [jnp.ones_like(y, device=y.sharding)]

    def backward(self, stage: int, m: int) -> None:
        x, residuals, _ = self._kept.pop((stage, m))
        arguments = self._params[stage], x, residuals, self._returns.pop((stage, m))
        self.sums[stage], onward = self._backs[stage](*arguments, self._sums(stage))
        self._send(stage, m, onward)

    def input(self, stage: int, m: int) -> None:
        """The half of a backward for which the stage before waits; all of it, where it cannot be split."""
        x, residuals, _ = self._kept[stage, m]
        arguments = self._params[stage], x, residuals, self._returns[stage, m]
        halves, leaves = self._parts[stage].halves(arguments)
        if halves.whole:
            self.whole.add(stage)
            self.backward(stage, m)
            return
        del self._kept[stage, m], self._returns[stage, m]
        onward, self._later[stage, m] = halves.input(leaves)
        self._send(stage, m, onward)

    def weight(self, stage: int, m: int) -> None:
        if (stage, m) in self._later:
            halves, carried, kept = self._later.pop((stage, m))
            self.sums[stage] = halves.weight(carried, kept, self._sums(stage))

    def _sums(self, stage: int) -> Any:
        """Returns what a stage's next gradients are added to, by a computation that donates it."""
        if self.sums[stage] is None:
            return self._parts[stage].zeros(self._params[stage])
        return self.sums[stage]

    def _send(self, stage: int, m: int, onward: list[Any]) -> None:
        """Sends gradients to the devices on which their array was made, in that array's sharding."""
        if stage > 0:
            shardings = self._kept[stage - 1, m][-1]
            self._returns[stage - 1, m] = returned(onward, shardings)


@jax.jit
def _sum_losses(values):
    return functools.reduce(operator.add, values)


def _rows_of(places: Sequence[int], shardings: Sequence[Sharding]) -> list[str]:
    """Returns the names of places in the schedule's picture."""
    rows = []
    for place in range(max(places, default=-1) + 1):
        stages = [stage for stage, at in enumerate(places) if at == place]
        name = f"stage{'s' * (len(stages) > 1)} {', '.join(map(str, stages))}"
        rows.append(f"{name} on device {', '.join(map(str, devices_of(shardings[stages[0]])))}")
    return rows


# --- batches ---


def _check_rows(batch: Any, targets: Any) -> None:
    """Refuses targets with other numbers of rows: a microbatch's would fail in the loss, or be broadcast there."""
    shapes = [[np.shape(leaf) for leaf in jax.tree.leaves(tree)] for tree in (batch, targets)]
    rows, wanted = ({shape[0] for shape in each if shape} for each in shapes)
    if not wanted <= rows:
        of_batch, of_targets = (", ".join(map(str, each)) for each in shapes)
        raise PathwaysError(
            "INVALID_ARGUMENT",
            f"the batch has the shape {of_batch}, and the targets {of_targets}; expected targets with as many rows, "
            "which are the first dimension, as the batch",
        )


def _cut(batch: Any, microbatches: int, sharding: Sharding) -> list[Any]:
    """Returns a batch's microbatches, each in the sharding, without waiting for the bytes."""
    return [_put(piece, sharding) for piece in _pieces(batch, microbatches)]


def _put(piece: Any, sharding: Sharding) -> Any:
    return jax.tree.map(lambda leaf: jax.device_put(leaf, first_dims(sharding, leaf.ndim)), piece)


def _pieces(batch: Any, microbatches: int) -> list[Any]:
    """Returns a batch's microbatches where the batch is."""
    leaves, structure = jax.tree.flatten(batch)
    pieces = []
    for leaf in leaves:
        leaf = leaf if isinstance(leaf, jax.Array) else np.asarray(leaf)
        if not leaf.ndim or len(leaf) % microbatches:
            raise PathwaysError(
                "INVALID_ARGUMENT",
                f"an array of shape {leaf.shape} cannot be split into {microbatches} microbatches; expected a "
                f"first dimension that is a multiple of {microbatches}",
            )
        pieces.append(
            split_microbatches(leaf, microbatches) if isinstance(leaf, jax.Array) else np.split(leaf, microbatches)
        )
    return [structure.unflatten(leaves) for leaves in zip(*pieces, strict=True)]


@functools.partial(jax.jit, static_argnums=1)
def split_microbatches(x, microbatches):  # users see the name
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
    def join_microbatches(microbatches):
        return jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *microbatches)

    return jax.jit(join_microbatches, out_shardings=structure.unflatten(shardings))
