"""Draws the schedule of a pipeline, or, where a step was recorded, plan and truth side by side."""

from __future__ import annotations

from pathways._recorded import Recorded
from pathways._schedule import Op, Schedule
from pathways._slots import LEFT, Picture
from pathways._text import duration

# By kind: hue, lightness, and the color of the number.
_LOOKS = {
    "forward": (210, 72, "#123"),
    "backward": (145, 45, "#fff"),
    "input": (145, 45, "#fff"),
    "weight": (45, 62, "#321"),
}

OTHER = "#9aa"  # the color of what is no op
FOOT = 44  # pixels below the rows
LINE = 18  # pixels of a further line of text there


def svg(schedule: Schedule, recorded: Recorded | None = None) -> str:
    return _beside(schedule, recorded) if recorded else _slots(schedule)


def _slots(schedule: Schedule) -> str:
    """Draws the schedule alone: an op takes a slot, or so many of them."""
    title = f"{schedule.name}: {schedule.shape}, {schedule.bubble:.0%} idle"
    picture = Picture(title, schedule.rows, schedule.slots, FOOT)
    _say(picture, 42, f"numbers are microbatches: {_colors(schedule)}")
    for op in schedule:
        said = f"stage {op.stage}, {op.kind} of microbatch {op.microbatch}, slot {op.slot}"
        picture.box(op.slot, schedule.places[op.stage], op.kind, said, op.microbatch, *_look(schedule, op))
    _axis(picture, f"time, in {schedule.slots} slots")
    return picture.text()


def _beside(schedule: Schedule, recorded: Recorded) -> str:
    """Draws two rows for each place on one axis of time: the plan, and the step as it ran."""
    planned = max(end for *_, end in recorded.planned)
    title = f"{schedule.name}: {schedule.shape}; as it ran: {recorded.bubble:.0%} idle ({schedule.bubble:.0%} planned)"
    rows = [said for name in schedule.rows for said in (f"{name}: plan", "as it ran")]
    picture = Picture(title, rows, schedule.slots, FOOT + LINE, pairs=True)
    whole, colors = max(recorded.seconds, planned), _colors(schedule)
    if recorded.others:
        colors += "; gray: other work, such as an optimizer's"
    _say(picture, 42, f"numbers are microbatches: {colors}")
    for row, ops in enumerate((recorded.planned, recorded.ops)):
        for op, begin, end in ops:
            if op.kind == "input" and begin == end:  # an input half for which no stage waits is no computation
                continue
            said = f"stage {op.stage}, {op.kind} of microbatch {op.microbatch}: {duration(end - begin)}"
            at = 2 * schedule.places[op.stage] + row
            picture.bar(begin / whole, end / whole, at, op.kind, said, op.microbatch, *_look(schedule, op))
    for place, name, begin, end in recorded.others:
        said = f"{name}: {duration(end - begin)}"
        picture.bar(begin / whole, end / whole, 2 * place + 1, "other", said, "", OTHER, "#fff")
    _axis(picture, f"time: {duration(recorded.seconds)}")
    said = f"plan: {duration(planned)}, if each op took the median of its stage and kind, and nothing came between"
    _say(picture, picture.bottom + 32 + LINE, said)
    return picture.text()


def _colors(schedule: Schedule) -> str:
    if any(op.kind == "weight" for op in schedule):
        said = "blue forward, green input gradients, yellow weight gradients"
    else:
        said = "light forward, dark backward"
    if schedule.whole:
        said += f"; not split: {', '.join(f'stage {stage}' for stage in sorted(schedule.whole))}"
    return said


def _look(schedule: Schedule, op: Op) -> tuple[str, str]:
    """Returns the colors of an op's box, and of its number."""
    hue, lightness, ink = _LOOKS[op.kind]
    lightness += 8 * (op.microbatch % 2)
    saturation = 55 if op.stage < len(schedule.rows) else 90  # a place's later stages
    return f"hsl({hue},{saturation}%,{lightness}%)", ink


def _axis(picture: Picture, said: str) -> None:
    left, right, bottom = picture.left, picture.right, picture.bottom
    picture.parts.append(f'<path d="M{left} {bottom + 12}H{right}m-6 -4l6 4l-6 4" fill="none" stroke="#555"/>')
    _say(picture, bottom + 32, said, left)


def _say(picture: Picture, y: float, said: str, x: float = LEFT) -> None:
    picture.parts.append(f'<text x="{x}" y="{y}" fill="#555">{said}</text>')
