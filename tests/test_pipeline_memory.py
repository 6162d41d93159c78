"""Devices hold no more in a step of a pipeline than its plan says, whatever the schedule."""

import re

import pytest
from fresh import run

pytestmark = pytest.mark.embedded("workers count as this process does: tests/test_memory_statistics.py")

# A device's peak never falls, so what holds least comes first.
SCRIPT = """
    import jax, jax.numpy as jnp, numpy as np

    def stage(weights, x):
        for w in weights:
            x = jnp.tanh(x @ w)
        return x

    devices, size, microbatches = jax.devices()[:3], 64, 12
    weights = [np.eye(size, dtype="f")] * 4
    stages = [(stage, weights, devices[place]) for place in {places}]
    x = np.ones((512 * microbatches, size), "f")
    parts = plan = None
    for name in {names}:
        pipe = pathways.pipeline(stages, microbatches, name, loss=lambda y, targets: jnp.mean((y - targets) ** 2))
        parts = pipe._parts = parts or pipe._parts
        if plan is None:
            plan = pipe.measure(x, x)
        for _ in range(3):
            jax.block_until_ready(pipe.value_and_grad(x, x))
        (planned,) = (c.memory for c in plan.candidates if c.name == name)
        print(name, planned, max(device.memory_stats()["peak_bytes_in_use"] for device in devices))
    print("a microbatch", plan.costs[1].arrives, max(n for cost in plan.costs for n in cost.temps.values()))
"""


def told(names, places):
    """Returns for each schedule what its plan says, and what the devices held; and what a microbatch takes."""
    script = SCRIPT.replace("{names}", repr(names)).replace("{places}", repr(places))
    said = re.findall(r"(.+) (\d+) (\d+)\n", run(script).stdout)
    peaks = {name: (int(planned), int(peak)) for name, planned, peak in said}
    return peaks, *peaks.pop("a microbatch")


def test_a_step_holds_what_its_plan_says():
    peaks, microbatch, temp = told(["1f1b", "zb-h1", "zb-h2", "gpipe"], [0, 1, 2])
    assert temp > 0
    # Moves take no more than an array or two of a microbatch. A CPU's peak does not have what a computation takes.
    for name, (planned, peak) in peaks.items():
        assert planned - temp - 2 * microbatch <= peak <= planned + 2 * microbatch, (name, planned, peak, microbatch)
    assert peaks["gpipe"][0] > 2 * peaks["1f1b"][0]


@pytest.mark.parametrize(("name", "places"), [("interleaved", [0, 1, 2, 0, 1, 2]), ("zbv", [0, 1, 2, 2, 1, 0])])
def test_a_step_of_several_stages_on_a_place_holds_no_more_than_its_plan_says(name, places):
    peaks, microbatch, _ = told([name, "gpipe"], places)
    planned, peak = peaks[name]
    assert peak <= planned + 2 * microbatch, (planned, peak, microbatch)
    assert peaks["gpipe"][1] > 2 * planned
