"""An encoder-decoder like T5 in plain JAX: it restores spans that are masked in Python's standard library.

The encoder reads text in which marks stand for spans; the decoder writes each mark and the bytes of its span. Positions
are biases by distance, layers have no biases, and the embedding is shared by both sides and by the output.

Data parallel: each device has all weights and a part of every batch. Run: python examples/models/t5.py --help
"""

import functools
import math

import jax
import jax.numpy as jnp
import pathways
import training
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

BUCKETS, FARTHEST = 32, 128  # T5's: half of the distances exact, the others by their logarithm up to this one


def make_params(key, args):
    width, heads = args.width, args.heads
    keys = iter(jax.random.split(key, 3 + 18 * args.layers))

    def normal(*shape, fan_in):
        return jax.random.normal(next(keys), shape) / math.sqrt(fan_in)

    def attention():
        return {
            "norm": jnp.ones(width),
            **{name: normal(width, heads, width // heads, fan_in=width) for name in ("query", "key", "value")},
            "out": normal(heads, width // heads, width, fan_in=width),
        }

    def mlp():
        return {
            "norm": jnp.ones(width),
            "gate": normal(width, 2 * width, fan_in=width),
            "up": normal(width, 2 * width, fan_in=width),
            "down": normal(2 * width, width, fan_in=2 * width),
        }

    def side(*parts):
        layers = [{name: attention() for name in parts} | {"mlp": mlp()} for _ in range(args.layers)]
        return {"distance": normal(BUCKETS, heads, fan_in=width), "layers": layers, "norm": jnp.ones(width)}

    return {
        "embed": normal(training.vocabulary(args), width, fan_in=1),
        "encoder": side("self"),
        "decoder": side("self", "cross"),
    }


def normalize(x, gain):
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * gain


def by_distance(table, length, causal):
    """Returns what is added to the scores of (heads, query, key): a number for each bucket of distances."""
    distance = jnp.arange(length)[None, :] - jnp.arange(length)[:, None]  # from the query to the key
    buckets = BUCKETS if causal else BUCKETS // 2
    offset = 0 if causal else buckets * (distance > 0)
    distance = jnp.maximum(-distance, 0) if causal else jnp.abs(distance)
    exact = buckets // 2
    far = jnp.log(jnp.maximum(distance, 1) / exact) / math.log(FARTHEST / exact) * (buckets - exact)
    bucket = jnp.where(distance < exact, distance, jnp.minimum(exact + far.astype(jnp.int32), buckets - 1))
    return jnp.moveaxis(table[bucket + offset], -1, 0)


def attend(p, x, memory, bias):
    """Adds attention to x, from its own values, or from a memory."""
    y = normalize(x, p["norm"])
    memory = y if memory is None else memory
    query = jnp.einsum("btd,dhk->bhtk", y, p["query"])
    key, value = (jnp.einsum("bsd,dhk->bhsk", memory, p[name]) for name in ("key", "value"))
    scores = jnp.einsum("bhtk,bhsk->bhts", query, key) / math.sqrt(query.shape[-1]) + bias
    return x + jnp.einsum("bhts,bhsk,hkd->btd", jax.nn.softmax(scores), value, p["out"])


def compute(p, x):
    y = normalize(x, p["norm"])
    return x + (jax.nn.gelu(y @ p["gate"]) * (y @ p["up"])) @ p["down"]


def encode(p, x):
    bias = by_distance(p["distance"], x.shape[1], causal=False)
    for layer in p["layers"]:
        x = compute(layer["mlp"], attend(layer["self"], x, None, bias))
    return normalize(x, p["norm"])


def decode(p, x, memory):
    length = x.shape[1]
    visible = jnp.tril(jnp.ones((length, length), bool))
    bias = jnp.where(visible, by_distance(p["distance"], length, causal=True), -1e9)
    for layer in p["layers"]:
        x = attend(layer["self"], x, None, bias)
        x = compute(layer["mlp"], attend(layer["cross"], x, memory, 0))
    return normalize(x, p["norm"])


def loss_of(params, inputs, targets):
    embed = params["embed"]
    start = jnp.full_like(targets[:, :1], len(embed) - 1)
    before = jnp.concatenate([start, targets[:, :-1]], 1)
    x = decode(params["decoder"], embed[before], encode(params["encoder"], embed[inputs]))
    return training.cross_entropy(x @ embed.T / math.sqrt(x.shape[-1]), targets)


@functools.partial(jax.jit, donate_argnums=(0, 1))
def train(params, state, inputs, targets, rate):
    loss, gradients = jax.value_and_grad(loss_of)(params, inputs, targets)
    return *training.adam(params, state, gradients, rate), loss


def main():
    args = training.parse(training.options(__doc__.partition("\n")[0], layers=3))
    pathways.init(devices=args.devices)
    mesh = Mesh(jax.devices(), ("data",))

    @functools.partial(jax.jit, out_shardings=NamedSharding(mesh, P()))
    def begin(key):
        params = make_params(key, args)
        return params, training.moments(params)

    params, state = begin(jax.random.key(args.seed))
    log = training.Log(args, params, training.masked_tokens(args))
    for batch in training.steps(args, training.masked(args)):
        inputs, targets = jax.device_put(batch, NamedSharding(mesh, P("data")))
        params, state, loss = train(params, state, inputs, targets, args.rate)
        log.add(loss)
    log.done()


if __name__ == "__main__":
    main()
