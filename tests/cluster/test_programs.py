"""What programs do on a cluster, where their devices belong to several workers: each script is a process of its own."""

import textwrap

import fresh
import pytest

TWO = pytest.param("local:2x4", marks=pytest.mark.again("local:4x2 here; tests/test_program.py on two workers"))
pytestmark = pytest.mark.parametrize("address", [TWO, "local:4x2"])

BEGIN = """
import gc, threading, waiting
import jax, jax.numpy as jnp, numpy as np
from jax import lax
from jax.experimental import io_callback
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P, SingleDeviceSharding

devices = jax.devices()
mesh = Mesh(np.array(devices), ("x",))
workers = {d.worker for d in devices}
assert len(devices) == 8 and len(workers) == int(workers_expected)

def put(x, spec=P("x"), on=mesh):
    return jax.device_put(x, NamedSharding(on, spec))

def each(f, out=P("x"), on=mesh):
    return jax.jit(jax.shard_map(f, mesh=on, in_specs=P("x"), out_specs=out))

def fails(code, text, f):
    try:
        jax.block_until_ready(f())
    except (RuntimeError, ValueError) as error:  # JaxRuntimeError is one
        assert code in str(error) and text in str(error), error
    else:
        raise AssertionError(f"nothing failed with {code}")
"""
END = """
jax.effects_barrier()
for name in [n for n, v in globals().items() if isinstance(v, jax.Array | list | dict | tuple)]:
    if not name.startswith("__") and name not in ("devices",):
        del globals()[name]
jax.clear_caches()
kept = {"clients", "devices", "executables", "memories", "programs", "topologies"}
def left():
    gc.collect()
    return {name: count for name, count in pathways.stats()["live"].items() if count and name not in kept}
assert waiting.comes(lambda: not left()), left()
print("finished")
"""


@pytest.fixture
def run(address):
    """Runs a script on the cluster, and looks whether it has left anything there."""

    def run(script):
        workers = address.split(":")[1].split("x")[0]
        text = f"workers_expected = {workers}\n" + BEGIN + textwrap.dedent(script) + END
        done = fresh.run(text, env={"PATHWAYS_ADDRESS": address})
        assert done.stdout.splitlines()[-1] == "finished", done

    return run


def test_arrays_between_workers(run):
    run("""
        # Between single devices, of the same worker and of others.
        host = np.arange(1000, dtype=np.float32)
        x = jax.device_put(host, devices[1])
        for d in devices:
            y = jax.device_put(x, d)
            assert y.devices() == {d}
            np.testing.assert_array_equal(np.asarray(y + 1), host + 1)
        # From any sharding to any other, eight MiB and more.
        grid = Mesh(np.array(devices).reshape(2, 4), ("a", "b"))
        back = Mesh(np.array(devices[::-1]).reshape(4, 2), ("a", "b"))
        big = np.random.default_rng(0).normal(size=(2048, 1024)).astype(np.float32)
        specs = [(m, s) for m in (grid, back) for s in (P("a", "b"), P("b"), P(None, "a"), P(("b", "a")), P())]
        y = jax.device_put(big, NamedSharding(*specs[0]))
        for where in specs[1:]:
            y = jax.device_put(y, NamedSharding(*where))
            assert y.sharding == NamedSharding(*where)
            np.testing.assert_array_equal(np.asarray(y), big)
        # Into memories of the host and out of them, on every worker.
        z = jax.device_put(big, NamedSharding(mesh, P("x"), memory_kind="pinned_host"))
        np.testing.assert_array_equal(np.asarray(jax.device_put(z, NamedSharding(mesh, P("x")))), big)
        """)


def test_arguments_on_other_devices_are_brought(run):
    run("""
        twice = jax.pmap(lambda v: v * 2, devices=devices)
        host = np.arange(32, dtype=np.float32).reshape(8, 4)
        elsewhere = jax.pmap(lambda v: v + 0, devices=devices[::-1])(host)
        np.testing.assert_array_equal(np.asarray(twice(elsewhere)), host * 2)
        # Rows of several arrays, as one argument.
        parts = [jax.device_put(host[i] * (i + 1), d) for i, d in enumerate(devices)]
        whole = jax.make_array_from_single_device_arrays((32,), NamedSharding(mesh, P("x")), parts)
        total = jax.jit(lambda v: v.reshape(8, 4).sum(1) + v.sum())
        np.testing.assert_array_equal(np.asarray(total(whole)), np.asarray(total(np.asarray(whole))))
        """)


def test_donation_over_workers(run):
    run("""
        step = jax.jit(lambda s, k: {"w": s["w"] * 0.5 + k.sum(), "n": s["n"] + 1}, donate_argnums=0)
        host = np.arange(64, dtype=np.float32).reshape(8, 8)
        k = put(np.ones(8, np.float32))
        s = {"w": put(host), "n": put(np.zeros(8, np.int32))}
        want = host
        for _ in range(50):
            old, s, want = s["w"], step(s, k), want * np.float32(0.5) + 8
            assert old.is_deleted()
        np.testing.assert_array_equal(np.asarray(s["w"]), want)
        assert np.asarray(s["n"]).tolist() == [50] * 8
        fails("", "deleted", lambda: step({"w": old, "n": s["n"]}, k))
        """)


def test_threads_with_collectives_in_opposite_order(run):
    run("""
        other = Mesh(np.array(devices[::-1]), ("x",))
        ring = [(i, (i + 1) % 8) for i in range(8)]
        a, x = each(lambda v: lax.psum(v, "x") + 0 * v), put(np.arange(8, dtype=np.float32))
        b = each(lambda v: lax.pmax(v, "x") + lax.ppermute(v, "x", ring), on=other)
        y = put(np.arange(8, dtype=np.float32), on=other)
        want_a, want_b = np.asarray(a(x)).tolist(), np.asarray(b(y)).tolist()
        errors = []

        def loop(first, u, second, v, want):
            try:
                for _ in range(100):
                    one, two = first(u), second(v)
                assert [np.asarray(one).tolist(), np.asarray(two).tolist()] == want
            except BaseException as error:
                errors.append(error)

        threads = [
            threading.Thread(target=loop, args=(a, x, b, y, [want_a, want_b])),
            threading.Thread(target=loop, args=(b, y, a, x, [want_b, want_a])),
        ]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert not errors, errors
        # And a pipeline far deeper than what is under way at once.
        shift = each(lambda v: lax.ppermute(v, "x", ring))
        for _ in range(1500):
            x = shift(x)
        assert np.asarray(x).tolist() == np.roll(np.arange(8.0), 1500).tolist()
        """)


def test_an_error_in_one_workers_part_is_everyones(run):
    run("""
        def only_last(v):
            if float(v[0]) == 7:
                raise LookupError("the seventh is missing")
            return np.asarray(v)

        def body(v):
            v = jax.pure_callback(only_last, jax.ShapeDtypeStruct((1,), np.float32), v)
            return lax.psum(v, "x") + 0 * v  # the others wait for it

        bad, good = each(body), each(lambda v: lax.psum(v, "x") + 0 * v)
        x = put(np.arange(8, dtype=np.float32))
        for _ in range(3):
            fails("INTERNAL", "the seventh is missing", lambda: bad(x))
            assert np.asarray(good(x)).tolist() == [28.0] * 8
        # What reads it fails with the same; the rest does not.
        huge = jax.jit(lambda: jnp.zeros((8 << 40,)), out_shardings=NamedSharding(mesh, P("x")))
        y = huge()
        z = jax.jit(lambda v: v[:8] + 1)(y)
        for _ in range(2):
            fails("RESOURCE_EXHAUSTED", "", lambda: y)
            fails("RESOURCE_EXHAUSTED", "", lambda: z)
        assert np.asarray(good(x)).tolist() == [28.0] * 8
        """)


def test_callbacks_run_in_the_client(run):
    run("""
        import os
        seen, lock = [], threading.Lock()

        def note(v):
            with lock:
                seen.append((os.getpid(), float(v[0])))
            return np.asarray(v) * 10

        shape = jax.ShapeDtypeStruct((2,), np.float32)
        x = put(np.arange(16, dtype=np.float32))
        f = each(lambda v: lax.psum(jax.pure_callback(note, shape, v), "x"), P())
        np.testing.assert_array_equal(np.asarray(f(x)), np.arange(16).reshape(8, 2).sum(0) * 10)
        assert sorted(seen) == [(os.getpid(), float(2 * i)) for i in range(8)], seen
        # In a loop, between collectives.
        def mean(_, u):
            return lax.psum(jax.pure_callback(lambda w: np.asarray(w) / 8, shape, u), "x") + 0 * u
        g = each(lambda v: lax.fori_loop(0, 5, mean, v))
        np.testing.assert_array_equal(np.asarray(g(x)).reshape(8, 2), [np.arange(16).reshape(8, 2).mean(0)] * 8)
        # Functions of several devices that wait for each other.
        barrier = threading.Barrier(8)
        def meet(v):
            barrier.wait(waiting.HANG_SECONDS)
            return np.asarray(v)
        np.testing.assert_array_equal(np.asarray(each(lambda v: jax.pure_callback(meet, shape, v))(x)), np.arange(16))
        # Functions that run programs on the same devices, with collectives.
        inner = each(lambda v: lax.psum(v, "x") + 0 * v)
        def again(v):
            return np.asarray(inner(x))[:2] + np.asarray(v)
        h = jax.jit(lambda v: jax.pure_callback(again, shape, v))
        for d in devices:
            np.testing.assert_array_equal(np.asarray(h(jax.device_put(np.ones(2, np.float32), d))), [57, 65])
        # Large arguments and results.
        large = np.random.default_rng(0).normal(size=(1 << 20,)).astype(np.float32)
        like = jax.ShapeDtypeStruct(large.shape, np.float32)
        k = jax.jit(lambda v: jax.pure_callback(lambda w: np.asarray(w)[::-1], like, v))
        np.testing.assert_array_equal(np.asarray(k(jax.device_put(large, devices[7]))), large[::-1])
        # Ordered ones keep their order over programs and devices.
        log = []
        tell = jax.jit(lambda v: io_callback(lambda w: log.append(int(w)), None, v, ordered=True))
        for i in range(20):
            tell(jax.device_put(np.int32(i), devices[i % 8]))
        jax.effects_barrier()
        assert log == list(range(20)), log
        """)


def test_linear_algebra_runs_on_the_workers(run):
    run("""
        a = np.random.default_rng(0).normal(size=(8, 12, 12)).astype(np.float32)
        spd = a @ a.transpose(0, 2, 1) + 12 * np.eye(12, dtype=np.float32)
        x = put(spd)
        w, v = jax.jit(jnp.linalg.eigh)(x)
        np.testing.assert_allclose(np.asarray((v * w[:, None]) @ v.transpose(0, 2, 1)), spd, rtol=1e-3, atol=1e-3)
        c = jax.jit(jnp.linalg.cholesky)(x)
        np.testing.assert_allclose(np.asarray(c), np.linalg.cholesky(spd), rtol=1e-4, atol=1e-4)
        s = each(lambda u: lax.psum(jnp.linalg.svd(u, compute_uv=False), "x"), P())(x)
        np.testing.assert_allclose(np.asarray(s)[0], np.linalg.svd(spd, compute_uv=False).sum(0), rtol=1e-4)
        """)
