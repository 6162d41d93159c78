"""Clusters of real processes, as `pathways up` starts them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import fresh
from kept import opened
from waiting import HANG_SECONDS, comes

COMMAND = [sys.executable, "-m", "pathways_command"]
# For tests that freeze a process: so long it may be silent before it is lost. The others leave it ten seconds, and ten
# more as the lease, since a busy machine may keep a process from running for a while. The bounds of what is waited for
# are far above either.
FREEZES = ("--silence", "4s", "--lease", "0")


def command(*arguments: str, env: dict[str, str] | None = None, check: bool = True) -> subprocess.CompletedProcess:
    """Runs one command of `pathways` to its end."""
    done = subprocess.run(
        [*COMMAND, *arguments],
        env=fresh.environment(env=env),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
    )
    if check:
        assert done.returncode == 0, f"exit {done.returncode}; stdout:\n{done.stdout}\nstderr:\n{done.stderr}"
    return done


def tokens_of(directory: Path, *tenants: str) -> dict[str, Path]:
    """Makes the files of tenants' tokens, which no one else may read."""
    tokens = {name: directory / f"{name}.token" for name in tenants}
    for path in tokens.values():
        path.touch(mode=0o600)
        path.write_text(command("token", "new").stdout)
    return tokens


def until(what: str, yes) -> None:
    """Waits until yes() is true; the bound is there for a hang alone."""
    # What is asked is often `pathways status`: a process each time, which takes what it waits for off its processor.
    assert comes(yes, pause=0.1), f"waited {HANG_SECONDS} s for {what}"


class Cluster:
    """A controller and workers on this machine; a context manager, which leaves nothing behind or fails.

    Scripts of clients that still run at its end are killed. A worker that dies is not started again, unless restart is
    set. Every client's script begins with begin.
    """

    begin = ""

    def __init__(self, workers: int, devices: int, *arguments: str, restart: bool = False):
        self.clients: list[subprocess.Popen] = []
        # Names of unix sockets are short, so pytest's directories will not do.
        self.dir = Path(tempfile.mkdtemp(prefix="pw", dir="/tmp"))
        try:
            command(
                *("up", "--dir", str(self.dir), "--workers", str(workers), "--devices", str(devices)),
                *("--heartbeat", "200ms", *([] if restart else ["--no-restart"]), *arguments),
                env={"PATHWAYS_DEVICES": ""},
            )
        except BaseException:
            shutil.rmtree(self.dir, ignore_errors=True)
            raise
        self.address = f"unix:{self.dir}/default/controller.sock"
        entries = json.loads((self.dir / "default/processes.json").read_text())
        self.processes = {entry["name"]: entry["pid"] for entry in entries}

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, kind: type | None, *_: object) -> None:
        fresh.end(self.clients)
        logs = {path.name: path.read_text() for path in (self.dir / "default").glob("*.log")}
        failed = kind is not None
        try:
            command("down", "--dir", str(self.dir))
            left = [name for name in self.processes if self.alive(name)]
            assert not left, f"these processes are still there: {left}"
            assert [path.name for path in self.dir.iterdir()] in ([], [".logs"]), "down left more than logs behind"
        except BaseException:
            failed = True
            raise
        finally:
            if failed:
                for name, log in logs.items():
                    print(f"--- {name}\n{log[-4000:]}")
            shutil.rmtree(self.dir, ignore_errors=True)

    def environment(self, **more: str) -> dict[str, str]:
        """What a client's process needs to find the cluster."""
        return {"PATHWAYS_ADDRESS": self.address, "PATHWAYS_DEVICES": "", **more}

    def run(self, code: str, check: bool = True, **env: str) -> subprocess.CompletedProcess:
        """Runs a client's script to its end."""
        return fresh.run(self.begin + code, env=self.environment(**env), check=check)

    def start(self, code: str, **env: str) -> subprocess.Popen:
        """Starts a client's script."""
        self.clients.append(fresh.start(self.begin + code, env=self.environment(**env)))
        return self.clients[-1]

    def report(self) -> dict:
        """What `pathways status` knows."""
        return json.loads(command("status", "--json", "--dir", str(self.dir)).stdout)

    def listed(self) -> dict[str, int]:
        """The processes of the cluster as they are now, by name; 0 for one that is not running."""
        entries = json.loads((self.dir / "default/processes.json").read_text())
        return {entry["name"]: entry.get("pid", 0) for entry in entries}

    def workers(self) -> dict[str, dict]:
        """The workers that are there, by name."""
        return {
            worker["process"]["name"]: worker
            for island in self.report().get("islands", [])
            for worker in island.get("workers", [])
        }

    def idle(self) -> bool:
        """Whether nothing is left: no session, array, memory of a device, block of shared memory."""
        if self.report().get("sessions"):
            return False
        last = [worker.get("last", {}) for worker in self.workers().values()]
        return not any(
            int(said.get("objects", 0))
            or int(said.get("host_bytes", 0)) - int(said.get("host", {}).get("programs", 0))  # which are kept
            or any(map(int, said.get("memory_in_use", [])))
            for said in last
        )

    def opened(self, name: str) -> int:
        """How many sockets and files of shared memory a process has open."""
        return opened(self.processes[name])

    def signal(self, name: str, number: signal.Signals) -> None:
        """Sends a process a signal, and waits until one that is to stop has: it goes on until a thread sees that."""
        os.kill(self.processes[name], number)
        while number == signal.SIGSTOP and self.state(name) not in "TZX":
            time.sleep(0.001)

    def state(self, name: str) -> str:
        """Returns the kernel's letter for what a process does, X where there is none."""
        try:
            return Path(f"/proc/{self.processes[name]}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return "X"

    def alive(self, name: str) -> bool:
        """Whether a process is there and has not ended."""
        return self.state(name) not in "ZX"


def kill_controller(cluster: Cluster) -> None:
    """Kills the controller, and waits until another one answers."""
    was = cluster.listed()["controller"]
    os.kill(was, signal.SIGKILL)
    until("the controller to be started again", lambda: cluster.listed()["controller"] not in (0, was))
