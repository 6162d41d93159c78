"""A step of a pipeline as a trace has it: the times of its ops, and the picture of it beside the plan."""

import xml.etree.ElementTree

import pytest
from pathways import _picture
from pathways._plan import Cost, simulate
from pathways._recorded import recorded
from pathways._schedule import Schedule
from pathways._timeline import Span

DEVICES = [(0, 1), (2,)]
COSTS = [Cost(2, 5, onward=1, back=3), Cost(3, 4)]


def traced(schedule, costs, start=0.0, gang=1):
    """The spans of a step: a computation's begin is that of its device, which then waits for what it reads. Returns
    the step, too."""
    (step,) = simulate(schedule, costs, DEVICES)
    free, spans = {}, []
    for op, _, end in step:
        for device in DEVICES[op.stage]:
            begin = free.get(device, 0.0)
            spans.append(Span(device, f"stage{op.stage}_{op.kind}", gang, start + begin, end - begin))
            free[device] = end
        gang += 1
    return step, spans


def test_ops_begin_once_what_they_read_is_made():
    schedule = Schedule("1f1b", 2, 3)
    step, spans = traced(schedule, [Cost(2, 5), Cost(3, 4)])
    assert recorded(schedule, DEVICES, spans).ops == step
    # A move is not in the trace: what waits for it seems to run.
    step, spans = traced(schedule, COSTS)
    ran = {timed.op: timed[1:] for timed in recorded(schedule, DEVICES, spans).ops}
    for op, begin, end in step:
        move = {("forward", 1): 1, ("backward", 0): 3}.get((op.kind, op.stage), 0)
        assert ran[op][1] == end and begin - move <= ran[op][0] <= begin


def test_an_end_seen_late_is_no_later_than_that_of_what_reads_the_result():
    schedule = Schedule("zb-h1", 2, 3)
    step, spans = traced(schedule, [Cost(2, 5), Cost(3, 4)])
    late = [span._replace(seconds=span.seconds + 50) if span.name == "stage0_forward" else span for span in spans]
    ends = {timed.op[1:]: timed.end for timed in step}
    for op, begin, end in recorded(schedule, DEVICES, late).ops:
        reads_it = 1 if op.kind == "forward" else op.stage
        assert begin <= end == ends[reads_it, op.microbatch, op.kind]


def test_the_last_step_counts_with_what_ran_beside_it():
    schedule, costs = Schedule("gpipe", 2, 2), [Cost(1, 2)] * 2
    _, first = traced(schedule, costs)
    step, second = traced(schedule, costs, 100.0, 20)
    elsewhere = [span._replace(device=span.device + 4, gang=span.gang + 50) for span in first]
    rest = [
        Span(2, "update", 41, 107.5, 1.0),
        *(Span(device, "total", 43, 108.0, 0.5) for device in (0, 1)),
        Span(2, "before", 12, 20.0, 1.0),
        Span(7, "update", 42, 108.0, 9.0),
    ]
    ran = recorded(schedule, DEVICES, [*rest, *second, *elsewhere, *first])
    assert ran.ops == step
    assert ran.others == [(1, "update", 7.5, 8.5), (0, "total", 8.0, 8.5)]
    assert ran.seconds == 9.0  # when the first stage's last backward ends
    assert ran.bubble == pytest.approx(1 - (6 + 6) / (2 * 9))


def test_a_trace_without_all_of_a_step_has_none():
    schedule = Schedule("1f1b", 2, 3)
    _, spans = traced(schedule, COSTS)
    assert recorded(schedule, DEVICES, []) is None
    assert recorded(schedule, DEVICES, [span for span in spans if span.gang != 3]) is None
    assert recorded(schedule, [(0, 1), (3,)], spans) is None


def test_an_input_half_that_nothing_waits_for_is_no_computation():
    schedule = Schedule("zb-h1", 2, 3)
    step, spans = traced(schedule, [Cost(1, 2, 0, 1), Cost(1, 2, 1, 1)])
    assert recorded(schedule, DEVICES, [s for s in spans if s.name != "stage0_input"]).ops == step


def test_a_plan_has_ops_as_long_as_the_median_and_nothing_in_between():
    schedule = Schedule("1f1b", 2, 3)
    plan, spans = traced(schedule, [Cost(2, 5), Cost(3, 4)])
    slow = [span._replace(seconds=span.seconds + 7) if span.gang == spans[-1].gang else span for span in spans]
    ran = recorded(schedule, DEVICES, slow)
    assert ran.ops != plan
    assert ran.planned == plan


def test_the_picture_has_the_step_beside_the_plan_on_one_axis_of_time():
    schedule = Schedule("1f1b", 2, 3, ["a", "b"])
    step, spans = traced(schedule, COSTS)  # its moves are not in the plan
    spans += [Span(2, "stage1_zeros", 90, 40.0, 1.0), Span(0, "update", 91, 48.0, 2.0)]
    ran = recorded(schedule, DEVICES, spans)
    svg = "{http://www.w3.org/2000/svg}"
    root = xml.etree.ElementTree.fromstring(_picture.svg(schedule, ran))
    idle = [rect for rect in root.iter(f"{svg}rect") if rect.get("class") == "idle"]
    left, width = float(idle[0].get("x")), float(idle[0].get("width"))
    tops = [float(rect.get("y")) for rect in idle]
    assert len(idle) == 4 and tops == sorted(tops) and tops[-1] < float(root.get("height"))

    def box(row, begin, end):
        return (
            tops[row],
            pytest.approx(left + width * begin / 50, abs=0.01),
            pytest.approx(width * (end - begin) / 50, abs=0.01),
        )

    drawn = []
    for group in root.iter(f"{svg}g"):
        title, rect = group.find(f"{svg}title").text, group.find(f"{svg}rect")
        drawn.append((title.partition(":")[0], *(float(rect.get(name)) for name in ("y", "x", "width"))))
    wanted = [
        (f"stage {op.stage}, {op.kind} of microbatch {op.microbatch}", *box(2 * op.stage + row, begin, end))
        for row, ops in enumerate((ran.planned, ran.ops))
        for op, begin, end in ops
    ]
    assert drawn == [*wanted, ("stage1_zeros", *box(3, 40, 41)), ("update", *box(1, 48, 50))]
    said = " ".join(" ".join(root.itertext()).split())
    assert "a: plan as it ran b: plan as it ran" in said
    assert f"as it ran: {ran.bubble:.0%} idle (25% planned)" in said and "gray: other work" in said
    assert "time: 50 s" in said and f"plan: {max(end for *_, end in ran.planned):g} s, if each op" in said
