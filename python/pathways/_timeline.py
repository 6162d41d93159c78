"""Recorded traces: the computations of each device and their times, as data and as a picture."""

from __future__ import annotations

import json
import os
from html import escape
from pathlib import Path
from typing import NamedTuple

from pathways import _graph
from pathways._errors import failed_precondition
from pathways._text import count


class Span(NamedTuple):
    """One computation on one device."""

    device: int  # its id
    name: str  # of the function
    gang: int  # the same number on every device that took part
    begin: float  # seconds after the first computation began
    seconds: float


recording: Timeline | None = None  # the trace that is being recorded now


class Timeline:
    """The trace that `pathways.trace` writes, readable once its block has ended. A notebook draws it.

    Attributes:
      path: the file, which https://ui.perfetto.dev opens.
    """

    def __init__(self, path: str | os.PathLike[str]):
        self.path = Path(os.path.abspath(os.fspath(path)))
        self._lines: list[bytes] | None = None  # of the file, about computations
        self._spans: list[Span] | None = None

    @property
    def spans(self) -> list[Span]:
        """The recorded computations, in the order in which they were submitted.

        Raises:
          PathwaysError: FAILED_PRECONDITION inside the block, while the trace is being recorded.
        """
        if self._lines is None:
            raise failed_precondition(f"the trace {self.path} is still being recorded; look at it after the block")
        if self._spans is None:
            self._spans = self._parse(self._lines)
        return list(self._spans)

    def _read(self) -> None:
        """Reads the file once it is complete: a later trace may replace it. Most scripts look no further, so the lines,
        one an event, stay as they are: a second's worth of computations takes seconds to parse."""
        with self.path.open("rb") as file:
            self._lines = [line for line in file if b'"cat":"gang"' in line]

    @staticmethod
    def _parse(lines: list[bytes]) -> list[Span]:
        events = json.loads(b"[" + b"".join(lines).rstrip(b",\n") + b"]")
        start = min((e["ts"] for e in events), default=0.0)
        spans = (
            Span(e["tid"], e["name"].removeprefix("jit_"), e["args"]["gang"], (e["ts"] - start) / 1e6, e["dur"] / 1e6)
            for e in events
        )
        return sorted(spans, key=lambda span: (span.gang, span.device))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the picture, an SVG: a row per device, a bar per computation, time from left to right.

        Raises:
          PathwaysError: INVALID_ARGUMENT for a name that does not end in .svg.
          OSError: if the file cannot be written.
        """
        _graph.write(path, self._repr_svg_() or _svg([]))

    def _repr_svg_(self) -> str | None:
        return None if self._lines is None else _svg(self.spans)

    def __repr__(self) -> str:
        if self._lines is None:
            return f"<Timeline {self.path.name}, still being recorded>"
        spans = self.spans
        devices = {span.device for span in spans}
        gangs = {span.gang for span in spans}
        return f"<Timeline {self.path.name}: {count(len(gangs), 'gang')} on {count(len(devices), 'device')}>"


# --- the picture ---

_LEFT, _WIDTH, _RIGHT, _TOP, _ROW = 84, 760, 24, 58, 26  # pixels
_LETTER = 6.2  # pixels, the width of one in a bar's name
_TICKS = 8  # at most
# Distinguishable with red-green color blindness; after Okabe and Ito (2008).
_COLORS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8c7a00", "#666666")
_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))
_MOST_BARS = 20_000  # a browser would need seconds to draw more; Perfetto shows all


def _svg(spans: list[Span]) -> str:
    devices = sorted({span.device for span in spans})
    rows = {device: i for i, device in enumerate(devices)}
    whole = max((span.begin + span.seconds for span in spans), default=0.0) or 1e-6
    scale = _WIDTH / whole
    # A tenth of a unit is enough, so that two traces of similar length have the same unit.
    unit, called = next(((u, c) for u, c in _UNITS if whole >= u / 10), _UNITS[-1])
    names = list(dict.fromkeys(span.name for span in spans))
    colors = {name: _color(i) for i, name in enumerate(names)}
    width, bottom = _LEFT + _WIDTH + _RIGHT, _TOP + _ROW * max(len(devices), 1)
    left_out = max(0, len(spans) - _MOST_BARS)
    title = f"{count(len({span.gang for span in spans}), 'gang')} on {count(len(devices), 'device')}"
    if left_out:
        title += f"; the last {left_out} bars are left out, Perfetto shows them"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{bottom + 44}" '
        f'viewBox="0 0 {width} {bottom + 44}" font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{bottom + 44}" fill="#fff"/>',
        f'<text x="12" y="20" font-size="13" font-weight="bold">{title}</text>',
        _legend(colors),
    ]
    for device, row in rows.items():
        y = _TOP + _ROW * row
        parts.append(f'<text x="12" y="{y + 17}" fill="#333">device {device}</text>')
        parts.append(f'<rect x="{_LEFT}" y="{y + 2}" width="{_WIDTH}" height="{_ROW - 4}" fill="#f1f3f5"/>')
    for span in spans[:_MOST_BARS]:
        x, y, w = _LEFT + span.begin * scale, _TOP + _ROW * rows[span.device], max(span.seconds * scale, 0.6)
        told = f"{span.name}, gang {span.gang}, device {span.device}: {span.seconds / unit:.3g} {called}"
        label = span.name if len(span.name) * _LETTER < w - 4 else ""
        parts.append(
            f'<g><title>{escape(told)}</title><rect x="{x:.2f}" y="{y + 3}" width="{w:.2f}" height="{_ROW - 6}" '
            f'fill="{colors[span.name]}" stroke="#fff" stroke-width="0.5"/>'
            + (
                f'<text x="{x + w / 2:.2f}" y="{y + 17}" fill="#fff" font-size="11" text-anchor="middle">'
                f"{escape(label)}</text>"
                if label
                else ""
            )
            + "</g>"
        )
    step = _step(whole / unit)
    tick = 0.0
    while tick <= whole / unit:
        x = _LEFT + tick * unit * scale
        parts.append(f'<path d="M{x:.2f} {bottom + 2}v5" stroke="#555"/>')
        parts.append(f'<text x="{x:.2f}" y="{bottom + 20}" text-anchor="middle" fill="#555">{tick:g}</text>')
        tick = round(tick + step, 9)
    parts.append(f'<text x="{_LEFT}" y="{bottom + 37}" fill="#555">time in {called}</text>')
    return "\n".join([*parts, "</svg>\n"])


def _color(i: int) -> str:
    """Returns the color of the i-th function. When all were used they come again, darker."""
    color = _COLORS[i % len(_COLORS)]
    light = 0.6 ** (i // len(_COLORS))
    return "#" + "".join(f"{round(light * int(color[at : at + 2], 16)):02x}" for at in (1, 3, 5))


def _legend(colors: dict[str, str]) -> str:
    """Returns the names of the functions with their colors, as many as fit on one line."""
    parts, x = [], 12.0
    for name, color in colors.items():
        short = name if len(name) <= 28 else name[:27] + "…"
        if x + 18 + len(short) * 7 > _LEFT + _WIDTH:
            parts.append(f'<text x="{x}" y="44" fill="#555">…</text>')
            break
        parts.append(f'<rect x="{x}" y="34" width="12" height="12" fill="{color}"/>')
        parts.append(f'<text x="{x + 16}" y="44" fill="#333">{escape(short)}</text>')
        x += 32 + len(short) * 7
    return "".join(parts)


def _step(whole: float) -> float:
    """Returns a round distance between ticks that results in at most _TICKS of them."""
    step = 1e-3
    while True:
        for factor in (1, 2, 5):
            if whole / (step * factor) <= _TICKS:
                return step * factor
        step *= 10
