"""The decoder of decoder.py on two islands: each trains on its half of a batch, and they exchange gradients.

Where a cluster has several islands, these are they; else the devices are divided. The backward is a computation for
each layer, and its gradients are under way to the other island while the backward of the layer before runs. Nothing
waits: the weights of a layer are updated when its sums are there.

With --accumulate N the batch is computed in N parts, and what the others made is added to the gradients of the last.

With --late they may be under way for a whole step more: a step's gradients are used after the next step's backward.
Where w(k) are the weights of step k, and g(k) the gradients of its batch at w(k), one step is w(k+1) = adam(w(k), g(k))
and with --late w(k+1) = adam(w(k), g(k-1)), where the first step changes no weights, and the last g is used at the end.

Run: python examples/models/two_islands.py --help
"""

import functools

import decoder
import islands
import jax
import jax.numpy as jnp
import numpy as np
import pathways
import training
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P


def divide(devices):
    """Returns a mesh for each island, or one for each half of the devices of a single island."""
    names = sorted({getattr(d, "slice_index", 0) for d in devices})
    sets = [[d for d in devices if getattr(d, "slice_index", 0) == name] for name in names]
    if len(sets) == 1:
        sets = np.split(np.array(devices), 2)
    if len({len(one) for one in sets}) > 1:
        raise ValueError(f"the islands have {[len(one) for one in sets]} devices; expected the same number in each")
    return [Mesh(np.array(one), ("data",)) for one in sets]


def parts_of(layers):
    return [decoder.embed, *[decoder.block] * layers, decoder.end]


def cut(params):
    """Returns the parameters of each part of the model, in the order of the forward."""
    last = {name: params[name] for name in ("norm", "unembed")}
    return [{"embed": params["embed"]}, *params["layers"], last]


@functools.partial(jax.jit, static_argnums=0)
def forward(part, params, x, *targets):
    """Returns what a part of the model makes of x, and its backward."""
    return jax.vjp(lambda params, x: part(params, x, *targets), params, x)


@functools.partial(jax.jit, static_argnums=3)
def backward(back, gradient, before, mesh):
    """Returns the rows of the gradients of a part's parameters, added to those before, if there are any, and the
    gradient of its input, if that has one."""
    gradients, onward = back(gradient)
    table = islands.rows(gradients, mesh)
    return table if before is None else before + table, None if onward.dtype == jax.dtypes.float0 else onward


@functools.partial(jax.jit, static_argnums=4, donate_argnums=(0, 1))
def update(params, state, sent, rate, mesh):
    new = training.adam(params, state, islands.mean(sent, params), rate)
    return jax.lax.with_sharding_constraint(new, NamedSharding(mesh, P()))


def train(meshes, params, states, batches, rate, chunk, late=False, accumulate=1):
    """Takes a step for each batch, and yields the islands' losses. params and states have an element for each island,
    and in it one for each part. Updates are submitted after all backwards, since a device runs its calls in order.
    """
    waiting = []  # the sums of steps that have yet to be used
    for batch in batches:
        parts = [place(meshes, part) for part in np.split(batch, accumulate)]
        losses, sums = gradients_of(meshes, params, parts, chunk)
        waiting.append(sums)
        if len(waiting) > late:
            apply(meshes, params, states, waiting.pop(0), rate)
        yield losses
    for sums in waiting:
        apply(meshes, params, states, sums, rate)


def gradients_of(meshes, params, batches, chunk):
    """Returns the islands' losses, and for each part what both islands have sent of its gradients, the last part first.

    batches: the inputs and targets of each island, for each part of the batch that is computed by itself.
    """
    parts = parts_of(len(params[0]) - 2)
    tables = [[None] * len(parts) for _ in meshes]  # for each island and part the gradients
    losses, sums = [], {}
    for batch in batches:
        backs, gradients = [], []
        for island, (inputs, targets) in enumerate(batch):
            x, own = inputs, []
            for i, part in enumerate(parts):
                x, back = forward(part, params[island][i], x, *([targets] if i == len(parts) - 1 else []))
                own.append(back)
            backs.append(own)
            losses.append(x)
            gradients.append(jnp.full_like(x, 1 / len(batches), device=x.sharding))
        for i in reversed(range(len(parts))):
            for island, mesh in enumerate(meshes):
                before = tables[island][i]
                tables[island][i], gradients[island] = backward(backs[island].pop(), gradients[island], before, mesh)
            if batch is batches[-1]:
                cut = [islands.chunks(own[i], chunk) for own in tables]
                pieces = [islands.send(piece, meshes) for piece in zip(*cut, strict=True)]
                sums[i] = list(zip(*pieces, strict=True))  # for each island its chunks
    return losses, sums


def apply(meshes, params, states, sums, rate):
    for i, sent in sums.items():
        for island, mesh in enumerate(meshes):
            params[island][i], states[island][i] = update(
                params[island][i], states[island][i], sent[island], rate, mesh
            )


def begin(meshes, args):
    """Returns the parameters and Adam's state of each island, the same on all."""

    def make(key):
        parts = cut(decoder.make_params(key, args))
        return parts, [training.moments(p) for p in parts]

    key = jax.random.key(args.seed)
    both = [jax.jit(make, out_shardings=NamedSharding(mesh, P()))(key) for mesh in meshes]
    return [params for params, _ in both], [states for _, states in both]


def place(meshes, batch):
    """Returns the inputs and targets of each island, a part of the batch on its devices."""
    halves = np.split(batch, len(meshes))
    return [
        jax.device_put((half[:, :-1], half[:, 1:]), NamedSharding(mesh, P("data")))
        for mesh, half in zip(meshes, halves, strict=True)
    ]


def main():
    parser = training.options(__doc__.partition("\n")[0])
    parser.add_argument("--chunk", type=int, default=1 << 14, help="numbers that each device sends at a time")
    parser.add_argument("--accumulate", type=int, default=1, help="parts in which a batch is computed")
    parser.add_argument("--late", action="store_true", help="use a step's gradients one step later")
    args = training.parse(parser)
    if args.accumulate < 1 or args.batch % (args.accumulate * args.devices):
        parser.error(f"--accumulate {args.accumulate} of --batch {args.batch}: expected parts that --devices divides")
    pathways.init(devices=args.devices)
    meshes = divide(jax.devices())
    params, states = begin(meshes, args)
    log = training.Log(args, params[0], args.batch * args.length)
    batches = training.steps(args, training.windows(args, extra=1))
    for losses in train(meshes, params, states, batches, args.rate, args.chunk, args.late, args.accumulate):
        log.add(*losses)
    log.done()


if __name__ == "__main__":
    main()
