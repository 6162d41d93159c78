"""A cluster over TCP: on loopback, under TLS, and between two hosts, with delay and loss where the kernel has netem."""

from __future__ import annotations

import subprocess
import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path

import fresh
import pytest
from hosts import NoDiscipline, cluster_on, free_port, may_make_networks, serving, there, two_hosts
from processes import HANG_SECONDS, command, until

ROLES = ("operator", "worker", "tenant")
SCRIPT = """
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
devices = jax.devices()
mesh = Mesh(np.array(devices), ("d",))
x = np.arange(len(devices) * 1024 * 256, dtype=np.float32).reshape(len(devices), -1)  # a MiB a device
a = jax.device_put(x, NamedSharding(mesh, P("d")))
step = jax.jit(jax.shard_map(lambda a: jax.lax.psum(a * 2, "d"), mesh=mesh, in_specs=P("d"), out_specs=P()))
expected = (x * 2)[0]
for row in x[1:]:
    expected = expected + row * 2
assert np.array_equal(np.asarray(step(a))[0], expected)
turned = jax.jit(lambda a: a.T, out_shardings=NamedSharding(mesh, P("d")))(a)
assert np.array_equal(np.asarray(turned), x.T)
half = len(devices) // 2  # of one host, where there are two
here, there = (Mesh(np.array(some), ("d",)) for some in (devices[:half], devices[half:]))
rows = jax.device_put(x, NamedSharding(here, P("d")))
copies = jax.device_put(rows, NamedSharding(there, P()))
assert all(np.array_equal(np.asarray(one.data), x) for one in copies.addressable_shards)
tree = pathways.reshard([rows, rows + 1], NamedSharding(there, P()))
assert all(np.array_equal(np.asarray(one.data), x + 1) for one in tree[1].addressable_shards)
assert memoryview(a.addressable_shards[-1].data).tobytes() == x[-1:].tobytes()
print(len(devices), float(jnp.sum(jax.device_put(a[0, :4], devices[-1]))))
"""


def test_processes_of_this_user_find_the_token(tmp_path):
    """Without certificates, on addresses that only this machine reaches: this user's processes find the token."""
    address = f"tcp:127.0.0.1:{free_port()}"
    mine = {"PATHWAYS_DIR": str(tmp_path)}
    with serving("controller", "--listen", address, env=mine), ExitStack() as workers:
        for i in range(2):
            workers.enter_context(
                serving(
                    *("worker", "--address", address, "--listen", "tcp:127.0.0.1:0", "--name", f"w{i}"),
                    *("--devices", "2"),
                    env=mine,
                )
            )
        until("two workers", lambda: there(address, env=mine).count(" × cpu") == 2)
        done = fresh.run(SCRIPT, env={"PATHWAYS_ADDRESS": address, "PATHWAYS_DEVICES": "", **mine})
        assert done.stdout.strip() == "4 6.0"
        other = {"PATHWAYS_ADDRESS": address, "PATHWAYS_DEVICES": "", "PATHWAYS_DIR": str(tmp_path / "other")}
        done = fresh.run("import jax; jax.devices()", env=other, check=False)
        assert "UNAUTHENTICATED" in done.stderr and str(tmp_path / "default/token") in done.stderr, done.stderr


@contextmanager
def two_workers(directory: Path, env: dict[str, str], *options: str, own: dict[str, str] | None = None):
    """Returns a controller's address once it has two workers, all with these options, or this environment of their own.

    Who asks has env.
    """
    address = f"tcp:localhost:{free_port()}"
    options = ("--dir", str(directory), *options)
    worker = ("worker", "--address", address, "--listen", "tcp:localhost:0", *options)
    with (
        serving("controller", "--listen", address, *options, env=own),
        serving(*worker, "--name", "w0", env=own),
        serving(*worker, "--name", "w1", env=own),
    ):
        until("two workers", lambda: there(address, env=env).count(" × cpu") == 2)
        yield address


def test_strangers_certificates_are_refused(tmp_path):
    """Everybody shows a certificate; who has none, or one of another authority, is refused."""
    mine, other = tmp_path / "mine", tmp_path / "other"
    for directory in (mine, other):
        command("certs", str(directory))

    def shown(directory: Path) -> dict[str, str]:
        return {f"PATHWAYS_TLS_{k.upper()}": str(directory / f"{k}.pem") for k in ("cert", "key", "ca")}

    env = shown(mine)
    with two_workers(tmp_path, env, own=env) as address:
        # With certificates of another authority, and without TLS.
        for stranger in (shown(other), {}):
            done = command("status", "--address", address, env=stranger, check=False)
            assert done.returncode == 1 and "UNAUTHENTICATED" in done.stderr, done.stderr
        done = fresh.run(SCRIPT, env={"PATHWAYS_ADDRESS": address, "PATHWAYS_DEVICES": "", **env})
        assert done.stdout.strip() == "2 6.0"


def test_a_client_needs_the_token_beside_tls(tmp_path):
    """With --tls-mutual=false a client has the authority and the token alone; without the token it is refused."""
    certs = tmp_path / "certs"
    command("certs", str(certs))
    token = tmp_path / "token"
    token.write_text("open sesame\n")
    files = [part for kind in ("ca", "cert", "key") for part in (f"--tls-{kind}", str(certs / f"{kind}.pem"))]
    env = {"PATHWAYS_TLS_CA": str(certs / "ca.pem"), "PATHWAYS_TOKEN_FILE": str(token)}
    with two_workers(tmp_path, env, "--token-file", str(token), "--tls-mutual=false", *files) as address:
        wrong = command("status", "--address", address, env={**env, "PATHWAYS_TOKEN": "wrong"}, check=False)
        assert wrong.returncode == 1 and "the token is not this cluster's" in wrong.stderr
        for less in ({"PATHWAYS_TLS_CA": env["PATHWAYS_TLS_CA"]}, {"PATHWAYS_TOKEN_FILE": str(token)}):
            done = command("status", "--address", address, "--dir", str(tmp_path), env=less, check=False)
            assert done.returncode == 1, done.stdout
        done = fresh.run(SCRIPT, env={"PATHWAYS_ADDRESS": address, "PATHWAYS_DEVICES": "", **env})
        assert done.stdout.strip() == "2 6.0"


def check_roles(tmp_path, of, token_or_certificate):
    """Starts a cluster whose processes have the credentials of their roles, and tries those of other roles."""
    address = f"tcp:localhost:{free_port()}"
    worker = ("worker", "--address", address, "--listen", f"tcp:localhost:{free_port()}", "--dir", str(tmp_path))
    with serving("controller", "--listen", address, "--dir", str(tmp_path), env=of["operator"]):
        until("the controller", lambda: there(address, env=of["tenant"]))
        refused = command(*worker, "--wait", "5s", env=of["tenant"], check=False)
        assert "PERMISSION_DENIED" in refused.stderr, refused.stderr
        assert token_or_certificate("worker") in refused.stderr, refused.stderr
        with serving(*worker, env=of["worker"]):
            until("the worker", lambda: "cpu" in there(address, env=of["operator"]))
            client = {"PATHWAYS_ADDRESS": address, "PATHWAYS_DEVICES": ""}
            script = "import jax; print(len(jax.devices()), float(jax.numpy.ones(1 << 20).sum()))"
            assert fresh.run(script, env=client | of["tenant"]).stdout.split() == ["1", str(float(1 << 20))]
            refused = fresh.run("import jax; jax.devices()", env=client | of["worker"], check=False)
            assert "PERMISSION_DENIED" in refused.stderr, refused.stderr
            assert token_or_certificate("tenant") in refused.stderr, refused.stderr


def test_each_role_has_a_token_of_its_own_and_no_token_opens_more_than_its_role(tmp_path):
    own = tmp_path / "own"
    own.write_text("open sesame\n")
    of = {role: {"PATHWAYS_TOKEN": command("token", role, "--token-file", str(own)).stdout.strip()} for role in ROLES}
    check_roles(tmp_path, of, "pathways token {}".format)


def test_certificates_of_roles_open_no_more_than_their_roles(tmp_path):
    """Without a token, the certificate alone says what a process may do."""
    certs = tmp_path / "certs"
    command("certs", str(certs), "--roles")
    files = {"operator": ("cert", "key"), "worker": ("worker", "worker-key"), "tenant": ("tenant", "tenant-key")}
    of = {
        role: {
            "PATHWAYS_TLS_CA": str(certs / "ca.pem"),
            "PATHWAYS_TLS_CERT": str(certs / f"{cert}.pem"),
            "PATHWAYS_TLS_KEY": str(certs / f"{key}.pem"),
        }
        for role, (cert, key) in files.items()
    }
    check_roles(tmp_path, of, "pathways://{}".format)


def test_certificates_are_asked_for_unless_the_token_suffices(tmp_path):
    """A token beside certificates does not stand for them."""
    certs = tmp_path / "certs"
    command("certs", str(certs))
    env = {"PATHWAYS_TOKEN": "open sesame", "PATHWAYS_TLS_CA": str(certs / "ca.pem")}
    own = {"PATHWAYS_TLS_CERT": str(certs / "cert.pem"), "PATHWAYS_TLS_KEY": str(certs / "key.pem"), **env}
    address = f"tcp:localhost:{free_port()}"
    with serving("controller", "--listen", address, "--dir", str(tmp_path), env=own):
        until("the controller", lambda: there(address, env=own))
        done = command("status", "--address", address, env=env, check=False)
        assert done.returncode == 1 and "certificate" in done.stderr, done.stderr


def test_open_address_needs_secrets(tmp_path):
    """An address that other machines reach is not served in the clear."""
    done = command("controller", "--listen", f"tcp:0.0.0.0:{free_port()}", "--dir", str(tmp_path), check=False)
    assert done.returncode == 1 and "TLS" in done.stderr


@pytest.mark.skipif(not may_make_networks(), reason="network namespaces need root, ip and tc")
@pytest.mark.parametrize("shape", [(), ("netem", "delay", "3ms", "1ms", "loss", "1%")], ids=["plain", "delay and loss"])
def test_two_hosts_work_together_over_tls(tmp_path, shape):
    """A controller and a worker on one host, a worker and the client on the other, with TLS between them."""
    with ExitStack() as running:
        try:
            hosts = running.enter_context(two_hosts(*shape))
        except NoDiscipline as error:
            pytest.skip(str(error))
        address, env = running.enter_context(cluster_on(hosts, tmp_path))
        done = subprocess.run(
            [*hosts[1], sys.executable, "-c", fresh.source(SCRIPT)],
            env=fresh.environment(env={"PATHWAYS_ADDRESS": address, "PATHWAYS_DEVICES": "", **env}),
            capture_output=True,
            text=True,
            timeout=HANG_SECONDS,
        )
        assert done.stdout.strip() == "4 6.0", done.stderr
