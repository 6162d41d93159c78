"""Programs as text, and as pictures that need no other package."""

from __future__ import annotations

import os
import sys
from html import escape
from typing import Any

from pathways._errors import invalid_argument
from pathways._text import count, size

BOX = 148, 38  # of a node, in pixels
GAP = 72, 14  # between two nodes
MARGIN = 132, 24  # left, for the names of the slices, and above


def write(path: str | os.PathLike[str], svg: str) -> None:
    """Writes a picture. An OSError names the file."""
    if not os.fspath(path).lower().endswith(".svg"):
        raise invalid_argument(f"pictures are SVG, and {os.fspath(path)!r} does not end in .svg")
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(svg)
    except OSError as error:  # an error of write, such as a full disk, does not name the file
        raise OSError(error.errno, error.strerror, os.fspath(path)) from None


def devices_text(devices: list[int]) -> str:
    """Formats a list of devices, such as "0-3, 6"."""
    runs: list[list[int]] = []
    for device in sorted(set(devices)):
        if runs and runs[-1][1] == device - 1:
            runs[-1][1] = device
        else:
            runs.append([device, device])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def _line(location: str) -> str:
    """Formats the line of a node as "file:line"; in a notebook, whose cells have made-up file names, by its cell."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    file, _, line = location.rpartition(":")
    label = getattr(shell.compile, "format_code_name", None) if shell else None  # IPython 8 has it
    cell = label(file) if label else None
    return f"{' '.join(cell)}, line {line}" if cell else location


def as_text(name: str, graph: dict[str, Any]) -> str:
    values = graph["values"]

    def reads(x: dict[str, Any]) -> str:
        names = [f"%{r['value']}" for r in x["reads"]]
        if x["constant_bytes"]:
            names.append(f"constants of {size(x['constant_bytes'])}")
        return ", ".join(names)

    def value(i: int) -> str:
        v = values[i]
        return f"%{i}: {len(v['devices'])} x {v['shard']} on {devices_text(v['devices'])}"

    parts = (("inputs", "input"), ("nodes", "node"), ("outputs", "result"))
    lines = [f"program {name}: " + ", ".join(count(len(graph[part]), noun) for part, noun in parts)]
    for i in graph["inputs"]:
        lines.append(f"  {value(i)} = input{' (donated)' if values[i]['donated'] else ''}")
    for node in graph["nodes"]:
        made = "; ".join(value(i) for i in node["makes"])
        where = f"  # {_line(node['location'])}" if node["location"] else ""
        on = "" if node["makes"] else f" on {devices_text(node['devices'])}"
        lines.append(f"  {made + ' = ' if made else ''}{node['name']}({reads(node)}){on}{where}")
    lines += [f"  result {i}: {reads(output)}" for i, output in enumerate(graph["outputs"])]
    return "\n".join(lines)


class _Box:
    def __init__(self, title: str, below: str, devices: list[int], depth: int, kind: str):
        self.title, self.below, self.devices, self.depth, self.kind = title, below, devices, depth, kind
        self.x = self.y = 0


def _boxes(graph: dict[str, Any]) -> tuple[list[_Box], list[tuple[_Box, _Box, int]]]:
    """Returns the boxes of a picture, and its arrows with their bytes."""
    values = graph["values"]
    makers: dict[int, _Box] = {}
    boxes, arrows = [], []
    for n, i in enumerate(graph["inputs"]):
        v = values[i]
        makers[i] = _Box(f"input {n}", f"{len(v['devices'])} x {v['shard']}", v["devices"], 0, "input")
        boxes.append(makers[i])

    def add(box: _Box, reads: list[dict[str, int]]) -> None:
        box.depth = 1 + max((makers[r["value"]].depth for r in reads), default=0)
        boxes.append(box)
        for r in reads:
            arrows.append((makers[r["value"]], box, r["bytes"]))

    for node in graph["nodes"]:
        where = os.path.basename(_line(node["location"]))
        box = _Box(node["name"].removeprefix("jit_"), where, node["devices"], 0, node["kind"])
        add(box, node["reads"])
        makers.update(dict.fromkeys(node["makes"], box))
    for n, output in enumerate(graph["outputs"]):
        made = [values[r["value"]] for r in output["reads"]]
        devices = [device for v in made for device in v["devices"]]
        shard = f"{len(devices)} x {made[0]['shard']}" if len(made) == 1 else ""
        add(_Box(f"result {n}", shard, devices, 0, "result"), output["reads"])
    return boxes, arrows


def as_svg(name: str, graph: dict[str, Any]) -> str:
    boxes, arrows = _boxes(graph)
    lanes: dict[tuple[int, ...], list[_Box]] = {}
    for box in boxes:
        lanes.setdefault(tuple(sorted(set(box.devices))), []).append(box)
    out, top = [], MARGIN[1] + 16
    width = MARGIN[0] + (1 + max((b.depth for b in boxes), default=0)) * (BOX[0] + GAP[0])
    for devices in sorted(lanes):
        filled: dict[int, int] = {}
        for box in lanes[devices]:
            row = filled.get(box.depth, 0)
            filled[box.depth] = row + 1
            box.x = MARGIN[0] + box.depth * (BOX[0] + GAP[0])
            box.y = top + 10 + row * (BOX[1] + GAP[1])
        height = 20 + max(filled.values()) * (BOX[1] + GAP[1]) - GAP[1]
        out.append(f'<rect class="slice" x="8" y="{top}" width="{width - 16}" height="{height}" rx="8"/>')
        out.append(f'<text x="18" y="{top + height / 2 + 4}">devices {devices_text(list(devices))}</text>')
        top += height + 26
    for a, b, moved in arrows:
        x, y, u, v = a.x + BOX[0], a.y + BOX[1] / 2, b.x, b.y + BOX[1] / 2
        # A reshard moves bytes even between the same devices, and so does a copy between memories.
        moves = set(a.devices) != set(b.devices) or b.kind in ("copy", "reshard")
        kind = "transfer" if moves else "edge"
        out.append(
            f'<path class="{kind}" d="M{x},{y} C{x + 34},{y} {u - 34},{v} {u - 3},{v}" marker-end="url(#to-{kind})"/>'
        )
        if moves:
            out.append(f'<text class="bytes" x="{(x + u) / 2}" y="{(y + v) / 2 - 4}">{size(moved)}</text>')
    for box in boxes:
        middle = box.x + BOX[0] / 2
        title = box.title if len(box.title) <= 20 else box.title[:19] + "…"
        below = box.below if len(box.below) <= 24 else "…" + box.below[-23:]
        out.append(
            f"<g><title>{escape(f'{box.title} {box.below} on {devices_text(box.devices)}')}</title>"
            f'<rect class="{box.kind}" x="{box.x}" y="{box.y}" width="{BOX[0]}" height="{BOX[1]}" rx="5"/>'
            f'<text class="title" x="{middle}" y="{box.y + 16}">{escape(title)}</text>'
            f'<text class="below" x="{middle}" y="{box.y + 30}">{escape(below)}</text></g>'
        )
    style = (
        "text{font:12px sans-serif;fill:#222}.title,.below,.bytes{text-anchor:middle}.below{font-size:10px;fill:#666}"
        ".bytes{font-size:10px;fill:#b3541e}.slice{fill:#f3f5f8;stroke:#c9d1dc}.execute{fill:#dbe9ff;stroke:#4a7bc8}"
        ".copy,.reshard{fill:#ffe9d6;stroke:#d98841}.input,.result{fill:#fff;stroke:#8a94a3;stroke-dasharray:4 2}"
        "path{fill:none}.edge{stroke:#7a8797}.transfer{stroke:#d98841;stroke-width:1.6}.head-edge{fill:#7a8797}"
        ".head-transfer{fill:#d98841}"
    )
    heads = "".join(
        f'<marker id="to-{k}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        f'<polygon class="head-{k}" points="0,0 8,4 0,8"/></marker>'
        for k in ("edge", "transfer")
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{top}" viewBox="0 0 {width} {top}">'
        f"<style>{style}</style><defs>{heads}</defs>"
        f'<rect width="{width}" height="{top}" fill="#fff"/><text x="8" y="22">{escape(name)}</text>'
        + "".join(out)
        + "</svg>\n"
    )
