"""A decoder-only transformer in plain JAX: it predicts the next byte of Python's standard library.

Data parallel: each device has all weights and a part of every batch. Run: python examples/models/decoder.py --help
"""

import functools
import math

import jax
import jax.numpy as jnp
import pathways
import training
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P


def make_params(key, args):
    width, heads = args.width, args.heads
    keys = iter(jax.random.split(key, 2 + 7 * args.layers))

    def normal(*shape, fan_in):
        return jax.random.normal(next(keys), shape) / math.sqrt(fan_in)

    def layer():
        return {
            "norms": jnp.ones((2, width)),
            **{name: normal(width, heads, width // heads, fan_in=width) for name in ("query", "key", "value")},
            "out": normal(heads, width // heads, width, fan_in=width * 2 * args.layers),
            "gate": normal(width, 3 * width, fan_in=width),
            "up": normal(width, 3 * width, fan_in=width),
            "down": normal(3 * width, width, fan_in=3 * width * 2 * args.layers),
        }

    return {
        "embed": normal(training.BYTES, width, fan_in=1),
        "layers": [layer() for _ in range(args.layers)],
        "norm": jnp.ones(width),
        "unembed": normal(width, training.BYTES, fan_in=width),
    }


def normalize(x, gain):
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * gain


def rotate(x):
    """Rotates each pair of numbers of a head by an angle that grows with the position."""
    frequency = 10_000.0 ** -jnp.linspace(0, 1, x.shape[-1] // 2, endpoint=False)
    angle = (jnp.arange(x.shape[1])[:, None] * frequency)[:, None]
    a, b = jnp.split(x, 2, -1)
    return jnp.concatenate([a * jnp.cos(angle) - b * jnp.sin(angle), a * jnp.sin(angle) + b * jnp.cos(angle)], -1)


def attend(p, x):
    query, key, value = (jnp.einsum("btd,dhk->bthk", x, p[name]) for name in ("query", "key", "value"))
    heads = jax.nn.dot_product_attention(rotate(query), rotate(key), value, is_causal=True)
    return jnp.einsum("bthk,hkd->btd", heads, p["out"])


def embed(params, tokens):
    return params["embed"][tokens]


def block(p, x):
    x += attend(p, normalize(x, p["norms"][0]))
    y = normalize(x, p["norms"][1])
    return x + (jax.nn.silu(y @ p["gate"]) * (y @ p["up"])) @ p["down"]


def end(params, x, targets):
    """Returns the loss: how far the last layer's x is from predicting targets."""
    return training.cross_entropy(normalize(x, params["norm"]) @ params["unembed"], targets)


def loss_of(params, batch):
    x = embed(params, batch[:, :-1])
    for p in params["layers"]:
        x = block(p, x)
    return end(params, x, batch[:, 1:])


@functools.partial(jax.jit, donate_argnums=(0, 1))
def train(params, state, batch, rate):
    loss, gradients = jax.value_and_grad(loss_of)(params, batch)
    return *training.adam(params, state, gradients, rate), loss


def main():
    args = training.parse(training.options(__doc__.partition("\n")[0]))
    pathways.init(devices=args.devices)
    mesh = Mesh(jax.devices(), ("data",))

    @functools.partial(jax.jit, out_shardings=NamedSharding(mesh, P()))
    def start(key):
        params = make_params(key, args)
        return params, training.moments(params)

    params, state = start(jax.random.key(args.seed))
    log = training.Log(args, params, args.batch * args.length)
    for batch in training.steps(args, training.windows(args, extra=1)):
        batch = jax.device_put(batch, NamedSharding(mesh, P("data")))
        params, state, loss = train(params, state, batch, args.rate)
        log.add(loss)
    log.done()


if __name__ == "__main__":
    main()
