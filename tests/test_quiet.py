"""A correct script prints its own output, and nothing else."""

import re
from pathlib import Path

import fresh
import pytest

pytestmark = pytest.mark.newest

README = Path(__file__).parent.parent / "README.md"

CACHED = """\
    import jax
    import jax.numpy as jnp

    jax.config.update("jax_compilation_cache_dir", {path!r})
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    print(jax.jit(lambda x: jnp.sin(x @ x).sum())(jnp.ones((64, 64))))
    """


def test_a_capture_prints_nothing():
    (figure_two,) = (b for b in re.findall(r"```python\n(.*?)```", README.read_text(), re.S) if "add_slice" in b)
    done = fresh.run(figure_two.replace("pathways.init(devices=8)\n", ""), imports=True)
    assert done.stdout == "[3. 5.] [2. 4.]\n"
    assert done.stderr == ""


def test_the_persistent_cache_prints_nothing_when_it_is_used(tmp_path):
    code = CACHED.format(path=str(tmp_path))
    first, second = (fresh.run(code, imports=True) for _ in range(2))
    assert list(tmp_path.glob("*-cache"))
    assert first.stdout == second.stdout != ""
    assert first.stderr == second.stderr == ""


# The second computation stands in the queue, for devices that the first holds for a while.
QUEUED = """
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

here = jax.devices()

def on(devices, f):
    mesh = Mesh(np.array(devices), ("x",))
    x = jax.device_put(np.ones((len(devices), 30000), np.float32), NamedSharding(mesh, P("x")))
    f = jax.shard_map(f, mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=False)
    return jax.jit(f).lower(x).compile(), x

def long(v):
    return jax.lax.psum(jax.lax.fori_loop(0, 1000, lambda _, v: jnp.sin(v) + 1, v), "x")

first, x = on(here[:4], long)
second, y = on(here[1:7], lambda v: (jax.lax.psum(v, "x") + v, v))
a, b = first(x), second(y)
assert pathways.stats()["queued"] == 1
"""
SHUTDOWN = """
pathways.shutdown()
try:
    jax.block_until_ready(b)
except jax.errors.JaxRuntimeError as err:
    print("before this computation had its turn" in str(err))
"""


@pytest.mark.embedded("the queue is this process's")
@pytest.mark.parametrize("end", [SHUTDOWN, ""], ids=["shutdown", "exit"])
def test_the_end_of_a_session_prints_nothing_of_what_is_queued(end):
    done = fresh.run(QUEUED + end, env={"PATHWAYS_ADDRESS": ""}, imports=True)
    assert done.stdout == ("True\n" if end else "")
    assert done.stderr == ""


@pytest.mark.embedded("names a cluster of its own")
def test_a_cluster_inside_the_process_prints_nothing_and_leaves_the_environment_alone():
    script = """
        import os
        import jax, jax.numpy as jnp, numpy as np
        from jax.sharding import NamedSharding, PartitionSpec as P

        before = dict(os.environ)
        devices = jax.devices()
        assert dict(os.environ) == before
        split = NamedSharding(jax.make_mesh((2,), ("x",), devices=devices), P("x"))
        for device in devices:
            jax.jit(lambda x: x + 1)(jax.device_put(np.ones(4), device)).block_until_ready()
        print(float(jax.jit(lambda x: jnp.sin(x).sum() * 0 + 1)(jax.device_put(np.ones((2, 64)), split))))
        print(sorted({device.worker for device in devices}))
        """
    done = fresh.run(script, env={"PATHWAYS_ADDRESS": "local:2x1", "PATHWAYS_DEVICES": ""})
    assert done.stdout == "1.0\n['worker-0', 'worker-1']\n"
    assert done.stderr == ""
