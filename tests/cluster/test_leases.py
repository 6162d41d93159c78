"""With a lease, faults cost a script time and nothing else; a worker that is lost costs it the arrays there.

`make soak` makes the random part longer than its few seconds; PATHWAYS_SEED repeats its choices.
"""

from __future__ import annotations

import collections
import itertools
import os
import random
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, suppress

import fresh
import pytest
from conftest import SEED, SOAK_SECONDS
from counting import Counting
from cuts import between, sockets
from hosts import cluster_on, may_make_networks, set_line, two_hosts
from kept import Kept
from processes import FREEZES, Cluster, until


def test_no_worker_leaves_a_controller_that_stops_for_longer_than_silence():
    """Workers and script give up connections on which they hear nothing, and have them again when it goes on."""
    with Cluster(2, 2, "--lease", "60s", "--silence", "1s") as cluster, Counting(cluster.start) as script:
        was = {name: worker["process"]["number"] for name, worker in cluster.workers().items()}
        others = [script.pid, *(pid for name, pid in cluster.processes.items() if name.startswith("worker"))]
        open_then = {}
        for pid in others:
            open_then[pid] = set()
            for end in between(pid, cluster.processes["controller"]):
                with end:
                    open_then[pid].add(os.fstat(end.fileno()).st_ino)
        assert all(open_then.values()), open_then
        begun = time.monotonic()
        cluster.signal("controller", signal.SIGSTOP)
        until("all to have given up", lambda: not any(open_then[pid] & sockets(pid).keys() for pid in others))
        cluster.signal("controller", signal.SIGCONT)
        got = script.after(begun)
        assert not got["errors"], got
        assert {name: worker["process"]["number"] for name, worker in cluster.workers().items()} == was
        # The same of a script that stops, as by Ctrl-Z.
        begun = time.monotonic()
        os.kill(script.pid, signal.SIGSTOP)
        until("the controller to have given up", lambda: int(cluster.report()["sessions"][0]["link"]["cut_ms"]) > 0)
        os.kill(script.pid, signal.SIGCONT)
        got = script.after(begun)
        assert not got["errors"] and "resumed" in dict(got["heard"]), got


def break_one(choose: random.Random, pids: list[int]) -> None:
    """Cuts the connections between two of the processes, of those that have any."""
    for one, other in choose.sample(pairs := list(itertools.combinations(pids, 2)), len(pairs)):
        if ends := between(one, other):
            for end in ends:
                with end, suppress(OSError):  # it may have ended meanwhile
                    end.shutdown(socket.SHUT_RDWR)
            return


def stop(choose: random.Random, pid: int) -> None:
    """Stops a process for a moment."""
    os.kill(pid, signal.SIGSTOP)
    time.sleep(choose.uniform(0.01, 0.5))
    os.kill(pid, signal.SIGCONT)


@pytest.mark.soak
def test_scripts_go_on_through_random_faults():
    """Each result is right, nothing fails but for a worker that is lost, no one waits for good, and nothing is left."""
    choose = random.Random(SEED)
    end = time.monotonic() + SOAK_SECONDS
    pauses = collections.defaultdict(list)
    while not pauses or time.monotonic() < end:
        with Cluster(3, 2, *FREEZES, "--lease", "60s", restart=True) as cluster:
            with ExitStack() as running:
                scripts = [running.enter_context(Counting(cluster.start)) for _ in range(2)]
                pids = {f"script-{i}": script.pid for i, script in enumerate(scripts)}
                kept = Kept(lambda cluster=cluster, pids=pids: cluster.listed() | pids)
                # A supervisor gives up a worker that dies eleven times soon after its start, so a cluster has no more.
                kills = 8
                while kills and time.monotonic() < end:
                    time.sleep(choose.uniform(0, 1))
                    now = {name: pid for name, pid in cluster.listed().items() if name != "supervisor" and pid}
                    workers = [pid for name, pid in now.items() if name.startswith("worker")]
                    what = choose.choices(
                        ["cut", "controller stops", "worker stops", "script stops", "controller dies", "worker dies"],
                        [8, 2, 2, 1, 1, 1],
                    )[0]
                    begun = time.monotonic()
                    if what == "cut":
                        break_one(choose, [*now.values(), *(script.pid for script in scripts)])
                    elif what == "controller stops":
                        stop(choose, now["controller"])
                    elif what == "worker stops":
                        stop(choose, choose.choice(workers))
                    elif what == "script stops":
                        stop(choose, choose.choice(scripts).pid)
                    else:
                        kills -= 1
                        os.kill(
                            now["controller"] if what == "controller dies" else choose.choice(workers), signal.SIGKILL
                        )
                    for script in scripts:
                        got = script.after(begun)
                        pauses[what].append(got["seconds"])
                        allowed = {"UNAVAILABLE", "DATA_LOSS"} if what == "worker dies" else set()
                        assert set(got["errors"]) <= allowed and "ended" not in dict(got["heard"]), (what, got)
                until("all processes to run", lambda cluster=cluster: all(cluster.listed().values()))
                for script in scripts:
                    script.after()
                kept.becomes_little()
            until("all to be freed", cluster.idle)
    for what, of in pauses.items():
        print(f"{what}: {len(of) // 2} times, {sorted(of)[len(of) // 2]:.2f} s in the middle, {max(of):.2f} s at most")


@pytest.mark.skipif(not may_make_networks(), reason="network namespaces need root, ip and tc")
@pytest.mark.soak
def test_script_goes_on_through_random_partitions(tmp_path):
    """The line between two hosts drops everything at times, for less or more than --silence: nothing fails."""
    choose = random.Random(SEED)
    with two_hosts() as hosts, ExitStack() as running:
        silence = ("--silence", "1s", "--heartbeat", "200ms")
        address, env = running.enter_context(cluster_on(hosts, tmp_path, *silence, controller=("--lease", "60s")))

        def start(code: str) -> subprocess.Popen:
            asked = fresh.environment(env={"PATHWAYS_ADDRESS": address, "PATHWAYS_DEVICES": "", **env})
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
            return subprocess.Popen([*hosts[1], sys.executable, "-c", fresh.source(code)], env=asked, **pipes)

        pauses, end = [], time.monotonic() + SOAK_SECONDS
        while not pauses or time.monotonic() < end:
            lives = min(end, time.monotonic() + fresh.HANG_SECONDS / 2)  # after all of which a script ends itself
            with Counting(start) as script:
                while not pauses or time.monotonic() < lives:
                    time.sleep(choose.uniform(0, 1))
                    begun = time.monotonic()
                    set_line(hosts, "down")
                    time.sleep(choose.choice([0.05, 0.5, 1, 2, 4]) * choose.uniform(0.5, 1.5))
                    set_line(hosts, "up")
                    got = script.after(begun, time.monotonic())
                    pauses.append(got["seconds"])
                    assert not got["errors"] and "ended" not in dict(got["heard"]), got
        print(
            f"{len(pauses)} partitions; the next result came after {sorted(pauses)[len(pauses) // 2]:.2f} s in the "
            f"middle, {max(pauses):.2f} s at most"
        )
