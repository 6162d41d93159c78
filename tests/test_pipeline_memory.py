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
    stages = [(stage, weights, device) for device in devices]
    x = np.ones((512 * microbatches, size), "f")
    parts = None
    for name in ("1f1b", "zb-h1", "zb-h2", "gpipe"):
        pipe = pathways.pipeline(stages, microbatches, name, loss=lambda y, targets: jnp.mean((y - targets) ** 2))
        parts = pipe._parts = parts or pipe._parts
        if name == "1f1b":
            plan = pipe.measure(x, x)
        for _ in range(3):
            jax.block_until_ready(pipe.value_and_grad(x, x))
        (planned,) = (c.memory for c in plan.candidates if c.name == name)
        print(name, planned, max(device.memory_stats()["peak_bytes_in_use"] for device in devices))
    print("a microbatch", plan.costs[1].arrives, max(n for cost in plan.costs for n in cost.temps.values()))
"""


def test_a_step_holds_what_its_plan_says():
    said = re.findall(r"(.+) (\d+) (\d+)\n", run(SCRIPT).stdout)
    peaks = {name: (int(planned), int(peak)) for name, planned, peak in said}
    microbatch, temp = peaks.pop("a microbatch")
    assert temp > 0
    # Moves take no more than an array or two of a microbatch. A CPU's peak does not have what a computation takes.
    for name, (planned, peak) in peaks.items():
        assert planned - temp - 2 * microbatch <= peak <= planned + 2 * microbatch, (name, planned, peak, microbatch)
    assert peaks["gpipe"][0] > 2 * peaks["1f1b"][0]
