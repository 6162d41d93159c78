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
    def __init__(self):
        import computation
        import jax

        programs, self.zeros = computation.programs(jax.devices()[:1])
        self.f, self.x = programs["add"], self.zeros

    @endpoint
    def zero(self) -> None:
        self.x = self.zeros

    @endpoint
    def add(self) -> None:
        self.x = self.f(self.x)
        self.x.block_until_ready()

    @endpoint
    def value(self) -> float:
        return float(self.x[0])


def main():
    stream = sides.answers()
    import computation

    mesh = this_host().spawn_procs(per_host={"gpus": int(sys.argv[1])})
    hosts = mesh.spawn("hosts", Host)

    def answer(program, calls, sync):
        hosts.zero.call().get()
        start = time.perf_counter()
        for _ in range(calls - 1):
            if sync:
                hosts.add.call().get()
            else:
                hosts.add.broadcast()
        hosts.add.call().get()
        seconds = time.perf_counter() - start
        computation.check(program, calls, [value for _, value in hosts.value.call().get()])
        return {"seconds": seconds}

    try:
        hosts.zero.call().get()
        sides.serve(stream, answer, {"version": importlib.metadata.version("torchmonarch")})
    finally:
        mesh.stop().get()


if __name__ == "__main__":
    main()
