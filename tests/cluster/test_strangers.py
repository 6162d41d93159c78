"""Another user of the machine that a cluster runs on: what it can reach, and what it can read."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import fresh
import pytest
from processes import Cluster
from test_faults import lines

# Has arrays in memory that it and the workers share, and stays.
SESSION = """
import jax, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

mesh = Mesh(np.array(jax.devices()), ("d",))
x = jax.device_put(np.ones((2, 1 << 18), np.float32), NamedSharding(mesh, P("d")))
print(float(np.asarray(jax.jit(lambda a: a.sum())(x))), flush=True)
input()
"""

# Everything is imported before the user changes, who may not read the installation. It prints what was not refused.
STRANGER = """
import os, socket, sys

files, sockets, processes = (arg.split(":") for arg in sys.argv[1:])
os.setgroups([])
os.setresgid(65534, 65534, 65534)
os.setresuid(65534, 65534, 65534)

def reach(path):
    with socket.socket(socket.AF_UNIX) as s:
        s.connect(path)

def read(path):
    with open(path, "rb") as f:
        f.read(1)

attempts = [(reach, path) for path in sockets] + [(read, path) for path in files]
for pid in processes:
    attempts += [(read, f"/proc/{pid}/{name}") for name in ("environ", "mem", "maps")]
    attempts += [(os.listdir, f"/proc/{pid}/{name}") for name in ("fd", "map_files", "root", "cwd")]
    attempts += [(read, f"/proc/{pid}/fd/{n}") for n in range(64)]
for attempt, path in attempts:
    try:
        attempt(path)
    except PermissionError:
        continue
    except Exception as e:
        print(path, e)
        continue
    print(path, "is open to others")
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="acting as another user needs root")
def test_another_user_of_the_machine_reaches_nothing_of_a_cluster():
    with Cluster(2, 1, "--log", "debug") as cluster:
        client = cluster.start(SESSION)
        assert lines(client, 1) == [str(float(2 << 18))]
        directory = cluster.dir / "default"
        files = sorted(path for path in directory.rglob("*") if path.is_file())
        sockets = sorted(path for path in directory.rglob("*") if path.is_socket())
        assert directory / "token" in files and len(sockets) == 3, (files, sockets)
        for path in [*files, *sockets, directory]:  # each by itself, also where the directories above it are open
            assert not path.stat().st_mode & 0o077, f"{path} has mode {path.stat().st_mode:o}"

        pids = [client.pid, *cluster.processes.values()]
        done = subprocess.run(
            [sys.executable, "-c", STRANGER, *(":".join(map(str, part)) for part in (files, sockets, pids))],
            capture_output=True,
            text=True,
            timeout=fresh.HANG_SECONDS,
        )
        assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr

        # Shared memory has no name in a file system, and no socket is in the abstract name space, which has no modes.
        for pid in pids:
            mapped = Path(f"/proc/{pid}/maps").read_text()
            assert "/dev/shm" not in mapped and "/tmp/pathways" not in mapped
        assert any("memfd:pathways" in Path(f"/proc/{pid}/maps").read_text() for pid in pids)
        names = [line.split()[-1] for line in Path("/proc/net/unix").read_text().splitlines()]
        assert not [name for name in names if name.startswith("@") and "pathways" in name]

        # What every user may read, and what an operator may show around.
        token = (directory / "token").read_text().strip()
        open_to_all = [Path(f"/proc/{pid}/cmdline").read_text() for pid in pids]
        shown = [path.read_text() for path in directory.glob("*.log")]
        assert len(token) > 40 and not any(token in text for text in open_to_all + shown)
        client.communicate("\n", timeout=fresh.HANG_SECONDS)
