"""A small decoder as a pipeline of 1, 2 and 4 stages, beside the same model by SPMD and by a loop on as many devices.

    python tests/bench/pipeline.py            some two minutes; a table, and out/pipeline_bench.json
    python tests/bench/pipeline.py --quick    less

All take turns, a training step each, in rotating order; ratios are taken within a round. SPMD splits attention heads
and the MLP's middle over the devices, and runs the whole batch at once. The loop is GPipe in plain JAX, on the same
devices, with a call for each stage and microbatch. The bubble is what a trace of one step says: a
computation ended when the trace has its end, and began when its device was free and what it reads was there, from
which the share of time follows in which no computation of a stage ran. Beside it stand (S - 1) / (M + S - 1), which
takes all ops to be equally long, and a processor for every device; and, in brackets, what the schedule gives for ops as
long as they were, with nothing in between.
"""

import argparse
import json
import os
import pathlib
import statistics
import tempfile
import time
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pathways
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from pathways import _plan

LAYERS, WIDTH, HEADS, VOCABULARY = 8, 128, 4, 256
STAGES = (1, 2, 4)


# --- the model ---


def normalize(x):
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6)


def layer(w, x):
    y = normalize(x)
    query, key, value = (jnp.einsum("btd,dhk->bthk", y, w[name]) for name in ("query", "key", "value"))
    scores = jnp.einsum("bthk,bshk->bhts", query, key) / np.sqrt(WIDTH // HEADS)
    visible = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    x += jnp.einsum("bhts,bshk,hkd->btd", jax.nn.softmax(jnp.where(visible, scores, -1e9)), value, w["out"])
    return x + jax.nn.relu(normalize(x) @ w["up"]) @ w["down"]


def stage(weights, x):
    """Some of the layers; the first stage has the embedding too, the last what turns it into logits."""
    if "embed" in weights:
        x = weights["embed"][x]
    for w in weights["layers"]:
        x = layer(w, x)
    return normalize(x) @ weights["unembed"] if "unembed" in weights else x


def loss_of(logits, targets):
    right = jnp.take_along_axis(logits, targets[..., None], -1)[..., 0]
    return jnp.mean(jax.nn.logsumexp(logits, -1) - right)


def make(stages):
    """The same weights, however many stages they are cut into."""
    r = np.random.default_rng(0)

    def normal(*shape, fan):
        return (r.normal(size=shape) / np.sqrt(fan)).astype("float32")

    size = WIDTH // HEADS
    layers = [
        {name: normal(WIDTH, HEADS, size, fan=WIDTH) for name in ("query", "key", "value")}
        | {"out": normal(HEADS, size, WIDTH, fan=4 * WIDTH), "up": normal(WIDTH, 4 * WIDTH, fan=WIDTH)}
        | {"down": normal(4 * WIDTH, WIDTH, fan=16 * WIDTH)}
        for _ in range(LAYERS)
    ]
    cut = [{"layers": layers[i * LAYERS // stages : (i + 1) * LAYERS // stages]} for i in range(stages)]
    cut[0]["embed"] = normal(VOCABULARY, WIDTH, fan=1)
    cut[-1]["unembed"] = normal(WIDTH, VOCABULARY, fan=WIDTH)
    return cut


@partial(jax.jit, donate_argnums=0)
def update(weights, gradients):
    return jax.tree.map(lambda w, g: w - 0.05 * g, weights, gradients)


# --- the sides; each is a function that takes a step and returns its loss ---


def by_pipeline(stages, microbatches, schedule, devices):
    pipe = pathways.pipeline(
        [(stage, w, d) for w, d in zip(make(stages), devices, strict=False)], microbatches, schedule, loss=loss_of
    )

    def step(tokens):
        loss, gradients = pipe.value_and_grad(tokens[:, :-1], tokens[:, 1:])
        pipe.params = [update(w, g) for w, g in zip(pipe.params, gradients, strict=True)]
        jax.block_until_ready(pipe.params)
        return loss

    step.pipe = pipe
    return step


def by_loop(stages, microbatches, devices):
    """GPipe as one writes it in plain JAX: a call for each stage and microbatch, none of which is waited for."""
    weights = [jax.device_put(w, d) for w, d in zip(make(stages), devices, strict=False)]

    def last(w, x, targets):
        return loss_of(stage(w, x), targets) / microbatches

    @jax.jit
    def forward(w, x, *targets):
        return jax.vjp(lambda w, x: last(w, x, *targets) if targets else stage(w, x), w, x)

    @jax.jit
    def backward(back, gradient):
        own, onward = back(gradient)
        return own, None if onward.dtype == jax.dtypes.float0 else onward

    add = jax.jit(lambda a, b: jax.tree.map(jnp.add, a, b))

    def step(tokens):
        every, losses, backs = np.split(tokens, microbatches), [], []
        for rows in every:
            x, kept = rows[:, :-1], []
            for i, (w, device) in enumerate(zip(weights, devices, strict=False)):
                targets = [jax.device_put(rows[:, 1:], device)] if i == stages - 1 else []
                x, back = forward(w, jax.device_put(x, device), *targets)
                kept.append(back)
            losses.append(x)
            backs.append(kept)
        sums = [None] * stages
        for loss, kept in zip(losses, backs, strict=True):
            gradient = jnp.ones_like(loss, device=loss.sharding)
            for i in reversed(range(stages)):
                own, gradient = backward(kept.pop(), jax.device_put(gradient, devices[i]))
                sums[i] = own if sums[i] is None else add(sums[i], own)
        weights[:] = [update(w, g) for w, g in zip(weights, sums, strict=True)]
        jax.block_until_ready(weights)
        return sum(losses)

    return step


def by_spmd(width, devices):
    mesh = Mesh(np.array(devices[:width]), ("model",))
    split = {"query": P(None, "model"), "key": P(None, "model"), "value": P(None, "model"), "out": P("model")}
    split |= {"up": P(None, "model"), "down": P("model")}
    where = {"layers": [split] * LAYERS, "embed": P(), "unembed": P(None, "model")}
    where = jax.tree.map(partial(NamedSharding, mesh), where, is_leaf=lambda x: isinstance(x, P))
    weights = jax.device_put(make(1)[0], where)
    everywhere = NamedSharding(mesh, P())

    @partial(jax.jit, donate_argnums=0, out_shardings=(where, everywhere))
    def train(weights, tokens):
        loss, gradients = jax.value_and_grad(lambda w: loss_of(stage(w, tokens[:, :-1]), tokens[:, 1:]))(weights)
        return jax.tree.map(lambda w, g: w - 0.05 * g, weights, gradients), loss

    def step(tokens):
        nonlocal weights
        weights, loss = train(weights, jax.device_put(tokens, everywhere))
        jax.block_until_ready(weights)
        return loss

    return step


# --- measuring ---


def bubble(step, tokens):
    """The share of time in which no computation of a stage ran, of one step; and what it would have been, had each
    computation of a stage been as long as their mean, and begun when its device was free and what it reads was made."""
    with tempfile.TemporaryDirectory() as folder, pathways.trace(pathlib.Path(folder) / "trace.json") as timeline:
        step(tokens)
    schedule, recorded = step.pipe.schedule, step.pipe.recorded(timeline)
    lengths = [{} for _ in range(schedule.stages)]
    for op, begin, end in recorded.ops:
        lengths[op.stage].setdefault(op.kind, []).append(end - begin)
    costs = [_plan.Cost(**{kind: statistics.mean(took) for kind, took in of.items()}) for of in lengths]
    (planned,) = _plan.simulate(schedule, costs, [[stage] for stage in range(schedule.stages)])
    return recorded.bubble, _plan.idle([(begin, end) for _, begin, end in planned], schedule.stages)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--rows", type=int, default=64, help="sequences a step (default %(default)s)")
    parser.add_argument("--context", type=int, default=64, help="tokens a sequence (default %(default)s)")
    parser.add_argument("--microbatches", type=int, default=16, help="(default %(default)s)")
    parser.add_argument("--schedule", default="1f1b", help="of one stage a device, such as zb-h1 (default %(default)s)")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("out"), help="(default out)")
    a = parser.parse_args()
    os.environ.pop("PATHWAYS_ADDRESS", None)  # a trace is of this process's devices
    pathways.init(devices=max(STAGES))
    devices = jax.devices()
    sides = {f"pipeline {n}": by_pipeline(n, a.microbatches, a.schedule, devices) for n in STAGES}
    sides |= {f"spmd {n}": by_spmd(n, devices) for n in STAGES}
    sides |= {f"loop {n}": by_loop(n, a.microbatches, devices) for n in STAGES}
    r = np.random.default_rng(1)
    batches = [r.integers(0, VOCABULARY, (a.rows, a.context + 1)).astype(np.int32) for _ in range(4)]
    losses = {name: [float(step(batches[i])) for i in range(2)] for name, step in sides.items()}  # and compiled
    for name, seen in losses.items():
        np.testing.assert_allclose(seen, losses["spmd 1"], rtol=1e-4, err_msg=f"{name} computes something else")

    seconds = {name: [] for name in sides}
    bubbles = {n: [] for n in STAGES}
    names = list(sides)
    for i in range(5 if a.quick else 25):
        for name in names[i % len(names) :] + names[: i % len(names)]:
            begin = time.perf_counter()
            sides[name](batches[i % len(batches)])
            seconds[name].append(time.perf_counter() - begin)
        for n in STAGES:
            bubbles[n].append(bubble(sides[f"pipeline {n}"], batches[i % len(batches)]))

    tokens = a.rows * a.context
    print(f"{LAYERS} layers of width {WIDTH}, {tokens} tokens a step in {a.microbatches} microbatches, {a.schedule}; ")
    print(f"{os.cpu_count()} processors; medians of {len(seconds['spmd 1'])} rounds, lowest - highest ratio\n")
    heads = "devices | pipeline, tokens/s | SPMD, tokens/s | loop, tokens/s | pipeline / SPMD"
    print(f"| {heads} | bubble measured | (S-1)/(M+S-1) |")
    print("|---|---|---|---|---|---|---|")
    results = []
    for n in STAGES:
        pipeline, spmd, loop = (seconds[f"{side} {n}"] for side in ("pipeline", "spmd", "loop"))
        ratios = sorted(s / p for p, s in zip(pipeline, spmd, strict=True))
        row = {
            "devices": n,
            "pipeline tokens/s": tokens / statistics.median(pipeline),
            "spmd tokens/s": tokens / statistics.median(spmd),
            "loop tokens/s": tokens / statistics.median(loop),
            "ratio": statistics.median(ratios),
            "lowest": ratios[0],
            "highest": ratios[-1],
            "bubble": statistics.median(measured for measured, _ in bubbles[n]),
            "expected": statistics.median(expected for _, expected in bubbles[n]),
            "ideal": sides[f"pipeline {n}"].pipe.schedule.bubble,
        }
        results.append(row)
        print(
            f"| {n} | {row['pipeline tokens/s']:,.0f} | {row['spmd tokens/s']:,.0f} | {row['loop tokens/s']:,.0f} | "
            f"{row['ratio']:.2f} ({row['lowest']:.2f} - {row['highest']:.2f}) | "
            f"{row['bubble']:.0%} | {row['ideal']:.0%} ({row['expected']:.0%}) |"
        )
    a.out.mkdir(parents=True, exist_ok=True)
    (a.out / "pipeline_bench.json").write_text(json.dumps({"rows": results, "seconds": seconds}, indent=1))


if __name__ == "__main__":
    main()
