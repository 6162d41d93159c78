# %% [markdown]
# # Reinforcement learning on two slices: one trains, the other samples
#
# A small policy learns to add two digits by GRPO: for each sum it is asked for, it gives a group of answers, and those
# that are better than their group's mean become more likely. One slice samples answers, and another trains on them. The
# loop below waits for neither, so both compute at once; `pathways.sync` brings the newest weights to the sampler.
#
# The CPU devices of one process run one computation of several devices at a time, with JAX alone, too. There the slices
# take turns; the picture is of `pathways up --workers 2 --devices 4 -- python examples/gallery/grpo.py`.

# %%
import os

import jax
import jax.numpy as jnp
import numpy as np
import pathways
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

pathways.init(devices=8)
STEPS, WIDTH = int(os.environ.get("GALLERY_STEPS", "500")), int(os.environ.get("GALLERY_WIDTH", "128"))
SUMS, GROUP = 64, 16  # questions a step, and answers to each
DIGITS, ANSWER = 10, 2  # an answer has two digits

slices = pathways.make_virtual_device_set()
trainer = Mesh(np.array(slices.add_slice(devices=4).devices), ("fsdp",))
sampler = Mesh(np.array(slices.add_slice(devices=4).devices), ("data",))

# %% [markdown]
# The trainer's weights are split over its devices; each device of the sampler has all of them.

# %%
random = np.random.default_rng(0)
split = [NamedSharding(trainer, P(None, "fsdp")), NamedSharding(trainer, P("fsdp", None)), NamedSharding(trainer, P())]
shapes = [(3 * DIGITS + 1 + ANSWER, WIDTH), (WIDTH, WIDTH), (WIDTH, DIGITS)]
params = [
    jax.device_put((random.normal(size=shape) / np.sqrt(shape[0])).astype("float32"), layout)
    for shape, layout in zip(shapes, split, strict=True)
]
moments = [
    jax.device_put(np.zeros((2, *p.shape), "float32"), NamedSharding(trainer, P(None, *p.sharding.spec)))
    for p in params
]
weights = pathways.sync(params, to=NamedSharding(sampler, P()))


# %% [markdown]
# The policy: the two digits asked for, the digit said before, and which one comes next, through two layers.


# %%
def scores(params, asked, before, place):
    one = [jax.nn.one_hot(asked[:, i], DIGITS) for i in range(2)]
    x = jnp.concatenate([*one, jax.nn.one_hot(before, DIGITS + 1), jax.nn.one_hot(place, ANSWER)], -1)
    for w in params[:-1]:
        x = jax.nn.gelu(x @ w)
    return jax.nn.log_softmax(x @ params[-1])


def likelihood(params, asked, said):
    """The log of the probability of each digit said."""
    before, out = jnp.full(len(asked), DIGITS), []
    for place in range(ANSWER):
        every = scores(params, asked, before, jnp.full(len(asked), place))
        before = said[:, place]
        out.append(jnp.take_along_axis(every, before[:, None], 1)[:, 0])
    return jnp.stack(out, 1)


@jax.jit
def sample(params, seed):
    """Answers, how likely they were, and how good each is: half a point for each right digit."""
    ask, *keys = jax.random.split(jax.random.key(seed), 1 + ANSWER)
    asked = jnp.repeat(jax.random.randint(ask, (SUMS, 2), 0, DIGITS), GROUP, 0)
    asked = jax.lax.with_sharding_constraint(asked, NamedSharding(sampler, P("data")))
    before, said = jnp.full(len(asked), DIGITS), []
    for place, key in enumerate(keys):
        before = jax.random.categorical(key, scores(params, asked, before, jnp.full(len(asked), place)))
        said.append(before)
    said = jnp.stack(said, 1)
    right = jnp.stack([asked.sum(1) // DIGITS, asked.sum(1) % DIGITS], 1)
    reward = jnp.mean(said == right, 1)
    return {"asked": asked, "said": said, "likely": likelihood(params, asked, said), "reward": reward}


# %% [markdown]
# The trainer compares each answer with its group. The weights that sampled it are a step or more behind, so the ratio
# of likelihoods is clipped, as in PPO. A small bonus for answers that differ keeps the policy trying. Then Adam.


# %%
def objective(params, batch):
    reward = batch["reward"].reshape(SUMS, GROUP)
    better = (reward - reward.mean(1, keepdims=True)) / (reward.std(1, keepdims=True) + 1e-3)
    better = better.reshape(-1, 1)
    likely = likelihood(params, batch["asked"], batch["said"])
    ratio = jnp.exp(likely - batch["likely"])
    surprise = -jnp.mean(likely * jax.lax.stop_gradient(1 + likely))  # its gradient is that of the entropy
    return -jnp.mean(jnp.minimum(ratio * better, jnp.clip(ratio, 0.8, 1.2) * better)) - 0.02 * surprise


@jax.jit
def train(params, moments, batch, step):
    gradients = jax.grad(objective)(params, batch)
    new, kept = [], []
    for p, m, g in zip(params, moments, gradients, strict=True):
        m = jnp.stack([0.9 * m[0] + 0.1 * g, 0.99 * m[1] + 0.01 * g * g])
        new.append(p - 2e-3 * (m[0] / (1 - 0.9**step)) / (jnp.sqrt(m[1] / (1 - 0.99**step)) + 1e-8))
        kept.append(m)
    return new, kept, jnp.mean(batch["reward"])


# %% [markdown]
# The loop. While the trainer computes with one batch, the sampler makes the next. `push` waits for the version before
# to arrive, so the sampler is a step or two behind, and not more.

# %%
rewards, behind = [], []


def go_on(steps):
    global params, moments
    for step in range(len(rewards) + 1, len(rewards) + 1 + steps):
        version, newest = weights.latest()
        batch = pathways.reshard(sample(newest, step), NamedSharding(trainer, P("fsdp")))
        params, moments, reward = train(params, moments, batch, float(step))
        behind.append(weights.push(params) - 1 - version)
        rewards.append(reward)


go_on(STEPS)
got = np.array([float(r) for r in rewards])
print(f"right digits: {got[0]:.0%} at first, {got[-10:].mean():.1%} after {STEPS} steps")
print(f"the sampler's weights were {np.mean(behind):.1f} steps behind on average, {max(behind)} at most")

# %% [markdown]
# What was learned, and what the devices of both slices do in a few more steps.

# %%
import pictures  # noqa: E402

plt = pictures.pyplot()
out = pictures.folder()
with pathways.trace(out / "grpo.json") as timeline:
    go_on(6)
    jax.block_until_ready(params)
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.5), layout="constrained", width_ratios=(1, 1.6))
left.plot(got, color=pictures.COLORS[0])
left.set(title="digits that are right", xlabel="step", ylim=(0, 1))
colors = {"sample": pictures.COLORS[2], "train": pictures.COLORS[0]}
spans = [s for s in timeline.spans if s.name in colors]
first = min(s.begin for s in spans)
bars = [(s.device, s.begin - first, s.seconds, colors[s.name]) for s in spans]
rows = {d.id: name for mesh, name in ((trainer, "trainer"), (sampler, "sampler")) for d in mesh.devices.flat}
pictures.timeline(right, bars, rows)
right.set(title="six steps", xlabel="milliseconds")
figure.savefig(out / "grpo.png", dpi=80)
print(f"wrote {out / 'grpo.png'}")
