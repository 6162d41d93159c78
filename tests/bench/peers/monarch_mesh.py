"""Monarch: N processes of one device and an actor mesh over them. Calls are broadcast; a synchronous one is awaited."""

import importlib.metadata
import os
import pathlib
import sys
import time

HERE = str(pathlib.Path(__file__).parents[1])
sys.path.insert(0, HERE)
os.environ["PYTHONPATH"] = HERE  # for the processes of the mesh

import sides  # noqa: E402

try:
    from monarch.actor import Actor, endpoint, this_host
except ImportError as error:
    sides.leave_out(sides.answers(), str(error))
    sys.exit()


class Host(Actor):
    def __init__(self, n: int, port: int):
        import computation
        from monarch.actor import current_rank

        self.participant = computation.Participant(current_rank().rank, n, port)

    @endpoint
    def begin(self, program: str) -> None:
        self.participant.begin(program)

    @endpoint
    def run(self, program: str) -> None:
        self.participant.run(program)

    @endpoint
    def value(self) -> float:
        return self.participant.value()


def main():
    """With a second argument, its processes are joined by gloo and have programs with collectives."""
    stream = sides.answers()
    import computation

    n, joined = int(sys.argv[1]), len(sys.argv) > 2
    mesh = this_host().spawn_procs(per_host={"gpus": n})
    hosts = mesh.spawn("hosts", Host, n, sides.free_port() if joined else 0)

    def answer(program, calls, sync):
        hosts.begin.call(program).get()
        start = time.perf_counter()
        for _ in range(calls - 1):
            if sync:
                hosts.run.call(program).get()
            else:
                hosts.run.broadcast(program)
        hosts.run.call(program).get()
        seconds = time.perf_counter() - start
        computation.check(program, calls, [value for _, value in hosts.value.call().get()])
        return {"seconds": seconds}

    try:
        hosts.begin.call("add").get()
        sides.serve(stream, answer, {"version": importlib.metadata.version("torchmonarch")})
    finally:
        mesh.stop().get()


if __name__ == "__main__":
    main()
