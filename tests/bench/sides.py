"""A process that measures on request, seen from both ends. Each request and each answer is one line of JSON.

The first line is the process's own: {} where it is ready, {"left out": why} where it cannot run here. It ends when its
standard input does, so that nothing stays behind whatever becomes of the process that asked.
"""

import contextlib
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys

GRACE = 60  # seconds to end in, once asked to; far above what any side takes


class Ended(Exception):
    """A side that ended when an answer was expected."""


def run(main, ended=Ended):
    """Runs a benchmark, which SIGTERM ends as ^C does: what it has started is ended first."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        main()
    except ended as error:
        sys.exit(f"{pathlib.Path(sys.argv[0]).name}: {error}")
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)


class Side:
    """The asking end. Start several, then await each: they come up at the same time."""

    def __init__(self, command, env=None):
        # A session of its own: ^C is for the asking process alone, which ends the others in order.
        self.process = subprocess.Popen(
            command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )

    def hear(self):
        line = self.process.stdout.readline()
        if not line:
            command = " ".join(map(str, self.process.args))
            raise Ended(f"{command} ended with {self.process.wait()}; what it wrote stands above")
        return json.loads(line)

    def tell(self, **asked):
        print(json.dumps(asked), file=self.process.stdin, flush=True)

    def ask(self, **asked):
        self.tell(**asked)
        return self.hear()

    def end(self):
        """Asks the process to end, and does not wait."""
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()

    def close(self):
        self.end()
        try:
            self.process.wait(GRACE)
        except subprocess.TimeoutExpired:
            print(f"{self.process.args} did not end in {GRACE} s and was killed", file=sys.stderr)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self.process.stdout.close()


def processes(sides):
    """Returns the numbers of the sides' processes, and of those that these have started."""
    return family([side.process.pid for side in sides])


def family(pids):
    """Returns the numbers of processes, and of those that these have started, by any thread."""
    found = list(pids)
    for number in found:  # grows
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended
            for task in pathlib.Path(f"/proc/{number}/task").iterdir():
                found += map(int, (task / "children").read_text().split())
    return found


@contextlib.contextmanager
def paused(sides):
    """Stops sides, and the processes that they have started, so that they take no time from what is measured."""
    found = processes(sides)
    try:
        for pid in found:
            os.kill(pid, signal.SIGSTOP)
        yield
    finally:
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def close(sides):
    """Ends several sides at the same time."""
    for side in sides:
        side.end()
    for side in sides:
        side.close()


def answers():
    """Returns the stream for answers; what else goes to standard output from here on is dropped."""
    stream = os.fdopen(os.dup(1), "w")
    with open(os.devnull, "w") as nothing:
        os.dup2(nothing.fileno(), 1)
    return stream


def serve(stream, answer, first=None):
    """The answering end: says `first`, then answer(**asked) for each request until there are no more."""
    print(json.dumps(first or {}), file=stream, flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(**json.loads(line))), file=stream, flush=True)


def serve_ranks(stream, n, *command):
    """Starts n ranks, each the command with its rank and one free port, and answers for them as one side.

    The time is that of the slowest; what one leaves out all do.
    """
    port = free_port()
    ranks = [Side([*command, str(rank), str(port)]) for rank in range(n)]

    def answer(**asked):
        for rank in ranks:
            rank.tell(**asked)
        heard = [rank.hear() for rank in ranks]
        return max(heard, key=lambda one: one.get("seconds", float("inf")))

    try:
        first = [rank.hear() for rank in ranks]
        serve(stream, answer, first[0])
    finally:
        close(ranks)


def leave_out(stream, why):
    """Says that this side cannot run here."""
    print(json.dumps({"left out": why}), file=stream, flush=True)


def free_port():
    """A TCP port that is free at this moment."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]
