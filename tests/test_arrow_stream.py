"""Streams of Arrow data: reading ahead, its thread, failures, and the end of a stream."""

import gc
import threading
import weakref

import fresh
import numpy as np
import pathways
import pytest
from pathways import _ahead, _arrow
from waiting import comes

pa = pytest.importorskip("pyarrow")
made = weakref.WeakSet()
SCHEMA = pa.schema({"x": pa.int32()})


@pytest.fixture(autouse=True)
def nothing_kept():
    """Threads have ended, and every struct that was exported has been released."""
    yield
    for left in list(made):
        left.close()
    assert comes(lambda: not readers())
    gc.collect()
    assert _arrow.lent() == 0


def readers():
    return [t for t in threading.enumerate() if t.name == "pathways-ahead"]


def batch(i):
    return pa.record_batch({"x": pa.array([i], pa.int32())})


def stream(batches, **how):
    out = pathways.from_arrow(pa.RecordBatchReader.from_batches(SCHEMA, batches), **how)
    if hasattr(out, "close"):
        made.add(out)
    return out


def numbers(batches):
    return [int(b["x"][0]) for b in batches]


@pytest.mark.parametrize("prefetch", [0, 1, 2, 7])
def test_batches_come_in_order(prefetch):
    assert numbers(stream(map(batch, range(20)), prefetch=prefetch)) == list(range(20))
    assert numbers(stream((), prefetch=prefetch)) == []


def test_chunked_arrays_are_streams():
    chunks = pa.chunked_array([[1, 2], [], [3]], pa.int32())
    assert [np.asarray(x).tolist() for x in pathways.from_arrow(chunks)] == [[1, 2], [], [3]]


@pytest.mark.parametrize("prefetch", [1, 2, 5])
def test_as_many_are_read_ahead_as_was_asked(prefetch):
    read = []

    def batches():
        for i in range(50):
            read.append(i)
            yield batch(i)

    got = stream(batches(), prefetch=prefetch)
    assert read == []
    next(got)
    # One is in use, one may be on a device, and the others have been read.
    assert comes(lambda: len(read) >= 1 + prefetch)
    for i in range(1, 20):
        assert int(next(got)["x"][0]) == i
        assert i < len(read) <= i + 2 + prefetch
    got.close()
    assert comes(lambda: not readers())
    assert len(read) <= 20 + 1 + prefetch


def test_prefetch_0_reads_nothing_ahead():
    read = []

    def batches():
        for i in range(3):
            read.append(threading.current_thread())
            yield batch(i)

    got = stream(batches(), prefetch=0)
    assert int(next(got)["x"][0]) == 0 and len(read) == 1
    assert numbers(got) == [1, 2]
    assert set(read) == {threading.current_thread()}


@pytest.mark.parametrize("prefetch", [-1, 1.5, "two", None])
def test_prefetch_that_is_no_number(prefetch):
    with pytest.raises(pathways.PathwaysError, match="INVALID_ARGUMENT.*prefetch is .*expected the number of batches"):
        stream((), prefetch=prefetch)


@pytest.mark.parametrize("prefetch", [0, 1, 4])
def test_what_fails_fails_in_its_turn(prefetch):
    def breaks():
        yield from map(batch, range(3))
        raise ValueError("the disk is gone")

    got = stream(breaks(), prefetch=prefetch)
    assert [int(next(got)["x"][0]) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(pathways.PathwaysError, match="the disk is gone"):
        next(got)
    if prefetch:
        assert list(got) == []

    nulls = pa.record_batch({"x": pa.array([None], pa.int32())})
    got = stream([batch(0), batch(1), nulls, batch(3)], prefetch=prefetch)
    assert [int(next(got)["x"][0]) for _ in range(2)] == [0, 1]
    with pytest.raises(pathways.PathwaysError, match="null"):
        next(got)


def test_abandoned_streams_end():
    def endless():
        while True:
            yield batch(1)

    for _ in range(20):
        got = stream(endless())
        next(got)
        del got
    gc.collect()
    assert comes(lambda: not readers())


def test_a_source_that_waits_does_not_hold_back_what_is_there():
    go = threading.Event()

    def batches():
        yield from map(batch, range(2))
        go.wait()
        yield batch(2)

    got = stream(batches())
    assert [int(next(got)["x"][0]) for _ in range(2)] == [0, 1]
    go.set()
    assert numbers(got) == [2]


def test_sources_see_the_context_of_who_takes():
    import contextvars

    told = contextvars.ContextVar("told", default=0)
    told.set(5)

    def batches():
        yield batch(told.get())

    assert numbers(stream(batches())) == [5]


@pytest.mark.embedded("starts processes of its own")
def test_python_ends_with_a_stream_under_way():
    code = """
    import pyarrow as pa, time
    def batches():
        i = 0
        while True:
            time.sleep(0.001)
            yield pa.record_batch({"x": pa.array([i], pa.int32())})
            i += 1
    got = pathways.from_arrow(pa.RecordBatchReader.from_batches(pa.schema({"x": pa.int32()}), batches()))
    for _ in range(5):
        batch = next(got)
    print("ok")
    """
    for _ in range(5):
        assert fresh.run(code).stdout == "ok\n"


def test_what_ahead_reads_is_let_go_of_with_it():
    class Item:
        alive = 0

        def __init__(self):
            Item.alive += 1

        def __del__(self):
            Item.alive -= 1

    ahead = _ahead.Ahead(Item, 3)
    assert comes(lambda: Item.alive == 3)
    next(ahead)
    assert comes(lambda: Item.alive == 3)
    ahead.stop()
    assert comes(lambda: not readers())
    del ahead
    gc.collect()
    assert Item.alive == 0
