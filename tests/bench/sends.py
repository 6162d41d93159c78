"""Whether sends without a copy pay: MSG_ZEROCOPY, sendfile, and vmsplice with splice, beside plain send.

    python tests/bench/sends.py                         between two processes of this machine, over loopback
    python tests/bench/sends.py --listen 0.0.0.0:7000   on one machine, and on another
    python tests/bench/sends.py --to HOST:7000          between the two

In each turn each way sends 64 MiB once, in random order, out of the same shared memory, by a connection of its own. The
bytes are new ones each time, and the benchmark ends with an error if others arrive. A way's time lasts until all bytes
are in the receiver's memory and, with MSG_ZEROCOPY, until the kernel has said of each send that its memory may be used
again, and whether it was copied after all. Ratios are taken within a turn; the table shows their medians, with the
lowest and highest, and the processor time of both processes. A first turn does not count.

It needs Linux and nothing but Python, so sides may be other machines than those of a cluster.
"""

import argparse
import contextlib
import ctypes
import errno
import fcntl
import hashlib
import mmap
import os
import random
import select
import socket
import statistics
import struct
import subprocess
import sys
import threading
import time

import sides
from page import table

CHUNK = 1 << 20  # bytes a system call
# What Python's socket module does not name; of linux/socket.h and linux/errqueue.h.
SO_ZEROCOPY, MSG_ZEROCOPY, MSG_ERRQUEUE = 60, 0x4000000, 0x2000
ORIGIN_ZEROCOPY, CODE_COPIED = 5, 1
EXTENDED = struct.Struct("=IBBBxII")  # sock_extended_err: error, origin, type, code, info, data
HEAD = struct.Struct("!Q")  # of a turn: its bytes
TAIL = struct.Struct("!32sd")  # what the receiver answers: the bytes' SHA-256, and the processor time of receiving them


class Wrong(Exception):
    """Bytes arrived that were not sent."""


class Memory:
    """Memory that can be sent from by address and as a file."""

    def __init__(self, size):
        self.size = size
        self.file = os.memfd_create("sends")
        os.truncate(self.file, size)
        self.mapped = mmap.mmap(self.file, size)
        self.view = memoryview(self.mapped)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.mapped))


# --- ways to send ---


class Plain:
    """send, which copies."""

    def __init__(self, connection, memory, _):
        self.connection, self.memory = connection, memory

    def send(self):
        at = 0
        while at < self.memory.size:
            at += self.step(at, min(CHUNK, self.memory.size - at))

    def step(self, at, n):
        return self.connection.send(self.memory.view[at : at + n])

    def share(self):
        """Returns which share of sends the kernel says that it copied, or None if it does not say."""


class Zerocopy(Plain):
    """send with MSG_ZEROCOPY, whose memory is not free before the kernel says so in the socket's error queue."""

    def __init__(self, connection, memory, stack):
        super().__init__(connection, memory, stack)
        connection.setsockopt(socket.SOL_SOCKET, SO_ZEROCOPY, 1)
        self.sent = self.done = self.copied = 0

    def send(self):
        super().send()
        while self.done < self.sent:
            self.wait()

    def step(self, at, n):
        while True:
            self.complete()
            try:
                n = self.connection.send(self.memory.view[at : at + n], MSG_ZEROCOPY)
            except OSError as error:
                # Too much is under way, for the socket's option memory or the memory that a user may lock.
                if error.errno != errno.ENOBUFS or self.done == self.sent:
                    raise
                self.wait()
                continue
            self.sent += 1
            return n

    def wait(self):
        poll = select.poll()
        poll.register(self.connection, 0)  # errors alone
        poll.poll()
        self.complete()

    def complete(self):
        """Reads what the kernel has said of sends: their first and last number, and whether it copied them."""
        while True:
            try:
                _, said, _, _ = self.connection.recvmsg(0, 256, MSG_ERRQUEUE)
            except BlockingIOError:
                return
            for _, _, data in said:
                error, origin, _, code, first, last = EXTENDED.unpack_from(data)
                if origin != ORIGIN_ZEROCOPY or error:
                    raise OSError(error, f"of a send, the kernel said {os.strerror(error)}")
                self.done += last - first + 1
                self.copied += (last - first + 1) * (code & CODE_COPIED)

    def share(self):
        return self.copied / self.done


class Sendfile(Plain):
    """sendfile of the memory as a file."""

    def step(self, at, n):
        return os.sendfile(self.connection.fileno(), self.memory.file, at, n)


class Vector(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]


class Splice(Plain):
    """vmsplice of the memory's pages into a pipe, and splice of these into the connection."""

    def __init__(self, connection, memory, stack):
        super().__init__(connection, memory, stack)
        self.pages, self.pipe = os.pipe()
        for end in (self.pages, self.pipe):
            stack.callback(os.close, end)
        fcntl.fcntl(self.pipe, fcntl.F_SETPIPE_SZ, CHUNK)
        self.vmsplice = ctypes.CDLL(None, use_errno=True).vmsplice
        self.vmsplice.argtypes = [ctypes.c_int, ctypes.POINTER(Vector), ctypes.c_ulong, ctypes.c_uint]
        self.vmsplice.restype = ctypes.c_ssize_t

    def step(self, at, n):
        took = self.vmsplice(self.pipe, Vector(self.memory.address + at, n), 1, 0)
        if took < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        left = took
        while left:
            left -= os.splice(self.pages, self.connection.fileno(), left)
        return took


WAYS = {"send": Plain, "MSG_ZEROCOPY": Zerocopy, "sendfile": Sendfile, "vmsplice, splice": Splice}


# --- the receiver ---


def receive(connection):
    """Receives turn after turn, until the sender closes the connection."""
    with connection:
        answer_turns(connection)


def answer_turns(connection):
    buffer = memoryview(b"")
    head = bytearray(HEAD.size)
    while fill(connection, memoryview(head)):
        (size,) = HEAD.unpack(head)
        if len(buffer) != size:
            buffer = memoryview(bytearray(size))
        begin = time.process_time()
        if not fill(connection, buffer):
            return
        took = time.process_time() - begin
        connection.sendall(b".")
        connection.sendall(TAIL.pack(hashlib.sha256(buffer).digest(), took))


def fill(connection, buffer):
    """Returns whether all of a buffer came before the connection ended."""
    at = 0
    while at < len(buffer):
        n = connection.recv_into(buffer[at : at + CHUNK])
        if n == 0:
            return False
        at += n
    return True


def listen(address):
    """Receives from one sender, which has a connection for each way."""
    with socket.create_server(address) as server:
        print(server.getsockname()[1], flush=True)
        threads = [threading.Thread(target=receive, args=(server.accept()[0],)) for _ in WAYS]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


# --- the sender ---


def turn(way):
    """Sends the memory once. Returns the seconds, and the seconds of processor time of both processes."""
    connection = way.connection
    begin, used = time.perf_counter(), time.process_time()
    connection.sendall(HEAD.pack(way.memory.size))
    way.send()
    if not fill(connection, memoryview(bytearray(1))):
        raise ConnectionError("the receiver closed the connection")
    took, used = time.perf_counter() - begin, time.process_time() - used
    tail = bytearray(TAIL.size)
    if not fill(connection, memoryview(tail)):
        raise ConnectionError("the receiver closed the connection")
    digest, received = TAIL.unpack(tail)
    if digest != hashlib.sha256(way.memory.view).digest():
        raise Wrong(f"{type(way).__name__}: other bytes arrived than were sent")
    return took, used + received


def measure(address, size, turns):
    """Returns by way the seconds and processor seconds of each turn and the share of copied sends, or why it is left
    out."""
    memory = Memory(size)
    fresh = memoryview(os.urandom(size + 4096))
    any_order = random.Random(0)

    def renew():
        at = any_order.randrange(4096)
        memory.view[:] = fresh[at : at + size]

    with contextlib.ExitStack() as stack:
        stack.callback(os.close, memory.file)
        connections = {name: stack.enter_context(socket.create_connection(address)) for name in WAYS}
        ways, rows = {}, {}
        for name, connection in connections.items():
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            renew()
            try:
                way = WAYS[name](connection, memory, stack)
                turn(way)
            except ConnectionError:
                raise
            except OSError as error:
                connection.close()
                rows[name] = f"left out: {error}"
                continue
            ways[name] = way
        took = {name: [] for name in ways}
        for _ in range(turns):
            for name in any_order.sample(list(ways), len(ways)):
                renew()
                took[name].append(turn(ways[name]))
    rows.update({name: (took[name], way.share()) for name, way in ways.items()})
    return {name: rows[name] for name in WAYS}


def page(rows, size):
    """Returns the table, with ratios to plain send."""

    def ratios(turns, part):
        got = sorted(a[part] / b[part] for a, b in zip(turns, rows["send"][0], strict=True) if b[part])
        return f"{statistics.median(got):.2f} ({got[0]:.2f} – {got[-1]:.2f})" if got else "–"

    heads = ["way", "ms", "of send", "processor ns a byte", "of send", "copied by the kernel"]
    lines = []
    for name, row in rows.items():
        if isinstance(row, str):
            lines.append([name, row, "", "", "", ""])
            continue
        turns, share = row
        seconds, used = (statistics.median(part) for part in zip(*turns, strict=True))
        copied = "" if share is None else f"{share:.0%} of sends"
        numbers = [f"{seconds * 1e3:.1f}", ratios(turns, 0), f"{used / size * 1e9:.2f}", ratios(turns, 1)]
        lines.append([name, *numbers, copied])
    return table(heads, lines)


def place(address):
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise argparse.ArgumentTypeError(f"{address!r} is no HOST:PORT")
    return host, int(port)


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--listen", type=place, metavar="HOST:PORT", help="receive from another machine, once")
    options.add_argument("--to", type=place, metavar="HOST:PORT", help="send to a process with --listen")
    options.add_argument("--mib", type=float, default=64)
    options.add_argument("--turns", type=int, default=15)
    asked = options.parse_args()
    size = int(asked.mib * (1 << 20))
    if asked.listen:
        listen(asked.listen)
    elif asked.to:
        print(page(measure(asked.to, size, asked.turns), size))
    else:
        command = [sys.executable, __file__, "--listen", "127.0.0.1:0"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as receiver:
            try:
                port = int(receiver.stdout.readline())
                print(page(measure(("127.0.0.1", port), size, asked.turns), size))
            finally:
                receiver.kill()


if __name__ == "__main__":
    sides.run(main, Wrong)
