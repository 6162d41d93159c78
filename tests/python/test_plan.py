"""How long a step of a pipeline takes, by the times of its stages, and which schedule is chosen for it."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pathways import PathwaysError
from pathways._plan import Cost, Plan, held, simulate
from pathways._schedule import NAMES, Schedule, needs

SPLIT = Cost(forward=1, backward=2, input=1, weight=1)


def scheduled(name, width, microbatches, whole=()):
    """A schedule for so many places, and the devices of its stages."""
    places = {"interleaved": [*range(width)] * 2, "zbv": [*range(width), *reversed(range(width))]}.get(name)
    places = places or [*range(width)]
    microbatches *= width if name == "interleaved" else 1
    return Schedule(name, len(places), microbatches, places=places, whole=whole), [[place] for place in places]


@pytest.mark.parametrize("name", NAMES)
def test_ops_of_equal_length_run_in_the_slots_of_the_schedule(name):
    for width, microbatches in ((1, 1), (2, 5), (4, 3), (5, 12)):
        if width == 1 and name in ("interleaved", "zbv"):
            microbatches += 1  # noqa: PLW2901
        schedule, devices = scheduled(name, width, microbatches)
        costs = [Cost(1, 1, 1, 1)] * schedule.stages
        (step,) = simulate(schedule, costs, devices)
        assert [(timed.op.slot, timed.op.slot + 1) for timed in step] == [timed[1:] for timed in step]


@pytest.mark.parametrize("name", NAMES)
def test_ops_are_submitted_in_the_order_in_which_they_begin(name):
    for width, microbatches in ((1, 2), (2, 5), (4, 3), (5, 12)):
        schedule, devices = scheduled(name, width, microbatches)
        (step,) = simulate(schedule, [SPLIT] * schedule.stages, devices)
        begins = [timed.begin for timed in step]
        assert begins == sorted(begins) and begins[0] == 0


seconds = st.integers(0, 50)


@st.composite
def pipelines(draw):
    name, width, microbatches = draw(st.sampled_from(NAMES)), draw(st.integers(1, 4)), draw(st.integers(1, 6))
    stages = width * (2 if name in ("interleaved", "zbv") else 1)
    whole = draw(st.sets(st.integers(0, stages - 1)))
    costs = [
        Cost(draw(seconds), draw(seconds), draw(seconds), draw(seconds), i in whole, draw(seconds), draw(seconds))
        for i in range(stages)
    ]
    return *scheduled(name, width, microbatches, whole), costs


@settings(max_examples=60, deadline=None)
@given(pipelines())
def test_an_op_begins_as_soon_as_its_devices_are_free_and_what_it_reads_is_there(pipeline):
    schedule, devices, costs = pipeline
    free, steps = dict.fromkeys((of[0] for of in devices), 0), simulate(schedule, costs, devices, 2)
    for step in steps:
        ended = {}
        assert [timed.op for timed in step] == list(schedule)
        for (_, stage, m, kind), begin, end in step:
            waits = [free[devices[stage][0]]]
            for what, at, _ in needs(kind, stage, m, schedule.stages):
                waits.append(ended[what, at, m] + (costs[at].onward if at < stage else 0))
                waits[-1] += costs[at].back if at > stage else 0
            assert begin == max(waits) and end == begin + getattr(costs[stage], kind)
            free[devices[stage][0]] = ended["back" if kind in ("backward", "input") else kind, stage, m] = end


def test_stages_that_share_a_device_take_turns():
    schedule = Schedule("gpipe", 2, 2)
    (step,) = simulate(schedule, [Cost(1, 1)] * 2, [["a", "b"], ["b"]])
    times = sorted(timed[1:] for timed in step)
    assert times == [(i, i + 1) for i in range(8)]


@pytest.mark.parametrize("name", NAMES)
def test_what_is_kept_is_held_from_forward_to_backward(name):
    for width, microbatches in ((2, 5), (4, 12)):
        schedule, devices = scheduled(name, width, microbatches)
        costs = [Cost(1, 1, 1, 1, kept=10**i, rest=10**i) for i in range(schedule.stages)]
        most = held(simulate(schedule, costs, devices)[0], costs, devices)
        if schedule.stages == width:
            assert most == {stage: 10**stage * schedule.in_flight(stage) for stage in range(width)}
        else:  # never more than both stages' at their most
            assert all(
                most[place] <= sum(10**s * schedule.in_flight(s) for s in range(2 * width) if devices[s] == [place])
                for place in range(width)
            )


def test_what_devices_hold_in_full():
    """One stage after another, one microbatch: by hand."""
    first = Cost(1, 2, params=100, arrives=1000, leaves=20, kept=7)
    second = Cost(
        *(1, 2), params=300, state=600, arrives=20, leaves=4, targets=5, kept=9, temps={"forward": 8, "backward": 50}
    )
    devices = [["a"], ["b"]]
    step = simulate(Schedule("1f1b", 2, 1), [first, second], devices)[0]
    # a: parameters, sums of gradients, its input, what is kept, the output's gradients.
    # b: the same, its targets being gone and the gradients of its input there; the optimizer's state, and what the
    # backward takes.
    most = {"a": 2 * 100 + 1000 + 7 + 20, "b": 2 * 300 + 600 + 20 + 9 + 4 + 20 - 4 + 50}
    assert held(step, [first, second], devices) == most


def plan(costs, microbatches, places=None, limits=None):
    places = places or range(len(costs))
    return Plan(costs, microbatches, [*places], [[place] for place in places], limits or {})


def candidates(plan):
    return {candidate.name: candidate for candidate in plan.candidates}


@pytest.mark.parametrize(("p", "m"), [(4, 16), (8, 16), (8, 32)])
def test_steps_that_follow_each_other_have_the_bubbles_of_the_papers(p, m):
    each = candidates(plan([SPLIT] * p, m))
    assert {name: c.bubble for name, c in each.items() if not c.refused} == pytest.approx(
        {"gpipe": (p - 1) / (m + p - 1), "1f1b": (p - 1) / (m + p - 1), "zb-h1": (p - 1) / (3 * m + p - 1), "zb-h2": 0}
    )
    assert each["zbv"].refused == "expects two stages on each place, there and back, such as a, b, b, a"
    there = candidates(plan([SPLIT] * 2 * p, m, [*range(p), *reversed(range(p))]))
    assert there["zbv"].bubble == pytest.approx(0) and there["interleaved"].refused
    again = candidates(plan([SPLIT] * 2 * p, m, [*range(p)] * 2))
    assert again["interleaved"].bubble == pytest.approx((p - 1) / (2 * m + p - 1)) and again["zbv"].refused


def test_the_shortest_step_that_fits_is_chosen():
    costs = [Cost(1, 2, 1, 1, kept=100, rest=100)] * 4
    assert plan(costs, 8).chosen == "zb-h2"
    assert plan(costs, 8, limits={0: 699}).chosen == "zb-h1"  # zb-h2 keeps seven
    assert "device 0 holds 700 B, more than its 699 B" in repr(plan(costs, 8, limits={0: 699}))
    assert plan(costs, 8, limits={3: 399}).chosen == "1f1b"  # of which the last stage keeps one
    with pytest.raises(
        PathwaysError, match="even with 1f1b, which needs least, device 0 holds 400 B, more than its 100 B"
    ) as e:
        plan(costs, 8, limits={0: 100})
    assert e.value.code == "RESOURCE_EXHAUSTED"


def test_of_equally_long_steps_the_one_that_holds_least_is_chosen():
    # Backwards that cannot be split: all four take the same time.
    assert plan([Cost(1, 2, whole=True, kept=1)] * 4, 8).chosen == "1f1b"
    # A stage that takes most of the time hides what the others do; halves of a backward that cost more than the whole
    # are not worth it.
    slow = [Cost(1, 2, 2, 2, kept=1)] * 3 + [Cost(9, 18, 18, 18, kept=1)]
    assert plan(slow, 8).chosen == "1f1b"


def test_a_plan_is_a_table():
    text = repr(plan([Cost(1e-3, 2e-3, 1e-3, 1e-3, kept=1 << 20, rest=1 << 20)] * 2, 4))
    assert text.splitlines() == [
        "<Plan zb-h2: 2 stages, 4 microbatches",
        "   schedule     a step  idle   a device holds",
        "   gpipe        15 ms   20.0%  4 MiB",
        "   1f1b         15 ms   20.0%  2 MiB",
        "   interleaved                                 expects the same places in the same order again, "
        "such as a, b, a, b",
        "   zb-h1        13 ms   7.7%   2 MiB",
        "*  zb-h2        12 ms   0.0%   3 MiB",
        "   zbv                                         expects two stages on each place, there and back, "
        "such as a, b, b, a>",
    ]
