"""Copies of memory, a thread a processor, between memory that was used before: what no collective beats."""

import concurrent.futures
import os
import pathlib
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

import sides  # noqa: E402

stream = sides.answers()

import numpy as np  # noqa: E402

LARGEST = 64 << 20  # of one copy; more bytes are several
threads = os.cpu_count()
pool = concurrent.futures.ThreadPoolExecutor(threads)
memory = [(np.ones(LARGEST, np.uint8), np.ones(LARGEST, np.uint8)) for _ in range(threads)]


def copy(thread, moved, calls):
    """Copies one thread's part of so many bytes, so often."""
    part = max(1, moved // threads)
    source, target = memory[thread]
    for _ in range(calls):
        left = part
        while left > 0:
            size = min(left, LARGEST)
            np.copyto(target[:size], source[:size])
            left -= size


def answer(moved, calls):
    start = time.perf_counter()
    list(pool.map(copy, range(threads), [moved] * threads, [calls] * threads))
    return {"seconds": time.perf_counter() - start}


sides.serve(stream, answer)
