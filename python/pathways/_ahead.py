"""Reading ahead: a thread reads the next items of a source while the caller works on the current one."""

from __future__ import annotations

import atexit
import contextvars
import queue
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")

# How long Python's exit waits for a read in progress, in seconds.
PATIENCE = 5


class Ahead(Iterator["T | Exception"], Generic[T]):
    """Iterates over what `read` returns, until it returns None or raises; the last item is then that exception.

    A thread calls `read` while fewer than `most` items wait, in a copy of the context in which this object is made.
    """

    def __init__(self, read: Callable[[], T | None], most: int):
        self._read = read
        self._came: queue.SimpleQueue[T | Exception | None] = queue.SimpleQueue()  # None is the end
        self._room = threading.Semaphore(most)
        self._stopped = False
        context = contextvars.copy_context()
        self._thread = threading.Thread(target=context.run, args=(self._work,), name="pathways-ahead", daemon=True)
        _all.add(self)
        self._thread.start()

    def _work(self) -> None:
        item: T | Exception | None = None
        try:
            while self._room.acquire() and not self._stopped and (item := self._read()) is not None:
                self._came.put(item)
        except Exception as err:
            self._came.put(err)
        finally:
            self._came.put(None)

    def ready(self) -> bool:
        """Returns whether the next item, or the end, is available."""
        return not self._came.empty()

    def __next__(self) -> T | Exception:
        item = self._came.get()
        if item is None:
            self._came.put(None)  # so that the next call finds it too
            raise StopIteration
        self._room.release()
        return item

    def stop(self) -> None:
        """Makes the thread end after the read in progress."""
        self._stopped = True
        self._room.release()


_all: weakref.WeakSet[Ahead] = weakref.WeakSet()


@atexit.register
def _stop_all() -> None:
    # Later, a source that is written in Python would have no interpreter.
    left = list(_all)
    for ahead in left:
        ahead.stop()
    for ahead in left:
        ahead._thread.join(PATIENCE)
