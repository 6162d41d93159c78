"""Random graphs of computations on random slices give the bits of the same plugin under stock JAX, captured or not.

PATHWAYS_SEED=n tries the graphs of the seeds from n on; without it, each run draws others, and says which.
"""

import fresh
import jax
import numpy as np
import pathways
import pytest
import random_programs
from conftest import ADDRESS, SEED

SCRIPT = """
    import sys
    import random_programs
    path, seeds = sys.stdin.readline().split()
    random_programs.save(path, [int(seed) for seed in seeds.split(",")])
"""
# Of a cluster's several topologies each tries fewer: programs are compiled again for each.
SEEDS = range(SEED, SEED + (2 if ADDRESS else 4))

# Whether a donated array is of use to a computation is left to chance.
pytestmark = [pytest.mark.sizes, pytest.mark.filterwarnings("ignore:Some donated buffers were not usable")]


@pytest.fixture(scope="module")
def stock(tmp_path_factory):
    """Returns seed → what stock JAX makes of its program, in one process for all, which begins at once."""
    path = tmp_path_factory.mktemp("bits") / "stock.npz"
    process = fresh.start(SCRIPT, "plugin", {"PATHWAYS_ADDRESS": ""})
    fresh.tell(process, f"{path} {','.join(map(str, SEEDS))}")
    results = {}

    def of(seed):
        if not results:
            done = fresh.finish(process)
            assert done.returncode == 0, done.stderr
            with np.load(path) as saved:
                for name, data in saved.items():
                    number, i, dtype, shape = name.split(".")
                    entry = tuple(int(n) for n in shape.split("x") if n), dtype, data.tobytes()
                    results.setdefault(int(number), {})[int(i)] = entry
        return [entry for _, entry in sorted(results[seed].items())]

    yield of
    fresh.end([process])


def same(seed, ours, theirs):
    assert [x[:2] for x in ours] == [x[:2] for x in theirs]
    wrong = [i for i, (a, b) in enumerate(zip(ours, theirs, strict=True)) if a != b]
    assert not wrong, f"of PATHWAYS_SEED={seed}, the results {wrong} differ"


@pytest.mark.parametrize("seed", SEEDS)
def test_random_programs_have_the_bits_of_stock_jax(seed, stock):
    steps = random_programs.draw(seed)
    print(f"PATHWAYS_SEED={seed}: {steps}")
    with pathways.make_virtual_device_set() as slices:
        for n in steps.slices:
            slices.add_slice(devices=n)
        program = random_programs.Program(steps, pathways.reshard, slices.devices)
        results = [random_programs.bits(program(*program.inputs())) for _ in range(2)]
        same(seed, results[0], results[1])
        inner = pathways.program(program.run, static_argnums=(1, 2), donate_argnums=0)
        kept = pathways.program(lambda *inputs: program(*inputs))
        taken = pathways.program(lambda *inputs: program(*inputs, inner=inner), donate_argnums=steps.given)
        for captured, given in ((kept, ()), (taken, steps.given)) * 2:
            inputs = program.inputs()
            arrays = captured(*inputs)
            same(seed, results[0], random_programs.bits(arrays))
            left = [i not in given or any(x is y for y in arrays) for i, x in enumerate(inputs)]
            assert [not x.is_deleted() for x in inputs] == left
    same(seed, results[0], stock(seed))


def test_the_programs_are_of_all_kinds():
    """What is drawn has all that there is to try."""
    drawn = [random_programs.draw(seed) for seed in range(20)]
    assert any(step.donated and step.arguments[0] in program.given for program in drawn for step in program.steps)
    assert max(last - first for first, last in (program.inner for program in drawn)) > 4
    assert {len(program.slices) for program in drawn} == {1, 2, 3, 4}
    steps = [step for program in drawn for step in program.steps]
    assert {step.name for step in steps} >= {"reshard", "several", "all_reduce", "permute", "gather", "gram", "outer"}
    assert {step.own for step in steps} == {"", *random_programs.OWN}
    assert any(step.donated for step in steps) and {bool(step.pin) for step in steps} == {True, False}
    assert {len(step.place.devices) for step in steps} == {1, 2, 3, 4, 8}
    assert random_programs.draw(3) == random_programs.draw(3) != random_programs.draw(4)
    jax.clear_caches()
