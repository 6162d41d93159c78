"""Reading ahead: what a source gives, by a thread of its own, while what it gave before is worked on."""

from __future__ import annotations

import atexit
import contextvars
import queue
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")

# How long the end of Python waits for a read that is under way, in seconds.
PATIENCE = 5


class Ahead(Iterator["T | Exception"], Generic[T]):
    """What `read` gives until it gives None, or raises: then that exception, as the last.

    A thread reads, as long as fewer than `most` have not been taken; in a copy of the context that this is made in.
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
        """Says whether the next one, or the end, is there."""
        return not self._came.empty()

    def __next__(self) -> T | Exception:
        item = self._came.get()
        if item is None:
            self._came.put(None)  # so it is found again
            raise StopIteration
        self._room.release()
        return item

    def stop(self) -> None:
        """Has the thread end, after the read that is under way."""
        self._stopped = True
        self._room.release()


_all: weakref.WeakSet[Ahead] = weakref.WeakSet()


@atexit.register
def _stop_all() -> None:
    # Later, a source that is written in Python would find no interpreter.
    left = list(_all)
    for ahead in left:
        ahead.stop()
    for ahead in left:
        ahead._thread.join(PATIENCE)
