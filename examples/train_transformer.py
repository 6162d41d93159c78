"""Train a small transformer on eight devices, as a mesh of data x model, with ordinary JAX.

    python examples/train_transformer.py            train, and compare with stock JAX
    python examples/train_transformer.py --stock    the same script without Pathways

The model reads bytes: the sources of Python's own standard library, which every machine has. Weights of attention
heads and MLPs are split over the mesh axis `model`, batches over the axis `data`; jit puts in the collectives. The
only lines that know of Pathways are the ones in `use_pathways`: an import, a call of init, and a trace around a few
steps.

Beside it a second process runs the same steps on stock JAX. The two take turns, a stretch of steps each, so that
whatever else the machine does slows both alike.
"""

import argparse
import importlib.util
import json
import math
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import sysconfig
import time
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

VOCABULARY = 256  # bytes
STRETCHES = 16  # number of turns that each side takes
SAMPLE = 400  # bytes that the model writes at the end
WARM_UP = 3  # steps at the start of a turn that do not count: the caches still have the other side's data

DESCRIPTION = "Train a small byte-level transformer on a mesh of devices, through Pathways or on stock JAX."
EPILOG = """\
what you see
  the devices, a progress bar, the loss and the tokens a second of both sides, and some text the model wrote.
what is left behind in --out
  loss.png    the loss of both sides, step by step
  trace.json  a few steps as gangs on devices; open it at https://ui.perfetto.dev
  trace.png   the same as a picture
examples
  %(prog)s                                  eight devices, data=4 x model=2, against stock JAX
  %(prog)s --mesh 2x4                       more of each layer split, less of the batch
  %(prog)s --devices 4 --mesh 4x1           data parallel alone
  %(prog)s --no-compare --steps 1000        train longer, and do not run stock JAX
"""


def parse(argv=None):
    p = argparse.ArgumentParser(
        description=DESCRIPTION, epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("--steps", type=int, default=480, help="optimizer steps (default %(default)s)")
    p.add_argument("--devices", type=int, default=8, help="how many devices to train on (default %(default)s)")
    p.add_argument("--mesh", help="DATAxMODEL, such as 4x2; their product is --devices (default: model is 2)")
    p.add_argument("--out", type=pathlib.Path, default=pathlib.Path("out"), help="folder to write to (default out)")
    p.add_argument("--stock", action="store_true", help="run on stock JAX alone, without Pathways")
    p.add_argument("--no-compare", dest="compare", action="store_false", help="leave the run on stock JAX out")
    p.add_argument("--layers", type=int, default=3, help="transformer layers (default %(default)s)")
    p.add_argument("--width", type=int, default=128, help="size of the residual stream (default %(default)s)")
    p.add_argument("--heads", type=int, default=4, help="attention heads (default %(default)s)")
    p.add_argument("--context", type=int, default=96, help="bytes the model looks back on (default %(default)s)")
    p.add_argument("--batch", type=int, default=16, help="sequences a step (default %(default)s)")
    p.add_argument("--rate", type=float, default=4e-3, help="highest learning rate (default %(default)s)")
    p.add_argument("--seed", type=int, default=0, help="of weights, batches and the sample (default %(default)s)")
    p.add_argument("--turns", action="store_true", help=argparse.SUPPRESS)  # the comparison's other process
    a = p.parse_args(argv)
    if a.mesh is None:
        a.mesh = f"{a.devices // 2}x2" if a.devices % 2 == 0 else f"{a.devices}x1"
    try:
        a.data, a.model = (int(n) for n in a.mesh.lower().split("x"))
    except ValueError:
        p.error(f"--mesh is {a.mesh!r}; it is two numbers, DATAxMODEL, such as 4x2")
    if min(a.data, a.model) < 1 or a.data * a.model != a.devices:
        p.error(f"--mesh {a.mesh} has {a.data * a.model} places for --devices {a.devices}; the product must be equal")
    if a.batch % a.data:
        p.error(f"--batch {a.batch} cannot be split over data={a.data}; give a multiple of it")
    if a.heads % a.model or a.width % (2 * a.heads):
        p.error(f"--heads {a.heads} must be a multiple of model={a.model}, --width {a.width} of twice the heads")
    if a.steps < 2 * STRETCHES * WARM_UP:
        p.error(f"--steps {a.steps} is too few to measure; give at least {2 * STRETCHES * WARM_UP}")
    if not a.turns and importlib.util.find_spec("matplotlib") is None:
        p.error("the loss curve is drawn with matplotlib, which is not installed; run: pip install matplotlib")
    return a


# --- the devices ----------------------------------------------------------------------------------------------------


def use_pathways(args):
    import pathways

    pathways.init(devices=args.devices)
    return pathways


def use_stock(args):
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", args.devices)


# --- the text -------------------------------------------------------------------------------------------------------


def read_library(limit=8 << 20):
    """Returns the sources of the standard library's modules as one array of bytes, in a fixed order."""
    root = pathlib.Path(sysconfig.get_paths()["stdlib"])
    text = bytearray()
    for path in sorted(root.glob("*.py")) + sorted(root.glob("[a-z]*/*.py")):
        if len(text) < limit and path.parent.name not in ("site-packages", "test", "idlelib", "__pycache__"):
            text += path.read_bytes() + b"\n\n"
    return np.frombuffer(bytes(text), np.uint8)


def batches(text, args):
    """Yields endless batches of (batch, context + 1) bytes, the same for the same seed."""
    random = np.random.default_rng(args.seed)
    while True:
        starts = random.integers(0, len(text) - args.context - 1, args.batch)
        yield text[starts[:, None] + np.arange(args.context + 1)].astype(np.int32)


# --- the model ------------------------------------------------------------------------------------------------------


def shardings(args):
    """Returns, for each weight, the mesh axis that splits each dimension: `model` splits heads and the MLP's middle."""
    layer = {
        "query": P(None, "model", None),  # width, heads, head size
        "key": P(None, "model", None),
        "value": P(None, "model", None),
        "out": P("model", None, None),
        "up": P(None, "model"),
        "down": P("model", None),
        "norm_attention": P(),
        "norm_mlp": P(),
    }
    return {"embed": P(), "norm": P(), "unembed": P(None, "model"), "layers": [layer] * args.layers}


def make_weights(key, args):
    width, heads, size = args.width, args.heads, args.width // args.heads
    keys = iter(jax.random.split(key, 2 + 6 * args.layers))

    def normal(*shape, fan_in, scale=1.0):
        return jax.random.normal(next(keys), shape) * (scale / math.sqrt(fan_in))

    depth = 1 / math.sqrt(2 * args.layers)  # keeps the size of the residual stream independent of the number of layers
    return {
        "embed": normal(VOCABULARY, width, fan_in=4),
        "unembed": normal(width, VOCABULARY, fan_in=width, scale=0.5),
        "norm": jnp.ones(width),
        "layers": [
            {
                "query": normal(width, heads, size, fan_in=width),
                "key": normal(width, heads, size, fan_in=width),
                "value": normal(width, heads, size, fan_in=width),
                "out": normal(heads, size, width, fan_in=width, scale=depth),
                "up": normal(width, 4 * width, fan_in=width),
                "down": normal(4 * width, width, fan_in=4 * width, scale=depth),
                "norm_attention": jnp.ones(width),
                "norm_mlp": jnp.ones(width),
            }
            for _ in range(args.layers)
        ],
    }


def make_state(key, args):
    """Returns the weights, Adam's mean and mean square of each, and the number of steps done."""
    weights = make_weights(key, args)
    return weights, jax.tree.map(jnp.zeros_like, weights), jax.tree.map(jnp.zeros_like, weights), jnp.zeros(())


def normalize(x, gain):
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * gain


def rotate(x):
    """Applies rotary positions: pairs of numbers of a head are rotated by the position of the byte."""
    half = x.shape[-1] // 2
    angle = jnp.arange(x.shape[1])[:, None] * 1000.0 ** (-jnp.arange(half) / half)
    cos, sin = jnp.cos(angle)[:, None], jnp.sin(angle)[:, None]
    a, b = x[..., :half], x[..., half:]
    return jnp.concatenate([a * cos - b * sin, a * sin + b * cos], -1)


def predict(weights, tokens):
    """Returns logits (batch, context, vocabulary) of the byte after each of tokens (batch, context)."""
    x = weights["embed"][tokens]
    length = tokens.shape[1]
    visible = jnp.tril(jnp.ones((length, length), bool))
    for w in weights["layers"]:
        y = normalize(x, w["norm_attention"])
        query = rotate(jnp.einsum("btd,dhk->bthk", y, w["query"]))
        key = rotate(jnp.einsum("btd,dhk->bthk", y, w["key"]))
        value = jnp.einsum("btd,dhk->bthk", y, w["value"])
        scores = jnp.einsum("bthk,bshk->bhts", query, key) / math.sqrt(query.shape[-1])
        share = jax.nn.softmax(jnp.where(visible, scores, -1e9))
        x += jnp.einsum("bhts,bshk,hkd->btd", share, value, w["out"])
        y = normalize(x, w["norm_mlp"])
        x += jax.nn.relu(y @ w["up"]) @ w["down"]
    return normalize(x, weights["norm"]) @ weights["unembed"]


def loss_of(weights, batch):
    """Returns the mean cross-entropy of batch (batch, context + 1), in nats per byte."""
    logits, targets = predict(weights, batch[:, :-1]), batch[:, 1:]
    right = jnp.take_along_axis(logits, targets[..., None], -1)[..., 0]
    return jnp.mean(jax.nn.logsumexp(logits, -1) - right)


def train_step(state, batch, *, rate, steps, beta1=0.9, beta2=0.97):
    """Takes one step of Adam; the rate warms up and then falls like a cosine. Returns the new state and the loss."""
    weights, mean, square, done = state
    loss, gradient = jax.value_and_grad(loss_of)(weights, batch)
    done += 1
    rate *= jnp.minimum(done / 20, 0.55 + 0.45 * jnp.cos(jnp.pi * done / steps))
    mean = jax.tree.map(lambda m, g: beta1 * m + (1 - beta1) * g, mean, gradient)
    square = jax.tree.map(lambda s, g: beta2 * s + (1 - beta2) * g * g, square, gradient)
    fix1, fix2 = 1 - beta1**done, 1 - beta2**done
    weights = jax.tree.map(lambda w, m, s: w - rate * (m / fix1) / (jnp.sqrt(s / fix2) + 1e-8), weights, mean, square)
    return (weights, mean, square, done), loss


def write_text(weights, key, window, *, length, temperature=0.8):
    """Continues each row of window (rows, context) by length bytes: one program, whose loop runs on the devices."""

    def byte(window, key):
        logits = predict(weights, window)[:, -1] / temperature
        new = jax.random.categorical(key, logits).astype(window.dtype)
        return jnp.concatenate([window[:, 1:], new[:, None]], 1), new

    _, text = jax.lax.scan(byte, window, jax.random.split(key, length))
    return text.T


# --- the run --------------------------------------------------------------------------------------------------------


class Record:
    """The measurements of a side: the loss of each step, and the seconds of each that was not a warm-up."""

    def __init__(self, args):
        self.args = args
        self.losses, self.seconds, self.compile_seconds = [], [], 0.0

    def add(self, loss, seconds, counts):
        if not self.losses:
            self.compile_seconds = seconds
        self.losses.append(loss)
        if counts:
            self.seconds.append(seconds)

    def speed(self):
        """Returns the tokens per second of the median step."""
        return self.args.batch * self.args.context / statistics.median(self.seconds) if self.seconds else 0.0


class Trainer(Record):
    """The model on its mesh, in this process."""

    def __init__(self, args, text):
        super().__init__(args)
        self.text, self.batches = text, batches(text, args)
        self.mesh = Mesh(np.array(jax.devices()[: args.devices]).reshape(args.data, args.model), ("data", "model"))
        self.rows, self.whole = NamedSharding(self.mesh, P("data")), NamedSharding(self.mesh, P())
        weights = jax.tree.map(partial(NamedSharding, self.mesh), shardings(args), is_leaf=lambda s: isinstance(s, P))
        state = (weights, weights, weights, self.whole)
        self.state = jax.jit(partial(make_state, args=args), out_shardings=state)(jax.random.key(args.seed))
        self.step = jax.jit(
            partial(train_step, rate=args.rate, steps=args.steps),
            in_shardings=(state, self.rows),
            out_shardings=(state, self.whole),
            donate_argnums=0,
        )
        self.write = jax.jit(
            partial(write_text, length=SAMPLE),
            in_shardings=(weights, self.whole, self.rows),
            out_shardings=self.whole,
        )

    def run(self, steps, show=lambda *step: None):
        """Takes steps. One step is always in flight while the loss of the one before it is read."""
        running, since = None, time.perf_counter()
        for i in range(steps + 1):
            started = None
            if i < steps:
                self.state, started = self.step(self.state, jax.device_put(next(self.batches), self.rows))
            if running is not None:
                loss, now = float(running), time.perf_counter()
                # The last step of a turn had the devices to itself, the first few had cold caches.
                step = loss, now - since, WARM_UP < i < steps
                since = now
                self.add(*step)
                show(*step)
            running = started

    def sample(self, prompt=b"\n\n    def "):
        """Returns the model's continuation of the prompt."""
        start = np.concatenate([self.text[: self.args.context], np.frombuffer(prompt, np.uint8)])
        window = np.tile(start[-self.args.context :].astype(np.int32), (self.args.data, 1))
        text = self.write(self.state[0], jax.random.key(self.args.seed + 1), jax.device_put(window, self.rows))
        return (prompt + bytes(np.asarray(text[0]).astype(np.uint8))).decode("ascii", "replace").strip()


class Stock(Record):
    """The same script on stock JAX, in a separate process that takes steps on request."""

    def __init__(self, args):
        super().__init__(args)
        line = [sys.executable, os.path.abspath(__file__), *sys.argv[1:], "--stock", "--turns"]
        self.process = subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.read()  # wait for its start, which would slow the first turn of the other side

    def read(self):
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"the run on stock JAX ended early with code {self.process.wait()}; its own message is above")
        return json.loads(line)

    def run(self, steps, show):
        self.process.stdin.write(f"{steps}\n")
        self.process.stdin.flush()
        for _ in range(steps):
            self.add(*self.read())
            show()

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def take_turns(trainer):
    """Runs in Stock's process: reads a line with a number of steps, and writes a line for each step taken."""
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        trainer.run(int(line), lambda *step: print(json.dumps(step), flush=True))


class Bar:
    """A progress bar of all sides: one line that is redrawn, or without a terminal a new line for each tenth."""

    WIDTH = 20

    def __init__(self, sides, steps):
        self.sides, self.steps = sides, steps
        self.live = sys.stdout.isatty()

    def __call__(self, *_):
        done, whole = sum(len(side.losses) for side in self.sides.values()), self.steps * len(self.sides)
        part = done / whole
        if not self.live and 10 * done // whole == 10 * (done - 1) // whole:
            return
        fill = int(part * self.WIDTH)
        line = f"  {'█' * fill}{'·' * (self.WIDTH - fill)} {part:4.0%}"
        for name, side in self.sides.items():
            if side.losses:
                line += f"  {name}: loss {side.losses[-1]:.3f}, {side.speed():,.0f} tokens/s"
        if self.live:  # a line that wraps could not be drawn over
            print("\r" + line[: shutil.get_terminal_size().columns - 1], end="\033[K", flush=True)
        else:
            print(line, flush=True)

    def done(self):
        if self.live:
            print()


def draw(sides, path):
    """Draws the loss curves."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    styles = [dict(color="#0072b2", lw=2.4), dict(color="#e69f00", lw=1.1, ls="--")]
    for i, ((name, side), style) in enumerate(zip(sides.items(), styles, strict=False)):
        axes.plot(range(1, len(side.losses) + 1), side.losses, **style)
        place = dict(xytext=(6, 8 - 16 * i), textcoords="offset points", va="center", annotation_clip=False)
        axes.annotate(name, (len(side.losses), side.losses[-1]), color=style["color"], **place)
    axes.set(
        xlabel="step",
        ylabel="loss, nats a byte (lower is better)",
        title="A small transformer on the standard library's sources",
    )
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=130)


def draw_steps(timeline, path):
    """Draws a trace of steps: a row per device, a bar per step."""
    from matplotlib.figure import Figure

    devices = sorted({span.device for span in timeline.spans})
    gangs = list(dict.fromkeys(span.gang for span in timeline.spans))
    figure = Figure(figsize=(8, 0.6 + 0.3 * len(devices)), layout="constrained")
    axes = figure.subplots()
    for span in timeline.spans:
        row, step = -devices.index(span.device), gangs.index(span.gang)
        begin, length = span.begin * 1e3, span.seconds * 1e3
        axes.barh(row, length, left=begin, color=("#0072b2", "#00507d")[step % 2], edgecolor="white", linewidth=0.8)
        axes.text(begin + length / 2, row, f"step {step + 1}", color="white", ha="center", va="center", fontsize=8)
    axes.set_yticks([-i for i in range(len(devices))], [f"device {device}" for device in devices])
    axes.tick_params(left=False)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.set(
        xlabel="milliseconds (shorter is better)",
        title=f"{len(gangs)} training steps, each a gang on {len(devices)} devices",
    )
    figure.savefig(path, dpi=130)


def main():
    args = parse()
    began = time.perf_counter()
    name = "stock JAX" if args.stock else "Pathways"
    pathways = use_stock(args) if args.stock else use_pathways(args)
    text = read_library()
    trainer = Trainer(args, text)
    if args.turns:
        jax.block_until_ready(trainer.state)
        return take_turns(trainer)

    devices = list(trainer.mesh.devices.flat)
    weights = sum(w.size for w in jax.tree.leaves(trainer.state[0]))
    print(f"{name}: {len(devices)} devices as data={args.data} x model={args.model}, JAX {jax.__version__}")
    print("  " + ", ".join(str(d) for d in devices))
    print(f"  {weights:,} weights, {args.steps} steps of {args.batch} x {args.context} bytes of the standard library")

    sides = {name: trainer}
    if args.compare and not args.stock:
        sides["stock JAX"] = Stock(args)
    bar = Bar(sides, args.steps)
    for turn in range(STRETCHES):
        steps = args.steps * (turn + 1) // STRETCHES - args.steps * turn // STRETCHES
        for side in sides.values():
            side.run(steps, bar)
    bar.done()

    args.out.mkdir(parents=True, exist_ok=True)
    if "stock JAX" in sides and not args.stock:
        sides["stock JAX"].close()
    written = [args.out / "loss.png"]
    draw(sides, written[0])
    print()
    for label, side in sides.items():
        print(
            f"  {label:>9}: loss {side.losses[0]:.3f} to {statistics.mean(side.losses[-10:]):.3f}, "
            f"{side.speed():,.0f} tokens/s, first step (with compiling) {side.compile_seconds:.1f} s"
        )
    if len(sides) > 1:
        ours, stock = sides.values()
        apart = max(abs(a - b) for a, b in zip(ours.losses, stock.losses, strict=True))
        print(f"  {ours.speed() / stock.speed():.3f} of stock JAX's speed; losses differ by {apart:.4f} at most")
    print("\nThe model writes:\n")
    print("\n".join("    " + line for line in trainer.sample().splitlines()))
    if pathways:
        with pathways.trace(args.out / "trace.json") as timeline:
            trainer.run(4)
        draw_steps(timeline, args.out / "trace.png")
        written += [args.out / "trace.png", args.out / "trace.json"]
    print(f"\nWrote {', '.join(str(w) for w in written)}", end="")
    print(" (https://ui.perfetto.dev opens the last)" if pathways else "")
    print(f"{time.perf_counter() - began:.0f} s in all")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
