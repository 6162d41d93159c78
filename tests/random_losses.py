"""A random program that goes on while workers of its cluster are killed: one process, mesh and set of jitted functions.

`go_on` first runs the program of a seed as it is, and saves what each array has to be, for a comparison with stock JAX.
Then it runs it again and again, from arrays that it has and from those that it makes anew, one call at a time or with
some captured, while workers and the controller are killed at any time. It demands that

- an array that has nothing to do with a lost worker is right, and another one is right or says what was lost;
- shards on lost devices that were there before say DATA_LOSS, and those beside them are right;
- once other workers have the places, everything is right again;
- at the end, with the session still there, no array is left, and no process has more files or memory than before.
"""

from __future__ import annotations

import gc
import json
import os
import random
import signal
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import jax
import numpy as np
import pathways
import random_programs
from kept import Kept
from waiting import comes

# What JAX raises: the first from a read, the other from a call.
ERRORS = (jax.errors.JaxRuntimeError, ValueError)


@dataclass(eq=False)
class Held:
    """An array of the program, by its number there. Devices are numbers, too."""

    number: int
    array: jax.Array
    may_fail: bool  # what made it may have met a worker that was killed
    exposed: set[int]  # of its devices, those whose workers were killed since it was made
    read: bool = False  # then this process may have its bytes
    lost: set[int] = field(default_factory=set)  # devices whose shards are lost for certain

    def sound(self) -> bool:
        return not self.may_fail and not self.exposed


class Losses:
    """Kills processes of a cluster, and knows which devices may be lost by that. For one thread."""

    def __init__(self, choose: random.Random, folder: Path):
        self.choose, self.folder = choose, folder
        self.events = pathways.events()
        self.behind = {device.id: device.worker for device in jax.devices()}
        self.window: set[int] = set()  # devices whose workers are killed, until it is sure that others are behind them
        self.killers: list[threading.Thread] = []

    def pids(self) -> dict[str, int]:
        """The processes of the cluster, by name; 0 for one that does not run."""
        entries = json.loads((self.folder / "processes.json").read_text())
        return {entry["name"]: entry.get("pid", 0) for entry in entries if entry["name"] != "supervisor"}

    def kill(self, name: str, delay: float) -> None:
        """Kills a process after a delay, and waits until it has gone."""
        time.sleep(delay)
        if not (pid := self.pids()[name]):
            return
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        with suppress(FileNotFoundError, ProcessLookupError):
            while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX":
                time.sleep(0.001)

    def begin(self, held: list[Held]) -> list[str]:
        """Has some processes killed soon; returns which."""
        workers = [name for name in self.pids() if name.startswith("worker")]
        names = self.choose.sample(workers, self.choose.choice([0, 1, 1, 1, 1, 2]))
        self.window = {d for d, name in self.behind.items() if name in names}
        for x in held:
            x.exposed |= self.window & {device.id for device in x.array.devices()}
            if x.exposed and not x.read and not x.may_fail:
                x.array.block_until_ready()
                x.lost = set(x.exposed)
        if not names or self.choose.random() < 0.15:
            names.append("controller")
        longest = self.choose.choice([0.02, 0.1, 0.5])
        times = [(name, self.choose.uniform(0, longest)) for name in names]
        self.killers = [threading.Thread(target=self.kill, args=each) for each in times]
        for killer in self.killers:
            killer.start()
        return names

    def end(self) -> None:
        """Waits until those that are to be killed have been, and others are behind their devices."""
        for killer in self.killers:
            killer.join()
        left = set(self.window)

        def serves(d):
            try:  # what is sent from now on does not find one that was killed before
                return np.asarray(jax.device_put(np.float32(d), jax.devices()[d])) == d
            except ERRORS as error:
                tells(error)
                return False

        def all_serve():
            left.difference_update([d for d in left if serves(d)])
            return not left

        assert comes(all_serve), f"nothing is behind the devices {sorted(left)}"
        while event := self.events._take(0):  # what has happened until now; no more
            if event.kind == "rebound":
                self.behind.update((device.id, event.worker) for device in event.devices)
        self.window = set()


def tells(error: Exception, *codes: str) -> None:
    """Demands of an error that it says which worker was lost, if the controller can know it."""
    codes = codes or ("DATA_LOSS", "UNAVAILABLE")
    names = "worker-" in str(error) or "before the controller started again" in str(error)
    assert names and any(code in str(error) for code in codes), error


class Captured:
    """The calls of a program from first to last as one, which takes over what they donate."""

    def __init__(self, program: random_programs.Program, first: int, last: int):
        self.first, self.last = first, last
        self.steps = [step for step, _ in program.calls[first:last]]
        made = {n for step in self.steps for n in step.results}
        donated = {step.arguments[0] for step in self.steps if step.donated}
        self.needs = {n for step in self.steps for n in step.arguments} - made
        self.gives, makes = self.needs & donated, made - donated

        def call(given, kept):
            arrays = program.run(given | kept, first, last)
            return {n: arrays[n] for n in makes}

        self.call = pathways.program(call, donate_argnums=0)


class Run:
    """The arrays of a program that is run again and again."""

    def __init__(self, seed: int, losses: Losses):
        self.losses, self.choose = losses, losses.choose
        steps = random_programs.draw(seed)
        self.program = random_programs.Program(steps, self.choose.choice([jax.device_put, pathways.reshard]))
        self.values = self.program.values()
        self.places = {i: set(place.devices) for i, (_, _, place) in enumerate(steps.inputs)}
        self.places |= {n: set(step.place.devices) for step in steps.steps for n in step.results}
        cuts = [sorted(self.choose.sample(range(len(steps.steps) + 1), 2)) for _ in range(2)]
        self.captured = [Captured(self.program, *cut) for cut in cuts]
        self.held: dict[int, Held] = {}
        self.older: list[Held] = []  # of runs before
        self.want: dict[int, np.ndarray] = {}
        self.seen: Counter[str] = Counter()

    def touched(self, step: random_programs.Step) -> set[int]:
        """The devices that a call uses: what it has of its own is made on the default one."""
        places = [self.places[n] for n in (*step.arguments, *step.results)]
        return set().union(*places, [0] if step.own else [])

    def fails_well(self, touched: set[int], sources: list[Held], call):
        """Returns what a call returns, None if it fails; then it was about devices that may be lost."""
        try:
            return call()
        except ERRORS as error:
            tells(error)
            assert touched & self.losses.window or not all(x.sound() for x in sources), (touched, error)
            self.seen["calls that fail"] += 1
            return None

    def hold(self, number: int, array: jax.Array, touched: set[int], sound: bool) -> Held:
        window = self.losses.window
        self.held[number] = Held(number, array, not sound or bool(touched & window), window & self.places[number])

    def make_inputs(self) -> None:
        """Keeps some sound arrays of the last run, and makes the others."""
        before, self.held = self.held, {}
        self.older = [x for x in [*self.older, *before.values()] if self.choose.random() < 0.4][-12:]
        for i, value in enumerate(self.values):
            if (x := before.get(i)) and x.sound() and self.choose.random() < 0.5:
                self.held[i] = x
                continue
            touched = self.places[i]
            array = self.fails_well(touched, [], lambda i=i, value=value: self.program.put(i, value))
            if array is not None:
                self.hold(i, array, touched, True)
        self.older = [x for x in self.older if x is not self.held.get(x.number)]

    def one(self, step: random_programs.Step, call) -> None:
        """Makes one call, if what it takes is there."""
        if not all(n in self.held for n in step.arguments):
            return
        sources = [self.held[n] for n in step.arguments]
        if step.donated:
            del self.held[step.arguments[0]]
        touched = self.touched(step)
        arrays = [x.array for x in sources]
        reshard = step.name == "reshard"
        results = self.fails_well(
            touched, sources, lambda: self.program.reshard(*arrays, call) if reshard else call(*arrays)
        )
        if results is not None:
            for number, array in zip(step.results, jax.tree.leaves(results), strict=True):
                self.hold(number, array, touched, all(x.sound() for x in sources))

    def play(self, captured: Captured) -> None:
        """Makes the calls of a captured function, if what it takes is there. Each fails by itself."""
        if not all(n in self.held for n in captured.needs):
            return
        sources = {n: self.held[n] for n in captured.needs}
        given = {n: self.held.pop(n).array for n in captured.gives}
        kept = {n: x.array for n, x in sources.items() if n not in given}
        touched = set().union(*map(self.touched, captured.steps))
        results = self.fails_well(touched, list(sources.values()), lambda: captured.call(given, kept))
        if results is None:
            return
        sound = {n: x.sound() for n, x in sources.items()}
        for step in captured.steps:
            touched = self.touched(step)
            for n in step.results:
                sound[n] = not touched & self.losses.window and all(sound[a] for a in step.arguments)
                if n in results:
                    self.hold(n, results[n], touched, sound[n])

    def once(self, captured: Captured | None) -> None:
        """Runs the program."""
        self.make_inputs()
        first, last = (captured.first, captured.last) if captured else (0, 0)
        for step, call in self.program.calls[:first]:
            self.one(step, call)
        if captured:
            self.play(captured)
        for step, call in self.program.calls[last:]:
            self.one(step, call)

    def look(self, x: Held) -> None:
        """Reads an array, or each of its shards, and says how that was."""
        want = self.want[x.number]

        def same(got, want):
            assert (got.shape, got.dtype) == (want.shape, want.dtype)
            assert got.tobytes() == want.tobytes(), f"array {x.number} is wrong"

        if self.choose.random() < 0.5 and not x.lost:
            x.read = True
            try:
                same(np.asarray(x.array), want)
                self.seen["right arrays"] += 1
            except ERRORS as error:
                tells(error)
                assert not x.sound(), f"array {x.number}, with no part in a loss, fails: {error}"
                self.seen["failed arrays"] += 1
            return
        closed = not self.losses.window
        for shard in x.array.addressable_shards:
            d = shard.device.id
            try:
                data = shard.data
                if d in x.lost and closed:  # this process may have its bytes, if it shares them with one that was read
                    data = jax.device_put(data, jax.devices()[d - 1])
                got = np.asarray(data)
            except ERRORS as error:
                tells(error, *(["DATA_LOSS"] if d in x.lost and closed else []))
                assert x.may_fail or d in x.exposed, f"array {x.number} fails on device {d}: {error}"
                self.seen["failed shards"] += 1
                continue
            assert not (closed and d in x.lost), f"array {x.number} is lost on device {d}, and can be read"
            same(got, want[shard.index])
            self.seen["right shards"] += 1
        x.read = True

    def look_at_all(self) -> None:
        """Reads all, or some and leaves the rest."""
        for x in [*self.held.values(), *self.older]:
            if x.lost and not self.losses.window or self.choose.random() < 0.7:
                self.look(x)


def arrays_left() -> dict[str, list[int]]:
    """By session and by worker: how many arrays there are, and the bytes that each device has in use; none of 0."""
    report = pathways.status().report
    left = {f"session {s['session']}": [int(s.get("objects", 0))] for s in report.get("sessions", [])}
    for island in report["islands"]:
        for worker in island.get("workers", []):
            last = worker.get("last", {})
            left[worker["process"]["name"]] = [int(n) for n in (last.get("objects", 0), *last.get("memory_in_use", []))]
    return {of: counts for of, counts in left.items() if any(counts)}


def go_on(seed: int, folder: str, path: str, faults: int, seconds: float) -> None:
    """Runs the program of a seed while processes of the cluster in a folder are killed, so many times at most."""
    choose = random.Random(seed)
    losses = Losses(choose, Path(folder))
    run = Run(seed, losses)
    run.once(None)
    run.want = {n: np.asarray(x.array) for n, x in run.held.items()}
    random_programs.write(path, {seed: random_programs.bits([run.want[n] for n in sorted(run.want)])})
    for captured in run.captured:
        run.once(captured)
        run.look_at_all()
    kept = Kept(lambda: losses.pids() | {"script": os.getpid()})
    end = time.monotonic() + seconds  # all is compiled
    while faults and time.monotonic() < end:
        faults -= 1
        names = losses.begin([*run.held.values(), *run.older])
        print("kills", *names, "behind", *sorted(losses.window), flush=True)
        begun = time.monotonic()
        while True:
            run.once(choose.choice([None, *run.captured]))
            if choose.random() < 0.7:
                run.look_at_all()
            if choose.random() < 0.4 or time.monotonic() > begun + 3:
                break
        losses.end()
        run.look_at_all()
        took = time.monotonic() - begun
        print(f"goes on after {took:.2f} s", flush=True)
        assert took < 40, "the program stood still for longer than a busy machine explains"
        for _ in range(choose.randrange(3)):
            run.once(choose.choice([None, *run.captured]))
            run.look_at_all()
    print(dict(run.seen), flush=True)
    assert comes(lambda: all(losses.pids().values())), "some processes of the cluster were not started again"
    kept.becomes_little()
    del run, captured
    gc.collect()
    assert comes(lambda: not arrays_left()), f"arrays are left: {arrays_left()}"
