# %% [markdown]
# # A parameter server by futures
#
# One slice keeps the parameters, three others compute gradients. Python never waits: a worker receives the future of
# some version of the parameters, and the server adds the future of the worker's gradient. A synchronous server and an
# asynchronous one differ only in the version that each worker receives.

# %%
import os

import jax
import jax.numpy as jnp
import numpy as np
import pathways

pathways.init(devices=4)
ROUNDS, WIDTH = int(os.environ.get("GALLERY_STEPS", "60")), int(os.environ.get("GALLERY_WIDTH", "128"))
WORKERS = 3

slices = pathways.make_virtual_device_set()
server = slices.add_slice(devices=1).devices[0]
workers = [slices.add_slice(devices=1).devices[0] for _ in range(WORKERS)]

# %% [markdown]
# The model: a curve through noisy points. Each worker has its own points, in batches of different sizes, so that some
# workers take longer than others.

# %%
random = np.random.default_rng(0)
at = np.linspace(-1, 1, 512, dtype="float32")[:, None]


def curve(x):
    return np.sin(6 * x) * np.exp(-x * x) + 0.3 * np.sign(x)


def data(worker):
    x = random.uniform(-1, 1, (2048 * (worker + 1), 1))
    return jax.device_put(
        ((x).astype("float32"), (curve(x) + 0.1 * random.normal(size=x.shape)).astype("float32")), workers[worker]
    )


def start():
    sizes = [(1, WIDTH), (WIDTH, WIDTH), (WIDTH, 1)]
    made = np.random.default_rng(1)
    scales = [6, 1, 0.3]
    return jax.device_put(
        [(s * made.normal(size=n) / np.sqrt(n[0])).astype("float32") for n, s in zip(sizes, scales, strict=True)],
        server,
    )


def predict(params, x):
    return jnp.sin(jnp.sin(x @ params[0] + jnp.arange(WIDTH)) @ params[1]) @ params[2]


@jax.jit
def gradient(params, x, y):
    return jax.value_and_grad(lambda p: jnp.mean((predict(p, x) - y) ** 2))(params)


@jax.jit
def add(params, gradients):
    return [p - 0.02 * g for p, g in zip(params, gradients, strict=True)]


shares = [data(worker) for worker in range(WORKERS)]


# %% [markdown]
# The server's loop. Synchronous: in each round all workers get the newest version, and the next round begins with the
# gradients of all of them. Asynchronous: a worker gets the newest version as soon as its last gradient has been added,
# while the others are still computing theirs. The loop determines the order, and so every bit, not the clock.


# %%
def ask(params, worker):
    return gradient(jax.device_put(params, workers[worker]), *shares[worker])


def synchronous(params, rounds):
    losses = []
    for _ in range(rounds):
        answers = [ask(params, worker) for worker in range(WORKERS)]
        for loss, gradients in answers:
            params = add(params, jax.device_put(gradients, server))
            losses.append(loss)
    return params, losses


def asynchronous(params, rounds):
    losses = []
    answers = [ask(params, worker) for worker in range(WORKERS)]
    for i in range(rounds * WORKERS):
        worker = i % WORKERS
        loss, gradients = answers[worker]
        params = add(params, jax.device_put(gradients, server))
        if i < (rounds - 1) * WORKERS:
            answers[worker] = ask(params, worker)
        losses.append(loss)
    return params, losses


# %% [markdown]
# Both ways, then a few rounds of each as a trace. A gradient began when its device was free and its version of the
# parameters was there: for the synchronous server that of the last round, for the other the one after its last one.

# %%
import pictures  # noqa: E402

TRACED = 4
out = pictures.folder()
results = {}
for way in (synchronous, asynchronous):
    jax.block_until_ready(way(start(), 1))  # compiled
    params, losses = way(start(), ROUNDS)
    name, first, last = way.__name__, float(losses[0]), float(losses[-1])
    print(f"{name}: {len(losses)} gradients, loss {first:.3f} at first, {last:.4f} at the end")
    with pathways.trace(out / f"{name}.json") as timeline:
        jax.block_until_ready(way(params, TRACED))
    results[way] = params, losses, timeline.spans

# %%
plt = pictures.pyplot()
from matplotlib import ticker  # noqa: E402

COLORS = {synchronous: "#0072b2", asynchronous: "#d55e00"}
figure = plt.figure(figsize=(10, 5.4), layout="constrained")
left, (loss_axes, curve_axes) = figure.subplots(2, 2, width_ratios=(3, 2)).T
rows = {server.id: "server"} | {device.id: f"worker {i}" for i, device in enumerate(workers)}


def version(way, worker, count):
    """Returns the number of gradients in the parameters for a worker's next gradient, after count gradients."""
    return WORKERS * count if way is synchronous else max(0, WORKERS * (count - 1) + worker + 1)


def bars(spans, way):
    """Returns what ran when: each computation from the time at which it could begin."""

    def times(device, name):
        return [(s.begin, s.begin + s.seconds) for s in spans if (s.device, s.name) == (device.id, name)]

    adds = times(server, "add")
    answers = [times(worker, "gradient") for worker in workers]
    shown = []
    for i, (begin, end) in enumerate(adds):
        begin = min(max(begin, answers[i % WORKERS][i // WORKERS][1]), end)
        shown.append((server.id, begin, end - begin, "black"))
    for worker, device in enumerate(workers):
        for i, (begin, end) in enumerate(answers[worker]):
            needed = version(way, worker, i)
            begin = min(max(begin, adds[needed - 1][1]), end) if needed else begin
            shown.append((device.id, begin, end - begin, pictures.COLORS[2 * worker + 2 * (worker > 0)]))
    return shown


def line(axes, x, y, name, color, up):
    """Draws a line with its name at its end."""
    axes.plot(x, y, color=color)
    place = {"xytext": (5, up), "textcoords": "offset points", "va": "center", "annotation_clip": False}
    axes.annotate(name, (x[-1], y[-1]), color=color, **place)


line(curve_axes, at[:, 0], curve(at)[:, 0], "true", "black", 25)
for axes, (way, (params, losses, spans)) in zip(left, results.items(), strict=True):
    name, up = way.__name__, 12 if way is synchronous else -1
    line(loss_axes, range(1, len(losses) + 1), [float(loss) for loss in losses], name, COLORS[way], up)
    learned = predict(jax.device_put(params, server), at)
    line(curve_axes, at[:, 0], np.asarray(learned)[:, 0], name, COLORS[way], up)
    pictures.timeline(axes, bars(spans, way), rows)
    axes.set(title=f"{name}: {TRACED} rounds")
end = max(axes.get_xlim()[1] for axes in left)
for axes in left:
    axes.set_xlim(0, end)
loss_axes.set(title="loss", ylabel="lower is better", xlabel="gradients added", yscale="log")
loss_axes.yaxis.set_minor_formatter(ticker.NullFormatter())
curve_axes.set(title="the curve, true and learned (closer is better)")
for axes in (loss_axes, curve_axes):
    axes.spines[["top", "right"]].set_visible(False)
figure.savefig(out / "parameter_server.png", dpi=100)
print(f"wrote {out / 'parameter_server.png'}")
