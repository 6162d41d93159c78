"""The order of a pipeline's ops: its rules, its idle slots, what stages keep, and its picture."""

import re
import xml.etree.ElementTree

import pathways
import pytest
from pathways._schedule import NAMES, Op, Schedule

SIZES = [(stages, microbatches) for stages in range(1, 9) for microbatches in range(1, 13)]


def places_of(name, width):
    """The place of each stage, of so many places."""
    return {"interleaved": [*range(width)] * 3, "zbv": [*range(width), *reversed(range(width))]}.get(name, range(width))


@pytest.mark.parametrize("name", NAMES)
def test_every_small_schedule_keeps_the_rules(name):
    for width, microbatches in SIZES:
        if name == "interleaved":
            microbatches *= width  # noqa: PLW2901
        check_schedule(name, width, microbatches)


def check_schedule(name, width, microbatches):
    places = places_of(name, width)
    stages = len(places)
    schedule = Schedule(name, stages, microbatches, places=places)
    kinds = ("forward", "input", "weight") if name.startswith("zb") else ("forward", "backward")
    slots = {(op.kind, op.stage, op.microbatch): op.slot for op in schedule}
    assert len(slots) == len(schedule)
    assert set(slots) == {(kind, s, m) for kind in kinds for s in range(stages) for m in range(microbatches)}
    for (kind, stage, m), slot in slots.items():
        if kind == "forward":
            assert stage == 0 or slots["forward", stage - 1, m] < slot
        elif kind == "weight":
            assert slots["input", stage, m] < slot
        else:
            assert stage + 1 == stages or slots[kind, stage + 1, m] < slot
            assert slots["forward", stage, m] < slot
    for place in range(width):
        ops = [op for op in schedule if places[op.stage] == place]
        assert len({op.slot for op in ops}) == len(ops), "one op a slot"
    for stage in range(stages):
        for kind in kinds:
            assert [op.microbatch for op in schedule.of(stage) if op.kind == kind] == list(range(microbatches))
    check_idle(schedule, width, microbatches)
    check_kept(schedule, width, microbatches)


def check_idle(schedule, width, microbatches):
    """Of the orders' papers, where there are enough microbatches."""
    if schedule.name.startswith("zb") and microbatches < 2 * width:
        return
    work = microbatches * {"gpipe": 1, "1f1b": 1, "zbv": 6}.get(schedule.name, 3)
    assert schedule.bubble == pytest.approx((width - 1) / (work + width - 1))
    if schedule.name in ("zb-h2", "zbv"):
        assert schedule.idle == 0


def check_kept(schedule, width, microbatches):
    kept = [schedule.in_flight(stage) for stage in range(schedule.stages)]
    want = {
        "gpipe": [microbatches] * width,
        "1f1b": [min(width - stage, microbatches) for stage in range(width)],
        "zb-h1": [min(width, microbatches)] * width,
        "zb-h2": [min(2 * width - 1, microbatches)] * width,
    }
    if schedule.name in want:
        assert kept == want[schedule.name]
    stages = schedule.stages // width  # of a place: each keeps its part of a microbatch
    limit = {"zbv": [width] * width, "interleaved": [(2 - 1 / stages) * width - place for place in range(width)]}
    for place, most in enumerate(limit.get(schedule.name, ())):
        now = 0
        for op in schedule:
            if schedule.places[op.stage] == place:
                now += {"forward": 1, "input": 0}.get(op.kind, -1)
                assert now / stages <= most


def test_backward_that_cannot_be_split_is_one_op():
    schedule = Schedule("zb-h1", 4, 6, whole={1})
    assert {op.kind for op in schedule.of(1)} == {"forward", "backward"}
    assert {op.kind for op in schedule.of(2)} == {"forward", "input", "weight"}
    assert "not split: stage 1" in schedule.draw()
    assert list(Schedule("zb-h1", 4, 6).with_whole({1})) == list(schedule)


def test_1f1b_is_this_schedule():
    schedule = Schedule("1f1b", 2, 3)
    rows = ["." * schedule.slots] * 2
    for slot, stage, m, kind in schedule:
        mark = str(m) if kind == "forward" else "abc"[m]
        rows[stage] = rows[stage][:slot] + mark + rows[stage][slot + 1 :]
    assert rows == ["01.a2b.c", ".0a1b2c."]
    assert schedule[0] == Op(0, 0, 0, "forward") == schedule[:1][0]


@pytest.mark.parametrize(("name", "stages", "microbatches"), [("zigzag", 2, 2), ("gpipe", 0, 2), ("1f1b", 2, 0)])
def test_schedules_that_cannot_be_are_refused(name, stages, microbatches):
    with pytest.raises(pathways.PathwaysError, match="expected") as error:
        Schedule(name, stages, microbatches)
    assert error.value.code == "INVALID_ARGUMENT"


@pytest.mark.parametrize(
    ("name", "places", "microbatches", "said"),
    [
        ("zbv", (0, 1, 0, 1), 4, "there and back, such as a, b, b, a; the stages are on place 0, place 1, place 0"),
        ("zbv", (0, 1), 4, "there and back"),
        ("interleaved", (0, 1, 1, 0), 4, "the same order again, such as a, b, a, b"),
        ("interleaved", (0, 1, 0, 1), 3, "a multiple of 2 microbatches"),
    ],
)
def test_schedule_of_several_stages_on_a_place_refuses_other_places(name, places, microbatches, said):
    with pytest.raises(pathways.PathwaysError, match=said) as error:
        Schedule(name, len(places), microbatches, places=places)
    assert error.value.code == "INVALID_ARGUMENT"


def test_a_schedules_picture_shows_each_op(tmp_path):
    schedule = Schedule("1f1b", 4, 6, ["<&>", "b", "c", "d"])
    text = schedule.draw(tmp_path / "schedule.svg")
    assert (tmp_path / "schedule.svg").read_text(encoding="utf-8") == text == schedule._repr_svg_()
    svg = "{http://www.w3.org/2000/svg}"
    root = xml.etree.ElementTree.fromstring(text)
    ops = [group for group in root.iter(f"{svg}g") if group.get("class") in ("forward", "backward")]
    drawn = {}
    for group in ops:
        stage, kind, m, slot = re.fullmatch(
            r"stage (\d+), (\w+) of microbatch (\d+), slot (\d+)", group.find(f"{svg}title").text
        ).groups()
        assert kind == group.get("class") and m == group.find(f"{svg}text").text
        box = group.find(f"{svg}rect")
        drawn[Op(int(slot), int(stage), int(m), kind)] = float(box.get("x")), float(box.get("y"))
    assert set(drawn) == set(schedule)
    corner = drawn[Op(0, 0, 0, "forward")]
    step = drawn[Op(1, 0, 1, "forward")][0] - corner[0], drawn[Op(1, 1, 0, "forward")][1] - corner[1]
    for op, (x, y) in drawn.items():
        assert (x, y) == (corner[0] + step[0] * op.slot, corner[1] + step[1] * op.stage)
    assert x + step[0] <= float(root.get("width")) and y + step[1] <= float(root.get("height"))
    assert "<&>" in "".join(root.itertext())
