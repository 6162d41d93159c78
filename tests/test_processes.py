"""The life of a process: fork, spawn, Ctrl-C, exit with work in flight, kernel restarts, jax.distributed scripts."""

import os
import signal
import sys

import fresh
import pytest
from conftest import ADDRESS, THOROUGH

# How many processes end with work in flight.
EXIT_RUNS = int(os.environ.get("PATHWAYS_EXIT_RUNS") or (200 if THOROUGH and not ADDRESS else 12))


@pytest.mark.newest
def test_a_forked_child_is_told_at_once():
    script = """
        import os, pickle, signal, sys
        import jax, jax.numpy as jnp, numpy as np
        from jax.sharding import Mesh, NamedSharding, PartitionSpec

        step = jax.jit(lambda x: x * 2)
        x = jnp.ones(4)
        step(x).block_until_ready()
        split = jax.device_put(np.ones(8), NamedSharding(Mesh(np.array(jax.devices()), "d"), PartitionSpec("d")))
        # No compiling: jaxlib 0.10 gives it to threads of its own, which the child lacks, and never returns.
        read, write = os.pipe()
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            signal.alarm(120)  # a child that hangs ends by SIGALRM, which the parent sees
            out = os.fdopen(write, "w")
            for name, call in (("run", lambda: step(x)), ("put", lambda: jax.device_put(np.ones(9), jax.devices()[1])),
                               ("read", lambda: np.asarray(x)), ("read shards", lambda: np.asarray(split)),
                               ("print", lambda: repr(x)), ("pickle", lambda: pickle.dumps(x)),
                               ("wait", x.block_until_ready), ("look", x.is_ready), ("fetch", x.copy_to_host_async),
                               ("doctor", lambda: pathways.doctor(open(os.devnull, "w"))), ("stats", pathways.stats),
                               ("status", pathways.status),
                               ("init", lambda: pathways.init(devices=8)), ("shutdown", pathways.shutdown)):
                try:
                    call()
                    print(name, "| no error", file=out, flush=True)
                except Exception as error:
                    print(name, "|", " ".join(str(error).split()), file=out, flush=True)
            os._exit(0)
        os.close(write)
        print(os.fdopen(read).read(), end="")
        _, status = os.waitpid(child, 0)
        assert status == 0, f"the child ended with {status}"
        assert np.asarray(step(x)).tolist() == [2.0] * 4  # the parent goes on
    """
    # JAX warns of every fork; what counts here is what the child is told.
    done = fresh.run(script)
    said = dict(line.split(" | ", 1) for line in done.stdout.splitlines())
    told = {"run", "put", "read", "read shards", "print", "pickle"}
    if "PATHWAYS_TEST_ADDRESS" not in os.environ:  # a cluster's status comes from its controller
        told.add("status")
    for name in told:
        assert "fork" in said[name] and "spawn" in said[name] and "FAILED_PRECONDITION" in said[name], said
    assert set(said) == told | {"status", "wait", "look", "fetch", "doctor", "stats", "init", "shutdown"}
    assert said["doctor"] == "no error"


@pytest.mark.newest
def test_a_forked_child_that_leaves_jax_alone_ends_well():
    script = """
        import gc, os
        import jax, jax.numpy as jnp
        x = jnp.ones(4) + 1
        x.block_until_ready()
        child = os.fork()
        if child == 0:
            del x  # garbage collection of a parent's array
            gc.collect()
            os._exit(7)  # as multiprocessing ends its children; sys.exit() crashes in jaxlib itself
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 7, status
        assert float(x[0]) == 2
    """
    fresh.run(script)


@pytest.mark.newest
def test_subprocesses_and_spawned_workers(tmp_path):
    path = tmp_path / "spawner.py"
    path.write_text(
        "import multiprocessing as mp, subprocess, sys\n"
        "import pathways, jax, jax.numpy as jnp\n"
        "def work(n):\n    return float(jax.jit(lambda x: x * n)(jnp.float32(2)))\n"
        "if __name__ == '__main__':\n"
        "    assert work(3) == 6\n"
        "    assert subprocess.run([sys.executable, '-c', 'print(5)'], capture_output=True).stdout == b'5\\n'\n"
        "    with mp.get_context('spawn').Pool(1) as pool:\n        print(pool.map(work, [5, 7]))\n"
    )
    done = fresh.run(f"import runpy, sys; sys.argv = [{str(path)!r}]; runpy.run_path({str(path)!r}, None, '__main__')")
    assert done.stdout.splitlines()[-1] == "[10.0, 14.0]"


LONG_RUN = """
    import gc, os, signal, sys
    import jax, jax.numpy as jnp

    gc.disable()  # JAX calls functions after a collection, and Python forgets a Ctrl-C that is raised there

    @jax.jit
    def heat(a):
        return jax.lax.fori_loop(0, 60, lambda _, w: jnp.tanh(w @ a), a)

    a = jnp.ones((8, 8)) * 0.01
    heat(a).block_until_ready()
    # Long enough to be interrupted, and no longer: what is under way on a cluster's devices keeps those who come next.
    # Where no run is waited for, there are as many under way as were submitted until the signal came.
    size = 400 if "WAIT" != "pass" else 64
    big = jax.device_put(jnp.ones((size, size)) * 0.001)
    compiled = heat.lower(big).compile()
    try:
        print("started", flush=True)
        while True:
            big = compiled(big)
            WAIT
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    assert float(heat(a)[0, 0]) < 1
    print("computes", flush=True)
"""


@pytest.mark.parametrize("waits", ["big.block_until_ready()", "pass"], ids=["waiting", "submitting"])
@pytest.mark.newest
def test_ctrl_c_during_a_long_run(waits):
    process = fresh.start(LONG_RUN.replace("WAIT", waits))
    assert process.stdout.readline() == "started\n", process.stderr.read()
    process.send_signal(signal.SIGINT)
    done = fresh.finish(process)
    assert done.stdout.split() == ["interrupted", "computes"], done
    assert done.returncode == 0, done.stderr


def test_uncaught_ctrl_c_ends_as_any_python_script():
    process = fresh.start(
        LONG_RUN.replace("except KeyboardInterrupt", "except ZeroDivisionError").replace("WAIT", "pass")
    )
    assert process.stdout.readline() == "started\n"
    process.send_signal(signal.SIGINT)
    done = fresh.finish(process)
    assert done.returncode == -signal.SIGINT, done
    assert "KeyboardInterrupt" in done.stderr and "computes" not in done.stdout


# No daemon thread that is inside JAX when Python ends: jaxlib itself aborts there.
EXITS = {
    "end": "",
    "exit": "sys.exit(3)",
    "error": "raise ValueError('the user is wrong')",
    "thread": "threading.Thread(target=work, args=(200,)).start()",
    "shutdown": "pathways.shutdown(); pathways.shutdown()",
    "callback": "keep = jax.jit(lambda v: jax.pure_callback(lambda w: np.asarray(w) + 1, v, v))(one)",
}

IN_FLIGHT = """
    import gc, sys, threading
    import jax, jax.numpy as jnp, numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

    mesh = Mesh(np.array(jax.devices()), ("x",))
    x = jax.device_put(np.ones((64, 64), np.float32), NamedSharding(mesh, P("x")))
    one = jnp.ones((128, 128))
    step = jax.jit(lambda v: jnp.tanh(v @ v) + v.sum() * 1e-6)

    def work(n):
        a, b = x, one
        for _ in range(n):
            a, b = step(a), step(b)
        return a, b

    kept = work(12)
    gc.unfreeze()  # where it was forked: all is collected at the end, as in any process
    print("in flight", flush=True)
    END
"""


def check_exit(name, done):
    assert done.stdout == "in flight\n", done
    assert done.returncode == {"exit": 3, "error": 1}.get(name, 0), f"{name}: {done.returncode}\n{done.stderr}"
    lines = done.stderr.splitlines()
    if name == "error":
        assert lines[-1] == "ValueError: the user is wrong", done.stderr
    else:
        # No crash, no complaint of the runtime, no traceback at the end.
        assert not lines, done.stderr


@pytest.mark.embedded("on clusters, again and again")
@pytest.mark.parametrize("name", EXITS)
@pytest.mark.newest
def test_exit_with_work_in_flight(name):
    check_exit(name, fresh.run(IN_FLIGHT.replace("END", EXITS[name]), check=False, imports=name == "end"))


# A crash at the end is rare where it happens at all, so it is tried often.
@pytest.mark.parametrize("name", EXITS)
def test_exit_with_work_in_flight_again_and_again(name):
    for done in fresh.forked(IN_FLIGHT.replace("END", EXITS[name]), -(-EXIT_RUNS // len(EXITS))):
        check_exit(name, done)


@pytest.mark.embedded("sets the number of this process's devices")
@pytest.mark.newest
def test_a_kernel_restarted_in_one_process():
    script = """
        import gc
        import jax, jax.numpy as jnp, numpy as np
        from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

        for devices in (8, 2, 8):
            pathways.init(devices=devices)
            assert len(jax.devices()) == devices, jax.devices()
            mesh = Mesh(np.array(jax.devices()), ("x",))
            x = jax.device_put(np.arange(16.0, dtype=np.float32), NamedSharding(mesh, P("x")))
            assert float(jax.jit(jnp.sum)(x)) == 120
            jax.jit(lambda v: jax.pure_callback(lambda w: np.asarray(w), v, v))(jnp.ones(3)).block_until_ready()
            old = jnp.ones(5) + 1
            pathways.shutdown()
            try:
                assert np.asarray(old).tolist() == [2.0] * 5  # bytes that are still mapped may be read
            except RuntimeError as error:
                assert "shut" in str(error) or "deleted" in str(error), error
            pathways.init(devices=devices)
            try:
                # JAX brings an array that is bound to no device to the new client, where its bytes are still mapped.
                assert np.asarray(jax.jit(lambda v: v * 3)(old)).tolist() == [6.0] * 5
            except (RuntimeError, ValueError) as error:
                assert "incompatible devices" in str(error) or "shut" in str(error), error
            pathways.shutdown()
            del x, old, mesh
        jax.clear_caches()
        gc.collect()
        live = pathways.stats()["live"]
        assert not any(live.values()), live
        print("restarted")
    """
    env = {"PATHWAYS_DEVICES": ""}
    assert fresh.run(script, env=env).stdout == "restarted\n"


@pytest.mark.newest
def test_a_notebook_module_reloaded():
    script = """
        import importlib, sys
        import jax, jax.numpy as jnp
        assert len(jax.devices()) == 8
        importlib.reload(pathways)
        for name in [n for n in sys.modules if n.split(".")[0] == "pathways"]:
            del sys.modules[name]
        import pathways
        assert len(pathways.devices()) == 8 and float(jnp.ones(3).sum()) == 3
        print("well")
    """
    done = fresh.run(script, check=False)
    # Made again after JAX ran: it works, or says that it comes too late.
    assert done.stdout == "well\n" or "FAILED_PRECONDITION" in done.stderr, done


def free_port():
    import socket

    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@pytest.mark.newest
def test_a_script_of_one_distributed_process_runs():
    script = f"""
        import jax, jax.numpy as jnp
        jax.distributed.initialize("127.0.0.1:{free_port()}", num_processes=1, process_id=0)
        assert jax.process_count() == 1 and len(jax.devices()) == 8
        assert float(jax.pmap(lambda v: jax.lax.psum(v, "i"), axis_name="i")(jnp.arange(8.0))[0]) == 28
        jax.distributed.shutdown()
        print("well")
    """
    assert fresh.run(script).stdout == "well\n"


@pytest.mark.newest
def test_a_script_of_two_distributed_processes_is_told_to_run_one():
    port = free_port()
    script = """
        import jax
        jax.distributed.initialize("127.0.0.1:PORT", num_processes=2, process_id=ID)
        try:
            print(jax.devices())
        except Exception as error:
            print(" ".join(str(error).split()), flush=True)
        jax.distributed.shutdown()
    """
    both = [fresh.start(script.replace("PORT", str(port)).replace("ID", str(i))) for i in range(2)]
    for done in [fresh.finish(process) for process in both]:
        assert "one process" in done.stdout and "UNIMPLEMENTED" in done.stdout, done


@pytest.mark.embedded("asks for no devices")
def test_no_thread_or_file_is_left_by_import_alone():
    script = """
        import os, threading
        print(threading.active_count(), len(os.listdir("/proc/self/task")))
    """
    plain = fresh.run("import jax, numpy\n" + script.replace("        ", ""), backend=None).stdout.split()
    ours = fresh.run(script, imports=True).stdout.split()
    # No Python thread, and of the system's no more than the few of an idle Go runtime.
    assert plain[0] == ours[0] == "1"
    assert int(ours[1]) <= int(plain[1]) + 2 * (os.cpu_count() or 1) + 8


@pytest.mark.newest
def test_python_runs_with_dev_mode_checks():
    env = {"PYTHONDEVMODE": "1", "PYTHONMALLOC": "debug", "PYTHONWARNINGS": "default"}
    done = fresh.run(IN_FLIGHT.replace("END", "jax.block_until_ready(kept); print(float(kept[0].sum()) > 0)"), env=env)
    assert done.stdout == "in flight\nTrue\n"
    assert "pathways" not in done.stderr, done.stderr


assert sys.platform == "linux", "these tests know the processes of Linux"
