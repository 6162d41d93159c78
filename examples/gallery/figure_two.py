# %% [markdown]
# # The paper's first program
#
# Figure 2 of the Pathways paper: three functions, each on two devices of its own, called by a fourth.
# `pathways.program` captures the work of the fourth function once; from then on each call of it is one library call.

# %%
import jax
import numpy as np
import pathways

pathways.init(devices=6)


def get_devices(n):
    """Returns n virtual devices, different from those granted before as long as there are enough."""
    return pathways.make_virtual_device_set().add_slice(tpu_devices=n).tpus


slices = [get_devices(2) for _ in range(3)]
a = jax.pmap(lambda x: x * 2.0, devices=slices[0])
b = jax.pmap(lambda x: x + 1.0, devices=slices[1])
c = jax.pmap(lambda x: x / 2.0, devices=slices[2])


def f(v):
    x = a(v)
    y = b(x)
    z = a(c(x))
    return y, z


print(f(np.array([1.0, 2.0])))

# %% [markdown]
# The same as one program: the same numbers.

# %%
program = pathways.program(f)
print(program(np.array([1.0, 2.0])))

# %% [markdown]
# The captured graph: a node for each computation, independent of its number of devices, and the moves between slices.

# %%
import pictures  # noqa: E402

out = pictures.folder()
lowered = program.lower(np.array([1.0, 2.0]))
lowered.save(out / "figure_two.svg")
print(lowered.as_text())

# %% [markdown]
# Recorded calls of both: the picture shows the shortest of fifty. The argument is already on the devices of `a`, so
# that it shows only the four computations and the gaps between them.

# %%
plt = pictures.pyplot()
v = jax.device_put(np.array([1.0, 2.0]), a(np.array([1.0, 2.0])).sharding)


def recorded(way):
    with pathways.trace(out / "figure_two.json") as timeline:
        jax.block_until_ready(way(v))
    return timeline.spans


def length(spans):
    return max(span.begin + span.seconds for span in spans)


figure, rows = plt.subplots(2, figsize=(9, 4.6), layout="constrained", sharex=True)
labels = {i: f"device {i}" for i in range(6)}
for axes, (name, way) in zip(rows, {"call by call": f, "as one program": program}.items(), strict=True):
    shortest = min((recorded(way) for _ in range(50)), key=length)
    bars = [(s.device, s.begin, s.seconds, pictures.COLORS[s.device // 2 * 2], "abc"[s.device // 2]) for s in shortest]
    pictures.timeline(axes, bars, labels)
    took = f"{1e3 * length(shortest):.2f} ms from the first computation to the end of the last"
    axes.set_title(f"{name}: {took}")
rows[0].set_xlabel("")
figure.savefig(out / "figure_two.png", dpi=100)
print(f"wrote {out / 'figure_two.svg'} and {out / 'figure_two.png'}")
