# %% [markdown]
# # One model on two slices, each with a mesh of its own
#
# The body of the model is split over a mesh of data x model, its head only over the data, on other devices. One Python
# script drives both. `pathways.reshard` moves arrays from one slice to the other, region by region, without waiting.

# %%
import os

import jax
import jax.numpy as jnp
import numpy as np
import pathways
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

pathways.init(devices=6)
STEPS, WIDTH = int(os.environ.get("GALLERY_STEPS", "400")), int(os.environ.get("GALLERY_WIDTH", "128"))

slices = pathways.make_virtual_device_set()
body = Mesh(np.array(slices.add_slice(devices=4).devices).reshape(2, 2), ("data", "model"))
head = Mesh(np.array(slices.add_slice(devices=2).devices), ("data",))

# %% [markdown]
# The weights of the body are split over its axis `model`; the head's are on both of its devices.

# %%
random = np.random.default_rng(0)


def weights(mesh, spec, *shape):
    return jax.device_put(
        (random.normal(size=shape) / np.sqrt(shape[0])).astype("float32"), NamedSharding(mesh, P(*spec))
    )


body_weights = [weights(body, (None, "model"), 2, WIDTH), weights(body, ("model", None), WIDTH, WIDTH)]
head_weights = [weights(head, (), WIDTH, WIDTH), weights(head, (), WIDTH, 1)]
between = NamedSharding(body, P("data")), NamedSharding(head, P("data"))


# %% [markdown]
# Two functions for the body, one for the head. Each is one computation over its slice, with its collectives.


# %%
def features(weights, x):
    return jnp.tanh(jnp.sin(3 * x @ weights[0]) @ weights[1])


@jax.jit
def forward(weights, x):
    return jax.lax.with_sharding_constraint(features(weights, x), between[0])


@jax.jit
def learn_head(weights, hidden, labels):
    def loss(weights, hidden):
        scores = (jax.nn.gelu(hidden @ weights[0]) @ weights[1])[:, 0]
        return jnp.mean(jax.nn.softplus(-labels * scores))

    value, (gradients, back) = jax.value_and_grad(loss, (0, 1))(weights, hidden)
    return [w - 0.3 * g for w, g in zip(weights, gradients, strict=True)], back, value


@jax.jit
def learn_body(weights, x, gradient):
    _, back = jax.vjp(lambda weights: features(weights, x), weights)
    return [w - 0.3 * g for w, g in zip(weights, *back(gradient), strict=True)]


# %% [markdown]
# Two spirals, to be told apart. A step is five calls; none of them waits.

# %%
turn = random.uniform(0.4, 1, 512) * 9
side = random.choice([-1.0, 1.0], 512)
spiral = np.stack([np.cos(turn), np.sin(turn)], -1) * (side * turn / 9)[:, None]
x = jax.device_put(spiral.astype("float32"), NamedSharding(body, P("data")))
labels = jax.device_put(side.astype("float32"), NamedSharding(head, P("data")))

losses = []
for _ in range(STEPS):
    hidden = forward(body_weights, x)
    hidden = pathways.reshard(hidden, between[1])
    head_weights, gradient, loss = learn_head(head_weights, hidden, labels)
    gradient = pathways.reshard(gradient, between[0])
    body_weights = learn_body(body_weights, x, gradient)
    losses.append(loss)
print(f"loss {losses[0]:.3f} at first, {losses[-1]:.4f} after {STEPS} steps")
print("moved between the slices, without a read on the host:", pathways.stats()["reshards"], "arrays")

# %% [markdown]
# Where everything is, and what was learned.

# %%
import pictures  # noqa: E402

plt = pictures.pyplot()
arrays = {"body: first weights": body_weights[0], "body: second weights": body_weights[1], "what body returns": hidden}
arrays = {**arrays, "head: first weights": head_weights[0], "head: second weights": head_weights[1]}
figure = plt.figure(figsize=(9, 4.5), layout="constrained")
left, right = figure.subfigures(1, 2, width_ratios=(1.1, 1))
for axes, (name, array) in zip(left.subplots(2, 3).flat, arrays.items(), strict=False):
    rows, columns = array.shape
    boxes = {}
    for shard in array.addressable_shards:
        boxes.setdefault(str(shard.index), (shard.index, []))[1].append(shard.device.id)
    for index, holders in boxes.values():
        (top, bottom, _), (west, east, _) = (s.indices(n) for s, n in zip(index, array.shape, strict=True))
        color = pictures.COLORS[2 * holders[0] + (len(holders) > 1)]
        axes.add_patch(plt.Rectangle((west, top), east - west, bottom - top, facecolor=color, edgecolor="white"))
        text = " ".join(map(str, sorted(holders)))
        axes.text((west + east) / 2, (top + bottom) / 2, text, ha="center", va="center")
    axes.set(title=name, xlim=(0, columns), ylim=(rows, 0), xticks=[], yticks=[])
    axes.set_xlabel(f"{rows} x {columns}")
    axes.title.set_fontsize(9)
left.axes[-1].axis("off")
left.suptitle("which devices hold which part")

grid = np.stack(np.meshgrid(*2 * [np.linspace(-1.1, 1.1, 96)]), -1).reshape(-1, 2).astype("float32")
seen = pathways.reshard(forward(body_weights, jax.device_put(grid, NamedSharding(body, P("data")))), between[1])
scores = jax.jit(lambda w, h: jnp.tanh(jax.nn.gelu(h @ w[0]) @ w[1]))(head_weights, seen)
axes = right.subplots()
axes.imshow(np.asarray(scores).reshape(96, 96), extent=(-1.1, 1.1, -1.1, 1.1), origin="lower", cmap="RdBu")
axes.scatter(*spiral.T, c=side, cmap="RdBu", s=14, edgecolors="white", linewidths=0.6)
axes.set(title=f"two spirals, after {STEPS} steps", xticks=[], yticks=[])
out = pictures.folder()
figure.savefig(out / "two_slices.png", dpi=80)
print(f"wrote {out / 'two_slices.png'}")
