"""pathways.sync: weights of a trainer, newest version by version, on the devices of samplers."""

import os
import random
import threading

import fresh
import jax
import jax.numpy as jnp
import numpy as np
import pathways
import pytest
from conftest import SEED
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

LAYOUTS = (P(), P("a"), P(None, "a"), P("b", "a"), P(("a", "b")), P("a", "b"))
TYPES = (jnp.float32, jnp.bfloat16, jnp.float16)


@pytest.fixture(scope="module")
def meshes():
    """A trainer's and a sampler's, of four devices each, in two shapes."""
    devices = jax.devices()
    return [
        Mesh(np.array(devices[:4]).reshape(4, 1), ("a", "b")),
        Mesh(np.array(devices[4:]).reshape(2, 2), ("a", "b")),
    ]


def weights(layout, seed=0, dtype=np.float32):
    draw = np.random.default_rng(seed)
    return {
        "kernel": jax.device_put(draw.normal(size=(16, 8)).astype(dtype), layout),
        "steps": jax.device_put(np.arange(4, dtype=np.int32), NamedSharding(layout.mesh, P())),
    }


def test_newest_version_is_the_trainers_in_any_layout_and_type(meshes):
    draw = random.Random(SEED)
    for _ in range(4):
        one, other = draw.sample(meshes, 2)
        layouts = [NamedSharding(m, draw.choice(LAYOUTS)) for m in (one, other)]
        own, dtype = draw.choice(TYPES), draw.choice((None, *TYPES))
        params = weights(layouts[0], 0, own)
        fetches = pathways.stats()["fetches"]
        copy = pathways.sync(params, {"kernel": layouts[1], "steps": NamedSharding(other, P())}, dtype=dtype)
        for version in range(1, 3):
            params = weights(layouts[0], version, own)
            assert copy.push(params) == version
        number, got = copy.wait(timeout=60)
        assert pathways.stats()["fetches"] == fetches  # nothing of it passes through this process
        assert number == 2
        assert copy.latest()[0] == 2
        assert got["kernel"].sharding.is_equivalent_to(layouts[1], 2)
        want = params["kernel"].astype(dtype or own)
        assert got["kernel"].dtype == want.dtype
        assert np.asarray(got["kernel"]).tobytes() == np.asarray(want).tobytes(), (SEED, layouts, own, dtype)
        assert np.array_equal(np.asarray(got["steps"]), np.arange(4))


@pytest.mark.skipif(not os.environ.get("PATHWAYS_TEST_ADDRESS"), reason="of clusters: here a push calls a plugin")
@pytest.mark.parametrize("dtype", [None, jnp.bfloat16])
def test_a_push_is_one_message_of_which_no_byte_passes_through_this_process(meshes, dtype):
    rows, columns = (NamedSharding(m, P(*spec)) for m, spec in zip(meshes, (("a",), (None, "a")), strict=True))
    params = jax.device_put([np.ones((16, 16), np.float32)] * 8, rows)
    copy = pathways.sync(params, columns, dtype=dtype)
    jax.block_until_ready((params, copy.wait()))
    before = pathways.stats()
    copy.push(params)
    after = pathways.stats()
    copy.wait()
    assert [after[k] - before[k] for k in ("go_entries", "puts", "fetches")] == [1, 0, 0]


def test_trainer_may_donate_what_it_pushed_and_readers_see_no_part_of_a_version(meshes):
    rows, columns = (NamedSharding(m, P(*spec)) for m, spec in zip(meshes, (("a",), (None, "a")), strict=True))
    step = jax.jit(lambda tree: jax.tree.map(lambda x: x + 1, tree), donate_argnums=0)
    params = [jax.device_put(jnp.zeros((16, 16)), rows) for _ in range(5)]
    copy, stop, seen = pathways.sync(params, columns), threading.Event(), []

    def read():
        while not stop.is_set():
            number, tree = copy.latest()
            seen.append((number, {float(v) for x in tree for v in np.unique(np.asarray(x))}))

    reader = threading.Thread(target=read)
    reader.start()
    for _ in range(20):
        params = step(params)
        copy.push(params)
    copy.wait(timeout=60)
    stop.set()
    reader.join()
    assert all(values == {float(number)} for number, values in seen), seen
    assert [number for number, _ in seen] == sorted(number for number, _ in seen)
    assert {float(v) for x in copy.latest()[1] for v in np.unique(np.asarray(x))} == {20.0}


def test_readers_hold_two_versions_of_their_own_part_and_no_more():
    """However many are pushed, and none of their devices has all of an array in between."""
    script = """
        import jax, jax.numpy as jnp, numpy as np
        from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
        devices = jax.devices()
        rows = NamedSharding(Mesh(np.array(devices[:4]), "f"), P("f"))
        columns = NamedSharding(Mesh(np.array(devices[4:]), "t"), P(None, "t"))
        params = [jax.device_put(np.zeros((512, 512), "f"), rows) for _ in range(4)]
        step = jax.jit(lambda params: [x + 1 for x in params], donate_argnums=0)
        weights = pathways.sync(params, to=columns)
        for _ in range(10):
            params = step(params)
            weights.push(params)
        weights.wait()
        print(*(device.memory_stats()["peak_bytes_in_use"] for device in devices[4:]))
    """
    peaks = list(map(int, fresh.run(script).stdout.split()))
    part = 512 * 512 * 4 // 4  # of an array, on one device
    assert len(peaks) == 4 and max(peaks) <= (2 * 4 + 1) * part, peaks


def test_weights_that_are_there_already_are_copied(meshes):
    layout = NamedSharding(meshes[0], P("a"))
    params = weights(layout)
    copy = pathways.sync(params, {"kernel": layout, "steps": NamedSharding(meshes[0], P())})
    want = np.asarray(params["kernel"])
    for x in jax.tree.leaves(params):
        x.delete()
    assert np.array_equal(np.asarray(copy.latest()[1]["kernel"]), want)


def test_version_that_fails_is_told_to_the_trainer_and_readers_keep_the_one_before(meshes):
    params = jax.device_put(jnp.ones(4), jax.devices()[0])
    copy = pathways.sync(params, NamedSharding(meshes[1], P()))
    copy.wait()

    there = jax.ShapeDtypeStruct(params.shape, params.dtype, sharding=params.sharding)
    bad = jax.jit(lambda x: (x * 2, jnp.zeros((1 << 44,)) + x[0])).lower(there).compile()  # there is no such room
    late = jax.jit(lambda x, n: x + jax.lax.fori_loop(0, n, lambda _, y: jnp.tanh(y @ y), jnp.zeros((256, 256))).sum())

    def push_bad():
        for rounds in (100 * 4**i for i in range(6)):
            try:
                return copy.push(bad(late(params, rounds))[0])
            except jax.errors.JaxRuntimeError as error:  # in the call rather than after the push: it began too soon
                assert "Out of memory" in str(error)
        pytest.fail("each time it failed in the call")

    assert push_bad() == 1
    while copy._coming is not None:
        assert copy.latest()[0] == 0  # a reader sees first that it did not arrive
    with pytest.raises(jax.errors.JaxRuntimeError, match="Out of memory"):
        copy.push(params)
    assert push_bad() == 2
    for version in (2, 1, 2):  # as often as it is asked
        with pytest.raises(jax.errors.JaxRuntimeError, match="Out of memory") as error:
            copy.wait(version, timeout=60)
    assert len(error.traceback) < 8  # no frames of the calls before
    number, got = copy.latest()
    assert (number, np.asarray(got).tolist()) == (0, [1.0] * 4)
    assert copy.wait(0)[0] == 0
    assert copy.push(2 * params) == 3
    assert np.asarray(copy.wait()[1]).tolist() == [2.0] * 4
    assert copy.wait(1)[0] == 3  # a newer one


@pytest.mark.parametrize("dtype", [None, jnp.bfloat16])
def test_weights_are_sent_while_a_mesh_of_other_devices_is_set(meshes, dtype):
    layouts = [NamedSharding(mesh, P()) for mesh in meshes]
    for source, target in (layouts, layouts[::-1], layouts[:1] * 2):
        for mesh in meshes:
            with jax.set_mesh(mesh):
                copy = pathways.sync(jax.device_put(np.ones(4, np.float32), source), target, dtype=dtype)
                assert copy.wait()[1].sharding.is_equivalent_to(target, 1)


def test_arrays_of_any_kind_are_sent(meshes):
    """Narrower than a byte, without elements, random keys, and none at all."""
    rows, columns = (NamedSharding(m, P(*spec)) for m, spec in zip(meshes, (("a",), (None, "b")), strict=True))
    tree = {"int4": jnp.arange(64).reshape(8, 8).astype("int4"), "empty": jnp.zeros((0, 8)), "none": None}
    tree = {**jax.device_put(tree, rows), "key": jax.device_put(jax.random.key(1), meshes[0].devices[0, 0])}
    copy = pathways.sync(tree, {"int4": columns, "empty": columns, "none": None, "key": meshes[1].devices[0, 0]})
    for _ in range(2):
        number, got = copy.wait(timeout=60)
        assert jax.tree.map(lambda x: x.sharding, got)["empty"] == columns
        assert jax.tree.all(jax.tree.map(lambda x, y: x.dtype == y.dtype and x.shape == y.shape, got, tree))
        assert np.asarray(got["int4"]).tolist() == np.asarray(tree["int4"]).tolist()
        assert np.array_equal(jax.random.key_data(got["key"]), jax.random.key_data(tree["key"]))
        assert copy.push(tree) == number + 1
    assert pathways.sync({}, columns).wait() == (0, {})


def test_what_cannot_be_sent_is_refused(meshes):
    layout = NamedSharding(meshes[0], P())
    params = {"w": jax.device_put(jnp.ones(4), layout)}
    for tree, to, said in (
        ({"w": np.ones(4)}, layout, r"params\['w'\] is <class 'numpy.ndarray'>; use jax.device_put first"),
        (params, {"v": layout}, "`to` is not a prefix of the weights' tree"),
        (params, "slice", "cannot send params.* to 'slice'; expected a Sharding or a Device"),
        (params, NamedSharding(meshes[0], P(None, "a")), r"params\['w'\] of shape \[4\] cannot have the sharding"),
    ):
        with pytest.raises(pathways.PathwaysError, match=said):
            pathways.sync(tree, to)
    for dtype in ("int8", "foo"):
        with pytest.raises(pathways.PathwaysError, match=f"sync's dtype is '{dtype}'; expected a floating-point one"):
            pathways.sync(params, layout, dtype=dtype)
    copy = pathways.sync(params, layout)
    for tree, said in (
        ({"w": params["w"][:2]}, r"params\['w'\] was float32\[4\] when sync was called, and is float32\[2\]"),
        ([params["w"]], "the weights' tree was"),
    ):
        with pytest.raises(pathways.PathwaysError, match=said):
            copy.push(tree)
    with pytest.raises(pathways.PathwaysError, match="version 1 was not pushed; the newest is 0"):
        copy.wait(1)
    for inside in (jax.jit(copy.push), pathways.program(copy.push)):
        with pytest.raises(pathways.PathwaysError, match="inside a function that JAX traces or a program captures"):
            inside(params)
    assert copy.latest()[0] == 0


def test_tunix_moves_weights_between_the_meshes_of_its_roles(meshes):
    """Unmodified: it uses jax.device_put, and nothing passes through this process, which tunix forbids itself."""
    reshard = pytest.importorskip("tunix.rl.reshard", reason="google-tunix is not installed", exc_type=ImportError)
    from tunix.rl.rl_cluster import Role

    role_to_mesh = dict(zip((Role.ACTOR, Role.ROLLOUT), meshes, strict=True))
    for roles in (role_to_mesh, reversed(role_to_mesh)):
        source, target = (weights(NamedSharding(role_to_mesh[role], P("a", "b")), i) for i, role in enumerate(roles))
        jax.block_until_ready((source, target))
        before = pathways.stats()
        off = "disallow_explicit"
        with jax.transfer_guard_device_to_host(off), jax.transfer_guard_host_to_device(off):
            for _ in range(2):  # from the second time on, a program moves them
                got = jax.block_until_ready(reshard.reshard_pytree(source, target))
        after = pathways.stats()
        assert [after[k] - before[k] for k in ("puts", "fetches")] == [0, 0]
        assert jax.tree.map(lambda x: x.sharding, got) == jax.tree.map(lambda x: x.sharding, target)
        assert jax.tree.all(jax.tree.map(np.array_equal, got, source))
