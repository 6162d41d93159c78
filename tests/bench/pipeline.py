"""The examples' decoder as a pipeline with a stage on each device, beside the same model by SPMD: the paper's table 2.

    python -m pathways up --workers 4 --devices 1 -- python tests/bench/pipeline.py

The same 27 million weights, batches and optimizer (Adam) in several ways, which take turns, a step each, in rotating
order. SPMD splits heads, the MLP's middle and the logits over the devices, and computes the whole batch at once;
without its sums it shows what these take. The pipelines cut the layers into stages and the batch into microbatches. The
loop is GPipe in plain JAX on the same devices, with a call for each stage and microbatch. One device alone computes the
whole batch, too. The processor time of a step is that of this process and those that the cluster's supervisor started.
With --shape 256,4,32 four times as many layers are half as wide, which takes more sums for as many weights. The last
line is JSON.
"""

import argparse
import functools
import json
import os
import pathlib
import statistics
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import pathways
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "examples" / "models"))

import decoder  # noqa: E402
import training  # noqa: E402
from programs import processor  # noqa: E402

SHAPE = "512,8,8"  # width, heads and layers
BATCH, LENGTH, MICROBATCHES = 64, 32, 16  # a microbatch has 4 sequences, as the paper's
RATE = 3e-3
SAME = 1e-3  # relative difference of losses that the order of sums alone may cause

update = jax.jit(training.adam, donate_argnums=(0, 1))


def stage(params, x):
    """Some of the layers; the first stage has the embedding too, the last what turns it into logits."""
    if "embed" in params:
        x = decoder.embed(params, x)
    for p in params["layers"]:
        x = decoder.block(p, x)
    return decoder.normalize(x, params["norm"]) @ params["unembed"] if "unembed" in params else x


def cut(params, stages):
    """Returns the parameters of each stage."""
    layers, ends = params["layers"], [len(params["layers"]) * i // stages for i in range(stages + 1)]
    parts = [{"layers": layers[begin:end]} for begin, end in zip(ends, ends[1:], strict=False)]
    parts[0]["embed"] = params["embed"]
    parts[-1] |= {name: params[name] for name in ("norm", "unembed")}
    return parts


# --- the ways to train; each is a function that takes a step and returns its loss ---


def by_pipeline(schedule, params, devices):
    stages = [(stage, part, d) for part, d in zip(cut(params, len(devices)), devices, strict=True)]
    pipe = pathways.pipeline(stages, MICROBATCHES, schedule, loss=training.cross_entropy)
    states = [training.moments(part) for part in pipe.params]

    def step(tokens):
        loss, gradients = pipe.value_and_grad(tokens[:, :-1], tokens[:, 1:])
        for i, of in enumerate(gradients):
            pipe.params[i], states[i] = update(pipe.params[i], states[i], of, RATE)
        jax.block_until_ready(pipe.params)
        return loss

    return step


def by_loop(params, devices):
    """GPipe as one writes it in plain JAX: a call for each stage and microbatch, none of which is waited for."""
    weights = [jax.device_put(part, d) for part, d in zip(cut(params, len(devices)), devices, strict=True)]
    states = [training.moments(part) for part in weights]

    def last(w, x, targets):
        return training.cross_entropy(stage(w, x), targets) / MICROBATCHES

    @jax.jit
    def forward(w, x, *targets):
        return jax.vjp(lambda w, x: last(w, x, *targets) if targets else stage(w, x), w, x)

    @jax.jit
    def backward(back, gradient):
        own, onward = back(gradient)
        return own, None if onward.dtype == jax.dtypes.float0 else onward

    add = jax.jit(lambda a, b: jax.tree.map(jnp.add, a, b), donate_argnums=0)

    def step(tokens):
        losses, backs = [], []
        for rows in np.split(tokens, MICROBATCHES):
            x, kept = rows[:, :-1], []
            for w, device in zip(weights, devices, strict=True):
                targets = [jax.device_put(rows[:, 1:], device)] if device is devices[-1] else []
                x, back = forward(w, jax.device_put(x, device), *targets)
                kept.append(back)
            losses.append(x)
            backs.append(kept)
        sums = [None] * len(devices)
        for loss, kept in zip(losses, backs, strict=True):
            gradient = jnp.ones_like(loss, device=loss.sharding)
            for i in reversed(range(len(devices))):
                own, gradient = backward(kept.pop(), jax.device_put(gradient, devices[i]))
                sums[i] = own if sums[i] is None else add(sums[i], own)
        for i, of in enumerate(sums):
            weights[i], states[i] = update(weights[i], states[i], of, RATE)
        jax.block_until_ready(weights)
        return sum(losses)

    return step


def layout(params):
    """Returns how SPMD splits the weights, and the optimizer's moments."""
    across, down = P(None, "model"), P("model")
    layer = dict.fromkeys(("query", "key", "value", "gate", "up"), across) | {"out": down, "down": down, "norms": P()}
    weights = {"embed": P(), "layers": [layer] * len(params["layers"]), "norm": P(), "unembed": across}
    return weights, (weights, weights, P())


def by_spmd(params, devices, sums=True):
    """Without sums each device computes as much, but of its own part of the weights alone, which trains nothing."""
    mesh = Mesh(np.array(devices), ("model",))
    where = jax.tree.map(functools.partial(NamedSharding, mesh), layout(params), is_leaf=lambda x: isinstance(x, P))
    everywhere = NamedSharding(mesh, P())
    weights = jax.device_put(params, where[0])
    state = jax.jit(training.moments, out_shardings=where[1])(weights)
    if sums:
        train = decoder.train
    else:
        train = jax.shard_map(
            lambda weights, state, tokens, rate: decoder.train(weights, state, tokens % (256 // len(devices)), rate),
            mesh=mesh,
            in_specs=(*layout(params), P(), P()),
            out_specs=(*layout(params), P()),
            check_vma=False,
        )
    train = jax.jit(train, donate_argnums=(0, 1), out_shardings=(*where, everywhere))

    def step(tokens):
        nonlocal weights, state
        weights, state, loss = train(weights, state, jax.device_put(tokens, everywhere), RATE)
        jax.block_until_ready(weights)
        return loss

    return step


WAYS = {
    "spmd": by_spmd,
    "no sums": functools.partial(by_spmd, sums=False),
    "gpipe": functools.partial(by_pipeline, "gpipe"),
    "1f1b": functools.partial(by_pipeline, "1f1b"),
    "zb-h1": functools.partial(by_pipeline, "zb-h1"),
    "loop": by_loop,
    "one": lambda params, devices: by_spmd(params, devices[:1]),
}

# --- measuring ---


def measure(devices, shape, rounds, names):
    """Returns what a step of each named way took in each round: {way: [(seconds, seconds of processor time)]}."""
    width, heads, layers = map(int, shape.split(","))
    args = argparse.Namespace(batch=BATCH, length=LENGTH, seed=0, width=width, heads=heads, layers=layers)
    with jax.default_device(devices[0]):
        params = jax.device_get(jax.jit(lambda key: decoder.make_params(key, args))(jax.random.key(0)))
    batches = training.windows(args, extra=1)
    ways = {name: WAYS[name](params, devices) for name in names}
    for _ in range(2):  # the first compiles
        batch = next(batches)
        losses = {name: float(step(batch)) for name, step in ways.items()}
        for name, loss in losses.items():
            if name == "no sums":
                continue
            np.testing.assert_allclose(loss, losses["one"], rtol=SAME, err_msg=f"{name} computes something else")

    supervisor = pathways.status().report.get("supervisor") or {"processes": []}
    pids = [process["pid"] for process in supervisor["processes"]] + [os.getpid()]
    took = {name: [] for name in names}
    for i in range(rounds):
        batch, at = next(batches), i % len(names)
        for name in names[at:] + names[:at]:
            begin, before = time.perf_counter(), processor(pids)
            ways[name](batch)
            took[name].append((time.perf_counter() - begin, processor(pids) - before))
    return took


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=16, help="steps of each way (%(default)s)")
    parser.add_argument("--shape", default=SHAPE, help="the model's width, heads and layers (%(default)s)")
    parser.add_argument("--ways", default=",".join(WAYS), help="which of them; spmd and one must be (%(default)s)")
    options = parser.parse_args()
    took = measure(jax.devices(), options.shape, options.rounds, options.ways.split(","))
    got = {}
    for name, steps in took.items():
        seconds, used = map(statistics.median, zip(*steps, strict=True))
        ratios = sorted(spmd / own for (spmd, _), (own, _) in zip(took["spmd"], steps, strict=True))
        ratio = {"median": statistics.median(ratios), "low": ratios[0], "high": ratios[-1]}
        got[name] = {"tokens/s": BATCH * LENGTH / seconds, "by spmd": ratio, "processor": used}
        said = (
            f"{name}: {got[name]['tokens/s']:,.0f} tokens/s, {ratio['median']:.2f} × SPMD, processor time {used:.2f} s"
        )
        print(said, file=sys.stderr)
    print(json.dumps({"stages": len(jax.devices()), "rounds": options.rounds, "ways": got}))


if __name__ == "__main__":
    main()
