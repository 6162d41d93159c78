"""What processes keep after faults: open sockets and files of shared memory, and memory."""

from __future__ import annotations

import collections
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from waiting import comes


def opened(pid: int) -> int:
    """How many sockets and files of shared memory a process has open."""
    count = 0
    for file in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # it was closed meanwhile
            count += file.readlink().name.startswith(("socket:", "memfd:"))
    return count


def resident(pid: int) -> int:
    """How many MiB of memory a process has of its own, and shared with others."""
    lines = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return sum(int(lines[key].split()[0]) for key in ("RssAnon", "RssShmem")) >> 10


class Kept:
    """What the processes of a cluster and its scripts keep, by role: the most of one of them."""

    # Beyond what was open before: which workers the scripts use changes with each that is lost, and with it who has
    # dialed whom. With eight faults and more, one file of each would be too many.
    MORE_OPEN = 4
    # Events, statistics and caches of a session that has other workers: 3 MiB were seen after 33 faults.
    MORE_MIB = 32

    def __init__(self, pids: Callable[[], dict[str, int]]):
        """Begins with what the processes have now; pids returns them by their names, such as worker-1."""
        self.pids = pids
        self.before = self.now()

    def now(self) -> dict[str, tuple[int, int]]:
        """How many sockets and files of shared memory are open, and how many MiB are used."""
        roles = collections.defaultdict(list)
        for name, pid in self.pids().items():
            roles[name.partition("-")[0]].append(pid)
        return {role: (max(map(opened, some)), max(map(resident, some))) for role, some in roles.items()}

    def is_little(self) -> bool:
        """Whether no process has much more than before the faults; one that was started again counts as the old one."""
        try:
            now = self.now()
        except (OSError, KeyError):  # a process has ended, and the one in its place is not listed yet
            return False
        print(f"open files and MiB: {self.before} before, {now} after the faults", flush=True)
        return all(
            now[role][0] <= files + self.MORE_OPEN and now[role][1] <= mib + self.MORE_MIB
            for role, (files, mib) in self.before.items()
        )

    def becomes_little(self) -> None:
        """Waits until is_little, since files are closed and memory is freed some time after the last fault."""
        assert comes(self.is_little, pause=0.5), "processes keep more than before the faults"
