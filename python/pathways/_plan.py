"""How long a step of a pipeline takes in each schedule, what its devices hold, and which schedule is best.

This module is pure: it deals with numbers, which `_costs` measures. Each device does its ops in the order in which they
are submitted, so an op begins once its devices are free and what it reads has arrived. Moves between stages run beside
the ops and do not wait for each other.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pathways._errors import PathwaysError
from pathways._schedule import NAMES, Op, Schedule, needs
from pathways._text import count, duration, size

# Steps that follow each other settle into a rhythm; the first one, which has nothing before it, is not counted.
STEPS = 4
# Schedules whose steps differ by less are equally long: times are measured, and no more exact than that.
TIE = 0.01


@dataclass(frozen=True)
class Cost:
    """What one microbatch costs on one stage: seconds, and bytes on each of the stage's devices.

    Attributes:
      forward, backward: of the computations; backward is all of it.
      input, weight: of the halves of a backward. Not used if it cannot be split.
      whole: whether the backward cannot be split.
      onward, back: of moving the output to the next stage, and the gradients of the input to the stage before.
      params: bytes of the parameters, and of their gradients; not of one microbatch alone.
      state: bytes of the optimizer's state.
      arrives, leaves, targets: bytes of the input, of the output, and of the loss's second argument.
      kept: bytes that the backward needs, beside the input and the parameters.
      carried, rest: bytes that a weight half needs: of the input half's making, and of what was there before.
      temps: bytes that an op takes while it runs, by its kind.
    """

    forward: float
    backward: float = 0.0
    input: float = 0.0
    weight: float = 0.0
    whole: bool = False
    onward: float = 0.0
    back: float = 0.0
    params: int = 0
    state: int = 0
    arrives: int = 0
    leaves: int = 0
    targets: int = 0
    kept: int = 0
    carried: int = 0
    rest: int = 0
    temps: Mapping[str, int] = field(default_factory=dict)


class Timed(NamedTuple):
    """An op with its begin and end, in seconds."""

    op: Op
    begin: float
    end: float


def simulate(
    ops: Sequence[Op], costs: Sequence[Cost], devices: Sequence[Sequence[Hashable]], steps: int = 1
) -> list[list[Timed]]:
    """Returns when each op of each step runs, if steps follow each other without a wait.

    ops: of one step, in the order in which they are submitted.
    devices: of each stage. Stages may share some.
    """
    free: dict[Hashable, float] = defaultdict(float)
    every = []
    for _ in range(steps):
        ended: dict[tuple[str, int, int], float] = {}
        step = []
        for op in ops:
            begin = max(free[device] for device in devices[op.stage])
            for need in needs(op.kind, op.stage, op.microbatch, len(costs)):
                _, stage, _ = need
                move = 0.0 if stage == op.stage else costs[stage].onward if stage < op.stage else costs[stage].back
                begin = max(begin, ended[need] + move)
            end = begin + getattr(costs[op.stage], op.kind)
            ended["back" if op.kind in ("backward", "input") else op.kind, op.stage, op.microbatch] = end
            free.update(dict.fromkeys(devices[op.stage], end))
            step.append(Timed(op, begin, end))
        every.append(step)
    return every


def idle(spans: Iterable[tuple[float, float]], width: int) -> float:
    """Returns the share of time, from the first begin to the last end, in which `width` places do nothing."""
    begins, ends = zip(*spans, strict=True)
    busy = sum(ends) - sum(begins)
    return max(0.0, 1 - busy / (width * (max(ends) - min(begins)))) if busy else 0.0


def held(step: Sequence[Timed], costs: Sequence[Cost], devices: Sequence[Sequence[Hashable]]) -> dict[Hashable, int]:
    """Returns the most bytes that each device holds in a step.

    These are parameters, sums of gradients, an optimizer's state, the batch, what is kept for each microbatch, and what
    an op takes while it runs; not what an optimizer's update takes.
    """
    changes: dict[int, list[tuple[float, int]]] = defaultdict(list)  # by stage
    for op, begin, end in step:
        stage, cost = op.stage, costs[op.stage]
        returned = cost.arrives if stage else 0
        made, gone = 0, 0
        if op.kind == "forward":
            made, gone = cost.leaves + cost.kept, cost.leaves + cost.targets
            changes[stage].append((-1.0, cost.targets + (0 if stage else cost.arrives)))
            if stage + 1 < len(costs):
                changes[stage + 1].append((end, costs[stage + 1].arrives))
        elif op.kind == "backward":
            made, gone = returned, returned + _of_forward(cost)
        elif op.kind == "input":
            made, gone = returned + cost.carried, returned + _of_forward(cost) - cost.rest
        else:
            made, gone = 0, cost.carried + cost.rest
        if op.kind in ("backward", "input") and stage:
            changes[stage - 1].append((end, costs[stage - 1].leaves))
        temp = cost.temps.get(op.kind, 0)
        changes[stage] += [(begin, made + temp), (end, -gone - temp)]
    most = {}
    for device in {device for of in devices for device in of}:
        here = [stage for stage, of in enumerate(devices) if device in of]
        now = peak = sum(2 * costs[stage].params + costs[stage].state for stage in here)
        for _, change in sorted(change for stage in here for change in changes[stage]):
            now += change
            peak = max(peak, now)
        most[device] = peak
    return most


def _of_forward(cost: Cost) -> int:
    """Returns the bytes that are there for a backward: of the forward, and the gradients of its output."""
    return cost.arrives + cost.kept + cost.leaves


# --- the choice ---


class Candidate(NamedTuple):
    """A schedule that may be chosen.

    Attributes:
      name: of the schedule.
      seconds: the length of a step, of steps that follow each other.
      bubble: the share of that in which devices are idle.
      memory: the most bytes that a device holds.
      refused: why it cannot be chosen; empty if it can. A schedule that does not fit the stages has no numbers.
    """

    name: str
    seconds: float | None = None
    bubble: float | None = None
    memory: int | None = None
    refused: str = ""


class Plan:
    """The schedules that were compared for a pipeline, and the best one: the shortest step within the memory or, among
    steps that differ by less than a hundredth, the least memory.

    Attributes:
      chosen: the name of that schedule.
      candidates: a `Candidate` for each schedule.
      costs: what a microbatch costs on each stage, as measured.
      microbatches: their number.
    """

    def __init__(
        self,
        costs: Sequence[Cost],
        microbatches: int,
        places: Sequence[int],
        devices: Sequence[Sequence[Hashable]],
        limits: Mapping[Hashable, int],
    ):
        """limits: the bytes that devices may hold; those that are not in it have no limit.

        Raises:
          PathwaysError: RESOURCE_EXHAUSTED if no schedule fits.
        """
        self.costs, self.microbatches = tuple(costs), microbatches
        self.candidates = tuple(_candidate(name, costs, microbatches, places, devices, limits) for name in NAMES)
        fit = [c for c in self.candidates if not c.refused]
        if not fit:
            least = min((c for c in self.candidates if c.memory is not None), key=lambda c: c.memory)
            raise PathwaysError(
                "RESOURCE_EXHAUSTED",
                f"no schedule fits into memory; even with {least.name}, which needs least, {least.refused}. Expected"
                " more memory, smaller microbatches, or stages in jax.checkpoint, which keep less",
            )
        shortest = min(c.seconds for c in fit)
        near = [c for c in fit if c.seconds <= shortest * (1 + TIE)]
        self.chosen = min(near, key=lambda c: (c.memory, c.seconds)).name

    def __repr__(self) -> str:
        rows = [("", "schedule", "a step", "idle", "a device holds", "")]
        for c in self.candidates:
            numbers = ("", "", "") if c.seconds is None else (duration(c.seconds), f"{c.bubble:.1%}", size(c.memory))
            rows.append(("*" if c.name == self.chosen else "", c.name, *numbers, c.refused))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]
        shape = f"{count(len(self.costs), 'stage')}, {count(self.microbatches, 'microbatch')}"
        return "\n".join([f"<Plan {self.chosen}: {shape}", *lines]) + ">"


def _candidate(
    name: str,
    costs: Sequence[Cost],
    microbatches: int,
    places: Sequence[int],
    devices: Sequence[Sequence[Hashable]],
    limits: Mapping[Hashable, int],
) -> Candidate:
    whole = [stage for stage, cost in enumerate(costs) if cost.whole]
    try:
        schedule = Schedule(name, len(costs), microbatches, places=places, whole=whole)
    except PathwaysError as error:
        expected = error.message.partition(" expects ")[2].partition(";")[0]
        return Candidate(name, refused=f"expects {expected}")
    steps = simulate(schedule, costs, devices, STEPS)
    ends = [max(timed.end for timed in step) for step in steps]
    seconds = (ends[-1] - ends[0]) / (STEPS - 1)
    width = len({device for of in devices for device in of})
    busy = sum((timed.end - timed.begin) * len(devices[timed.op.stage]) for timed in steps[0])
    bubble = 1 - busy / (width * seconds) if seconds else 0.0
    most = held(steps[0], costs, devices)
    over = {device: n for device, n in most.items() if device in limits and n > limits[device]}
    refused = ""
    if over:
        device = max(over, key=lambda device: over[device] / limits[device])
        refused = f"device {device} holds {size(over[device])}, more than its {size(limits[device])}"
    return Candidate(name, seconds, bubble, max(most.values()), refused)
