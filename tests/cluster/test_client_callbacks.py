"""Where the functions of callbacks run when devices belong to several workers: in the client, all at once."""

import fresh


def test_callbacks_run_in_the_client_and_may_wait_for_each_other():
    done = fresh.run(
        """
        import os, threading, waiting
        import jax, numpy as np
        from jax import lax
        from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

        mesh = Mesh(np.array(jax.devices()), ("x",))
        assert len({d.worker for d in jax.devices()}) == 4
        seen, barrier = [], threading.Barrier(8)

        def meet(v):
            barrier.wait(waiting.HANG_SECONDS)
            seen.append((os.getpid(), float(v[0])))
            return np.asarray(v) * 10

        def total(v):
            return lax.psum(jax.pure_callback(meet, jax.ShapeDtypeStruct((2,), np.float32), v), "x")

        x = jax.device_put(np.arange(16, dtype=np.float32), NamedSharding(mesh, P("x")))
        f = jax.jit(jax.shard_map(total, mesh=mesh, in_specs=P("x"), out_specs=P()))
        np.testing.assert_array_equal(np.asarray(f(x)), np.arange(16).reshape(8, 2).sum(0) * 10)
        assert sorted(seen) == [(os.getpid(), float(2 * i)) for i in range(8)], seen
        print("finished")
        """,
        env={"PATHWAYS_ADDRESS": "local:4x2"},
    )
    assert done.stdout.splitlines()[-1] == "finished", done


def test_a_function_that_fails_for_one_device_ends_the_collective_of_all():
    done = fresh.run(
        """
        import sys, time
        import jax, numpy as np
        from jax import lax
        from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

        refuses = True

        def check(device, v):
            if refuses and device == 7:
                raise ValueError("it says no")
            return v

        def total(v):
            return lax.psum(jax.pure_callback(check, v, lax.axis_index("x"), v), "x")

        mesh = Mesh(np.array(jax.devices()), ("x",))
        x = jax.device_put(np.arange(8, dtype=np.float32), NamedSharding(mesh, P("x")))
        f = jax.jit(jax.shard_map(total, mesh=mesh, in_specs=P("x"), out_specs=P(), check_vma=False))
        try:
            begun, line = time.monotonic(), sys._getframe().f_lineno + 1
            f(x).block_until_ready()
        except (jax.errors.JaxRuntimeError, ValueError) as error:  # the second by JAX's fast path
            assert time.monotonic() - begun < 20  # of the 40 after which XLA ends a process, or 60 of ours
            assert f"it says no [jit_total, called at <string>:{line}, on device 1 of worker worker-3]" in str(error)
        refuses = False
        print(*f(x))
        """,
        env={"PATHWAYS_ADDRESS": "local:4x2"},
    )
    assert done.stdout == "28.0\n", done
