"""pathways.pipeline: its numbers equal those of the model without it."""

import jax
import jax.numpy as jnp
import numpy as np
import pathways
import pytest
from jax.sharding import Mesh, NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P

WIDTH, ROWS = 8, 16
SEVERAL = {"interleaved": (0, 1, 0, 1), "zbv": (0, 1, 1, 0)}  # the places of four stages on two


def layer(params, x):
    return jnp.tanh(x @ params["w"] + params["b"]) + x


def loss(y, targets):
    return jnp.mean((y - targets) ** 2)


def model(stages, seed=0):
    """Returns numbers for one layer per stage, a batch and targets."""
    r = np.random.default_rng(seed)
    params = [
        {"w": r.normal(size=(WIDTH, WIDTH)).astype("f") / 3, "b": r.normal(size=WIDTH).astype("f")}
        for _ in range(stages)
    ]
    return params, r.normal(size=(ROWS, WIDTH)).astype("f"), r.normal(size=(ROWS, WIDTH)).astype("f")


def bits(tree):
    return [(leaf.shape, leaf.dtype, np.asarray(leaf).tobytes()) for leaf in jax.tree.leaves(tree)]


def near(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=2e-5, atol=2e-6), a, b)


def whole(params, batch, targets):
    for p in params:
        batch = layer(p, batch)
    return loss(batch, targets)


def one_after_the_other(stages, microbatches, batch, targets):
    """The loss and gradients of the same stages with no schedule: each microbatch forward and back, then the next."""
    losses, sums = [], [None] * len(stages)
    forward = jax.jit(lambda p, x: jax.vjp(layer, p, x))
    first = jax.jit(lambda p, x: jax.vjp(lambda p: layer(p, x), p))
    last = jax.jit(lambda p, x, t: jax.vjp(lambda p, x: loss(layer(p, x), t) / microbatches, p, x))
    only = jax.jit(lambda p, x, t: jax.vjp(lambda p: loss(layer(p, x), t) / microbatches, p))
    call = jax.jit(lambda back, gradient: back(gradient))
    for m in range(microbatches):
        rows = slice(m * ROWS // microbatches, (m + 1) * ROWS // microbatches)
        x, backs = batch[rows], []
        for i, (params, sharding) in enumerate(stages):
            x = jax.device_put(x, sharding)
            if i + 1 < len(stages):
                x, back = (forward if i else first)(params, x)
            else:
                x, back = (last if i else only)(params, x, jax.device_put(targets[rows], sharding))
            backs.append((back, x.sharding))
        losses.append(x)
        gradient = jnp.ones_like(x)
        for i, (back, sharding) in reversed(list(enumerate(backs))):
            gradients, *more = call(back, jax.device_put(gradient, sharding))
            sums[i] = gradients if m == 0 else jax.tree.map(jnp.add, sums[i], gradients)
            gradient = more[0] if more else None
    return sum(losses[1:], start=losses[0]), sums


# One stage that is first and last, two without a middle, and all devices.
@pytest.mark.parametrize(("stages", "width"), [(1, 2), (2, 1), (4, 2)])
def test_a_pipelines_numbers_are_the_models(devices, stages, width):
    params, batch, targets = model(stages)
    # Every second device, so that stages are on several workers and their pairs are too.
    order = devices[::2] + devices[1::2]
    places = [order[width * i : width * (i + 1)] for i in range(stages)]
    stages = [(layer, p, place) for p, place in zip(params, places, strict=True)]
    pipe = pathways.pipeline(stages, 4, "1F1B", loss=loss)
    results = value, gradients = pipe.value_and_grad(batch, targets)
    assert value.shape == () and value.sharding.device_set == set(places[-1])
    for got, own, place in zip(gradients, pipe.params, places, strict=True):
        for g, p in zip(jax.tree.leaves(got), jax.tree.leaves(own), strict=True):
            assert g.sharding.is_equivalent_to(p.sharding, p.ndim) and g.sharding.device_set == set(place)
    near(results, jax.value_and_grad(whole)(params, batch, targets))
    gpipe = pathways.pipeline(stages, 4, "gpipe", loss=loss)
    gpipe._parts = pipe._parts  # they know of no schedule, and need not be compiled again
    assert bits(results) == bits(gpipe.value_and_grad(batch, targets)) == bits(pipe.value_and_grad(batch, targets))
    plain = one_after_the_other(list(zip(pipe.params, pipe.shardings, strict=True)), 4, batch, targets)
    assert bits(results) == bits(plain)

    for name in ("zb-h1", "zb-h2"):
        split = pathways.pipeline(stages, 4, name, loss=loss)
        split._parts = pipe._parts
        near(split.value_and_grad(batch, targets), results)
        assert not split.schedule.whole

    y = pipe.forward(batch)
    assert y.shape == (ROWS, WIDTH) and y.sharding.is_equivalent_to(pipe.shardings[-1], 2)
    expected = batch
    for p in params:
        expected = layer(p, expected)
    near(y, expected)


def test_a_tied_weight_has_one_owner_where_gradients_add_up_in_stage_order(devices):
    params, batch, targets = model(3)
    own = [params[0] | {"w": {"kernel": params[0]["w"]}}, {"b": params[1]["b"]}, {"b": params[2]["b"]}]

    def nested(params, x):  # what is tied may be a tree
        return layer(params | {"w": params["w"]["kernel"]}, x)

    alike = [p | {"w": own[0]["w"]} for p in params]
    places = [devices[1], devices[4:6], devices[0]]
    tied = {(2, "w"): (0, "w"), (1, "w"): (0, "w")}
    untied = pathways.pipeline(list(zip([nested] * 3, alike, places, strict=True)), 4, loss=loss)
    value, (first, *others) = untied.value_and_grad(batch, targets)
    total = first["w"]["kernel"]
    for g in others:
        total = total + jax.device_put(g["w"]["kernel"], total.sharding)
    expected = value, [{"w": {"kernel": total}, "b": first["b"]}, *({"b": g["b"]} for g in others)]
    for name in ("1f1b", "gpipe", "zb-h1", "zb-h2"):
        pipe = pathways.pipeline(list(zip([nested] * 3, own, places, strict=True)), 4, name, loss=loss, tied=tied)
        pipe._parts = untied._parts
        got = pipe.value_and_grad(batch, targets)
        assert got[1][0]["w"]["kernel"].sharding == pipe.params[0]["w"]["kernel"].sharding
        near(got, expected)
        if not name.startswith("zb"):
            assert bits(got) == bits(expected)
        assert bits(pipe.forward(batch)) == bits(untied.forward(batch))

    def plain(own):
        return whole([p | {"w": own[0]["w"]["kernel"]} for p in own], batch, targets)

    near(got, jax.value_and_grad(plain)(own))


@pytest.mark.parametrize("name", SEVERAL)
def test_numbers_of_a_model_with_several_stages_on_a_place(devices, name):
    params, batch, targets = model(4)
    places = [devices[5 * place] for place in SEVERAL[name]]
    pipe = pathways.pipeline(list(zip([layer] * 4, params, places, strict=True)), 4, name, loss=loss)
    near(pipe.value_and_grad(batch, targets), jax.value_and_grad(whole)(params, batch, targets))
    assert pipe.schedule.rows[1] == f"stages {'1, 3' if name == 'interleaved' else '1, 2'} on device 5"


@pytest.mark.parametrize("name", SEVERAL)
def test_gradients_of_a_tied_weight_add_up_in_stage_order_with_several_stages_on_a_place(devices, name):
    params, batch, targets = model(4)
    alike = [p | {"w": params[0]["w"]} for p in params]
    places = [devices[5 * place] for place in SEVERAL[name]]
    untied = pathways.pipeline(list(zip([layer] * 4, alike, places, strict=True)), 4, name, loss=loss)
    value, gradients = untied.value_and_grad(batch, targets)

    def total(stages):
        first, *others = (jax.device_put(gradients[stage]["w"], places[0]) for stage in stages)
        return sum(others, start=first)

    assert bits(total([0, 1, 2, 3])) != bits(total([3, 2, 1, 0])), "the order of these gradients does not show"
    own = [alike[0], *({"b": p["b"]} for p in alike[1:])]
    tied = {(stage, "w"): (0, "w") for stage in (3, 1, 2)}
    pipe = pathways.pipeline(list(zip([layer] * 4, own, places, strict=True)), 4, name, loss=loss, tied=tied)
    pipe._parts = untied._parts
    first, *others = ({"b": g["b"]} for g in gradients)
    assert bits(pipe.value_and_grad(batch, targets)) == bits((value, [first | {"w": total([0, 1, 2, 3])}, *others]))


def test_a_planned_step_is_that_of_the_schedule_it_chose(devices):
    params, batch, targets = model(2)
    stages = [(layer, p, d) for p, d in zip(params, devices[3:], strict=False)]
    pipe = pathways.pipeline(stages, 4, "auto", loss=loss, state=lambda p: (p, jax.tree.map(jnp.zeros_like, p), 0.0))
    train = pathways.program(lambda x, targets: pipe.value_and_grad(x, targets))
    with pytest.raises(pathways.PathwaysError, match=r"call pipeline.measure\(batch, targets\) before") as error:
        train(batch, targets)
    assert error.value.code == "FAILED_PRECONDITION" and pipe.plan is None
    results = pipe.value_and_grad(batch, targets)
    named = pathways.pipeline(stages, 4, pipe.plan.chosen, loss=loss)
    named._parts = pipe._parts
    assert list(pipe.schedule) == list(named.schedule) and f"* {pipe.plan.chosen}" in repr(pipe.plan).replace("  ", " ")
    assert bits(results) == bits(named.value_and_grad(batch, targets)) == bits(train(batch, targets))
    assert all(cost.forward > 0 < cost.backward and cost.input > 0 < cost.weight for cost in pipe.plan.costs)
    own, rows = (WIDTH + 1) * WIDTH * 4, ROWS // 4 * WIDTH * 4
    first, second = pipe.plan.costs
    assert (first.params, first.arrives, first.leaves, first.targets) == (own, rows, rows, 0)
    assert first.state == 2 * own + 4 and set(first.temps) == {"forward", "backward", "input", "weight"}
    assert (second.params, second.arrives, second.leaves, second.targets) == (own, rows, 4, rows)
    # The weight half needs the input, and the gradient of what is in tanh.
    assert (second.rest, second.carried) == (rows, rows) and second.kept >= rows

    tight = pathways.pipeline(stages, 4, "auto", loss=loss, memory="1KiB")
    tight._parts = pipe._parts
    with pytest.raises(pathways.PathwaysError, match="no schedule fits .* more than its 1 KiB") as error:
        tight.value_and_grad(batch, targets)
    assert error.value.code == "RESOURCE_EXHAUSTED"


@pytest.mark.sizes
def test_a_recorded_step_has_the_time_of_each_op(devices, tmp_path):
    params, batch, targets = model(2)
    stages = [(layer, p, place) for p, place in zip(params, (devices[:2], devices[5]), strict=True)]
    pipe = pathways.pipeline(stages, 4, "zb-h1", loss=loss)

    def step(params, x, targets):
        _, gradients = pipe.value_and_grad(x, targets, params=params)
        return [update(p, g) for p, g in zip(params, gradients, strict=True)]

    @jax.jit
    def update(params, gradients):
        return jax.tree.map(jnp.subtract, params, gradients)

    def check(recorded):
        assert [timed.op for timed in recorded.ops] == list(pipe.schedule)
        ended = {}
        for (_, stage, m, kind), begin, end in recorded.ops:
            before = {"forward": stage - 1, "input": stage + 1}.get(kind)
            assert ended.get((kind, before, m), 0) <= begin <= end <= recorded.seconds
            ended[kind, stage, m] = end
        # The step before may update a place while this one has begun on another.
        assert {o.place for o in recorded.others if o.name == "update"} == {0, 1}
        assert 0 <= recorded.bubble < 1

    jax.block_until_ready(step(pipe.params, batch, targets))
    assert pipe.recorded() is None and "as it ran" not in pipe.draw()
    with pathways.trace(tmp_path / "calls.json"):
        jax.block_until_ready([step(pipe.params, batch, targets) for _ in range(2)])
        assert pipe.recorded() is None
    check(pipe.recorded())
    pipe.draw(tmp_path / "step.svg")
    text = (tmp_path / "step.svg").read_text(encoding="utf-8")
    assert (
        text == pipe._repr_svg_() and f"{pipe.recorded().bubble:.0%} idle ({pipe.schedule.bubble:.0%} planned)" in text
    )

    play = pathways.program(step)
    jax.block_until_ready(play(pipe.params, batch, targets))
    with pathways.trace(tmp_path / "program.json") as timeline:
        jax.block_until_ready(play(pipe.params, batch, targets))
    check(pipe.recorded(timeline))


def test_stage_whose_backward_is_one_loop_is_not_split(devices):
    """Its weights' gradients come of the same loop as its input's."""
    r = np.random.default_rng(5)
    stacked = r.normal(size=(3, WIDTH, WIDTH)).astype("f") / 3
    params, batch, targets = model(2)

    def layers(params, x):
        return jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, params)[0]

    stages = [(layer, params[0], devices[0]), (layers, stacked, devices[1]), (layer, params[1], devices[2])]
    pipe = pathways.pipeline(stages, 4, "zb-h1", loss=loss)

    def plain(params):
        return loss(layer(params[2], layers(params[1], layer(params[0], batch))), targets)

    want = jax.value_and_grad(plain)([params[0], stacked, params[1]])
    for _ in range(2):  # the second knows that stage 1 is not split
        near(pipe.value_and_grad(batch, targets), want)
        assert pipe.schedule.whole == {1}


@pytest.mark.parametrize("name", ["1f1b", "zb-h1"])
def test_gradients_of_parameters_in_the_hosts_memory_are_there_too(devices, name):
    params, batch, targets = model(2)

    def fetching(p, x):
        return layer(jax.device_put(p, jax.memory.Space.Device), x)

    host = [SingleDeviceSharding(device, memory_kind="pinned_host") for device in devices[:2]]
    stages = [(fetching, jax.device_put(p, h), d) for p, h, d in zip(params, host, devices, strict=False)]
    value, gradients = pathways.pipeline(stages, 4, name, loss=loss).value_and_grad(batch, targets)
    near((value, gradients), jax.value_and_grad(whole)(params, batch, targets))
    assert [g["w"].sharding for g in gradients] == host


def test_batches_may_come_from_anywhere(devices):
    params, batch, targets = model(2)
    pipe = pathways.pipeline([(layer, params[0], devices[:2]), (layer, params[1], devices[5])], 4, loss=loss)
    y, results = bits(pipe.forward(batch)), bits(pipe.value_and_grad(batch, targets))
    rows = NamedSharding(Mesh(np.array(devices), ("rows",)), P("rows"))
    assert bits(pipe.forward(jax.device_put(batch, rows))) == y
    assert bits(pipe.value_and_grad(jnp.asarray(batch), jax.device_put(targets, rows))) == results
    assert bits(pipe.value_and_grad(jax.device_put(batch, jax.devices("cpu")[0]), targets)) == results


@pytest.mark.sizes
@pytest.mark.versions
def test_training_by_a_pipeline_is_the_models(devices):
    params, batch, targets = model(3, seed=1)
    pipe = pathways.pipeline([(layer, p, d) for p, d in zip(params, devices, strict=False)], 2, loss=loss)

    @jax.jit
    def step(p, g):
        return jax.tree.map(lambda p, g: p - 0.1 * g, p, g)

    first = None
    for _ in range(12):
        value, gradients = pipe.value_and_grad(batch, targets)
        expected, plain = jax.value_and_grad(whole)(params, batch, targets)
        near(value, expected)
        pipe.params = [step(p, g) for p, g in zip(pipe.params, gradients, strict=True)]
        params = step(params, plain)
        first = first or float(value)
    near(pipe.params, params)
    assert float(value) < first / 2
    assert bits(pipe.value_and_grad(batch, targets, params=pipe.params)) == bits(pipe.value_and_grad(batch, targets))


@pytest.mark.sizes
def test_a_captured_step_takes_the_parameters_it_is_given(devices):
    """Captured, a step takes the parameters it is given, and one call submits it."""
    params, batch, targets = model(2, seed=3)
    pipe = pathways.pipeline([(layer, p, d) for p, d in zip(params, devices[3:], strict=False)], 2, loss=loss)

    @pathways.program
    def step(params, x, targets):
        value, gradients = pipe.value_and_grad(x, targets, params=params)
        return value, jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients)

    for _ in range(3):
        value, gradients = pipe.value_and_grad(batch, targets)
        expected = value, jax.tree.map(lambda p, g: p - 0.1 * g, pipe.params, gradients)
        assert bits(step(pipe.params, batch, targets)) == bits(expected)
        pipe.params = expected[1]


def test_stages_of_other_shapes_and_trees(devices):
    """Tokens come in, a pytree with whole numbers goes on, weights are split, and a stage computes again."""
    r = np.random.default_rng(2)
    tokens, targets = r.integers(0, 11, (8, 6)), r.integers(0, 11, (8, 6))
    table = r.normal(size=(11, WIDTH)).astype("f")
    up, down = r.normal(size=(WIDTH, 16)).astype("f"), r.normal(size=(16, WIDTH)).astype("f")
    out = r.normal(size=(WIDTH, 11)).astype("f")

    def embed(table, tokens):
        return {"x": table[tokens], "tokens": tokens, "count": jnp.sum(tokens, 1)}

    def mlp(params, flow):
        y = jax.nn.gelu(flow["x"] @ params[0]) @ params[1]
        return flow | {"x": y * (flow["tokens"] > 3)[..., None] + flow["count"][:, None, None]}

    def unembed(out, flow):
        return flow["x"] @ out

    def cross_entropy(logits, targets):
        return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), targets[..., None], -1))

    mesh = Mesh(np.array(devices[2:6]).reshape(2, 2), ("data", "model"))
    split = [
        jax.device_put(up, NamedSharding(mesh, P(None, "model"))),
        jax.device_put(down, NamedSharding(mesh, P("model"))),
    ]
    stages = [(embed, table, devices[0]), (jax.checkpoint(mlp), split, mesh)]
    stages.append((unembed, out, NamedSharding(Mesh(np.array(devices[6:]), ("r",)), P("r"))))
    pipe = pathways.pipeline(stages, 2, loss=cross_entropy)
    assert [p is s for p, s in zip(pipe.params[1], split, strict=True)] == [True, True]
    results = pipe.value_and_grad(tokens, targets)
    for gradient, weight in zip(results[1][1], split, strict=True):
        assert gradient.sharding.is_equivalent_to(weight.sharding, 2)

    def plain(params):
        return cross_entropy(unembed(params[2], mlp(params[1], embed(params[0], tokens))), targets)

    near(results, jax.value_and_grad(plain)([table, [up, down], out]))
    assert pipe.forward(tokens).shape == (8, 6, 11)


@jax.jit
def late(x, work, rounds):
    """x, once some computing is done."""
    return x + 0 * jax.lax.fori_loop(0, rounds, lambda i, v: jnp.tanh(v @ v), work)[0, 0]


# The machine may be busy with other things while what is late is being computed; then it is made later.
ROUNDS = [100 * 4**i for i in range(6)]


def test_a_step_returns_before_its_computations_end(devices):
    """A step returns while the first of its computations cannot begin yet."""
    params, batch, targets = model(2)
    pipe = pathways.pipeline([(layer, p, d) for p, d in zip(params, devices[2:], strict=False)], 4, loss=loss)
    batch, work = jax.device_put((batch, np.ones((256, 256), "f")), devices[0])
    expected = bits(pipe.value_and_grad(late(batch, work, 0), targets))  # and all is compiled
    for rounds in ROUNDS:
        x = late(batch, work, rounds)
        results = pipe.value_and_grad(x, targets)
        waits = not any(leaf.is_ready() for leaf in jax.tree.leaves(results)) and not x.is_ready()
        assert bits(results) == expected
        if waits:
            return
    pytest.fail("each time all was computed when the step returned")


def test_no_residual_copies_an_argument(devices):
    params, batch, targets = model(1)
    pipe = pathways.pipeline([(layer, params[0], devices[1]), (layer, params[0], devices[2])], 1, loss=loss)
    x = jax.device_put(batch, devices[2])
    _, residuals = pipe._parts[1].forward(pipe.params[1], x, jax.device_put(targets, devices[2]))
    assert (WIDTH, WIDTH) not in [leaf.shape for leaf in jax.tree.leaves(residuals)]


def test_an_error_reaches_what_comes_after_it(devices):
    params, batch, targets = model(2)
    pipe = pathways.pipeline([(layer, p, d) for p, d in zip(params, devices, strict=False)], 2, loss=loss)
    expected = pipe.value_and_grad(batch, targets)
    near(expected, jax.value_and_grad(whole)(params, batch, targets))
    x, work = jax.device_put((batch, np.ones((256, 256), "f")), devices[0])
    broken = jax.jit(lambda x: (x * 2, jnp.zeros((1 << 44,)) + x[0, 0])).lower(x).compile()  # there is no such room
    late(x, work, 0)
    for rounds in ROUNDS:
        try:
            bad, _ = broken(late(x, work, rounds))
        except RuntimeError:
            continue  # it failed before it was submitted
        for leaf in jax.tree.leaves(pipe.value_and_grad(bad, targets)):
            with pytest.raises(RuntimeError, match="Out of memory"):
                leaf.block_until_ready()
        assert bits(pipe.value_and_grad(batch, targets)) == bits(expected)
        return
    pytest.fail("each time the run failed before it was submitted")


def test_pipelines_that_cannot_be_are_refused(devices):
    params, batch, targets = model(1)
    pipe = pathways.pipeline([(layer, params[0], devices[0])], 3, loss=loss)

    def tied(name, owner):
        return pathways.pipeline([(layer, params[0], device) for device in devices[:2]], 2, tied={name: owner})

    for refused, match in (
        (lambda: pathways.pipeline([(layer, params[0], "cpu")], 2), "the place of stage 0 is 'cpu'; expected a device"),
        (lambda: pathways.pipeline([(layer, params[0], [])], 2), "expected a device"),
        (lambda: pathways.pipeline([(layer, {"n": 3}, devices[0])], 2), r"\['n'\] of int"),
        (lambda: pathways.pipeline([], 2), "0 stages"),
        (lambda: pathways.pipeline([], 2.5), "microbatches is 2.5; expected a whole number"),
        (lambda: pathways.pipeline([(layer, params[0], devices[0])], 2, "2f2b"), "expected one of .*, zbv, or auto"),
        (
            lambda: pathways.pipeline([(layer, params[0], devices[0])], 2, memory=1),
            "memory=1 has no effect on the schedule 1f1b",
        ),
        (lambda: tied((1, "w"), (2, "w")), "tied names stage 2; expected one of 2 stages"),
        (lambda: tied((1, "w"), (0, "w")), "the parameter 'w' of stage 1 is tied, and also in that stage's params"),
        (lambda: tied((1, "v"), (0, "v")), "stage 0 has no parameter 'v'; expected one of"),
        (
            lambda: pathways.pipeline([(layer, params[0], devices[0])], 2, loss=loss).value_and_grad(batch, batch[:2]),
            r"the batch has the shape \(16, 8\), and the targets \(2, 8\); expected targets with as many rows",
        ),
        (lambda: pipe.forward(batch), r"shape \(16, 8\) cannot be split into 3 microbatches"),
        (lambda: pipe.forward(3.0), "cannot be split"),
        (lambda: pipe.forward(batch[:3], params=[]), "parameters of 0 stages; expected 1"),
        (
            lambda: pathways.pipeline([(layer, params[0], devices[0])], 1, loss=jnp.subtract).value_and_grad(
                batch, targets
            ),
            r"the loss returns float32\[16,8\]; expected one",
        ),
    ):
        with pytest.raises(pathways.PathwaysError, match=match) as error:
            refused()
        assert error.value.code == "INVALID_ARGUMENT"
    with pytest.raises(pathways.PathwaysError, match="has no loss") as error:
        pathways.pipeline([(layer, params[0], devices[0])], 2).value_and_grad(batch, targets)
    assert error.value.code == "FAILED_PRECONDITION"
    with pytest.raises(TypeError) as error:
        pipe = pathways.pipeline([(layer, params[0], device) for device in devices[:2]], 2)
        pipe.forward(np.ones((4, 3), "float32"))
    assert "in stage0 of the pipeline, layer" in error.value.__notes__


def test_a_stage_may_be_on_a_slice_or_a_sharding(devices):
    params, batch, _ = model(1)
    with pathways.make_virtual_device_set().add_slice(devices=2) as granted:
        y = pathways.pipeline([(layer, params[0], granted)], 4).forward(batch)
        assert y.devices() == set(granted.devices)
    assert pathways.pipeline([(layer, params[0], SingleDeviceSharding(devices[3]))], 4).forward(batch).devices() == {
        devices[3]
    }
