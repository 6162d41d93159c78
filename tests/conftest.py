"""One process for all tests: Pathways is JAX's default backend, with eight devices.

They are this process's own, or those of the cluster that PATHWAYS_TEST_ADDRESS names: local:2x4 (two workers with four
devices each, inside this process), local:1x8, local:4x2, or the address of a controller. Tests marked `embedded` need
the devices to be the process's own, those marked `same_process` the workers in this process; the mark says why.

`make test` runs every test on the process's own devices, and those of tests/*.py again on a cluster of two workers. A
mark says where else a test runs:

- `versions`: it depends on JAX, on Python or on the plugin underneath. It also runs on the newest of them, embedded and
  on two workers.
- `newest`: it depends on the same, and not on where the devices are. It also runs on the newest of them, embedded; on
  two workers, too, if it is marked `sizes` as well.
- `sizes`: it depends on how many workers share the devices. It also runs on clusters of four workers, and on one
  worker, unless the Makefile says of its file that one shows nothing that two do not.
- `gpu`: it is about GPUs. On a machine with one, only these run.
- `soak`: it does random things for SOAK_SECONDS: a few here, minutes in `make soak`. PATHWAYS_SEED repeats its choices.
- `again(where)`: the tests at `where` show the same at a lower level, so that `make test` leaves it out.

`make test-all` runs every test everywhere. It sets PATHWAYS_TEST_THOROUGH, with which tests of rare faults repeat more
often what may fail, and XLA optimizes what it compiles. Otherwise it does so for test_bits.py and the notebooks alone.

A test that needs another interpreter starts one with `fresh.run`. What a test made must be gone at its end: the library
counts what is alive, and nothing but what JAX keeps for the life of the process may be left.
"""

import gc
import os
import time
from pathlib import Path

import fresh
import orphans

orphans.watch()

# Before the import, which reads them: settings of the user who runs the tests must not affect them.
os.environ["PATHWAYS_DEVICES"] = "8"
for _name in ("JAX_PLATFORMS", "JAX_PLATFORM_NAME", "XLA_FLAGS", "PATHWAYS_ADDRESS"):
    os.environ.pop(_name, None)
ADDRESS = os.environ.get("PATHWAYS_TEST_ADDRESS", "").strip()
THOROUGH = bool(os.environ.get("PATHWAYS_TEST_THOROUGH"))
SOAK_SECONDS = float(os.environ.get("PATHWAYS_SOAK_SECONDS") or 5)
SEED = int(os.environ.get("PATHWAYS_SEED") or time.time_ns() % 10**9)
GPU = any(Path("/dev").glob("nvidia[0-9]*"))
if GPU:  # all that are there; some of their memory, since tests start processes of their own
    del os.environ["PATHWAYS_DEVICES"]
    os.environ.setdefault("XLA_CLIENT_MEM_FRACTION", "0.3")
if ADDRESS:
    os.environ["PATHWAYS_ADDRESS"] = ADDRESS
if not GPU and not THOROUGH:
    fresh.flags = os.environ["XLA_FLAGS"] = fresh.UNOPTIMIZED

import pathways  # isort: skip
import jax  # isort: skip
import pytest  # isort: skip
from pathways import _together  # isort: skip
from waiting import comes  # isort: skip


def pytest_configure(config):
    config.addinivalue_line("markers", "gpu: about GPUs; on a machine with one, only these run")
    config.addinivalue_line("markers", "embedded(why): needs devices that are no cluster's; why says what for")
    config.addinivalue_line("markers", "newest: as versions, wherever devices are; runs embedded on the newest ones")
    config.addinivalue_line("markers", "versions: depends on JAX, Python or the plugin; runs on the newest ones too")
    config.addinivalue_line("markers", "sizes: depends on the number of workers; runs on clusters of 1 and 4 too")
    config.addinivalue_line("markers", "again(where): left out of make test; where says which tests show the same")
    config.addinivalue_line("markers", "soak: does random things for SOAK_SECONDS; longer in make soak")
    config.addinivalue_line("markers", "same_process(why): needs the workers in this process; why says what for")


def pytest_report_header():
    return f"PATHWAYS_SEED={SEED}"


def pytest_collection_finish():
    gc.freeze()  # modules live as long as the process; each collection would look through all of theirs again


def pytest_collection_modifyitems(items):
    if GPU:
        for item in items:
            if not item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="needs several devices, such as a CPU plugin shows"))
    if not ADDRESS:
        return
    for item in items:
        if mark := item.get_closest_marker("embedded"):
            (why,) = mark.args
            item.add_marker(pytest.mark.skip(reason=f"embedded only: {why}"))
        elif (mark := item.get_closest_marker("same_process")) and not ADDRESS.startswith("local:"):
            (why,) = mark.args
            item.add_marker(pytest.mark.skip(reason=f"not on other processes: {why}"))


# Objects that live as long as the client or JAX's own caches.
KEPT = {"clients", "devices", "executables", "memories", "programs", "topologies"}


def clear_caches() -> None:
    """Drops what is kept for later calls: jitted functions with their constants, and programs that move trees."""
    jax.clear_caches()
    _together.forget()


def left_alive() -> dict[str, int]:
    """Counts the live objects of the kinds that a test makes and drops, once work in flight has ended."""
    jax.effects_barrier()
    clear_caches()
    left = {}

    def gone():
        gc.collect()
        left.clear()
        left.update((name, count) for name, count in pathways.stats()["live"].items() if count and name not in KEPT)
        return not left

    comes(gone)  # a computation frees what it uses when it ends, on another thread
    return left


@pytest.fixture(scope="session", autouse=True)
def nothing_left_alive(request):
    """Fails the session if buffers, events or objects outlive the tests."""
    # A cluster's workers begin to work beside the client: from here on all of them do.
    jax.block_until_ready([jax.device_put(0, device) for device in jax.devices()])
    yield
    # A failed test's traceback holds its arrays.
    if not request.session.testsfailed:
        left = left_alive()
        assert not left, f"still alive after the last test: {left}"


def counted() -> dict[str, int]:
    """Counts goroutines, and handles by kind."""
    stats = pathways.stats()
    return {"goroutines": stats["goroutines"]} | {k: n for k, n in stats["live"].items() if k not in KEPT}


@pytest.fixture(autouse=True)
def nothing_more_than_before(request, caplog):
    """Fails a test that leaves more goroutines or handles than there were before it, once work in flight has ended.

    What fixtures of a module keep is made before the first count.
    """
    jax.devices()  # a session has some of its own
    before = counted()

    def more():
        return {kind: n for kind, n in counted().items() if n > before.get(kind, 0)}

    yield
    if not more() or request.session.testsfailed:  # a failed test's traceback holds its arrays
        return
    clear_caches()
    caplog.get_records("call").clear()  # logged exceptions keep the objects of their frames

    def gone():
        gc.collect()
        return not more()

    assert comes(gone), f"{more()}, and {before} before"


@pytest.fixture
def nothing_held():
    """Fails a test of captured programs if a play holds anything at its end, JAX's caches as they are."""
    yield

    def gone():
        if not {"exported", "captured"} & pathways.stats()["live"].keys():
            return True
        gc.collect()  # a cycle of Python's may hold it
        return False

    assert comes(gone), pathways.stats()["live"]


@pytest.fixture
def devices():
    """The eight devices of the process."""
    return jax.devices()
