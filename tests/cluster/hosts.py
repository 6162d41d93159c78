"""Processes of a cluster that tests start one by one, and hosts that the kernel keeps apart.

Hosts are network namespaces joined by a pair of virtual interfaces, on which tc may lie; that needs root.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from contextlib import ExitStack, contextmanager
from pathlib import Path

import fresh
from processes import COMMAND, HANG_SECONDS, command, until


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@contextmanager
def serving(name: str, *arguments: str, inside: tuple[str, ...] = (), env: dict[str, str] | None = None):
    """Runs a command of pathways that serves, and sees to it that it ends well when it is told to."""
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            [*inside, *COMMAND, name, *arguments],
            env=fresh.environment(env={"PATHWAYS_DEVICES": "", **(env or {})}),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:
            yield process
            process.terminate()
            assert process.wait(HANG_SECONDS) == 0, f"{name} did not end well"
        except BaseException:
            log.seek(0)
            print(f"--- {name} {arguments}\n{log.read()[-4000:]}")
            raise
        finally:
            process.kill()
            process.wait()


def there(address: str, inside: tuple[str, ...] = (), env: dict[str, str] | None = None) -> str:
    """What `pathways status` says, or "" as long as there is no answer."""
    done = subprocess.run(
        [*inside, *COMMAND, "status", "--address", address],
        env=fresh.environment(env=env),
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
    )
    return done.stdout if done.returncode == 0 else ""


class NoDiscipline(Exception):
    """The kernel lacks a queueing discipline."""


def may_make_networks() -> bool:
    if os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("tc"):
        return False
    name = f"pwtry{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True).returncode == 0
    if made:
        subprocess.run(["ip", "netns", "del", name], check=True)
    return made


def _end(side: str) -> str:
    """The name of one end of the line between two hosts."""
    return f"v{os.getpid() % 100000}{side}"


def set_line(hosts: list[tuple[str, ...]], state: str) -> None:
    """Has the line between two hosts be "up" or "down"; nothing tells their processes of it."""
    subprocess.run([*hosts[0], "ip", "link", "set", _end("a"), state], check=True)


@contextmanager
def two_hosts(*shape: str):
    """Two hosts, 10.77.0.1 and 10.77.0.2; yields how to run inside each.

    shape: tc's queueing discipline at both ends of the line between them.

    Raises:
      NoDiscipline: the kernel has none of that kind.
    """
    names = [f"pw{os.getpid()}{side}" for side in "ab"]
    try:
        for name in names:
            subprocess.run(["ip", "netns", "add", name], check=True)
        ends = [_end(side) for side in "ab"]
        subprocess.run(["ip", "link", "add", ends[0], "type", "veth", "peer", "name", ends[1]], check=True)
        for i, (name, end) in enumerate(zip(names, ends, strict=True), 1):
            inside = ["ip", "netns", "exec", name]
            subprocess.run(["ip", "link", "set", end, "netns", name], check=True)
            subprocess.run([*inside, "ip", "addr", "add", f"10.77.0.{i}/24", "dev", end], check=True)
            for device in (end, "lo"):
                subprocess.run([*inside, "ip", "link", "set", device, "up"], check=True)
            if shape:
                shaped = subprocess.run([*inside, "tc", "qdisc", "add", "dev", end, "root", *shape])
                if shaped.returncode != 0:
                    raise NoDiscipline(f"the kernel has no {shape[0]}")
        yield [("ip", "netns", "exec", name) for name in names]
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)


@contextmanager
def cluster_on(
    hosts: list[tuple[str, ...]],
    directory: Path,
    *options: str,
    controller: tuple[str, ...] = (),
    workers: tuple[tuple[str, ...], ...] = (("--name", "w1", "--devices", "2"), ("--name", "w2", "--devices", "2")),
    network: int = 77,
):
    """A cluster under TLS: a controller on the first of two hosts, and a worker on each.

    Yields the controller's address, and the environment of its clients.

    options: of all its processes.
    network: workers listen at 10.network.0.1 and 10.network.0.2.
    """
    address, certs = "tcp:10.77.0.1:8476", directory / "certs"
    names = {f"10.{n}.0.{host}": None for n in (77, network) for host in (1, 2)}
    command("certs", str(certs), *(part for name in names for part in ("--host", name)))
    env = {f"PATHWAYS_TLS_{kind.upper()}": str(certs / f"{kind}.pem") for kind in ("cert", "key", "ca")}
    options = ("--dir", str(directory), *options)
    with ExitStack() as running:
        running.enter_context(
            serving("controller", "--listen", address, *controller, *options, inside=hosts[0], env=env)
        )
        for i, (host, own) in enumerate(zip(hosts, workers, strict=True), 1):
            at = ("--address", address, "--listen", f"tcp:10.{network}.0.{i}:8477")
            running.enter_context(serving("worker", *at, *own, *options, inside=host, env=env))
        until("two workers", lambda: there(address, hosts[0], env).count(" × cpu") == 2)
        yield address, env
