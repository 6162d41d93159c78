"""What the models of this folder share: options, text, batches, Adam for those in plain JAX, and a log."""

import argparse
import itertools
import pathlib
import sysconfig
import time

import jax
import jax.numpy as jnp
import numpy as np

BYTES = 256
SPAN, CHUNK = 4, 16  # of each CHUNK bytes, a span of SPAN is masked
LINES = 8  # of the log


def options(description, **defaults):
    """Returns the parser of a model's command line; defaults replace those of this function."""
    p = argparse.ArgumentParser(description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    p.add_argument("--devices", type=int, default=8, help="devices to train on, each with a part of every batch")
    p.add_argument("--steps", type=int, default=96, help="optimizer steps")
    p.add_argument("--batch", type=int, default=16, help="sequences a step; a multiple of --devices")
    p.add_argument("--length", type=int, default=128, help="bytes in a sequence")
    p.add_argument("--layers", type=int, default=4, help="layers, of encoder and decoder each")
    p.add_argument("--width", type=int, default=128, help="size of the residual stream")
    p.add_argument("--heads", type=int, default=4, help="attention heads")
    p.add_argument("--rate", type=float, default=3e-3, help="learning rate, after a warm-up of 20 steps")
    p.add_argument("--seed", type=int, default=0, help="of weights and batches")
    p.set_defaults(**defaults)
    return p


def parse(parser):
    args = parser.parse_args()
    if args.steps < 2 or args.devices < 1:
        parser.error(f"--steps {args.steps} --devices {args.devices}: expected at least two steps and one device")
    if args.batch % args.devices:
        parser.error(f"--batch {args.batch} cannot be split over --devices {args.devices}; give a multiple of it")
    if args.width % (2 * args.heads):
        parser.error(f"--width {args.width} must be a multiple of twice the --heads, {2 * args.heads}")
    if args.length % CHUNK:
        parser.error(f"--length {args.length} must be a multiple of {CHUNK}")
    return args


# --- data ---


def library(limit=8 << 20):
    """Returns the sources of Python's standard library, in a fixed order, as one array of bytes."""
    root, text = pathlib.Path(sysconfig.get_paths()["stdlib"]), bytearray()
    for path in sorted(root.glob("*.py")) + sorted(root.glob("[a-z]*/*.py")):
        if len(text) < limit and path.parent.name not in ("site-packages", "test", "idlelib"):
            text += path.read_bytes() + b"\n\n"
    return np.frombuffer(bytes(text), np.uint8)


def windows(args, extra=0):
    """Yields batches of (batch, length + extra) bytes without end, the same for the same seed."""
    text, random = library(), np.random.default_rng(args.seed)
    while True:
        starts = random.integers(0, len(text) - args.length - extra, args.batch)
        yield text[starts[:, None] + np.arange(args.length + extra)].astype(np.int32)


def vocabulary(args):
    """Returns how many tokens masked text has: bytes, a mark for each masked span, and one with which targets start."""
    return BYTES + args.length // CHUNK + 1


def masked_tokens(args):
    """Returns how many tokens a batch of `masked` has, inputs and targets together."""
    return args.batch * args.length // CHUNK * (CHUNK - SPAN + 1 + SPAN + 1)


def masked(args):
    """Yields batches of (inputs, targets): text with a mark in place of each span, and each mark with its span."""
    random = np.random.default_rng(args.seed + 1)
    spans = args.length // CHUNK
    marks = np.broadcast_to(np.arange(BYTES, BYTES + spans, dtype=np.int32), (args.batch, spans))[..., None]
    for text in windows(args):
        text = text.reshape(args.batch, spans, CHUNK)
        start = random.integers(0, CHUNK - SPAN + 1, (args.batch, spans, 1))
        place = np.arange(CHUNK)
        inside = (place >= start) & (place < start + SPAN)
        span = text[inside].reshape(args.batch, spans, SPAN)
        marked = np.where(place == start, marks, text)
        rest = marked[~inside | (place == start)]
        yield rest.reshape(args.batch, -1), np.concatenate([marks, span], -1).reshape(args.batch, -1)


# --- training ---


def cross_entropy(logits, targets):
    """Returns the mean over all tokens, in nats."""
    right = jnp.take_along_axis(logits, targets[..., None], -1)[..., 0]
    return jnp.mean(jax.nn.logsumexp(logits, -1) - right)


def moments(params):
    """Returns what Adam keeps of each weight, and its number of steps."""
    return jax.tree.map(jnp.zeros_like, params), jax.tree.map(jnp.zeros_like, params), jnp.zeros(())


def adam(params, state, gradients, rate, beta1=0.9, beta2=0.98, warm_up=20):
    """Takes one step, whose rate rises linearly in the first warm_up steps. Returns the new params and state."""
    mean, square, done = state
    done += 1
    mean = jax.tree.map(lambda m, g: beta1 * m + (1 - beta1) * g, mean, gradients)
    square = jax.tree.map(lambda s, g: beta2 * s + (1 - beta2) * g * g, square, gradients)
    rate = rate * jnp.minimum(1, done / warm_up) * jnp.sqrt(1 - beta2**done) / (1 - beta1**done)
    params = jax.tree.map(lambda p, m, s: p - rate * m / (jnp.sqrt(s) + 1e-9), params, mean, square)
    return params, (mean, square, done)


class Log:
    """Prints what is trained, the loss now and then, and at the end tokens a second from the second step on."""

    def __init__(self, args, params, tokens):
        self._steps, self._tokens, self._losses = args.steps, tokens, []
        weights = sum(leaf.size for leaf in jax.tree.leaves(params))
        devices = jax.tree.leaves(params)[0].sharding.device_set
        print(f"{weights:,} weights on each of {len(devices)} devices; {tokens:,} tokens a step", flush=True)
        self._begun = time.perf_counter()

    def add(self, *losses):
        """Takes a step's loss, or the losses of equal parts of its batch."""
        self._losses.append(losses)
        done = len(self._losses)
        if done == 1:
            jax.block_until_ready(losses)
            print(f"first step, with compiling: {time.perf_counter() - self._begun:.1f} s", flush=True)
            self._begun = time.perf_counter()
        if done == 1 or done % max(1, self._steps // LINES) == 0 or done == self._steps:
            print(f"step {done:>4}  loss {np.mean(jax.device_get(losses)):.3f}", flush=True)

    def done(self):
        losses = np.mean(jax.device_get(self._losses), 1)
        seconds = time.perf_counter() - self._begun
        first, last = losses[0], losses[-10:].mean()
        speed = self._tokens * (len(self._losses) - 1) / seconds
        print(f"loss {first:.3f} to {last:.3f}, {speed:,.0f} tokens/s")


def steps(args, batches):
    return itertools.islice(batches, args.steps)
