"""Random programs: graphs of jitted computations on random devices, with arrays moved between them.

`draw(seed)` decides everything, and returns steps as data. `Program(steps, reshard)` makes jitted functions of them;
called with the arrays of `inputs()`, it returns all arrays that are left at the end. Its bits must be the same on every
backend, at once or captured, on any devices. `save(path, seeds)` runs programs with nothing but JAX.
"""

import random
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

SIZES = (24, 48)  # divided by each mesh below
MESHES = ((1,), (2,), (3,), (4,), (8,), (2, 2), (2, 4), (4, 2))
DTYPES = ("float32", "float32", "bfloat16", "int32")


@dataclass(frozen=True)
class Place:
    """Devices by number, as a mesh, and the axis of it that splits each dimension of an array."""

    devices: tuple[int, ...]
    mesh: tuple[int, ...]
    spec: tuple[tuple[str, ...], ...] = ()

    def grid(self, devices):
        return Mesh(np.array(devices)[list(self.devices)].reshape(self.mesh), tuple("ab"[: len(self.mesh)]))

    def sharding(self, devices):
        return NamedSharding(self.grid(devices), P(*self.spec))


@dataclass(frozen=True)
class Step:
    """One jitted computation or, where it is called reshard, a move."""

    name: str
    arguments: tuple[int, ...]  # numbers of arrays
    results: tuple[int, ...]
    place: Place
    donated: bool = False  # the first argument
    pin: int = 0  # so many results have a sharding that is asked for, the first the place's spec
    own: str = ""  # one of OWN: what is added to the first result outside of the jitted function


# What a captured function has of its own, made of a NumPy array.
OWN = {
    "number": lambda table, everywhere: table[0].item(),
    "numpy": lambda table, everywhere: table,
    "jnp": lambda table, everywhere: jnp.asarray(table) * 2,
    "placed": jax.device_put,
}


@dataclass
class Steps:
    seed: int
    inputs: list[tuple[tuple[int, ...], str, Place]] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    given: tuple[int, ...] = ()  # inputs that the program takes over
    inner: tuple[int, int] = (0, 0)  # the steps, from and to, that are a program in the program
    slices: tuple[int, ...] = ()  # sizes of those that the devices are granted in


# --- the functions; all are bounded, so that no array grows into infinities ---


def squash(x):
    """Bounds values: floats to [-1, 1], whole numbers to some bits."""
    return x & 0xFFF if x.dtype.kind == "i" else jnp.tanh(x)


def functions(mesh):
    """Returns name → (number of arguments, function); functions of two accept arrays of one shape and dtype.

    Shapes and dtypes of results do not depend on the mesh.
    """

    def over(f, spec):
        def call(x):
            return squash(jax.shard_map(f, mesh=mesh, in_specs=spec, out_specs=P("a"), check_vma=False)(x))

        return call

    n = mesh.shape["a"]

    def rank(x):
        return (lax.axis_index("a") + 1).astype(x.dtype)

    ring = [(i, (i + 1) % n) for i in range(n)]
    return {
        "affine": (1, lambda x: squash(x * 3 + 1)),
        "wave": (1, lambda x: squash(jnp.sin(x.astype("float32") * 2).astype(x.dtype) + x)),
        "softmax": (1, lambda x: jax.nn.softmax(x.astype("float32"), 0).astype(x.dtype) + x),
        "add": (2, lambda x, y: squash(x + y)),
        "gate": (2, lambda x, y: squash(jnp.where(x > y, x * 2, y - 1))),
        "transpose": (1, lambda x: squash(x.T * 2)),
        "gram": (1, lambda x: squash((x @ x.T) // 7 if x.dtype.kind == "i" else (x @ x.T) / 4)),
        "outer": (2, lambda x, y: squash(x.T @ y)),
        "several": (1, lambda x: (squash(x + 1), squash(x.sum(0)), squash(x * x))),
        "halves": (2, lambda x, y: (squash(x - y), squash((x * y).mean(1).astype(x.dtype)))),
        "cast": (1, lambda x: squash((x.astype("float32") * 5).astype("int32" if x.dtype.kind == "f" else "float32"))),
        "all_reduce": (1, over(lambda x: lax.psum(x * rank(x), "a"), P("a"))),
        "mixed_reduce": (1, over(lambda x: x + lax.pmax(x.sum(1, keepdims=True), "a"), P("a"))),
        "permute": (1, over(lambda x: lax.ppermute(x, "a", ring) + x, P("a"))),
        "gather": (1, over(lambda x: lax.all_gather(x, "a", tiled=True).sum(0, keepdims=True) * x, P("a"))),
        "scatter": (1, over(lambda x: lax.psum_scatter(x * rank(x), "a", tiled=True), P())),
    }


FLAT = {"affine", "wave", "softmax", "add", "gate", "cast", "all_reduce"}  # those that take arrays of one dimension


def draw(seed: int, length: int = 8) -> Steps:
    """Draws a program with the given number of computations, with moves in between, for eight devices."""
    r, also = random.Random(seed), random.Random(f"own {seed}")
    out = Steps(seed)
    made = set()  # those that a computation may have for its results
    live: dict[int, tuple[tuple[int, ...], str, Place]] = {}  # number of an array → shape, dtype, where it is
    numbers = iter(range(10_000))

    def window():
        mesh = r.choice(MESHES)
        count = int(np.prod(mesh))
        start = r.randrange(9 - count)
        devices = list(range(start, start + count))
        if r.random() < 0.25:
            r.shuffle(devices)
        return Place(tuple(devices), mesh)

    def spec(place, dims):
        axes = [[] for _ in range(dims)]
        for name in "ab"[: len(place.mesh)]:
            if dims and r.random() < 0.7:
                axes[r.randrange(dims)].append(name)
        return Place(place.devices, place.mesh, tuple(map(tuple, axes)))

    def moved(number, place):
        shape, dtype, _ = live[number]
        to = spec(place, len(shape))
        new = next(numbers)
        out.steps.append(Step("reshard", (number,), (new,), to))
        # Where devices are the same, the old array and the new one may be one, and neither can be donated.
        if set(live[number][2].devices) & set(to.devices):
            made.discard(number)
        else:
            made.add(new)
        live[new] = shape, dtype, to
        return new

    for _ in range(3):
        shape = (r.choice(SIZES), r.choice(SIZES))
        place = spec(window(), 2)
        out.inputs.append((shape, r.choice(DTYPES), place))
        live[next(numbers)] = out.inputs[-1]
    out.given = tuple(i for i in live if r.random() < 0.5)
    made.update(out.given)
    for _ in range(length):
        first = r.choice(list(live))
        shape, dtype, place = live[first]
        if r.random() < 0.5:
            place = window()
            first = moved(first, place)
        known = functions(Place((0,), (1,)).grid(jax.devices()))
        name = r.choice([name for name in known if len(shape) == 2 or name in FLAT])
        arguments = [first]
        two_meshes = False
        if known[name][0] == 2:
            second = r.choice([n for n, (s, d, _) in live.items() if (s, d) == (shape, dtype)])
            if live[second][2].devices != place.devices:
                second = moved(second, place)
            two_meshes = live[second][2].mesh != place.mesh
            arguments.append(second)
        results = jax.eval_shape(known[name][1], *[jax.ShapeDtypeStruct(shape, jnp.dtype(dtype)) for _ in arguments])
        results = jax.tree.leaves(results)
        place = spec(place, len(results[0].shape))
        donated = first in made and first not in arguments[1:] and r.random() < 0.4
        new = tuple(next(numbers) for _ in results)
        own = also.choice(["", "", *OWN])
        pin = int(r.random() < 0.5)
        if two_meshes:  # JAX may find no words for what comes of it: halves along an axis of eight
            pin = len(results)
        out.steps.append(Step(name, tuple(arguments), new, place, donated, pin, own))
        if donated:
            del live[first]
        for number, result in zip(new, results, strict=True):
            live[number] = result.shape, result.dtype.name, place
            made.add(number)
    out.inner = tuple(sorted(r.sample(range(len(out.steps) + 1), 2)))
    out.slices = r.choice(((8,), (4, 4), (3, 5), (1, 2, 5), (2, 2, 2, 2)))
    return out


class Program:
    """A program's computations, jitted once; a call runs them one by one."""

    def __init__(self, steps: Steps, reshard, devices=None):
        self.steps, self.reshard, self.devices = steps, reshard, devices or jax.devices()
        self.calls = []
        for step in steps.steps:
            if step.name == "reshard":
                self.calls.append((step, step.place.sharding(self.devices)))
                continue
            _, function = functions(step.place.grid(self.devices))[step.name]
            more = {"donate_argnums": 0} if step.donated else {}
            if step.pin:
                others = NamedSharding(step.place.grid(self.devices), P()) if step.pin > 1 else None
                pinned = step.place.sharding(self.devices)
                rest = (others,) * (len(step.results) - 1)
                more["out_shardings"] = (pinned, *rest) if rest else pinned
            call = jax.jit(named(step.name, function), **more)
            self.calls.append((step, self.with_own(step, call) if step.own else call))

    def with_own(self, step, call):
        """Returns a call that adds to the first result what the step has of its own."""
        everywhere = NamedSharding(step.place.grid(self.devices), P())

        def then(*arguments):
            first, *others = jax.tree.leaves(call(*arguments))
            table = np.arange(3, 3 + first.shape[-1]).astype(first.dtype)
            return first + OWN[step.own](table, everywhere), *others

        return then

    def values(self):
        """Returns what is in the inputs."""
        r = np.random.default_rng(self.steps.seed)
        return [
            r.integers(-99, 99, shape).astype(dtype)
            if dtype == "int32"
            else np.asarray(jnp.asarray(r.normal(size=shape), dtype))
            for shape, dtype, _ in self.steps.inputs
        ]

    def put(self, i, value):
        """Makes an input of its value."""
        return jax.device_put(value, self.steps.inputs[i][2].sharding(self.devices))

    def inputs(self):
        return [self.put(i, value) for i, value in enumerate(self.values())]

    def __call__(self, *inputs, inner=None):
        first, last = self.steps.inner
        arrays = self.run(dict(enumerate(inputs)), 0, first)
        arrays = (inner or self.run)(arrays, first, last)
        arrays = self.run(arrays, last, len(self.calls))
        return [arrays[n] for n in sorted(arrays)]

    def run(self, arrays, first, last):
        """Does some of the steps, and returns the remaining and the new arrays by number."""
        arrays = dict(arrays)
        for step, call in self.calls[first:last]:
            arguments = [arrays[n] for n in step.arguments]
            if step.donated:
                del arrays[step.arguments[0]]
            results = self.reshard(*arguments, call) if step.name == "reshard" else call(*arguments)
            arrays.update(zip(step.results, jax.tree.leaves(results), strict=True))
            del arguments, results
        return arrays


def named(name, function):
    def call(*arguments):
        return function(*arguments)

    call.__name__ = name
    return call


def bits(arrays):
    """Returns what is compared: shape, dtype and bytes."""
    return [(x.shape, x.dtype.name, np.asarray(x).tobytes()) for x in arrays]


def save(path, seeds):
    """Runs programs on stock JAX and writes their bits."""
    write(path, {seed: bits((program := Program(draw(seed), jax.device_put))(*program.inputs())) for seed in seeds})


def write(path, results):
    """Writes the bits of seeds' results, so that numpy.load reads the same of the same."""
    np.savez(
        path,
        **{
            f"{seed}.{i}.{dtype}.{'x'.join(map(str, shape))}": np.frombuffer(data, np.uint8)
            for seed, arrays in results.items()
            for i, (shape, dtype, data) in enumerate(arrays)
        },
    )
