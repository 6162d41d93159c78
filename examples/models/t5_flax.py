"""An encoder-decoder like T5 in Flax Linen: it restores spans that are masked in Python's standard library.

The encoder reads text in which marks stand for spans; the decoder writes each mark and the bytes of its span.

Data parallel: each device has all weights and a part of every batch. Run: python examples/models/t5_flax.py --help
"""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
import pathways
import training
from flax.training.train_state import TrainState
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P


class Block(nn.Module):
    """Self-attention, attention to a memory where there is one, and an MLP with a gate."""

    heads: int

    @nn.compact
    def __call__(self, x, mask=None, memory=None):
        def attend(x, *others, **how):
            y = nn.RMSNorm()(x)
            return x + nn.MultiHeadAttention(self.heads, use_bias=False, deterministic=True)(y, *others, **how)

        x = attend(x, mask=mask)
        x = x if memory is None else attend(x, memory)
        y, width = nn.RMSNorm()(x), x.shape[-1]
        gate, up = (nn.Dense(2 * width, use_bias=False)(y) for _ in range(2))
        return x + nn.Dense(width, use_bias=False)(nn.gelu(gate) * up)


class Transformer(nn.Module):
    vocabulary: int
    layers: int
    width: int
    heads: int

    @nn.compact
    def __call__(self, inputs, targets):
        embed = nn.Embed(self.vocabulary, self.width)

        def placed(tokens, name):
            return embed(tokens) + nn.Embed(tokens.shape[1], self.width, name=name)(jnp.arange(tokens.shape[1]))

        memory = placed(inputs, "place_in_inputs")
        for _ in range(self.layers):
            memory = Block(self.heads)(memory)
        memory = nn.RMSNorm()(memory)
        x = placed(targets, "place_in_targets")
        for _ in range(self.layers):
            x = Block(self.heads)(x, nn.make_causal_mask(targets), memory)
        return embed.attend(nn.RMSNorm()(x))


@functools.partial(jax.jit, donate_argnums=0)
def train(state, inputs, targets):
    def loss_of(params):
        start = jnp.full_like(targets[:, :1], state.params["Embed_0"]["embedding"].shape[0] - 1)
        before = jnp.concatenate([start, targets[:, :-1]], 1)
        return training.cross_entropy(state.apply_fn({"params": params}, inputs, before), targets)

    loss, gradients = jax.value_and_grad(loss_of)(state.params)
    return state.apply_gradients(grads=gradients), loss


def main():
    args = training.parse(training.options(__doc__.partition("\n")[0], layers=3))
    pathways.init(devices=args.devices)
    mesh = Mesh(jax.devices(), ("data",))
    model = Transformer(training.vocabulary(args), args.layers, args.width, args.heads)
    rate = optax.linear_schedule(0, args.rate, 20)
    optimizer = optax.adamw(rate, b2=0.98, weight_decay=1e-2)

    @functools.partial(jax.jit, out_shardings=NamedSharding(mesh, P()))
    def begin(key, inputs, targets):
        params = model.init(key, inputs, targets)["params"]
        return TrainState.create(apply_fn=model.apply, params=params, tx=optimizer)

    state = begin(jax.random.key(args.seed), *next(training.masked(args)))
    log = training.Log(args, state.params, training.masked_tokens(args))
    for batch in training.steps(args, training.masked(args)):
        inputs, targets = jax.device_put(batch, NamedSharding(mesh, P("data")))
        state, loss = train(state, inputs, targets)
        log.add(loss)
    log.done()


if __name__ == "__main__":
    main()
