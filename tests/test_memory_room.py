"""A memory limit in one process: calls wait for what computations under way and other threads will free."""

import fresh
import pytest

pytestmark = pytest.mark.embedded("workers have limits of their own")

ARRAY = 4 << 20
SCRIPT = f"""
    import os, signal, threading, time
    pathways.init(devices={{devices}}, memory_limit={int(2.5 * ARRAY)}, memory_wait={{wait}})
    import jax, jax.numpy as jnp, numpy as np

    f = jax.jit(lambda x: jnp.sin(x) * 0.5)
    x = jnp.ones({ARRAY // 4}, jnp.float32)
"""


def run(script, wait=600, devices=1):
    import textwrap

    done = fresh.run(textwrap.dedent(SCRIPT.format(wait=wait, devices=devices)) + textwrap.dedent(script))
    assert done.stdout.splitlines()[-1] == "finished", done
    return done


@pytest.mark.parametrize("donated", [False, True], ids=["kept", "donated"])
def test_a_loop_waits_for_the_arrays_that_it_has_dropped(donated):
    run(f"""
        f = jax.jit(lambda x: jnp.sin(x) * 0.5, donate_argnums={(0,) if donated else ()})
        for _ in range(200):
            x = f(x)
        assert not np.asarray(x).any() or np.isfinite(np.asarray(x)).all()
        print("finished")
    """)


def test_what_nothing_can_free_fails_at_once():
    run("""
        y, begin = f(x), time.monotonic()
        assert pathways.status().workers[0]["array_bytes"] == [2 * x.nbytes]
        for call, advice in [(lambda: f(y), "delete arrays"), (lambda: jnp.zeros(1 << 22), "smaller arrays"),
                             (lambda: jax.device_put(np.ones(1 << 20, np.float32)), "delete arrays")]:
            try:
                z = call()
                raise SystemExit("there was room")
            except Exception as error:
                text = str(error)
                assert "RESOURCE_EXHAUSTED" in text and "4 MiB in 1 of " in text and advice in text, text
        assert time.monotonic() - begin < 300  # and not 600
        del y
        z = f(x)
        print("finished")
    """)


def test_what_reads_a_failed_array_does_not_wait():
    run(
        """
        from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
        rows = NamedSharding(Mesh(np.array(jax.devices()), ("d",)), P("d"))
        x, go = jax.device_put(np.ones((2, x.size), np.float32), rows), threading.Event()
        def boom(v):
            go.wait()
            raise ValueError("boom")
        def call(v):
            return jax.pure_callback(boom, jax.ShapeDtypeStruct(v.shape, v.dtype), v)
        bad = jax.jit(jax.shard_map(call, mesh=rows.mesh, in_specs=P("d"), out_specs=P("d"), check_vma=False))
        y, entries = bad(x), pathways.stats()["go_entries"]
        def other():
            while pathways.stats()["go_entries"] == entries:  # until the call below has been refused once
                time.sleep(0.001)
            go.set()
        threading.Thread(target=other).start()
        try:
            f(y)
            raise SystemExit("there was room")
        except Exception as error:
            assert "boom" in str(error), error
        del y
        f(x).block_until_ready()
        print("finished")
        """,
        devices=2,
    )


def test_a_call_waits_until_another_thread_frees():
    run("""
        held, go = [f(x)], threading.Event()
        def other():
            go.wait()
            while pathways.stats()["go_entries"] == entries:  # until the call below has been refused once
                time.sleep(0.001)
            held.clear()
        entries = pathways.stats()["go_entries"]
        thread = threading.Thread(target=other)
        thread.start()
        go.set()
        for call in (lambda: f(x), lambda: jax.device_put(np.ones(1 << 20, np.float32))):
            y = call().block_until_ready()
            del y
        thread.join()
        print("finished")
    """)


def test_the_wait_for_room_ends_by_itself():
    run(
        """
        y, stop = f(x), threading.Event()
        thread = threading.Thread(target=stop.wait)  # which might free something, and does not
        thread.start()
        try:
            z = f(y)
            raise SystemExit("there was room")
        except Exception as error:
            assert "RESOURCE_EXHAUSTED" in str(error) and "waited 0.2 s" in str(error), error
        stop.set()
        thread.join()
        print("finished")
        """,
        wait=0.2,
    )


def test_if_all_threads_wait_one_fails():
    # The main thread waits for nothing here but takes part: each of the two has an array and needs another one.
    run("""
        failed, ready = [], threading.Event()
        def work(mine, after):
            after()
            try:
                more = f(mine)
            except Exception as error:
                failed.append(str(error))
        y = f(x)
        thread = threading.Thread(target=work, args=(y, ready.set))
        del y
        thread.start()
        work(x, ready.wait)
        del x  # which the other one may wait for
        thread.join()
        assert len(failed) == 1 and "RESOURCE_EXHAUSTED" in failed[0], failed
        print("finished")
    """)


def test_ctrl_c_ends_the_wait():
    run("""
        y, stop = f(x), threading.Event()
        def interrupt():
            while pathways.stats()["go_entries"] == entries:
                time.sleep(0.001)
            os.kill(os.getpid(), signal.SIGINT)
            stop.wait()
        entries = pathways.stats()["go_entries"]
        thread = threading.Thread(target=interrupt)
        thread.start()
        try:
            try:
                z = f(y)
            except Exception as error:
                assert "interrupted" in str(error), error
                stop.wait()
            raise SystemExit("no KeyboardInterrupt")
        except KeyboardInterrupt:
            stop.set()
        thread.join()
        del y
        z = f(x).block_until_ready()
        print("finished")
    """)
