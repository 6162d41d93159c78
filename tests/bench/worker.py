"""One side of a measurement: a process that goes through one backend and times what it is asked to.

    python worker.py pathways|plugin|jaxlib

Each line on standard input is a JSON object {"row": name, "calls": n, …}; each answer is one line {"seconds": of n
calls, …}. A row is set up at its first line. Timings are of the calls alone, with garbage collection off.
"""

import gc
import json
import os
import pathlib
import statistics
import sys
import time

BACKEND = sys.argv[1]

if BACKEND == "pathways":
    import pathways  # noqa: F401
elif BACKEND == "plugin":
    from jax._src import xla_bridge

    devices = {"cpu_device_count": int(os.environ["TEST_DEVICES"])}
    xla_bridge.register_plugin("plugin", library_path=os.environ["TEST_PLUGIN"], options=devices)

import jax  # noqa: E402

if BACKEND == "jaxlib":
    jax.config.update("jax_num_cpu_devices", int(os.environ["TEST_DEVICES"]))

import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
import sides  # noqa: E402
from jax.sharding import Mesh, NamedSharding  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402


def tiny(asked):
    """A scalar increment: async counts the submission alone, sync waits for each result."""
    f, x = jax.jit(lambda v: v + 1), jnp.float32(1)

    def submit(n):
        start = time.perf_counter()
        for _ in range(n):
            y = f(x)
        seconds = time.perf_counter() - start
        y.block_until_ready()
        return {"seconds": seconds}

    def wait(n):
        start = time.perf_counter()
        for _ in range(n):
            f(x).block_until_ready()
        return {"seconds": time.perf_counter() - start}

    return wait if asked["sync"] else submit


def computation(asked):
    """A chain of small matrix products of asked["length"] steps, waited for."""
    f = jax.jit(lambda v, k: jax.lax.fori_loop(0, k, lambda _, w: jnp.tanh(w @ v), v))
    x, k = jnp.eye(64) * 0.5, jnp.int32(asked["length"])

    def measure(n):
        start = time.perf_counter()
        for _ in range(n):
            f(x, k).block_until_ready()
        return {"seconds": time.perf_counter() - start}

    return measure


def sharded_step(asked):
    """A training step of a two-layer network on a 2 x 4 mesh; each step waits for its loss."""
    mesh = Mesh(np.array(jax.devices()).reshape(2, 4), ("data", "model"))
    rng = np.random.default_rng(0)

    def put(spec, *shape):
        return jax.device_put(rng.normal(size=shape).astype(np.float32) * 0.05, NamedSharding(mesh, spec))

    def loss(params, x, y):
        return jnp.mean((jax.nn.gelu(x @ params[0]) @ params[1] - y) ** 2)

    @jax.jit
    def step(params, x, y):
        value, grads = jax.value_and_grad(loss)(params, x, y)
        return jax.tree.map(lambda p, g: p - 0.01 * g, params, grads), value

    state = [(put(P(None, "model"), 256, 512), put(P("model"), 512, 64))]
    x, y = put(P("data"), 128, 256), put(P("data"), 128, 64)

    def measure(n):
        start = time.perf_counter()
        for _ in range(n):
            state[0], value = step(state[0], x, y)
            value.block_until_ready()
        return {"seconds": time.perf_counter() - start}

    return measure


def demo(asked):
    """Turns of asked["steps"] steps of the demo's model, as the demo takes them; seconds are the median step's."""
    sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "examples"))
    import train_transformer as model

    args = model.parse([])
    trainer = model.Trainer(args, model.read_library())

    def measure(n):
        seconds = 0
        for _ in range(n):
            trainer.seconds.clear()
            trainer.run(asked["steps"])
            seconds += statistics.median(trainer.seconds)
        return {"seconds": seconds, "tokens": args.batch * args.context}

    return measure


def host_array(size, aligned):
    """An array of size bytes whose first byte is on a boundary of 64, or 4 bytes past one."""
    raw = np.ones(size + 128, np.uint8)
    skip = -raw.ctypes.data % 64 + (0 if aligned else 4)
    return raw[skip : skip + size].view(np.float32)


def put(asked):
    """device_put of NumPy memory; copies says how many calls gave other memory than NumPy's."""
    host = host_array(asked["bytes"], asked["aligned"])
    place = host.ctypes.data

    def measure(n):
        seconds = copies = 0
        for _ in range(n):
            start = time.perf_counter()
            x = jax.device_put(host)
            x.block_until_ready()
            seconds += time.perf_counter() - start
            copies += x.unsafe_buffer_pointer() != place
            x.delete()
        return {"seconds": seconds, "copies": copies / n}

    return measure


def fetch(asked):
    """np.asarray of a computed array; copies says how many calls gave other memory than the device's."""
    x = jnp.ones(asked["bytes"] // 4, jnp.float32)
    f = jax.jit(lambda v: v + 1)

    def measure(n):
        seconds = copies = 0
        for _ in range(n):
            y = f(x)  # a new array each time, since JAX keeps what it has fetched
            y.block_until_ready()
            start = time.perf_counter()
            host = np.asarray(y)
            seconds += time.perf_counter() - start
            copies += host.ctypes.data != y.unsafe_buffer_pointer()
            del host, y  # freeing is not fetching
        return {"seconds": seconds, "copies": copies / n}

    return measure


def arrow(asked):
    """Arrow data in, out, and in, through a computation and out: by from_arrow and to_arrow, and by NumPy.

    Each is done n times, by turns; `each` is what a call took, the median of seconds, and `alone` ours in a row.
    Arrays that go out are new ones each time.
    """
    import pathways
    import pyarrow

    host = host_array(asked["bytes"], True)
    data = pyarrow.Array.from_buffers(pyarrow.float32(), host.size, [None, pyarrow.py_buffer(host)])
    f = jax.jit(lambda v: v + 1)
    done = jax.block_until_ready
    ours, numpy, jaxs = (
        pathways.from_arrow,
        lambda a: jnp.asarray(a.to_numpy()),
        lambda a: jax.device_put(a.to_numpy()),
    )
    out_ours, out_numpy = lambda y: pyarrow.array(pathways.to_arrow(y)), lambda y: pyarrow.array(np.asarray(y))
    ways = {
        "in": {"arrow": (ours, None), "jnp.asarray": (numpy, None), "device_put": (jaxs, None)},
        "out": {"arrow": (out_ours, f), "np.asarray": (out_numpy, f)},
        "through": {
            "arrow": (lambda a: out_ours(f(ours(a))), None),
            "jnp.asarray": (lambda a: out_numpy(f(numpy(a))), None),
            "device_put": (lambda a: out_numpy(f(jaxs(a))), None),
        },
    }[asked["way"]]
    x = done(ours(data))

    def seconds(name):
        call, made = ways[name]
        given = data if made is None else done(made(x))
        start = time.perf_counter()
        got = call(given)
        took = time.perf_counter() - start
        done(got)  # a copy that goes on in the background would slow down the next way
        return took

    def measure(n):
        names, each = list(ways), {name: [] for name in ways}
        for i in range(n):
            for name in names[i % len(names) :] + names[: i % len(names)]:
                each[name].append(seconds(name))
        if asked["way"] == "in":  # by itself, since the others' copies leave nothing in the caches
            each["alone"] = [seconds("arrow") for _ in range(20)]
        return {"seconds": sum(map(sum, each.values())), "each": {k: statistics.median(v) for k, v in each.items()}}

    return measure


def stream(asked):
    """A stream of record batches, of four columns of 4 MiB, brought to all devices, rows cut: of a Parquet file in
    the page cache, as pyarrow writes it or plain (neither compressed nor encoded), or of batches in memory.

    `each` is the seconds of that, of reading the batches alone, and of copying as many bytes from memory to memory,
    one column after the other.
    """
    import atexit
    import tempfile

    import pathways
    import pyarrow
    import pyarrow.compute as pc
    import pyarrow.parquet

    rows, columns = 2**20, 4
    count = asked["bytes"] // (4 * rows * columns)
    rng = np.random.default_rng(0)
    names = [f"c{i}" for i in range(columns)]
    batches = []
    for _ in range(count):
        host = [pyarrow.array(rng.random(rows, np.float32)) for _ in names]
        batches.append(pyarrow.record_batch([pc.add(h, np.float32(0)) for h in host], names))  # in aligned memory
    if asked["source"] != "memory":
        folder = tempfile.TemporaryDirectory()
        atexit.register(folder.cleanup)
        path = os.path.join(folder.name, "stream.parquet")
        table = pyarrow.Table.from_batches(batches)
        plain = {"compression": "none", "use_dictionary": False} if asked["source"] == "plain Parquet" else {}
        pyarrow.parquet.write_table(table, path, row_group_size=rows, **plain)

        def opened():
            file = pyarrow.parquet.ParquetFile(path, pre_buffer=False)
            return pyarrow.RecordBatchReader.from_batches(file.schema_arrow, file.iter_batches(rows))
    else:

        def opened():
            return pyarrow.RecordBatchReader.from_batches(batches[0].schema, iter(batches))

    mesh = Mesh(np.array(jax.devices()), ("x",))
    sharding = NamedSharding(mesh, P("x"))
    sources = [c.to_numpy() for b in batches for c in b.columns]
    into = [np.ones(rows, np.float32) for _ in range(2 * columns)]

    def ours():
        got = 0
        for batch in pathways.from_arrow(opened(), sharding):
            got += sum(x.size for x in jax.block_until_ready(list(batch.values())))
        assert got == count * rows * columns, got

    def reader():
        for _ in opened():
            pass

    def copy():
        for i, source in enumerate(sources):
            np.copyto(into[i % len(into)], source)

    ways, turn = {"arrow": ours, "reader": reader, "copy": copy}, 0
    for way in ways.values():
        way()  # pages come, and functions are found

    def measure(n):
        nonlocal turn
        each = {name: 0.0 for name in ways}
        for _ in range(n):
            names = list(ways)
            turn += 1
            for name in names[turn % len(names) :] + names[: turn % len(names)]:
                start = time.perf_counter()
                ways[name]()
                each[name] += time.perf_counter() - start
        return {"seconds": sum(each.values()), "each": {name: s / n for name, s in each.items()}}

    return measure


def resident():
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def growth(asked):
    """Resident memory before and after n tiny calls of every kind."""
    f, total = jax.jit(lambda v: v + 1), jax.jit(jnp.sum)
    mesh = Mesh(np.array(jax.devices()), ("x",))
    x, host = jnp.float32(1), np.ones(16, np.float32)
    rows = jax.device_put(np.ones(8, np.float32), NamedSharding(mesh, P("x")))

    def calls(n):
        for i in range(n):
            y = f(x)
            if i % 10 == 0:
                np.asarray(f(jax.device_put(host)))
            if i % 100 == 0:
                total(rows).block_until_ready()
        y.block_until_ready()
        gc.collect()

    def measure(n):
        calls(5000)
        before = resident()
        start = time.perf_counter()
        calls(n)
        return {"seconds": time.perf_counter() - start, "grown": resident() - before}

    return measure


ROWS = {"tiny": tiny, "computation": computation, "step": sharded_step, "put": put, "fetch": fetch, "growth": growth}
ROWS |= {"arrow": arrow, "stream": stream, "demo": demo}


def main():
    stream = sides.answers()
    ready = {}

    def answer(calls, **asked):
        key = json.dumps(asked, sort_keys=True)
        if key not in ready:
            ready.clear()  # one row at a time, so that its arrays do not weigh on the next one
            gc.collect()
            ready[key] = ROWS[asked["row"]](asked)
            ready[key](max(1, calls // 4))
        gc.collect()
        gc.disable()
        got = ready[key](calls)
        gc.enable()
        return got

    sides.serve(stream, answer, {"devices": jax.device_count()})


main()
