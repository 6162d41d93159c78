"""New weights for samplers, by one system; weights.py says what each does. The numbers are the arrays' rows of 16 KiB.

python weights.py ours ROWS…    the cluster that PATHWAYS_ADDRESS names
python weights.py ray ROWS…     four actors put their parts, four get them
python weights.py gloo ROWS…    a rank broadcasts to four others
python weights.py file ROWS…    four threads save, four load

Each answer is {"seconds": of an update}. Ours also trains: {"train": steps, "push": after each}.
"""

import os
import pathlib
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

import sides  # noqa: E402

COLUMNS = 4096  # of float32
PARTS = 4  # of the trainer, and of the sampler

stream = sides.answers()
system, rows = sys.argv[1], [int(r) for r in sys.argv[2:] if not r.startswith("rank=")]


def timed(call):
    begin = time.perf_counter()
    call()
    return {"seconds": time.perf_counter() - begin}


def trainers_part():
    """What one of the trainer's devices has: a quarter of each array's rows."""
    import numpy as np

    return [np.ones((r // PARTS, COLUMNS), np.float32) for r in rows]


def samplers_part():
    """Room for what one of the sampler's devices has: a quarter of each array's columns."""
    import numpy as np

    return [np.zeros((r, COLUMNS // PARTS), np.float32) for r in rows]


def take(rooms, i, parts, sampler):
    """Copies a sampler's columns of array i from the parts of its rows."""
    at = 0
    columns = slice(sampler * COLUMNS // PARTS, (sampler + 1) * COLUMNS // PARTS)
    for part in parts:
        rooms[i][at : at + len(part)] = part[:, columns]
        at += len(part)


# --- ours ---


def ours():
    import jax
    import jax.numpy as jnp
    import numpy as np
    import pathways
    from jax.sharding import Mesh, NamedSharding
    from jax.sharding import PartitionSpec as P

    trainer = Mesh(np.array(jax.devices()[:PARTS]), "fsdp")
    sampler = Mesh(np.array(jax.devices()[PARTS : 2 * PARTS]), "tp")
    by_rows, by_columns = NamedSharding(trainer, P("fsdp")), NamedSharding(sampler, P(None, "tp"))
    make = jax.jit(lambda key, r: jax.random.normal(key, (r, COLUMNS)), static_argnums=1, out_shardings=by_rows)
    params = [make(jax.random.key(i), r) for i, r in enumerate(rows)]
    weights = pathways.sync(params, to=by_columns)
    weights.wait()

    def update():
        weights.push(params)
        weights.wait()

    trained = None  # an MLP of four layers of 64 MiB, its sampler's weights, and its batch
    layers, batch = 4, 256

    @jax.jit
    def step(layers, x):
        def loss(layers):
            y = x
            for w in layers:
                y = jax.nn.relu(y @ w)
            return jnp.mean(y * y)

        return jax.tree.map(lambda w, g: w - 1e-3 * g, layers, jax.grad(loss)(layers))

    def take_steps(steps, push):
        nonlocal trained
        if trained is None:
            mlp = [make(jax.random.key(i), COLUMNS) * 0.02 for i in range(layers)]
            x = jax.device_put(np.ones((batch, COLUMNS), np.float32), by_rows)
            trained = mlp, pathways.sync(mlp, to=by_columns), x
        mlp, samplers, x = trained
        for _ in range(steps):
            mlp = step(mlp, x)
            if push:
                samplers.push(mlp)
        jax.block_until_ready(mlp)
        trained = mlp, samplers, x

    def answer(train=0, push=False):
        return timed(lambda: take_steps(train, push)) if train else timed(update)

    sides.serve(stream, answer, {"version": jax.__version__})
    pathways.shutdown()


# --- Ray ---


def by_ray():
    os.environ |= {"RAY_worker_niceness": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    try:
        import ray
    except ImportError as error:
        sides.leave_out(stream, str(error))
        return

    @ray.remote(num_cpus=1)
    class Trainer:
        def __init__(self):
            self.part = trainers_part()

        def put(self):
            return [ray.put(array) for array in self.part]

    @ray.remote(num_cpus=1)
    class Sampler:
        def __init__(self, number):
            self.number, self.rooms = number, samplers_part()

        def get(self, of_trainers):
            for i in range(len(rows)):
                take(self.rooms, i, ray.get([refs[i] for refs in of_trainers]), self.number)

    with tempfile.TemporaryDirectory(prefix="ray-") as directory:
        ray.init(
            num_cpus=2 * PARTS,
            include_dashboard=False,
            log_to_driver=False,
            logging_level="ERROR",
            object_store_memory=3 * sum(rows) * COLUMNS * 4,
            _temp_dir=directory,
            runtime_env={"env_vars": {"PYTHONPATH": str(pathlib.Path(__file__).parent)}},
        )
        trainers, samplers = [Trainer.remote() for _ in range(PARTS)], [Sampler.remote(i) for i in range(PARTS)]

        def update():
            refs = ray.get([trainer.put.remote() for trainer in trainers])
            ray.get([sampler.get.remote(refs) for sampler in samplers])

        try:
            sides.serve(stream, lambda: timed(update), {"version": ray.__version__})
        finally:
            ray.shutdown()


# --- gloo ---


def by_gloo():
    port = sides.free_port()
    command = [sys.executable, __file__, "gloo", *map(str, rows)]
    ranks = [sides.Side([*command, f"rank={rank}:{port}"]) for rank in range(PARTS + 1)]

    def update():
        for rank in ranks:
            rank.tell()
        for rank in ranks:
            rank.hear()

    try:
        first = [rank.hear() for rank in ranks]
        sides.serve(stream, lambda: timed(update), first[0])
    finally:
        sides.close(ranks)


def gloo_rank(rank, port):
    try:
        import torch
        import torch.distributed as dist
    except ImportError as error:
        sides.leave_out(stream, f"PyTorch cannot be imported: {error}")
        return
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=PARTS + 1)
    if rank == 0:
        whole = [torch.ones(r, COLUMNS) for r in rows]
    else:
        whole, rooms = torch.zeros(max(rows), COLUMNS), samplers_part()

    def update():
        for i, r in enumerate(rows):
            if rank == 0:
                dist.broadcast(whole[i], 0)
            else:
                dist.broadcast(whole[:r], 0)
                take(rooms, i, [whole[:r].numpy()], rank - 1)

    sides.serve(stream, lambda: timed(update), {"version": torch.__version__})
    dist.destroy_process_group()


# --- a file ---


def by_file():
    import numpy as np

    parts, rooms = [trainers_part() for _ in range(PARTS)], [samplers_part() for _ in range(PARTS)]
    folder = pathlib.Path(tempfile.mkdtemp(prefix="weights-"))

    def path(trainer, i):
        return folder / f"{trainer}-{i}.npy"

    def save(trainer):
        for i, array in enumerate(parts[trainer]):
            np.save(path(trainer, i), array)

    def load(sampler):
        for i in range(len(rows)):
            take(rooms[sampler], i, [np.load(path(t, i), mmap_mode="r") for t in range(PARTS)], sampler)

    with ThreadPoolExecutor(PARTS) as pool:

        def update():
            list(pool.map(save, range(PARTS)))
            list(pool.map(load, range(PARTS)))

        sides.serve(stream, lambda: timed(update))


if __name__ == "__main__":
    if sys.argv[-1].startswith("rank="):
        gloo_rank(*map(int, sys.argv[-1].removeprefix("rank=").split(":")))
    else:
        {"ours": ours, "ray": by_ray, "gloo": by_gloo, "file": by_file}[system]()
