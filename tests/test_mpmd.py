"""pathways.mpmd: a function partitioned over meshes by jaxlib's passes, and played as one program.

Its values are those of the function under jax.jit, within rounding, and have the bits of the same fragments called one
by one. How a program runs on a cluster is the subject of test_program.py.
"""

import functools
import itertools
import math
import os
import random
import xml.etree.ElementTree

import jax
import jax.numpy as jnp
import numpy as np
import pathways
import pytest
from conftest import SEED, THOROUGH
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from pathways import mpmd
from pathways.mpmd import _fragments, _timetable
from steps import EMBEDDED, ROWS, bits, block, config, infer, loss, meshes, near, numbers, placed, train

ON_CLUSTERS = mpmd.SCHEDULES if THOROUGH else ("1F1B",)  # of the schedules, those that are also tried there


# --- schedules ---


def rows(compiled):
    """Returns the plan, a text for each mesh with a letter for each slot."""
    letters = {"forward": "F", "backward": "B", "weights": "W"}
    table = compiled.schedule
    found = [["."] * table.slots for _ in table.meshes]
    for op in table:
        found[table.meshes.index(op.mesh)][op.slot] = letters[op.kind]
    return list(map("".join, found))


ROWS_OF = {  # with three microbatches
    "Circular": ["FFFFF.F..BBBBB.B", ".FFFFF.FBBBBB.B."],  # with two stages on each mesh
    "GPipe": ["FFF..BBB", ".FFFBBB."],
    "1F1B": ["FF.BFB.B", ".FBFBFB."],
    "GPipeBut1F1BForLastMesh": ["FFFB.B.B", ".FBFBFB."],
}


@pytest.mark.newest
@pytest.mark.parametrize("name", [n if n in ON_CLUSTERS else pytest.param(n, marks=EMBEDDED) for n in mpmd.SCHEDULES])
def test_every_schedule_has_the_bits_of_one_after_the_other(devices, name):
    function = infer if name == "ParallelPipelinesWithWrapAround" else train
    stages = 4 if name == "Circular" else 2
    args = numbers(stages, 3)
    compiled = mpmd.jit(function, config(devices, stages, name, on=meshes(devices, 2))).lower(*args).compile()
    mine = placed(compiled, args)
    results = compiled(*mine)
    assert bits(results) == bits(compiled.one_by_one(*mine)) == bits(compiled(*mine))
    near(results, jax.jit(function)(*args))
    if name in ROWS_OF:
        assert rows(compiled) == ROWS_OF[name]


def sizes():
    """Returns schedules with numbers of stages and of microbatches: one drawn by the seed, or all."""
    found = list(itertools.product(mpmd.SCHEDULES, (2, 4, 8), (4, 8, 16, 32)))
    return found if THOROUGH else random.Random(SEED).sample(found, 1)


@functools.cache
def expected(function, stages, microbatches):
    """The values of a function on one device, and by SPMD: copies, which keep no array of a device."""
    ws, xs = numbers(stages, microbatches, SEED)
    rows = NamedSharding(Mesh(np.array(jax.devices()[:ROWS]), ("rows",)), P("rows"))
    there = jax.device_put(xs, rows)
    return jax.tree.map(np.array, [jax.jit(function)(ws, xs), jax.jit(function)(ws, there)])


@EMBEDDED
@pytest.mark.parametrize(("name", "stages", "microbatches"), sizes())
def test_schedules_of_any_size_have_the_bits_of_one_after_the_other(devices, name, stages, microbatches):
    """PATHWAYS_SEED repeats a choice."""
    function = infer if name == "ParallelPipelinesWithWrapAround" else train
    on = meshes(devices, max(2, stages // 2) if name.startswith("Circular") else stages)
    args = numbers(stages, microbatches, SEED)
    compiled = mpmd.jit(function, config(devices, stages, name, on=on)).lower(*args).compile()
    results = compiled(*placed(compiled, args))
    assert bits(results) == bits(compiled.one_by_one(*placed(compiled, args)))
    for values in expected(function, stages, microbatches):
        near(results, values)


@EMBEDDED
def test_schedule_without_stages_is_by_mesh(devices):
    on = meshes(devices, 2)
    cfg = mpmd.make_config(on, {"block 0": "m0", "block 1": "m1"}, pipeline_schedule="1F1B")
    with jax.set_mesh(on["m1"]):  # which has no part in it
        compiled = mpmd.jit(train, cfg).lower(*numbers(2, 3)).compile()
    assert rows(compiled) == ROWS_OF["1F1B"]


@EMBEDDED
def test_four_stages_run_in_the_slots_of_zero_bubble(devices):
    args = numbers(4, 4)
    compiled = mpmd.jit(train, config(devices, 4, "zero_bubble_h1")).lower(*args).compile()
    near(compiled(*placed(compiled, args)), jax.jit(train)(*args))
    # The first stage has no input, whose gradient could be split off.
    assert rows(compiled) == ["FFFF...B.B.B.B.", ".FFF..BFBWBWBWW", "..FF.BFBFBWBWWW", "...FBFBFBFBWWWW"]


@pytest.mark.skipif(not os.environ.get("PATHWAYS_TEST_ADDRESS"), reason="of clusters: here nodes are calls of a plugin")
def test_a_step_is_one_message(devices):
    args = numbers(2, 8)
    compiled = mpmd.jit(train, config(devices, 2, "GPipe")).lower(*args).compile()
    args = placed(compiled, args)
    jax.block_until_ready(compiled(*args))
    before = pathways.stats()
    results = compiled(*args)
    after = pathways.stats()
    jax.block_until_ready(results)
    assert after["executes"] - before["executes"] >= 4 * 8
    assert after["go_entries"] - before["go_entries"] == 1


# --- the words ---


def of_outside(ws, xs):
    """The gradient of a sum of calls: it is the calls that are transposed."""
    return jax.grad(lambda ws: sum(mpmd.call(loss, call_counter=i)(ws, x) for i, x in enumerate(xs)))(ws)


def of_checkpoint(ws, xs):
    """The backward computes the forward again, which is no backward."""
    return [mpmd.call(jax.grad(jax.checkpoint(loss)), call_counter=i)(ws, x) for i, x in enumerate(xs)]


@pytest.mark.newest
@EMBEDDED
@pytest.mark.parametrize("gradients", [of_outside, of_checkpoint])
def test_forward_and_backward_are_told_apart(devices, gradients):
    """The passes know a backward by the number of transposes that lead to it."""
    args = numbers(2, 2)
    compiled = mpmd.jit(gradients, config(devices, 2, "GPipe")).lower(*args).compile()
    near(compiled(*placed(compiled, args)), jax.jit(gradients)(*args))
    assert [row.replace(".", "") for row in rows(compiled)] == ["FFBB", "FFBB"]


@EMBEDDED
def test_tensors_reductions_and_a_tied_weight(devices):
    def f(w, x):
        a = mpmd.named_computation(lambda w, x: x @ w, name="block 0")(w, x)
        b = mpmd.named_computation(lambda w, x: x @ w.T, name="block 1")(mpmd.broadcast(w), mpmd.broadcast(x))
        return mpmd.named_tensor({"a": a}, "there"), mpmd.named_tensor(mpmd.reduce(a + b), "here")

    on = meshes(devices, 2)
    cfg = mpmd.make_config(
        on,
        {"block 0": "m0", "block 1": "m1", "here": "m0", "there": "m1"},
        input_mesh_assignment=("m0", None),
    )
    (w, *_), (x, *_) = numbers(1, 1)
    x = np.concatenate([x, x])

    def both(w, x):
        return f(w, x), jax.grad(lambda w: f(w, x)[1].sum())(w)

    compiled = mpmd.jit(both, cfg).lower(w, x).compile()
    near(compiled(*placed(compiled, (w, x))), jax.jit(both)(w, x))
    (there, here), gradient = compiled.output_shardings
    assert (there["a"].mesh, here.mesh, gradient.mesh) == (on["m1"], on["m0"], on["m0"])
    assert compiled.input_shardings[0].mesh == on["m0"]


@EMBEDDED
def test_fragments_are_submitted_in_the_order_in_which_they_begin():
    first, last = [[f"p0_stage{i}_{way}_calls0to1" for way in ("fwd", "bwd")] for i in range(2)]
    ops = [(first[0], "a", [0], [1]), (first[0], "a", [0], [2]), (last[0], "b", [11], [3]), (last[1], "b", [3], [4])]
    ops += [(last[0], "b", [12], [5]), (last[1], "b", [5], [6]), (first[1], "a", [14], []), (first[1], "a", [16], [])]
    # a: forwards at 0 and 1, backwards of twice that length at 4 and 7. b: a forward at 1 and 4, a backward at 2 and 5.
    assert _timetable.by_begin(ops, {11: 1, 12: 2, 14: 4, 16: 6}) == [0, 1, 2, 3, 4, 6, 5, 7]


@pytest.mark.parametrize("schedule", ["1F1B", pytest.param("ZeroBubbleH1", marks=EMBEDDED)])
def test_steps_with_donation_on_meshes_of_two_axes(devices, schedule):
    on = meshes(devices, 2, (2, 2), ("data", "model"))

    def mlp(w, x):
        return x + jnp.tanh(x @ w["up"]) @ w["down"]

    def forward(ws, x):
        for i, w in enumerate(ws):
            x = mpmd.named_computation(mlp, name=f"block {i}")(w, x)
        return jnp.mean(x**2)

    def step(ws, xs):
        gradients = jax.tree.map(jnp.zeros_like, ws)
        for i, x in enumerate(xs):
            gradients = mpmd.call(lambda g, ws, x: jax.tree.map(jnp.add, g, jax.grad(forward)(ws, x)), call_counter=i)(
                gradients, ws, x
            )
        return jax.tree.map(lambda w, g: w - 0.1 * g, ws, gradients)

    r = np.random.default_rng(0)
    ws = [{"up": r.normal(size=(8, 16)), "down": r.normal(size=(16, 8))} for _ in range(2)]
    ws, xs = jax.tree.map(lambda x: x.astype("f") / 4, (ws, [r.normal(size=(8, 8)) for _ in range(2)]))
    one = {"up": NamedSharding(on["m0"], P(None, "model")), "down": NamedSharding(on["m0"], P("model"))}
    jitted = mpmd.jit(
        step,
        config(devices, 2, schedule, on=on),
        in_shardings=([one, one], NamedSharding(on["m0"], P("data"))),
        out_shardings=[one, one],
        donate_argnums=0,
    )
    lowered = jitted.lower(ws, xs)
    compiled = lowered.compile()
    assert lowered.function_named_shardings == (compiled.input_shardings, compiled.output_shardings)
    assert [w["up"].spec for w in compiled.output_shardings] == [P(None, "model")] * 2
    params, xs_there = placed(compiled, (ws, xs))
    want = ws
    for _ in range(2):
        given, want = params, jax.jit(step)(want, xs)
        params = compiled(params, xs_there)
        near(params, want)
        assert all(w.is_deleted() for w in jax.tree.leaves(given))
    for w, mesh in zip(params, on.values(), strict=True):
        assert w["up"].sharding.is_equivalent_to(NamedSharding(mesh, P(None, "model")), 2)


@EMBEDDED
def test_shardings_of_ifrt_are_cut_as_their_definition_says(devices):
    """By the definition: axes in their order, and then cut into the shards of each dimension, the first one major."""
    r = random.Random(0)
    axes = ("a", "b", "c")
    own = [Mesh(np.array(devices).reshape(2, 2, 2), axes), Mesh(np.array(devices[::-1]).reshape(2, 2, 2), axes)]
    on_own = 0
    for _ in range(200):
        sizes = r.choice([(8,), (2, 4), (4, 2), (2, 2, 2), (1, 8), (2, 1, 4)])
        order = r.sample(range(len(sizes)), len(sizes))
        shards = r.choice([s for s in itertools.product((1, 2, 4, 8), repeat=2) if 8 % math.prod(s) == 0])
        ids = r.choice([range(8), range(7, -1, -1), r.sample(range(8), 8)])
        cut, to, on = "x".join(map(str, shards)), ", ".join(map(str, order)), "x".join(map(str, sizes))
        places = ", ".join(map(str, ids))
        text = f"!ifrt.array<tensor<8x16xbf16>, #ifrt.sharding_param<{cut} to [{to}] on {on}>, [{places}]>"
        array = _fragments.array_of(text, devices, own)
        assert (array.shape, array.dtype) == ((8, 16), jnp.bfloat16)
        on_own += array.sharding.mesh in own
        held = array.sharding.devices_indices_map((8, 16))
        for i, place in enumerate(ids):
            at = np.unravel_index(i, sizes)
            moved = np.ravel_multi_index([at[axis] for axis in order], [sizes[axis] for axis in order])
            shard = np.unravel_index(moved // (8 // math.prod(shards)), shards)
            want = [(n // k * j, n // k * (j + 1)) for n, k, j in zip((8, 16), shards, shard, strict=True)]
            assert [part.indices(n)[:2] for part, n in zip(held[devices[place]], (8, 16), strict=True)] == want, text
    assert on_own > 100  # most can be said on the axes of a mesh of the user's
    with pytest.raises(pathways.PathwaysError, match="no known sharding"):
        _fragments.array_of("!ifrt.array<tensor<2xf32>, #ifrt.sharding_unspecified, [0]>", devices, own)


@EMBEDDED
def test_meshes_of_arguments_are_read_from_shardings(devices):
    on = meshes(devices, 2)
    cfg = config(devices, 2, on=on, read_input_output_mesh_from_shardings=True)
    there = NamedSharding(on["m1"], P())
    function = lambda w, x: mpmd.named_computation(block, name="block 1")(w, x)
    lowered = mpmd.jit(function, cfg, in_shardings=(there, there), out_shardings=there).lower(
        *map(np.ones, [(8, 8)] * 2)
    )
    assert lowered.function_named_shardings == ((there, there), there)
    assert all(lowered.as_text(dialect) for dialect in ("stablehlo", "mpmd", "ifrt"))


@EMBEDDED
def test_a_call_compiles_at_the_first_time_and_takes_arrays_from_anywhere(devices):
    def f(key, x):
        return mpmd.named_computation(lambda key, x: x + jax.random.normal(key, x.shape), name="block 1")(key, x)

    jitted = mpmd.jit(f, config(devices, 2))
    key = jax.random.key(3)
    for x in (np.ones((2, 3), "f"), jnp.ones((2, 3)), np.ones(4, "f")):
        near(jitted(key, x), f(key, x))
    assert len(jitted._compiled) == 2


@EMBEDDED
def test_a_result_in_another_memory_of_its_mesh(devices):
    def f(w, x):
        y = mpmd.named_computation(block, name="block 0")(w, x)
        return y if len(x) == ROWS else y * 2

    (w, *_), (x, *_) = numbers(1, 1)
    jitted = mpmd.jit(f, config(devices, 2, output_mesh_assignment="m0#pinned_host"))
    y = jitted(w, x)
    near(y, block(w, x))
    assert y.sharding.memory_kind == "pinned_host"
    with pytest.raises(
        pathways.PathwaysError, match="'m0#pinned_host', and .* put the result into the memory 'device'"
    ):
        jitted.lower(w, x[:2])


@EMBEDDED
def test_elements_narrower_than_a_byte(devices):
    def f(w, x):
        short = mpmd.named_computation(lambda w, x: jnp.round(x @ w).astype("int4"), name="block 0")(w, x)
        return short, mpmd.named_computation(lambda x: x.astype(jnp.float32) * 2, name="block 1")(short)

    args = np.eye(8, dtype="f"), np.arange(32, dtype="f").reshape(4, 8) % 8
    got, twice = mpmd.jit(f, config(devices, 2))(*args)
    assert got.dtype == "int4" and np.array_equal(np.asarray(got).astype("f"), args[1])
    assert np.array_equal(twice, 2 * args[1])


@pytest.mark.skipif(not os.environ.get("SHARDY_PYTHON"), reason="SHARDY_PYTHON names no checkout of openxla/shardy")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # its own
@pytest.mark.parametrize("name", mpmd.SCHEDULES)
def test_openxlas_own_front_end_runs_every_schedule(devices, monkeypatch, name):
    """The same functions with its words, which have the same names."""
    shardy = mpmd.shardy()
    for word in ("named_computation", "call"):
        monkeypatch.setattr(mpmd, word, getattr(shardy, word))
    function = infer if name == "ParallelPipelinesWithWrapAround" else train
    stages = 4 if name.startswith("Circular") else 2
    args, on = numbers(stages, 3), meshes(devices, 2)
    names = [f"block {i}" for i in range(stages)]
    options = {"mpmd_pipeline_schedule": name, "mpmd_split_bwd_fragments": name.startswith("ZeroBubble")}
    cfg = shardy.make_config(
        on,
        dict(zip(names, itertools.cycle(on), strict=False)),
        name_to_stage_assignment={name: i for i, name in enumerate(names)},
        partitioning_options=options,
    )
    lowered = shardy.jit(function, cfg).lower(*args)
    mine = jax.device_put(args, lowered.function_named_shardings.input_specs)
    near(lowered.compile()(*mine), jax.jit(function)(*args))


# --- errors ---


def test_arrays_that_were_never_placed(devices):
    """What is donated of them is the copy on their mesh."""
    args = numbers(2, 2)
    compiled = mpmd.jit(train, config(devices, 2), donate_argnums=0).lower(*args).compile()
    want = bits(compiled(*placed(compiled, args)))
    with jax.default_device(devices[5]):
        elsewhere = jax.tree.map(lambda x: jnp.array(x) + 0, args)
    there = jax.tree.map(
        lambda x: jax.device_put(jnp.array(x)), args
    )  # on the default device, which is the first stage's
    for given in (args, elsewhere, there, jax.tree.map(np.float64, args)):
        for call in (compiled, compiled, compiled.one_by_one):
            assert bits(call(*given)) == want
        near(given, args)
    ws, xs = placed(compiled, args)
    compiled(ws, xs)
    assert [x.is_deleted() for x in (*ws, *xs)] == [True, True, False, False]


@EMBEDDED
def test_pictures_show_the_step_and_its_plan(devices, tmp_path):
    args = numbers(2, 2)
    compiled = mpmd.jit(train, config(devices, 2, "1F1B")).lower(*args).compile()
    compiled.save(tmp_path / "step.svg")
    assert (tmp_path / "step.svg").read_text(encoding="utf-8") == compiled._repr_svg_()
    assert "stage1_fwd" in compiled.as_text() and "train: 12 operations" in repr(compiled)
    compiled.schedule.save(tmp_path / "plan.svg")
    root = xml.etree.ElementTree.fromstring((tmp_path / "plan.svg").read_text(encoding="utf-8"))
    titles = [title.text for title in root.iter("{http://www.w3.org/2000/svg}title")]
    assert len(titles) == len(compiled.schedule) == 8 and "p0_stage0_fwd_calls0to1, forward, slot 0" in titles
    assert repr(compiled.schedule) == "<Timetable of 8 fragments on 2 meshes: 6 slots, bubble 33.3%>"
