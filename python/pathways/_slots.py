"""Pictures of plans in slots of time, of `_schedule` and `mpmd._timetable`: a row for each place, a box for each op."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

CELL, ROW, LEFT, TOP, EDGE = 26, 30, 16, 52, 14  # pixels
APART = 12  # pixels between two pairs of rows
LETTER = 7  # pixels, the width of a digit


class Picture:
    """An SVG under way. Boxes are drawn over rows, which are there from the beginning.

    Attributes:
      parts: the elements so far; `text` joins them.
      left, right, bottom: where the rows are.
    """

    def __init__(self, title: str, rows: Sequence[str], slots: int, foot: int, pairs: bool = False):
        """foot: the height of what is drawn below the rows, in pixels.
        pairs: whether each two rows belong together.
        """
        self.left = LEFT + max(7 * max(map(len, rows)), 20) + 10
        self._tops = [TOP + ROW * row + (APART * (row // 2) if pairs else 0) for row in range(len(rows))]
        self.right, self.bottom = self.left + CELL * slots, self._tops[-1] + ROW
        width, height = max(self.right + EDGE, 560), self.bottom + foot
        self.parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
            f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">',
            f'<rect width="{width}" height="{height}" fill="#fff"/>',
            f'<text x="{LEFT}" y="24" font-size="14" font-weight="bold">{title}</text>',
        ]
        for y, name in zip(self._tops, rows, strict=True):
            self.parts.append(f'<text x="{LEFT}" y="{y + 20}">{escape(name)}</text>')
            self.parts.append(
                f'<rect x="{self.left}" y="{y + 2}" width="{self.right - self.left}" height="{ROW - 4}" fill="#eee" '
                'class="idle"/>'
            )

    def box(self, slot: int, row: int, kind: str, title: str, label: object, fill: str, ink: str) -> None:
        """Draws an op. title: what is shown while the mouse is on it."""
        x, y = self.left + CELL * slot, self._tops[row]
        self.parts.append(
            f'<g class="{kind}"><title>{escape(title)}</title><rect x="{x + 1}" y="{y + 2}" width="{CELL - 2}" '
            f'height="{ROW - 4}" rx="2" fill="{fill}"/><text x="{x + CELL / 2:g}" y="{y + 20}" text-anchor="middle" '
            f'fill="{ink}">{label}</text></g>'
        )

    def bar(
        self, begin: float, end: float, row: int, kind: str, title: str, label: object, fill: str, ink: str
    ) -> None:
        """Draws what took from begin to end, in shares of the width. Its label is left out where it has no room."""
        y = self._tops[row]
        x, width = self.left + begin * (self.right - self.left), (end - begin) * (self.right - self.left)
        text = ""
        if width >= LETTER * len(str(label)) + 2:
            text = f'<text x="{x + width / 2:.1f}" y="{y + 20}" text-anchor="middle" fill="{ink}">{label}</text>'
        self.parts.append(
            f'<g class="{kind}"><title>{escape(title)}</title><rect x="{x:.2f}" y="{y + 2}" width="{width:.2f}" '
            f'height="{ROW - 4}" fill="{fill}" stroke="#fff" stroke-width="0.5"/>{text}</g>'
        )

    def text(self) -> str:
        return "\n".join([*self.parts, "</svg>\n"])
