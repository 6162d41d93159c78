"""A decoder-only transformer in Flax NNX: it predicts the next byte of Python's standard library.

Data parallel: each device has all weights and a part of every batch. Run: python examples/models/decoder_flax.py --help
"""

import jax
import jax.numpy as jnp
import optax
import pathways
import training
from flax import nnx
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P


class Block(nnx.Module):
    def __init__(self, width, heads, rngs):
        self.norm1 = nnx.LayerNorm(width, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(heads, width, decode=False, rngs=rngs)
        self.norm2 = nnx.LayerNorm(width, rngs=rngs)
        self.up = nnx.Linear(width, 4 * width, rngs=rngs)
        self.down = nnx.Linear(4 * width, width, rngs=rngs)

    def __call__(self, x, mask):
        x += self.attention(self.norm1(x), mask=mask)
        return x + self.down(nnx.gelu(self.up(self.norm2(x))))


class Decoder(nnx.Module):
    def __init__(self, layers, width, heads, length, rngs):
        self.embed = nnx.Embed(training.BYTES, width, rngs=rngs)
        self.place = nnx.Embed(length, width, rngs=rngs)
        self.blocks = nnx.List([Block(width, heads, rngs) for _ in range(layers)])
        self.norm = nnx.LayerNorm(width, rngs=rngs)
        self.unembed = nnx.Linear(width, training.BYTES, use_bias=False, rngs=rngs)

    def __call__(self, tokens):
        x = self.embed(tokens) + self.place(jnp.arange(tokens.shape[1]))
        mask = nnx.make_causal_mask(tokens)
        for block in self.blocks:
            x = block(x, mask)
        return self.unembed(self.norm(x))


@nnx.jit
def train(model, optimizer, batch):
    def loss_of(model):
        return training.cross_entropy(model(batch[:, :-1]), batch[:, 1:])

    loss, gradients = nnx.value_and_grad(loss_of)(model)
    optimizer.update(model, gradients)
    return loss


def main():
    args = training.parse(training.options(__doc__.partition("\n")[0]))
    pathways.init(devices=args.devices)
    mesh = Mesh(jax.devices(), ("data",))

    @nnx.jit
    def start():
        model = Decoder(args.layers, args.width, args.heads, args.length, nnx.Rngs(args.seed))
        rate = optax.linear_schedule(0, args.rate, 20)
        optimizer = nnx.Optimizer(model, optax.adamw(rate, b2=0.98, weight_decay=1e-2), wrt=nnx.Param)
        for part in (model, optimizer):
            state = nnx.state(part)
            nnx.update(part, jax.lax.with_sharding_constraint(state, NamedSharding(mesh, P())))
        return model, optimizer

    model, optimizer = start()
    log = training.Log(args, nnx.state(model, nnx.Param), args.batch * args.length)
    for batch in training.steps(args, training.windows(args, extra=1)):
        batch = jax.device_put(batch, NamedSharding(mesh, P("data")))
        log.add(train(model, optimizer, batch))
    log.done()


if __name__ == "__main__":
    main()
