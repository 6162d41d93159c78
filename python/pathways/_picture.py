"""Draws the schedule of a pipeline, and below it the step as it ran, where that was recorded."""

from __future__ import annotations

from pathways._plan import ADDING
from pathways._recorded import Recorded
from pathways._schedule import Op, Schedule
from pathways._slots import LEFT, ROW, Picture
from pathways._text import duration

# By kind: hue, lightness, and the colour of the number.
_LOOKS = {
    "forward": (210, 72, "#123"),
    "backward": (145, 45, "#fff"),
    "input": (145, 45, "#fff"),
    "weight": (45, 62, "#321"),
}


OTHER = "#9aa"  # the colour of what is no op

GAP = 74  # pixels between the rows of the plan and those of the step
FOOT = 44  # pixels below the last rows


def svg(schedule: Schedule, recorded: Recorded | None = None) -> str:
    title = f"{schedule.name}: {schedule.shape}, {schedule.bubble:.0%} idle"
    foot = FOOT + (GAP + ROW * len(schedule.rows) if recorded else 0)
    picture = Picture(title, schedule.rows, schedule.slots, foot)
    picture.parts.append(f'<text x="{LEFT}" y="42" fill="#555">numbers are microbatches: {_colours(schedule)}</text>')
    for op in schedule:
        said = f"stage {op.stage}, {op.kind} of microbatch {op.microbatch}, slot {op.slot}"
        picture.box(op.slot, schedule.places[op.stage], op.kind, said, op.microbatch, *_look(schedule, op))
    _axis(picture, picture.bottom, f"time, in {schedule.slots} slots")
    if recorded:
        _ran(picture, schedule, recorded)
    return picture.text()


def _ran(picture: Picture, schedule: Schedule, recorded: Recorded) -> None:
    """Draws a recorded step below the plan, as wide as that."""
    top, whole = picture.bottom + GAP, recorded.seconds
    said = f"as it ran: {recorded.bubble:.0%} idle ({schedule.bubble:.0%} planned), all in {duration(whole)}"
    if recorded.others:
        said += "; grey: other work, such as an optimizer's"
    picture.parts.append(f'<text x="{LEFT}" y="{top - 10}" font-weight="bold">{said}</text>')
    picture.rows(top, schedule.rows)
    for op, begin, end in recorded.ops:
        if op.kind == "input" and begin == end:  # an input half for which no stage waits is no computation
            continue
        said = f"stage {op.stage}, {op.kind} of microbatch {op.microbatch}: {duration(end - begin)}"
        y = top + ROW * schedule.places[op.stage]
        picture.bar(begin / whole, end / whole, y, op.kind, said, op.microbatch, *_look(schedule, op))
    for place, name, begin, end in recorded.others:
        said, kind = f"{name}: {duration(end - begin)}", "adding" if name == ADDING else "other"
        picture.bar(begin / whole, end / whole, top + ROW * place, kind, said, "", OTHER, "#fff")
    _axis(picture, top + ROW * len(schedule.rows), f"time: {duration(whole)}")


def _colours(schedule: Schedule) -> str:
    if any(op.kind == "weight" for op in schedule):
        said = "blue forward, green input gradients, yellow weight gradients"
    else:
        said = "light forward, dark backward"
    if schedule.whole:
        said += f"; not split: {', '.join(f'stage {stage}' for stage in sorted(schedule.whole))}"
    return said


def _look(schedule: Schedule, op: Op) -> tuple[str, str]:
    """Returns the colours of an op's box, and of its number."""
    hue, lightness, ink = _LOOKS[op.kind]
    lightness += 8 * (op.microbatch % 2)
    saturation = 55 if op.stage < len(schedule.rows) else 90  # a place's later stages
    return f"hsl({hue},{saturation}%,{lightness}%)", ink


def _axis(picture: Picture, bottom: float, said: str) -> None:
    left, right = picture.left, picture.right
    picture.parts += [
        f'<path d="M{left} {bottom + 12}H{right}m-6 -4l6 4l-6 4" fill="none" stroke="#555"/>',
        f'<text x="{left}" y="{bottom + 32}" fill="#555">{said}</text>',
    ]
