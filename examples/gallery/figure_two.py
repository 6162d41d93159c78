# %% [markdown]
# # The paper's first program
#
# Figure 2 of the Pathways paper: three functions, each on two devices of its own, called by a fourth.
# `pathways.program` captures what the fourth does, once; from then on a call of it is one call of the library.

# %%
import jax
import numpy as np
import pathways

pathways.init(devices=6)


def get_devices(n):
    """Gives n virtual devices, which nobody else was given as long as there are enough."""
    return pathways.make_virtual_device_set().add_slice(tpu_devices=n).tpus


a = jax.pmap(lambda x: x * 2.0, devices=get_devices(2))
b = jax.pmap(lambda x: x + 1.0, devices=get_devices(2))
c = jax.pmap(lambda x: x / 2.0, devices=get_devices(2))


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
# What was captured: a node for each computation, whatever the number of its devices, and what moves between slices.

# %%
import matplotlib.pyplot as plt  # noqa: E402
import pictures  # noqa: E402

out = pictures.folder()
lowered = program.lower(np.array([1.0, 2.0]))
lowered.save(out / "figure_two.svg")
print(lowered.as_text())

# %% [markdown]
# Calls of each way, recorded; of twenty the shortest is drawn. The program's first two computations take its argument
# apart.


# %%
def recorded(way):
    with pathways.trace(out / "figure_two.json"):
        jax.block_until_ready(way(np.array([1.0, 2.0])))
    return pictures.gangs(out / "figure_two.json")


figure, rows = plt.subplots(2, figsize=(9, 4.5), layout="constrained")
colours = {}
for axes, (name, way) in zip(rows, {"call by call": f, "as a program": program}.items(), strict=True):
    bars = []
    shortest = min((recorded(way) for _ in range(20)), key=lambda gangs: max(gang[2] + gang[3] for gang in gangs))
    for device, computation, begin, seconds in shortest:
        colour = colours.setdefault((device // 2, computation), pictures.COLOURS[2 * len(colours) % 20])
        bars.append((device, begin, seconds, colour))
    pictures.timeline(axes, bars, {i: f"device {i}" for i in range(6)})
    axes.set(title=name)
figure.savefig(out / "figure_two.png", dpi=80)
print(f"wrote {out / 'figure_two.svg'} and {out / 'figure_two.png'}")
