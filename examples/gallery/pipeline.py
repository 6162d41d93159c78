# %% [markdown]
# # A pipeline of four stages
#
# A model of twelve layers, three on each of four devices. A batch passes through in eight microbatches, so that the
# stages work at the same time. The picture shows the plan, and beside it what the devices did.

# %%
import os

import jax
import jax.numpy as jnp
import numpy as np
import pathways

pathways.init(devices=4)
STEPS, WIDTH = int(os.environ.get("GALLERY_STEPS", "40")), int(os.environ.get("GALLERY_WIDTH", "256"))

# %% [markdown]
# A stage is a function, its parameters and a place. The first stage maps points of the plane to the model's width, the
# last one maps the output to colors.


# %%
def layers(params, x):
    if "enter" in params:
        x = jnp.sin(x @ params["enter"])
    for w in params["layers"]:
        x = x + jax.nn.gelu(x @ w[0]) @ w[1]
    return x @ params["leave"] if "leave" in params else x


def make(stage, random):
    def normal(*shape, scale=1.0):
        return random.normal(size=shape).astype("float32") * np.float32(scale / np.sqrt(shape[0]))

    params = {"layers": [(normal(WIDTH, WIDTH), normal(WIDTH, WIDTH, scale=0.3)) for _ in range(3)]}
    if stage == 0:
        params["enter"] = normal(2, WIDTH, scale=9)
    if stage == 3:
        params["leave"] = normal(WIDTH, 3)
    return params


random = np.random.default_rng(0)
slices = pathways.make_virtual_device_set()
stages = [(layers, make(stage, random), slices.add_slice(devices=1)) for stage in range(4)]
pipe = pathways.pipeline(stages, microbatches=8, loss=lambda y, colors: jnp.mean((y - colors) ** 2))
print(pipe.schedule)

# %% [markdown]
# The model learns the color of each point of a picture. Each stage's parameters are updated on their devices, by an
# ordinary jitted function.

# %%
SIZE = 64
points = np.stack(np.meshgrid(*2 * [np.linspace(-1, 1, SIZE)], indexing="ij"), -1).reshape(-1, 2).astype("float32")
angle, radius = np.arctan2(points[:, 0], points[:, 1]), np.hypot(points[:, 0], points[:, 1])
colors = np.stack([np.cos(3 * angle + 9 * radius + shift) for shift in (0, 2, 4)], -1).astype("float32") * 0.5 + 0.5


@jax.jit
def update(params, speed, gradients):
    speed = jax.tree.map(lambda s, g: 0.9 * s + g, speed, gradients)
    return jax.tree.map(lambda p, s: p - 0.03 * s, params, speed), speed


speeds = [jax.tree.map(jnp.zeros_like, params) for params in pipe.params]
losses = []


def step():
    loss, gradients = pipe.value_and_grad(points, colors)
    for stage in range(4):
        pipe.params[stage], speeds[stage] = update(pipe.params[stage], speeds[stage], gradients[stage])
    losses.append(loss)  # a future: the loop does not wait


for _ in range(STEPS):
    step()
print(f"loss {losses[0]:.3f} at first, {losses[-1]:.3f} after {STEPS} steps")

# %% [markdown]
# One more step, recorded. With a processor per device it looks as planned; with fewer, devices take turns.
# `pipe.draw(path)` draws both, with the optimizer's updates; here the picture has the model's, too.

# %%
import pictures  # noqa: E402

out = pictures.folder()
with pathways.trace(out / "pipeline.json"):
    step()
    jax.block_until_ready(pipe.params)
pipe.draw(out / "schedule.svg")

recorded = pipe.recorded()
idle = recorded.bubble
print(f"idle of the time: {pipe.schedule.bubble:.0%} as planned, {idle:.0%} as measured")

plt = pictures.pyplot()
shades = {"forward": plt.cm.Blues, "backward": plt.cm.Greens}
rows = {(stage, said): f"stage {stage}, {said}" for stage in range(4) for said in ("plan", "as it ran")}
short = recorded.seconds / 60  # too short for its number
bars = [
    ((op.stage, said), begin, end - begin, shades[op.kind](0.75 - 0.1 * op.stage))
    + ((op.microbatch,) if end - begin > short else ())
    for said, ops in (("plan", recorded.planned), ("as it ran", recorded.ops))
    for op, begin, end in ops
]
figure = plt.figure(figsize=(10, 4.6), layout="constrained")
(times, pair) = figure.subfigures(1, 2, width_ratios=(3, 1))
axes = times.subplots()
pictures.timeline(axes, bars, rows)
for stage in range(1, 4):
    axes.axhline(0.5 - 2 * stage, color="lightgrey", linewidth=0.8)
axes.set(title=f"{pipe.schedule.bubble:.0%} idle as planned, {idle:.0%} as it ran; forward blue, backward green")
for part, image, title in zip(pair.subplots(2), (colors, pipe.forward(points)), ("to learn", "learned"), strict=True):
    part.imshow(np.clip(np.asarray(image), 0, 1).reshape(SIZE, SIZE, 3))
    part.set(title=title, xticks=[], yticks=[])
figure.savefig(out / "pipeline.png", dpi=100)
print(f"wrote {out / 'schedule.svg'} and {out / 'pipeline.png'}")
