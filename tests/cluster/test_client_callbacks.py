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
