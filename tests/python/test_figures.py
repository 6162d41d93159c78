"""The pictures of the paper's experiments show what the page's tables say."""

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def figures(monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.syspath_prepend(str(ROOT / "tests" / "bench"))
    import figures

    yield figures
    del sys.modules["figures"]


def test_each_row_of_figure_5_is_a_line_of_one_panel_in_its_system_s_color(figures, monkeypatch, tmp_path):
    from matplotlib import pyplot

    monkeypatch.setattr(pyplot, "close", lambda figure: None)
    (table,) = (got for title, got in figures.tables(ROOT / "docs/paper/README.md").items() if "Figure 5" in title)
    heads, rows = table
    assert heads == ["workers", "1", "2", "4", "8"]
    figures.draw5(heads, rows, tmp_path / "figure5.png")
    figure = pyplot.gcf()
    drawn = sorted((line.get_color(), *line.get_ydata()) for axes in figure.axes for line in axes.get_lines())
    said = sorted((figures.COLORS[name.partition(",")[0]], *map(figures.number, cells)) for name, *cells in rows)
    assert drawn == said
    for axes in figure.axes:
        names = [text for text in axes.texts if text.get_text()]
        assert len(names) == len(axes.get_lines())
        boxes = sorted(text.get_window_extent().extents[[1, 3]].tolist() for text in names)
        assert all(low[1] <= high[0] + 1 for low, high in zip(boxes, boxes[1:], strict=False)), "names overlap"
    monkeypatch.undo()
    pyplot.close(figure)


def test_a_page_has_all_its_pictures(figures, tmp_path):
    page = ROOT / "docs/paper/README.md"
    named = set(re.findall(r"\((\w+\.png)\)", page.read_text(encoding="utf-8")))
    drawn = {path.name for path in figures.draw(page, tmp_path)}
    assert drawn >= {"figure5.png", "figure6.png", "figure7.png"}
    assert named - drawn <= {"figure9.png", "figure11.png"}, "those are of traces, which the page does not have"
    assert drawn <= named
    for folder, names in ((tmp_path, drawn), (page.parent, named)):
        assert all((folder / name).stat().st_size > 1000 for name in names)
