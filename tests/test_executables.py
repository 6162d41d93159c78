"""Compiled programs: what they report, and how they are kept (ahead of time, in a cache, exported, serialized)."""

import json
import pickle

import fresh
import jax
import jax.numpy as jnp
import numpy as np
import pathways  # noqa: F401
import pytest
from jax.experimental import serialize_executable
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

pytestmark = pytest.mark.newest


def sharded(*shape):
    mesh = Mesh(np.array(jax.devices()), ("x",))
    return jax.device_put(np.ones(shape, np.float32), NamedSharding(mesh, P("x")))


def test_functions_compile_ahead_of_time():
    lowered = jax.jit(lambda a, b: jnp.tanh(a @ b)).lower(
        jax.ShapeDtypeStruct((4, 8), jnp.float32), jax.ShapeDtypeStruct((8, 2), jnp.float32)
    )
    assert "stablehlo.dot_general" in lowered.as_text()
    compiled = lowered.compile()
    assert "HloModule" in compiled.as_text() and "tanh" in compiled.as_text()
    a, b = np.ones((4, 8), np.float32), np.full((8, 2), 0.1, np.float32)
    np.testing.assert_allclose(np.asarray(compiled(a, b)), np.tanh(a @ b), rtol=1e-5)
    memory = compiled.memory_analysis()
    assert memory.argument_size_in_bytes == 4 * (32 + 16)
    assert memory.output_size_in_bytes == 4 * 8
    assert memory.generated_code_size_in_bytes >= 0
    with pytest.raises(TypeError, match="float32"):
        compiled(np.ones((4, 9), np.float32), b)


def test_arrays_that_were_never_placed_go_where_a_compiled_program_runs():
    devices = jax.devices()
    there = NamedSharding(Mesh(np.array(devices[2:4]), ("x",)), P("x"))
    shape = jax.ShapeDtypeStruct((1 << 16,), jnp.float32, sharding=there)  # so large that a plugin may use it in place
    compiled = jax.jit(lambda v: v * 2 + 1, donate_argnums=0, out_shardings=there).lower(shape).compile()
    x = np.arange(1 << 16, dtype=np.float32)
    with jax.default_device(devices[5]):
        elsewhere = jnp.arange(1 << 16, dtype=jnp.float32)
    for given in (x, jnp.array(x), elsewhere, x.astype(np.float64)):
        for _ in range(2):  # what is donated is the copy there
            y = compiled(given)
            assert y.sharding == there
            np.testing.assert_array_equal(y, x * 2 + 1)
        np.testing.assert_array_equal(given, x)
    with pytest.raises(ValueError, match="Required sharding: NamedSharding"):
        compiled(jax.device_put(x, devices[0]))


def test_layouts_and_shardings_of_a_compiled_program():
    x = sharded(8, 4)
    compiled = jax.jit(lambda v: (v + 1, v.sum())).lower(x).compile()
    (given,), _ = compiled.input_shardings
    assert given.is_equivalent_to(x.sharding, 2)
    rows, total = compiled.output_shardings
    assert rows.is_equivalent_to(x.sharding, 2) and total.is_fully_replicated
    assert [s.device for s in compiled(x)[0].addressable_shards] == jax.devices()


@pytest.mark.parametrize("precision", ["highest", "default"])
def test_compiler_options_are_passed_on(precision):
    f = jax.jit(lambda a: jnp.dot(a, a, precision=precision))
    options = {"xla_cpu_enable_fast_math": True, "xla_backend_optimization_level": 1}
    compiled = f.lower(jnp.eye(4)).compile(compiler_options=options)
    np.testing.assert_array_equal(np.asarray(compiled(jnp.eye(4))), np.eye(4))
    with pytest.raises(Exception, match="xla_no_such_option"):
        f.lower(jnp.eye(4)).compile(compiler_options={"xla_no_such_option": True})


@pytest.mark.parametrize("shape", [(3,), (8, 2)], ids=["one device", "eight devices"])
def test_serialized_executables_load_and_run(shape):
    x = jnp.ones(shape) if shape[0] == 3 else sharded(*shape)
    compiled = jax.jit(lambda v: {"y": v * 4 + v.sum()}).lower(x).compile()
    payload, in_tree, out_tree = serialize_executable.serialize(compiled)
    assert len(payload) > 100
    devices = list(x.sharding._device_assignment)
    loaded = serialize_executable.deserialize_and_load(payload, in_tree, out_tree, execution_devices=devices)
    np.testing.assert_array_equal(np.asarray(loaded(x)["y"]), np.asarray(compiled(x)["y"]))


def test_a_damaged_executable_is_refused():
    compiled = jax.jit(lambda v: v * 4).lower(jnp.ones(3)).compile()
    payload, in_tree, out_tree = serialize_executable.serialize(compiled)
    with pytest.raises(Exception):  # noqa: B017 pickle, zlib or the client, by where the damage sits
        serialize_executable.deserialize_and_load(payload[: len(payload) // 2], in_tree, out_tree)
    assert float(jax.jit(lambda v: v * 4)(jnp.ones(3))[0]) == 4


def test_export_serialize_and_call_again():
    pytest.importorskip("flatbuffers", reason="jax.export writes its bytes with flatbuffers")
    from jax import export

    f = jax.jit(lambda x, y: jnp.sin(x) @ y)
    exported = export.export(f)(jax.ShapeDtypeStruct((3, 4), jnp.float32), jax.ShapeDtypeStruct((4, 2), jnp.float32))
    assert exported.platforms == ("cpu",)
    again = export.deserialize(exported.serialize())
    x, y = np.ones((3, 4), np.float32), np.full((4, 2), 2, np.float32)
    np.testing.assert_array_equal(np.asarray(again.call(x, y)), np.asarray(f(x, y)))


def test_functions_exported_for_any_size_run():
    from jax import export

    (n,) = export.symbolic_shape("n")
    exported = export.export(jax.jit(lambda x: x.sum() + x.shape[0]))(jax.ShapeDtypeStruct((n,), jnp.float32))
    assert [float(exported.call(np.ones(k, np.float32))) for k in (1, 5)] == [2.0, 10.0]


CACHED = """
    import json, sys
    import jax, jax.numpy as jnp, numpy as np
    from jax._src import monitoring
    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

    events = []
    monitoring.register_event_listener(lambda name, **_: events.append(name))
    jax.config.update("jax_compilation_cache_dir", sys.stdin.readline().strip())
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    mesh = Mesh(np.array(jax.devices()), ("x",))
    x = jax.device_put(np.arange(16, dtype=np.float32), NamedSharding(mesh, P("x")))
    a = np.asarray(jax.jit(lambda v: v * 2 + v.sum())(x))
    b = np.asarray(jax.jit(lambda v: jnp.sort(-v))(np.arange(5.0)))
    print(json.dumps({"hits": events.count("/jax/compilation_cache/cache_hits"),
                      "misses": events.count("/jax/compilation_cache/cache_misses"),
                      "values": [a.tolist(), b.tolist()]}))
"""


def cached_run(directory, backend="pathways"):
    process = fresh.start(CACHED, backend)
    fresh.tell(process, f"{directory}")
    done = fresh.finish(process)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_the_persistent_cache_serves_the_second_process(tmp_path):
    first = cached_run(tmp_path)
    assert first["hits"] == 0 and first["misses"] >= 2
    assert list(tmp_path.iterdir())
    second = cached_run(tmp_path)
    assert second["misses"] == 0 and second["hits"] == first["misses"]
    assert second["values"] == first["values"]


def test_the_persistent_cache_is_not_shared_with_another_client(tmp_path):
    cached_run(tmp_path, "jaxlib")
    ours = cached_run(tmp_path)
    assert ours["hits"] == 0 and ours["misses"] >= 2


def test_programs_pickle_as_stock():
    x = jnp.arange(3.0)
    y, device_free = pickle.loads(pickle.dumps((x, np.asarray(x))))
    assert y.devices() == {jax.devices()[0]}
    np.testing.assert_array_equal(np.asarray(y), device_free)


def test_fingerprints_tell_programs_apart():
    client = jax.devices()[0].client
    assert client.platform == "cpu"
    stock = jax.devices("cpu")[0].client
    assert client.platform_version != stock.platform_version
    assert "PJRT C API" in client.platform_version
