"""What pathways.mpmd refuses, and what the errors of its fragments say."""

import re
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pathways
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from pathways import mpmd
from pathways.mpmd import _shardy
from steps import EMBEDDED, block, config, infer, near, numbers, placed, train

HUGE = (1 << 20, 1 << 19)  # float32: 2 TiB, which no machine has


@EMBEDDED
@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("from jax import flat_trees_of_tomorrow", f"another version of JAX than {jax.__version__}: use a commit"),
        ("import a_package_that_nobody_installed", "a_package_that_nobody_installed.*set SHARDY_PYTHON, and install"),
    ],
)
def test_a_checkout_that_cannot_be_imported_says_what_to_do(tmp_path, monkeypatch, line, text):
    for name in [name for name in sys.modules if name.partition(".")[0] == "shardy"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "path", [*sys.path])
    at = tmp_path.joinpath(*_shardy.NAME.split("."))
    at.mkdir(parents=True)
    (at / "__init__.py").write_text(line)
    with pytest.raises(pathways.PathwaysError, match=text) as error:
        mpmd.shardy(tmp_path)
    assert error.value.code == "NOT_FOUND"
    for name in [name for name in sys.modules if name.partition(".")[0] == "shardy"]:
        del sys.modules[name]


@EMBEDDED
@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"schedule": "zigzag"}, "pipeline_schedule is 'zigzag'; expected one of GPipe, 1F1B"),
        (
            {"input_mesh_assignment": ("m0", "m7")},
            "input_mesh_assignment names a mesh 'm7'; expected one of 'm0', 'm1'",
        ),
        ({"input_mesh_assignment": ("m0#pinned_host", None)}, "expected a mesh without a memory kind"),
        ({"partitioning_options": {"speed": True}}, "'speed'; expected some of mpmd_infer_transfers"),
        ({"partitioning_options": {"mpmd_infer_transfers": 1}}, "is 1; expected True or False"),
        ({"schedule": "zb-h1", "partitioning_options": {"mpmd_split_bwd_fragments": False}}, "ZeroBubbleH1 needs"),
        ({"schedule": "1f1b", "partitioning_options": {"mpmd_pipeline_schedule": "gpipe"}}, "1F1B, and .* name GPipe"),
        ({"read_input_output_mesh_from_shardings": True, "output_mesh_assignment": "m0"}, "pass one of them"),
    ],
)
def test_configs_that_are_refused(devices, more, text):
    with pytest.raises(pathways.PathwaysError, match=text) as error:
        config(devices, 2, more.pop("schedule", None), **more)
    assert error.value.code == "INVALID_ARGUMENT"


@EMBEDDED
def test_meshes_that_are_refused(devices):
    one, wide = Mesh(devices[:1], "x"), Mesh(devices[1:3], "x")
    cpu = Mesh(jax.devices("cpu")[:1], "x")
    for topology, text in [
        ({}, "the topology is {}; expected a dict of at least one mesh"),
        ([one], "expected a dict of at least one mesh"),
        ({"m@0": one}, "without @ and #"),
        ({"m0": one, "m1": wide}, "'m1' has axes {'x': 2}, and 'm0' has {'x': 1}"),
        ({"m0": one, "m1": Mesh(devices[:1], "x")}, f"device {devices[0].id} is in the meshes 'm0' and 'm1'"),
        ({"m0": cpu}, "not on devices of Pathways"),
        ({"m0": devices[0]}, "expected a jax.sharding.Mesh"),
    ]:
        with pytest.raises(pathways.PathwaysError, match=re.escape(text)):
            mpmd.make_config(topology, {})
    with pytest.raises(pathways.PathwaysError, match="'m1'; expected one of 'm0'"):
        mpmd.make_config({"m0": one}, {"block": "m1"})
    for stages in ({"block": -1}, {"other": 0}):
        with pytest.raises(pathways.PathwaysError, match="stage"):
            mpmd.make_config({"m0": one}, {"block": "m0"}, name_to_stage_assignment=stages)
    for name in ("main", "", 3):
        with pytest.raises(pathways.PathwaysError, match="expected a text"):
            mpmd.named_computation(block, name=name)
    with pytest.raises(pathways.PathwaysError, match="call_counter is -1"):
        mpmd.call(block, call_counter=-1)


@EMBEDDED
def test_functions_that_cannot_be_partitioned(devices):
    def stranger(x):
        return mpmd.named_computation(jnp.sin, name="stranger")(x)  # the line

    def lost(x):
        return mpmd.named_tensor(mpmd.named_computation(jnp.sin, name="block 0")(x), "lost")

    def moving(x):
        y = mpmd.named_computation(jnp.sin, name="block 0")(x)
        return mpmd.named_computation(jnp.cos, name="block 1")(y * 2)

    def printing(x):
        jax.debug.print("{}", x)
        return mpmd.named_computation(jnp.sin, name="block 0")(x)

    def in_order(x):
        jax.debug.print("{}", x, ordered=True)
        return mpmd.named_computation(jnp.sin, name="block 0")(x)

    def complex_result(x):
        return mpmd.named_computation(lambda x: jax.lax.complex(x, x), name="block 0")(x)

    def twice(x):
        y = mpmd.named_computation(jnp.sin, name="block 0")(x)
        return mpmd.named_computation(jnp.cos, name="block 0")(mpmd.named_computation(jnp.tan, name="block 1")(y))

    def looping(x):
        step = jax.jit(lambda x: mpmd.named_computation(jnp.sin, name="block 0")(x))  # may be in a function, too
        return jax.lax.fori_loop(0, 3, lambda _, x: step(x), step(x))

    def branching(x):
        return jax.lax.cond(x[0] > 0, lambda x: mpmd.named_tensor(x, "targets"), jnp.sin, x)

    line = stranger.__code__.co_firstlineno + 1
    x, cfg = np.ones(3, "f"), config(devices, 2)
    for function, code, text in [
        (stranger, "INVALID_ARGUMENT", f"{__file__}:{line}: the named computation 'stranger' has no mesh"),
        (lost, "INVALID_ARGUMENT", f"{__file__}:{line + 3}: the named tensor 'lost' has no mesh"),
        (moving, "INVALID_ARGUMENT", "mpmd_infer_transfers"),
        (printing, "UNIMPLEMENTED", "callback"),
        (in_order, "UNIMPLEMENTED", "ordered effects"),
        (twice, "INVALID_ARGUMENT", "by a name of its own, without a stage"),
        (complex_result, "INVALID_ARGUMENT", "keep complex numbers inside of named computations"),
        (looping, "UNIMPLEMENTED", "the named computation 'block 0' is in a loop (scan, fori_loop or while_loop)"),
        (branching, "UNIMPLEMENTED", "the named tensor 'targets' is in a branch (cond or switch)"),
    ]:
        with pytest.raises(pathways.PathwaysError, match=re.escape(text)) as error:
            mpmd.jit(function, cfg).lower(x)
        assert error.value.code == code
    mpmd.jit(mpmd.named_computation(looping, name="block 0"), cfg).lower(x)
    with pytest.raises(pathways.PathwaysError, match="is for functions without gradients.*IsForwardFragment"):
        mpmd.jit(train, config(devices, 2, "ParallelPipelinesWithWrapAround")).lower(*numbers(2, 2))
    pinned = NamedSharding(cfg.topology["m0"], P(), memory_kind="pinned_host")
    for side in ("in_shardings", "out_shardings"):
        with pytest.raises(
            pathways.PathwaysError, match=f"{side} have the memory kind 'pinned_host'; expected 'device'"
        ):
            mpmd.jit(train, cfg, **{side: pinned})
    with pytest.raises(pathways.PathwaysError, match="mpmd_config is {}; expected what mpmd.make_config returns"):
        mpmd.jit(train, {})
    with pytest.raises(pathways.PathwaysError, match="expected a NamedSharding whose mesh has the axes"):
        mpmd.jit(train, cfg, in_shardings=jax.sharding.SingleDeviceSharding(devices[0]))


@EMBEDDED
def test_an_error_in_a_named_computation_says_in_which(devices):
    (w, _), xs = numbers(2, 1)
    with pytest.raises(TypeError) as error:
        mpmd.jit(infer, config(devices, 2)).lower([w, np.ones((3, 3), "f")], xs)
    assert "in the named computation 'block 1'" in error.value.__notes__


def test_a_fragment_that_fails_names_its_stage_and_line(devices):
    def fill(x):
        return jnp.zeros(HUGE, "f") + x[0, 0], x + 1

    def f(w, x):
        y = mpmd.named_computation(block, name="block 0")(w, x)
        huge, z = mpmd.named_computation(fill, name="block 1")(y)  # the line
        return y, huge, mpmd.named_computation(lambda z: z * 2, name="block 2")(z)

    line = f.__code__.co_firstlineno + 2
    (w, *_), (x, *_) = numbers(1, 1)
    compiled = mpmd.jit(f, config(devices, 3)).lower(w, x).compile()
    near(compiled(w, x)[0], block(w, x))
    for _ in range(400):  # who hears of it first, stage 1 or those who wait for it, differs from call to call
        _, _, nothing = compiled(w, x)
        with pytest.raises((jax.errors.JaxRuntimeError, ValueError)) as caught:
            nothing.block_until_ready()
        text = str(caught.value)
        assert text.startswith("RESOURCE_EXHAUSTED: ")
        assert re.search(rf"\[jit_\w*stage1\w*, called at {re.escape(__file__)}:{line}", text), text


@EMBEDDED
def test_calls_that_are_refused(devices):
    args = numbers(2, 2)
    compiled = mpmd.jit(train, config(devices, 2)).lower(*args).compile()
    ws, xs = placed(compiled, args)
    for given, text in [
        ((ws, xs[:1]), "was lowered for arguments"),
        ((ws, [np.ones((2, 2), "f"), xs[1]]), "argument [1][0] of train is float32[2, 2]; expected float32[4, 8]"),
        (([ws[1], ws[0]], xs), f") on devices [{devices[2].id}]; expected NamedSharding("),
        ((["w", ws[1]], xs), "argument [0][0] of train is 'w'; expected an array, float32[8, 8]"),
        ((ws, [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in xs]), "argument [1][0] of train is ShapeDtypeStruct"),
    ]:
        with pytest.raises(pathways.PathwaysError, match=re.escape(text)):
            compiled(*given)
    with pytest.raises(pathways.PathwaysError, match="cannot be called inside a function that JAX traces"):
        jax.jit(compiled)(ws, xs)
