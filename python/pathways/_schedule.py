"""The order in which the stages of a pipeline process their microbatches, as data.

This module is pure: it deals with numbers of stages and microbatches, not with arrays or devices. Time is counted in
slots: a forward or a backward of one microbatch on one stage takes one slot, a move between stages takes none.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple
from xml.sax.saxutils import escape

from pathways import _graph
from pathways._errors import PathwaysError
from pathways._text import count

Kind = Literal["forward", "backward"]
NAMES = ("gpipe", "1f1b")


class Op(NamedTuple):
    """One microbatch on one stage, forward or backward, in one slot of time."""

    slot: int
    stage: int
    microbatch: int
    kind: Kind


class Schedule(Sequence[Op]):
    """All ops of one step of a pipeline, in the order in which they are submitted: by slot, then by stage.

    A forward comes after the same microbatch's forward on the previous stage. A backward comes after its backward on
    the next stage, and after its own forward. A stage does one op per slot. In every schedule, backwards process the
    microbatches from the first to the last, so that gradients always add up in the same order.

    ``gpipe``: all forwards, then all backwards; a stage keeps what M microbatches need for their backwards.
    ``1f1b``: a stage begins a backward as soon as it can, and keeps at most min(S - stage, M). The time is the same.

    Attributes:
      name: ``gpipe`` or ``1f1b``.
      stages, microbatches: their numbers, called S and M here.
      slots: the length of a step, 2 (M + S - 1).
      bubble: the share of idle slots, (S - 1) / (M + S - 1).
      rows: the names of the stages in the picture.
    """

    def __init__(self, name: str, stages: int, microbatches: int, rows: Sequence[str] = ()):
        if name not in NAMES:
            raise PathwaysError("INVALID_ARGUMENT", f"the schedule is {name!r}; expected one of {', '.join(NAMES)}")
        if stages < 1 or microbatches < 1:
            raise PathwaysError(
                "INVALID_ARGUMENT", f"{stages} stages and {microbatches} microbatches; expected at least one of each"
            )
        self.name, self.stages, self.microbatches = name, stages, microbatches
        self.rows = tuple(rows) or tuple(f"stage {stage}" for stage in range(stages))
        self._ops = _timed([_order(name, stages, microbatches, stage) for stage in range(stages)])
        self.slots = self._ops[-1].slot + 1
        self.bubble = 1 - len(self._ops) / (stages * self.slots)

    def __getitem__(self, index):
        return self._ops[index]

    def __len__(self) -> int:
        return len(self._ops)

    def __repr__(self) -> str:
        return f"<Schedule {self.name}: {_shape(self)}, {count(self.slots, 'slot')}, bubble {self.bubble:.1%}>"

    def of(self, stage: int) -> list[Op]:
        """Returns the ops of one stage, in the order of time."""
        return [op for op in self._ops if op.stage == stage]

    def in_flight(self, stage: int) -> int:
        """Returns the largest number of microbatches whose forward a stage has done and whose backward it has not."""
        now = most = 0
        for op in self.of(stage):
            now += 1 if op.kind == "forward" else -1
            most = max(most, now)
        return most

    def draw(self, path: str | os.PathLike[str] | None = None) -> str:
        """Draws time from left to right and a row for each stage, as SVG.

        Args:
          path: a file to write it to, whose name ends in .svg; None means no file.

        Returns:
          the text of the picture.
        """
        svg = _svg(self)
        if path is not None:
            _graph.write(path, svg)
        return svg

    def _repr_svg_(self) -> str:  # what a notebook shows
        return self.draw()


def _order(name: str, stages: int, microbatches: int, stage: int) -> list[tuple[Kind, int]]:
    """Returns the ops of one stage in their order; `_timed` decides when they run."""
    ahead = microbatches if name == "gpipe" else min(stages - stage, microbatches)
    order: list[tuple[Kind, int]] = [("forward", m) for m in range(ahead)]
    for m in range(microbatches):
        order.append(("backward", m))
        if ahead + m < microbatches:
            order.append(("forward", ahead + m))
    return order


def _timed(orders: list[list[tuple[Kind, int]]]) -> list[Op]:
    """Assigns each stage's ops to the first slots in which their inputs are ready."""
    last = len(orders) - 1
    ended: dict[tuple[Kind, int, int], int] = {}  # (kind, stage, microbatch) → the slot after
    free = [0] * len(orders)
    queues: list[Iterator[tuple[Kind, int]]] = [iter(order) for order in orders]
    heads = [next(queue, None) for queue in queues]
    ops = []
    while any(heads):
        before = len(ops)
        for stage, head in enumerate(heads):
            while head is not None:
                kind, m = head
                if kind == "forward":
                    need = ("forward", stage - 1, m) if stage else None
                else:
                    need = ("backward", stage + 1, m) if stage < last else ("forward", stage, m)
                if need is not None and need not in ended:
                    break
                slot = max(free[stage], ended.get(need, 0))
                ended[kind, stage, m] = free[stage] = slot + 1
                ops.append(Op(slot, stage, m, kind))
                head = next(queues[stage], None)
            heads[stage] = head
        assert len(ops) > before, "stages that wait for each other"
    return sorted(ops)


# --- the picture ---

_CELL, _ROW, _LEFT, _TOP, _EDGE = 26, 30, 16, 52, 14  # pixels
_LIGHTNESS = {"forward": 72, "backward": 45}


def _shape(schedule: Schedule) -> str:
    return f"{count(schedule.stages, 'stage')}, {count(schedule.microbatches, 'microbatch')}"


def _svg(schedule: Schedule) -> str:
    left = _LEFT + max(7 * max(map(len, schedule.rows)), 20) + 10
    right = left + _CELL * schedule.slots
    width = max(right + _EDGE, 560)
    bottom = _TOP + _ROW * schedule.stages
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{bottom + 44}" '
        f'viewBox="0 0 {width} {bottom + 44}" font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{bottom + 44}" fill="#fff"/>',
        f'<text x="{_LEFT}" y="24" font-size="14" font-weight="bold">{schedule.name}: '
        f"{_shape(schedule)}, {schedule.bubble:.0%} idle</text>",
        f'<text x="{_LEFT}" y="42" fill="#555">numbers are microbatches: light forward, dark backward</text>',
    ]
    for stage, name in enumerate(schedule.rows):
        y = _TOP + _ROW * stage
        parts.append(f'<text x="{_LEFT}" y="{y + 20}">{escape(name)}</text>')
        parts.append(
            f'<rect x="{left}" y="{y + 2}" width="{right - left}" height="{_ROW - 4}" fill="#eee" class="idle"/>'
        )
    for op in schedule:
        x, y = left + _CELL * op.slot, _TOP + _ROW * op.stage
        hue = 210 if op.kind == "forward" else 145
        lightness = _LIGHTNESS[op.kind] + 8 * (op.microbatch % 2)
        ink = "#123" if op.kind == "forward" else "#fff"
        parts.append(
            f'<g class="{op.kind}"><title>stage {op.stage}, {op.kind} of microbatch {op.microbatch}, slot {op.slot}'
            f'</title><rect x="{x + 1}" y="{y + 2}" width="{_CELL - 2}" height="{_ROW - 4}" rx="2" '
            f'fill="hsl({hue},55%,{lightness}%)"/><text x="{x + _CELL / 2:g}" y="{y + 20}" text-anchor="middle" '
            f'fill="{ink}">{op.microbatch}</text></g>'
        )
    parts.append(f'<path d="M{left} {bottom + 12}H{right}m-6 -4l6 4l-6 4" fill="none" stroke="#555"/>')
    parts.append(f'<text x="{left}" y="{bottom + 32}" fill="#555">time, in {schedule.slots} slots</text>')
    return "\n".join([*parts, "</svg>\n"])
