"""Draws the pictures of a page that paper.py wrote, from the tables of that page.

    python tests/bench/figures.py [PAGE]         # docs/paper/README.md; the pictures go beside it

A system has one color in all pictures, a line has its name at its end, and each axis says which way is better.
"""

import contextlib
import pathlib
import re
import sys

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot, ticker  # noqa: E402

# Told apart by people who see no red or green, too: the palette of Okabe and Ito.
COLORS = {
    "Open Pathways": "#0072B2",
    "JAX with gloo": "#D55E00",
    "JAX in one process": "#E69F00",
    "Ray actors": "#009E73",
    "Ray compiled graph": "#56B4E9",
    "Monarch": "#CC79A7",
    "TensorFlow": "#555555",
}
OURS = COLORS["Open Pathways"]
GREY = "#777777"
# Of figure 5, a panel for each way to run: what its rows' names end with, how a line is drawn, and its name's ending.
PANELS = {
    "OpByOp: one call for each computation": {
        "OpByOp": ("-", ""),
        "OpByOp, each call by itself": ("--", ", no batching"),
    },
    "Chained: one call of a program of 128": {"Chained": ("-", "")},
    "Fused: one call of one compiled function": {"Fused": ("-", "")},
    "Add only: no collective": {
        "add only": ("-", ""),
        "add only, OpByOp": ("-", ""),
        "add only, each call by itself": ("--", ", no batching"),
        "add only, Chained": (":", ", Chained"),
    },
}
LINE_HEIGHT = 11  # points between the names of two lines


def tables(page):
    """The first table of each section of a page: title → (heads, rows)."""
    found = {}
    for section in page.read_text(encoding="utf-8").split("\n## ")[1:]:
        lines = re.findall(r"^\| (.*) \|$", section, re.M)
        until = section.find("\n\n", section.find("\n| "))
        heads, *rows = ([cell.strip() for cell in line.split("|")] for line in lines)
        count = len(re.findall(r"^\| ", section[:until], re.M)) - 1
        found[section.partition("\n")[0]] = (heads, rows[:count])
    return found


def number(cell):
    """The number that a cell begins with; None of a cell without one."""
    got = re.match(r"-?[\d,]+(\.\d+)?", cell)
    return float(got[0].replace(",", "")) if got else None


def name_at_end(axes, lines):
    """Writes names right of the ends of lines, apart from one another; lines are (x, y, name, color)."""
    pixels = LINE_HEIGHT * axes.figure.dpi / 72
    ends = sorted((axes.transData.transform((x, y))[1], x, y, name, color) for x, y, name, color in lines)
    heights = [end[0] for end in ends]
    for _ in range(200):  # what is too close goes apart by the same way to both sides
        for i in range(len(heights) - 1):
            lacking = pixels - (heights[i + 1] - heights[i])
            if lacking > 0.01:
                heights[i] -= lacking / 2
                heights[i + 1] += lacking / 2
    for height, (at, x, y, name, color) in zip(heights, ends, strict=True):
        up = (height - at) * 72 / axes.figure.dpi
        axes.annotate(name, (x, y), (8, up), textcoords="offset points", color=color, fontsize=8, va="center")


def plain(axes, x, y):
    """Axes with few lines, and ticks that read 1, 2, 4 instead of powers of ten."""
    axes.grid(linewidth=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_xlabel(x)
    axes.set_ylabel(y)


def save(figure, path):
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


@contextlib.contextmanager
def lines_over(x, lines, path, width=0.86):
    """Draws lines, each (values, style, name, color), with their names right of this part of the width.

    Limits, ticks and labels are the caller's, to whom the axes are given in between.
    """
    figure, axes = pyplot.subplots(figsize=(8, 4.2))
    for values, style, _, color in lines:
        axes.plot(x, values, style, color=color, marker="o", markersize=4)
    yield axes
    figure.tight_layout(rect=(0, 0, width, 1))
    name_at_end(axes, [(x[-1], values[-1], name, color) for values, _, name, color in lines])
    save(figure, path)


def column_of(heads, rows, name):
    return [number(row[heads.index(name)]) for row in rows]


def doubling(axes, values):
    axes.set_xscale("log", base=2)
    axes.set_xticks(values, [f"{value:g}" for value in values])
    axes.minorticks_off()


def draw5(heads, rows, path):
    """Computations a second by the number of workers."""
    workers = [int(head) for head in heads[1:]]
    figure, grid = pyplot.subplots(2, 2, figsize=(11, 8.5), sharex=True, sharey=True)
    named = []
    for axes, (title, ways) in zip(grid.flat, PANELS.items(), strict=True):
        ends = []
        for name, *cells in rows:
            system, _, way = name.partition(", ")
            if way in ways:
                style, more = ways[way]
                points = [(n, rate) for n, cell in zip(workers, cells, strict=True) if (rate := number(cell))]
                ours = system == "Open Pathways"
                axes.plot(*zip(*points, strict=True), style, color=COLORS[system], marker="o", markersize=3.5,
                          linewidth=2.2 if ours else 1.2, zorder=3 if ours else 2)  # fmt: skip
                ends.append((*points[-1], system + more, COLORS[system]))
        axes.set_title(title, fontsize=10, loc="left")
        plain(axes, "workers", "computations a second (higher is better)")
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:,.0f}"))
        doubling(axes, workers)
        named.append((axes, ends))
    for axes in grid.flat:
        axes.label_outer()
    grid[0, 0].set_ylim(bottom=100)
    figure.tight_layout(w_pad=13, rect=(0, 0, 0.86, 1))
    for axes, ends in named:
        name_at_end(axes, ends)
    save(figure, path)


def draw6(heads, rows, path):
    """Throughput by that of multi-controller JAX, by the length of a computation."""
    figure, axes = pyplot.subplots(figsize=(8, 4.2))
    for i, (workers, *cells) in enumerate(rows):
        points = [re.match(r"([\d,]+) µs: ([\d.]+)", cell) for cell in cells]
        points = [(number(point[1]) / 1e3, float(point[2])) for point in points if point]
        color = pyplot.get_cmap("Blues")(0.45 + 0.5 * i / max(len(rows) - 1, 1))
        axes.plot(*zip(*points, strict=True), "-o", color=color, markersize=4)
        up = 8 if points[0][1] > 1 else -15  # lines come from above to 1, or from below
        axes.annotate(f"{workers} worker{'s' * (workers != '1')}", points[0], (0, up), textcoords="offset points",
                      ha="center", fontsize=8, color=color)  # fmt: skip
    axes.margins(y=0.12)
    axes.axhline(1, color=COLORS["JAX with gloo"], linewidth=1)
    axes.set(xscale="log", yscale="log")
    axes.set_yticks([0.5, 1, 2, 5], ["0.5 ×", "1 ×", "2 ×", "5 ×"])
    axes.xaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(ticker.NullFormatter())
    plain(axes, "milliseconds a computation takes JAX with gloo", "throughput of Open Pathways\n(higher is better)")
    axes.annotate("as fast as JAX with gloo", (1, 1), (-4, -11), ha="right", xycoords=("axes fraction", "data"),
                  textcoords="offset points", fontsize=8, color=COLORS["JAX with gloo"])  # fmt: skip
    figure.tight_layout()
    save(figure, path)


def draw7(heads, rows, path):
    """Time of a stage by the number of stages."""
    stages = [int(row[0]) for row in rows]
    lines = [
        (column_of(heads, rows, "sequential"), "--", "sequential dispatch", OURS),
        (column_of(heads, rows, "parallel"), "-", "parallel dispatch", OURS),
        (column_of(heads, rows, "moves alone"), "-", "the moves alone", GREY),
    ]
    with lines_over(stages, lines, path) as axes:
        axes.set_ylim(bottom=0)
        plain(axes, "stages of the program", "µs a stage (lower is better)")
        doubling(axes, stages)


def draw8(heads, rows, path):
    """Computations a second by the number of clients, a panel for each length of a computation."""
    counts = [int(head) for head in heads[1:]]
    lengths = list(dict.fromkeys(row[0].partition(", ")[2] for row in rows))
    figure, grid = pyplot.subplots(1, len(lengths), figsize=(12, 3.6), sharex=True)
    for axes, length in zip(grid.flat, lengths, strict=True):
        for name, *cells in rows:
            system, _, of = name.partition(", ")
            if of == length:
                ours = system == "Open Pathways"
                values = [number(cell) for cell in cells]
                axes.plot(counts, values, "-o", color=COLORS[system], markersize=3.5, linewidth=2.2 if ours else 1.2)
                up = 6 if values[-1] == max(number(r[-1]) for r in rows if r[0].endswith(f", {length}")) else -14
                axes.annotate(system, (counts[-1], values[-1]), (0, up), textcoords="offset points", ha="right",
                              fontsize=8, color=COLORS[system])  # fmt: skip
        axes.set_ylim(0, 1.2 * max(number(cell) for row in rows if row[0].endswith(f", {length}") for cell in row[1:]))
        axes.set_title(f"{length} a computation", fontsize=10, loc="left")
        axes.yaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:,.0f}"))
        plain(axes, "clients", "computations a second (higher is better)" if axes is grid.flat[0] else "")
        doubling(axes, counts)
    figure.tight_layout()
    save(figure, path)


def draw12(heads, rows, path):
    """The part of the time that the devices of two islands compute, by what the network takes."""
    sends = [float(row[0]) for row in rows]
    styles = zip((":", "--", "-"), heads[1:4], (GREY, OURS, OURS), strict=True)
    lines = [(column_of(heads, rows, name), style, name, color) for style, name, color in styles]
    with lines_over(sends, lines, path, width=0.82) as axes:
        axes.set_ylim(0, 105)
        axes.yaxis.set_major_formatter(ticker.PercentFormatter(decimals=0))
        across = "time to send the gradients / time to compute a step"
        plain(axes, across, "part of the time that devices compute\n(higher is better)")


def draw_traces(traces, path):
    """What devices did for some milliseconds, by what was set: a lane for each device, a color for each tenant."""
    figure, grid = pyplot.subplots(len(traces), 1, figsize=(11, 0.6 + 1.1 * len(traces)), squeeze=False)
    for axes, (title, got) in zip(grid.flat, traces.items(), strict=True):
        lanes = got["trace"]
        tenants = sorted({bar[0] for bars in lanes.values() for bar in bars}, key=lambda name: int(name[1:]))
        colors = pyplot.get_cmap("tab20" if len(tenants) > 8 else "Set2")
        for row, bars in enumerate(lanes.values()):
            spans = [(begin, end - begin) for _, begin, end in bars]
            axes.broken_barh(
                spans, (row - 0.4, 0.8), color=[colors(tenants.index(bar[0])) for bar in bars], linewidth=0
            )
        for i, tenant in enumerate(tenants[:8]):
            axes.text(1.005, 0.9 - i * 0.9 / min(len(tenants), 8), f"client {int(tenant[1:]) + 1}", fontsize=7,
                      transform=axes.transAxes, color=colors(i), va="top")  # fmt: skip
        axes.set_yticks(range(len(lanes)), lanes, fontsize=8)
        axes.set_xlim(0, max(bar[2] for bars in lanes.values() for bar in bars))
        axes.set_title(title if ":" in title else f"{title} client{'s' * (title != '1')}", fontsize=10, loc="left")
        axes.spines[["top", "right"]].set_visible(False)
    grid.flat[-1].set_xlabel("milliseconds")
    figure.tight_layout()
    save(figure, path)


# By how the title of the section begins.
DRAWN = {
    "Figure 5": draw5,
    "Figure 6": draw6,
    "Figure 7": draw7,
    "Figure 8": draw8,
    "Figure 12": draw12,
}


def draw(page, into=None):
    """Draws the pictures of a page into a folder, else beside the page; returns their paths."""
    drawn = []
    for title, (heads, rows) in tables(page).items():
        for beginning, how in DRAWN.items():
            if title.startswith(beginning):
                name = beginning.lower().replace(" ", "") + ".png"
                drawn.append((into or page.parent) / name)
                how(heads, rows, drawn[-1])
    return drawn


if __name__ == "__main__":
    default = pathlib.Path(__file__).parents[2] / "docs" / "paper" / "README.md"
    for path in draw(pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else default):
        print(path)
