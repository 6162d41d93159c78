"""Pictures of plans in slots of time, of `_schedule` and `mpmd._timetable`: a row for each place, a box for each op."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

CELL, ROW, LEFT, TOP, EDGE = 26, 30, 16, 52, 14  # pixels


class Picture:
    """An SVG under way. Boxes are drawn over rows, which are there from the beginning.

    Attributes:
      parts: the elements so far; `text` joins them.
      left, right, bottom: where the rows are.
    """

    def __init__(self, title: str, rows: Sequence[str], slots: int, foot: int):
        """foot: the height of what is drawn below the rows, in pixels."""
        self.left = LEFT + max(7 * max(map(len, rows)), 20) + 10
        self.right, self.bottom = self.left + CELL * slots, TOP + ROW * len(rows)
        width, height = max(self.right + EDGE, 560), self.bottom + foot
        self.parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
            f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">',
            f'<rect width="{width}" height="{height}" fill="#fff"/>',
            f'<text x="{LEFT}" y="24" font-size="14" font-weight="bold">{title}</text>',
        ]
        for row, name in enumerate(rows):
            y = TOP + ROW * row
            self.parts.append(f'<text x="{LEFT}" y="{y + 20}">{escape(name)}</text>')
            self.parts.append(
                f'<rect x="{self.left}" y="{y + 2}" width="{self.right - self.left}" height="{ROW - 4}" fill="#eee" '
                'class="idle"/>'
            )

    def box(self, slot: int, row: int, kind: str, title: str, label: object, fill: str, ink: str) -> None:
        """Draws an op. title: what is shown while the mouse is on it."""
        x, y = self.left + CELL * slot, TOP + ROW * row
        self.parts.append(
            f'<g class="{kind}"><title>{escape(title)}</title><rect x="{x + 1}" y="{y + 2}" width="{CELL - 2}" '
            f'height="{ROW - 4}" rx="2" fill="{fill}"/><text x="{x + CELL / 2:g}" y="{y + 20}" text-anchor="middle" '
            f'fill="{ink}">{label}</text></g>'
        )

    def text(self) -> str:
        return "\n".join([*self.parts, "</svg>\n"])
