"""The times of the ops of a pipeline's step, from a trace.

A trace knows when a computation ended, and when it was submitted and the one before it had ended. It began once what it
reads had been made, too, and the schedule knows what that is.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from math import inf, isclose
from statistics import median
from typing import NamedTuple

from pathways._plan import Cost, Timed, idle, simulate
from pathways._schedule import Schedule, needs
from pathways._timeline import Span


class Other(NamedTuple):
    """A computation on a place that is no op of the schedule, such as an optimizer's."""

    place: int
    name: str
    begin: float
    end: float


class Recorded:
    """A recorded step of a pipeline. Times are in seconds from the begin of its first op.

    Attributes:
      ops: each op of the schedule with its begin and end, `(op, begin, end)`, in the schedule's order.
      planned: the same for the schedule's plan, if each op took the median of its stage and kind, and no time passed
        between an op and those that wait for it.
      others: what else ran on the places since then, `(place, name, begin, end)`, such as an optimizer's update.
      bubble: the share of time in which a place ran no op, from the first begin to the last end. `schedule.bubble` is
        the planned one.
    """

    def __init__(self, schedule: Schedule, ops: Sequence[Timed], others: Sequence[Other]):
        start = min(timed.begin for timed in ops)
        self.ops = [Timed(op, begin - start, end - start) for op, begin, end in ops]
        self.planned = _planned(schedule, self.ops)
        self.others = [Other(place, name, begin - start, end - start) for place, name, begin, end in others]
        self.bubble = idle([(begin, end) for _, begin, end in self.ops], max(schedule.places) + 1)

    @property
    def seconds(self) -> float:
        """From the begin of the first op to the end of all that ran."""
        return max(end for *_, end in [*self.ops, *self.others])


def recorded(schedule: Schedule, devices: Sequence[Sequence[int]], spans: Iterable[Span]) -> Recorded | None:
    """Returns the last step that a trace has of a pipeline, or None if it has none.

    devices: of each stage.
    """
    by_gang: dict[int, list[Span]] = defaultdict(list)
    for span in spans:
        by_gang[span.gang].append(span)
    gangs = [by_gang[gang] for gang in sorted(by_gang)]
    runs = _runs(schedule, devices, gangs)
    if runs is None:
        return None
    ops, mine = _timed(schedule, runs)
    first = min(mine)
    places = {device: place for stage, place in reversed([*enumerate(schedule.places)]) for device in devices[stage]}
    others = []
    for gang in gangs:
        if gang[0].gang <= first or gang[0].gang in mine:
            continue
        for place in sorted({places[span.device] for span in gang if span.device in places}):
            begin = min(span.begin for span in gang)
            others.append(Other(place, gang[0].name, begin, max(span.begin + span.seconds for span in gang)))
    return Recorded(schedule, ops, others)


def _planned(schedule: Schedule, ops: Iterable[Timed]) -> list[Timed]:
    """Returns the ops as the schedule has them, each as long as the median of its stage and kind."""
    took: list[dict[str, list[float]]] = [defaultdict(list) for _ in range(schedule.stages)]
    for op, begin, end in ops:
        took[op.stage][op.kind].append(end - begin)
    costs = [Cost(**{kind: median(lengths) for kind, lengths in of.items()}) for of in took]
    (step,) = simulate(schedule, costs, [[place] for place in schedule.places])
    return step


def _runs(
    schedule: Schedule, devices: Sequence[Sequence[int]], gangs: Sequence[list[Span]]
) -> dict[tuple[str, int], list[list[Span]]] | None:
    """Returns the last runs of each kind of op on each stage, one a microbatch. Each stage takes microbatches in their
    order, and gangs are in the order in which they were submitted."""
    of_name: dict[str, list[list[Span]]] = defaultdict(list)
    for gang in gangs:
        of_name[gang[0].name].append(gang)
    runs = {}
    for kind, stage in {(op.kind, op.stage) for op in schedule}:
        here = [gang for gang in of_name[f"stage{stage}_{kind}"] if {s.device for s in gang} == set(devices[stage])]
        if len(here) < schedule.microbatches and (here or kind != "input"):
            return None
        # An input half for which no stage waits is no computation.
        runs[kind, stage] = here[-schedule.microbatches :]
    return runs


def _timed(schedule: Schedule, runs: dict[tuple[str, int], list[list[Span]]]) -> tuple[list[Timed], set[int]]:
    """Returns the ops with their times, and their gangs."""
    taken = [run[op.microbatch] if (run := runs[op.kind, op.stage]) else [] for op in schedule]
    needed = [needs(op.kind, op.stage, op.microbatch, schedule.stages) for op in schedule]
    made = ["back" if op.kind in ("backward", "input") else op.kind for op in schedule]
    results = [(kind, op.stage, op.microbatch) for kind, op in zip(made, schedule, strict=True)]

    # A busy process sees an end late. An op has ended, at the latest, when what reads its result has; and what was seen
    # to begin right behind it has begun then.
    latest: dict[tuple[str, int, int], float] = defaultdict(lambda: inf)
    for result, reads, run in zip(reversed(results), reversed(needed), reversed(taken), strict=True):
        end = max((span.begin + span.seconds for span in run), default=inf)
        latest[result] = end = min(end, latest[result])
        for read in reads:
            latest[read] = min(end, latest[read])

    ops, ended = [], {}
    seen: dict[int, tuple[float, float]] = {}  # by device: when its last op was seen to end, and had ended
    for op, result, reads, run in zip(schedule, results, needed, taken, strict=True):
        begin = ready = max((ended[read] for read in reads), default=0.0)
        ended[result] = end = latest[result] if run else ready
        for span in run:
            late, before = seen.get(span.device, (-inf, -inf))
            begin = max(begin, before if isclose(span.begin, late, abs_tol=1e-6) else span.begin)
            seen[span.device] = span.begin + span.seconds, end
        ops.append(Timed(op, min(begin, end), end))
    return ops, {run[0].gang for run in taken if run}
