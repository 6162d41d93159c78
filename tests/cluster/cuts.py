"""Cuts connections of other processes, as a network does: by shutting down their sockets."""

from __future__ import annotations

import ctypes
import errno
import os
import re
import socket
import struct
import time
from contextlib import suppress
from pathlib import Path

import pytest


def sockets(pid: int) -> dict[int, int]:
    """The inodes of a process's sockets, with their numbers in the process. A process that has ended has none."""
    found = {}
    with suppress(FileNotFoundError, ProcessLookupError):
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                if match := re.fullmatch(r"socket:\[(\d+)\]", os.readlink(entry)):
                    found[int(match[1])] = int(entry.name)
    return found


def reach(pid: int, number: int) -> socket.socket | None:
    """Returns a socket of another process as one of this process, too; None if it was closed meanwhile.

    Its number may be another file's by then.
    """
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return None
    try:
        own = ctypes.CDLL(None, use_errno=True).syscall(438, process, number, 0)  # pidfd_getfd
    finally:
        os.close(process)
    if own < 0 and ctypes.get_errno() in (errno.EBADF, errno.ESRCH):
        return None
    if own < 0:
        pytest.skip(f"this system lets no process reach another's sockets: {os.strerror(ctypes.get_errno())}")
    try:
        return socket.socket(fileno=own)
    except OSError as error:
        os.close(own)
        if error.errno == errno.ENOTSOCK:
            return None
        raise


def shut(pid: int, number: int) -> None:
    """Shuts a socket of another process down."""
    if s := reach(pid, number):
        with s, suppress(OSError):  # it may have ended meanwhile
            s.shutdown(socket.SHUT_RDWR)


def break_tcp(one: int, other: int) -> int:
    """Closes one side of each TCP connection between two processes."""

    def connections(pid: int) -> dict[tuple[str, str], int]:
        own, found = sockets(pid), {}
        for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "01" and int(fields[9]) in own:  # established
                found[fields[1], fields[2]] = own[int(fields[9])]
        return found

    theirs = connections(other)
    shared = [number for (local, remote), number in connections(one).items() if (remote, local) in theirs]
    for number in shared:
        shut(one, number)
    return len(shared)


def break_unix(pid: int) -> int:
    """Closes the connections that came to a worker's own unix socket."""
    own = sockets(pid)
    came = []
    for line in Path(f"/proc/{pid}/net/unix").read_text().splitlines()[1:]:
        fields = line.split()
        if len(fields) == 8 and fields[5] == "03" and int(fields[6]) in own:  # connected, of a listener with a path
            came.append(own[int(fields[6])])
    for number in came:
        shut(pid, number)
    return len(came)


def between(one: int, other: int) -> list[socket.socket]:
    """Returns one process's ends of its unix connections to another, as sockets of this process, too."""
    found = []
    for number in sockets(one).values():
        if not (s := reach(one, number)):
            continue
        peer = 0
        if s.family == socket.AF_UNIX:
            with suppress(OSError):
                s.getpeername()  # or it listens
                peer = struct.unpack("3i", s.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
        if peer == other:
            found.append(s)
        else:
            s.close()
    return found


def cut(one: int, other: int) -> float:
    """Cuts the unix connections between two processes, which must have one; returns when, by time.monotonic()."""
    ends = between(one, other)
    assert ends, f"processes {one} and {other} have no connection"
    begun = time.monotonic()
    for end in ends:
        with end, suppress(OSError):  # it may have ended meanwhile
            end.shutdown(socket.SHUT_RDWR)
    return begun
