"""The checks of pathways.doctor(), and the screen that it prints."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.metadata
import os
import platform
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pathways import _backend, _native, _status
from pathways._errors import PathwaysError
from pathways._text import count
from pathways._version import __version__

VARIABLES = (
    *(
        "PATHWAYS_ADDRESS",
        "PATHWAYS_DEVICES",
        "PATHWAYS_MEMORY_LIMIT",
        "PATHWAYS_WAIT",
        "PATHWAYS_BATCH",
        "PATHWAYS_KEEP_MEMORY",
        "PATHWAYS_CONFIG",
        "PATHWAYS_CLUSTER",
        "PATHWAYS_DIR",
        "PATHWAYS_LIBRARY",
    ),
    *("PATHWAYS_TOKEN_FILE", "PATHWAYS_TLS_CA", "PATHWAYS_TLS_CERT", "PATHWAYS_TLS_KEY"),
    *("PATHWAYS_PLUGIN", "PATHWAYS_PLUGIN_DIRS"),
    *("JAX_PLATFORMS", "JAX_PLATFORM_NAME", "XLA_FLAGS"),
)


@dataclass(repr=False)
class Report:
    """The findings of doctor()."""

    versions: dict[str, str | None]  # of python and of packages; None if not installed
    settings: dict[str, str]  # the environment's variables that matter
    library: dict[str, Any] = field(default_factory=dict)  # path, version, go, pjrt
    plugin: dict[str, Any] = field(default_factory=dict)  # as libpathways.so describes it
    candidates: list[dict[str, Any]] = field(default_factory=list)  # plugins that were found and not chosen
    devices: list[str] = field(default_factory=list)
    kinds: dict[str, int] = field(default_factory=dict)  # number of devices, by kind
    memories: list[str] = field(default_factory=list)  # memory kinds of a device
    memory: dict[str, Any] = field(default_factory=dict)  # bytes: in_use, limit (of device 0), host_total, host_free
    cluster: dict[str, Any] = field(default_factory=dict)  # address, latency in seconds, status
    problems: list[str] = field(default_factory=list)  # each with what to do
    hints: list[str] = field(default_factory=list)  # possible improvements

    @property
    def ok(self) -> bool:
        """Whether Pathways works on this machine."""
        return not self.problems

    def as_dict(self) -> dict[str, Any]:
        """The facts as plain data, with ok."""
        return {"ok": self.ok, **dataclasses.asdict(self)}

    def __str__(self) -> str:
        return "\n".join(_screen(self))

    def __repr__(self) -> str:  # a notebook shows it after the screen that doctor() has printed
        state = "ready" if self.ok else f"not ready, {count(len(self.problems), 'problem')}"
        return f"<Report: {state}, {count(len(self.devices), 'device')}>"


def examine(address: str | None = None) -> Report:
    """Checks everything; never raises. address is that of the cluster to check."""
    report = Report(versions=_versions(), settings={name: os.environ[name] for name in VARIABLES if name in os.environ})
    for package in ("jax", "jaxlib", "numpy"):
        if report.versions[package] is None:
            report.problems.append(f"{package} is not installed: pip install {package}")
    try:
        info = _native.info()
    except PathwaysError as error:
        report.library = {"path": str(_native.library_path())}
        report.problems.append(error.message)
        return report
    report.library = {"path": str(_native.library_path())} | {key: info.get(key) for key in ("version", "go", "pjrt")}
    report.plugin = info.get("plugin") or {}
    report.candidates = [
        found
        for found in info.get("candidates") or []
        if not found.get("chosen") and (not found.get("path") or found["path"] != report.plugin.get("path"))
    ]
    if info.get("error"):
        report.problems.append(str(info["error"]))
    try:
        if address is not None:
            _backend.init(address=address)
        devices = _backend.devices()
    except PathwaysError as error:
        if not report.problems or error.message not in report.problems[-1]:
            report.problems.append(error.message)
        return report
    report.devices = [str(device) for device in devices]
    for device in devices:
        report.kinds[device.device_kind] = report.kinds.get(device.device_kind, 0) + 1
    report.memories = [memory.kind for memory in devices[0].addressable_memories()]
    report.memory = _memory(devices[0])
    if asked := _backend.address():
        report.cluster = {"address": asked} | _told(asked)
        try:
            report.cluster["latency"] = _latency(devices[0])
        except (RuntimeError, ValueError) as error:  # JAX raises one from a read and the other from a call
            report.problems.append(f"the cluster's first device does not answer: {error}")
        if status := report.cluster.get("status"):
            report.hints.extend(_lost_with_a_connection(status))
    # The plugin reports more once it has a client.
    from pathways import _ffi

    report.plugin = (_native.info().get("plugin") or report.plugin) | {"ffi_version": _ffi.version()}
    if path := report.plugin.get("path"):  # missing in the child of a fork
        with open(path, "rb") as file:
            report.plugin["sha256"] = hashlib.file_digest(file, "sha256").hexdigest()
    if refused := _ffi.refusals():
        report.problems.append(f"{len(refused)} FFI targets cannot be used on these devices, the first: {refused[0]}")
    if report.plugin.get("kind") == "cpu" and report.versions["lammps-jax-pjrt-cpu"] is None:
        report.hints.append(
            "a newer XLA for the CPU: pip install --no-deps lammps-jax-pjrt-cpu (docs/guides/plugins.md)"
        )
    report.hints.extend(_slow_to_wake())
    return report


def _slow_to_wake(system: Path = Path("/sys")) -> list[str]:
    """Returns what makes messages of a cluster slower on this virtual machine, and how to change it."""
    setting = system / "module/haltpoll/parameters/guest_halt_poll_ns"
    try:
        driver = (system / "devices/system/cpu/cpuidle/current_driver").read_text().strip()
        if (driver, setting.read_text().strip()) != ("haltpoll", "0"):
            return []
    except OSError:
        return []
    return [
        "this virtual machine halts its processors as soon as they are idle, so each message of a cluster waits for "
        f"one to wake up; as root: echo 200000 > {setting} (docs/guides/operating.md, Latency on virtual machines)"
    ]


def _latency(device: Any) -> float:
    """Returns the shortest of a few round-trip times to a device of the cluster, in seconds."""
    import jax

    taken = []
    for _ in range(10):
        begun = time.perf_counter()
        jax.block_until_ready(jax.device_put(0, device))
        taken.append(time.perf_counter() - begun)
    return min(taken)


def _told(address: str) -> dict[str, Any]:
    """Returns the report of `pathways status`; an empty one for a cluster inside this process."""
    if not address.startswith(("tcp:", "unix:")):
        return {}
    try:
        return {"status": _status.ask(address).report}
    except PathwaysError as error:
        return {"error": str(error)}


def _leases(status: dict[str, Any]) -> dict[str, int]:
    """Returns for how many milliseconds each process keeps its place without a connection to the controller."""
    workers = [worker for island in status["islands"] for worker in island["workers"]]
    leases = {f"worker {worker['process']['name']}": worker["link"]["lease_ms"] for worker in workers}
    return leases | {f"session {session['name']}": session["link"]["lease_ms"] for session in status["sessions"]}


def _lost_with_a_connection(status: dict[str, Any]) -> list[str]:
    """Returns what breaks of connections cost users of the cluster, where that can be avoided."""
    leases = _leases(status)
    without = [name for name, lease in leases.items() if not lease]
    if not without:
        return []
    if len(without) == len(leases):
        return [
            "the cluster has no lease: a session and its arrays are lost when its connection to the controller breaks, "
            "and all sessions with the controller; start it with --lease 30s (docs/guides/operating.md)"
        ]
    return [
        f"{', '.join(without)}: lost when the connection to the controller breaks, in spite of the cluster's lease; "
        "install this version of Pathways there"
    ]


def _versions() -> dict[str, str | None]:
    versions: dict[str, str | None] = {"pathways": __version__, "python": platform.python_version()}
    for name in ("jax", "jaxlib", "numpy", "fastatomstruct-xla-cpu", "lammps-jax-pjrt-cpu"):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = None
    return versions


def _memory(device: Any) -> dict[str, Any]:
    memory: dict[str, Any] = {}
    try:
        known = device.memory_stats() or {}
    except RuntimeError:
        known = {}  # the plugin keeps no statistics
    for key, name in (("bytes_in_use", "in_use"), ("bytes_limit", "limit")):
        if known.get(key, -1) >= 0:
            memory[name] = known[key]
    try:
        page = os.sysconf("SC_PAGE_SIZE")
        memory["host_total"] = page * os.sysconf("SC_PHYS_PAGES")
        memory["host_free"] = page * os.sysconf("SC_AVPHYS_PAGES")
    except (OSError, ValueError):
        pass
    return memory


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"


def _dotted(value: Any) -> str:
    """Formats a version: 0.106 from [0, 106] or from {major: 0, minor: 106}."""
    if isinstance(value, dict):
        value = value.values()
    return ".".join(str(part) for part in value) if not isinstance(value, str | int | float) else str(value)


def _plugin_versions(plugin: dict[str, Any]) -> str:
    attributes = plugin.get("attributes") or {}
    known = (
        ("PJRT", plugin.get("pjrt_version")),
        ("StableHLO", attributes.get("stablehlo_current_version")),
        ("XLA FFI", plugin.get("ffi_version")),
        ("XLA", attributes.get("xla_version")),
    )
    return "  ".join(f"{name} {_dotted(value)}" for name, value in known if value)


def _cluster_rows(cluster: dict[str, Any]) -> list[str]:
    if not cluster:
        return []
    rows = [f"controller at {cluster['address']}"]
    if "latency" in cluster:
        rows[0] += f", {1e6 * cluster['latency']:.0f} µs to a device and back"
    if "error" in cluster:
        rows.append(f"its status cannot be read: {cluster['error']}")
    if status := cluster.get("status"):
        rows[0] += f", up {status['uptime_ms'] / 1000:.0f} s, {count(len(status['sessions']), 'session')}"
        if lease := max(_leases(status).values(), default=0):
            rows[0] += f", a lease of {lease / 1000:g} s"
        for island in status["islands"]:
            for worker in island["workers"]:
                kinds = ", ".join(sorted({device["kind"] for device in worker["devices"]}))
                rows.append(
                    f"worker {worker['process']['name']}: {len(worker['devices'])} × {kinds}, "
                    f"heard {worker['silent_ms'] / 1000:.1f} s ago"
                )
        rows.append("its processes have the jax and jaxlib above; others are refused when they connect")
    return rows


def _screen(report: Report) -> list[str]:
    lines = [f"Open Pathways {report.versions['pathways']}: {'ready' if report.ok else 'not ready'}"]

    def row(name: str, text: str) -> None:
        if text:
            lines.append(f"  {name:<9} {text}")

    installed = ("python", "jax", "jaxlib", "numpy")
    row("versions", "  ".join(f"{name} {report.versions[name] or 'missing'}" for name in installed))
    library = report.library
    row("library", library.get("path", ""))
    built = (("version", library.get("version")), ("", library.get("go")), ("PJRT", library.get("pjrt")))
    row("", "  ".join(f"{name} {_dotted(value)}".strip() for name, value in built if value))
    plugin = report.plugin
    row("plugin", plugin.get("path", "none"))
    if plugin:
        row("", f"{plugin.get('kind', 'unknown')}, chosen: {plugin['why']}" if plugin.get("why") else "")
        row("", "  ".join(filter(None, [_plugin_versions(plugin), f"sha256 {str(plugin.get('sha256', ''))[:16]}"])))
    for index, other in enumerate(report.candidates):
        what = other.get("path") or other.get("kind")
        row("others" if index == 0 else "", ": ".join(filter(None, [what, other.get("note") or other.get("why")])))
    row("devices", ", ".join(f"{number} × {kind}" for kind, number in report.kinds.items()) or "none")
    for text in _cluster_rows(report.cluster):
        row("cluster" if text.startswith("controller") else "", text)
    memory = report.memory
    told = [", ".join(report.memories)]
    if "in_use" in memory:
        told.append(f"{_gib(memory['in_use'])} in use" + (f" of {_gib(memory['limit'])}" if "limit" in memory else ""))
    if "host_total" in memory:
        told.append(f"host {_gib(memory['host_free'])} free of {_gib(memory['host_total'])}")
    row("memory", "  ".join(filter(None, told)))
    row("set", "  ".join(f"{name}={value}" for name, value in report.settings.items()))
    for name, texts in (("missing", report.problems), ("hint", report.hints)):
        for text in texts:
            row(name, text)
    return lines
