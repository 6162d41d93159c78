"""A call that dispatches work returns without waiting for it, if the plugin allows that."""

import json
import textwrap

import fresh
import gate
import pytest

pytestmark = pytest.mark.embedded("the gate is in the memory of this process")

# The gate stays shut until the last call of a case has come back: one that waits for what stands before it would never
# do so. It is then opened for it, far later than any call takes, and that was the last case.
SCRIPT = """
    import gate, json, os, sys, threading
    import jax, jax.numpy as jnp, numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

    here = jax.devices()
    gate = gate.Gate(LIBRARY, os.environ.get("TEST_PLUGIN") or pathways._native.library_path())

    def on(devices, f, **how):
        mesh = Mesh(np.array(devices), ("x",))
        x = jax.device_put(np.arange(8 * len(devices), dtype=np.float32), NamedSharding(mesh, P("x")))
        each = jax.shard_map(f, mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=False)
        return jax.jit(each, **how), x

    def heavy(v):
        return jax.lax.fori_loop(0, 20, lambda _, w: jnp.tanh(w @ w), jnp.zeros((32, 32)) + v[0]).sum() + v

    def ring(n):
        return lambda v: jax.lax.ppermute(v, "x", [(i, (i + 1) % n) for i in range(n)])

    # What is held, and what is then dispatched behind it. All eight devices held are all threads of the plugin: it
    # dispatches nothing more itself.
    cases = {}
    for name, devices in {"one": here[1:2], "four": here[2:6], "all": here}.items():
        behind = {
            "more": on(devices, lambda v: v * 2)[0],
            "heavy": on(devices, heavy)[0],
            "donated": on(devices, lambda v: v + 3, donate_argnums=0)[0],
            "ring": on(devices, ring(len(devices)))[0],
        }
        for kind, held in {
            "cheap": gate,
            "first": lambda v: heavy(gate(v)),
            "last": lambda v: gate(heavy(v)),
            "sum": lambda v: jax.lax.psum(gate(v), "x") + v,
        }.items():
            cases[name, kind] = *on(devices, held), {} if name == "all" else behind

    late = threading.Event()

    def open_late():
        late.set()
        gate.open()

    said = {}
    for shut in (False, True):  # first all is compiled
        for (name, kind), (f, x, behind) in cases.items():
            timer = threading.Timer(60, open_late)
            if shut:
                gate.shut()
                timer.start()
            did = {}
            y = f(x)
            did["run"] = late.is_set()
            for call, g in behind.items():
                if not late.is_set():
                    y = g(y)
                    did[call] = late.is_set()
            timer.cancel()
            inside = gate.open()
            said[f"{name} {kind}"] = dict(waited=did, inside=inside, result=np.asarray(y).tolist())
            if late.is_set():
                print(json.dumps(said))
                sys.exit()
    print(json.dumps(said))
"""


@pytest.mark.newest
def test_a_call_waits_for_no_more_than_the_plugins_own(tmp_path):
    script = SCRIPT.replace("LIBRARY", repr(str(gate.build(tmp_path))))
    processes = {backend: fresh.start(script, backend) for backend in ("pathways", "plugin")}
    said = {}
    try:
        for backend, process in processes.items():
            done = fresh.finish(process)
            assert done.returncode == 0, f"{backend}: {done.stderr}"
            said[backend] = json.loads(done.stdout)
    finally:
        fresh.end(processes.values())
    ours, plugins = said["pathways"], said["plugin"]
    for case, stock in plugins.items():
        # Stock JAX waits nowhere here. On one device, the plugin runs what is cheap inside of the call.
        assert not any(stock["waited"].values()), (case, stock)
        assert ours.get(case, ours) == stock, case
    assert len(plugins) == len(ours) == 12


# The second computation is in the frontend's queue, and the third behind it.
QUEUED = """
    import gate, gc, threading, waiting
    import jax, jax.numpy as jnp, numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

    here = jax.devices()
    gate = gate.Gate(LIBRARY, pathways._native.library_path())

    def on(devices, f, **how):
        mesh = Mesh(np.array(devices), ("x",))
        x = lambda: jax.device_put(np.arange(len(devices), dtype=np.float32), NamedSharding(mesh, P("x")))
        return jax.jit(jax.shard_map(f, mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=False), **how), x

    hold, one = on(here[:4], lambda v: jax.lax.psum(gate(v), "x"))
    add, two = on(here[1:7], lambda v: jax.lax.psum(v, "x") + v, donate_argnums=0)
    right = np.asarray(hold(one())).tolist(), np.asarray(add(add(two()))).tolist()
    for _ in range(3):
        x, y, before = one(), two(), pathways.stats()["queued"]
        late = threading.Event()
        timer = threading.Timer(60, lambda: (late.set(), gate.open()))
        gate.shut()
        timer.start()
        a, b = hold(x), add(y)
        c = add(b)
        assert not late.is_set() and not a.is_ready() and pathways.stats()["queued"] - before == 2
        assert y.is_deleted() and b.is_deleted() and not x.is_deleted() and not c.is_deleted()
        for dead in (y, b):
            for use in (np.asarray, memoryview, print, add, lambda v: v + 1, lambda v: v.block_until_ready()):
                try:
                    use(dead)
                    raise SystemExit(f"{use} takes an array that was donated")
                except (RuntimeError, ValueError, BufferError) as error:
                    assert "delete" in str(error) or isinstance(error, BufferError), error
        timer.cancel()
        gate.open()
        assert (np.asarray(a).tolist(), np.asarray(c).tolist()) == right
        assert y.is_deleted() and b.is_deleted()
    del a, b, c, x, y, dead

    def left():
        gc.collect()
        live = pathways.stats()["live"]
        return {k: live[k] for k in ("arrays", "buffers", "runs", "provenances") if live.get(k)}

    print("nothing left" if waiting.comes(lambda: not left()) else left())
"""


def test_a_run_that_donates_stands_in_the_queue(tmp_path):
    script = QUEUED.replace("LIBRARY", repr(str(gate.build(tmp_path))))
    done = fresh.run(textwrap.dedent(script), env={"PATHWAYS_ADDRESS": ""})
    assert done.stdout == "nothing left\n", done.stderr


# Of a source's two shards, the first is ready, and the second stands at the gate.
REGIONS = """
    import gate, threading, waiting
    import jax, numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

    here = jax.devices()
    gate = gate.Gate(LIBRARY, pathways._native.library_path())
    two, four = (NamedSharding(Mesh(np.array(here[at:at + n]), ("x",)), P("x")) for at, n in ((0, 2), (4, 4)))

    def second_waits(v):
        return jax.lax.cond(jax.lax.axis_index("x") == 1, gate, lambda v: v + 1, v)

    f = jax.jit(jax.shard_map(second_waits, mesh=two.mesh, in_specs=P("x"), out_specs=P("x"), check_vma=False))
    x = jax.device_put(np.arange(1 << 18, dtype=np.float32), two)
    want = np.asarray(f(x))
    late = threading.Event()
    timer = threading.Timer(60, lambda: (late.set(), gate.open()))
    gate.shut()
    timer.start()
    y = f(x)
    z = pathways.reshard(y, four)
    for shard in z.addressable_shards[:2]:
        shard.data.block_until_ready()
    assert not late.is_set() and not y.is_ready() and not z.is_ready()
    timer.cancel()
    gate.open()
    assert np.array_equal(np.asarray(z), want)
    gate.shut()
    z = pathways.reshard(f(x), four)
    del y, z, shard  # while the second region stands
    gate.open()
    print("nothing left" if waiting.comes(lambda: not pathways.stats()["live"].get("runs")) else pathways.stats())
"""


def test_a_region_moves_when_its_source_is_ready(tmp_path):
    script = REGIONS.replace("LIBRARY", repr(str(gate.build(tmp_path))))
    done = fresh.run(textwrap.dedent(script), env={"PATHWAYS_ADDRESS": ""})
    assert done.stdout == "nothing left\n", done.stderr
