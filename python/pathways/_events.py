"""Events of a session's workers and its connection, for a script: see pathways.events()."""

from __future__ import annotations

import datetime
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pathways import _backend, _native
from pathways._errors import PathwaysError, invalid_argument

KINDS = ("lost", "came", "rebound", "disconnected", "resumed", "restarted", "ended")
# Milliseconds of one wait in C, so that Ctrl-C is seen soon.
SLICE_MS = 100


@dataclass(frozen=True)
class Event:
    """An event of the session on a cluster.

    kind is one of:

    - "lost": a worker, with the session's arrays on its devices.
    - "came": a worker that takes the place of a lost one.
    - "rebound": the devices belong to that worker from now on, and can be used again.
    - "disconnected": the connection to the controller broke; the session is kept for the cluster's lease.
    - "resumed": the connection was restored, and nothing was lost.
    - "restarted": the controller died and was started again; it has restored the session, and nothing was lost.
    - "ended": the session is lost; call shutdown() and init(). Or shutdown() was called, and reason is "".

    worker is the worker's name, "" for events of the controller. devices are the JAX devices concerned. reason is the
    error that caused the event, "" if there is none. time is when this process received it.
    """

    kind: str
    worker: str
    devices: tuple[Any, ...]
    reason: str
    time: datetime.datetime

    def __str__(self) -> str:
        about = f" {self.worker}" if self.worker else ""
        on = f" (devices {', '.join(str(d.id) for d in self.devices)})" if self.devices else ""
        return f"{self.kind}{about}{on}{': ' + self.reason if self.reason else ''}"


def _event(moment: dict[str, Any]) -> Event:
    have = {device.id: device for client in _backend.clients() for device in client.devices()}
    devices = tuple(have[number] for number in moment.get("devices", ()) if number in have)
    when = datetime.datetime.fromisoformat(moment["at"])
    return Event(moment["kind"], moment.get("worker", ""), devices, moment.get("reason", ""), when)


class Events:
    """An iterator over the events from its creation on. Each iterator gets every event. It blocks until the next event,
    and ends after "ended". Several threads may share one.
    """

    def __init__(self, after: int | None = None) -> None:
        self._lock = threading.Lock()  # guards the rest
        self._last = _native.moments(0, 0)["last"] if after is None else after
        self._queue: deque[Event] = deque()
        self._over = False

    def __iter__(self) -> Events:
        return self

    def __next__(self) -> Event:
        while True:
            if (event := self._take(SLICE_MS)) is not None:
                return event
            if self._over:
                raise StopIteration

    def _take(self, wait_ms: int) -> Event | None:
        """Returns the next event, or None if there is none within the time."""
        with self._lock:
            if not self._queue and not self._over:
                answer = _native.moments(self._last, wait_ms)
                self._last = answer["last"]
                self._queue.extend(map(_event, answer["moments"] or ()))
            if not self._queue:
                return None
            event = self._queue.popleft()
            self._over = event.kind == "ended"
            return event

    def wait(self, kind: str, timeout: float | None = None) -> Event:
        """Blocks until an event of a kind, and returns it. Earlier events are dropped.

        Raises:
          PathwaysError: INVALID_ARGUMENT for an unknown kind, DEADLINE_EXCEEDED if there is none within the timeout
            (seconds), UNAVAILABLE if the session ends meanwhile.
        """
        if kind not in KINDS:
            raise invalid_argument(f"there is no event {kind!r}; expected one of {', '.join(KINDS)}")
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            left = SLICE_MS if end is None else max(0, min(SLICE_MS, int(1000 * (end - time.monotonic())) + 1))
            if (event := self._take(left)) is not None and event.kind == kind:
                return event
            if self._over:
                raise PathwaysError("UNAVAILABLE", f"the session has ended before the event {kind!r}")
            if event is None and end is not None and time.monotonic() >= end:
                raise PathwaysError("DEADLINE_EXCEEDED", f"there was no event {kind!r} within {timeout:g} s")


def on_event(call: Callable[[Event], None]) -> Callable[[], None]:
    """Calls a function with each event until "ended", on a separate thread; returns a function that stops that."""
    events, stop = Events(), threading.Event()

    def run() -> None:
        while not stop.is_set() and not events._over:
            if (event := events._take(SLICE_MS)) is None:
                continue
            try:
                call(event)
            except Exception as error:
                warnings.warn(f"the function given to pathways.on_event() failed: {error!r}", stacklevel=1)

    threading.Thread(target=run, name="pathways-events", daemon=True).start()
    return stop.set
