"""What is particular to GPUs, on one NVIDIA GPU, embedded and on a cluster. `make test-gpu` runs it.

Elsewhere, everything here is skipped.
"""

import contextlib
import signal
import subprocess
import sys
import textwrap

import conftest
import fresh
import jax
import jax.numpy as jnp
import numpy as np
import pathways
import pytest
from jax import lax

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not conftest.GPU, reason="no NVIDIA GPU here"),
    # The CUDA plugin of JAX says so of Pallas' Triton backend, and torch of its own parts.
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]

# A GPU's memory is for several processes here.
SMALL = {"XLA_CLIENT_MEM_FRACTION": "0.2", "PATHWAYS_DEVICES": "1"}
# What a program computes with the libraries that CUDA brings: cuBLAS, cuSOLVER, cuFFT, cuDNN.
LIBRARIES = """
import jax, jax.numpy as jnp, numpy as np
from jax import lax
a = jax.random.normal(jax.random.key(0), (64, 64))
s = a @ a.T + 64 * jnp.eye(64)
results = [
    jax.jit(f)(s)
    for f in (jnp.linalg.cholesky, jnp.linalg.eigvalsh, jnp.linalg.inv, lambda s: jnp.linalg.qr(s)[1],
              lambda s: jnp.linalg.svd(s)[1], lambda s: jnp.abs(jnp.fft.fft(s)), jnp.sort)
]
x = jax.random.normal(jax.random.key(1), (2, 16, 16, 8))
k = jax.random.normal(jax.random.key(2), (3, 3, 8, 4))
results.append(lax.conv_general_dilated(x, k, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")))
"""


def script(code, **env):
    """Runs a script on the GPU in a process of its own. Returns what it printed, and fails if it printed an error."""
    done = fresh.run(code, env=SMALL | env)
    assert not done.stderr, done.stderr
    return done.stdout


def on_cluster(code, *options):
    """Runs a script on a cluster of one worker with the GPU. Returns what it printed."""
    command = [sys.executable, "-m", "pathways", "up", "--cluster", "gpu", *options, "--"]
    done = subprocess.run(
        [*command, sys.executable, "-c", "import pathways\n" + textwrap.dedent(code)],
        env=fresh.environment(env=SMALL), capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@contextlib.contextmanager
def two_workers(directory):
    """A cluster of two workers that share the first GPU, which `pathways up` would not start. Gives its environment."""
    env = fresh.environment(env=SMALL | {"PATHWAYS_DIR": str(directory), "XLA_CLIENT_MEM_FRACTION": "0.1"})
    worker = ["worker", "--devices", "1", "--heartbeat", "200ms", "--name"]
    commands = [["controller", "--heartbeat", "200ms"], [*worker, "worker-0"], [*worker, "worker-1"]]
    with contextlib.ExitStack() as running:
        for arguments in commands:
            process = subprocess.Popen([sys.executable, "-m", "pathways", *arguments], env=env)
            running.callback(process.wait)
            running.callback(process.send_signal, signal.SIGTERM)
        yield env | {"PATHWAYS_ADDRESS": f"unix:{directory}/default/controller.sock", "WORKER": str(process.pid)}


@pytest.mark.parametrize("name", ["gpu", "cuda", "pathways"])
def test_devices_are_found_by_every_name_of_theirs(name):
    assert jax.devices(name) == jax.devices() and jax.default_backend() == "gpu"


def test_a_device_says_what_programs_choose_by():
    device = jax.devices()[0]
    assert float(device.compute_capability) >= 5 and device.core_count > 0


def test_libraries_of_cuda_compute_what_they_do_in_stock_jax():
    code = LIBRARIES + "np.savez(path, *results)\n"
    paths = {}
    for side, imported in (("pathways", "import pathways\n"), ("stock", "")):
        paths[side] = f"/tmp/pathways-gpu-{side}.npz"
        env = {"JAX_PLATFORMS": "cuda,cpu"} if side == "stock" else {}
        fresh.run(f"{imported}path = {paths[side]!r}\n{code}", backend=None, env=SMALL | env)
    ours, stock = (np.load(paths[side]) for side in ("pathways", "stock"))
    for name in stock.files:
        np.testing.assert_allclose(ours[name], stock[name], rtol=1e-5, atol=1e-5)


def test_attention_by_cudnn_is_near_xlas():
    q = jax.random.normal(jax.random.key(2), (2, 128, 4, 64), jnp.bfloat16)
    mine, plain = (jax.nn.dot_product_attention(q, q, q, implementation=how) for how in ("cudnn", "xla"))
    np.testing.assert_allclose(np.float32(mine), np.float32(plain), atol=0.03)


def test_a_kernel_of_pallas_adds():
    from jax.experimental import pallas as pl

    def add(x, y, out):
        out[...] = x[...] + y[...]

    x = jnp.arange(1024.0)
    y = jax.jit(lambda x: pl.pallas_call(add, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x, x))(x)
    np.testing.assert_array_equal(y, 2 * x)


def test_callbacks_run_in_python():
    seen = []

    @jax.jit
    def f(x):
        jax.debug.callback(lambda v: seen.append(float(v)), x[0])
        y = jax.pure_callback(lambda x: x * 3, x, x)
        return y, jax.experimental.io_callback(lambda y: np.float32(y.sum()), x[0], y, ordered=True)

    y, total = f(jnp.arange(1.0, 5))
    jax.effects_barrier()
    assert np.asarray(y).tolist() == [3, 6, 9, 12] and float(total) == 30 and seen == [1]


def test_torch_shares_arrays_both_ways():
    torch = pytest.importorskip("torch")
    tensor = torch.arange(1024, dtype=torch.float32, device="cuda")
    x = jnp.from_dlpack(tensor)
    assert x.unsafe_buffer_pointer() == tensor.data_ptr()
    y = jax.jit(lambda x: 2 * x)(x)
    back = torch.from_dlpack(y)
    assert back.data_ptr() == y.unsafe_buffer_pointer() and float(back.sum()) == 1023 * 1024


def test_memory_of_the_host_is_a_place():
    device = jax.devices()[0]
    there = jax.sharding.SingleDeviceSharding(device, memory_kind="pinned_host")
    x = jax.device_put(jnp.arange(1024.0), there)
    assert x.sharding.memory_kind == "pinned_host"
    back = jax.device_put(x, jax.sharding.SingleDeviceSharding(device, memory_kind="device"))
    np.testing.assert_array_equal(back, np.arange(1024.0))
    assert jax.jit(lambda x: 2 * x, out_shardings=there)(back).sharding.memory_kind == "pinned_host"


def test_donated_memory_is_used_again():
    x = jnp.zeros(1 << 20)
    at = x.unsafe_buffer_pointer()
    y = jax.jit(lambda x: x + 1, donate_argnums=0)(x)
    assert x.is_deleted() and y.unsafe_buffer_pointer() == at


def test_memory_that_runs_out_is_an_error_with_the_line():
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"RESOURCE_EXHAUSTED.*test_gpu\.py"):
        jax.block_until_ready(jax.jit(lambda: jnp.zeros(100 << 30, jnp.float32))())


def test_exported_programs_run():
    exported = jax.export.export(jax.jit(lambda x: x + 1))(jnp.zeros(4))
    assert exported.platforms == ("cuda",)
    np.testing.assert_array_equal(jax.export.deserialize(exported.serialize()).call(jnp.zeros(4)), jnp.ones(4))


def test_arrays_of_the_cpu_and_the_gpu_copy_to_each_other():
    cpu = jax.devices("cpu")[0]
    x = jax.device_put(np.arange(5.0, dtype=np.float32), cpu)
    y = jax.device_put(jax.device_put(x, jax.devices()[0]) + 1, cpu)
    assert y.device == cpu and np.asarray(y).tolist() == [1, 2, 3, 4, 5]


def test_a_loop_on_the_device_and_programs_played_together():
    total = lax.scan(lambda c, v: (c + v, c), 0.0, jnp.arange(100.0))[0]
    assert float(total) == 4950

    @pathways.program
    def twice(x):
        add = jax.jit(lambda x: x + 1)
        return add(add(x))

    assert float(twice(jnp.float32(1))) == 3


def test_a_profile_has_the_plane_of_the_gpu_once_without_warnings():
    out = script("""
        import glob, tempfile, jax, jax.numpy as jnp
        with tempfile.TemporaryDirectory() as d:
            with jax.profiler.trace(d):
                a = jnp.ones((512, 512))
                jax.block_until_ready(a @ a)
            (path,) = glob.glob(d + "/**/*.xplane.pb", recursive=True)
            print([p.name for p in jax.profiler.ProfileData.from_file(path).planes])
    """)
    assert out.count("/device:GPU:0") == 1, out


def test_variables_of_jax_set_how_much_memory_is_taken():
    limit = "import jax; print(jax.devices()[0].memory_stats()['bytes_limit'])"
    fifth, tenth = (int(script(limit, XLA_CLIENT_MEM_FRACTION=part)) for part in ("0.2", "0.1"))
    assert 1.9 < fifth / tenth < 2.1


def test_a_cluster_computes_with_the_libraries_of_cuda_and_says_what_its_devices_are():
    out = on_cluster(f"""
{LIBRARIES}
jax.block_until_ready(results)
device = jax.devices("gpu")[0]
print(device.compute_capability, device.core_count, device.worker)
with jax.default_matmul_precision("highest"):
    np.testing.assert_allclose(results[2] @ s, np.eye(64), atol=1e-3)
    np.testing.assert_allclose(results[0] @ results[0].T, s, rtol=1e-3, atol=1e-3)
""")
    capability, cores, worker = out.split()
    assert capability == jax.devices()[0].compute_capability and int(cores) == jax.devices()[0].core_count
    assert worker == "worker-0"


def test_more_devices_than_gpus_are_refused():
    done = fresh.run("import jax; jax.devices()", env=SMALL | {"PATHWAYS_DEVICES": "99"}, check=False)
    assert done.returncode and "99 cuda devices asked for" in done.stderr, done.stderr


def test_callbacks_of_a_cluster_are_refused_with_what_to_do():
    out = on_cluster("""
        import jax, jax.numpy as jnp
        try:
            jax.jit(lambda x: jax.debug.print("{}", x))(jnp.zeros(2))
        except jax.errors.JaxRuntimeError as error:
            print(error)
    """)
    assert "UNIMPLEMENTED" in out and "GPUs of a cluster" in out, out


def test_more_workers_than_gpus_are_refused():
    done = subprocess.run(
        [sys.executable, "-m", "pathways", "up", "--cluster", "gpu", "--workers", "99"],
        env=fresh.environment(env=SMALL), capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 2 and "99 workers" in done.stderr, done.stderr


def test_a_long_array_goes_in_pieces_and_takes_little_host_memory(tmp_path_factory):
    code = """
        import os, re
        import jax, jax.numpy as jnp, numpy as np, pathways
        from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

        def peak():
            with open(f"/proc/{os.environ['WORKER']}/status") as status:
                return int(re.search(r"VmHWM:\\s+(\\d+) kB", status.read())[1]) << 10

        pathways.init(devices=2, wait=120)
        here, there = sorted(jax.devices(), key=lambda device: device.worker)
        make = jax.jit(lambda n: jnp.arange(n * 4096, dtype=jnp.uint32).reshape(n, 4096), static_argnums=0,
                       out_shardings=SingleDeviceSharding(here))
        jax.device_put(make(1 << 10), there).block_until_ready()  # what the plugin and the pool take once
        before = peak()
        x = make(1 << 15)
        y = jax.device_put(x, there).block_until_ready()
        assert peak() - before < x.nbytes // 4, (before, peak())
        assert int(jax.jit(lambda y: jnp.sum(y != jnp.arange(y.size, dtype=y.dtype).reshape(y.shape)))(y)) == 0

        mesh = Mesh([here, there], "d")
        rows, columns = (NamedSharding(mesh, PartitionSpec(*spec)) for spec in (("d",), (None, "d")))
        part = make(1 << 13)
        for sharding in (rows, columns, rows, NamedSharding(mesh, PartitionSpec())):
            part = pathways.reshard(part, sharding)
            assert np.array_equal(part, np.arange(part.size, dtype=np.uint32).reshape(part.shape)), sharding
        pathways.shutdown()
    """
    with two_workers(tmp_path_factory.mktemp("long")) as env:
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(code)], env=env, capture_output=True, text=True, timeout=300
        )
    assert done.returncode == 0, done.stdout + done.stderr


def test_workers_send_each_other_arrays_and_go_on_when_one_is_lost(tmp_path_factory):
    code = """
        import os, signal, subprocess, sys
        import jax, jax.numpy as jnp, numpy as np, pathways

        pathways.init(devices=2, wait=120)
        here, there = sorted(jax.devices(), key=lambda device: device.worker)
        events = pathways.events()
        for dtype in (np.float32, np.int8, np.complex64, bool, jnp.bfloat16, jnp.int4, jnp.float8_e4m3fn):
            for size in (0, 1, 1000, 3 << 20):
                host = (np.arange(size) % 7).astype(dtype)
                x = jax.device_put(jax.device_put(jax.device_put(host, here), there), here)
                assert np.array_equal(np.asarray(x).astype(np.float32), host.astype(np.float32)), (dtype, size)

        def stage(w, x):
            return jnp.tanh(x @ w)

        def loss(y, to):
            return jnp.mean((y - to) ** 2)

        ws = [(np.eye(64) * k).astype(np.float32) for k in (0.5, 0.25)]
        xs, to = np.random.default_rng(0).normal(size=(2, 32, 64)).astype(np.float32)
        stages = [(stage, ws[0], here), (stage, ws[1], there)]
        pipe = pathways.pipeline(stages, microbatches=4, loss=loss, schedule="zb-h1")

        @pathways.program
        def step(params, xs, to):
            value, gradients = pipe.value_and_grad(xs, to, params=params)
            return value, [w - 0.5 * g for w, g in zip(params, gradients)]

        def train():
            params = [jax.device_put(w, d) for w, d in zip(ws, (here, there))]
            for _ in range(3):
                value, params = step(params, xs, to)
            return [np.asarray(x) for x in (value, *params)]

        def whole(ws):
            return loss(stage(ws[1], stage(ws[0], xs)), to)

        first, plain = train(), [jnp.asarray(w) for w in ws]
        for _ in range(3):
            value, gradients = jax.value_and_grad(whole)(plain)
            plain = [w - 0.5 * g for w, g in zip(plain, gradients)]
        for one, other in zip(first, (value, *plain)):
            np.testing.assert_allclose(one, other, rtol=0.02, atol=1e-3)

        kept, lost = jax.device_put(xs, here), jax.device_put(xs, there).block_until_ready()
        os.kill(int(os.environ["WORKER"]), signal.SIGKILL)
        events.wait("lost", 60)
        new = ["worker", "--devices", "1", "--heartbeat", "200ms", "--name", "worker-1"]
        new = subprocess.Popen([sys.executable, "-m", "pathways", *new])
        try:
            events.wait("rebound", 120)
            assert np.array_equal(np.asarray(kept), xs)
            try:
                raise SystemExit(f"an array of the lost worker is still there: {np.asarray(lost)}")
            except jax.errors.JaxRuntimeError as error:
                assert "DATA_LOSS" in str(error), error
            assert all(np.array_equal(a, b) for a, b in zip(train(), first))
        finally:
            pathways.shutdown()
            new.terminate()
            new.wait()
    """
    with two_workers(tmp_path_factory.mktemp("two")) as env:
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(code)], env=env, capture_output=True, text=True, timeout=300
        )
    assert done.returncode == 0, done.stdout + done.stderr
