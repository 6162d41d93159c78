"""Ends what tests have started where pytest is killed: clusters and scripts outlive the process that starts them.

They are known by a variable in their environment, which all have that descend from the process.
"""

import atexit
import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

MARK = "PATHWAYS_TEST_RUN"
WELL = b"ended well"


def watch() -> None:
    """Has all that this process starts from now on ended if it ends without its atexit functions."""
    run = f"{os.getpid()}-{time.time_ns()}"
    watcher = subprocess.Popen([sys.executable, "-S", __file__, run], stdin=subprocess.PIPE, start_new_session=True)
    os.environ[MARK] = run
    atexit.register(watcher.communicate, WELL)


def started_with(name: str, value: str) -> list[int]:
    """Returns the numbers of the processes that have a variable with that value in their environment."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended, or is another user's
            if f"{name}={value}".encode() in (process / "environ").read_bytes().split(b"\0"):
                found.append(int(process.name))
    return found


def end(run: str) -> None:
    """Kills the processes of a run, and those that they start meanwhile."""
    while left := started_with(MARK, run):
        for process in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        time.sleep(0.01)  # until the kernel has ended them


if __name__ == "__main__" and sys.stdin.buffer.read() != WELL:
    end(sys.argv[1])
