"""The state of devices, sessions and programs, as data, as text and as a picture: of a cluster, from its controller; of
this process, from the library itself.
"""

from __future__ import annotations

import json
import subprocess
import sys
from html import escape
from typing import Any

from pathways import _backend, _native
from pathways._errors import PathwaysError, failed_precondition
from pathways._text import count, duration, size


class Status:
    """A report on a cluster, or on the devices of this process, at one time. A notebook draws it.

    Attributes:
      report: the facts as plain data: the JSON of `pathways status --json`, which docs/guides/status.schema.json
        describes. In the report on this process's devices, each session is an island, this process is its worker, and
        the cluster has no name.
    """

    def __init__(self, report: dict[str, Any]):
        self.report = report

    @property
    def workers(self) -> list[dict[str, Any]]:
        """The workers' part of the report, island by island."""
        return [worker for island in self.report["islands"] for worker in island["workers"]]

    def __repr__(self) -> str:
        return "\n".join(
            [
                _summary(self.report),
                *(
                    f"  {worker['process']['name']}: {count(len(worker['devices']), 'device')}, "
                    f"{size(sum(_in_use(worker)))} in use{_of_host(worker)}"
                    for worker in self.workers
                ),
                *(
                    f"  {session['name']}: {'; '.join(filter(None, (_has(session), _held(session['held']))))}"
                    for session in self.report["sessions"]
                ),
                *(f"  {_ran(program)}" for program in self.report["programs"][:_PROGRAMS]),
            ]
        )

    def _repr_svg_(self) -> str:
        return _svg(self.report, self.workers)


def ask(address: str | None) -> Status:
    """Asks the controller at an address, or that of this process's cluster; or reports on devices of this process.

    A controller is asked by the command `pathways status` in a process of its own: so that works before JAX has its
    devices and after the session has ended, and a controller that hangs cannot block this process.
    """
    address = address or _backend.address()
    if address is None:
        return Status(_native.status())
    if address.startswith("local:"):
        raise failed_precondition(
            f"the cluster {address} is inside this process, and its controller listens nowhere; pass the address of a "
            "cluster of processes, or see pathways.stats()"
        )
    command = [sys.executable, "-m", "pathways_command", "status", "--json", "--address", address]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode != 0:
        raise PathwaysError.parse(done.stderr.strip().removeprefix("pathways: "))
    return Status(json.loads(done.stdout))


def _in_use(worker: dict[str, Any]) -> list[int]:
    """Returns the bytes of arrays on each device; they are negative if the plugin does not know."""
    told = worker["last"]["memory_in_use"]  # empty before the worker's first heartbeat
    return [max(n, 0) for n in told] or [0] * len(worker["devices"])


def _counted(worker: dict[str, Any], local: int) -> str:
    """Returns what the controller counts of a device's memory from the admission of operations, by kind."""
    kinds = (("array_bytes", "arrays"), ("program_bytes", "programs"), ("temp_bytes", "temporary"))
    told = [f"{size(worker[key][local])} {name}" for key, name in kinds if worker[key][local : local + 1] > [0]]
    return f", admitted: {', '.join(told)}" if told else ""


def _of_host(worker: dict[str, Any]) -> str:
    bytes_ = worker["last"]["host_bytes"]
    return f", {size(bytes_)} of its host" if bytes_ else ""


def _has(session: dict[str, Any]) -> str:
    """Returns the arrays and the memory that a session has."""
    text = f"{count(session['objects'], 'array')}, {size(sum(session['bytes']))}"
    return text + (f", {size(session['host_bytes'])} of hosts" if session["host_bytes"] else "")


def _held(held: dict[str, Any]) -> str:
    """Returns what of a session waits to be admitted, and why; "" if nothing does."""
    if not held["operations"]:
        return ""
    worker = held["worker_name"] or "a lost worker"
    where = f"of {worker}'s machine" if held["waits_for"] == "host-quota" else f"on device {held['local']} of {worker}"
    return (
        f"{count(held['operations'], 'operation')} held for {held['since_ms'] / 1000:.1f} s: {held['what']} needs "
        f"{size(held['need'])} {where} and waits for {_waits_for(held)}"
    )


def _waits_for(held: dict[str, Any]) -> str:
    whose = ", ".join(
        f"session {holder['session']}, {' of '.join(filter(None, (holder['client'], holder['user'])))}"
        for holder in held["holders"]
    )
    return {
        "client": "bytes that its client is sending",
        "program": "workers to load its program",
        "work": "computations under way to end",
        "turn": f"its turn behind {whose}",
        "frees": f"frees of {whose}",
        "quota": f"its tenant's quota of memory: {whose}",
        "host-quota": f"its tenant's quota of host memory: {whose or 'its own earlier operations'}",
    }.get(held["waits_for"], f"memory of {whose}")


_PROGRAMS = 8  # the programs that text and picture show: those that have taken most device time


def _ran(program: dict[str, Any]) -> str:
    """Returns what a program's runs have taken."""
    return (
        f"{program['name'].removeprefix('jit_')}: {count(program['runs'], 'run')} on "
        f"{count(program['devices'], 'device')}, usually {duration(program['usual_ns'] / 1e9)}, "
        f"{duration(program['device_ns'] / 1e9)} of device time"
    )


def _summary(report: dict[str, Any]) -> str:
    workers = [worker for island in report["islands"] for worker in island["workers"]]
    devices = sum(len(worker["devices"]) for worker in workers)
    counts = [(len(workers), "worker"), (devices, "device"), (len(report["sessions"]), "session")]
    whose = f"cluster {report['cluster']}"
    if not report["cluster"]:
        whose = "this process"
        del counts[0]
    return f"{whose}: " + ", ".join(count(n, noun) for n, noun in counts)


# --- the picture ---

_CARD, _HEIGHT, _GAP, _MARGIN = 196, 74, 12, 14  # pixels, of a worker's card
_ACROSS, _CELL, _CELLS = 4, 22, 8  # cards in a row; the size of a device's square, and the squares that a card shows
_SILENT_MS = 3000  # a worker whose last heartbeat is older is drawn as silent


def _host(host: dict[str, Any]) -> str:
    """Returns what a worker has of its machine's memory, by kind, a line each."""
    kinds = {
        "blocks": "arrays",
        "collectives": "collectives",
        "assembling": "transfers",
        "programs": "programs",
        "free": "free",
    }
    return "".join(f"\n{size(host[kind])} of its host: {name}" for kind, name in kinds.items() if host[kind])


def _svg(report: dict[str, Any], workers: list[dict[str, Any]]) -> str:
    rows = -(-len(workers) // _ACROSS)
    width = 2 * _MARGIN + _ACROSS * (_CARD + _GAP) - _GAP
    top, below = 44, 44 + rows * (_HEIGHT + _GAP) + 14
    lines = [
        (label, name, text)
        for session in report["sessions"]
        for label, name, text in (
            ("session ", session["name"], f": {_has(session)}"),
            ("", "", _held(session["held"])),
        )
        if text
    ] + [("", "", _ran(program)) for program in report["programs"][:_PROGRAMS]]
    height = below + 20 * len(lines) + 8
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'font-family="sans-serif" font-size="12"><rect width="{width}" height="{height}" fill="#fff"/>'
        f'<text x="{_MARGIN}" y="26" font-size="14" font-weight="bold">{escape(_summary(report))}</text>'
    ]
    for n, worker in enumerate(workers):
        x, y = _MARGIN + (n % _ACROSS) * (_CARD + _GAP), top + (n // _ACROSS) * (_HEIGHT + _GAP)
        silent = worker["silent_ms"]
        edge = "#d55e00" if silent > _SILENT_MS else "#0072b2"
        told = f"{size(sum(_in_use(worker)))} in use"
        if silent > _SILENT_MS:
            told = f"silent for {silent / 1000:.0f} s"
        parts.append(
            f"<g><title>{escape(', '.join(worker['process']['addresses']))}"
            f"{escape(_host(worker['last']['host']))}</title>"
            f'<rect x="{x}" y="{y}" width="{_CARD}" height="{_HEIGHT}" rx="6" fill="#f7f9fb" stroke="{edge}"/>'
            f'<text x="{x + 10}" y="{y + 20}" font-weight="bold">{escape(worker["process"]["name"])}</text>'
            f'<text x="{x + _CARD - 10}" y="{y + 20}" text-anchor="end" fill="#555">{told}</text></g>'
        )
        shown = worker["devices"][:_CELLS]
        for local, used in zip(range(len(shown)), _in_use(worker), strict=False):
            parts.append(
                f"<g><title>device {local}: {size(used)} in use{_counted(worker, local)}</title>"
                f'<rect x="{x + 10 + local * _CELL}" y="{y + 32}" width="{_CELL - 3}" height="{_CELL - 3}" rx="3" '
                f'fill="{"#0072b2" if used else "#cfd8e3"}"/></g>'
            )
        more = len(worker["devices"]) - len(shown)
        kind = worker["devices"][0]["kind"] if worker["devices"] else "no devices"
        text = f"{len(worker['devices'])} × {kind}" + (f", {more} not drawn" if more else "")
        text += _of_host(worker)
        parts.append(f'<text x="{x + 10}" y="{y + 66}" fill="#555" font-size="11">{escape(text)}</text>')
    for n, (label, name, text) in enumerate(lines):
        parts.append(
            f'<text x="{_MARGIN}" y="{below + 10 + 20 * n}" font-size="{12 if name else 10}"><tspan fill="#555">{label}'
            f'</tspan>{escape(name)}<tspan fill="{"#555" if name else "#d55e00"}">{escape(text)}</tspan></text>'
        )
    return "\n".join([*parts, "</svg>\n"])
