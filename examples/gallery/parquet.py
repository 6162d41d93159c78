# %% [markdown]
# # From a Parquet file to devices, batch by batch
#
# pyarrow reads and decodes record batches, and `pathways.from_arrow` passes each to the devices of a mesh. If possible,
# the devices use the columns' memory directly; the next batch is read while they work on the current one.

# %%
import os
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pathways
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

try:
    import pyarrow as pa
    import pyarrow.parquet
except ImportError:
    sys.exit("This example needs pyarrow: pip install pyarrow")

import pictures

pathways.init(devices=4)
STEPS, WIDTH = int(os.environ.get("GALLERY_STEPS", "1600")), int(os.environ.get("GALLERY_WIDTH", "64"))
BATCH = 4096  # rows
out = pictures.folder()
file = out / "hills.parquet"

# %% [markdown]
# The data: heights of a landscape at random places, with some noise. A row has a place, a list of two numbers, and a
# height. Parquet reads one row group at a time; batches may span several of them.


# %%
def height(at):
    return np.sin(5 * at[..., 0]) * np.cos(4 * at[..., 1]) + 0.5 * np.exp(-8 * (at**2).sum(-1))


random = np.random.default_rng(0)
places = random.uniform(-1, 1, (50 * BATCH, 2)).astype("float32")
heights = (height(places) + 0.1 * random.normal(size=len(places))).astype("float32")
table = pa.table({"place": pa.FixedSizeListArray.from_arrays(pa.array(places.reshape(-1)), 2), "height": heights})
pa.parquet.write_table(table, file, row_group_size=10 * BATCH)
del table, places, heights

# %% [markdown]
# Each device has a copy of the model and a quarter of each batch. Dictionaries of shardings by column work too.

# %%
mesh = jax.make_mesh((4,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
sizes = [(2, WIDTH), (WIDTH, WIDTH), (WIDTH, 1)]
scales = [4, 1, 1]
weights = [(s * random.normal(size=n) / np.sqrt(n[0])).astype("float32") for n, s in zip(sizes, scales, strict=True)]
weights = jax.device_put(weights, NamedSharding(mesh, P()))
momenta = jax.tree.map(jnp.zeros_like, weights)


def predict(weights, at):
    return (jnp.sin(jnp.sin(at @ weights[0] + jnp.arange(WIDTH)) @ weights[1]) @ weights[2])[:, 0]


@jax.jit
def step(weights, momenta, batch):
    loss, gradients = jax.value_and_grad(lambda w: jnp.mean((predict(w, batch["place"]) - batch["height"]) ** 2))(
        weights
    )
    momenta = [0.9 * m + g for m, g in zip(momenta, gradients, strict=True)]
    return [w - 0.02 * m for w, m in zip(weights, momenta, strict=True)], momenta, loss


# %% [markdown]
# The file is read again and again until the steps are done. A reader is a stream, and so is the result of `from_arrow`.


# %%
def batches():
    while True:
        parquet = pa.parquet.ParquetFile(file)
        reader = pa.RecordBatchReader.from_batches(parquet.schema_arrow, parquet.iter_batches(batch_size=BATCH))
        yield from pathways.from_arrow(reader, NamedSharding(mesh, P("data")))


losses = []
for batch, _ in zip(batches(), range(STEPS), strict=False):
    weights, momenta, loss = step(weights, momenta, batch)
    losses.append(loss)
losses = [float(loss) for loss in losses]
print(f"{batch['place'].shape} places a batch, in shards of {batch['place'].addressable_shards[0].data.shape}")
print(f"{len(losses)} steps, loss {losses[0]:.3f} at first, {losses[-1]:.4f} at the end; the noise alone is 0.01")

# %% [markdown]
# The learned parameters go back to Arrow, and so to a file.

# %%
grid = np.stack(np.meshgrid(*[np.linspace(-1, 1, 64, dtype="float32")] * 2), -1).reshape(-1, 2)
learned = predict(weights, grid)
pa.parquet.write_table(pa.table(pathways.to_arrow({"place": grid, "height": learned})), out / "learned.parquet")

plt = pictures.pyplot()
figure, (left, middle, right) = plt.subplots(1, 3, figsize=(9, 3), layout="constrained")
left.plot(losses, linewidth=0.8)
left.set(title="loss (lower is better)", xlabel="batch", yscale="log")
for axes, values, title in ((middle, height(grid), "true"), (right, learned, "learned")):
    axes.imshow(np.reshape(values, (64, 64)), vmin=-1.2, vmax=1.2, cmap="terrain")
    axes.set(title=title, xticks=[], yticks=[])
figure.savefig(out / "parquet.png", dpi=80)
print(f"wrote {out / 'parquet.png'}")
