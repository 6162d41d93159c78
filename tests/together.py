"""Calls that are under way at the same time."""

import threading
from concurrent.futures import ThreadPoolExecutor


def together(work, values) -> None:
    """Calls work with each value, in threads that begin together, and raises what one of them raises."""
    values = list(values)
    all_there = threading.Barrier(len(values))

    def call(value):
        all_there.wait()
        work(value)

    with ThreadPoolExecutor(len(values)) as threads:
        list(threads.map(call, values))
