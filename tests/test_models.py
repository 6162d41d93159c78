"""The models of the examples train in small as they stand: on the devices of one process, and on a cluster."""

import argparse
import itertools
import re

import fresh
import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from test_gallery import EXAMPLES, started

SHARED = {"islands", "training"}  # what scripts import
MODELS = sorted(path.stem for path in (EXAMPLES / "models").glob("*.py") if path.stem not in SHARED)
# Each runs once: those here on the devices of one process, the others on clusters, so that each kind of model and each
# library is tried in both. Functions of two_islands are below.
HERE = {"decoder", "t5_flax"}
AGAIN = pytest.mark.again("tests/cluster: test_scripts.py and test_islands.py run it on clusters")
STEPS = 3
SMALL = ("--steps", "12", "--batch", "8", "--length", "32", "--layers", "1", "--width", "16", "--heads", "2")


def run_model(name, **said):
    if name.endswith("_flax"):
        pytest.importorskip("flax")
    done = fresh.finish(started(EXAMPLES / "models" / f"{name}.py", *SMALL, "--rate", "0.03", **said))
    assert done.returncode == 0, f"stdout:\n{done.stdout}\nstderr:\n{done.stderr}"
    first, last = re.search(r"^loss (\S+) to (\S+), [\d,]+ tokens/s$", done.stdout, re.M).groups()
    assert float(last) < float(first), done.stdout


@pytest.mark.embedded("tests/cluster/test_scripts.py runs the models on a cluster")
@pytest.mark.newest
@pytest.mark.parametrize("name", [pytest.param(name, marks=() if name in HERE else AGAIN) for name in MODELS])
def test_loss_falls(name):
    run_model(name)


@pytest.mark.embedded("it starts no devices")
@pytest.mark.parametrize(
    ("said", "why"),
    [
        (("--batch", "6"), "--batch 6 cannot be split over --devices 8; give a multiple of it"),
        (("--length", "40"), "--length 40 must be a multiple of 16"),
        (("--steps", "1"), "expected at least two steps and one device"),
    ],
)
def test_refused_options_say_what_is_expected(said, why):
    done = fresh.finish(started(EXAMPLES / "models" / "decoder.py", *said))
    assert done.returncode == 2 and done.stderr.endswith(f"{why}\n"), done.stderr


def test_the_readme_names_each_model():
    text = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    assert set(MODELS) <= set(re.findall(r"\(models/(\w+)\.py\)", text))


@pytest.fixture
def models(monkeypatch):
    """The modules of the models, and small arguments."""
    monkeypatch.syspath_prepend(str(EXAMPLES / "models"))
    import decoder
    import training
    import two_islands

    args = training.options("").parse_args(SMALL)
    return argparse.Namespace(decoder=decoder, training=training, two_islands=two_islands, args=args)


def trained(models, chunk, late=False):
    """Returns the weights of both islands after some steps, part by part."""
    islands, args = models.two_islands, models.args
    meshes = islands.divide(jax.devices())
    params, states = islands.begin(meshes, args)
    for _ in islands.train(meshes, params, states, batches(models), args.rate, chunk, late):
        pass
    return [jax.tree.leaves(jax.device_get(p)) for p in params]


def batches(models):
    return itertools.islice(models.training.windows(models.args, extra=1), STEPS)


@pytest.mark.parametrize("late", [False, True])
def test_islands_have_the_same_bits_whatever_the_chunks_and_those_of_one_island_in_tolerance(models, late):
    (west, east), others = trained(models, 1 << 14, late), trained(models, 300, late)
    for other in (east, *others):
        for a, b in zip(west, other, strict=True):
            np.testing.assert_array_equal(a, b)
    decoder, args = models.decoder, models.args
    params = decoder.make_params(jax.random.key(args.seed), args)
    state, waiting = models.training.moments(params), []
    gradients_of, update = jax.jit(jax.grad(decoder.loss_of)), jax.jit(models.training.adam)
    for batch in batches(models):
        waiting.append(gradients_of(params, batch))
        if len(waiting) > late:
            params, state = update(params, state, waiting.pop(0), args.rate)
    for gradients in waiting:
        params, state = update(params, state, gradients, args.rate)
    for a, b in zip(west, jax.tree.leaves(models.two_islands.cut(jax.device_get(params))), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


def test_gradients_of_parts_of_a_batch_are_those_of_the_whole(models):
    islands, args = models.two_islands, models.args
    args.batch = 16  # a sequence for each device in each part
    meshes = islands.divide(jax.devices())
    params, _ = islands.begin(meshes, args)
    batch, found = next(batches(models)), []
    for parts in (1, 2):
        placed = [islands.place(meshes, part) for part in np.split(batch, parts)]
        _, sums = islands.gradients_of(meshes, params, placed, 1 << 14)
        found.append([np.add(*chunk) for i in sums for chunk in sums[i][0]])
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)


def test_three_islands_add_in_their_order_whatever_the_chunks(models):
    """Of three numbers, unlike two, the order of the sum shows in its bits."""
    import islands

    meshes = [Mesh(np.array(devices), ("data",)) for devices in np.split(np.array(jax.devices()[:6]), 3)]
    own = np.random.default_rng(0).normal(size=(3, 2, 1000)).astype("f")
    expected, turned = (np.asarray(jax.jit(lambda a, b, c: (a + b + c) / 3)(*of)) for of in (own, own[::-1]))
    assert np.any(expected != turned)
    tables = [jax.device_put(x, NamedSharding(m, P("data"))) for x, m in zip(own, meshes, strict=True)]
    mean = jax.jit(islands.mean)
    for size in (1000, 300, 7):
        pieces = [islands.send(parts, meshes) for parts in zip(*(islands.chunks(t, size) for t in tables), strict=True)]
        for sent in zip(*pieces, strict=True):
            np.testing.assert_array_equal(mean(list(sent), {"w": expected})["w"], expected)


def test_late_gradients_have_the_bits_of_a_loop_that_waits_for_each_step(models):
    islands, args = models.two_islands, models.args
    meshes = islands.divide(jax.devices())
    params, states = islands.begin(meshes, args)
    before = None
    for batch in batches(models):
        _, sums = jax.block_until_ready(islands.gradients_of(meshes, params, [islands.place(meshes, batch)], 1 << 20))
        if before:
            islands.apply(meshes, params, states, before, args.rate)
        before = sums
    islands.apply(meshes, params, states, before, args.rate)
    for mine, others in zip(trained(models, 300, late=True), params, strict=True):
        for a, b in zip(mine, jax.tree.leaves(jax.device_get(others)), strict=True):
            np.testing.assert_array_equal(a, b)
