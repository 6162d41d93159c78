"""Invalid input from users: each is an error with the right code that names the input, and the process continues."""

import gc
import json
import os
import re
import subprocess
from pathlib import Path

import fresh
import jax
import jax.numpy as jnp
import numpy as np
import pathways
import pytest
from conftest import ADDRESS
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from waiting import comes


@pytest.fixture(autouse=True)
def the_process_lives():
    """After each error, one device and all eight still compute."""
    yield
    assert float(jax.jit(lambda x: x + 1)(jnp.float32(1))) == 2
    mesh = Mesh(np.array(jax.devices()), ("x",))
    x = jax.device_put(np.ones(8, np.float32), NamedSharding(mesh, P("x")))
    assert float(jax.jit(jnp.sum)(x)) == 8


# --- the plugin ---


def elf_of_another_machine(path):
    """Writes the head of a shared library for a machine that is not this one."""
    machine = 183 if os.uname().machine == "x86_64" else 62  # AArch64, x86-64
    head = b"\x7fELF\x02\x01\x01" + bytes(9) + (3).to_bytes(2, "little") + machine.to_bytes(2, "little")
    path.write_bytes(head + (1).to_bytes(4, "little") + bytes(40) + bytes(4096))


def plugin_of_another_major(path):
    """Builds a plugin that does nothing but say that it speaks PJRT 7.3."""
    pjrt = Path(__file__).parent.parent / "device" / "pjrt"
    said = subprocess.run(
        [*os.environ.get("CC", "gcc").split(), "-shared", "-fPIC", f"-I{pjrt / 'abi'}", "-DMAJOR=7", "-DMINOR=3"]
        + ["-o", str(path), str(pjrt / "testdata" / "plugin.c")],
        capture_output=True,
        text=True,
    )
    assert said.returncode == 0, said.stderr


@pytest.mark.same_process("names the plugin by the environment of this process")
@pytest.mark.parametrize(
    "kind, code, said",
    [
        ("missing", "NOT_FOUND", "no such file"),
        ("text", "FAILED_PRECONDITION", "not a PJRT plugin|cannot load"),
        ("cut", "FAILED_PRECONDITION", "not a PJRT plugin|cannot load"),
        ("machine", "FAILED_PRECONDITION", "machine|arch|AArch64|aarch64|x86"),
        ("library", "FAILED_PRECONDITION", "GetPjrtApi"),
        ("major", "FAILED_PRECONDITION", r"speaks PJRT 7\.3.* this build speaks 0\.x"),
        ("folder", "FAILED_PRECONDITION|INVALID_ARGUMENT", "folder|directory|regular file"),
    ],
)
def test_a_plugin_that_cannot_be_used_is_named(tmp_path, kind, code, said):
    path = tmp_path / "libplugin.so"
    if kind == "text":
        path.write_text("no library\n" * 100)
    elif kind == "cut":
        with open(fresh.plugin_path(), "rb") as whole:
            path.write_bytes(whole.read(1 << 16))
    elif kind == "machine":
        elf_of_another_machine(path)
    elif kind == "library":
        path = Path(np._core._multiarray_umath.__file__).resolve()  # which errors name
    elif kind == "major":
        plugin_of_another_major(path)
    elif kind == "folder":
        path.mkdir()
    script = """
        import jax
        try:
            jax.devices()
        except Exception as error:
            print("JAX:", " ".join(str(error).split()))
        try:
            pathways.devices()
        except pathways.PathwaysError as error:
            print(error.code, "|", " ".join(error.message.split()))
    """
    done = fresh.run(script, env={"PATHWAYS_PLUGIN": str(path)})
    by_jax, ours = done.stdout.splitlines()
    assert re.match(rf"({code}) \| ", ours) and re.search(said, ours), ours
    assert str(path) in ours and str(path) in by_jax and ours.split(" | ")[0] in by_jax


def test_unknown_options_are_named():
    script = """
        import jax
        jax.config.update("jax_pjrt_client_create_options", {"no_such_option": 3})
        try:
            jax.devices()
        except Exception as error:
            print(" ".join(str(error).split()))
    """
    said = fresh.run(script).stdout
    assert "no_such_option" in said and "INVALID_ARGUMENT" in said and "devices" in said


@pytest.mark.embedded("sets the number of this process's devices")
@pytest.mark.parametrize("value, said", [(0, "1 to"), (-4, "1 to"), (10**6, "1 to"), ("some", "whole number")])
def test_numbers_of_devices_that_cannot_be(value, said):
    script = f"""
        import jax
        jax.config.update("jax_pjrt_client_create_options", {{"devices": {value!r}}})
        try:
            jax.devices()
        except Exception as error:
            print(" ".join(str(error).split()))
    """
    done = fresh.run(script)
    assert "INVALID_ARGUMENT" in done.stdout and "devices" in done.stdout and said in done.stdout
    assert str(value) in done.stdout


# --- programs and arguments, as any client of the C interface may give them ---

C_API = """
    import ctypes, json, os, sys
    import numpy as np
    import pathways
    import pypjrt
    from pypjrt import errors

    ADD = '''module @adds {
      func.func public @main(%a: tensor<3xf32>, %b: tensor<3xf32>) -> tensor<3xf32> {
        %0 = stablehlo.add %a, %b : tensor<3xf32>
        return %0 : tensor<3xf32>
      }
    }'''
    F32, S32, F64 = 11, 4, 12
    said = {}

    def tell(name, call):
        try:
            result = call()
            said[name] = ["OK", result if isinstance(result, str | int | list) else type(result).__name__]
        except errors.PjrtError as error:
            said[name] = [type(error).__name__, str(error)]

    address = os.environ.get("PATHWAYS_ADDRESS")
    client = pypjrt.Client.create(str(pathways._native.library_path()), options={} if address else {"devices": 3})
    def put(values, kind, device):
        return client.buffer_from_host(bytearray(values.tobytes()), kind, values.shape, device=device)

    with client.devices() as devices:
        one = np.ones(3, np.float32)
        for name, program in (("garbage", b"garbage"), ("bytes", bytes(range(256))), ("empty", b""),
                              ("cut", ADD[:100].encode()),
                              ("no such operation", ADD.replace("stablehlo.add", "stablehlo.nope").encode()),
                              ("wrong types", ADD.replace("%b: tensor<3xf32>", "%b: tensor<4xf32>").encode()),
                              ("no main", ADD.replace("@main", "@other").encode())):
            tell(name, lambda: client.compile(program))
        tell("serialized", lambda: client.deserialize_executable(b"not an executable"))
        add = client.compile(ADD)
        run = lambda *args: np.frombuffer(add.execute_sharded([list(args)])[0][0].to_host(), np.float32).tolist()
        good = lambda: put(one, F32, devices[0])
        tell("good", lambda: run(good(), good()))
        tell("one argument", lambda: run(good()))
        tell("three arguments", lambda: run(good(), good(), good()))
        tell("shape", lambda: run(good(), put(np.ones(4, np.float32), F32, devices[0])))
        tell("rank", lambda: run(good(), put(np.ones((3, 1), np.float32), F32, devices[0])))
        tell("dtype", lambda: run(good(), put(np.ones(3, np.int32), S32, devices[0])))
        tell("device", lambda: run(good(), put(one, F32, devices[2])))
        dead = good()
        # Through the table itself, since pypjrt's own handle would refuse before our library is asked.
        table = dead._plugin
        table.call("PJRT_Buffer_Delete", table.args("PJRT_Buffer_Delete_Args", buffer=dead.address))
        tell("deleted", lambda: run(good(), dead))
        tell("deleted read", lambda: dead.to_host())
        tell("too few bytes", lambda: client.buffer_from_host(bytearray(4), F32, (3,), device=devices[0]).to_host())
        tell("good again", lambda: run(good(), good()))
    print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def said():
    return json.loads(fresh.run(C_API, backend=None).stdout.splitlines()[-1])


@pytest.mark.parametrize("name", ["good", "good again"])
def test_a_right_call_through_c_works(said, name):
    assert said[name] == ["OK", [2.0, 2.0, 2.0]]


@pytest.mark.parametrize("name", ["garbage", "bytes", "empty", "cut", "no such operation", "wrong types", "no main"])
@pytest.mark.versions
def test_a_program_that_does_not_parse_is_refused(said, name):
    code, message = said[name]
    assert code == "InvalidArgument" and len(message) > 20
    named = {"garbage": "garbage", "no such operation": "stablehlo.nope", "no main": "main"}
    assert named.get(name, "") in message


@pytest.mark.versions
def test_bytes_that_are_no_executable_are_refused(said):
    assert said["serialized"][0] in ("InvalidArgument", "DataLoss", "Internal")


@pytest.mark.parametrize(
    "name, words",
    [
        ("one argument", ["1", "2"]),
        ("three arguments", ["3", "2"]),
        ("shape", ["f32[4]", "f32[3]"]),
        ("rank", ["f32[3,1]", "f32[3]"]),
        ("dtype", ["s32[3]", "f32[3]"]),
        ("deleted", ["deleted"]),
        ("deleted read", ["deleted"]),
    ],
)
def test_wrong_arguments_say_what_was_expected_and_what_was_given(said, name, words):
    code, message = said[name]
    assert code in ("InvalidArgument", "FailedPrecondition"), message
    for word in words:
        assert word in message
    if name in ("shape", "rank", "dtype"):
        assert "1" in message  # the number of the argument
        assert "adds" in message  # the name of the program


def test_an_argument_on_another_device_is_moved(said):
    assert said["device"] == ["OK", [2.0, 2.0, 2.0]]


# --- arrays ---


@pytest.mark.versions
def test_a_donated_array_used_again_is_named():
    x = jnp.arange(1024.0) + 0
    y = jax.jit(lambda v: v * 2, donate_argnums=0)(x)
    for use in (lambda: x + 1, lambda: np.asarray(x), lambda: jax.device_put(x, jax.devices()[1])):
        with pytest.raises((RuntimeError, ValueError), match="deleted|donated"):
            use()
    assert float(y[3]) == 6


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.versions
def test_an_array_that_is_donated_and_given_again_is_refused(n):
    everywhere = NamedSharding(Mesh(np.array(jax.devices()[:n]), ("x",)), P())
    for donated in (0, (0, 1)):
        f = jax.jit(lambda a, b: (a + b, a * 2), donate_argnums=donated)
        x = jax.device_put(np.ones(16, "f"), everywhere)
        for call in (f, pathways.program(f, donate_argnums=donated)):
            with pytest.raises((jax.errors.JaxRuntimeError, ValueError), match="donate.*give a copy"):
                jax.block_until_ready(call(x, x))


@pytest.mark.versions
def test_wrong_shapes_and_dtypes_are_refused_by_a_compiled_program():
    compiled = jax.jit(lambda a, b: a + b).lower(jnp.ones(3), jnp.ones(3)).compile()
    for wrong in (jnp.ones(4), jnp.ones(3, jnp.int32), jnp.ones((3, 1))):
        with pytest.raises(TypeError, match="compiled"):
            compiled(jnp.ones(3), wrong)
    with pytest.raises(TypeError):
        compiled(jnp.ones(3))


@pytest.mark.parametrize("log2", [43, 50])
@pytest.mark.versions
def test_a_computation_that_needs_too_much_memory(log2):
    huge = jax.jit(lambda x: jnp.full((1 << log2,), x))
    with pytest.raises(jax.errors.JaxRuntimeError, match="RESOURCE_EXHAUSTED") as caught:
        huge(jnp.float32(1)).block_until_ready()
    need = 4 << log2
    # What was needed, in bytes or in a unit.
    assert re.search(rf"{need}|{need >> 40}(\.0+)? ?T", str(caught.value)), caught.value


def test_too_much_memory_on_one_of_eight_devices_fails_the_whole():
    mesh = Mesh(np.array(jax.devices()), ("x",))
    out = NamedSharding(mesh, P("x"))
    with pytest.raises(jax.errors.JaxRuntimeError, match="RESOURCE_EXHAUSTED"):
        jax.jit(lambda: jnp.zeros((1 << 46,)), out_shardings=out)().block_until_ready()


def test_an_array_too_large_to_bring_in():
    huge = np.broadcast_to(np.float32(1), (1 << 42,))
    with pytest.raises(
        (jax.errors.JaxRuntimeError, MemoryError, ValueError), match="RESOURCE_EXHAUSTED|allocate|memory"
    ):
        jax.device_put(huge, jax.devices()[2]).block_until_ready()


@pytest.mark.versions
def test_nan_checks_raise_where_they_are_on():
    with jax.debug_nans(True):
        with pytest.raises(FloatingPointError, match="invalid value \\(nan\\)"):
            jax.jit(lambda x: jnp.log(x))(jnp.float32(-1))
    assert np.isnan(float(jax.jit(lambda x: jnp.log(x))(jnp.float32(-1))))
    with jax.debug_infs(True):
        with pytest.raises(FloatingPointError, match="inf"):
            jax.jit(lambda x: 1 / x)(jnp.float32(0))


@pytest.mark.versions
def test_checks_of_checkify_tell_what_failed():
    from jax.experimental import checkify

    def f(x, i):
        checkify.check(x > 0, "x must be above 0, is {x}", x=x)
        return jnp.log(x) + jnp.arange(5.0)[i]

    checked = jax.jit(checkify.checkify(f, errors=checkify.user_checks | checkify.index_checks))
    error, _ = checked(jnp.float32(2), 3)
    error.throw()
    with pytest.raises(checkify.JaxRuntimeError, match="x must be above 0, is -1"):
        checked(jnp.float32(-1), 3)[0].throw()
    with pytest.raises(checkify.JaxRuntimeError, match="out-of-bounds"):
        checked(jnp.float32(2), 9)[0].throw()


# --- callbacks ---


class Unlucky(Exception):
    pass


@pytest.mark.versions
def test_an_exception_in_a_callback_surfaces_with_its_text():
    def boom(x):
        raise Unlucky(f"the well is dry at {float(x)}")

    f = jax.jit(lambda x: jax.pure_callback(boom, jax.ShapeDtypeStruct((), jnp.float32), x) + 1)
    for _ in range(2):
        with pytest.raises(Exception, match="the well is dry at 2.0"):
            np.asarray(f(jnp.float32(2)))


def test_an_exception_reaches_everything_that_depends_on_it():
    def boom(x):
        raise Unlucky("the well is dry")

    f = jax.jit(lambda x: jax.pure_callback(boom, jax.ShapeDtypeStruct((4,), jnp.float32), x))
    with pytest.raises(Exception, match="the well is dry"):
        x = f(jnp.ones(4))
        y = jax.jit(lambda v: v + 1)(x)
        z = jax.device_put(y, jax.devices()[3])
        jax.block_until_ready(z)
    # Where the plugin runs ahead, each array made above carries the error, and carries it again.
    bad = []
    try:
        bad.append(f(jnp.ones(4)))
        bad.append(bad[0] * 2)
    except (jax.errors.JaxRuntimeError, ValueError) as error:
        assert "the well is dry" in str(error)
    for array in bad:
        for _ in range(2):
            with pytest.raises(Exception, match="the well is dry"):
                array.block_until_ready()


@pytest.mark.versions
def test_a_callback_with_the_wrong_shape_is_named():
    f = jax.jit(
        lambda x: jax.pure_callback(lambda v: np.zeros(7, np.float32), jax.ShapeDtypeStruct((4,), jnp.float32), x)
    )
    with pytest.raises(Exception, match=r"\(7,\)|\[7\]"):
        np.asarray(f(jnp.ones(4)))


# What fails, the line that dispatches it and the lines that wait for it: in three different places.
FAILING = """\
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

mesh = Mesh(np.array(jax.devices()), ("x",))
rows = NamedSharding(mesh, P("x"))

def draw(shard):
    raise ValueError("the well is dry")

@jax.jit
def overflowing_step(x):
    return jnp.full((1 << 43,), x)

@jax.jit
def overflowing_gang(x):
    return jax.lax.with_sharding_constraint(jnp.full((8, 1 << 43), x.sum()), rows)

@jax.jit
@jax.shard_map(mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=False)
def raising_gang(x):
    return jax.pure_callback(draw, jax.ShapeDtypeStruct(x.shape, x.dtype), x)

one, all_ = jnp.float32(1), jax.device_put(np.ones(8, np.float32), rows)
said = {}
for name, step in {
    "overflowing_step": lambda: overflowing_step(one),  # dispatches overflowing_step
    "overflowing_gang": lambda: overflowing_gang(all_),  # dispatches overflowing_gang
    "raising_gang": lambda: raising_gang(all_),  # dispatches raising_gang
}.items():
    try:
        y = step()
        y.block_until_ready()
    except Exception as error:
        said[name] = str(error)
"""


@pytest.mark.versions
def test_an_error_names_the_line_of_the_user(tmp_path):
    path = tmp_path / "training.py"
    path.write_text(FAILING)
    run = f"import json, runpy; print(json.dumps(runpy.run_path({str(path)!r})['said']), flush=True)"
    said = json.loads(fresh.run(run).stdout)
    lines = {line.split()[-1]: n for n, line in enumerate(FAILING.splitlines(), 1) if " # dispatches " in line}
    assert said.keys() == lines.keys() and len(lines) == 3
    worker = r", on device \d of worker [\w-]+" if ADDRESS else ""
    for name, line in lines.items():
        assert re.search(rf" \[jit_{name}, called at {re.escape(str(path))}:{line}{worker}\]$", said[name]), said[name]
        code, what = ("INTERNAL", "the well is dry") if name == "raising_gang" else ("RESOURCE_EXHAUSTED", "emory")
        assert said[name].startswith(f"{code}: ") and what in said[name]


# Another process, since JAX waits at its end for the effects of what has failed, and says so.
UNDER_WAY = """
    import contextlib, json
    import jax, jax.numpy as jnp, numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

    devices = jax.devices()
    mesh = Mesh(np.array(devices), ("x",))
    rows = NamedSharding(mesh, P("x"))
    x = jax.device_put(np.ones((8, 64, 64), np.float32) * np.arange(8.0)[:, None, None], rows)
    slow = jax.jit(lambda v: v + 0 * jax.lax.fori_loop(0, 300, lambda _, w: jnp.tanh(w @ w), v))
    more = jax.jit(lambda v: v * 2)

    def each(f, **how):
        return jax.jit(jax.shard_map(f, mesh=mesh, in_specs=P("x"), out_specs=P("x"), **how))

    # Each device by itself: in a collective the others would wait for the one that has failed.
    part = each(lambda v: v.reshape(-1)[:4])

    def draw(shard):
        if shard[0, 0, 0] > 3:
            raise ValueError("the well is dry")
        return np.asarray(shard)

    kinds = {
        "memory": jax.jit(lambda v: jnp.full((8, 1 << 42), v[0, 0, 0]), out_shardings=rows),
        "callback": each(lambda v: jax.pure_callback(draw, jax.ShapeDtypeStruct(v.shape, v.dtype), v), check_vma=False),
    }
    said, made = {kind: [] for kind in kinds}, {}
    for kind, fails in kinds.items():
        arrays = made[kind] = []
        try:
            arrays.append(fails(slow(x)))  # the line
            arrays.append(part(arrays[0]))
            arrays.append(more(arrays[1]))
            arrays.append(jax.device_put(arrays[1], devices[3]))
            arrays.append(pathways.reshard(arrays[1], devices[5]))
        except Exception as error:
            said[kind].append(str(error))  # it had failed by then
        for array in arrays * 2:
            try:
                array.block_until_ready()
            except Exception as error:
                said[kind].append(str(error))
            else:
                said[kind].append("OK")
    # Devices with good shards would wait 40 s for the others, and then XLA ends the process.
    try:
        jax.jit(jnp.sum)(made["callback"][0]).block_until_ready()
    except Exception as error:
        said["callback"].append(str(error))
    assert np.asarray(more(x))[1, 0, 0] == 2
    print(json.dumps(said), flush=True)
"""


@pytest.mark.embedded("on a cluster an error of work under way names device and worker")
@pytest.mark.versions
def test_errors_of_work_under_way_keep_their_code_and_name_the_line():
    line = 1 + fresh.source(UNDER_WAY).splitlines().index("            arrays.append(fails(slow(x)))  # the line"[4:])
    said = json.loads(fresh.run(UNDER_WAY).stdout)
    for kind, code, text in (("memory", "RESOURCE_EXHAUSTED", "emory"), ("callback", "INTERNAL", "the well is dry")):
        assert len(said[kind]) >= 3
        for error in said[kind]:
            assert error.startswith(f"{code}: ") and text in error and f", called at <string>:{line}]" in error, error


@pytest.mark.embedded("counts what this process's backend remembers of runs")
def test_what_is_remembered_of_runs_under_way_is_bounded():
    seen = []
    step = jax.jit(
        lambda v: v + jax.pure_callback(lambda w: np.asarray(w) * 0, jax.ShapeDtypeStruct((4,), "float32"), v)
    )
    x = jnp.zeros(4)
    for i in range(500):
        x = step(x)
        if i % 50 == 0:
            seen.append(pathways.stats()["live"]["provenances"])
    assert np.asarray(x).tolist() == [0] * 4
    assert max(seen) <= 100, seen
    del x
    gc.collect()
    assert comes(lambda: pathways.stats()["live"]["provenances"] == 0), pathways.stats()["live"]


def test_the_errors_of_this_file_leave_nothing_alive():
    def gone():
        gc.collect()
        live = pathways.stats()["live"]
        return not any(live.get(name, 0) for name in ("errors", "runs", "provenances"))

    assert comes(gone), pathways.stats()["live"]
