"""Many threads, one order: collective programs never deadlock, and every result is right.

Each test runs in a process of its own: where the order is lost, XLA's collectives wait for one another and, after forty
seconds, end the process.
"""

import fresh
import pytest
from conftest import ADDRESS

PROGRAMS = """
    import gc, sys, threading
    import jax, jax.numpy as jnp, numpy as np
    from jax import lax
    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

    line = Mesh(np.array(jax.devices()), ("x",))
    back = Mesh(np.array(jax.devices()[::-1]), ("x",))

    def on(mesh, f, out=P("x")):
        return jax.jit(jax.shard_map(f, mesh=mesh, in_specs=P("x"), out_specs=out))

    def ring(v):
        return lax.ppermute(v, "x", [(i, (i + 1) % 8) for i in range(8)])

    def put(mesh, values):
        return jax.device_put(np.asarray(values, np.float32), NamedSharding(mesh, P("x")))

    failures = []

    def together(*works):
        barrier = threading.Barrier(len(works))

        def run(work):
            try:
                barrier.wait()
                work()
            except BaseException as error:
                failures.append(error)
                raise

        threads = [threading.Thread(target=run, args=(work,)) for work in works]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures, failures
"""


def run(script, first=""):
    import textwrap

    done = fresh.run(first + textwrap.dedent(PROGRAMS) + textwrap.dedent(script))
    assert done.stdout.splitlines()[-1] == "finished", done


@pytest.mark.sizes
def test_two_collective_programs_in_opposite_order():
    # Neither thread waits for the other, so the devices see the two programs in any order; all must see the same.
    run("""
        a, b = on(line, lambda v: lax.psum(v, "x") + 0 * v), on(back, lambda v: lax.pmax(v, "x") + ring(v))
        x, y = put(line, np.arange(8)), put(back, np.arange(8))
        want_a, want_b = np.asarray(a(x)), np.asarray(b(y))
        assert want_a.tolist() == [28.0] * 8 and want_b.tolist() == (7 + np.roll(np.arange(8.0), 1)).tolist()

        def work(first, u, second, v):
            def loop():
                for _ in range(300):
                    one, two = first(u), second(v)
                    jax.block_until_ready((one, two))
                one, two = np.asarray(one), np.asarray(two)
                assert sorted([one.tolist(), two.tolist()]) == sorted([want_a.tolist(), want_b.tolist()])
            return loop

        together(work(a, x, b, y), work(b, y, a, x))
        print("finished")
    """)


@pytest.mark.sizes
def test_a_deep_pipeline_of_collectives():
    # On two cores, stock JAX stops here: more than 32 runs queued on a device, and its threads wait for each other.
    run("""
        shift = on(line, ring)
        x = put(line, np.arange(8))
        for _ in range(1000):
            x = shift(x)
        assert np.asarray(x).tolist() == np.roll(np.arange(8.0), 1000).tolist()
        print("finished")
    """)


@pytest.mark.sizes
def test_deep_pipelines_of_several_threads():
    run("""
        shift, total = on(line, ring), on(back, lambda v: lax.psum(v, "x") / 8 + 0 * v)

        def work(f, mesh, want):
            def loop():
                x = put(mesh, np.arange(8))
                for _ in range(160):
                    x = f(x)
                assert np.asarray(x).tolist() == want, np.asarray(x)
            return loop

        shifted, mean = np.roll(np.arange(8.0), 160).tolist(), [3.5] * 8
        together(*[work(shift, line, shifted), work(total, back, mean)] * 2)
        print("finished")
    """)


@pytest.mark.sizes
def test_overlapping_groups_of_devices():
    run("""
        def group(picks):
            mesh = Mesh(np.array([jax.devices()[i] for i in picks]), ("x",))
            total = on(mesh, lambda v: lax.psum(v, "x"), P())
            x = put(mesh, np.arange(len(picks)))

            def loop():
                for _ in range(120):
                    out = total(x)
                assert np.asarray(out).tolist() == [float(sum(range(len(picks))))]
            return loop

        together(group([0, 1, 2, 3]), group([2, 3, 4, 5]), group([5, 4, 7, 0]), group(range(8)))
        print("finished")
    """)


@pytest.mark.sizes
def test_threads_that_do_everything_at_once():
    run("""
        double = jax.jit(lambda v: v * 2 + 1)
        step = jax.jit(lambda v: jnp.tanh(v @ v.T) @ v, donate_argnums=0)
        total = on(line, lambda v: lax.psum(v, "x"), P())
        rows = np.random.default_rng(0).normal(size=(8, 64)).astype(np.float32)
        sums = np.asarray(total(put(line, rows)))
        first = np.asarray(step(jnp.asarray(rows)))

        def one_device(i):
            def loop():
                device = jax.devices()[i]
                for n in range(100):
                    x = double(jax.device_put(np.full((33,), n, np.float32), device))
                    assert x.devices() == {device} and float(x[32]) == 2 * n + 1
            return loop

        def all_devices():
            for _ in range(60):
                np.testing.assert_array_equal(np.asarray(total(put(line, rows))), sums)

        def donated():
            for _ in range(60):
                np.testing.assert_array_equal(np.asarray(step(jnp.asarray(rows))), first)

        def moved():
            x = jax.device_put(rows, jax.devices()[0])
            for n in range(160):
                x = jax.device_put(x, jax.devices()[(n * 3 + 1) % 8])
            np.testing.assert_array_equal(np.asarray(x), rows)

        def resharded():
            for _ in range(40):
                x = jax.device_put(put(line, rows), NamedSharding(back, P(None, "x")))
                np.testing.assert_array_equal(np.asarray(x), rows)

        def compiled():
            for n in range(12):
                assert float(jax.jit(lambda v, n=n: v.sum() * n)(jnp.ones(4))) == 4 * n

        def called_back():
            f = jax.jit(lambda v: jax.pure_callback(lambda w: np.asarray(w) * 3, v, v))
            for n in range(40):
                assert np.asarray(f(jnp.full(5, n, jnp.float32))).tolist() == [3.0 * n] * 5

        def collected():
            for _ in range(40):
                gc.collect()
                jnp.ones(3).delete()

        together(one_device(0), one_device(3), one_device(3), all_devices, all_devices, donated, moved, resharded,
                 compiled, called_back, collected)
        print("finished")
    """)


@pytest.mark.sizes
def test_callbacks_that_dispatch_again():
    run("""
        inner = jax.jit(lambda v: v + 1)

        def host(v):
            return np.asarray(inner(jnp.asarray(np.asarray(v))))

        outer = jax.jit(lambda v: jax.pure_callback(host, jax.ShapeDtypeStruct((), "float32"), v) * 2)

        def loop():
            for n in range(30):
                assert float(outer(jnp.float32(n))) == 2 * (n + 1)

        together(loop, loop, loop)
        print("finished")
    """)


@pytest.mark.parametrize(
    "limit", [None, pytest.param("1GiB", marks=pytest.mark.embedded("workers have limits of their own"))], ids=str
)
@pytest.mark.parametrize(
    "setup, call, counted, always",
    [
        ("f, x = jax.jit(lambda v: v + 1), jnp.float32(1)", "f(x)", "executes", False),
        ("f, x, kept = jax.jit(lambda v: v + 1), jnp.float32(1), []", "kept.append(f(x))", "executes", False),
        ("f, x = on(line, ring), put(line, np.arange(8))", "f(x).block_until_ready()", "executes", True),
        ("f, x = jax.jit(lambda v: v + 1, donate_argnums=0), jnp.ones(64) + 0", "x = f(x)", "executes", False),
        ("f, x = jax.jit(lambda *v: sum(v)), [jnp.float32(i) for i in range(50)]", "f(*x)", "executes", False),
        ("f, x = np.ones(4), jnp.float32(1)", "x = jax.device_put(f)", "puts", False),
    ],
    ids=["tiny", "kept", "eight", "donated", "many", "put"],
)
def test_calls_enter_go_once_or_not_at_all(setup, call, counted, always, limit):
    # Whatever JAX asks beside Execute (types, devices, readiness, destruction) is answered in C. In one process a run
    # of one device, and a new array, need Go only where memory is limited. What is freed is told in batches, and a
    # batch is an entry too: never more than one in sixteen calls.
    script = f"""
        {setup}
        def calls(n):
            global x
            for _ in range(n):
                {call}
        calls(40)
        jax.block_until_ready(x)
        before = pathways.stats()
        calls(640)
        jax.block_until_ready(x)
        after = pathways.stats()
        made, entries = (after[k] - before[k] for k in ("{counted}", "go_entries"))
        asked = {640 if always or limit or ADDRESS else 0}
        assert made == 640, made
        assert asked <= entries <= asked + 640 // 16, entries
        print("finished")
    """
    run(script, f"pathways.init(memory_limit={limit!r})\n" if limit else "")
