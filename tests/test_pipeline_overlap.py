"""Each stage of a pipeline is updated as soon as its own gradients are there, beside other stages' backwards."""

import collections

import jax
import jax.numpy as jnp
import numpy as np
import pathways
import pytest

# How long one stage's gradients take: the longer, the further ahead of the devices are the calls that submit a step.
ROUNDS = [30 * 4**i for i in range(6)]
WORK = np.eye(128, dtype="f")


@jax.custom_vjp
def late(w, rounds):
    """w, whose gradients take so many rounds."""
    return w


def backward(rounds, g):
    """The gradients, once some computing is done."""
    return g + 0 * jax.lax.fori_loop(0, rounds, lambda _, v: jnp.tanh(v @ v), jnp.asarray(WORK))[0, 0], None


late.defvjp(lambda w, rounds: (w, rounds), backward)


def layer(w, flow):
    return flow | {"x": jnp.tanh(flow["x"] @ w)}


def late_layer(w, flow):
    return layer(late(w, flow["rounds"][0]), flow)


@jax.jit
def update(w, g):
    return w - 0.1 * g


@pytest.mark.parametrize("program", [False, True], ids=["calls", "program"])
@pytest.mark.parametrize(("schedule", "slow"), [("gpipe", 0), ("zb-h1", 1)])
def test_a_stage_is_updated_beside_the_backwards_of_others(devices, tmp_path, schedule, slow, program):
    """The last stage, whose gradients are there first, does not wait for the first one's; nor the first one, which has
    the gradients of the last one's input, for those of its weights."""
    stages = [(late_layer if i == slow else layer, np.eye(8, dtype="f"), devices[4 * i]) for i in range(2)]
    pipe = pathways.pipeline(stages, 2, schedule, loss=lambda flow, targets: jnp.mean((flow["x"] - targets) ** 2))

    def step(weights, flow, targets):
        _, gradients = pipe.value_and_grad(flow, targets, params=weights)
        return [update(w, g) for w, g in zip(weights, gradients, strict=True)]

    play = pathways.program(step) if program else step
    targets = np.zeros((4, 8), "f")
    for rounds in [0, *ROUNDS]:  # the first compiles
        flow = {"x": np.ones((4, 8), "f"), "rounds": np.full(4, rounds, "int32")}
        with pathways.trace(tmp_path / "trace.json") as timeline:
            jax.block_until_ready(play(pipe.params, flow, targets))
        ran = pipe.recorded(timeline)
        (updated,) = (other for other in ran.others if other.name == "update" and other.place == 1 - slow)
        if updated.end < max(timed.begin for timed in ran.ops if timed.op.stage == slow):
            return
    pytest.fail(f"stage {1 - slow} was updated once all gradients of stage {slow} were there, however long that took")


def test_targets_move_to_the_last_stage_with_its_input(devices):
    """At a step's begin the last stage still ends the step before, and what moves to it would keep back the first."""
    stages = [(lambda w, x: jnp.tanh(x @ w), np.eye(8, dtype="f"), device) for device in devices[:3]]
    pipe = pathways.pipeline(stages, 2, loss=lambda y, targets: jnp.mean((y - targets) ** 2))
    step = pathways.program(lambda weights, x, targets: pipe.value_and_grad(x, targets, params=weights))
    x = np.ones((4, 8), "f")
    nodes = [(node["name"], node["devices"]) for node in step.lower(pipe.params, x, x).graph["nodes"]]
    begins = nodes.index(("jit_stage0_forward", [devices[0].id]))
    assert begins < nodes.index(("copy", [devices[2].id]))


def test_gradients_add_up_within_the_backwards(devices):
    """A stage makes its sums once a step; its backwards, or their weight halves, add to them in their memory."""
    stages = [(lambda w, x: jnp.tanh(x @ w), np.eye(8, dtype="f"), device) for device in devices[:2]]
    x = np.ones((4, 8), "f")
    for name, kinds in (("1f1b", {"forward", "backward"}), ("zb-h1", {"forward", "input", "weight"})):
        pipe = pathways.pipeline(stages, 4, name, loss=lambda y, targets: jnp.mean((y - targets) ** 2))
        step = pathways.program(lambda weights, x, pipe=pipe: pipe.value_and_grad(x, x, params=weights))
        ran = collections.Counter(node["name"] for node in step.lower(pipe.params, x).graph["nodes"])
        first = {"jit_stage0_zeros": 1} | {f"jit_stage0_{kind}": 4 for kind in kinds - {"input"}}
        last = {"jit_stage1_zeros": 1} | {f"jit_stage1_{kind}": 4 for kind in kinds}
        beside = {"copy", "jit_convert_element_type", "jit_split_microbatches", "jit__sum_losses"}
        assert {node: n for node, n in ran.items() if node not in beside} == first | last

    part, w = pipe._parts[0], pipe.params[0]
    y, residuals = part.forward(w, x, None)
    sums = part.zeros(w)
    part.backward(w)(w, x, residuals, [jnp.ones_like(y)], sums)
    assert sums.is_deleted()
