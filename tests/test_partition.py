"""Programs for which XLA's partitioner asks Python: custom_partitioning, inspect_array_sharding, debug callbacks with
partitioned=True, and batch-partitionable FFI targets. They do what they do on JAX's own CPU client.
"""

import threading

import fresh
import jax
import jax.numpy as jnp
import numpy as np
import pathways
import pytest
from jax import lax
from jax.experimental.custom_partitioning import custom_partitioning
from jax.experimental.layout import Format, Layout
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from together import together

pytestmark = pytest.mark.versions


@pytest.fixture
def grid():
    return Mesh(np.array(jax.devices()).reshape(2, 4), ("data", "model"))


@pytest.fixture
def mesh():
    return Mesh(np.array(jax.devices()), ("x",))


def values(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def rows_kept(function, seen=None):
    """A function of a matrix that is computed row by row: its partition keeps rows apart and gathers the rest."""
    whole = custom_partitioning(function)

    def partition(mesh, args, result):
        kept = NamedSharding(mesh, P(args[0].sharding.spec[0]))

        def lower(x):
            if seen is not None:
                seen.append(x.shape)
            return function(x)

        return mesh, lower, kept, (kept,)

    def infer(mesh, args, result):
        return NamedSharding(mesh, P(args[0].sharding.spec[0]))

    whole.def_partition(partition=partition, infer_sharding_from_operands=infer, sharding_rule="i j -> i j")
    return whole


@pytest.mark.sizes
def test_custom_partitioning_runs_what_its_partition_says(grid):
    seen = []
    double = rows_kept(lambda x: x * 2, seen)
    host = values(8, 12)
    x = jax.device_put(host, NamedSharding(grid, P("data", "model")))
    compiled = jax.jit(lambda x: double(x) + 1).lower(x).compile()
    got = compiled(x)
    np.testing.assert_array_equal(np.asarray(got), host * 2 + 1)
    assert seen == [(4, 12)]  # half of the rows, all columns
    assert got.sharding.is_equivalent_to(compiled.output_shardings, 2)
    assert "all-gather" in compiled.as_text()  # of the columns


def test_a_function_that_collects_is_split_as_it_says(grid):
    """Values equal those of JAX's own CPU client, and the collective is the one that partition() has written."""

    @custom_partitioning
    def product(x, y):
        return x @ y

    def partition(mesh, args, result):
        given = tuple(NamedSharding(mesh, spec) for spec in (P("data", "model"), P("model", None)))
        return mesh, lambda x, y: lax.psum(x @ y, "model"), NamedSharding(mesh, P("data")), given

    product.def_partition(
        partition=partition,
        infer_sharding_from_operands=lambda mesh, args, result: NamedSharding(mesh, P("data")),
        sharding_rule="i k, k j -> i j",
        reduction_factors=("k",),
    )
    x, y = values(8, 12, seed=1), values(12, 4, seed=2)
    left, right = NamedSharding(grid, P("data", "model")), NamedSharding(grid, P("model"))
    program = jax.jit(product, in_shardings=(left, right), out_shardings=NamedSharding(grid, P("data")))
    np.testing.assert_allclose(program(x, y), x @ y, rtol=1e-4, atol=1e-5)
    text = program.lower(x, y).compile().as_text()
    assert text.count(" all-reduce(") + text.count(" all-reduce-start(") == 1


@pytest.mark.sizes
@pytest.mark.parametrize("shardy", [True, False])
def test_both_partitioners_of_jax(mesh, shardy):
    seen = []
    double = rows_kept(lambda x: x * 2, seen)
    host = values(16, 3)
    was = jax.config.jax_use_shardy_partitioner
    jax.config.update("jax_use_shardy_partitioner", shardy)
    try:
        got = jax.jit(double)(jax.device_put(host, NamedSharding(mesh, P("x"))))
    finally:
        jax.config.update("jax_use_shardy_partitioner", was)
    np.testing.assert_array_equal(np.asarray(got), host * 2)
    assert seen == [(2, 3)]


@pytest.mark.sizes
def test_in_loops_branches_and_other_functions(mesh):
    seen = []
    step = rows_kept(lambda x: jnp.sin(x) + x, seen)
    host = values(8, 5)

    def reference(x):
        for _ in range(3):
            x = np.sin(x) + x
        return np.sin(x) + x if x[0, 0] > 0 else x

    @jax.jit
    def program(x):
        x, sums = lax.scan(lambda c, _: (jax.jit(step)(c), c.sum()), x, None, length=3)
        return lax.cond(x[0, 0] > 0, step, lambda x: x, x), sums

    x = jax.device_put(host, NamedSharding(mesh, P("x")))
    got, sums = program(x)
    np.testing.assert_allclose(np.asarray(got), reference(host), rtol=1e-5)
    np.testing.assert_allclose(sums[0], host.sum(), rtol=1e-4)
    assert set(seen) == {(1, 5)}


def test_donated_arguments_are_gone_and_others_stay(mesh):
    double = rows_kept(lambda x: x * 2)
    rows = NamedSharding(mesh, P("x"))
    x, y = (jax.device_put(values(8, 4, seed=i), rows) for i in range(2))
    host = np.asarray(x).copy(), np.asarray(y).copy()
    got = jax.jit(lambda x, y: double(x) + y, donate_argnums=0)(x, y)
    np.testing.assert_allclose(np.asarray(got), host[0] * 2 + host[1], rtol=1e-6)
    assert x.is_deleted()
    assert not y.is_deleted()


@pytest.mark.sizes
def test_some_devices_in_any_order():
    mesh = Mesh(np.array(jax.devices())[[6, 1, 4]], ("x",))
    seen = []
    double = rows_kept(lambda x: x * 2, seen)
    host = values(6, 2)
    x = jax.device_put(host, NamedSharding(mesh, P("x")))
    got = jax.jit(double)(x)
    np.testing.assert_array_equal(np.asarray(got), host * 2)
    assert [shard.device for shard in got.addressable_shards] == [shard.device for shard in x.addressable_shards]
    assert seen == [(2, 2)]


def test_inspect_array_sharding_tells_how_the_compiler_splits(grid):
    told = []

    @jax.jit
    def program(x):
        y = x.T * 2
        jax.debug.inspect_array_sharding(y, callback=told.append)
        return y

    host = values(8, 4)
    got = program(jax.device_put(host, NamedSharding(grid, P("data", "model"))))
    np.testing.assert_array_equal(np.asarray(got), host.T * 2)
    assert len(told) == 1
    assert told[0].is_equivalent_to(NamedSharding(grid, P("model", "data")), 2)


@pytest.mark.sizes
def test_partitioned_callbacks_are_called_with_each_shard(mesh):
    seen, lock = [], threading.Lock()

    def see(v):
        with lock:
            seen.append(np.asarray(v).tolist())

    @jax.jit
    def program(x):
        y = x + 1
        jax.debug.callback(see, y, partitioned=True)
        return y

    x = jax.device_put(np.arange(16.0, dtype=np.float32), NamedSharding(mesh, P("x")))
    for _ in range(2):
        seen.clear()
        program(x).block_until_ready()
        jax.effects_barrier()
        assert sorted(seen) == [[2 * i + 1, 2 * i + 2] for i in range(8)]


def test_a_program_of_nothing_but_a_partitioned_callback(mesh):
    seen, lock = [], threading.Lock()

    def see(v):
        with lock:
            seen.append(float(v))

    jax.jit(lambda x: jax.debug.callback(see, x.sum(), partitioned=True))(
        jax.device_put(np.arange(8.0, dtype=np.float32), NamedSharding(mesh, P("x")))
    )
    jax.effects_barrier()
    assert seen == [28.0] * 8


@pytest.mark.sizes
def test_batches_of_a_lapack_call_stay_apart(mesh):
    host = values(8, 5, 5)
    x = jax.device_put(host, NamedSharding(mesh, P("x")))
    program = jax.jit(jnp.linalg.cholesky, out_shardings=x.sharding)
    squares = jax.jit(lambda x: x @ x.mT + jnp.eye(5))(x)
    got = program(squares)
    np.testing.assert_allclose(np.asarray(got @ got.mT), np.asarray(squares), rtol=1e-4, atol=1e-4)
    assert "all-gather" not in program.lower(squares).compile().as_text()


def test_layouts_of_arguments_and_results_stay(mesh):
    rows = NamedSharding(mesh, P("x"))
    columns_first = Format(Layout((1, 0)), rows)
    double = rows_kept(lambda x: x * 2)
    host = values(8, 6)
    got = jax.jit(double, in_shardings=rows, out_shardings=columns_first)(host)
    np.testing.assert_array_equal(np.asarray(got), host * 2)
    assert got.format.layout.major_to_minor == (1, 0)


def test_what_a_users_function_raises_is_the_error(mesh):
    @custom_partitioning
    def double(x):
        return x * 2

    def partition(mesh, args, result):
        raise ValueError("rows must be a multiple of seven")

    double.def_partition(
        partition=partition, infer_sharding_from_operands=lambda mesh, args, result: None, sharding_rule="i -> i"
    )
    x = jax.device_put(np.arange(8.0, dtype=np.float32), NamedSharding(mesh, P("x")))
    with pytest.raises(jax.errors.JaxRuntimeError, match="ValueError: rows must be a multiple of seven"):
        jax.jit(double)(x)
    np.testing.assert_array_equal(np.asarray(jax.jit(lambda x: x * 2)(x)), np.arange(8.0) * 2)


@pytest.mark.sizes
def test_many_threads_may_partition_at_once(mesh):
    rows = NamedSharding(mesh, P("x"))

    def work(i):
        scale = rows_kept(lambda x: x * i)
        got = jax.jit(scale)(jax.device_put(np.ones((8, 2), np.float32), rows))
        np.testing.assert_array_equal(got, np.full((8, 2), i, np.float32))

    together(work, range(4))


def test_a_program_captures_partitioned_functions(mesh):
    double = jax.jit(rows_kept(lambda x: x * 2))
    add = jax.jit(lambda x: x + 1)
    program = pathways.program(lambda x: add(double(x)))
    rows = NamedSharding(mesh, P("x"))
    for i in range(3):
        host = values(8, 3, seed=i)
        np.testing.assert_allclose(np.asarray(program(jax.device_put(host, rows))), host * 2 + 1, rtol=1e-6)


def test_dumps_are_private_and_go_and_nothing_is_printed(tmp_path):
    done = fresh.run(
        """
        import os, stat
        import jax, numpy as np
        from jax.experimental.custom_partitioning import custom_partitioning
        from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
        double = custom_partitioning(lambda x: x * 2)
        def partition(mesh, args, result):
            for entry in os.scandir(os.environ["TMPDIR"]):
                print(entry.name.startswith("pathways-partition-"), oct(stat.S_IMODE(entry.stat().st_mode)))
            if len(args[0].shape) > 1:
                raise ValueError("no matrix")
            return mesh, lambda x: x * 2, result.sharding, (args[0].sharding,)
        double.def_partition(partition=partition, sharding_rule="... -> ...",
                             infer_sharding_from_operands=lambda mesh, args, result: args[0].sharding)
        mesh = Mesh(np.array(jax.devices()), ("x",))
        rows = NamedSharding(mesh, P("x"))
        print(np.asarray(jax.jit(double)(jax.device_put(np.arange(8.0), rows))).tolist())
        print(os.listdir(os.environ["TMPDIR"]))
        try:
            jax.jit(double)(jax.device_put(np.ones((8, 2)), rows))
        except jax.errors.JaxRuntimeError as error:
            print("no matrix" in str(error))
        print(os.listdir(os.environ["TMPDIR"]))
        """,
        env={"TMPDIR": str(tmp_path)},
    )
    told = done.stdout.splitlines()
    assert told == ["True 0o700", str([2.0 * i for i in range(8)]), "[]", "True 0o700", "True", "[]"]
    assert done.stderr == ""


def test_from_the_compile_cache_in_another_process(tmp_path):
    """What is cached is the partitioned program: it holds no address of the process that made it."""
    script = """
        import jax, numpy as np
        from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
        import jax.numpy as jnp
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
        rows = NamedSharding(Mesh(np.array(jax.devices()), ("x",)), P("x"))
        x = jax.device_put(np.tile(np.eye(3, dtype=np.float32) * 4, (8, 1, 1)), rows)
        hits = []
        jax.monitoring.register_event_listener(lambda name, **_: hits.append(name))
        got = jax.jit(jnp.linalg.cholesky)(x)
        print(float(got.sum()), "/jax/compilation_cache/cache_hits" in hits)
        """
    env = {"JAX_COMPILATION_CACHE_DIR": str(tmp_path)}
    first, second = fresh.run(script, env=env), fresh.run(script, env=env)
    assert first.stdout.split() == ["48.0", "False"]
    assert second.stdout.split() == ["48.0", "True"]


def test_custom_partitioning_on_jaxs_own_cpu_client_is_as_it_was():
    done = fresh.run(
        """
        import jax, jax.numpy as jnp, numpy as np
        from jax.experimental.custom_partitioning import custom_partitioning
        from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
        jax.config.update("jax_num_cpu_devices", 4)
        double = custom_partitioning(lambda x: x * 2)
        called = []
        def partition(mesh, args, result):
            called.append("partition")
            return mesh, lambda x: x * 2, result.sharding, (args[0].sharding,)
        double.def_partition(partition=partition, sharding_rule="i -> i",
                             infer_sharding_from_operands=lambda mesh, args, result: args[0].sharding)
        rows = NamedSharding(Mesh(np.array(jax.devices("cpu")), ("x",)), P("x"))
        got = jax.jit(double, in_shardings=rows)(jax.device_put(np.arange(8.0), rows))
        print(len(got.sharding.device_set), np.asarray(got).tolist(), called)
        """
    )
    assert done.stdout.strip() == f"4 {[2.0 * i for i in range(8)]} ['partition']"
