"""The slot of each fragment of a partitioned function, assuming that all take the same time and transfers take none."""

from __future__ import annotations

import os
import re
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

import jax
from jax.sharding import Mesh

from pathways import _graph
from pathways._slots import LEFT, Picture
from pathways._text import count
from pathways.mpmd._fragments import Array

Kind = Literal["forward", "backward", "weights", "other"]
# jaxlib's names: p3_stage1_fwd_calls1to3 is run for the microbatches 1, 2 and 3, one after the other.
NAME = re.compile(r"p\d+_(?:stage(?P<stage>\d+))?.*?(?P<way>_fwd|_bwd)?(?:_calls?(?P<first>\d+)(?P<step>to|from)?\d*)?")


class Op(NamedTuple):
    """A fragment in a timetable. `weights` is what a schedule has split off a backward; microbatch is None if it is
    of none, or of several."""

    slot: int
    mesh: str
    name: str
    kind: Kind
    microbatch: int | None


class Timetable:
    """The plan of a step: a sequence of ops, in the order of submission. A notebook draws it.

    Attributes:
      meshes: the names of the meshes, a row each.
      slots: the number of slots from beginning to end.
      bubble: the fraction of slots in which a mesh is idle.
    """

    def __init__(
        self,
        steps: Sequence[tuple[str | None, Sequence[int], Sequence[int]]],
        arrays: Sequence[Array],
        topology: Mapping[str, Mesh],
    ):
        """steps: for each operation the fragment's name, None for a copy, what it reads and what it makes."""
        self.meshes = list(topology)
        of_device = {device: name for name, mesh in topology.items() for device in mesh.devices.flat}
        free, ready, runs, seen = dict.fromkeys(topology, 0), {}, {}, set()
        self._ops: list[Op] = []
        for name, reads, makes in steps:
            begin = max((ready.get(i, 0) for i in reads), default=0)
            if name is None:
                ready.update(dict.fromkeys(makes, begin))
                continue
            device: jax.Device = next(iter(arrays[[*makes, *reads][0]].sharding.device_set))
            mesh = of_device[device]
            slot = max(begin, free[mesh])
            free[mesh] = slot + 1
            ready.update(dict.fromkeys(makes, slot + 1))
            runs[name] = runs.get(name, -1) + 1
            kind, microbatch = _role(name, mesh, runs[name], seen)
            self._ops.append(Op(slot, mesh, name, kind, microbatch))
        self.slots = max(free.values(), default=0)
        self.bubble = 1 - len(self._ops) / max(1, len(self.meshes) * self.slots)

    def __getitem__(self, index):
        return self._ops[index]

    def __len__(self) -> int:
        return len(self._ops)

    def __iter__(self) -> Iterator[Op]:
        return iter(self._ops)

    def of(self, mesh: str) -> list[Op]:
        """Returns the ops of one mesh, in the order of time."""
        return [op for op in self._ops if op.mesh == mesh]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the picture, an SVG: a row for each mesh, time from left to right."""
        _graph.write(path, self._repr_svg_())

    def _repr_svg_(self) -> str:
        return _svg(self)

    def __repr__(self) -> str:
        meshes, slots = count(len(self.meshes), "mesh"), count(self.slots, "slot")
        return f"<Timetable of {count(len(self), 'fragment')} on {meshes}: {slots}, bubble {self.bubble:.1%}>"


def by_begin(
    ops: Sequence[tuple[str, Hashable, Sequence[int], Sequence[int]]], sources: Mapping[int, int]
) -> list[int]:
    """Returns the numbers of fragments in the order in which they begin, if a backward that is not split is as long as
    two others. The order of each mesh stays.

    A cluster gives places ahead only for some device time, so what is submitted too early keeps others back.

    ops: for each fragment its name, its mesh, what it reads and what it makes, in an order in which each can run.
    sources: of what each copy is one.
    """
    runs, seen = {}, set()
    kinds = []
    for name, mesh, _, _ in ops:
        runs[name] = runs.get(name, -1) + 1
        kinds.append(_role(name, mesh, runs[name], seen)[0])
    whole = "weights" not in kinds
    free, ready, begins = {}, {}, []
    for (_, mesh, reads, makes), kind in zip(ops, kinds, strict=True):
        begins.append(max(free.get(mesh, 0), *(ready.get(_made(i, sources), 0) for i in reads), 0))
        free[mesh] = begins[-1] + (2 if kind == "backward" and whole else 1)
        ready.update(dict.fromkeys(makes, free[mesh]))
    return sorted(range(len(ops)), key=begins.__getitem__)


def _made(value: int, sources: Mapping[int, int]) -> int:
    """Returns the value of which this one is a copy, or a copy of one, or itself."""
    while value in sources:
        value = sources[value]
    return value


def _role(name: str, mesh: Hashable, run: int, seen: set[tuple[Hashable, str, int]]) -> tuple[Kind, int | None]:
    """Returns what a fragment is in its given run, from 0; seen has the backwards before it."""
    found = NAME.fullmatch(name)
    if found is None or found["stage"] is None and found["way"] is None:
        return "other", None
    way: Kind = "backward" if found["way"] == "_bwd" else "forward"
    if found["first"] is None:  # run for microbatches in another order than theirs, or for none
        return way, None
    microbatch = int(found["first"]) + (-run if found["step"] == "from" else run)
    key = mesh, found["stage"] or "", microbatch
    if way == "backward" and key in seen:
        return "weights", microbatch
    if way == "backward":
        seen.add(key)
    return way, microbatch


_FILL = {"forward": "#9cc3ea", "backward": "#3f8f5f", "weights": "#c9a227", "other": "#8a94a3"}


def _svg(table: Timetable) -> str:
    title = f"{count(len(table), 'fragment')}, {count(table.slots, 'slot')}, {table.bubble:.0%} idle"
    picture, x = Picture(title, table.meshes, table.slots, foot=14), LEFT
    for kind, fill in _FILL.items():
        if any(op.kind == kind for op in table):
            picture.parts.append(f'<rect x="{x}" y="31" width="10" height="10" fill="{fill}"/>')
            picture.parts.append(f'<text x="{x + 14}" y="40" fill="#555">{kind}</text>')
            x += 90
    for op in table:
        ink = "#123" if op.kind in ("forward", "weights") else "#fff"
        label = "" if op.microbatch is None else op.microbatch
        said = f"{op.name}, {op.kind}, slot {op.slot}"
        picture.box(op.slot, table.meshes.index(op.mesh), op.kind, said, label, _FILL[op.kind], ink)
    return picture.text()
