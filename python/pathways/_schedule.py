"""The order in which the stages of a pipeline process their microbatches, as data.

This module is pure: it deals with numbers of stages and microbatches, not with arrays or devices. Time is counted in
slots: each op of one microbatch on one stage takes one slot, a move between stages takes none.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Literal, NamedTuple

from pathways import _graph
from pathways._errors import PathwaysError
from pathways._text import count

Kind = Literal["forward", "backward", "input", "weight"]


class Op(NamedTuple):
    """One microbatch on one stage in one slot of time.

    kind: "forward"; "backward"; or the halves of a backward: "input", the gradients that the previous stage waits for,
      and "weight", those of the stage's parameters, for which nothing waits.
    """

    slot: int
    stage: int
    microbatch: int
    kind: Kind


class Schedule(Sequence[Op]):
    """All ops of one step of a pipeline, in the order in which they are submitted.

    That is the order in which they begin if a whole backward is as long as its two halves, each of which is as long as
    a forward. A cluster gives places ahead only for some device time, so what is submitted too early keeps others back.

    A forward comes after the same microbatch's forward on the previous stage. A backward, or its input half, comes
    after that on the next stage, and after its own forward; a weight half after the input half. A place does one op per
    slot. On every stage, gradients of parameters are made from the first microbatch to the last, so that they always
    add up in the same order.

    With p places and M microbatches:

    ``gpipe``: all forwards, then all backwards; a stage keeps what M microbatches need for their backwards.
    ``1f1b``: a stage begins a backward as soon as it can, and keeps at most min(p - stage, M). The time is the same.
    ``interleaved``: as 1f1b, with v stages on each place, p stages apart; the idle time is 1/v of that.
    ``zb-h1``: backwards in two halves. Weight halves fill what was idle at the end; a stage keeps at most p.
    ``zb-h2``: the same with 2 p - 1 kept; no place is idle between its first op and its last.
    ``zbv``: the same with two stages on each place, the last stage where the first is, and what p microbatches need
    for both kept.

    The orders are those of Huang et al. 2019, Narayanan et al. 2019 and 2021, and Qi et al. 2023 and 2024.

    Attributes:
      name: one of those.
      stages, microbatches: their numbers.
      places: the place of each stage, from 0.
      whole: stages whose backward cannot be split, and is one op where the schedule wants two.
      slots: the length of a step.
      bubble: the share of idle slots. For gpipe and 1f1b it is (p - 1) / (M + p - 1), for interleaved
        (p - 1) / (v M + p - 1), for zb-h1 (p - 1) / (3 M + p - 1).
      idle: the same between each place's first op and its last. With zb-h2 and zbv it is 0, and steps follow each other
        without a gap.
      rows: the names of the places in the picture.
    """

    def __init__(
        self,
        name: str,
        stages: int,
        microbatches: int,
        rows: Sequence[str] = (),
        places: Sequence[int] = (),
        whole: Collection[int] = (),
    ):
        if name not in NAMES:
            raise PathwaysError("INVALID_ARGUMENT", f"the schedule is {name!r}; expected one of {', '.join(NAMES)}")
        if stages < 1 or microbatches < 1:
            raise PathwaysError(
                "INVALID_ARGUMENT", f"{stages} stages and {microbatches} microbatches; expected at least one of each"
            )
        self.name, self.stages, self.microbatches = name, stages, microbatches
        self.places = _placed(name, stages, microbatches, places)
        self.whole = frozenset(whole)
        width = max(self.places) + 1
        self.rows = tuple(rows) or tuple(f"{'stage' if width == stages else 'place'} {i}" for i in range(width))
        orders = [_ORDERS[name](width, microbatches, place, stages // width) for place in range(width)]
        self._ops = _timed([list(_joined(order, self.whole)) for order in orders], stages)
        self.slots = max(op.slot for op in self._ops) + 1
        self.bubble = 1 - len(self._ops) / (width * self.slots)
        spans = [[op.slot for op in self._ops if self.places[op.stage] == place] for place in range(width)]
        self.idle = 1 - len(self._ops) / sum(max(span) - min(span) + 1 for span in spans)

    def __getitem__(self, index):
        return self._ops[index]

    def __len__(self) -> int:
        return len(self._ops)

    def __repr__(self) -> str:
        return f"<Schedule {self.name}: {self.shape}, {count(self.slots, 'slot')}, bubble {self.bubble:.1%}>"

    @property
    def shape(self) -> str:
        """Of how many stages and microbatches it is, in words."""
        return f"{count(self.stages, 'stage')}, {count(self.microbatches, 'microbatch')}"

    def with_whole(self, whole: Collection[int]) -> Schedule:
        """Returns the same schedule where also the backwards of these stages cannot be split."""
        return Schedule(
            self.name, self.stages, self.microbatches, self.rows, self.places, self.whole | frozenset(whole)
        )

    def of(self, stage: int) -> list[Op]:
        """Returns the ops of one stage, in the order of time."""
        return [op for op in self._ops if op.stage == stage]

    def in_flight(self, stage: int) -> int:
        """Returns the largest number of microbatches whose forward a stage has done and whose backward it has not."""
        now = most = 0
        for op in self.of(stage):
            now += {"forward": 1, "input": 0}.get(op.kind, -1)
            most = max(most, now)
        return most

    def draw(self, path: str | os.PathLike[str] | None = None) -> str:
        """Draws time from left to right and a row for each place, as SVG.

        Args:
          path: a file to write it to, whose name ends in .svg; None means no file.

        Returns:
          the text of the picture.
        """
        from pathways import _picture

        svg = _picture.svg(self)
        if path is not None:
            _graph.write(path, svg)
        return svg

    def _repr_svg_(self) -> str:  # what a notebook shows
        return self.draw()


# --- orders ---

# The ops of one place in their order; `_timed` decides when they run.
Order = list[tuple[Kind, int, int]]  # kind, stage, microbatch


def _placed(name: str, stages: int, microbatches: int, places: Sequence[int]) -> tuple[int, ...]:
    """Returns the place of each stage. Orders of one stage a place do not ask for places."""
    if name not in SEVERAL_STAGES:
        return tuple(range(stages))
    places = tuple(places)
    width = max(places, default=-1) + 1
    if name == "zbv":
        want = (*range(width), *reversed(range(width)))
        said = "two stages on each place, there and back, such as a, b, b, a"
    else:
        want = tuple(range(width)) * (stages // max(width, 1))
        said = "the same places in the same order again, such as a, b, a, b"
    if len(places) != stages or places != want or width == stages:
        shown = ", ".join(f"place {place}" for place in places) or "each on a place of its own"
        raise PathwaysError("INVALID_ARGUMENT", f"the schedule {name} expects {said}; the stages are on {shown}")
    if name == "interleaved" and microbatches % width:
        raise PathwaysError(
            "INVALID_ARGUMENT",
            f"the schedule interleaved expects a multiple of {width} microbatches, as many as there are places; got"
            f" {microbatches}",
        )
    return places


def _gpipe(places: int, microbatches: int, place: int, _: int) -> Order:
    every = range(microbatches)
    return [("forward", place, m) for m in every] + [("backward", place, m) for m in every]


def _1f1b(places: int, microbatches: int, place: int, _: int) -> Order:
    ahead = min(places - place, microbatches)
    order: Order = [("forward", place, m) for m in range(ahead)]
    for m in range(microbatches):
        order.append(("backward", place, m))
        if ahead + m < microbatches:
            order.append(("forward", place, ahead + m))
    return order


def _interleaved(places: int, microbatches: int, place: int, each: int) -> Order:
    def at(kind: Kind, k: int) -> tuple[Kind, int, int]:
        """The k-th forward or backward here: `places` microbatches through one stage, then through the next."""
        turn, within = divmod(k, places * each)
        stage, m = divmod(within, places)
        stage = stage if kind == "forward" else each - 1 - stage
        return kind, stage * places + place, turn * places + m

    every = microbatches * each
    ahead = min(2 * (places - place - 1) + (each - 1) * places, every)
    order = [at("forward", k) for k in range(ahead)]
    for k in range(every - ahead):
        order += [at("forward", ahead + k), at("backward", k)]
    return order + [at("backward", k) for k in range(every - ahead, every)]


def _delayed(ahead: int, delay: int, microbatches: int, stage: int) -> Order:
    """So many forwards ahead, and the weight half of a microbatch so many backwards later."""
    order: Order = [("forward", stage, m) for m in range(min(ahead, microbatches))]
    done = len(order)
    for m in range(microbatches):
        order.append(("input", stage, m))
        if m >= delay:
            order.append(("weight", stage, m - delay))
        if done < microbatches:
            order.append(("forward", stage, done))
            done += 1
    return order + [("weight", stage, m) for m in range(max(microbatches - delay, 0), microbatches)]


def _zb_h1(places: int, microbatches: int, place: int, _: int) -> Order:
    return _delayed(places - place, place, microbatches, place)


def _zb_h2(places: int, microbatches: int, place: int, _: int) -> Order:
    return _delayed(2 * (places - place) - 1, 2 * place, microbatches, place)


def _zbv(places: int, microbatches: int, place: int, _: int) -> Order:
    stages = place, 2 * places - 1 - place  # the one on the way there, and the one on the way back
    done = {kind: [0, 0] for kind in ("forward", "input", "weight")}
    order: Order = []

    def do(kind: Kind, way: int) -> None:
        if done[kind][way] < microbatches:
            order.append((kind, stages[way], done[kind][way]))
            done[kind][way] += 1

    def again(times: int, *ops: tuple[Kind, int]) -> None:
        for _ in range(times):
            for op in ops:
                do(*op)

    again(2 * (places - place) - 1, ("forward", 0))
    again(place, ("forward", 1), ("forward", 0))
    again(places - place, ("forward", 1), ("input", 1), ("weight", 1))
    while done["forward"][1] < microbatches:
        again(1, *((kind, way) for way in (0, 1) for kind in ("forward", "input", "weight")))
    again(place, ("input", 0), ("input", 1))
    while done["input"][0] < microbatches:
        do("input", 0)
        do("weight", int(done["weight"][1] < done["input"][1]))
    again(microbatches, ("weight", 1))
    again(microbatches, ("weight", 0))
    return order


_ORDERS: dict[str, Callable[[int, int, int, int], Order]] = {
    "gpipe": _gpipe,
    "1f1b": _1f1b,
    "interleaved": _interleaved,
    "zb-h1": _zb_h1,
    "zb-h2": _zb_h2,
    "zbv": _zbv,
}
NAMES = tuple(_ORDERS)
SEVERAL_STAGES = ("interleaved", "zbv")  # these have several stages on a place


def _joined(order: Order, whole: Collection[int]) -> Iterator[tuple[Kind, int, int]]:
    """Makes one op of the halves of backwards that cannot be split."""
    for kind, stage, m in order:
        if stage not in whole or kind == "forward":
            yield kind, stage, m
        elif kind != "weight":
            yield "backward", stage, m


def _timed(orders: list[Order], stages: int) -> list[Op]:
    """Assigns each place's ops to the first slots in which their inputs are ready.

    Returns them in the order in which they begin if a whole backward takes twice as long as other ops.
    """
    ended: dict[tuple[str, int, int], tuple[int, int]] = {}  # (what, stage, microbatch) → the slot after, and the time
    free = [(0, 0)] * len(orders)
    queues = [iter(order) for order in orders]
    heads = [next(queue, None) for queue in queues]
    ops: list[tuple[int, Op]] = []
    while any(heads):
        before = len(ops)
        for place, head in enumerate(heads):
            while head is not None:
                kind, stage, m = head
                reads = needs(kind, stage, m, stages)
                if any(read not in ended for read in reads):
                    break
                slot, begin = map(max, zip(free[place], *(ended[read] for read in reads), strict=True))
                what = "back" if kind in ("backward", "input") else kind
                ended[what, stage, m] = free[place] = slot + 1, begin + (2 if kind == "backward" else 1)
                ops.append((begin, Op(slot, stage, m, kind)))
                head = next(queues[place], None)
            heads[place] = head
        assert len(ops) > before, "places that wait for each other"
    return [op for _, op in sorted(ops)]


def needs(kind: Kind, stage: int, m: int, stages: int) -> list[tuple[str, int, int]]:
    """Returns what an op needs from others: a forward, "back", which is what the stage before waits for, or both."""
    if kind == "forward":
        return [("forward", stage - 1, m)] if stage else []
    if kind == "weight":
        return [("back", stage, m)]
    return [("forward", stage, m)] + ([("back", stage + 1, m)] if stage < stages - 1 else [])
